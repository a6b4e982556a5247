"""The reason why a pending score waits is computed when the score is read."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from builders import session_completed
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.queue.known_names import announce
from tarsy_scoring.wiring import Parts, open_parts

YAML = """
providers:
  main: {api_key_env: null, model: judge-1, prices_usd_per_million_tokens: {input: 1, output: 10}}
chains:
  kubernetes: {daily_budget_usd: 5}
"""


@pytest.fixture
async def parts(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Parts]:
    """
    The parts of the service as every command has them; one chain of the configuration has a budget.

    The reasons are read for each document.
    """
    monkeypatch.setattr("tarsy_scoring.scores.reader.WAITING_S", 0)
    config = tmp_path / "scoring.yaml"
    config.write_text(YAML, encoding="utf-8")
    settings = load_settings({"SCORING_DATABASE_URL": database_url, "SCORING_CONFIG": str(config)})
    async with open_parts(settings) as opened:
        yield opened


async def accepted(parts: Parts, chain_id: str | None) -> UUID:
    """Accept a request for a session of this chain; returns its pending score."""
    request = session_completed(f"session-{chain_id}", chain_id=chain_id)
    await parts.inbox.accept([request])
    row = await parts.reader.newest_score(request.session_id)
    score_id: UUID = row["score_id"]
    return score_id


async def waits_for(parts: Parts, score_id: UUID) -> str | None:
    document = await parts.reader.score(score_id)
    assert document is not None
    reason: str | None = document.get("waiting_for")
    return reason


async def execute(parts: Parts, sql: str, *arguments: Any) -> None:
    await parts.database.once(lambda c: c.execute(parts.database.sql(sql), *arguments))


async def test_a_pause_holds_up_its_chain_alone(parts: Parts) -> None:
    """A due score that is only not claimed yet has no reason."""
    kubernetes, other = await accepted(parts, "kubernetes"), await accepted(parts, None)
    document = await parts.reader.score(kubernetes)
    assert document is not None
    assert (document["status"], "waiting_for" in document) == ("pending", False)

    await parts.limits.pause("kubernetes", None, "alice", None)

    assert (await waits_for(parts, kubernetes), await waits_for(parts, other)) == ("pause", None)
    await parts.limits.resume(None, None)
    assert await waits_for(parts, kubernetes) is None


async def test_an_open_circuit_and_a_spent_budget_are_reasons(parts: Parts) -> None:
    """A provider's circuit holds up every chain; a budget with too little left for a call, its own chain."""
    kubernetes, other = await accepted(parts, "kubernetes"), await accepted(parts, None)
    await execute(
        parts,
        "INSERT INTO {schema}.budget_days (day, scope, chain_id, charged_usd) "
        "VALUES ((now() AT TIME ZONE 'UTC')::date, 'chain', 'kubernetes', 4.95)",
    )
    assert (await waits_for(parts, kubernetes), await waits_for(parts, other)) == ("budget", None)
    document = await parts.reader.score(kubernetes)
    assert document is not None
    assert document["waiting_for_text"].startswith("the daily budget of chain 'kubernetes' has 0.0500 of 5.0 USD left")

    for kind in ("circuit", "key", "quota", "rejected"):
        await execute(
            parts,
            "INSERT INTO {schema}.provider_states (provider, kind, open_until, cool_down_s) "
            "VALUES ('main', $1, now() + interval '30 s', 30) "
            "ON CONFLICT (provider) DO UPDATE SET kind = excluded.kind",
            kind,
        )
        assert await waits_for(parts, other) == kind


async def test_its_own_reason_holds_until_it_is_due(parts: Parts) -> None:
    """Before its due time a score put back has the reason for that; afterwards, what holds it up now."""
    score_id = await accepted(parts, "kubernetes")
    due = "now() + $1 * interval '1 s'"
    put_back = f"UPDATE {{schema}}.session_scores SET waiting_reason = 'retry', next_attempt_at = {due}"
    await execute(parts, put_back, -1)
    assert await waits_for(parts, score_id) is None

    await parts.limits.pause(None, None, "alice", None)
    assert await waits_for(parts, score_id) == "pause"
    await execute(parts, put_back, 60)
    assert await waits_for(parts, score_id) == "retry"


async def test_a_source_that_is_away_is_a_reason_until_the_score_is_claimed(parts: Parts) -> None:
    """No worker whose source is away claims it, however long it has been due."""
    score_id = await accepted(parts, "kubernetes")
    await execute(
        parts,
        "UPDATE {schema}.session_scores SET waiting_reason = 'source', next_attempt_at = now() - interval '1 min'",
    )

    assert await waits_for(parts, score_id) == "source"


@pytest.mark.parametrize(
    "column",
    [
        pytest.param("criteria = 'house-rules'", id="criteria"),
        pytest.param("chain_id = 'removed', chain_is_named = true", id="chain"),
    ],
)
async def test_names_that_no_living_worker_knows_are_a_reason(parts: Parts, column: str) -> None:
    """Without any worker there is none: no score is claimed then."""
    known, unknown = await accepted(parts, "kubernetes"), await accepted(parts, None)
    await execute(parts, f"UPDATE {{schema}}.session_scores SET {column} WHERE score_id = $1", unknown)
    assert await waits_for(parts, unknown) is None

    await announce(parts.inbox)

    assert (await waits_for(parts, unknown), await waits_for(parts, known)) == ("worker", None)
    await parts.limits.pause(None, None, "alice", None)
    assert await waits_for(parts, unknown) == "pause"

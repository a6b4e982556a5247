"""What a pending score says it waits for: computed when it is read, whether or not it was ever tried."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from builders import session_completed
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.wiring import Parts, open_parts

YAML = """
providers:
  main: {api_key_env: null, model: judge-1, prices_usd_per_million_tokens: {input: 1, output: 10}}
chains:
  kubernetes: {daily_budget_usd: 5}
"""


@pytest.fixture
async def parts(database_url: str, tmp_path: Path) -> AsyncIterator[Parts]:
    """The service's parts as every command has them, on a database with one chain that has a budget."""
    config = tmp_path / "scoring.yaml"
    config.write_text(YAML, encoding="utf-8")
    settings = load_settings({"SCORING_DATABASE_URL": database_url, "SCORING_CONFIG": str(config)})
    async with open_parts(settings) as opened:
        yield opened


async def accepted(parts: Parts, chain_id: str | None) -> UUID:
    """A score of this chain that nobody has claimed yet."""
    request = session_completed(f"session-{chain_id}", chain_id=chain_id)
    await parts.inbox.accept([request])
    row, *_ = await parts.reader.scores_of_session(request.session_id)
    score_id: UUID = row["score_id"]
    return score_id


async def waits_for(parts: Parts, score_id: UUID) -> str | None:
    document = await parts.reader.score(score_id)
    assert document is not None
    reason: str | None = document.get("waiting_for")
    return reason


async def execute(parts: Parts, sql: str, *arguments: Any) -> None:
    await parts.database.once(lambda c: c.execute(parts.database.sql(sql), *arguments))


async def test_a_score_that_is_due_waits_for_nothing(parts: Parts) -> None:
    """It is merely not its turn yet: no word is made up."""
    score_id = await accepted(parts, "kubernetes")

    document = await parts.reader.score(score_id)

    assert document is not None
    assert document["status"] == "pending"
    assert "waiting_for" not in document


async def test_a_score_that_was_never_claimed_says_what_holds_it_up(parts: Parts) -> None:
    """A pause, until it is lifted; one of another chain does not matter."""
    kubernetes, other = await accepted(parts, "kubernetes"), await accepted(parts, None)

    await parts.limits.pause("kubernetes", None, "alice", None)

    assert (await waits_for(parts, kubernetes), await waits_for(parts, other)) == ("pause", None)
    await parts.limits.resume(None, None)
    assert await waits_for(parts, kubernetes) is None


@pytest.mark.parametrize("kind", ["circuit", "key", "quota"])
async def test_a_provider_in_trouble_holds_up_every_chain(parts: Parts, kind: str) -> None:
    """An open circuit, whatever opened it."""
    score_id = await accepted(parts, "kubernetes")

    await execute(
        parts,
        "INSERT INTO {schema}.provider_states (provider, kind, open_until, cool_down_s) "
        "VALUES ('main', $1, now() + interval '30 s', 30)",
        kind,
    )

    assert await waits_for(parts, score_id) == kind


async def test_spent_money_holds_up_its_chain(parts: Parts) -> None:
    """Less left of the day's budget than any call costs; a chain without one goes on."""
    kubernetes, other = await accepted(parts, "kubernetes"), await accepted(parts, None)

    await execute(
        parts,
        "INSERT INTO {schema}.budget_days (day, scope, chain_id, charged_usd) "
        "VALUES ((now() AT TIME ZONE 'UTC')::date, 'chain', 'kubernetes', 4.95)",
    )

    assert (await waits_for(parts, kubernetes), await waits_for(parts, other)) == ("budget", None)


@pytest.mark.parametrize(("due_in_s", "reason"), [(60, "retry"), (-1, "pause")], ids=["not-due", "due"])
async def test_its_own_reason_holds_until_it_is_due(parts: Parts, due_in_s: int, reason: str) -> None:
    """What put it back says why, and after its due time what holds it up now."""
    score_id = await accepted(parts, "kubernetes")
    await parts.limits.pause(None, None, "alice", None)

    await execute(
        parts,
        "UPDATE {schema}.session_scores SET waiting_reason = 'retry', next_attempt_at = now() + $1 * interval '1 s'",
        due_in_s,
    )

    assert await waits_for(parts, score_id) == reason


async def test_a_reason_that_is_over_is_not_told(parts: Parts) -> None:
    """Due again, and nothing in its way."""
    score_id = await accepted(parts, None)

    await execute(parts, "UPDATE {schema}.session_scores SET waiting_reason = 'retry', next_attempt_at = now()")

    assert await waits_for(parts, score_id) is None

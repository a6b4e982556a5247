"""Which stored scores `compare` selects, and the command on a real database."""

import json
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner, Result

from builders import Scoring, connected, open_scoring
from infrastructure import run_apart
from stored import NOON, store_score
from tarsy_scoring.errors import ScoringError
from tarsy_scoring.studies.commands.compare import compare
from tarsy_scoring.studies.comparison import ScoredSession
from tarsy_scoring.studies.stored_scores import SCORES_BY_LABEL, scores_by_label

HOUR = timedelta(hours=1)


async def keep(scoring: Scoring, session_id: str, total: int | None, **changes: Any) -> None:
    """Store a score of a session of version v1; an existing session is not changed."""
    session = {"labels": {"guidance": "v1"}, "alert_type": "oom"}
    session |= {name: changes.pop(name) for name in ("labels", "alert_type", "ended", "chain_id") if name in changes}
    await store_score(scoring, session_id, total, session=session, **changes)


async def keep_versions(scoring: Scoring, **shifts: float) -> None:
    """Store forty sessions of each version, of two alert types, with totals shifted by these points."""
    source = random.Random(5)
    for day, (version, shift) in enumerate(shifts.items()):
        for number in range(40):
            await keep(
                scoring,
                f"{version}-{number}",
                round(min(100, max(0, source.gauss(50 + shift, 12)))),
                alert_type=("oom", "latency")[number % 2],
                labels={"guidance": version, "team": "a"},
                ended=NOON + timedelta(days=day),
                interaction={"error_rate": source.random() / 2, "total_commands": source.randrange(5, 20)},
                outcome=source.choice(("pass", "fail")),
            )


# --- what is selected ----------------------------------------------------------------------------------


async def test_the_latest_production_score_of_each_labelled_session_counts(scoring: Scoring) -> None:
    """Failed scores and other purposes do not count; sessions are in the order of their ends."""
    rates = {"error_rate": 0.25}
    await keep(scoring, "s-2", 40, at=NOON + HOUR, ended=NOON, interaction=rates, flags=["ungrounded"])
    await keep(scoring, "s-2", 90)
    await keep(scoring, "s-2", 10, purpose="shadow", at=NOON + 2 * HOUR)
    await keep(scoring, "s-2", None, status="failed", at=NOON + 2 * HOUR)
    await keep(scoring, "s-1", None, labels={"guidance": "v2"}, ended=NOON - HOUR, alert_type=None, outcome="pass")
    await keep(scoring, "s-3", 60, labels={"team": "a"})
    await keep(scoring, "s-4", None, status="failed")

    assert await scores_by_label(scoring.database, "guidance", None, None) == [
        ScoredSession("v2", "kubernetes", None, None, None, "judge-1", [], "pass"),
        ScoredSession("v1", "kubernetes", "oom", 40, rates, "judge-1", ["ungrounded"], None),
    ]


async def test_sessions_are_selected_by_chain_and_end(scoring: Scoring) -> None:
    """The end of the session decides, not the time of its score."""
    await keep(scoring, "old", 10, ended=NOON - HOUR, at=NOON + HOUR)
    await keep(scoring, "new", 20, ended=NOON)
    await keep(scoring, "other", 30, ended=NOON + HOUR, chain_id="network")

    async def totals(chain: str | None, since: datetime | None) -> list[int | None]:
        return [s.total_score for s in await scores_by_label(scoring.database, "guidance", chain, since)]

    assert await totals("kubernetes", None) == [10, 20]
    assert await totals(None, NOON) == [20, 30]
    assert await totals("network", NOON + 2 * HOUR) == []


async def test_the_scores_of_labelled_sessions_are_found_by_index(database_url: str) -> None:
    """Few sessions carry a label, and there are many scores."""
    async with connected(database_url) as connection:
        await connection.execute("""
            INSERT INTO sessions (session_id, labels)
            SELECT 's-' || n, CASE WHEN n % 100 = 0 THEN '{"guidance": "v1"}'::jsonb ELSE '{}' END
            FROM generate_series(1, 5000) n""")
        await connection.execute("""
            INSERT INTO session_scores (session_id, request_id, priority, score_triggered_by, status, completed_at,
                                        total_score, criteria_hash)
            SELECT 's-' || n, gen_random_uuid(), 1, 'test', 'completed', now(), 60, 'hash-1'
            FROM generate_series(1, 5000) n""")
        await connection.execute("VACUUM ANALYZE sessions, session_scores")
        statement = f"EXPLAIN (FORMAT JSON) {SCORES_BY_LABEL.format(schema='public')}"
        [[plan]] = await connection.fetch(statement, "guidance", None, None)

    assert '"Index Name": "session_scores_' in plan


# --- the command ---------------------------------------------------------------------------------------

Compare = Callable[..., Result]


@pytest.fixture
def run(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Compare:
    """Runs `compare` on this database."""
    monkeypatch.setenv("SCORING_DATABASE_URL", database_url)
    return lambda *arguments: CliRunner().invoke(compare, list(arguments))


@pytest.fixture
def keep_shifted(database_url: str) -> Callable[..., None]:
    """Stores versions whose totals are shifted by these points."""

    async def fill(shifts: dict[str, float]) -> None:
        async with open_scoring(database_url) as scoring:
            await keep_versions(scoring, **shifts)

    return lambda **shifts: run_apart(fill(shifts))


def test_a_planted_difference_is_found_and_an_equality_is_not(run: Compare, keep_shifted: Callable[..., None]) -> None:
    """v2 is ten points above v1, v3 equals v2; the interaction metrics of all are equal."""
    keep_shifted(v1=0, v2=10, v3=10)

    found = {}
    for values in (("v1", "v2"), ("v2", "v3")):
        ended = run("--label", "guidance", "--values", *values, "--chain", "kubernetes", "--json")
        assert ended.exit_code == 0, ended.output
        document = json.loads(ended.stdout)
        assert (document["label"], document["values"], document["sessions"]) == ("guidance", list(values), [40, 40])
        found[values] = {m["metric"]: m for m in document["metrics"]}

    total = found["v1", "v2"]["total_score"]
    assert (total["verdict"], total["first"]["n"], total["first"]["compared"]) == ("higher", 40, 40)
    assert 0 < total["difference"]["low"] < 10 < total["difference"]["high"]
    assert total["difference"]["value"] == pytest.approx(total["second"]["mean"] - total["first"]["mean"])
    others = [found["v1", "v2"][name]["verdict"] for name in ("error_rate", "total_commands", "pass_share")]
    assert others == ["no difference shown"] * 3
    assert found["v1", "v2"]["retry_rate"]["verdict"] == "too few"
    equal = found["v2", "v3"]
    assert {m["verdict"] for m in equal.values()} == {"no difference shown", "too few"}


def test_the_text_has_the_older_version_first(run: Compare, keep_shifted: Callable[..., None]) -> None:
    """Whatever its name; a repeated call prints the same bytes."""
    keep_shifted(zeta=0, alpha=15)

    ended = run("--label", "guidance")

    assert ended.exit_code == 0, ended.output
    assert "guidance: alpha (40 sessions) minus zeta (40 sessions)" in ended.output
    assert "'alpha' against 'zeta': total_score higher." in ended.output
    assert run("--label", "guidance").stdout == ended.stdout


def test_nothing_to_compare(run: Compare, keep_shifted: Callable[..., None]) -> None:
    """Exit status 1, and what has no scores."""
    keep_shifted(v1=0)

    for label, *rest in (["version"], ["guidance"], ["guidance", "--since", "2027-01-01"]):
        ended = run("--label", label, *rest)
        assert (ended.exit_code, type(ended.exception)) == (1, ScoringError)
        assert f"label {label!r}" in str(ended.exception)

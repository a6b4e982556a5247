"""Which stored scores `compare` selects, and the command on a real database."""

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from click.testing import CliRunner, Result

from builders import connected, open_scoring
from infrastructure import run_apart
from tarsy_scoring.errors import ScoringError
from tarsy_scoring.studies.commands.compare import compare
from tarsy_scoring.studies.comparison import ScoredSession
from tarsy_scoring.studies.stored_scores import SCORES_BY_LABEL, scores_by_label

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
KEEP_SESSION = """
INSERT INTO sessions (session_id, chain_id, alert_type, labels, completed_at) VALUES ($1, $2, $3, $4::jsonb, $5)
ON CONFLICT DO NOTHING
"""
KEEP_SCORE = """
INSERT INTO session_scores (session_id, request_id, priority, score_triggered_by, status, purpose, completed_at,
                            total_score, judge_fingerprint, interaction, flags, outcome)
VALUES ($1, gen_random_uuid(), 1, 'test', $2, $3, $4, $5, $6, $7::jsonb, $8::jsonb, $9)
"""


async def keep(connection: asyncpg.Connection, session_id: str, total: int | None, **changes: Any) -> None:
    """Store a score of a session of version v1; an existing session is not changed."""
    says: dict[str, Any] = {"chain_id": "kubernetes", "alert_type": "oom", "labels": {"guidance": "v1"}, "ended": NOON}
    says |= {"status": "completed", "purpose": "production", "completed_at": NOON, "judge_fingerprint": "judge-1"}
    says |= {"interaction": None, "flags": [], "outcome": None} | changes
    session = [says["chain_id"], says["alert_type"], json.dumps(says["labels"]), says["ended"]]
    await connection.execute(KEEP_SESSION, session_id, *session)
    before = [says[name] for name in ("status", "purpose", "completed_at")]
    found = says["interaction"] and json.dumps(says["interaction"])
    after = [says["judge_fingerprint"], found, json.dumps(says["flags"]), says["outcome"]]
    await connection.execute(KEEP_SCORE, session_id, *before, total, *after)


async def keep_versions(connection: asyncpg.Connection, **shifts: float) -> None:
    """Store forty sessions of each version, of two alert types, with totals shifted by these points."""
    source = random.Random(5)
    for day, (version, shift) in enumerate(shifts.items()):
        for number in range(40):
            await keep(
                connection,
                f"{version}-{number}",
                round(min(100, max(0, source.gauss(50 + shift, 12)))),
                alert_type=("oom", "latency")[number % 2],
                labels={"guidance": version, "team": "a"},
                ended=NOON + timedelta(days=day),
                interaction={"error_rate": source.random() / 2, "total_commands": source.randrange(5, 20)},
                outcome=source.choice(("pass", "fail")),
            )


# --- what is selected ----------------------------------------------------------------------------------


async def test_the_latest_production_score_of_each_labelled_session_counts(database_url: str) -> None:
    """Failed scores and other purposes do not count; sessions are in the order of their ends."""
    rates = {"error_rate": 0.25}
    async with connected(database_url) as connection:
        await keep(connection, "s-2", 40, completed_at=NOON + HOUR, interaction=rates, flags=["ungrounded"])
        await keep(connection, "s-2", 90)
        await keep(connection, "s-2", 10, purpose="shadow", completed_at=NOON + 2 * HOUR)
        await keep(connection, "s-2", None, status="failed", completed_at=NOON + 2 * HOUR)
        await keep(
            connection, "s-1", None, labels={"guidance": "v2"}, ended=NOON - HOUR, alert_type=None, outcome="pass"
        )
        await keep(connection, "s-3", 60, labels={"team": "a"})
        await keep(connection, "s-4", None, status="failed")
    async with open_scoring(database_url) as scoring:
        found = await scores_by_label(scoring.database, "guidance", None, None)

    assert found == [
        ScoredSession("v2", "kubernetes", None, None, None, "judge-1", [], "pass"),
        ScoredSession("v1", "kubernetes", "oom", 40, rates, "judge-1", ["ungrounded"], None),
    ]


async def test_sessions_are_selected_by_chain_and_end(database_url: str) -> None:
    """The end of the session decides, not the time of its score; without an end, the first sight."""
    async with connected(database_url) as connection:
        await keep(connection, "old", 10, ended=NOON - HOUR, completed_at=NOON + HOUR)
        await keep(connection, "new", 20, ended=NOON)
        await keep(connection, "other", 30, ended=NOON + HOUR, chain_id="network")
        await keep(connection, "endless", 40, ended=None)
    async with open_scoring(database_url) as scoring:

        async def totals(chain: str | None, since: datetime | None) -> list[int | None]:
            found = await scores_by_label(scoring.database, "guidance", chain, since)
            return [s.total_score for s in found]

        assert await totals("kubernetes", None) == [10, 20, 40]
        assert await totals(None, NOON) == [20, 30, 40]
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

    def call(**shifts: float) -> None:
        async def fill() -> None:
            async with connected(database_url) as connection:
                await keep_versions(connection, **shifts)

        run_apart(fill())

    return call


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


def test_two_values_are_taken_in_the_order_in_which_they_appeared(
    run: Compare, keep_shifted: Callable[..., None]
) -> None:
    """The older version comes first, whatever its name; a repeated call prints the same bytes."""
    keep_shifted(zeta=0, alpha=15)

    ended = run("--label", "guidance")

    assert ended.exit_code == 0, ended.output
    assert "guidance: alpha (40 sessions) minus zeta (40 sessions)" in ended.output
    assert "'alpha' against 'zeta': total_score higher." in ended.output
    for words in (
        "n=40",
        "95 % interval",
        "* higher",
        "* shown, allowing for 8 metrics",
        "not necessarily caused by it",
    ):
        assert words in ended.output
    assert run("--label", "guidance", "--json").stdout == run("--label", "guidance", "--json").stdout


def test_nothing_to_compare(run: Compare, keep_shifted: Callable[..., None]) -> None:
    """Exit status 1 and what there is instead: no label, other labels, or a single value."""
    empty = run("--label", "guidance")
    keep_shifted(v1=0)
    unknown, one, later = (
        run("--label", *rest) for rest in (["version"], ["guidance"], ["guidance", "--since", "2027-01-01"])
    )

    for ended in (empty, unknown, one, later):
        assert (ended.exit_code, type(ended.exception)) == (1, ScoringError)
    assert "no session has one" in str(empty.exception)
    assert "guidance (40 sessions), team (40 sessions)" in str(unknown.exception)
    assert "have one value, 'v1' (40 scored sessions)" in str(one.exception)
    assert "that ended since 2027-01-01" in str(later.exception)

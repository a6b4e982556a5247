"""Which stored scores `calibrate` compares with labels, and the command on a real database."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from click.testing import CliRunner

from builders import connected, open_scoring
from infrastructure import run_apart
from tarsy_scoring.commands.calibrate import calibrate
from tarsy_scoring.labels.calibration import LabelledScore
from tarsy_scoring.labels.labels import known_criteria, scores_by_judge
from tarsy_scoring.scores.bands import DEFAULT_BANDS, Band

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
KEEP_SESSION = "INSERT INTO sessions (session_id) VALUES ($1) ON CONFLICT DO NOTHING"
KEEP_SCORE = """
INSERT INTO session_scores (session_id, request_id, priority, score_triggered_by, status, purpose, completed_at,
                            total_score, criteria, criteria_hash, judge_fingerprint, judge_outcome)
VALUES ($1, gen_random_uuid(), 1, 'test', $2, $3, $4, $5, $6, $7, $8, $9)
"""
KEEP_CRITERIA = "INSERT INTO scoring_criteria (criteria_hash, name, content) VALUES ($1, 'outcome', $2::jsonb)"


async def keep(connection: asyncpg.Connection, session_id: str, total: int | None, **changes: Any) -> None:
    says: dict[str, Any] = {"status": "completed", "purpose": "production", "completed_at": NOON, "criteria": "outcome"}
    says |= {"criteria_hash": "hash-1", "judge_fingerprint": "judge-1", "judge_outcome": None} | changes
    await connection.execute(KEEP_SESSION, session_id)
    before, after = ("status", "purpose", "completed_at"), ("criteria", "criteria_hash", "judge_fingerprint")
    values = [says[name] for name in before], [says[name] for name in (*after, "judge_outcome")]
    await connection.execute(KEEP_SCORE, session_id, *values[0], total, *values[1])


async def test_the_latest_production_score_of_each_judge_counts(database_url: str) -> None:
    """Not scores that failed, are open, have another purpose, or whose session has no label."""
    async with connected(database_url) as connection:
        await keep(connection, "s-1", 40, completed_at=NOON + timedelta(hours=1), judge_outcome="shaky")
        await keep(connection, "s-1", 90)
        await keep(connection, "s-1", 50, judge_fingerprint="judge-2")
        await keep(connection, "s-1", 60, criteria="other", criteria_hash="hash-2")
        await keep(connection, "s-2", 10, purpose="shadow")
        await keep(connection, "s-2", None, status="failed")
        await keep(connection, "s-2", None)
        await keep(connection, "s-3", 70)
    async with open_scoring(database_url) as scoring:
        found = await scores_by_judge(scoring.database, ["s-1", "s-2"], None)
        one_criteria = await scores_by_judge(scoring.database, ["s-1", "s-2"], "other")

    assert found == [
        LabelledScore("s-1", 40, "outcome", "hash-1", "judge-1", "shaky"),
        LabelledScore("s-1", 50, "outcome", "hash-1", "judge-2"),
        LabelledScore("s-1", 60, "other", "hash-2", "judge-1"),
    ]
    assert one_criteria == found[2:]


async def test_bands_are_those_that_the_judge_was_given(database_url: str) -> None:
    """By the hash of the criteria, lowest first; the default bands where the criteria have none."""
    async with connected(database_url) as connection:
        await connection.execute(KEEP_CRITERIA, "hash-1", json.dumps({"bands": {"solid": [60, 100], "bad": [0, 59]}}))
        await connection.execute(KEEP_CRITERIA, "hash-2", "{}")
    async with open_scoring(database_url) as scoring:
        names, found = await known_criteria(scoring.database)

    assert names == {"outcome"}
    assert found == {"hash-1": (Band("bad", 0, 59), Band("solid", 60, 100)), "hash-2": DEFAULT_BANDS}


def test_the_command_reads_the_database(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels may use bands of criteria that only the database has."""

    async def fill() -> None:
        async with connected(database_url) as connection:
            await connection.execute(
                KEEP_CRITERIA, "hash-1", json.dumps({"bands": {"solid": [60, 100], "bad": [0, 59]}})
            )
            await keep(connection, "s-1", 80)
            await keep(connection, "s-2", 70)

    run_apart(fill())
    labels = tmp_path / "labels.csv"
    rows = "session_id,outcome,score\ns-1,solid,1\ns-2,wrong,2\ns-3,solid,3\n"
    labels.write_text(rows, encoding="utf-8")
    monkeypatch.setenv("SCORING_DATABASE_URL", database_url)

    ended = CliRunner().invoke(calibrate, [str(labels), "--json"], catch_exceptions=False)

    assert ended.exit_code == 0
    document = json.loads(ended.stdout)
    [found] = document["calibrations"]
    assert (found["matched"], found["unmatched"]) == (2, 1)
    assert found["confusion"] == {"categories": ["bad", "solid"], "counts": [[0, 1], [0, 1]]}
    for_people = CliRunner().invoke(calibrate, [str(labels)], catch_exceptions=False).output
    for shown in ("3 labels, 0 of them undecided", "weighted kappa", "without a score of this judge: 1"):
        assert shown in for_people


def test_unknown_criteria_are_a_usage_error(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Criteria are known from the configuration or from stored scores; known ones may have no score."""

    async def fill() -> None:
        async with connected(database_url) as connection:
            await connection.execute(KEEP_CRITERIA, "hash-1", "{}")
            await keep(connection, "s-1", 80)

    run_apart(fill())
    labels = tmp_path / "labels.csv"
    labels.write_text("session_id,number\ns-1,70\n", encoding="utf-8")
    monkeypatch.setenv("SCORING_DATABASE_URL", database_url)

    ended = {
        name: CliRunner().invoke(calibrate, [str(labels), "--criteria", name])
        for name in ("outcom", "outcome", "investigation-structured")
    }

    assert {name: e.exit_code for name, e in ended.items()} == {
        "outcom": 2,
        "outcome": 0,
        "investigation-structured": 1,
    }
    assert "no criteria are called 'outcom'" in ended["outcom"].stderr
    assert "investigation-structured" in ended["outcom"].stderr
    assert ", outcome)" in ended["outcom"].stderr

"""The write-back: each finished score is written to TARSy's tables once, and scoring never waits for it."""

import asyncio
import contextlib
import json
import re
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from builders import Scoring, completion, connected, failure, rescore, role_on, session_completed
from infrastructure import wait_until
from tarsy_grants import WRITER, grants_to
from tarsy_scoring.outbox import outbox
from tarsy_scoring.tarsy.database import TarsyAway, TarsyPool, TarsyUnfit
from tarsy_scoring.tarsy.schema import WRITE_BACK_TABLES
from tarsy_scoring.tarsy.write_back import WriteBack
from tarsy_scoring.telemetry.metrics import Metrics

DEAD_URL = "postgresql://writer@127.0.0.1:9/tarsy"
Tarsy = asyncpg.Connection


@pytest.fixture
async def tarsy(tarsy_database_url: str) -> AsyncIterator[Tarsy]:
    async with connected(tarsy_database_url) as connection:
        yield connection


class Running(WriteBack):
    """A process's write-back, with its pool and its metrics at hand."""

    def __init__(self, scoring: Scoring, url: str) -> None:
        self.tarsy = TarsyPool(url, "SCORING_WRITE_BACK_DATABASE_URL", WRITE_BACK_TABLES, is_read_only=False)
        self.registry = (metrics := Metrics()).registry
        super().__init__(scoring.database, self.tarsy, metrics)

    def counted(self, result: str) -> float:
        return self.registry.get_sample_value("tarsy_scoring_write_backs_total", {"result": result}) or 0.0


Start = Callable[..., Running]


@pytest.fixture
async def open_only(scoring: Scoring, tarsy_database_url: str) -> AsyncIterator[Start]:
    """Makes write-backs that have not run yet, by default into the test's TARSy."""
    async with contextlib.AsyncExitStack() as stack:

        def call(url: str = tarsy_database_url) -> Running:
            made = Running(scoring, url)
            stack.push_async_callback(made.tarsy.close)
            return made

        yield call


@pytest.fixture
async def start(open_only: Start) -> Start:
    """As `open_only`, after a first pass, which enables the write-back before any score."""
    assert await open_only().run_once() is False
    return open_only


async def put(tarsy: Tarsy, *session_ids: str, status: str = "completed", stages: int = 1) -> None:
    """Store sessions of TARSy's with this number of stages."""
    for session_id in session_ids:
        await tarsy.execute(
            "INSERT INTO alert_sessions (session_id, alert_data, agent_type, chain_id, status, created_at) "
            "VALUES ($1, 'x', 'a', 'c', $2, now())",
            *(session_id, status),
        )
        for n in range(1, stages + 1):
            await add_stage(tarsy, session_id, n)


async def add_stage(tarsy: Tarsy, session_id: str, index: int) -> None:
    await tarsy.execute(
        "INSERT INTO stages (stage_id, stage_name, stage_index, expected_agent_count, session_id) "
        "VALUES ($1, 'x', $2, 1, $3)",
        *(f"{session_id}-{index}", index, session_id),
    )


async def finish(scoring: Scoring, *session_ids: str, make: Any = completion, **columns: Any) -> list[uuid.UUID]:
    """Store an ended score for each of these sessions; returns their ids."""
    await scoring.accept(*(session_completed(s) for s in session_ids))
    ended = []
    for claimed in await scoring.claim():
        await scoring.store.end(make(claimed, **columns))
        ended.append(claimed.score_id)
    await assign_positions(scoring)
    return ended


async def assign_positions(scoring: Scoring) -> None:
    """Assign positions, as the relay does before publishing."""
    await outbox.assign_positions(scoring.database, 10_000)


async def written(tarsy: Tarsy) -> list[str]:
    """The sessions of TARSy's scores, one for each score."""
    return [r["session_id"] for r in await tarsy.fetch("SELECT session_id FROM session_scores ORDER BY session_id")]


# --- what is written --------------------------------------------------------------------------------------


async def test_a_score_is_written_as_tarsy_reads_it(scoring: Scoring, start: Start, tarsy: Tarsy) -> None:
    await put(tarsy, "one", stages=3)
    judged = {
        "total_score": 61,
        "score_analysis": "Well.",
        "missing_tools_analysis": "1. x",
        "failure_tags": ["wrong_conclusion"],
    }
    [score_id] = await finish(scoring, "one", **judged)

    await start().run_once()

    [row] = await tarsy.fetch("SELECT * FROM session_scores")
    stored = await scoring.score(score_id)
    assert dict(row) == {
        "score_id": str(score_id),
        "prompt_hash": stored["criteria_hash"],
        "total_score": 61,
        "score_analysis": "Well.",
        "tool_improvement_report": "1. x",
        "score_triggered_by": "tarsy-scoring:auto",
        "status": "completed",
        "started_at": stored["started_at"],
        "completed_at": stored["completed_at"],
        "error_message": None,
        "session_id": "one",
        "stage_id": row["stage_id"],
        "failure_tags": '["wrong_conclusion"]',
    }
    assert stored["stage_id"] == row["stage_id"]
    stage = await tarsy.fetchrow("SELECT * FROM stages WHERE stage_id = $1", row["stage_id"])
    assert stage is not None
    assert (stage["session_id"], stage["stage_index"], stage["stage_type"], stage["status"]) == (
        *("one", 4, "scoring", "completed"),
    )


async def test_the_dashboard_is_notified_after_the_commit(
    scoring: Scoring, start: Start, tarsy: Tarsy, tarsy_database_url: str
) -> None:
    """On both channels. TARSy deletes its rows in `events` a minute after a session; one of ours would stay."""
    await put(tarsy, "one")
    heard: list[tuple[str, dict[str, Any], int]] = []

    def on_notify(_connection: object, _pid: int, channel: str, payload: object) -> None:
        heard.append((channel, json.loads(str(payload)), len(str(payload))))

    async with connected(tarsy_database_url) as listening:
        for channel in ("sessions", "session:one"):
            await listening.add_listener(channel, on_notify)
        await finish(scoring, "one")
        await start().run_once()
        await wait_until(lambda: len(heard) == 3, 30, "three notifications")

    by_kind = {(channel, message["type"]): message for channel, message, _ in heard}
    assert set(by_kind) == {
        ("sessions", "session.score_updated"),
        ("session:one", "session.score_updated"),
        ("session:one", "stage.status"),
    }
    assert by_kind["sessions", "session.score_updated"]["scoring_status"] == "completed"
    stage = by_kind["session:one", "stage.status"]
    assert (stage["stage_type"], stage["status"], stage["stage_index"]) == ("scoring", "completed", 2)
    assert all(m["session_id"] == "one" and m["timestamp"].endswith("Z") and size < 7900 for _, m, size in heard)
    assert await tarsy.fetch("SELECT * FROM events") == []


async def test_only_finished_production_scores_are_written_and_as_they_ended(
    scoring: Scoring, start: Start, tarsy: Tarsy
) -> None:
    """A failure has no total. A score without one is left out, as TARSy lists the newest completed row."""
    await put(tarsy, "failed", "timed_out", "one", "cancelled", "no-number")
    await finish(scoring, "failed", make=failure, status="failed")
    await finish(scoring, "timed_out", make=failure, status="timed_out")
    [without] = await finish(scoring, "no-number")
    await scoring.rows("UPDATE session_scores SET total_score = NULL WHERE score_id = $1", without)
    purposes = ("shadow", "consistency", "anchor")
    await scoring.accept(*(rescore("one", purpose=p, chain_id="kubernetes") for p in purposes))
    await scoring.accept(rescore("cancelled", chain_id="kubernetes"))
    for claimed in await scoring.claim():
        if claimed.session_id == "cancelled":
            await scoring.leases.cancel(claimed.score_id, "bob")
        else:
            await scoring.store.end(completion(claimed))
    await assign_positions(scoring)
    made = start()

    while await made.run_once():
        pass

    rows = await tarsy.fetch("SELECT session_id, status, total_score, error_message, failure_tags FROM session_scores")
    why = "the judge refused to answer"
    assert sorted(tuple(r) for r in rows) == [(s, s, None, why, "[]") for s in ("failed", "timed_out")]


# --- once -------------------------------------------------------------------------------------------------


async def test_a_crash_between_the_two_commits_writes_nothing_twice(
    scoring: Scoring, start: Start, tarsy: Tarsy
) -> None:
    """The bookmark has not moved; the existing rows and stages are recognised, and scores get their stage."""
    await put(tarsy, "one", "two")
    await finish(scoring, "one", "two")
    await start().run_once()
    tables = ("session_scores", "stages")
    before = [await tarsy.fetch(f"SELECT * FROM {t} ORDER BY 1") for t in tables]
    await scoring.rows("UPDATE write_back_bookmark SET position = 0")
    stages = await scoring.rows("UPDATE session_scores SET stage_id = NULL RETURNING score_id")
    again = start()

    await again.run_once()

    assert [await tarsy.fetch(f"SELECT * FROM {t} ORDER BY 1") for t in tables] == before
    assert len(stages) == await scoring.value("SELECT count(stage_id) FROM session_scores") == 2
    assert (again.counted("repeated"), again.counted("written")) == (2, 0)


async def test_one_process_writes_at_a_time(scoring: Scoring, start: Start, tarsy: Tarsy) -> None:
    """A process without the lock on the bookmark does nothing, and does not wait for it."""
    await put(tarsy, "one")
    await finish(scoring, "one")
    async with connected(scoring.url) as other, other.transaction():
        await other.execute("SELECT * FROM write_back_bookmark FOR UPDATE")
        assert await start().run_once() is False
    assert await written(tarsy) == []

    assert await start().run_once() is True

    assert await written(tarsy) == ["one"]


async def test_the_writer_that_takes_the_stage_number_first_wins(
    scoring: Scoring, start: Start, tarsy: Tarsy, tarsy_database_url: str
) -> None:
    """A chat of TARSy's and our stage take the same number: ours moves to the next one."""
    await put(tarsy, "one")
    await finish(scoring, "one")
    made = start()
    async with connected(tarsy_database_url) as theirs:
        transaction = theirs.transaction()
        await transaction.start()
        await add_stage(theirs, "one", 2)
        writing = asyncio.create_task(made.run_once())

        async def waits() -> Any:
            return await tarsy.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted")

        await wait_until(waits, 30, "we wait for their transaction")
        await transaction.commit()
        await writing

    assert await tarsy.fetchval("SELECT stage_index FROM stages WHERE stage_type = 'scoring'") == 3
    assert await written(tarsy) == ["one"]


# --- outages and refusals ---------------------------------------------------------------------------------


async def test_an_outage_of_tarsy_loses_no_score(scoring: Scoring, start: Start, tarsy: Tarsy) -> None:
    """The bookmark does not move during the outage; afterwards everything is written."""
    await put(tarsy, *(f"s{n}" for n in range(4)))
    await finish(scoring, "s0", "s1")
    away = start(DEAD_URL)

    with pytest.raises(TarsyAway, match="cannot be used") as raised:
        await away.run_once()

    assert DEAD_URL not in str(raised.value)
    backlog = away.registry.get_sample_value("tarsy_scoring_write_back_backlog_events")
    assert backlog == 2, "what ends nothing was passed over"
    await finish(scoring, "s2", "s3")
    await start().run_once()
    assert await written(tarsy) == ["s0", "s1", "s2", "s3"]


async def test_sessions_that_tarsy_lacks_or_that_run_are_skipped(scoring: Scoring, start: Start, tarsy: Tarsy) -> None:
    """A running session gets no stage, as TARSy would take it for a step; others are written once."""
    await put(tarsy, "deleted", "there")
    await put(tarsy, "running", status="in_progress")
    await put(tarsy, "timed-out", status="timed_out")
    await tarsy.execute("UPDATE alert_sessions SET deleted_at = now() WHERE session_id = 'deleted'")
    await finish(scoring, "deleted", "never", "there", "running", "timed-out")
    made = start()

    await made.run_once()

    assert await written(tarsy) == ["there", "timed-out"]
    assert (made.counted("session_gone"), made.counted("session_open")) == (2, 1)
    assert await tarsy.fetchval("SELECT count(*) FROM stages WHERE session_id = 'running'") == 1
    assert await made.run_once() is False


async def test_a_row_that_tarsy_refuses_stops_no_other(scoring: Scoring, start: Start, tarsy: Tarsy) -> None:
    await put(tarsy, "one", "two")
    await tarsy.execute("ALTER TABLE session_scores ALTER score_analysis TYPE varchar(10)")
    await finish(scoring, "one", score_analysis="x" * 11)
    await finish(scoring, "two", score_analysis="x" * 10)
    made = start()

    await made.run_once()

    assert await written(tarsy) == ["two"]
    assert (made.counted("refused"), made.counted("written")) == (1, 1)
    assert await tarsy.fetchval("SELECT count(*) FROM stages WHERE session_id = 'one'") == 1, "and left no stage"


# A change that makes TARSy's schema refuse rows, its reversal, and the name in the error.
REFUSALS = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))


async def test_a_schema_that_refuses_every_row_is_waited_for(scoring: Scoring, start: Start, tarsy: Tarsy) -> None:
    """TARSy may be mid-upgrade: no score is skipped, and the error names the refusing constraint."""
    made, sessions = start(), [f"s{n}" for n in range(len(REFUSALS))]
    await put(tarsy, "first", *sessions)
    await finish(scoring, "first")
    await made.run_once()
    for session_id, (statement, mends, says) in zip(sessions, REFUSALS, strict=True):
        await tarsy.execute(statement)
        await finish(scoring, session_id)
        with pytest.raises(TarsyUnfit, match=says):
            await made.run_once()
        assert session_id not in await written(tarsy)

        await tarsy.execute(mends)
        await made.run_once()

        assert session_id in await written(tarsy)


# --- schema and grants ------------------------------------------------------------------------------------


@pytest.fixture
async def writer(tarsy_database_url: str) -> AsyncIterator[tuple[str, str]]:
    """A role with the documented grants: its name and its URL."""
    async with role_on(tarsy_database_url, grants_to(WRITER, "{role}")) as writer:
        yield writer


async def test_the_documented_grants_suffice_and_missing_ones_are_named(
    scoring: Scoring, start: Start, tarsy: Tarsy, writer: tuple[str, str]
) -> None:
    """Without any one of the grants nothing is written, and the error names it."""
    role, url = writer
    await put(tarsy, "one")
    await finish(scoring, "one")
    made = start(url)

    await made.run_once()

    await put(tarsy, "two")
    await finish(scoring, "two")
    await tarsy.execute(f"REVOKE INSERT ON stages FROM {role}")
    with pytest.raises(TarsyUnfit, match="INSERT on stages"):
        await start(url).run_once()
    await tarsy.execute(
        f"REVOKE ALL ON alert_sessions FROM {role}; GRANT SELECT (session_id) ON alert_sessions TO {role}"
    )
    with pytest.raises(TarsyUnfit, match=re.escape("SELECT (status, deleted_at) on alert_sessions")):
        await start(url).run_once()
    assert await written(tarsy) == ["one"]


async def test_a_read_only_database_is_waited_for(
    scoring: Scoring, start: Start, tarsy: Tarsy, writer: tuple[str, str]
) -> None:
    """Once it accepts writes no restart is needed."""
    role, url = writer
    await put(tarsy, "one")
    await finish(scoring, "one")
    await tarsy.execute(f"ALTER ROLE {role} SET default_transaction_read_only = on")
    made = start(url)

    with pytest.raises(TarsyAway, match=r"it is read-only; .* SCORING_WRITE_BACK_DATABASE_URL leads to the primary"):
        await made.run_once()
    await tarsy.execute(f"ALTER ROLE {role} RESET default_transaction_read_only")
    await made.run_once()

    assert await written(tarsy) == ["one"]

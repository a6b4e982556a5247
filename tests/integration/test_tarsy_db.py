"""TARSy's database as a source: the timeline equals that of a file, and every way to be unreadable."""

import contextlib
import tracemalloc
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from builders import role_on
from tarsy_grants import READER, grants_to
from tarsy_scoring.errors import SessionNotFound, SessionTooLarge, TimelineUnavailable
from tarsy_scoring.tarsy import timeline_db
from tarsy_scoring.tarsy.timeline_db import TarsyDatabase
from tarsy_scoring_lab.tarsy import load_session
from tarsy_sessions import session


@pytest.fixture
async def connection(tarsy_database_url: str):  # type: ignore[no-untyped-def]
    connection = await asyncpg.connect(tarsy_database_url)
    yield connection
    await connection.close()


@pytest.fixture
async def source(tarsy_database_url: str):  # type: ignore[no-untyped-def]
    source = TarsyDatabase(tarsy_database_url, timeout_s=20)
    yield source
    await source.close()


async def test_older_deployments_lack_columns(connection: Any, tarsy_database_url: str) -> None:
    """A missing value reads as absent; the documented grants suffice."""
    await load_session(connection, session())
    await connection.execute(
        "ALTER TABLE alert_sessions DROP COLUMN labels; ALTER TABLE agent_executions DROP COLUMN original_model_name"
    )
    async with role_on(tarsy_database_url, grants_to(READER, "{role}")) as (role, url):
        reader = TarsyDatabase(url)
        assert (await reader.fetch_timeline("one")).labels == {}
        await connection.execute(f"REVOKE SELECT ON stages FROM {role}")
        reader.tarsy.look_again()
        with pytest.raises(TimelineUnavailable, match="SELECT on stages"):
            await reader.fetch_timeline("one")
        await reader.close()


DEEP, LONG = "[" * 3000 + "]" * 3000, "9" * 5000


async def test_an_unreadable_value_that_no_score_needs_is_left_out(connection: Any, source: TarsyDatabase) -> None:
    await load_session(connection, session(labels=None))
    for change in (
        f"UPDATE alert_sessions SET labels = '{DEEP}'",
        f"""UPDATE alert_sessions SET labels = '{{"a": {LONG}}}'""",
        f"UPDATE mcp_interactions SET available_tools = '{DEEP}' WHERE interaction_type = 'tool_list'",
        f"UPDATE timeline_events SET metadata = '{DEEP}' WHERE event_id = 'one-sub-2'",
        "UPDATE alert_sessions SET created_at = '-infinity', started_at = '0044-03-15 BC', "
        "completed_at = 'infinity'; UPDATE timeline_events SET created_at = '20000-01-01'; "
        "UPDATE mcp_interactions SET created_at = 'infinity'",
        "ALTER TABLE alert_sessions DROP labels, ADD labels text DEFAULT 'watch'",
    ):
        await connection.execute(change)
        with contextlib.suppress(TimelineUnavailable):  # the first read after a schema change
            await source.fetch_timeline("one")

        timeline = await source.fetch_timeline("one")

        [stage] = timeline.stages
        assert [(e.event_id, e.content) for x in stage.executions for e in x.events] == [
            ("one-lead-1", "result 1 of lead"),
            ("one-lead-2", "result 2 of lead"),
            ("one-sub-1", "result 1 of sub"),
            ("one-sub-2", "look"),
        ]
        assert timeline.labels == {}, change
        assert timeline.evidence.missing == ()
        times = {timeline.created_at, timeline.started_at, timeline.completed_at}
        assert all(time is None or time.tzinfo for time in times)


@pytest.mark.parametrize(
    "change",
    ["DROP COLUMN labels", "ALTER COLUMN chain_id TYPE varchar(1000)", "ALTER COLUMN labels TYPE text"],
    ids=["a column is dropped", "a column becomes longer", "a column gets another type"],
)
async def test_a_schema_change_is_noticed(connection: Any, source: TarsyDatabase, change: str) -> None:
    """The first read after it fails where a column is gone or has another type; the next one knows."""
    await load_session(connection, session(chain_id="a"))
    await source.fetch_timeline("one")
    await connection.execute(f"ALTER TABLE alert_sessions {change}")

    with contextlib.nullcontext() if "varchar" in change else pytest.raises(TimelineUnavailable):
        await source.fetch_timeline("one")

    assert (await source.fetch_timeline("one")).chain_id == "a"


async def test_a_pooler_that_keeps_no_prepared_statements_is_named(connection: Any, tarsy_database_url: str) -> None:
    """With the setting of the message, no statement is prepared by name."""
    await load_session(connection, session())
    for cache, is_read in ((100, False), (0, True)):
        reader = TarsyDatabase(tarsy_database_url, connections=1, statement_cache=cache)
        await reader.fetch_timeline("one")
        async with reader.tarsy.transaction() as (used, _):
            await used.execute("DEALLOCATE ALL")  # as if another server took over

        with contextlib.nullcontext() if is_read else pytest.raises(TimelineUnavailable, match="STATEMENT_CACHE=0"):
            await reader.fetch_timeline("one")
        await reader.close()


async def test_the_server_notices_a_reader_that_vanished(source: TarsyDatabase) -> None:
    """And TARSy's statements are not compiled, which may take longer than they run."""
    names = ("tcp_keepalives_idle", "tcp_user_timeout", "jit")
    async with source.tarsy.transaction() as (opened, _):
        found = [await opened.fetchval("SELECT current_setting($1)", name) for name in names]
    assert found == ["20", "40000", "off"]


MAX_BYTES = 1_000_000
LARGE_TEXT = f"repeat('x', {4 * MAX_BYTES})"  # stored compressed
LARGE_JSON = f"jsonb_build_object('x', {LARGE_TEXT})"
NEW_EVENTS = """
INSERT INTO timeline_events
  (event_id, sequence_number, created_at, updated_at, event_type, content, execution_id, session_id)
SELECT 'new-' || n, n, now(), now(), 'llm_thinking', '', e.execution_id, 'one'
FROM generate_series(1, 10000) n, (SELECT execution_id FROM agent_executions LIMIT 1) e
"""


@pytest.mark.parametrize(
    "growth",
    [
        pytest.param(f"UPDATE alert_sessions SET alert_data = {LARGE_TEXT}", id="alert"),
        pytest.param(f"UPDATE timeline_events SET content = {LARGE_TEXT}", id="events"),
        pytest.param(f"UPDATE timeline_events SET metadata = {LARGE_JSON}", id="metadata"),
        pytest.param(f"UPDATE mcp_interactions SET available_tools = {LARGE_JSON}", id="tools"),
        pytest.param(NEW_EVENTS, id="number of rows"),
    ],
)
async def test_a_session_that_is_too_large_stays_in_the_database(
    connection: Any, tarsy_database_url: str, growth: str
) -> None:
    """Wherever its bytes are, they are counted by the server."""
    await load_session(connection, session(labels={"team": "x"}))
    reader = TarsyDatabase(tarsy_database_url, max_session_bytes=MAX_BYTES)
    await reader.fetch_timeline("one")
    await connection.execute(growth)

    tracemalloc.start()
    try:
        with pytest.raises(SessionTooLarge):
            await reader.fetch_timeline("one")
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()
        await reader.close()


async def test_a_database_without_tarsys_tables_is_unavailable(empty_database_url: str) -> None:
    source = TarsyDatabase(empty_database_url)
    try:
        with pytest.raises(TimelineUnavailable, match="the table alert_sessions"):
            await source.fetch_timeline("one")
    finally:
        await source.close()


THEN = datetime(2026, 3, 4, tzinfo=UTC)


async def test_unrepresentable_times_hide_no_session(connection: Any, source: TarsyDatabase) -> None:
    """They read as the nearest time; a session deleted at such a time is deleted."""
    for n, time in enumerate(("infinity", "20000-01-01", "0044-03-15 BC")):
        await load_session(connection, session(f"ended-{n}"))
        await load_session(connection, session(f"gone-{n}"))
        await connection.execute(
            f"UPDATE alert_sessions SET completed_at = '{time}' WHERE session_id = 'ended-{n}';"
            f"UPDATE alert_sessions SET deleted_at = '{time}' WHERE session_id = 'gone-{n}'"
        )
        assert (await source.find_session(f"ended-{n}")).session_id == f"ended-{n}"
        with pytest.raises(SessionNotFound):
            await source.find_session(f"gone-{n}")

    assert [found.session_id async for found in source.finished_sessions(THEN)] == ["ended-0", "ended-1"]


@pytest.mark.parametrize("count", [6, 7], ids=["the last page is full", "there is one more"])
async def test_finished_sessions_come_in_pages(
    connection: Any, source: TarsyDatabase, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Each session once, whatever the size of the last page; a new session in between does no harm."""
    monkeypatch.setattr(timeline_db, "PAGE", 3)
    for n in range(count):
        await load_session(connection, session(f"s-{n}"))

    found = []
    async for each in source.finished_sessions(THEN):
        found.append(each.session_id)
        if len(found) == 1:
            await load_session(connection, session("a-new-one"))
            open_ = """SELECT count(*) FROM pg_stat_activity
                       WHERE datname = current_database() AND application_name = $1 AND state <> 'idle'"""
            assert await connection.fetchval(open_, "tarsy-scoring") == 0, "no transaction stays open"

    assert found == [f"s-{n}" for n in range(count)]

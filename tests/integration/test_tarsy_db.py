"""TARSy's database as a source: the same timeline as from a file, and every way in which it cannot be read."""

import asyncio
import json
import re
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tarsy_scoring.errors import SessionNotFound, SessionNotTerminal, TimelineUnavailable
from tarsy_scoring.tarsy import timeline_db
from tarsy_scoring.tarsy.timeline_db import TarsyDatabase
from tarsy_scoring.timeline.files import SessionFiles, parse_session
from tarsy_scoring.timeline.model import AvailableTool, FoundSession, ToolCall
from tarsy_scoring_lab.tarsy import create_tables, load_session

RECORDED_DIR = Path(__file__).resolve().parents[2] / ".." / "shared" / "sessions"
RECORDED = sorted(RECORDED_DIR.glob("*.json"))


def session(session_id: str = "one", **changes: Any) -> dict[str, Any]:
    """One stage; a lead with one call, and its sub-agent."""
    call = {
        "event_id": f"{session_id}-call",
        "sequence_number": 1,
        "event_type": "llm_tool_call",
        "status": "completed",
        "content": "web-1 Running",
        "created_at": "2026-01-02T03:04:05.678Z",
        "metadata": {"server_name": "kubectl", "tool_name": "get", "arguments": "not json", "is_error": False},
    }
    thinking = {
        "event_id": f"{session_id}-sub",
        "sequence_number": 1,
        "event_type": "a_new_type",
        "status": "completed",
        "content": "look",
        "created_at": "2026-01-02T03:04:06Z",
        "metadata": None,
    }
    lead = {
        "execution_id": f"{session_id}-lead",
        "agent_name": "lead",
        "agent_index": 1,
        "status": "completed",
        "llm_provider": "fast",
        "model_name": "model-1",
        "events": [call],
    }
    sub = lead | {
        "execution_id": f"{session_id}-sub",
        "agent_name": "sub",
        "parent_execution_id": f"{session_id}-lead",
        "task": "look at logs",
        "events": [thinking],
    }
    stage = {
        "stage_id": f"{session_id}-stage",
        "stage_name": "diagnosis",
        "stage_index": 1,
        "stage_type": "investigation",
        "status": "completed",
        "executions": [lead, sub],
    }
    return {
        "session_id": session_id,
        "status": "completed",
        "alert_data": "alert",
        "alert_type": "pod-crash",
        "chain_id": "kubernetes",
        "created_at": "2026-01-02T03:04:00Z",
        "completed_at": "2026-01-02T03:05:00Z",
        "final_analysis": "because",
        "executive_summary": "it is so",
        "available_tools": [{"server_name": "kubectl", "tool_name": "get", "description": "reads"}],
        "stages": [stage],
    } | changes


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


async def test_session_reads_as_it_was_written(connection: Any, source: TarsyDatabase) -> None:
    """Sub-agents, unknown event types, odd arguments, models and labels included."""
    written = session(labels={"guidance": "v2"}, runbook_url="https://runbooks/web", started_at="2026-01-02T03:04:01Z")
    lead, sub = written["stages"][0]["executions"]
    lead["events"][0]["metadata"]["duration_ms"] = 40
    lead |= {"input_tokens": 1200, "output_tokens": 80}
    sub |= {"input_tokens": 0, "output_tokens": 0}
    await load_session(connection, written)

    timeline = await source.fetch_timeline("one")

    expected = parse_session(written)
    assert timeline.stages == expected.stages
    assert timeline.stages[0].executions[1].parent_execution_id == "one-lead"
    assert timeline.stages[0].executions[0].input_tokens == 1200
    assert timeline.started_at == expected.started_at is not None
    assert timeline.has_real_times
    assert timeline.agent_models == {"fast", "model-1"}
    assert timeline.labels == {"guidance": "v2"}
    assert timeline.runbook == "https://runbooks/web"
    assert timeline.available_tools == (AvailableTool("kubectl", "get", "reads", "lead"),)
    assert timeline.evidence.missing == ()


@pytest.mark.skipif(not RECORDED, reason="the recorded sessions are not beside this repository")
async def test_recorded_sessions_read_the_same_from_both_sources(connection: Any, source: TarsyDatabase) -> None:
    """Contract of the sources: stages, executions, events and evidence are equal."""
    for path in RECORDED:
        recorded = json.loads(path.read_bytes())
        await load_session(connection, recorded)

        timeline = await source.fetch_timeline(recorded["session_id"])

        expected = parse_session(recorded)
        assert timeline.stages == expected.stages, path.name
        assert timeline.evidence == expected.evidence, path.name
        for field in ("status", "chain_id", "alert_type", "alert_data", "final_analysis", "created_at", "started_at",
                      "completed_at"):  # fmt: skip
            assert getattr(timeline, field) == getattr(expected, field), (path.name, field)


async def test_unknown_session(source: TarsyDatabase) -> None:
    """Whatever the id holds."""
    with pytest.raises(SessionNotFound):
        await source.fetch_timeline("one'; DROP TABLE stages; --")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"deleted_at": "2026-01-01T00:00:00Z"}, SessionNotFound),
        ({"deleted_at": "2026-01-01T00:00:00Z", "status": "in_progress"}, SessionNotFound),
        ({"status": "in_progress"}, SessionNotTerminal),
        ({"status": "a_new_status"}, SessionNotTerminal),
    ],
    ids=["deleted", "deleted while running", "running", "unknown status"],
)
async def test_session_that_cannot_be_scored(
    connection: Any, source: TarsyDatabase, changes: dict[str, Any], error: type[Exception]
) -> None:
    """Deleted ones count as not found; a status nobody knows is not terminal."""
    await load_session(connection, session(**changes))

    with pytest.raises(error):
        await source.fetch_timeline("one")


async def test_missing_evidence_is_named(connection: Any, source: TarsyDatabase) -> None:
    """Agents, results and events that the database declares and does not hold."""
    await load_session(connection, session())
    await connection.execute("UPDATE stages SET expected_agent_count = 3")
    await connection.execute("UPDATE timeline_events SET status = 'streaming', content = '' WHERE event_id = 'one-sub'")
    await connection.execute("DELETE FROM timeline_events WHERE event_id = 'one-call'")

    evidence = (await source.fetch_timeline("one")).evidence

    assert evidence.missing == (
        "stage 1 (diagnosis): declares 3 agents, 1 could be read",
        "stage 1 (diagnosis), lead: 1 recorded tool calls have no event",
        "stage 1 (diagnosis), sub: a_new_type one-sub was not written to its end",
    )
    assert evidence.missing_share == pytest.approx(5 / 9)


async def test_older_deployment_without_newer_columns(connection: Any, source: TarsyDatabase) -> None:
    """What it lacks reads as absent."""
    await load_session(connection, session())
    await connection.execute("ALTER TABLE alert_sessions DROP COLUMN labels")
    await connection.execute("ALTER TABLE agent_executions DROP COLUMN original_model_name")

    timeline = await source.fetch_timeline("one")

    assert timeline.labels == {}
    assert len(timeline.stages[0].executions) == 2


async def test_tokens_are_those_of_all_calls_of_an_execution(connection: Any, source: TarsyDatabase) -> None:
    """Added up; unknown where one call does not say, or none is recorded."""
    written = session()
    written["stages"][0]["executions"][0] |= {"input_tokens": 1000, "output_tokens": 80}
    await load_session(connection, written)
    more = """INSERT INTO llm_interactions
              SELECT interaction_id || '/more', created_at, interaction_type, model_name, llm_request, llm_response, 7,
                     NULL, execution_id, session_id, stage_id FROM llm_interactions"""
    await connection.execute(more)

    lead, sub = (await source.fetch_timeline("one")).stages[0].executions

    assert (lead.input_tokens, lead.output_tokens) == (1007, None)
    assert (sub.input_tokens, sub.output_tokens) == (None, None)


@pytest.mark.parametrize(
    "change",
    ["DROP TABLE llm_interactions", "ALTER TABLE llm_interactions DROP COLUMN output_tokens"],
    ids=["no such table", "no such column"],
)
async def test_deployment_without_tokens(connection: Any, source: TarsyDatabase, change: str) -> None:
    """They read as unknown, and the session is read."""
    written = session()
    written["stages"][0]["executions"][0] |= {"input_tokens": 1000, "output_tokens": 80}
    await load_session(connection, written)
    await connection.execute(change)

    timeline = await source.fetch_timeline("one")

    assert [e.input_tokens for e in timeline.stages[0].executions] == [None, None]


async def test_role_that_may_not_read_tokens(connection: Any, source: TarsyDatabase, tarsy_database_url: str) -> None:
    """A right that older roles were not given is not asked for."""
    written = session()
    written["stages"][0]["executions"][0] |= {"input_tokens": 1000, "output_tokens": 80}
    await load_session(connection, written)
    role = f"reader_{uuid.uuid4().hex[:12]}"
    await connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{role}'")
    await connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    await connection.execute(f"REVOKE SELECT ON llm_interactions FROM {role}")
    reader = TarsyDatabase(re.sub("//.*@", f"//{role}:{role}@", tarsy_database_url))
    try:
        timeline = await reader.fetch_timeline("one")
    finally:
        await reader.close()
        await connection.execute(f"DROP OWNED BY {role}")
        await connection.execute(f"DROP ROLE {role}")

    assert timeline.stages[0].executions[0].input_tokens is None


async def test_durations_go_to_the_calls_in_their_order(connection: Any, source: TarsyDatabase) -> None:
    """The n-th call of a tool has the n-th record of it; where their numbers differ nobody can say."""
    written = session()
    [first] = written["stages"][0]["executions"][0]["events"]
    made = [("get", 10), ("list", 20), ("get", 30), ("list", None), ("logs", 40)]
    written["stages"][0]["executions"][0]["events"] = [
        first
        | {"event_id": f"e-{n}", "sequence_number": n, "created_at": f"2026-01-02T03:04:0{n}Z"}
        | {"metadata": first["metadata"] | {"tool_name": tool, "duration_ms": duration_ms}}
        for n, (tool, duration_ms) in enumerate(made)
    ]
    await load_session(connection, written)
    await connection.execute("DELETE FROM timeline_events WHERE event_id = 'e-4'")

    whole = (await source.fetch_timeline("one")).stages[0].executions[0].events
    await connection.execute("DELETE FROM mcp_interactions WHERE interaction_id = 'e-0/call'")
    less = (await source.fetch_timeline("one")).stages[0].executions[0].events

    assert [e.tool.duration_ms for e in whole if e.tool] == [10, 20, 30, None]
    assert [e.tool.duration_ms for e in less if e.tool] == [None, 20, None, None]


async def test_labels_as_a_list(connection: Any, source: TarsyDatabase) -> None:
    """Bare labels are true."""
    await load_session(connection, session(labels=["watch"]))

    assert (await source.fetch_timeline("one")).labels == {"watch": "true"}


DEEP, LONG = "[" * 3000 + "]" * 3000, "9" * 5000


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(f"UPDATE alert_sessions SET labels = '{DEEP}'", id="deep-labels"),
        pytest.param(f"""UPDATE alert_sessions SET labels = '{{"a": {LONG}}}'""", id="label-of-many-digits"),
        pytest.param("ALTER TABLE alert_sessions DROP labels, ADD labels text DEFAULT 'watch'", id="labels-as-text"),
        pytest.param(
            f"UPDATE mcp_interactions SET available_tools = '{DEEP}' WHERE interaction_type = 'tool_list'",
            id="deep-tools",
        ),
        pytest.param(f"UPDATE timeline_events SET metadata = '{DEEP}' WHERE event_id = 'one-sub'", id="deep-thinking"),
        pytest.param(
            "UPDATE alert_sessions SET created_at = '-infinity', started_at = '0044-03-15 BC', "
            "completed_at = 'infinity'; UPDATE timeline_events SET created_at = '20000-01-01'; "
            "UPDATE mcp_interactions SET created_at = 'infinity'",
            id="times-that-are-none",
        ),
    ],
)
async def test_what_the_score_does_not_need_is_left_out(connection: Any, source: TarsyDatabase, change: str) -> None:
    """Nobody can read it; all that is to be judged is there."""
    await load_session(connection, session())
    await connection.execute(change)

    timeline = await source.fetch_timeline("one")

    [stage] = timeline.stages
    assert [(e.event_id, e.content) for x in stage.executions for e in x.events] == [
        ("one-call", "web-1 Running"),
        ("one-sub", "look"),
    ]
    assert timeline.labels == {}
    assert timeline.evidence.missing == ()
    times = {timeline.created_at, timeline.started_at, timeline.completed_at}
    assert all(time is None or time.tzinfo for time in times)


@pytest.mark.parametrize("arguments", [DEEP, LONG], ids=["deep", "many-digits"])
async def test_a_call_that_cannot_be_read_is_missing(connection: Any, source: TarsyDatabase, arguments: str) -> None:
    """Its result is there; what was called nobody knows."""
    await load_session(connection, session())
    metadata = f'{{"server_name": "kubectl", "tool_name": "get", "arguments": {arguments}}}'
    await connection.execute(f"UPDATE timeline_events SET metadata = '{metadata}' WHERE event_id = 'one-call'")

    timeline = await source.fetch_timeline("one")

    call = timeline.stages[0].executions[0].events[0]
    assert (call.tool, call.content) == (ToolCall("", "(unnamed tool)", ""), "web-1 Running")
    assert timeline.evidence.missing == ("stage 1 (diagnosis), lead: call one-call could not be read",)
    assert timeline.evidence.missing_share == pytest.approx(1 / 8)


async def test_a_call_that_nobody_would_see_is_not_missing(connection: Any, source: TarsyDatabase) -> None:
    """It stands in a stage that the judge does not see."""
    await load_session(connection, session())
    await connection.execute("UPDATE stages SET stage_type = 'chat'")
    await connection.execute(f"UPDATE timeline_events SET metadata = '{DEEP}' WHERE event_id = 'one-call'")

    assert (await source.fetch_timeline("one")).evidence.missing == ()


async def test_event_of_a_stage_without_an_execution(connection: Any, source: TarsyDatabase) -> None:
    """It is kept, and does not count as one more agent."""
    await load_session(connection, session())
    await connection.execute("UPDATE timeline_events SET execution_id = NULL WHERE event_id = 'one-sub'")

    timeline = await source.fetch_timeline("one")

    assert [e.event_id for x in timeline.stages[0].executions for e in x.events] == ["one-call", "one-sub"]
    assert timeline.stages[0].executions[-1].input_tokens == 0, "nobody's events cost nothing"
    assert timeline.evidence.missing == ()


async def test_schema_change_is_noticed(connection: Any, source: TarsyDatabase) -> None:
    """The first read after a column went away fails, the next knows."""
    await load_session(connection, session(labels={"a": "b"}))
    await source.fetch_timeline("one")
    await connection.execute("ALTER TABLE alert_sessions DROP COLUMN labels")

    with pytest.raises(TimelineUnavailable):
        await source.fetch_timeline("one")

    assert (await source.fetch_timeline("one")).labels == {}


async def test_database_that_is_not_tarsys(empty_database_url: str) -> None:
    """The error names what is lacking."""
    source = TarsyDatabase(empty_database_url)
    try:
        with pytest.raises(TimelineUnavailable, match="the table alert_sessions"):
            await source.fetch_timeline("one")
    finally:
        await source.close()


async def test_unreachable_database() -> None:
    """Unavailable, with the cause and without the password."""
    source = TarsyDatabase("postgresql://reader:hunter2@127.0.0.1:9/tarsy", timeout_s=5)

    with pytest.raises(TimelineUnavailable) as caught:
        await source.fetch_timeline("one")

    assert "hunter2" not in str(caught.value)
    await source.close()
    await source.close()


async def test_locked_table_ends_at_the_deadline(
    connection: Any, tarsy_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read never waits longer than its deadline, and the next one works."""
    await load_session(connection, session())
    source = TarsyDatabase(tarsy_database_url)
    try:
        await source.fetch_timeline("one")
        async with connection.transaction():
            await connection.execute("LOCK TABLE stages IN ACCESS EXCLUSIVE MODE")
            with monkeypatch.context() as impatient:
                impatient.setattr(source.tarsy, "timeout_s", 0.5)
                with pytest.raises(TimelineUnavailable):
                    await source.fetch_timeline("one")
        assert (await source.fetch_timeline("one")).session_id == "one"
    finally:
        await source.close()


async def test_reads_at_once_share_a_small_pool(connection: Any, source: TarsyDatabase) -> None:
    """More readers than connections wait for their turn."""
    await load_session(connection, session())

    timelines = await asyncio.gather(*(source.fetch_timeline("one") for _ in range(20)))

    assert {t.session_id for t in timelines} == {"one"}
    held = await connection.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1",
        "tarsy-scoring",
    )
    assert 1 <= held <= 4


async def test_tables_can_be_made_twice(tarsy_database_url: str) -> None:
    """The second time changes nothing."""
    await load_session(tarsy_database_url, session())

    await create_tables(tarsy_database_url)

    source = TarsyDatabase(tarsy_database_url)
    assert (await source.fetch_timeline("one")).session_id == "one"
    await source.close()


THEN, BEFORE = datetime(2026, 1, 2, tzinfo=UTC), "2026-01-01T23:59:59Z"


async def listed(source: Any) -> list[FoundSession]:
    return [found async for found in source.finished_sessions(THEN)]


async def test_finished_sessions_are_the_same_from_both_sources(
    connection: Any, source: TarsyDatabase, tmp_path: Path
) -> None:
    """Contract of the sources: terminal, not deleted, by their end, else by their beginning."""
    written = [
        session("ended-then", completed_at=THEN.isoformat(), created_at=BEFORE, chain_id="billing", status="failed"),
        session("ended-before", completed_at=BEFORE),
        session("no-end", completed_at=None),
        session("no-end-and-began-before", completed_at=None, created_at=BEFORE),
        session("running", status="in_progress"),
        session("unknown-status", status="a_new_status"),
        session("deleted", deleted_at="2026-01-03T00:00:00Z"),
    ]
    for each in written:
        await load_session(connection, each)
        (tmp_path / f"{each['session_id']}.json").write_text(json.dumps(each))

    found = await listed(source)

    expected = [
        FoundSession("ended-then", "billing", "failed", THEN),
        FoundSession("no-end", "kubernetes", "completed", None),
    ]
    assert found == expected
    assert await listed(SessionFiles(tmp_path)) == expected


async def test_a_session_is_found_the_same_in_both_sources(
    connection: Any, source: TarsyDatabase, tmp_path: Path
) -> None:
    """Contract of the sources: a terminal session, or why it is none, and no timeline is read for it."""
    written = [
        session("ended", completed_at=THEN.isoformat(), chain_id="billing", status="timed_out"),
        session("says-no-end", completed_at=None),
        session("running", status="in_progress"),
        session("unknown-status", status="a_new_status"),
        session("deleted", deleted_at="2026-01-03T00:00:00Z"),
        session("deleted-and-running", deleted_at="2026-01-03T00:00:00Z", status="in_progress"),
    ]
    for each in written:
        await load_session(connection, each)
        (tmp_path / f"{each['session_id']}.json").write_text(json.dumps(each | {"stages": "nobody reads them"}))

    for of in (source, SessionFiles(tmp_path)):
        assert await of.find_session("ended") == FoundSession("ended", "billing", "timed_out", THEN)
        assert await of.find_session("says-no-end") == FoundSession("says-no-end", "kubernetes", "completed", None)
        for name in ("running", "unknown-status"):
            with pytest.raises(SessionNotTerminal, match=name):
                await of.find_session(name)
        for name in ("deleted", "deleted-and-running", "nobody"):
            with pytest.raises(SessionNotFound, match=name):
                await of.find_session(name)


async def test_times_that_are_none_are_no_times(connection: Any, source: TarsyDatabase) -> None:
    """The sessions are listed and found; what was deleted at such a time is deleted."""
    odd = ("infinity", "-infinity", "20000-01-01", "0044-03-15 BC")
    for n, time in enumerate(odd):
        await load_session(connection, session(f"ended-{n}"))
        await load_session(connection, session(f"gone-{n}"))
        await load_session(connection, session(f"timeless-{n}"))
        await load_session(connection, session(f"before-{n}", created_at=BEFORE))
        await connection.execute(
            f"UPDATE alert_sessions SET completed_at = '{time}' WHERE session_id IN ('ended-{n}', 'before-{n}');"
            f"UPDATE alert_sessions SET deleted_at = '{time}' WHERE session_id = 'gone-{n}';"
            f"UPDATE alert_sessions SET created_at = '{time}', completed_at = '{time}' "
            f"WHERE session_id = 'timeless-{n}'"
        )
    ids = [f"{which}-{n}" for which in ("ended", "timeless") for n in range(len(odd))]
    expected = [FoundSession(session_id, "kubernetes", "completed", None) for session_id in ids]

    assert await listed(source) == expected
    assert [await source.find_session(found.session_id) for found in expected] == expected
    with pytest.raises(SessionNotFound):
        await source.find_session("gone-1")


@pytest.mark.parametrize("count", [5, 6, 7], ids=["the last page is short", "it is full", "there is one more"])
async def test_finished_sessions_come_in_pages(
    connection: Any, source: TarsyDatabase, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Each once, whatever the pages hold; one that begins meanwhile harms nothing."""
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


async def test_finished_sessions_of_an_older_deployment(connection: Any, source: TarsyDatabase) -> None:
    """Without a column for the end the beginning counts; without one for deletion nothing is deleted."""
    await load_session(connection, session())
    await load_session(connection, session("before", created_at=BEFORE))
    await connection.execute("ALTER TABLE alert_sessions DROP COLUMN completed_at, DROP COLUMN deleted_at")

    assert await listed(source) == [FoundSession("one", "kubernetes", "completed", None)]
    assert await source.find_session("one") == FoundSession("one", "kubernetes", "completed", None)


async def test_a_database_that_fails_over_is_unavailable(tarsy_database_url: str) -> None:
    """None of its servers is what the URL asks for, for a moment: that is no fault of the session."""
    source = TarsyDatabase(f"{tarsy_database_url}?target_session_attrs=standby")

    with pytest.raises(TimelineUnavailable, match="session one"):
        await source.fetch_timeline("one")
    await source.close()


async def test_listing_an_unreachable_database() -> None:
    """Unavailable, never a list without sessions, and never a session that is not there."""
    source = TarsyDatabase("postgresql://reader:hunter2@127.0.0.1:9/tarsy", timeout_s=5)

    with pytest.raises(TimelineUnavailable, match="a page of sessions"):
        await listed(source)
    with pytest.raises(TimelineUnavailable, match="session one"):
        await source.find_session("one")

    await source.close()


async def test_the_models_of_recent_sessions(connection: Any, source: TarsyDatabase) -> None:
    """Of the newest sessions of each terminal status, without reading a timeline; running ones do not count."""
    for number in range(timeline_db.RECENT_SESSIONS + 1):
        await load_session(connection, session(f"s{number}"))
    await load_session(connection, session("running"))
    await connection.execute("UPDATE alert_sessions SET created_at = '1999-01-01' WHERE session_id = 's0'")
    await connection.execute("UPDATE alert_sessions SET status = 'in_progress' WHERE session_id = 'running'")
    for name, model in (("s0", "Old"), ("s1", "NEW"), ("running", "running-model")):
        await connection.execute("UPDATE agent_executions SET model_name = $2 WHERE session_id = $1", name, model)

    assert await source.recent_agent_models() == {"new", "fast", "model-1"}


async def test_a_database_that_is_away_has_no_models() -> None:
    """It says so, as for everything else."""
    source = TarsyDatabase("postgresql://reader:hunter2@127.0.0.1:9/tarsy", timeout_s=5)

    with pytest.raises(TimelineUnavailable):
        await source.recent_agent_models()

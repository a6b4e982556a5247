"""The contract of every timeline source: the same sessions from files, TARSy's database and its API."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from builders import connected
from tarsy_rest import TarsyRest
from tarsy_scoring.errors import SessionNotFound, SessionNotTerminal, SessionTooLarge, TimelineUnavailable
from tarsy_scoring.tarsy.timeline_api import TarsyApi
from tarsy_scoring.tarsy.timeline_db import TarsyDatabase
from tarsy_scoring.timeline.files import SessionFiles
from tarsy_scoring.timeline.model import FoundSession, TimelineSource
from tarsy_scoring_lab.tarsy import load_session
from tarsy_sessions import session

EXAMPLES = Path(__file__).resolve().parents[2] / "service/tarsy_scoring_lab/examples"
RECORDED = Path(__file__).resolve().parents[3] / "shared" / "sessions"
MAX_BYTES = 2_000_000
THEN, BEFORE = datetime(2026, 3, 4, tzinfo=UTC), "2026-03-03T23:59:59Z"


@dataclass
class Sources:
    """Three sources that hold the same sessions."""

    folder: Path
    connection: asyncpg.Connection
    files: TimelineSource
    database: TimelineSource
    api: TimelineSource

    async def add(self, document: dict[str, Any]) -> None:
        (self.folder / f"{document['session_id']}.json").write_text(json.dumps(document))
        await load_session(self.connection, document)

    def __iter__(self) -> Any:
        return iter((self.files, self.database, self.api))


@pytest.fixture
async def sources(tarsy_database_url: str, tmp_path: Path) -> AsyncIterator[Sources]:
    async with connected(tarsy_database_url) as connection, TarsyRest(tarsy_database_url) as tarsy:
        limit: Any = {"max_session_bytes": MAX_BYTES}
        files, database = SessionFiles(tmp_path, **limit), TarsyDatabase(tarsy_database_url, **limit)
        api = TarsyApi(tarsy.url, timeout_s=20, **limit)
        yield Sources(tmp_path, connection, files, database, api)
        await database.close()
        await api.close()


async def test_a_session_reads_the_same_from_every_source(sources: Sources) -> None:
    """All parts but one: files do not say which agent has a tool."""
    await sources.add(session())

    from_files, from_database, from_api = [await source.fetch_timeline("one") for source in sources]

    assert from_api == from_database
    for name in type(from_files).__dataclass_fields__.keys() - {"available_tools"}:
        assert getattr(from_files, name) == getattr(from_database, name), name
    lead, sub = from_database.stages[0].executions
    assert (lead.input_tokens, sub.input_tokens, sub.parent_execution_id) == (1200, None, "one-lead")
    assert [(t.tool_name, t.agent_name) for t in from_database.available_tools] == [("get", "lead"), ("search", "lead")]
    assert (from_database.labels, from_database.runbook) == ({"watch": "true"}, "https://runbooks/web")
    assert from_database.agent_models == {"fast", "model-1"}
    assert from_database.evidence.missing == ()


async def test_models_that_chatted_about_a_session_or_scored_it_are_not_its_agents(sources: Sources) -> None:
    """TARSy stores its chat and its own score as stages of the session, which the judge does not see."""
    document = session()
    for number, kind in enumerate(("chat", "scoring", "a_new_type"), start=2):
        execution = {"execution_id": kind, "agent_name": kind, "agent_index": 1, "status": "completed", "events": []}
        stage = {"stage_id": kind, "stage_name": kind, "stage_index": number, "stage_type": kind, "status": "completed"}
        document["stages"].append(stage | {"executions": [execution | {"model_name": "judge-1"}]})
    await sources.add(document)

    for source in sources:
        assert (await source.fetch_timeline("one")).agent_models == {"fast", "model-1"}
        assert await source.recent_agent_models() == {"fast", "model-1"}


@pytest.mark.parametrize(
    ("folder", "paths"),
    [(EXAMPLES, sorted(EXAMPLES.glob("*.json"))), (RECORDED, sorted(RECORDED.glob("*.json")))],
    ids=["examples", "recorded"],
)
async def test_whole_folders_read_the_same_from_every_source(sources: Sources, folder: Path, paths: list[Path]) -> None:
    if not paths:
        pytest.skip(f"no sessions in {folder}")
    compared = 0
    for path in paths:
        document = json.loads(path.read_text(encoding="utf-8"))
        try:
            await SessionFiles(folder).fetch_timeline(document["session_id"])
            await sources.add(document)
        except (SessionNotFound, SessionNotTerminal, asyncpg.PostgresError, KeyError):
            continue  # TARSy's schema cannot store this session
        from_files, from_database, from_api = [await s.fetch_timeline(document["session_id"]) for s in sources]
        assert from_api == from_database, path.name
        if folder == RECORDED:
            assert (from_files.stages, from_files.evidence) == (from_database.stages, from_database.evidence), path.name
        compared += 1
    assert compared >= len(paths) * 0.9


async def test_only_terminal_sessions_are_found(sources: Sources) -> None:
    """A deleted session does not exist; an unknown status is not terminal. The error names the session."""
    deleted = {"deleted_at": "2026-03-05T00:00:00Z"}
    for document in (
        session("ended", chain_id="billing", status="timed_out"),
        session("no-end", completed_at=None),
        session("running", status="in_progress"),
        session("unknown-status", status="a_new_status"),
        session("deleted", **deleted),
        session("deleted-and-running", status="in_progress", **deleted),
    ):
        await sources.add(document)

    for source in sources:
        ended = datetime(2026, 3, 4, 12, tzinfo=UTC)
        assert await source.find_session("ended") == FoundSession("ended", "billing", "timed_out", ended)
        assert await source.find_session("no-end") == FoundSession("no-end", "kubernetes", "completed", None)
        for read in (source.find_session, source.fetch_timeline):
            for name in ("running", "unknown-status"):
                with pytest.raises(SessionNotTerminal, match=name):
                    await read(name)
            for name in ("deleted", "deleted-and-running", "absent", "one'; DROP TABLE stages; --", "../sessions?x="):
                with pytest.raises(SessionNotFound):
                    await read(name)


async def test_a_session_that_is_too_large_is_not_read(sources: Sources) -> None:
    """The error has size, limit and setting; a smaller session beside it is read."""
    await sources.add(session("large", alert_data="x" * MAX_BYTES))
    await sources.add(session("small", alert_data="x" * (MAX_BYTES // 2)))
    said = r"the session large .* at least [2-3],\d{3},\d{3} bytes, and SCORING_MAX_SESSION_BYTES allows 2,000,000"
    for source in sources:
        with pytest.raises(SessionTooLarge, match=said):
            await source.fetch_timeline("large")
        assert (await source.fetch_timeline("small")).session_id == "small"


async def test_finished_sessions_are_listed_by_their_end(sources: Sources) -> None:
    """By their creation if they have no end; deleted and open sessions are not listed."""
    for document in (
        session("ended-then", completed_at=THEN.isoformat(), created_at=BEFORE, chain_id="billing", status="failed"),
        session("ended-before", completed_at=BEFORE, created_at=BEFORE),
        session("no-end", completed_at=None),
        session("no-end-and-began-before", completed_at=None, created_at=BEFORE),
        session("running", status="in_progress"),
        session("unknown-status", status="a_new_status"),
        session("deleted", deleted_at="2026-03-05T00:00:00Z"),
    ):
        await sources.add(document)

    for source in sources:
        assert [found async for found in source.finished_sessions(THEN)] == [
            FoundSession("ended-then", "billing", "failed", THEN),
            FoundSession("no-end", "kubernetes", "completed", None),
        ]
        assert await source.recent_agent_models() == {"fast", "model-1"}


async def test_an_unreachable_source_is_an_error() -> None:
    """It names the address and the setting but no password; it is never an empty list."""
    sources: list[TimelineSource] = [
        TarsyDatabase("postgresql://reader:hunter2@127.0.0.1:9/tarsy", timeout_s=5),
        TarsyApi("http://127.0.0.1:9", timeout_s=5),
    ]
    both = r"session one.*127\.0\.0\.1:9|127\.0\.0\.1:9.*session one"
    for source in sources:
        with pytest.raises(TimelineUnavailable, match=both) as caught:
            await source.fetch_timeline("one")
        assert "hunter2" not in str(caught.value)
        with pytest.raises(TimelineUnavailable, match="session one"):
            await source.find_session("one")
        with pytest.raises(TimelineUnavailable, match="a page of sessions"):
            _ = [found async for found in source.finished_sessions(THEN)]
        with pytest.raises(TimelineUnavailable):
            await source.recent_agent_models()
        await source.close()
        await source.close()

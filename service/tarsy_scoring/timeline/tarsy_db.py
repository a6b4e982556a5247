"""
TARSy's PostgreSQL database as a `TimelineSource`: one session in one read-only snapshot.

Columns are named one by one and looked up first, because TARSy's schema moves: what a newer or older
deployment lacks is read as null. Works behind a transaction pooler.
"""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import asyncpg

from tarsy_scoring.errors import SessionNotFound, SessionNotTerminal, TimelineUnavailable
from tarsy_scoring.timeline.evidence import take_stock
from tarsy_scoring.timeline.model import (
    SHOWN_STAGE_TYPES,
    TERMINAL_STATUSES,
    AvailableTool,
    Event,
    Execution,
    FoundSession,
    Stage,
    Timeline,
)
from tarsy_scoring.timeline.parsing import label_map, model_names, name_or_none, text_or_none, tool_call

T = TypeVar("T")
Columns = frozenset[tuple[str, str]]

# What the service cannot do without, and what only some deployments have. A table without anything in the first
# place is read where this role sees all of it, else taken for empty.
_COLUMNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "alert_sessions": (
        ("session_id", "status", "alert_data", "chain_id", "created_at"),
        ("alert_type", "final_analysis", "executive_summary", "error_message", "runbook_url", "labels", "started_at",
         "completed_at", "deleted_at"),
    ),
    "stages": (
        ("stage_id", "stage_name", "stage_index", "stage_type", "status"),
        ("expected_agent_count", "referenced_stage_id", "error_message"),
    ),
    "agent_executions": (
        ("execution_id", "stage_id", "agent_name", "agent_index", "status"),
        ("parent_execution_id", "task", "error_message", "llm_provider", "model_name", "original_llm_provider",
         "original_model_name"),
    ),
    "timeline_events": (
        ("event_id", "execution_id", "stage_id", "sequence_number", "event_type", "status", "content", "metadata",
         "created_at"),
        (),
    ),
    "mcp_interactions": (
        ("execution_id", "interaction_type", "server_name", "available_tools"),
        ("tool_name", "duration_ms"),
    ),
    "llm_interactions": (
        (),
        ("session_id", "execution_id", "input_tokens", "output_tokens"),
    ),
}  # fmt: skip

# Which columns are there: the tables of the first schema on the search path that has them.
_FIND_COLUMNS = """
    SELECT table_name, column_name
      FROM information_schema.columns
     WHERE table_name = ANY($1::text[])
       AND table_schema = ANY(current_schemas(false))
"""

_ORDER = {
    "stages": "stage_index, stage_id",
    "agent_executions": "agent_index, execution_id",
    "timeline_events": "sequence_number, created_at, event_id",
    "mcp_interactions": "server_name, created_at, interaction_id",
    "llm_interactions": "execution_id",
}

# A page of sessions that have ended, by the key that every deployment has an index on: TARSy has none on the
# time of the end, and a page by that time would sort the whole table again for each.
_FINISHED = """
    SELECT session_id, chain_id, status, completed_at
      FROM (SELECT {columns} FROM alert_sessions) s
     WHERE session_id > $1 AND status = ANY($2::text[]) AND deleted_at IS NULL
       AND coalesce(completed_at, created_at) >= $3
     ORDER BY session_id LIMIT $4
"""
_PAGE = 1000

# Whether a session is there and has ended, and no more of it.
_FIND = """
    SELECT session_id, chain_id, status, completed_at, deleted_at
      FROM (SELECT {columns} FROM alert_sessions) s
     WHERE session_id = $1
"""

# The newest sessions of each status, by the index that every deployment has on both.
_RECENT_MODELS = """
    SELECT {columns} FROM agent_executions WHERE session_id IN (
      SELECT s.session_id FROM unnest($1::text[]) AS wanted(status), LATERAL (
        SELECT session_id FROM alert_sessions WHERE status = wanted.status ORDER BY created_at DESC LIMIT $2) s)
"""
_RECENT_SESSIONS = 25


class TarsyDatabase:
    """
    Reads sessions with a small pool of its own, opened at the first use.

    Never writes: every read is one `READ ONLY` transaction, so a role with `SELECT` suffices. A cancelled
    read gives its connection back.

    Args:
        url: `postgresql://user:password@host/database`, `sslmode` and the like included.
        timeout_s: For one session, connecting included.
        max_connections: Upper bound of the pool.
    """

    may_change = True

    def __init__(self, url: str, *, timeout_s: float = 30.0, max_connections: int = 4) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._max_connections = max_connections
        self._pool: asyncpg.Pool | None = None
        self._columns: Columns | None = None
        self._opening = asyncio.Lock()

    async def fetch_timeline(self, session_id: str) -> Timeline:
        """See `TimelineSource`."""
        return await self._within_deadline(f"session {session_id}", partial(self._read, session_id))

    async def find_session(self, session_id: str) -> FoundSession:
        """See `TimelineSource`."""
        row = await self._within_deadline(f"session {session_id}", partial(self._find, session_id))
        return FoundSession(row["session_id"], name_or_none(row["chain_id"]), row["status"], row["completed_at"])

    async def finished_sessions(self, since: datetime) -> AsyncIterator[FoundSession]:
        """See `TimelineSource`. Each page is a short transaction, and none is open while a session is given out."""
        last = ""
        while True:
            page = await self._within_deadline("a page of sessions", partial(self._read_page, last, since))
            for row in page:
                chain_id = name_or_none(row["chain_id"])
                yield FoundSession(row["session_id"], chain_id, row["status"], row["completed_at"])
            if len(page) < _PAGE:
                return
            last = page[-1]["session_id"]

    async def recent_agent_models(self) -> frozenset[str]:
        """See `TimelineSource`."""
        rows = await self._within_deadline("the models of recent sessions", self._read_models)
        return frozenset(name.lower() for row in rows for name in model_names(row))

    async def _within_deadline(self, what: str, read: Callable[[], Awaitable[T]]) -> T:
        """Raises: TimelineUnavailable: It took too long, or the database could not be read."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await read()
        except TimeoutError as error:
            raise TimelineUnavailable(
                f"reading {what} from TARSy's database took longer than {self._timeout_s:g} s"
            ) from error
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, ValueError) as error:
            self._columns = None  # the schema may have changed under us
            # The driver's message may quote the address or a value: its type says enough.
            raise TimelineUnavailable(
                f"cannot read {what} from TARSy's database ({type(error).__name__}): check "
                "SCORING_TIMELINE_DATABASE_URL and that its role may SELECT from "
                + ", ".join(table for table, (required, _) in _COLUMNS.items() if required)
            ) from error

    async def close(self) -> None:
        """See `TimelineSource`."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            await asyncio.wait_for(pool.close(), self._timeout_s)
        except TimeoutError:
            pool.terminate()

    async def _read(self, session_id: str) -> Timeline:
        async with self._snapshot() as (connection, columns):
            row = await connection.fetchrow(_select("alert_sessions", columns), session_id)
            session = _checked(row, session_id)
            tables = {
                t: await connection.fetch(_select(t, columns), session_id) if _is_there(t, columns) else ()
                for t in _ORDER
            }
        return _assemble(session, **tables)

    async def _find(self, session_id: str) -> Any:
        async with self._snapshot() as (connection, columns):
            statement = _FIND.format(columns=_listed("alert_sessions", columns))
            return _checked(await connection.fetchrow(statement, session_id), session_id)

    async def _read_models(self) -> list[Any]:
        async with self._snapshot() as (connection, columns):
            statement = _RECENT_MODELS.format(columns=_listed("agent_executions", columns))
            return list(await connection.fetch(statement, sorted(TERMINAL_STATUSES), _RECENT_SESSIONS))

    async def _read_page(self, last: str, since: datetime) -> list[Any]:
        async with self._snapshot() as (connection, columns):
            statement = _FINISHED.format(columns=_listed("alert_sessions", columns))
            return list(await connection.fetch(statement, last, sorted(TERMINAL_STATUSES), since, _PAGE))

    @asynccontextmanager
    async def _snapshot(self) -> AsyncIterator[tuple[Any, Columns]]:
        pool = await self._open()
        async with (
            pool.acquire() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            # The server gives up too, so that a read nobody waits for does not go on there.
            await connection.execute(f"SET LOCAL statement_timeout = {int(self._timeout_s * 1000)}")
            yield connection, self._columns or await self._find_columns(connection)

    async def _open(self) -> asyncpg.Pool:
        async with self._opening:
            if self._pool is None:
                self._pool = await asyncpg.create_pool(
                    self._url,
                    min_size=0,
                    max_size=self._max_connections,
                    timeout=self._timeout_s,
                    statement_cache_size=0,  # a transaction pooler may give each transaction another server
                    server_settings={"application_name": "tarsy-scoring timeline"},
                )
        return self._pool

    async def _find_columns(self, connection: Any) -> Columns:
        rows = await connection.fetch(_FIND_COLUMNS, list(_COLUMNS))
        columns = frozenset((r["table_name"], r["column_name"]) for r in rows)
        for table, (required, _) in _COLUMNS.items():
            if lacking := [c for c in required if (table, c) not in columns]:
                raise TimelineUnavailable(
                    f"TARSy's database has no {table}.{', '.join(lacking)} that this role can see: grant SELECT on it, "
                    "or this is not TARSy's schema"
                )
        self._columns = columns
        return columns


def _is_there(table: str, columns: Columns) -> bool:
    """Whether a table can be read; those that the service cannot do without were looked for before."""
    required, optional = _COLUMNS[table]
    return bool(required) or all((table, c) in columns for c in optional)


def _select(table: str, columns: Columns) -> str:
    order = f" ORDER BY {_ORDER[table]}" if table in _ORDER else ""
    return f"SELECT {_listed(table, columns)} FROM {table} WHERE session_id = $1{order}"


def _listed(table: str, columns: Columns) -> str:
    """The columns to read, null for those that are not there; every name is a constant of this module."""
    required, optional = _COLUMNS[table]
    nulls = {c: f"NULL{'::timestamptz' if c.endswith('_at') else ''} AS {c}" for c in optional}
    return ", ".join(c if (table, c) in columns else nulls[c] for c in (*required, *optional))


def _checked(row: Any, session_id: str) -> Any:
    if row is None:
        raise SessionNotFound(f"TARSy's database has no session {session_id}")
    if row["deleted_at"] is not None:
        raise SessionNotFound(f"the session {session_id} was deleted in TARSy")
    if row["status"] not in TERMINAL_STATUSES:
        raise SessionNotTerminal(f"the session {session_id} has not ended: its status is {row['status']}")
    return row


# --- rows -> timeline ------------------------------------------------------------------------------------


def _assemble(
    session: Any,
    stages: Iterable[Any],
    agent_executions: Iterable[Any],
    timeline_events: Iterable[Any],
    mcp_interactions: Iterable[Any],
    llm_interactions: Iterable[Any],
) -> Timeline:
    interactions = list(mcp_interactions)
    durations_ms = _durations_ms(interactions)
    events_of: dict[str, list[Event]] = defaultdict(list)
    loose_of: dict[str, list[Event]] = defaultdict(list)
    for row in timeline_events:
        if row["execution_id"] is not None:
            events_of[row["execution_id"]].append(_event(row))
        elif row["stage_id"] is not None:
            loose_of[row["stage_id"]].append(_event(row))
    tokens = _tokens(llm_interactions)
    executions_of: dict[str, list[Execution]] = defaultdict(list)
    for row in agent_executions:
        events = _timed(events_of[row["execution_id"]], durations_ms[row["execution_id"]])
        executions_of[row["stage_id"]].append(_execution(row, events, tokens[row["execution_id"]]))
    found = tuple(_stage(row, executions_of[row["stage_id"]], loose_of[row["stage_id"]]) for row in stages)
    calls: dict[str, int] = defaultdict(int)
    for row in interactions:
        calls[row["execution_id"]] += row["interaction_type"] == "tool_call"
    final_analysis = text_or_none(session["final_analysis"])
    return Timeline(
        session_id=session["session_id"],
        status=session["status"],
        chain_id=name_or_none(session["chain_id"]),
        alert_type=name_or_none(session["alert_type"]),
        alert_data=session["alert_data"],
        final_analysis=final_analysis,
        executive_summary=text_or_none(session["executive_summary"]),
        stages=found,
        available_tools=_available_tools(interactions, found),
        runbook=text_or_none(session["runbook_url"]),  # TARSy stores the address alone; it is never fetched
        labels=label_map(_json(session["labels"])),
        created_at=session["created_at"],
        completed_at=session["completed_at"],
        error_message=text_or_none(session["error_message"]),
        evidence=take_stock(found, final_analysis, declared_calls=calls),
        started_at=session["started_at"],
    )


def _stage(row: Any, executions: list[Execution], loose: list[Event]) -> Stage:
    if loose:  # events of the stage itself, such as a user's question; nobody's, so without an agent's name or tokens
        own = Execution(f"{row['stage_id']}/stage", "", 0, row["status"], tuple(loose), input_tokens=0, output_tokens=0)
        executions = [*executions, own]
    return Stage(
        stage_id=row["stage_id"],
        stage_name=row["stage_name"],
        stage_index=row["stage_index"],
        stage_type=row["stage_type"],
        status=row["status"],
        executions=tuple(executions),
        expected_agent_count=row["expected_agent_count"],
        referenced_stage_id=row["referenced_stage_id"],
        error_message=text_or_none(row["error_message"]),
    )


def _execution(row: Any, events: tuple[Event, ...], tokens: tuple[int | None, int | None]) -> Execution:
    return Execution(
        execution_id=row["execution_id"],
        agent_name=row["agent_name"],
        agent_index=row["agent_index"],
        status=row["status"],
        events=events,
        parent_execution_id=row["parent_execution_id"],
        task=text_or_none(row["task"]),
        error_message=text_or_none(row["error_message"]),
        model_names=model_names(row),
        input_tokens=tokens[0],
        output_tokens=tokens[1],
    )


def _event(row: Any) -> Event:
    metadata = _json(row["metadata"])
    metadata = metadata if isinstance(metadata, dict) else {}
    return Event(
        event_id=row["event_id"],
        sequence_number=row["sequence_number"],
        event_type=row["event_type"],
        status=row["status"],
        content=row["content"],
        tool=tool_call(metadata) if row["event_type"] == "llm_tool_call" else None,
        created_at=row["created_at"],
        skill_name=text_or_none(metadata.get("skill_name")),
    )


_Durations = dict[tuple[str, str], list[int | None]]  # of the calls of one execution, by server and tool


def _durations_ms(interactions: Iterable[Any]) -> defaultdict[str, _Durations]:
    """How long the calls of each execution took, in the order in which they were recorded."""
    found: defaultdict[str, _Durations] = defaultdict(dict)
    for row in interactions:
        if row["interaction_type"] == "tool_call":
            tool = tool_call(row)
            of_tool = found[row["execution_id"]].setdefault((tool.server_name, tool.tool_name), [])
            of_tool.append(row["duration_ms"])
    return found


def _timed(events: list[Event], durations_ms: _Durations) -> tuple[Event, ...]:
    """
    The events, with each tool call's duration.

    Nothing joins an event with the record of its call, so the n-th call of a tool takes the n-th record of that tool.
    Calls made at once may be swapped by it, their sum is the same. Where the numbers differ nobody can say.
    """
    counts = Counter((e.tool.server_name, e.tool.tool_name) for e in events if e.tool)
    ahead = {tool: iter(found) for tool, found in durations_ms.items() if len(found) == counts[tool]}
    return tuple(
        replace(e, tool=replace(e.tool, duration_ms=next(ahead[tool])))
        if e.tool and (tool := (e.tool.server_name, e.tool.tool_name)) in ahead
        else e
        for e in events
    )


def _tokens(llm_interactions: Iterable[Any]) -> defaultdict[str, tuple[int | None, int | None]]:
    """Input and output tokens per execution id; None where no call is recorded, or one without its number."""
    found: defaultdict[str, tuple[int | None, int | None]] = defaultdict(lambda: (None, None))
    for row in llm_interactions:
        read, written = found.get(row["execution_id"], (0, 0))
        found[row["execution_id"]] = _plus(read, row["input_tokens"]), _plus(written, row["output_tokens"])
    return found


def _plus(total: int | None, count: int | None) -> int | None:
    return None if total is None or count is None else total + count


def _available_tools(interactions: Iterable[Any], stages: tuple[Stage, ...]) -> tuple[AvailableTool, ...]:
    """Of the agents that the judge sees, each tool once; replicas list the same ones again."""
    agents = {e.execution_id: e.agent_name for s in stages if s.stage_type in SHOWN_STAGE_TYPES for e in s.executions}
    tools = []
    for row in interactions:
        listed = _json(row["available_tools"]) if row["interaction_type"] == "tool_list" else None
        if row["execution_id"] not in agents or not isinstance(listed, list):
            continue
        for tool in listed:
            if isinstance(tool, dict) and (name := text_or_none(tool.get("name"))):
                description = text_or_none(tool.get("description")) or ""
                tools.append(AvailableTool(row["server_name"], name, description, agents[row["execution_id"]]))
    return tuple(dict.fromkeys(tools))


def _json(value: object) -> object:
    """`jsonb` arrives as text."""
    return json.loads(value) if isinstance(value, str) else value

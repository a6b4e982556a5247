"""
TARSy's PostgreSQL database as a `TimelineSource`: one session in one read-only snapshot.

Columns are named one by one and looked up first, because TARSy's schema moves: what a newer or older
deployment lacks is read as null. Works behind a transaction pooler.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import asyncpg

from tarsy_scoring.errors import SessionNotFound, SessionNotTerminal, TimelineUnavailable
from tarsy_scoring.postgres.failures import DRIVER_ERRORS
from tarsy_scoring.postgres.transactions import keep_session, transaction_of
from tarsy_scoring.tarsy.rows import assemble, nearest_time, time_or_null
from tarsy_scoring.timeline.model import TERMINAL_STATUSES, FoundSession, Timeline
from tarsy_scoring.timeline.parsing import model_names, name_or_none

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
       AND coalesce(completed_at, created_at, $3) >= $3
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
    read gives its connection back, and waits for a server that stands still for a second at most.

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
        except (*DRIVER_ERRORS, ValueError) as error:
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
        return assemble(session, **tables)

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
        options = {"isolation": "repeatable_read", "readonly": True}
        async with transaction_of(await self._open(), self._timeout_s, **options) as connection:
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
                    reset=keep_session,
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
    return ", ".join(_read_as(c) if (table, c) in columns else nulls[c] for c in (*required, *optional))


def _read_as(column: str) -> str:
    """Of a time that is none nothing is told, except that what was deleted then is deleted."""
    if not column.endswith("_at"):
        return column
    return f"{nearest_time(column) if column == 'deleted_at' else time_or_null(column)} AS {column}"


def _checked(row: Any, session_id: str) -> Any:
    if row is None:
        raise SessionNotFound(f"TARSy's database has no session {session_id}")
    if row["deleted_at"] is not None:
        raise SessionNotFound(f"the session {session_id} was deleted in TARSy")
    if row["status"] not in TERMINAL_STATUSES:
        raise SessionNotTerminal(f"the session {session_id} has not ended: its status is {row['status']}")
    return row

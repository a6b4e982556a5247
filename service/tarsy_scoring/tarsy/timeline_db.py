"""
The timeline source `tarsy-db`: reads one session from TARSy's PostgreSQL in one read-only snapshot.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any

from tarsy_scoring.config.secrets import secret_source
from tarsy_scoring.config.settings import DEFAULT_MAX_SESSION_BYTES, Settings
from tarsy_scoring.errors import SessionNotFound, SessionTooLarge, TimelineUnavailable
from tarsy_scoring.postgres.database import Connection
from tarsy_scoring.postgres.failures import DRIVER_ERRORS
from tarsy_scoring.postgres.url import UrlSource
from tarsy_scoring.tarsy.database import TarsyAway, TarsyPool, TarsyUnfit
from tarsy_scoring.tarsy.rows import assemble
from tarsy_scoring.tarsy.schema import TIMELINE_TABLES, SelectLists
from tarsy_scoring.timeline import model
from tarsy_scoring.timeline.computing import ASSEMBLED_INLINE, compute
from tarsy_scoring.timeline.parsing import found_session, model_names

VARIABLE = "SCORING_TIMELINE_DATABASE_URL"
PAGE = 1000
RECENT_SESSIONS = 25
_STATUSES = sorted(model.TERMINAL_STATUSES)

# The rows of one session, by table.
ROWS = {
    table: f"SELECT {{{table}}} FROM {table} WHERE session_id = $1 ORDER BY {order}"
    for table, order in {
        "alert_sessions": "session_id",
        "stages": "stage_index, stage_id",
        "agent_executions": "agent_index, execution_id",
        "timeline_events": "sequence_number, created_at, event_id",
        "mcp_interactions": "server_name, created_at, interaction_id",
        "llm_interactions": "execution_id",
    }.items()
}

# The bytes of all that a timeline takes from these rows.
_SIZES = " + ".join(
    f"(SELECT coalesce(sum({TIMELINE_TABLES[table].size_of_row()}), 0) "
    f"FROM (SELECT {{{table}}} FROM {table} WHERE session_id = $1) r)"
    for table in ROWS
)


def _columns(table: str) -> str:
    """SQL for each column of a table's rows as an array; nulls where the session is larger than $2 bytes."""
    arrays = ", ".join(f'array_agg({c}) AS "{table}.{c}"' for c in TIMELINE_TABLES[table].names)
    return f"LATERAL (SELECT {arrays} FROM ({ROWS[table]}) r WHERE size_bytes <= $2) {table}"


# One statement: with seven, reading a session took this process a third more CPU, for the round trips.
# Columns and not rows, because the driver decodes an array of one type faster than records. Without
# MATERIALIZED PostgreSQL would measure again for each table.
READ = f"""
WITH measured AS MATERIALIZED (
  SELECT session_id, status, deleted_at, ({_SIZES})::bigint AS size_bytes FROM ({ROWS["alert_sessions"]}) s
)
SELECT * FROM measured, {", ".join(map(_columns, ROWS))}
"""

# A page of terminal sessions by primary key. TARSy has no index on the time of the end, so a page ordered by
# that time would sort the whole table again for each page.
FINISHED = """
SELECT session_id, chain_id, status, completed_at
FROM (SELECT {alert_sessions} FROM alert_sessions) s
WHERE session_id > $1 AND status = ANY($2::text[]) AND deleted_at IS NULL
  AND coalesce(completed_at, created_at, $3) >= $3
ORDER BY session_id LIMIT $4
"""

FIND = """
SELECT session_id, chain_id, status, completed_at, deleted_at
FROM (SELECT {alert_sessions} FROM alert_sessions) s WHERE session_id = $1
"""

# The executions in stages of these types of the newest sessions of each status, by the index on status and
# creation.
RECENT_EXECUTIONS = """
WITH recent AS (
  SELECT s.session_id FROM unnest($1::text[]) AS wanted(status), LATERAL (
    SELECT session_id FROM alert_sessions WHERE status = wanted.status ORDER BY created_at DESC LIMIT $2) s
)
SELECT {agent_executions} FROM agent_executions WHERE session_id IN (SELECT session_id FROM recent)
  AND stage_id IN (
  SELECT stage_id FROM stages WHERE session_id IN (SELECT session_id FROM recent)
    AND stage_type = ANY($3::text[]))
"""


class TarsyDatabase:
    """
    Reads sessions with a separate small pool, opened at the first use; a role with `SELECT` suffices.

    Args:
        url: `postgresql://user:password@host/database`, with `sslmode` and other options.
        connections: Upper bound of the pool.
        statement_cache: Prepared statements per connection; 0 behind a pooler that does not track them.
        timeout_s: For one session, connecting included.
        max_session_bytes: A larger session is not read.

    Raises:
        ConfigurationError: The URL can never work.
    """

    may_change = True

    def __init__(
        self,
        url: str | UrlSource,
        *,
        connections: int = 8,
        statement_cache: int = 100,
        timeout_s: float = 30.0,
        max_session_bytes: int = DEFAULT_MAX_SESSION_BYTES,
    ) -> None:
        self.tarsy = TarsyPool(
            url,
            VARIABLE,
            TIMELINE_TABLES,
            is_read_only=True,
            timeout_s=timeout_s,
            max_connections=connections,
            statement_cache=statement_cache,
        )
        # One connection is left for checks: reads that hang must not make the database look away.
        self.reads_at_once = max(1, connections - 1)
        self._max_session_bytes = max_session_bytes

    async def fetch_timeline(self, session_id: str) -> model.Timeline:
        """See `TimelineSource`."""
        async with self._reading(f"session {session_id}") as (connection, columns):
            found = await connection.fetchrow(READ.format(**columns), session_id, self._max_session_bytes)
        size_bytes = _checked(found, session_id)["size_bytes"]
        if size_bytes > self._max_session_bytes:
            raise SessionTooLarge(session_id, size_bytes, self._max_session_bytes)
        return await compute(size_bytes, partial(_assemble, found), inline=ASSEMBLED_INLINE)

    async def find_session(self, session_id: str) -> model.FoundSession:
        """See `TimelineSource`."""
        rows = await self._fetch(f"session {session_id}", FIND, session_id)
        return found_session(_checked(rows[0] if rows else None, session_id), session_id)

    async def finished_sessions(self, since: datetime) -> AsyncIterator[model.FoundSession]:
        """See `TimelineSource`. Each page is a short transaction; none is open while the caller works."""
        last = ""
        while True:
            page = await self._fetch("a page of sessions", FINISHED, last, _STATUSES, since, PAGE)
            for row in page:
                yield found_session(row, row["session_id"])
            if len(page) < PAGE:
                return
            last = page[-1]["session_id"]

    async def check(self) -> None:
        """
        See `TimelineSource`. Looks in every table for a session that cannot exist, so that locks show as
        well.
        """
        try:
            async with self.tarsy.transaction() as (connection, columns):
                await connection.fetchrow(READ.format(**columns), "", 0)
        except TarsyAway as error:
            raise TimelineUnavailable(str(error)) from error

    async def recent_agent_models(self) -> frozenset[str]:
        """See `TimelineSource`."""
        wanted = (_STATUSES, RECENT_SESSIONS, sorted(model.SHOWN_STAGE_TYPES))
        rows = await self._fetch("the models of recent sessions", RECENT_EXECUTIONS, *wanted)
        return frozenset(name.lower() for row in rows for name in model_names(row))

    async def close(self) -> None:
        """See `TimelineSource`."""
        await self.tarsy.close()

    async def _fetch(self, what: str, statement: str, *arguments: object) -> list[Any]:
        async with self._reading(what) as (connection, columns):
            return await connection.fetch(statement.format(**columns), *arguments)

    @asynccontextmanager
    async def _reading(self, what: str) -> AsyncIterator[tuple[Connection, SelectLists]]:
        """
        One transaction; `what` names the data in messages.

        Raises:
            TimelineUnavailable: The read took too long, or the database could not be read.
        """
        try:
            async with self.tarsy.transaction() as opened:
                yield opened
        except (TarsyAway, TarsyUnfit) as error:
            raise TimelineUnavailable(f"cannot read {what}: {error}") from error
        except (*DRIVER_ERRORS, ValueError) as error:  # ValueError: a value that the driver cannot decode
            self.tarsy.look_again()
            # The driver's message may quote a value: the type says enough.
            raise TimelineUnavailable(
                f"cannot read {what} from TARSy's database at {self.tarsy.place} ({type(error).__name__})"
            ) from error


def open_tarsy_database(settings: Settings) -> model.TimelineSource:
    """
    Build the source that the settings describe; connects to nothing yet.

    Raises:
        ConfigurationError: The URL can never work.
    """
    assert settings.timeline_database_url is not None
    return TarsyDatabase(
        secret_source(settings, "timeline_database_url"),
        connections=settings.timeline_database_connections,
        statement_cache=settings.timeline_database_statement_cache,
        max_session_bytes=settings.max_session_bytes,
    )


def _assemble(found: Any) -> model.Timeline:
    """Assemble a timeline from the row that `READ` returns."""
    rows = []
    for table in ROWS:
        names = TIMELINE_TABLES[table].names
        columns = [found[f"{table}.{name}"] or () for name in names]
        rows.append([dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)])
    [session], *others = rows
    return assemble(session, *others)


def _checked(row: Any, session_id: str) -> Any:
    """
    Return the row of a terminal session.

    Raises:
        SessionNotFound: There is no row, or the session is deleted.
        SessionNotTerminal: The session has not ended.
    """
    if row is None:
        raise SessionNotFound(f"TARSy's database has no session {session_id}")
    if row["deleted_at"] is not None:
        raise SessionNotFound(f"the session {session_id} was deleted in TARSy")
    model.require_terminal(session_id, row["status"])
    return row

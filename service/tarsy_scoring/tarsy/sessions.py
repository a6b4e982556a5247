"""
Lists TARSy's sessions for the bridge and for pruning: terminal ones, open ones, deleted ones.

Every statement uses an index that each TARSy deployment has; no index is on the time of the end. A row
with an unreadable value is listed without that value, and never affects other rows.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog

from tarsy_scoring.config.secrets import secret_source
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.tarsy.database import TarsyPool
from tarsy_scoring.tarsy.rows import UNREADABLE, read_json
from tarsy_scoring.tarsy.schema import SESSION_TABLES, nearest_time
from tarsy_scoring.timeline.model import TERMINAL_STATUSES
from tarsy_scoring.timeline.parsing import label_map, name_or_none

log = structlog.get_logger()

PAGE = 1000
# Open sessions that a look lists, of each status and oldest first. The next sweep finds the others.
LOOK_LIMIT = 2_000

# Sorted, so that a sweep visits `timed_out` last: TARSy's orphan recovery sets that status without checking
# the present one, so a session that it takes from another status during a sweep is still met.
STATUSES = tuple(sorted(TERMINAL_STATUSES))

BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)

# A terminal session, with times that Python can hold.
_ENDED = f"""s.session_id, s.chain_id, s.alert_type, s.status, s.labels::text AS labels,
  s.deleted_at IS NOT NULL AS is_deleted, {nearest_time("s.created_at")} AS created_at,
  {nearest_time("s.completed_at")} AS completed_at"""

# A page of the sessions of one status, by creation and id, after a given place.
ENDED_PAGE = f"""
SELECT {_ENDED} FROM (SELECT {{alert_sessions}} FROM alert_sessions) s
WHERE status = $1 AND s.created_at >= $2 AND ({nearest_time("s.created_at")} > $2 OR session_id > $3)
ORDER BY s.created_at, session_id LIMIT $4
"""

# All statuses in the table that are not terminal, unknown ones included, by a skip scan with one index probe
# each.
OPEN_STATUSES = """
WITH RECURSIVE kinds AS (
  SELECT min(status) AS status FROM alert_sessions
  UNION ALL
  SELECT (SELECT min(s.status) FROM alert_sessions s WHERE s.status > k.status) FROM kinds k
    WHERE k.status IS NOT NULL
)
SELECT coalesce(array_agg(status::text), '{}') FROM kinds WHERE status <> ALL($1::text[])
"""

# A standby knows only the commits up to the last transaction that it replayed, so that time is the
# standby's "now". The start time identifies the server; the recovery flag tells a standby from the primary
# that it became.
SERVER = """
SELECT CASE WHEN pg_is_in_recovery() THEN least(now(), coalesce(pg_last_xact_replay_timestamp(), 'epoch'))
            ELSE now() END AS now,
       pg_is_in_recovery() || ' ' || extract(epoch FROM pg_postmaster_start_time()) AS server
"""

OPEN_SESSIONS = f"""
SELECT s.session_id, {nearest_time("s.created_at")} AS created_at
FROM unnest($1::text[]) AS open(status), LATERAL (
  SELECT session_id, created_at FROM (SELECT {{alert_sessions}} FROM alert_sessions) a
  WHERE a.status = open.status AND deleted_at IS NULL ORDER BY created_at LIMIT $2) s
"""

ENDED_OF_THESE = f"""
SELECT {_ENDED} FROM (SELECT {{alert_sessions}} FROM alert_sessions) s
WHERE session_id = ANY($2::text[]) AND status = ANY($1::text[])
"""

ENDED_OF_THE_NEWEST = f"""
SELECT {_ENDED} FROM unnest($1::text[]) AS ended(status), LATERAL (
  SELECT * FROM (SELECT {{alert_sessions}} FROM alert_sessions) a
  WHERE a.status = ended.status AND created_at >= now() - $2::interval ORDER BY created_at DESC LIMIT $3) s
"""

STILL_THERE = """
SELECT session_id FROM (SELECT {alert_sessions} FROM alert_sessions) s
WHERE session_id = ANY($1::text[]) AND deleted_at IS NULL
"""

# Sessions of this service. The newest are left out: an event may arrive before TARSy commits the session.
OUR_SESSIONS = """
SELECT session_id FROM {schema}.sessions
WHERE session_id > $1 AND first_seen_at < now() - interval '1 day' ORDER BY session_id LIMIT $2
"""


@dataclass(frozen=True, slots=True)
class EndedSession:
    """A terminal session; `ended_at` is the creation time where TARSy recorded no end, or Go's zero time."""

    session_id: str
    chain_id: str | None
    alert_type: str | None
    status: str
    created_at: datetime
    ended_at: datetime
    is_deleted: bool
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SweepStart:
    """
    TARSy's database at the start of a sweep.

    Args:
        server: The server that answered.
        settles_before: Sessions created earlier are settled by this sweep, except those in `still_open`.
        still_open: The open sessions, with their times of creation; they must be remembered.
    """

    server: str
    settles_before: datetime
    still_open: Mapping[str, datetime]


def printable_id(session_id: str) -> str:
    """The id for a log line: escaped, at most the first 60 characters."""
    return ascii(session_id[:60])[1:-1]


class TarsySessions:
    """
    Lists sessions in short read-only transactions; a role with `SELECT` on `alert_sessions` suffices.

    Raises:
        TarsyAway: From every method: the database cannot be used right now.
        TarsyUnfit: From every method: the database lacks a table, a column or a privilege.
    """

    def __init__(self, tarsy: TarsyPool) -> None:
        self.tarsy = tarsy
        self._logged: set[str] = set()

    async def ended_page(
        self, status: str, created_at: datetime, session_id: str
    ) -> tuple[str, list[EndedSession]]:
        """Read the server, and a page of this status's sessions after a place; a short page is the last."""
        async with self.tarsy.transaction() as (connection, columns):
            server = await read_server(connection)
            rows = await connection.fetch(ENDED_PAGE.format(**columns), status, created_at, session_id, PAGE)
        return server["server"], list(map(self._ended, rows))

    async def sweep_start(self, overlap: timedelta) -> SweepStart:
        """
        Read, in one snapshot, what a sweep that begins now may settle and which sessions it must remember.

        Args:
            overlap: How long after creation a session may still be committed.
        """
        async with self.tarsy.transaction() as (connection, columns):
            server = await read_server(connection)
            statuses = await connection.fetchval(OPEN_STATUSES, STATUSES)
            rows = await connection.fetch(OPEN_SESSIONS.format(**columns), statuses, None)
        still_open = {r["session_id"]: r["created_at"] for r in rows}
        return SweepStart(server["server"], server["now"] - overlap, still_open)

    async def look(self, were_open: Sequence[str], newest: timedelta) -> tuple[list[str], list[EndedSession]]:
        """
        List the open sessions, and the terminal ones among `were_open` and among the newest sessions.

        Args:
            were_open: Ids of the sessions that were open at the last look.
            newest: Sessions created at most this long ago count as new.

        Returns:
            Ids of the open sessions, at most 2,000 of each status, and the terminal sessions by creation and
            id.
        """
        async with self.tarsy.transaction() as (connection, columns):
            statuses = await connection.fetchval(OPEN_STATUSES, STATUSES)
            rows = await connection.fetch(OPEN_SESSIONS.format(**columns), statuses, LOOK_LIMIT)
            is_open = [r["session_id"] for r in rows]
            closed = sorted(set(were_open) - set(is_open))
            ended = await connection.fetch(ENDED_OF_THESE.format(**columns), STATUSES, closed)
            ended += await connection.fetch(ENDED_OF_THE_NEWEST.format(**columns), STATUSES, newest, PAGE)
        return is_open, sorted(map(self._ended, ended), key=lambda s: (s.created_at, s.session_id))

    async def of_these(self, session_ids: Sequence[str]) -> tuple[str, list[EndedSession], set[str]]:
        """
        Read which of these sessions have ended.

        Returns:
            The server, the terminal sessions, deleted ones included, and the ids of those still open.
        """
        async with self.tarsy.transaction() as (connection, columns):
            server = await read_server(connection)
            rows = await connection.fetch(ENDED_OF_THESE.format(**columns), STATUSES, session_ids)
            existing = await connection.fetch(STILL_THERE.format(**columns), session_ids)
        ended = list(map(self._ended, rows))
        still_open = {r["session_id"] for r in existing} - {s.session_id for s in ended}
        return server["server"], ended, still_open

    async def still_there(self, session_ids: Sequence[str]) -> set[str]:
        """The ids of those of these sessions that exist and are not deleted, whatever their status."""
        async with self.tarsy.transaction() as (connection, columns):
            rows = await connection.fetch(STILL_THERE.format(**columns), session_ids)
        return {r["session_id"] for r in rows}

    def _ended(self, row: Any) -> EndedSession:
        try:
            labels = label_map(read_json(row["labels"]))
        except UNREADABLE:
            labels = {}
            if row["session_id"] not in self._logged:
                self._logged.add(row["session_id"])
                log.warning(
                    "bridge.read_in_part",
                    session_id=printable_id(row["session_id"]),
                    effect="the session is announced without labels",
                )
        has_end = row["completed_at"] is not None and row["completed_at"] > BEGINNING
        return EndedSession(
            row["session_id"],
            name_or_none(row["chain_id"]),
            name_or_none(row["alert_type"]),
            row["status"],
            row["created_at"],
            row["completed_at"] if has_end else row["created_at"],
            row["is_deleted"],
            labels,
        )


def open_tarsy_sessions(settings: Settings) -> TarsySessions:
    """
    The sessions of `SCORING_TIMELINE_DATABASE_URL`; connects to nothing yet. Close it with `tarsy.close()`.

    Raises:
        ConfigurationError: The URL is not set.
    """
    if settings.timeline_database_url is None:
        raise ConfigurationError(
            "SCORING_TIMELINE_DATABASE_URL is not set: give TARSy's PostgreSQL, "
            "from which sessions are listed"
        )
    url = secret_source(settings, "timeline_database_url")
    return TarsySessions(TarsyPool(url, "SCORING_TIMELINE_DATABASE_URL", SESSION_TABLES, is_read_only=True))


async def sessions_gone(database: Database, sessions: TarsySessions) -> AsyncIterator[list[str]]:
    """
    List sessions of this service that TARSy has deleted or does not have, up to 1,000 at a time.

    Sessions first seen less than a day ago are left out: an event may arrive before TARSy commits the
    session. Each batch is read in short transactions, and none is open while the caller has a batch.

    Raises:
        TarsyAway, DatabaseAway: A database cannot be used right now; earlier batches are valid.
        ConfigurationError: TARSy's database has none of the sessions read so far: it is another database, or
            empty.
    """
    last, has_found_any = "", False
    while True:
        ours = [r["session_id"] for r in await database.fetch(OUR_SESSIONS, last, PAGE)]
        if not ours:
            return
        existing = await sessions.still_there(ours)
        has_found_any = has_found_any or bool(existing)
        if not has_found_any:
            raise ConfigurationError(
                f"TARSy's database at {sessions.tarsy.place} has none of {len(ours)} sessions that were "
                "scored here: "
                "is it another one?"
            )
        if gone := [s for s in ours if s not in existing]:
            yield gone
        last = ours[-1]


async def read_server(connection: Connection) -> Any:
    """The row of `SERVER`."""
    return await connection.fetchrow(SERVER)

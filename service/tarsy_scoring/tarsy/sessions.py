"""
The sessions of a TARSy database, as the bridge asks for them: which have ended, which are open, which are gone.

Every statement uses an index that each deployment has; there is none on the time of the end. A row of which something
cannot be read costs no more than that, and never its neighbours.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.tarsy.database import TarsyPool
from tarsy_scoring.tarsy.rows import UnreadableJson, read_labels
from tarsy_scoring.tarsy.schema import SESSION_TABLES, SelectLists, nearest_time, time_or_null
from tarsy_scoring.timeline.model import TERMINAL_STATUSES
from tarsy_scoring.timeline.parsing import name_or_none

log = structlog.get_logger()

PAGE = 1000
# Of each status, the oldest first: those a look remembers (what it does not only waits for the sweep), and those a
# sweep remembers (what it does not holds back what it settles).
LOOK_LIMIT, SWEEP_LIMIT = 2_000, 10_000
TOLD_LIMIT = 10_000

# TARSy's own recovery of orphans turns any status into `timed_out` without looking, so that one is walked last.
STATUSES = tuple(sorted(TERMINAL_STATUSES))

_LATEST = datetime.max.replace(tzinfo=UTC)

# A session that has ended, in values that any of its rows can be read as.
_ENDED = f"""s.session_id, s.chain_id, s.alert_type, s.status, s.labels::text AS labels,
  s.deleted_at IS NOT NULL AS is_deleted, {nearest_time("s.created_at")} AS created_at,
  s.completed_at IS NOT NULL AS says_end, {time_or_null("s.completed_at")} AS completed_at"""

# The sessions of one status that were created after a place, a page of them.
ENDED_PAGE = f"""
SELECT {_ENDED} FROM (SELECT {{alert_sessions}} FROM alert_sessions) s
WHERE status = $1 AND s.created_at >= $2 AND ({nearest_time("s.created_at")} > $2 OR session_id > $3)
ORDER BY s.created_at, session_id LIMIT $4
"""

# The statuses that there are, also those we do not know, without the ones that are an end; one probe for each.
OPEN_STATUSES = """
WITH RECURSIVE kinds AS (
  SELECT min(status) AS status FROM alert_sessions
  UNION ALL
  SELECT (SELECT min(s.status) FROM alert_sessions s WHERE s.status > k.status) FROM kinds k WHERE k.status IS NOT NULL
)
SELECT coalesce(array_agg(status::text), '{}') FROM kinds WHERE status <> ALL($1::text[])
"""

# A standby knows what was committed up to the last transaction that it replayed, and nothing of later ones. The start
# of the server tells two of them apart, and a standby from what it was promoted to.
SERVER = """
SELECT CASE WHEN pg_is_in_recovery() THEN least(now(), coalesce(pg_last_xact_replay_timestamp(), 'epoch'))
            ELSE now() END AS now,
       pg_is_in_recovery() || ' ' || extract(epoch FROM pg_postmaster_start_time()) AS server
"""

OPEN_SESSIONS = f"""
SELECT open.status, s.session_id, {nearest_time("s.created_at")} AS created_at
FROM unnest($1::text[]) AS open(status), LATERAL (
  SELECT session_id, created_at FROM (SELECT {{alert_sessions}} FROM alert_sessions) a
  WHERE a.status = open.status AND created_at < $2 AND deleted_at IS NULL ORDER BY created_at LIMIT $3) s
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

# Of ours, those that are no news: an event may be ahead of its session.
OUR_SESSIONS = """
SELECT session_id FROM {schema}.sessions
WHERE session_id > $1 AND first_seen_at < now() - interval '1 day' ORDER BY session_id LIMIT $2
"""


@dataclass(frozen=True, slots=True)
class EndedSession:
    """A session that has ended; `ended_at` is its creation where TARSy does not say."""

    session_id: str
    chain_id: str | None
    alert_type: str | None
    status: str
    created_at: datetime
    ended_at: datetime
    is_deleted: bool
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Standing:
    """
    What there is when a sweep begins.

    `settles_before` is what the sweep may settle where it also keeps in mind `still_open`: the sessions, with their
    times of creation, that were created earlier and had not ended. `server` is whose answers these are.
    """

    server: str
    settles_before: datetime
    still_open: Mapping[str, datetime]
    is_held_back: bool


class Told:
    """Of which sessions something was told, the last 10,000 of them: what is met again is not told again."""

    def __init__(self) -> None:
        self._told: dict[str, None] = {}

    def is_news(self, session_id: str) -> bool:
        """Whether it was not told; from now on it was."""
        if session_id in self._told:
            return False
        self._told[session_id] = None
        if len(self._told) > TOLD_LIMIT:
            del self._told[next(iter(self._told))]
        return True


def id_for_people(session_id: str) -> str:
    """The id as a log can hold it, whatever it is: escaped, and its first 60 characters."""
    return ascii(session_id[:60])[1:-1]


class TarsySessions:
    """
    Reads sessions in short read-only transactions; a role with `SELECT` on `alert_sessions` suffices.

    Every method raises `TarsyAway` where the database cannot be used now, and `TarsyUnfit` where it lacks something.
    """

    def __init__(self, tarsy: TarsyPool) -> None:
        self.tarsy = tarsy
        self._told = Told()

    async def now(self) -> datetime:
        """The time of TARSy's database; on a standby, that of what it has received."""
        return (await self.tarsy.once(_server))["now"]  # type: ignore[no-any-return]

    async def ended_page(self, status: str, created_at: datetime, session_id: str) -> tuple[str, list[EndedSession]]:
        """The server, and up to 1,000 sessions of this status after that place, by creation and id; fewer: no more."""

        async def read(connection: Connection, columns: SelectLists) -> tuple[str, list[EndedSession]]:
            server = (await _server(connection))["server"]
            rows = await connection.fetch(ENDED_PAGE.format(**columns), status, created_at, session_id, PAGE)
            return server, self._ended(rows)

        return await self.tarsy.once(read)

    async def standing(self, overlap: timedelta, *, with_all_open: bool) -> Standing:
        """
        What a sweep that begins now may settle, and what it must not lose, in one snapshot.

        Args:
            overlap: How long after its creation a session may still be committed.
            with_all_open: List the open sessions of any age.
        """

        async def read(connection: Connection, columns: SelectLists) -> Standing:
            there = await _server(connection)
            edge: datetime = there["now"] - overlap
            statuses = await connection.fetchval(OPEN_STATUSES, STATUSES)
            before = _LATEST if with_all_open else edge
            rows = await connection.fetch(OPEN_SESSIONS.format(**columns), statuses, before, SWEEP_LIMIT)
            full = [s for s, listed in Counter(r["status"] for r in rows).items() if listed == SWEEP_LIMIT]
            # Of a status with more than that, nobody knows those after the last one.
            held = min((max(r["created_at"] for r in rows if r["status"] == s) for s in full), default=edge)
            still_open = {r["session_id"]: r["created_at"] for r in rows}
            return Standing(there["server"], min(edge, held), still_open, held < edge)

        return await self.tarsy.once(read)

    async def look(self, were_open: Sequence[str], newest: timedelta) -> tuple[list[str], list[EndedSession]]:
        """
        What is open now (up to 2,000 of each status), and what has ended of those that were and of the newest sessions.

        Args:
            newest: How long ago these were created at most.
        """

        async def read(connection: Connection, columns: SelectLists) -> tuple[list[str], list[Any]]:
            statuses = await connection.fetchval(OPEN_STATUSES, STATUSES)
            rows = await connection.fetch(OPEN_SESSIONS.format(**columns), statuses, _LATEST, LOOK_LIMIT)
            is_open = [r["session_id"] for r in rows]
            closed = sorted(set(were_open) - set(is_open))
            rows = await connection.fetch(ENDED_OF_THESE.format(**columns), STATUSES, closed) if closed else []
            return is_open, rows + await connection.fetch(ENDED_OF_THE_NEWEST.format(**columns), STATUSES, newest, PAGE)

        is_open, rows = await self.tarsy.once(read)
        return is_open, sorted(self._ended(rows), key=lambda s: (s.created_at, s.session_id))

    async def of_these(self, session_ids: Sequence[str]) -> tuple[str, list[EndedSession], set[str]]:
        """The server; those of these that have ended, deleted ones too; and the ids of those that still run."""

        async def read(connection: Connection, columns: SelectLists) -> tuple[str, list[Any], list[Any]]:
            server = (await _server(connection))["server"]
            ended = await connection.fetch(ENDED_OF_THESE.format(**columns), STATUSES, session_ids)
            return server, ended, await connection.fetch(STILL_THERE.format(**columns), session_ids)

        server, rows, there = await self.tarsy.once(read)
        ended = self._ended(rows)
        return server, ended, {r["session_id"] for r in there} - {s.session_id for s in ended}

    async def still_there(self, session_ids: Sequence[str]) -> set[str]:
        """Those of these that exist and are not deleted, whatever their status."""
        return {r["session_id"] for r in await self._fetch(STILL_THERE, session_ids)}

    def _ended(self, rows: Iterable[Any]) -> list[EndedSession]:
        return [self._ended_session(row) for row in rows]

    def _ended_session(self, row: Any) -> EndedSession:
        left_out = ["completed_at"] if row["says_end"] and row["completed_at"] is None else []
        try:
            labels = read_labels(row["labels"])
        except UnreadableJson:
            labels = {}
            left_out.append("labels")
        if left_out and self._told.is_news(row["session_id"]):
            instead = "; its creation counts as its end" if "completed_at" in left_out else ""
            log.warning(
                "bridge.read_in_part",
                session_id=id_for_people(row["session_id"]),
                left_out=left_out,
                effect=f"the session is announced without{instead}",
            )
        return EndedSession(
            row["session_id"],
            name_or_none(row["chain_id"]),
            name_or_none(row["alert_type"]),
            row["status"],
            row["created_at"],
            row["completed_at"] or row["created_at"],
            row["is_deleted"],
            labels,
        )

    async def _fetch(self, statement: str, *arguments: object) -> list[Any]:
        return await self.tarsy.once(lambda c, columns: c.fetch(statement.format(**columns), *arguments))


def open_tarsy_sessions(settings: Settings) -> TarsySessions:
    """
    The sessions of `SCORING_TIMELINE_DATABASE_URL`; connects to nothing yet, and is closed by `tarsy.close()`.

    Raises:
        ConfigurationError: It is not set, or can never work.
    """
    if settings.timeline_database_url is None:
        raise ConfigurationError(
            "SCORING_TIMELINE_DATABASE_URL is not set: give TARSy's PostgreSQL, where its sessions are looked for"
        )
    url = settings.timeline_database_url.get_secret_value()
    return TarsySessions(TarsyPool(url, "SCORING_TIMELINE_DATABASE_URL", SESSION_TABLES, is_read_only=True))


async def sessions_gone(database: Database, sessions: TarsySessions) -> AsyncIterator[list[str]]:
    """
    List the sessions of ours that TARSy has deleted, or does not have, up to 1,000 at a time.

    Only those that were first seen more than a day ago: an event may be ahead of its session. Each batch is read in
    short transactions, and none is open while one is given out.

    Raises:
        TarsyAway, DatabaseAway: What was listed before holds.
        ConfigurationError: TARSy's database has none of the first of them: it is another one, or was emptied.
    """
    last, has_found_any = "", False
    while True:
        after = last
        rows = await database.once(lambda c, after=after: c.fetch(database.sql(OUR_SESSIONS), after, PAGE))  # type: ignore[misc]
        ours = [r["session_id"] for r in rows]
        if not ours:
            return
        there = await sessions.still_there(ours)
        has_found_any = has_found_any or bool(there)
        if not has_found_any:
            raise ConfigurationError(
                f"TARSy's database at {sessions.tarsy.place} has none of {len(ours)} sessions that were scored here: "
                "is it another one?"
            )
        if gone := [s for s in ours if s not in there]:
            yield gone
        last = ours[-1]


async def _server(connection: Connection, _columns: SelectLists | None = None) -> Any:
    return await connection.fetchrow(SERVER)

"""
Deletes expired rows in small batches, without blocking workers.

Laws. Rows are deleted oldest first, in small transactions. While scores are judged, there are pauses, which
grow with the time that a batch takes. An open score stays with all rows. So do a session and a score with an
event that no broker has acknowledged, so that their end is announced however long the brokers are away. A
session keeps two latest completed scores, one with a reference and one without. A session is deleted as a
whole, when nothing has happened to it for as long as scores are kept. An anchor session stays with all
judgements while it is an anchor: a new judge is compared with what former judges said about it. Locked rows
are skipped, so several clean-ups at once, and a crash in the middle of one, do no harm.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tarsy_scoring.outbox.outbox import IS_UNPUBLISHED
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.queue.idempotency import KEPT_H
from tarsy_scoring.retention.erasure import forget_sessions
from tarsy_scoring.scores.latest import has_no_later, is_completed

LEAST_RECORDS_DAYS = 30  # a stored request makes a redelivery harmless; Kafka keeps a topic 7 days by default
COUNT_LIMIT = 100_000
SHARE = 0.25  # of the time, spent in deletions while scores are judged; the rest is left to workers
BEGINNING = datetime(1, 1, 1, tzinfo=UTC)

# Arguments of every statement that finds expired rows: $1 days, $2 where the last batch ended, $3 most rows.
_CUTOFF = "now() - make_interval(days => $1::int)"
_IS_OPEN = "status IN ('pending', 'in_progress')"


@dataclass(frozen=True, slots=True)
class ExpiringRows:
    """
    Rows that expire alike.

    Args:
        kept_as: The key of `days_to_keep`.
        table: The SQL of the other fields calls it `s`.
        key: Columns that identify a row.
        at: SQL for the time from which the days count.
        more: SQL for the condition that an old row must fulfil to be expired.
        is_old: SQL for the condition that a row is old; None: `at` lies before the cutoff.
        start: A value of `at` before every row, from which the first batch is searched.
        remove: The statement that removes the rows of `page`; None: a DELETE.
        batch: Rows per transaction.
    """

    name: str
    kept_as: str
    table: str
    key: tuple[str, ...]
    at: str
    more: str = "true"
    is_old: str | None = None
    start: Any = BEGINNING
    remove: str | None = None
    batch: int = 1000

    @property
    def find(self) -> str:
        """Statement that finds expired rows."""
        return f"""
SELECT {", ".join(f"s.{column}" for column in self.key)}, {self.at} AS at FROM {{schema}}.{self.table} s
WHERE {self.is_old or f"{self.at} < {_CUTOFF}"} AND {self.at} >= $2 AND {self.more}
ORDER BY {self.at} LIMIT $3
"""

    @property
    def statement(self) -> str:
        """Statement that removes a page and returns how many rows, and the greatest `at` among them."""
        same = " AND ".join(f"t.{column} = page.{column}" for column in self.key)
        remove = self.remove or f"DELETE FROM {{schema}}.{self.table} t USING page"
        return f"""
WITH page AS MATERIALIZED ({self.find} FOR UPDATE OF s SKIP LOCKED), gone AS ({remove} WHERE {same} RETURNING page.at)
SELECT count(*) AS removed, max(at) AS ended_at FROM gone
"""


# A value and no NOT EXISTS, which PostgreSQL may turn into a join that reads all scores for each batch.
_HAS_NO_OPEN_SCORE = (
    f"(SELECT o.{_IS_OPEN} FROM {{schema}}.session_scores o WHERE o.score_id = s.score_id) IS NOT TRUE"
)

_UNPUBLISHED = f"SELECT FROM {{schema}}.scoring_events e WHERE {IS_UNPUBLISHED}"

# Nothing has happened to the session since the cutoff, all events are published, and it is no anchor.
_UNTOUCHED = f"""s.first_seen_at < {_CUTOFF}
  AND NOT EXISTS (SELECT FROM {{schema}}.session_scores o WHERE o.session_id = s.session_id
                  AND (o.{_IS_OPEN} OR coalesce(o.completed_at, o.created_at) >= {_CUTOFF}))
  AND NOT EXISTS (SELECT FROM {{schema}}.scoring_requests r
                  WHERE r.session_id = s.session_id AND r.received_at >= {_CUTOFF})
  AND NOT EXISTS ({_UNPUBLISHED} AND e.session_id = s.session_id)
  AND NOT EXISTS (SELECT FROM {{schema}}.anchor_sessions a WHERE a.session_id = s.session_id AND a.removed_at IS NULL)
"""

# The score may be deleted: it ended before the cutoff, the events are published, it is not the latest
# completed score for the session and kind, which the daily counts hold, and is no judgement of an anchor.
_REMOVABLE_SCORE = f"""NOT s.{_IS_OPEN} AND coalesce(s.completed_at, s.created_at) < {_CUTOFF}
  AND NOT EXISTS ({_UNPUBLISHED} AND e.score_id = s.score_id)
  AND NOT ({is_completed("s")} AND {has_no_later("s", of_its_kind=True)})
  AND NOT EXISTS (SELECT FROM {{schema}}.anchor_sessions a WHERE a.session_id = s.session_id AND a.removed_at IS NULL
                  AND s.purpose = 'anchor' AND s.status = 'completed')"""

# A newer finding by the same look at the chain exists, and no event waits to be published. The newest finding
# stays, because it records that the look was made.
_REMOVABLE_FINDING = """(s.published_at IS NOT NULL OR NOT s.is_event)
  AND EXISTS (SELECT FROM {schema}.drift_findings n WHERE n.chain_id = s.chain_id AND n.criteria = s.criteria
              AND n.look = s.look AND n.found_at > s.found_at)"""

_REQUEST = f"s.disposition <> 'deferred' AND {_HAS_NO_OPEN_SCORE}"
_REPLY = f"s.reply <> '' AND {_HAS_NO_OPEN_SCORE}"
_BLANK = "UPDATE {schema}.judge_turns t SET reply = '', refusal = NULL FROM page"
_ENDED = "least(s.completed_at, s.first_seen_at)"
_SENT = "(s.published_at IS NOT NULL OR s.position <= (SELECT published FROM {schema}.relay_floor))"
_UP_TO = "s.position <= $1"  # $1 is the position of the last old event here

# Events, requests and replies are found by their place in the table: the primary key is random, and a look-up
# of it for each row costs more.
EVENTS = ExpiringRows(
    "events", "events", "scoring_events", ("ctid",), "s.position", _SENT, is_old=_UP_TO, start=0, batch=5000
)
SESSIONS = ExpiringRows("sessions", "scores", "sessions", ("session_id",), _ENDED, _UNTOUCHED, batch=500)
SCORES = ExpiringRows(
    "scores", "scores", "session_scores", ("score_id",), "s.created_at", _REMOVABLE_SCORE, batch=100
)
_POSITION = ("original_topic", "original_partition", "original_offset")
# Events come first: `forgotten`, by which clients detect missing events, is raised before the deletion of
# sessions deletes their events. Requests come before sessions, and replies after sessions and scores, so that
# no row is rewritten and then deleted: a deleted session leaves requests without a session id. A session
# costs a third less in batches of 500 than 100: a batch has ten statements whatever the size.
PARTS = (
    EVENTS,
    ExpiringRows("requests", "records", "scoring_requests", ("ctid",), "s.received_at", _REQUEST),
    SESSIONS,
    SCORES,
    ExpiringRows(
        "replies", "replies", "judge_turns", ("ctid",), "s.created_at", _REPLY, remove=_BLANK, batch=500
    ),
    ExpiringRows("findings", "records", "drift_findings", ("event_id",), "s.found_at", _REMOVABLE_FINDING),
    ExpiringRows("changes", "records", "changes", ("change_id",), "s.changed_at"),
    # Daily sums stay in `budget_days`.
    ExpiringRows("charges", "records", "budget_charges", ("charge_id",), "s.day"),
    ExpiringRows(
        "dead_letter_bodies", "records", "dead_letter_bodies", ("body_id",), "s.created_at", batch=20
    ),
    ExpiringRows("dead_letters", "records", "dead_letters", _POSITION, "s.failed_at"),
    ExpiringRows("kept_answers", "answers", "kept_answers", ("caller", "key"), "s.answered_at"),
)

# Sessions that ended before the cutoff, after a place ($2 time, $3 session), and at most $4 of them.
# A batch looks at these alone, however many stay because something has happened to them since.
OLD_SESSIONS = f"""
SELECT s.session_id, {_ENDED} AS at FROM {{schema}}.sessions s
WHERE {_ENDED} < {_CUTOFF} AND ({_ENDED}, s.session_id) > ($2, $3) ORDER BY {_ENDED}, s.session_id LIMIT $4
"""

# Locks those sessions in $2 that may be deleted, except for sessions that others have locked.
LOCK_UNTOUCHED = f"""
SELECT s.session_id FROM {{schema}}.sessions s WHERE s.session_id = ANY($2::text[]) AND {_UNTOUCHED}
FOR UPDATE OF s SKIP LOCKED
"""

# The sessions that are still old, checked under their locks: a request for one may have committed meanwhile.
STILL_OLD = (
    f"SELECT s.session_id FROM {{schema}}.sessions s WHERE s.session_id = ANY($2::text[]) AND {_UNTOUCHED}"
)

# The last position before the first young event. Positions follow the order of commits, so earlier events are
# older, give or take the length of one transaction.
LAST_OLD_EVENT = f"""
SELECT coalesce((
  SELECT position - 1 FROM {{schema}}.scoring_events
  WHERE position IS NOT NULL AND created_at >= {_CUTOFF} ORDER BY position LIMIT 1
), r.position) AS position FROM {{schema}}.relay_position r
"""

IS_JUDGING = "SELECT FROM {schema}.session_scores WHERE status = 'in_progress' LIMIT 1"

FORGET_UP_TO = "UPDATE {schema}.relay_position SET forgotten = $1 WHERE forgotten < $1"


def days_to_keep(days: int | None) -> dict[str, int]:
    """Days to keep each kind of rows, by `ExpiringRows.kept_as`; kinds that are missing are kept for ever."""
    kept = {"answers": KEPT_H // 24}
    if days is not None:
        kept |= dict.fromkeys(("scores", "replies", "events"), days) | {
            "records": max(days, LEAST_RECORDS_DAYS)
        }
    return kept


Watch = Callable[[str, int | None], AbstractContextManager[Callable[[int], None]]]
"""Shows the progress of a part: gets its name and None, as no total is known; gives a function that sets the
number of rows looked at."""


@contextmanager
def _unwatched(_part: str, _total: int | None) -> Iterator[Callable[[int], None]]:
    yield lambda _done: None


class Pruner:
    """
    Deletes expired rows.

    Args:
        keep: See `days_to_keep`.
        rest: Called after a batch with the seconds to sleep, while scores are judged; tests replace it.
    """

    def __init__(
        self,
        database: Database,
        keep: Mapping[str, int],
        *,
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._database = database
        self._keep = keep
        self._rest = rest

    async def count(self) -> dict[str, int]:
        """
        Count the expired rows in each part, up to 100,000 each; parts that are kept for ever are left out.

        Scores that are deleted with their session count in both parts.

        Raises:
            DatabaseAway: See `Database.once`.
        """
        counts = {}
        for part in PARTS:
            if (bound := await self._bound(part)) is not None:
                count = f"SELECT count(*) FROM ({part.find}) found"
                [row] = await self._database.rows(count, bound, part.start, COUNT_LIMIT)
                counts[part.name] = row["count"]
        return counts

    async def run(self, watch: Watch = _unwatched) -> Mapping[str, int]:
        """
        Delete all expired rows. A cancel, a crash or an error leaves the rows that were not deleted yet.

        Args:
            watch: Shows each part's progress.

        Returns:
            Deleted rows by part.

        Raises:
            DatabaseAway: Earlier batches stay deleted; call again for the rest.
        """
        removed: dict[str, int] = {}
        for part in PARTS:
            if (bound := await self._bound(part)) is None:
                continue
            if part is EVENTS:
                await self._database.rows(FORGET_UP_TO, bound)
            with watch(part.name.replace("_", " "), None) as show:
                removed[part.name] = await self._remove(part, bound, show)
        return removed

    async def _remove(self, part: ExpiringRows, bound: int, show: Callable[[int], None]) -> int:
        """Delete a part's expired rows, and rest while scores are judged; returns their number."""
        removed = looked = 0
        since: Any = (BEGINNING, "") if part is SESSIONS else part.start
        while True:
            started = time.monotonic()
            removed_here, looked_here, since = await self._remove_page(part, bound, since)
            if looked_here == 0:
                return removed
            removed, looked = removed + removed_here, looked + looked_here
            show(looked)
            pause_s = (time.monotonic() - started) * (1 / SHARE - 1)
            if await self._database.rows(IS_JUDGING):
                await self._rest(pause_s)

    async def _remove_page(self, part: ExpiringRows, bound: int, since: Any) -> tuple[int, int, Any]:
        """
        Delete a part's next rows in one transaction.

        Returns:
            Deleted rows, rows looked at (some sessions may stay), and where the next page begins.
        """

        async def work(connection: Connection) -> tuple[int, int, Any]:
            if part is SESSIONS:
                return await self._remove_sessions(connection, bound, since)
            [row] = await connection.fetch(self._database.sql(part.statement), bound, since, part.batch)
            return row["removed"], row["removed"], row["ended_at"]

        return await self._database.once(work)

    async def _remove_sessions(
        self, connection: Connection, days: int, since: tuple[datetime, str]
    ) -> tuple[int, int, Any]:
        sql = self._database.sql
        found = await connection.fetch(sql(OLD_SESSIONS), days, *since, SESSIONS.batch)
        if not found:
            return 0, 0, since
        ids = [r["session_id"] for r in found]
        for statement in (LOCK_UNTOUCHED, STILL_OLD):
            ids = [r["session_id"] for r in await connection.fetch(sql(statement), days, ids)]
        number = await forget_sessions(self._database, connection, ids)
        return number, len(found), (found[-1]["at"], found[-1]["session_id"])

    async def _bound(self, part: ExpiringRows) -> int | None:
        """The argument $1 of `part.find`; None: all rows are kept."""
        days = self._keep.get(part.kept_as)
        if days is None or part is not EVENTS:
            return days
        return int((await self._database.rows(LAST_OLD_EVENT, days))[0]["position"])

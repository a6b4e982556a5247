"""
Deletes expired rows in small batches, without blocking workers.

Laws. Rows are deleted oldest first, in small transactions, with pauses that grow with the time that a batch
takes. An open score and all its rows stay. The latest completed score of a session stays as long as the
session. A session is deleted as a whole, when nothing has happened to it for as long as scores are kept. An
anchor session and its judgements stay while it is an anchor: a new judge is compared with what former judges
said of it. Locked rows are skipped, so several clean-ups at once, and a crash in the middle of one, do no
harm.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.queue.idempotency import KEPT_H
from tarsy_scoring.queue.latest import is_latest
from tarsy_scoring.records.erasure import forget_sessions

LEAST_RECORDS_DAYS = 30  # a stored request makes a redelivery harmless; Kafka keeps a topic 7 days by default
COUNT_LIMIT = 100_000
SHARE = 0.25  # of the time that deletions take; workers have the rest of the database to themselves
BEGINNING = datetime(1, 1, 1, tzinfo=UTC)

# Arguments of every statement below: $1 days, $2 where the batch before ended, $3 rows at most.
_CUTOFF = "now() - make_interval(days => $1::int)"

# A session to which nothing has happened since the cutoff, and that is no anchor.
_UNTOUCHED = f"""
m.first_seen_at < {_CUTOFF}
  AND NOT EXISTS (SELECT FROM {{schema}}.session_scores s WHERE s.session_id = m.session_id
                  AND (s.status IN ('pending', 'in_progress') OR coalesce(s.completed_at, s.created_at) >= {_CUTOFF}))
  AND NOT EXISTS (SELECT FROM {{schema}}.scoring_requests r
                  WHERE r.session_id = m.session_id AND r.received_at >= {_CUTOFF})
  AND NOT EXISTS (SELECT FROM {{schema}}.anchor_sessions a WHERE a.session_id = m.session_id AND a.removed_at IS NULL)
"""

OLD_SESSIONS = f"""
SELECT m.session_id, least(m.completed_at, m.first_seen_at) AS at FROM {{schema}}.sessions m
WHERE least(m.completed_at, m.first_seen_at) < {_CUTOFF} AND least(m.completed_at, m.first_seen_at) >= $2
  AND {_UNTOUCHED}
ORDER BY least(m.completed_at, m.first_seen_at) LIMIT $3
"""

# Checked again under the locks: a request for one of the sessions may have committed meanwhile.
STILL_OLD = f"SELECT m.session_id FROM {{schema}}.sessions m WHERE m.session_id = ANY($2::text[]) AND {_UNTOUCHED}"

# All but the latest completed score of each session and the judgements of anchors.
OLD_SCORES = f"""
SELECT s.score_id, s.created_at AS at FROM {{schema}}.session_scores s
WHERE s.created_at < {_CUTOFF} AND s.created_at >= $2
  AND s.status NOT IN ('pending', 'in_progress') AND coalesce(s.completed_at, s.created_at) < {_CUTOFF}
  AND NOT ({is_latest("s")})
  AND NOT EXISTS (SELECT FROM {{schema}}.anchor_sessions a WHERE a.session_id = s.session_id AND a.removed_at IS NULL
                  AND s.purpose = 'anchor' AND s.status = 'completed')
ORDER BY s.created_at LIMIT $3
"""

OLD_REPLIES = f"""
SELECT s.score_id, s.ordinal, s.created_at AS at FROM {{schema}}.judge_turns s
WHERE s.reply <> '' AND s.created_at < {_CUTOFF} AND s.created_at >= $2
  AND NOT EXISTS (SELECT FROM {{schema}}.session_scores o
                  WHERE o.score_id = s.score_id AND o.status IN ('pending', 'in_progress'))
ORDER BY s.created_at LIMIT $3
"""

# Here $1 is the position of the last old event.
OLD_EVENTS = """
SELECT s.event_id, s.position AS at FROM {schema}.scoring_events s
WHERE s.position <= $1 AND s.position >= $2 AND s.published_at IS NOT NULL
ORDER BY s.position LIMIT $3
"""

OLD_REQUESTS = f"""
SELECT s.request_id, s.received_at AS at FROM {{schema}}.scoring_requests s
WHERE s.received_at < {_CUTOFF} AND s.received_at >= $2 AND s.disposition <> 'deferred'
  AND NOT EXISTS (SELECT FROM {{schema}}.session_scores o
                  WHERE o.score_id = s.score_id AND o.status IN ('pending', 'in_progress'))
ORDER BY s.received_at LIMIT $3
"""

# All but the newest finding of each kind for each chain, which records that the detection ran. Unpublished
# ones stay.
OLD_FINDINGS = f"""
SELECT s.event_id, s.found_at AS at FROM {{schema}}.drift_findings s
WHERE s.found_at < {_CUTOFF} AND s.found_at >= $2 AND (s.published_at IS NOT NULL OR NOT s.is_event)
  AND EXISTS (SELECT FROM {{schema}}.drift_findings n WHERE n.chain_id = s.chain_id AND n.criteria = s.criteria
              AND n.look = s.look AND n.found_at > s.found_at)
ORDER BY s.found_at LIMIT $3
"""

OLD_CHANGES = f"""
SELECT s.change_id, s.changed_at AS at FROM {{schema}}.changes s
WHERE s.changed_at < {_CUTOFF} AND s.changed_at >= $2 ORDER BY s.changed_at LIMIT $3
"""

# The sums of each day stay in `budget_days`.
OLD_CHARGES = """
SELECT s.charge_id, s.day AS at FROM {schema}.budget_charges s
WHERE s.day < (now() AT TIME ZONE 'UTC')::date - $1::int AND s.day >= $2 ORDER BY s.day LIMIT $3
"""

OLD_BODIES = f"""
SELECT s.body_id, s.created_at AS at FROM {{schema}}.dead_letter_bodies s
WHERE s.created_at < {_CUTOFF} AND s.created_at >= $2 ORDER BY s.created_at LIMIT $3
"""

OLD_ANSWERS = f"""
SELECT s.caller, s.key, s.answered_at AS at FROM {{schema}}.kept_answers s
WHERE s.answered_at < {_CUTOFF} AND s.answered_at >= $2 ORDER BY s.answered_at LIMIT $3
"""

# Sets of tools to which no score refers. The day protects sets of attempts that have not ended yet.
OLD_TOOL_LISTS = f"""
SELECT s.tools_hash, s.first_used_at AS at FROM {{schema}}.tool_lists s
WHERE s.first_used_at < {_CUTOFF} AND s.first_used_at < now() - interval '1 day' AND s.first_used_at >= $2
  AND NOT EXISTS (SELECT FROM {{schema}}.session_scores o WHERE o.tools_hash = s.tools_hash)
ORDER BY s.first_used_at LIMIT $3
"""

LAST_POSITION = "SELECT position FROM {schema}.relay_position"

# The first event at or behind a position.
EVENT_FROM = f"""
SELECT position, created_at < {_CUTOFF} AS is_old FROM {{schema}}.scoring_events
WHERE position >= $2 ORDER BY position LIMIT 1
"""

WRITTEN_BACK = "SELECT position FROM {schema}.write_back_bookmark"

FORGET_UP_TO = "UPDATE {schema}.relay_position SET forgotten = $1 WHERE forgotten < $1"


@dataclass(frozen=True, slots=True)
class Part:
    """
    A kind of rows with an expiry.

    Args:
        kept_as: The field of `Keep` with its number of days.
        find: Statement that finds expired rows.
        remove: Statement that removes the rows of `page`.
        start: Sorts before the end of any batch.
    """

    name: str
    kept_as: str
    find: str
    remove: str
    start: Any = BEGINNING
    batch: int = 1000

    @property
    def statement(self) -> str:
        """Statement that removes a page and gives the number of rows and where the page ended."""
        return f"""
WITH page AS MATERIALIZED ({self.find} FOR UPDATE OF s SKIP LOCKED), gone AS ({self.remove} RETURNING page.at)
SELECT count(*) AS removed, max(at) AS ended_at FROM gone
"""

    @property
    def count(self) -> str:
        return f"SELECT count(*) FROM ({self.find}) found"


def _delete(table: str, *key: str) -> str:
    same = " AND ".join(f"t.{column} = page.{column}" for column in key)
    return f"DELETE FROM {{schema}}.{table} t USING page WHERE {same}"


EVENTS = Part("events", "events_days", OLD_EVENTS, _delete("scoring_events", "event_id"), start=0)
SESSIONS = Part("sessions", "scores_days", OLD_SESSIONS, "", batch=100)
REMOVE_REPLIES = """
UPDATE {schema}.judge_turns t SET reply = '', refusal = NULL FROM page
WHERE t.score_id = page.score_id AND t.ordinal = page.ordinal
"""

# Events come first: that raises the mark by which clients detect missing events, before sessions take theirs
# along.
PARTS = (
    EVENTS,
    Part("replies", "replies_days", OLD_REPLIES, REMOVE_REPLIES, batch=500),
    SESSIONS,
    Part("scores", "scores_days", OLD_SCORES, _delete("session_scores", "score_id"), batch=100),
    Part("tool_lists", "scores_days", OLD_TOOL_LISTS, _delete("tool_lists", "tools_hash")),
    Part("requests", "records_days", OLD_REQUESTS, _delete("scoring_requests", "request_id")),
    Part("findings", "records_days", OLD_FINDINGS, _delete("drift_findings", "event_id")),
    Part("changes", "records_days", OLD_CHANGES, _delete("changes", "change_id")),
    Part("charges", "records_days", OLD_CHARGES, _delete("budget_charges", "charge_id"), start=date(1, 1, 1)),
    Part("dead_letter_bodies", "records_days", OLD_BODIES, _delete("dead_letter_bodies", "body_id"), batch=20),
    Part("kept_answers", "answers_days", OLD_ANSWERS, _delete("kept_answers", "caller", "key")),
)


@dataclass(frozen=True, slots=True)
class Keep:
    """Days to keep each kind of rows; None: for ever. Replies and events never outlive scores."""

    scores_days: int | None = None
    replies_days: int | None = None
    events_days: int | None = None
    records_days: int | None = None
    answers_days: int | None = KEPT_H // 24

    @classmethod
    def of(cls, settings: Settings, scores_days: int | None = None) -> "Keep":
        """
        The days of the settings.

        Args:
            scores_days: Overrides `SCORING_RETENTION_DAYS`.
        """
        own = settings.config.retention
        scores = settings.retention_days if scores_days is None else scores_days
        records = own.records_days
        if records is None and scores is not None:
            records = max(scores, LEAST_RECORDS_DAYS)
        return cls(scores, _sooner(own.replies_days, scores), _sooner(own.events_days, scores), records)

    def days_of(self, part: Part) -> int | None:
        """Days to keep this part; None: for ever."""
        days: int | None = getattr(self, part.kept_as)
        return days


def _sooner(days: int | None, scores_days: int | None) -> int | None:
    return min((d for d in (days, scores_days) if d is not None), default=None)


class Pruner:
    """
    Deletes expired rows.

    Args:
        is_written_back: Scores are written back to TARSy, so events that the write-back has not read yet
            stay.
        rest: Sleeps for so many seconds.
    """

    def __init__(
        self,
        database: Database,
        keep: Keep,
        *,
        is_written_back: bool = False,
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._database = database
        self._keep = keep
        self._is_written_back = is_written_back
        self._rest = rest

    async def count(self) -> dict[str, int]:
        """
        Count the expired rows of each part, up to 100,000 each; parts that are kept for ever are left out.

        Scores that are deleted with their session count in both parts.

        Raises:
            DatabaseAway: See `Database.once`.
        """
        counts = {}
        for part in PARTS:
            if (bound := await self._bound(part)) is not None:
                arguments = (part.count, bound, part.start, COUNT_LIMIT)
                counts[part.name] = int((await self._fetch(*arguments))[0]["count"])
        return counts

    async def run(self, on_progress: Callable[[int], None] = lambda _: None) -> Mapping[str, int]:
        """
        Delete all expired rows. A cancel, a crash or an error leaves the rows that were not deleted yet.

        Args:
            on_progress: Called with the number of rows deleted so far.

        Returns:
            Deleted rows by part.

        Raises:
            DatabaseAway: The batches before are deleted.
        """
        removed: dict[str, int] = {}
        for part in PARTS:
            if (bound := await self._bound(part)) is None:
                continue
            if part is EVENTS:
                await self._execute(FORGET_UP_TO, bound)
            removed[part.name], since = 0, part.start
            while True:
                started = time.monotonic()
                number, since = await self.remove_page(part, bound, since)
                if number == 0:
                    break
                removed[part.name] += number
                on_progress(sum(removed.values()))
                await self._rest((time.monotonic() - started) * (1 / SHARE - 1))
        return removed

    async def remove_page(self, part: Part, bound: int, since: Any) -> tuple[int, Any]:
        """Delete the next rows of a part in one transaction; gives their number and where the page ended."""
        if part is SESSIONS:
            return await self._remove_sessions(bound, since)
        [row] = await self._fetch(part.statement, bound, since, part.batch)
        return row["removed"], row["ended_at"]

    async def _remove_sessions(self, days: int, since: datetime) -> tuple[int, Any]:
        async def work(connection: Connection) -> tuple[int, Any]:
            find = self._database.sql(OLD_SESSIONS + "FOR UPDATE OF m SKIP LOCKED")
            found = await connection.fetch(find, days, since, SESSIONS.batch)
            ids = [r["session_id"] for r in found]
            old = await connection.fetch(self._database.sql(STILL_OLD), days, ids)
            number = await forget_sessions(self._database, connection, [r["session_id"] for r in old])
            return number, max((r["at"] for r in found), default=since)

        return await self._database.once(work)

    async def _bound(self, part: Part) -> int | None:
        """First argument of `part.find`: days, or for events the position of the last old event. None: all
        are kept.
        """
        days = self._keep.days_of(part)
        if days is None or part is not EVENTS:
            return days
        return await self._last_old_event(days)

    async def _last_old_event(self, days: int) -> int:
        """
        The position of the last old event, by binary search.

        Positions follow the order of commits, so all events before it are as old, except for one
        transaction's length.
        """
        [row] = await self._fetch(LAST_POSITION)
        low, high = 0, row["position"]
        if self._is_written_back and (written := await self._fetch(WRITTEN_BACK)):
            high = min(high, written[0]["position"])
        while low < high:
            middle = (low + high + 1) // 2
            found = await self._fetch(EVENT_FROM, days, middle)
            if found and found[0]["is_old"]:
                low = min(found[0]["position"], high)
            else:
                high = middle - 1
        return low

    async def _fetch(self, statement: str, *arguments: object) -> list[Any]:
        return await self._database.once(lambda c: c.fetch(self._database.sql(statement), *arguments))

    async def _execute(self, statement: str, *arguments: object) -> None:
        await self._database.once(lambda c: c.execute(self._database.sql(statement), *arguments))

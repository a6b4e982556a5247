"""
The list of sessions with their scores, filtered and in pages.

A page begins after the last row on the page before, whatever has arrived since. "The score" of a session is
the latest completed score; a session has the status of its newest production score.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field, TypeAdapter

from tarsy_scoring.events import SESSION_ID_PATTERN
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.scores.cursors import Time, decode_cursor, encode_cursor
from tarsy_scoring.scores.document import CurrentHash
from tarsy_scoring.scores.latest import is_latest
from tarsy_scoring.scores.reader import Reader, Wait

Sort = Literal["newest", "score_asc", "score_desc"]

# One statement serves every choice of filters. A generic plan does not know which are null, so it
# suits no choice.
CUSTOM_PLAN = "SET LOCAL plan_cache_mode = force_custom_plan"

# When a session ended, at the latest when it was first seen: otherwise a source could keep a session on top
# of the list by a date in the future.
ENDED = "least(m.completed_at, m.first_seen_at)"


def matches(chain_id: str, ended_at: str) -> str:
    """Condition: session `m` and score `s` match `Filters`, except for the status ($2)."""
    return f"""($1::text IS NULL OR {chain_id} = $1)
  AND ($3::int IS NULL OR s.total_score >= $3) AND ($4::int IS NULL OR s.total_score <= $4)
  AND ($5::text IS NULL OR s.criteria = $5)
  AND ($6::text IS NULL OR m.alert_type = $6) AND ($7::jsonb IS NULL OR m.labels @> $7)
  AND ($8::jsonb IS NULL OR s.flags @> $8) AND ($9::text IS NULL OR s.outcome = $9)
  AND ($10::timestamptz IS NULL OR {ended_at} >= $10) AND ($11::timestamptz IS NULL OR {ended_at} < $11)
  AND ($12::text IS NULL OR lower(m.session_id) LIKE lower($12) OR lower(m.alert_type) LIKE lower($12))"""


_SESSIONS = f"""
SELECT m.session_id, m.chain_id, m.alert_type, m.labels, m.status AS session_status, {ENDED} AS ended_at,
       s.score_id, s.total_score, s.outcome, s.judge_outcome, s.criteria, s.criteria_hash, s.judge_fingerprint,
       s.chain_id AS score_chain_id, s.flags, s.failure_tags, s.score_triggered_by, s.completed_at AS scored_at,
       n.score_id AS newest_id, n.status, n.attempt, n.current_stage, n.waiting_reason, n.waiting_for_text,
       n.created_at, n.next_attempt_at <= now() AS is_due, n.error_kind, n.error_message,
       n.chain_id AS newest_chain_id, n.chain_is_named, n.criteria AS newest_criteria
FROM {{schema}}.sessions m
LEFT JOIN {{schema}}.session_scores s ON s.session_id = m.session_id
  AND {is_latest("s")}
LEFT JOIN {{schema}}.session_scores n ON n.session_id = m.session_id AND n.purpose = 'production'
  AND NOT EXISTS (SELECT FROM {{schema}}.session_scores x WHERE x.session_id = n.session_id
                  AND x.purpose = 'production' AND x.created_at >= n.created_at
                  AND (x.created_at > n.created_at OR x.score_id < n.score_id))
WHERE ($2::text IS NULL OR CASE $2 WHEN 'not_scored' THEN n.session_id IS NULL
  WHEN 'nothing_to_judge' THEN n.status = 'cancelled' AND n.error_kind = $2 ELSE n.status = $2 END)
  AND {matches("m.chain_id", ENDED)}
"""

_NEWEST_FIRST = f"""($13::timestamptz IS NULL OR ({ENDED}, m.session_id) < ($13, $14))
ORDER BY {ENDED} DESC, m.session_id DESC LIMIT $15"""

# Sorted by the end of the session, latest first.
NEWEST_SESSIONS = f"{_SESSIONS} AND {_NEWEST_FIRST}"

# Sessions with a total, sorted by it.
BEST_SESSIONS = f"""{_SESSIONS}
  AND s.total_score IS NOT NULL AND ($13::int IS NULL OR (s.total_score, s.session_id) < ($13, $14))
ORDER BY s.total_score DESC, s.session_id DESC LIMIT $15
"""
WORST_SESSIONS = f"""{_SESSIONS}
  AND s.total_score IS NOT NULL AND ($13::int IS NULL OR (s.total_score, s.session_id) > ($13, $14))
ORDER BY s.total_score, s.session_id LIMIT $15
"""

# Sessions without a total; they follow the others in a list sorted by total.
SESSIONS_WITHOUT_TOTAL = f"{_SESSIONS} AND s.total_score IS NULL AND {_NEWEST_FIRST}"

# One step through the index for each chain, however many sessions it has: PostgreSQL cannot skip for
# `DISTINCT`.
CHAINS_OF_SESSIONS = """
WITH RECURSIVE known AS (
  SELECT min(chain_id) AS chain_id FROM {schema}.sessions
  UNION ALL
  SELECT (SELECT min(m.chain_id) FROM {schema}.sessions m WHERE m.chain_id > k.chain_id)
  FROM known k WHERE k.chain_id IS NOT NULL)
SELECT chain_id FROM known WHERE chain_id IS NOT NULL LIMIT $1
"""


@dataclass(frozen=True, slots=True)
class Filters:
    """
    Filters of lists and exports; None and an empty mapping let everything through.

    Args:
        status: Status of the newest score, `nothing_to_judge` or `not_scored`; in an export, status of the
            score.
        labels: The session must carry all of them.
        since, until: Range of the time when the session ended, in an export when the score ended; `until` is
            exclusive.
        prefix: Beginning of the session id or the alert type; case is ignored.
    """

    chain: str | None = None
    status: str | None = None
    min_score: int | None = None
    max_score: int | None = None
    criteria: str | None = None
    alert_type: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    flag: str | None = None
    outcome: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    prefix: str | None = None

    @property
    def arguments(self) -> tuple[Any, ...]:
        """$1 to $12 of the statements."""
        pattern = None if self.prefix is None else re.sub(r"([\\%_])", r"\\\1", self.prefix) + "%"
        return (
            *(self.chain, self.status, self.min_score, self.max_score, self.criteria, self.alert_type),
            *(dict(self.labels) or None, None if self.flag is None else [self.flag], self.outcome),
            *(self.since, self.until, pattern),
        )


# --- sessions ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListedScore:
    """A session's score in short, with the names from the score document."""

    score_id: UUID
    total_score: int | None
    outcome: str | None
    judge_outcome: str | None
    criteria: str | None
    criteria_hash: str | None
    is_current_criteria: bool
    judge_fingerprint: str | None
    flags: list[str]
    failure_tags: list[str]
    score_triggered_by: str
    scored_at: datetime | None


@dataclass(frozen=True, slots=True)
class NewestAttempt:
    """A score that is newer than the one shown; it is open or ended without a number."""

    score_id: UUID
    status: str
    attempt: int
    created_at: datetime
    current_stage: str | None
    waiting_for: str | None
    waiting_for_text: str | None
    error_kind: str | None
    error_message: str | None


@dataclass(frozen=True, slots=True)
class ListedSession:
    """A stored session with the latest completed score and the newest one's state."""

    session_id: str
    chain_id: str | None
    alert_type: str | None
    labels: dict[str, str]
    session_status: str | None
    ended_at: datetime
    status: str
    score: ListedScore | None
    latest_attempt: NewestAttempt | None


@dataclass(frozen=True, slots=True)
class SessionPage:
    """Sessions and the cursor of the next page, which is null on the last page."""

    sessions: list[ListedSession]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Place:
    """The last row of a page: total, or time where rows are sorted by time, and session."""

    key: int | datetime
    session_id: str


async def list_sessions(
    reader: Reader, filters: Filters, sort: Sort, after: Place | None, limit: int
) -> SessionPage:
    """
    Read one page of sessions.

    When sorted by score, sessions without a total come last in both directions. The session id breaks ties.

    Args:
        after: Place of the last row on the page before, see `read_cursor`; None: the first page.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    database = reader.database

    async def work(connection: Connection) -> list[tuple[Any, bool]]:
        await connection.execute(CUSTOM_PLAN)
        found: list[tuple[Any, bool]] = []
        for statement, has_total, begin in _parts(filters, sort, after):
            place = (begin.key, begin.session_id) if begin else (None, None)
            rows = await connection.fetch(
                database.sql(statement), *filters.arguments, *place, limit + 1 - len(found)
            )
            found += [(row, has_total) for row in rows]
            if len(found) > limit:
                break
        return found

    found = await database.once(work)
    newest = [_newest(row) for row, _ in found if row["newest_id"] is not None]
    waits = await reader.waits(newest)
    sessions = [_listed(row, reader.current_hash, waits) for row, _ in found[:limit]]
    if len(found) <= limit:
        return SessionPage(sessions, None)
    last, has_total = found[limit - 1]
    place = Place(last["total_score"] if has_total else last["ended_at"], last["session_id"])
    return SessionPage(sessions, write_cursor(place, filters, sort))


def _parts(filters: Filters, sort: Sort, after: Place | None) -> Iterable[tuple[str, bool, Place | None]]:
    """The statements of a list in order, each with whether its rows have a total and where it begins."""
    if sort == "newest":
        return [(NEWEST_SESSIONS, False, after)]
    parts: list[tuple[str, bool, Place | None]] = []
    is_in_totals = after is None or isinstance(after.key, int)
    if is_in_totals and filters.status != "not_scored":
        parts.append((BEST_SESSIONS if sort == "score_desc" else WORST_SESSIONS, True, after))
    if filters.min_score is None and filters.max_score is None:
        parts.append((SESSIONS_WITHOUT_TOTAL, False, None if is_in_totals else after))
    return parts


def _newest(row: Mapping[str, Any]) -> dict[str, Any]:
    """The newest score with the fields that `Reader.waits` takes."""
    shown = {
        name: row[name]
        for name in ("status", "waiting_reason", "waiting_for_text", "is_due", "chain_is_named")
    }
    shown |= {name: row[f"newest_{name}"] for name in ("chain_id", "criteria")}
    return {**shown, "score_id": row["newest_id"]}


def _listed(row: Mapping[str, Any], current_hash: CurrentHash, waits: Mapping[UUID, Wait]) -> ListedSession:
    score = None if row["score_id"] is None else _listed_score(row, current_hash)
    latest = None
    if row["newest_id"] is not None and row["newest_id"] != row["score_id"]:
        wait = waits.get(row["newest_id"], (None, None))
        shown: dict[str, Any] = dict(zip(("waiting_for", "waiting_for_text"), wait, strict=True))
        shown |= {name: row[name] for name in NewestAttempt.__slots__ if name not in {"score_id", *shown}}
        latest = NewestAttempt(score_id=row["newest_id"], **shown)
    known = ("session_id", "chain_id", "alert_type", "labels", "session_status", "ended_at")
    status = row["status"] or "not_scored"
    return ListedSession(
        **{name: row[name] for name in known}, status=status, score=score, latest_attempt=latest
    )


def _listed_score(row: Mapping[str, Any], current_hash: CurrentHash) -> ListedScore:
    current = current_hash(row["criteria"], row["score_chain_id"])
    is_current = row["criteria_hash"] is not None and current == row["criteria_hash"]
    shown = {name: row[name] for name in ListedScore.__slots__ if name != "is_current_criteria"}
    return ListedScore(**shown, is_current_criteria=is_current)


async def chains_of_sessions(database: Database, limit: int) -> list[str]:
    """The first `limit` chains of stored sessions, by name. Raises: DatabaseAway."""
    rows = await database.once(lambda c: c.fetch(database.sql(CHAINS_OF_SESSIONS), limit))
    return [row["chain_id"] for row in rows]


# --- cursors -------------------------------------------------------------------------------------------

LONGEST_CURSOR = 600  # a session id has at most 255 characters
_SessionId = Annotated[str, Field(pattern=f"^{SESSION_ID_PATTERN.pattern}$")]
_Total = Annotated[int, Field(ge=0, le=100)]
_BY_TIME = TypeAdapter(tuple[Time, _SessionId])
_BY_TOTAL = TypeAdapter(tuple[_Total | Time, _SessionId])  # sessions without a total follow by time


def write_cursor(place: Place, filters: Filters, sort: Sort) -> str:
    """The cursor of the page after a place."""
    return encode_cursor([place.key, place.session_id], [sort, asdict(filters)])


def read_cursor(cursor: str, filters: Filters, sort: Sort) -> Place:
    """
    The place of a cursor.

    Raises:
        InvalidCursor: The cursor was not issued for a list with this sort and these filters.
    """
    asked = [sort, asdict(filters)]
    if sort == "newest":
        return Place(*decode_cursor(cursor, asked, _BY_TIME))
    return Place(*decode_cursor(cursor, asked, _BY_TOTAL))

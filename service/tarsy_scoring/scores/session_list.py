"""
The list of sessions with their scores, filtered and in pages.

A page begins after the last row on the page before, whatever has arrived since. "The score" of a session is
the latest completed score; a session has the status of its newest production score.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field, TypeAdapter

from tarsy_scoring.events import SESSION_ID_PATTERN
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.scores.cursors import Time, decode_cursor, encode_cursor
from tarsy_scoring.scores.document import CurrentHash, is_current, summary_of
from tarsy_scoring.scores.latest import is_latest
from tarsy_scoring.scores.reader import CURRENT_STAGE, Reader, Wait, newest_disposition
from tarsy_scoring.scores.shapes import Part, Total
from tarsy_scoring.scores.why_no_score import why_no_score

Sort = Literal["newest", "score_asc", "score_desc"]

# One statement serves every choice of filters. A generic plan does not know which are null, so it
# suits no choice.
CUSTOM_PLAN = "SET LOCAL plan_cache_mode = force_custom_plan"


async def fetch_planned(database: Database, statement: str, *arguments: Any) -> list[Any]:
    """The rows of a statement, under a plan for these arguments. Raises: DatabaseAway: See `Database.once`."""

    async def work(connection: Connection) -> list[Any]:
        await connection.execute(CUSTOM_PLAN)
        return await connection.fetch(database.sql(statement), *arguments)

    return await database.once(work)


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
       coalesce(n.status, 'not_scored') AS status, s.total_score, s.score_id, n.score_id AS newest_id,
       {newest_disposition("m.session_id")} AS disposition
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

# The page after a place ($13, $14): sorted by the end of the session, or, of sessions with a total, by that.
SESSIONS: dict[Sort, str] = {
    "newest": f"""{_SESSIONS}
  AND ($13::timestamptz IS NULL OR ({ENDED}, m.session_id) < ($13, $14))
ORDER BY {ENDED} DESC, m.session_id DESC LIMIT $15""",
    "score_desc": f"""{_SESSIONS}
  AND s.total_score IS NOT NULL AND ($13::int IS NULL OR (s.total_score, s.session_id) < ($13, $14))
ORDER BY s.total_score DESC, s.session_id DESC LIMIT $15""",
    "score_asc": f"""{_SESSIONS}
  AND s.total_score IS NOT NULL AND ($13::int IS NULL OR (s.total_score, s.session_id) > ($13, $14))
ORDER BY s.total_score, s.session_id LIMIT $15""",
}

SCORES_OF_PAGE = f"""
SELECT score_id, chain_id, total_score, outcome, judge_outcome, criteria, criteria_hash, judge_fingerprint,
       flags, failure_tags, score_triggered_by, completed_at AS scored_at, status, attempt, created_at,
       waiting_reason, waiting_for_text, next_attempt_at <= now() AS is_due, chain_is_named, error_kind,
       error_message, score_analysis, {CURRENT_STAGE}, jsonb_array_length(gates) AS gates_total,
       (SELECT count(*) FROM jsonb_array_elements(gates) g WHERE (g ->> 'passed')::bool) AS gates_passed
FROM {{schema}}.session_scores s WHERE score_id = ANY($1::uuid[])
"""

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


class ListedScore(Part):
    """A session's score in short, with the names from the score document."""

    score_id: UUID
    total_score: int | None
    outcome: str | None
    gates_passed: int
    gates_total: int
    judge_outcome: str | None
    summary: str | None
    criteria: str | None
    criteria_hash: str | None
    is_current_criteria: bool
    judge_fingerprint: str | None
    flags: list[str]
    failure_tags: list[str]
    score_triggered_by: str
    scored_at: datetime | None


class NewestAttempt(Part):
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


class ListedSession(Part):
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
    why_no_score: str | None = Field(
        description="Why the newest score has no result, or there is none; null where it runs or is next."
    )


class SessionPage(Part):
    """Sessions and the cursor of the next page, which is null on the last page."""

    sessions: list[ListedSession]
    next_cursor: str | None


Place = tuple[int | datetime, str]
"""The last row of a page: total, or time where rows are sorted by time, and session."""


async def list_sessions(
    reader: Reader, filters: Filters, sort: Sort, after: Place | None, limit: int
) -> SessionPage:
    """
    Read one page of sessions. When sorted by score, only sessions with a total. The session id breaks ties.

    Args:
        after: Place of the last row on the page before, see `read_cursor`; None: the first page.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    database = reader.database

    async def work(connection: Connection) -> tuple[list[Any], list[Any]]:
        await connection.execute(CUSTOM_PLAN)
        place = after or (None, None)
        found = await connection.fetch(database.sql(SESSIONS[sort]), *filters.arguments, *place, limit + 1)
        ids = {row[name] for row in found for name in ("score_id", "newest_id")} - {None}
        return found, await connection.fetch(database.sql(SCORES_OF_PAGE), list(ids))

    found, rows = await database.once(work)
    scores = {row["score_id"]: dict(row) for row in rows}
    waits = await reader.waits(rows)
    sessions = [_listed(row, scores, reader.current_hash, waits) for row in found[:limit]]
    if len(found) <= limit:
        return SessionPage(sessions=sessions, next_cursor=None)
    last = found[limit - 1]
    key = last["ended_at" if sort == "newest" else "total_score"]
    cursor = write_cursor((key, last["session_id"]), filters, sort)
    return SessionPage(sessions=sessions, next_cursor=cursor)


def _listed(
    row: Mapping[str, Any],
    scores: Mapping[UUID, Mapping[str, Any]],
    current_hash: CurrentHash,
    waits: Mapping[UUID, Wait],
) -> ListedSession:
    score, newest = scores.get(row["score_id"]), scores.get(row["newest_id"])
    shown: dict[str, Any] = {**row, "score": None, "latest_attempt": None}
    attempt = newest and {**newest, "waiting_for": waits.get(newest["score_id"], (None,))[0]}
    shown["why_no_score"] = why_no_score(attempt, row["disposition"])
    if score is not None:
        computed = {"is_current_criteria": is_current(score, current_hash)}
        shown["score"] = {**score, **computed, "summary": summary_of(score["score_analysis"])}
    if newest is not None and newest is not score:
        waiting_for, text = waits.get(newest["score_id"], (None, None))
        shown["latest_attempt"] = {**newest, "waiting_for": waiting_for, "waiting_for_text": text}
    return ListedSession.model_validate(shown)


async def chains_of_sessions(database: Database, limit: int) -> list[str]:
    """The first `limit` chains of stored sessions, by name. Raises: DatabaseAway."""
    return [row["chain_id"] for row in await database.rows(CHAINS_OF_SESSIONS, limit)]


# --- cursors -------------------------------------------------------------------------------------------

LONGEST_CURSOR = 600  # a session id has at most 255 characters
_SessionId = Annotated[str, Field(pattern=f"^{SESSION_ID_PATTERN.pattern}$")]
_BY_TIME = TypeAdapter(tuple[Time, _SessionId])
_BY_TOTAL = TypeAdapter(tuple[Total, _SessionId])


def write_cursor(place: Place, filters: Filters, sort: Sort) -> str:
    """The cursor of the page after a place."""
    return encode_cursor(place, [sort, asdict(filters)])


def read_cursor(cursor: str, filters: Filters, sort: Sort) -> Place:
    """
    The place of a cursor.

    Raises:
        InvalidCursor: The cursor was not issued for a list with this sort and these filters.
    """
    asked = [sort, asdict(filters)]
    if sort == "newest":
        return decode_cursor(cursor, asked, _BY_TIME)
    return decode_cursor(cursor, asked, _BY_TOTAL)

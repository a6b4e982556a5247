"""
What may need a person: sessions whose score failed or whose due score waits, and drift.

Each list is read from an index, up to a limit.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from tarsy_scoring.postgres.database import Database
from tarsy_scoring.scores.latest import is_completed

MOST_FAILED = 2000  # looked at for each error kind
MOST_PENDING = 10_000

_FAILED = "s.status IN ('failed', 'timed_out')"

# Sessions whose newest score failed since $1, by chain and error kind; the newest $2 failures count for each
# kind. PostgreSQL steps through the index on failed scores, kind by kind.
FAILED = f"""
WITH RECURSIVE kinds AS (
  SELECT min(s.error_kind) AS kind FROM {{schema}}.session_scores s WHERE {_FAILED}
  UNION ALL
  SELECT (SELECT min(s.error_kind) FROM {{schema}}.session_scores s WHERE {_FAILED} AND s.error_kind > k.kind)
  FROM kinds k WHERE k.kind IS NOT NULL)
SELECT k.kind AS error_kind, f.status, f.chain_id, count(*) AS sessions FROM kinds k, LATERAL (
  SELECT s.session_id, s.status, s.chain_id, s.created_at FROM {{schema}}.session_scores s
  WHERE {_FAILED} AND s.error_kind = k.kind AND s.completed_at >= $1 AND s.purpose = 'production'
  ORDER BY s.completed_at DESC LIMIT $2) f
WHERE NOT EXISTS (SELECT FROM {{schema}}.session_scores n WHERE n.session_id = f.session_id
                  AND n.purpose = 'production' AND n.created_at > f.created_at)
GROUP BY 1, 2, 3 ORDER BY 4 DESC, 3, 1, 2
"""

# Due scores by chain, among the first $1.
WAITING = """
SELECT chain_id, count(*) AS scores FROM (
  SELECT chain_id FROM {schema}.session_scores
  WHERE status = 'pending' AND priority < 2 AND next_attempt_at <= now() ORDER BY priority, next_attempt_at LIMIT $1) s
GROUP BY 1 ORDER BY 2 DESC, 1
"""

# Changes of a chain's totals that drift detection found, until a person confirms them.
UNCONFIRMED = """
SELECT event_id, chain_id, found_at, meaning ->> 0 AS conclusion FROM {schema}.drift_findings
WHERE is_event AND confirmed_at IS NULL ORDER BY found_at DESC LIMIT $1
"""
CONFIRM = """
UPDATE {schema}.drift_findings SET confirmed_by = $2, confirmed_at = now()
WHERE event_id = $1 AND confirmed_at IS NULL
"""


async def read_drift(database: Database, limit: int) -> list[Mapping[str, Any]]:
    """Rows from `UNCONFIRMED`, the newest first. Raises: DatabaseAway."""
    return [dict(row) for row in await database.rows(UNCONFIRMED, limit)]


async def confirm_drift(database: Database, event_id: UUID, *, by: str) -> None:
    """Store who confirmed a finding; an earlier confirmation stays. Raises: DatabaseAway."""
    await database.once(lambda c: c.execute(database.sql(CONFIRM), event_id, by))


IS_OLDER = f"""
SELECT EXISTS (SELECT FROM {{schema}}.session_scores s WHERE {is_completed("s")} AND s.completed_at < $1)
"""


async def has_scores_before(database: Database, at: datetime) -> bool:
    """Whether a score is older: a new installation misses no chain. Raises: DatabaseAway."""
    return bool(await database.once(lambda c: c.fetchval(database.sql(IS_OLDER), at)))


async def read_failed(database: Database, since: datetime) -> list[Mapping[str, Any]]:
    """Rows from `FAILED`, those with most sessions first. Raises: DatabaseAway."""
    return [dict(row) for row in await database.rows(FAILED, since, MOST_FAILED)]


async def read_waiting(database: Database) -> dict[str | None, int]:
    """Count due scores by chain, up to `MOST_PENDING` together. Raises: DatabaseAway."""
    rows = await database.rows(WAITING, MOST_PENDING)
    return {row["chain_id"]: row["scores"] for row in rows}

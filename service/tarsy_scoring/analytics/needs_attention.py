"""
Sessions without a score that may need a person: those whose score failed, and those whose due score waits.

Each list is read from an index, up to a limit.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tarsy_scoring.postgres.database import Database

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


async def read_failed(database: Database, since: datetime) -> list[Mapping[str, Any]]:
    """Rows from `FAILED`, those with most sessions first. Raises: DatabaseAway."""
    return [
        dict(row) for row in await database.once(lambda c: c.fetch(database.sql(FAILED), since, MOST_FAILED))
    ]


async def read_waiting(database: Database) -> dict[str | None, int]:
    """Count due scores by chain, up to `MOST_PENDING` together. Raises: DatabaseAway."""
    rows = await database.once(lambda c: c.fetch(database.sql(WAITING), MOST_PENDING))
    return {row["chain_id"]: row["scores"] for row in rows}

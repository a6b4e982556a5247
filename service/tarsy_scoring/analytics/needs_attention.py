"""
Statements for what may need a person: sessions whose score failed or whose due score waits, and drift.

Each list is read from an index, up to a limit.
"""

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
# Who confirmed a finding; an earlier confirmation stays.
CONFIRM = """
UPDATE {schema}.drift_findings SET confirmed_by = $2, confirmed_at = now()
WHERE event_id = $1 AND confirmed_at IS NULL
"""


# Whether a score is older than $1: a new installation misses no chain.
IS_OLDER = f"""
SELECT 1 FROM {{schema}}.session_scores s WHERE {is_completed("s")} AND s.completed_at < $1 LIMIT 1
"""

"""Reads stored sessions into states, for the decisions in `admission`."""

from collections.abc import Sequence
from uuid import UUID

from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.queue.admission import OpenScore, SessionState
from tarsy_scoring.scores.latest import NEWEST_FIRST, is_completed

# Sessions with the open score, the latest score under each criteria and reference (the last one is the latest
# overall), the deferred request and the newest reference. That list grows by one for a judged reference, so
# messages alone do not lengthen it.
STATES = f"""
SELECT m.session_id, m.chain_id, m.status,
  (SELECT jsonb_build_array(score_id, criteria, criteria_hash, reference_id) FROM {{schema}}.session_scores
   WHERE session_id = m.session_id AND status IN ('pending', 'in_progress') AND purpose = 'production')
     AS open,
  (SELECT jsonb_agg(jsonb_build_array(criteria_hash, reference_id, score_id)
    ORDER BY completed_at, score_id DESC)
   FROM (SELECT DISTINCT ON (criteria_hash, k.reference_id) criteria_hash, k.reference_id, score_id,
     completed_at
         FROM {{schema}}.session_scores s,
           LATERAL (SELECT CASE WHEN s.reference IS NOT NULL THEN s.reference_id END) k(reference_id)
         WHERE session_id = m.session_id AND {is_completed("s")}
         ORDER BY criteria_hash, k.reference_id, {NEWEST_FIRST}) latest) AS completed,
  (SELECT request_id FROM {{schema}}.scoring_requests
   WHERE session_id = m.session_id AND disposition = 'deferred') AS deferred,
  (SELECT reference_id FROM {{schema}}.session_references r
   WHERE r.session_id = m.session_id ORDER BY given_at DESC, reference_id LIMIT 1) AS reference_id
FROM {{schema}}.sessions m WHERE m.session_id = ANY((SELECT $1::text[])::text[])
"""


async def states_of(
    database: Database, connection: Connection, ids: Sequence[str]
) -> dict[str, SessionState]:
    """
    Read the states after the sessions were locked. A separate statement sees what others stored before the
    lock.
    """
    rows = await connection.fetch(database.sql(STATES), ids)
    states = {}
    for row in rows:
        state = SessionState(row["chain_id"], row["status"], None, {}, row["deferred"], row["reference_id"])
        if row["open"]:
            score_id, criteria, criteria_hash, reference = row["open"]
            state.open = OpenScore(UUID(score_id), criteria, criteria_hash, reference and UUID(reference))
        for criteria_hash, reference, score_id in row["completed"] or ():
            state.completed[criteria_hash, reference and UUID(reference)] = UUID(score_id)
        states[row["session_id"]] = state
    return states

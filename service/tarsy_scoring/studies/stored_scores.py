"""Reads the stored scores of versions for `compare`."""

from datetime import datetime

from tarsy_scoring.postgres.database import Database
from tarsy_scoring.scores.latest import latest_of
from tarsy_scoring.studies.comparison import ScoredSession

_COMPARED = latest_of(
    "m.session_id",
    "score_id, completed_at, total_score, interaction, judge_fingerprint, flags, outcome",
    "without",
)

# The latest completed score without a reference of every session with the label ($1), in the order in which
# the sessions ended.
SCORES_BY_LABEL = f"""
SELECT m.labels ->> $1 AS value, m.chain_id, m.alert_type, s.total_score, s.interaction, s.judge_fingerprint,
       s.flags, s.outcome
FROM {{schema}}.sessions m
CROSS JOIN LATERAL {_COMPARED} s
WHERE m.labels ->> $1 IS NOT NULL
  AND ($2::text IS NULL OR m.chain_id = $2)
  AND ($3::timestamptz IS NULL OR coalesce(m.completed_at, m.first_seen_at) >= $3)
ORDER BY coalesce(m.completed_at, m.first_seen_at), m.session_id
"""


async def scores_by_label(
    database: Database, label: str, chain: str | None, since: datetime | None
) -> list[ScoredSession]:
    """
    The latest completed score of every session with the label, in the order in which the sessions ended.

    Args:
        since: Only sessions that ended since then; a session whose end is unknown counts from the time when
            it was first seen.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    return [ScoredSession(**dict(r)) for r in await database.rows(SCORES_BY_LABEL, label, chain, since)]

"""
Reads stored scores for the commands that compare versions and order judgements.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from tarsy_scoring.postgres.database import Database
from tarsy_scoring.scores.latest import latest_of
from tarsy_scoring.scores.reader import Reader
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

SESSION_LABELS = """
SELECT label, count(*) AS sessions FROM {schema}.sessions m, jsonb_object_keys(m.labels) AS label
GROUP BY label ORDER BY label
"""

ORDERED = """
SELECT s.score_id, s.session_id, s.status, s.attempt, s.waiting_reason, s.waiting_for_text,
       s.next_attempt_at <= now() AS is_due,
       s.chain_id, s.chain_is_named, s.criteria, s.criteria_hash,
       s.judge_fingerprint, s.total_score, s.judge_outcome, s.flags, s.usage, s.error_kind, s.error_message,
       c.content -> 'bands' AS bands
FROM {schema}.session_scores s LEFT JOIN {schema}.scoring_criteria c USING (criteria_hash)
WHERE s.score_id = ANY($1::uuid[])
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
    rows = await database.once(lambda c: c.fetch(database.sql(SCORES_BY_LABEL), label, chain, since))
    return [ScoredSession(**dict(r)) for r in rows]


async def session_labels(database: Database) -> dict[str, int]:
    """Count the sessions that carry each label. Raises: DatabaseAway."""
    rows = await database.once(lambda c: c.fetch(database.sql(SESSION_LABELS)))
    return {r["label"]: r["sessions"] for r in rows}


async def ordered_scores(reader: Reader, ids: Sequence[UUID]) -> list[dict[str, Any]]:
    """
    Read the present state of scores that were requested, with their criteria's bands; leaves out erased ones.

    `waiting_for` says why a pending score waits.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    rows = await reader.database.once(lambda c: c.fetch(reader.database.sql(ORDERED), ids))
    waits = await reader.waits([dict(r) for r in rows])
    return [
        {**r, "waiting_for": waits[r["score_id"]].reason if r["score_id"] in waits else None} for r in rows
    ]

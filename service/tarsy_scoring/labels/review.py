"""
The review list: recent scores that people are asked to label.

Each day has some random scores and the most suspicious others; a day with few scores has all. Random scores
have the day's smallest id digests, so the list needs no storage and every reader sees the same.
"""

from datetime import timedelta
from typing import Any, Literal

from tarsy_scoring.labels.labels import RANDOM_A_DAY
from tarsy_scoring.postgres.database import Database

Reason = Literal["second opinion", "contradiction", "flag", "samples apart"]

DAYS = 7
PICKED_A_DAY = 5  # with the random ones about half an hour of work
SAMPLES_APART_POINTS = 8
MOST_READ = 20_000  # newest scores

CANDIDATE = "s.status = 'completed' AND s.purpose = 'production' AND s.total_score IS NOT NULL AND s.reference IS NULL"

REVIEW = f"""
WITH candidates AS (
  SELECT s.score_id, s.session_id, s.chain_id, s.total_score, s.judge_outcome, s.criteria, s.criteria_hash,
    s.judge_fingerprint, s.completed_at AS scored_at, (s.completed_at AT TIME ZONE 'UTC')::date AS day,
    md5(s.score_id::text) AS digest, array_remove(ARRAY[
      CASE WHEN s.flags ? 'second_opinion_disagrees' THEN 'second opinion' END,
      CASE WHEN s.flags ? 'outcome_score_mismatch'
        OR s.gates <> '[]' AND NOT s.gates @> '[{{"passed": false}}]' AND s.outcome = 'fail' THEN 'contradiction' END,
      CASE WHEN s.flags - 'outcome_score_mismatch' - 'second_opinion_disagrees' <> '[]' THEN 'flag' END,
      CASE WHEN s.samples <> '[]' AND (SELECT
                 max((a ->> 'total_score')::int) - min((a ->> 'total_score')::int)
                 FROM jsonb_array_elements(s.samples) a) > {SAMPLES_APART_POINTS} THEN 'samples apart' END], NULL) AS reasons
  FROM {{schema}}.session_scores s
  WHERE {CANDIDATE} AND s.completed_at >= date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' - $1::interval
  ORDER BY s.completed_at DESC LIMIT {MOST_READ}
), drawn AS (
  SELECT *, row_number() OVER (PARTITION BY day ORDER BY digest) <= {RANDOM_A_DAY} AS is_random,
    count(*) OVER (PARTITION BY day) <= {RANDOM_A_DAY + PICKED_A_DAY} AS is_small_day FROM candidates
), ranked AS (
  SELECT *, row_number() OVER (PARTITION BY day, is_random ORDER BY
    'second opinion' = ANY(reasons) DESC, cardinality(reasons) DESC, digest) AS place FROM drawn
  WHERE is_random OR is_small_day OR cardinality(reasons) > 0
)
SELECT r.score_id, r.day, r.is_random, r.reasons, r.session_id, r.chain_id, r.total_score,
  r.judge_outcome, r.criteria, r.criteria_hash, r.judge_fingerprint, r.scored_at,
  (SELECT m.alert_type FROM {{schema}}.sessions m WHERE m.session_id = r.session_id) AS alert_type,
  (SELECT count(*) FROM {{schema}}.score_labels l WHERE l.score_id = r.score_id) AS labels
FROM ranked r
WHERE r.is_random OR r.place <= {PICKED_A_DAY}
ORDER BY r.day DESC, r.digest
"""


async def read_review(database: Database) -> dict[str, Any]:
    """
    Read the list for the last `DAYS` days.

    Returns:
        `picks`: rows, newest day first and in random order within a day, labelled ones in their place;
        `to_label`: how many have no label yet.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    rows = await database.rows(REVIEW, timedelta(days=DAYS - 1))
    return {"picks": [dict(row) for row in rows], "to_label": sum(not row["labels"] for row in rows)}

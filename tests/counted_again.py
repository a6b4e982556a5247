"""The numbers of trends, distribution, failure tags and missing tools, counted from the scores and not from daily counts."""

from collections.abc import Sequence
from typing import Any

from builders import Scoring
from tarsy_scoring.analytics.analytics import DayOf
from tarsy_scoring.analytics.daily import Selection
from tarsy_scoring.scores.bands import DOUBTFUL_FLAGS, Band
from tarsy_scoring.scores.latest import has_no_later, is_completed

_CHOSEN = "($1::text IS NULL OR s.chain_id = $1) AND ($2::text IS NULL OR s.criteria = $2)"
_IN_TIME = "($3::timestamptz IS NULL OR {0} >= $3) AND ($4::timestamptz IS NULL OR {0} < $4)"
_MADE = f"{is_completed('s')} AND s.reference IS <not> NULL"
_LATEST_OF_ITS_KIND = f"{is_completed('s')} AND {has_no_later('s', of_its_kind=True)}"
_LATEST = f"{_MADE} AND {has_no_later('s', of_its_kind=True)}"
SELECTED = f"{_LATEST} AND {_CHOSEN} AND {_IN_TIME.format('s.completed_at')}"


def _points(time: str, counts: str) -> str:
    return f"""
SELECT ({time} AT TIME ZONE 'UTC')::date AS day, s.judge_fingerprint, s.criteria,
       avg(s.total_score) FILTER (WHERE NOT s.flags ?| $5)::float8 AS average,
       min(s.total_score) FILTER (WHERE NOT s.flags ?| $5) AS minimum,
       max(s.total_score) FILTER (WHERE NOT s.flags ?| $5) AS maximum,
       count(*) FILTER (WHERE NOT s.flags ?| $5) AS count, count(*) FILTER (WHERE s.flags ?| $5) AS doubtful
FROM {{schema}}.session_scores s JOIN {{schema}}.sessions m USING (session_id)
WHERE {counts} AND {_CHOSEN} AND s.total_score IS NOT NULL AND {_IN_TIME.format(time)}
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"""


# Figures by chain: all scores, and the averages of those without doubtful flags.
FIGURES = """
SELECT s.chain_id, count(*) AS scores, count(s.total_score) FILTER (WHERE NOT s.flags ?| $5) AS count,
  avg(s.total_score) FILTER (WHERE NOT s.flags ?| $5)::float8 AS average, count(s.outcome) FILTER (WHERE <decides>) AS outcomes,
  count(*) FILTER (WHERE s.outcome = 'pass' AND <decides>) AS passed, count(DISTINCT coalesce(s.judge_fingerprint, '')) AS judges,
  array_agg(DISTINCT s.criteria ORDER BY s.criteria) AS criteria,
  sum((s.usage ->> 'cost_usd')::numeric)::float8 AS judging_usd, count(s.usage ->> 'cost_usd') AS judging_costs,
  sum((s.interaction #>> '{agent_tokens,input}')::numeric)::float8 AS input_tokens,
  sum((s.interaction #>> '{agent_tokens,output}')::numeric)::float8 AS output_tokens,
  count(s.interaction #>> '{agent_tokens,output}') AS token_counts,
  sum((s.interaction ->> 'agent_cost_usd')::numeric)::float8 AS agent_usd,
  sum((s.interaction ->> 'duration_s')::numeric)::float8 AS duration_s
FROM {schema}.session_scores s JOIN {schema}.sessions m USING (session_id)
WHERE <chosen> GROUP BY 1""".replace("<decides>", "(s.pass_threshold IS NOT NULL OR jsonb_array_length(s.gates) > 0)")

BANDS = f"""
SELECT s.criteria, b.id AS band, s.total_score IS NOT NULL AS has_total, count(*) AS count
FROM {{schema}}.session_scores s
LEFT JOIN unnest($5::text[], $6::int[], $7::int[]) AS b(id, low, high) ON s.total_score BETWEEN b.low AND b.high
WHERE {SELECTED} GROUP BY 1, 2, 3"""

CATEGORIES = f"""
SELECT b.id AS band, grouping(b.id) = 1 AS is_all, s.criteria, c.key AS category,
       avg((c.value #>> '{{}}')::float8) AS average, count(*) AS count
FROM {{schema}}.session_scores s
CROSS JOIN LATERAL (SELECT coalesce(s.score_breakdown, s.rubric -> 'scores') AS stated) d
CROSS JOIN LATERAL jsonb_each(CASE jsonb_typeof(d.stated) WHEN 'object' THEN d.stated ELSE '{{}}' END) c
LEFT JOIN unnest($5::text[], $6::int[], $7::int[]) AS b(id, low, high) ON s.total_score BETWEEN b.low AND b.high
WHERE {SELECTED} AND s.total_score IS NOT NULL AND jsonb_typeof(c.value) = 'number'
GROUP BY GROUPING SETS ((b.id, s.criteria, c.key), (s.criteria, c.key))"""

TAGS = f"""
SELECT t.tag, s.chain_id, count(DISTINCT s.score_id) AS scores
FROM {{schema}}.session_scores s
CROSS JOIN LATERAL jsonb_array_elements_text(
  CASE jsonb_typeof(s.failure_tags) WHEN 'array' THEN s.failure_tags ELSE '[]' END) AS t(tag)
WHERE {SELECTED} AND t.tag IS NOT NULL GROUP BY 1, 2"""

CHAINS = f"SELECT s.chain_id, count(*) AS scores FROM {{schema}}.session_scores s WHERE {SELECTED} GROUP BY 1"

# The sessions that request any of these names ($5), by chain.
MISSED = f"""
SELECT s.chain_id, count(*) AS sessions, array_agg(DISTINCT s.judge_fingerprint) AS judges
FROM {{schema}}.session_scores s
WHERE {SELECTED} AND NOT s.flags ? 'tampering_suspected' AND EXISTS (
  SELECT FROM {{schema}}.score_missing_tools t WHERE t.score_id = s.score_id AND t.tool_name = ANY($5))
GROUP BY 1"""

Rows = list[dict[str, Any]]


async def _rows(scoring: Scoring, sql: str, of: Selection, *more: Any) -> Rows:
    of_kind = sql.replace("<not>", "NOT" if of.reference == "with" else "")
    return await scoring.rows(scoring.database.sql(of_kind), *of.arguments, *more)


async def trends(scoring: Scoring, of: Selection, day_of: DayOf = "scored") -> Rows:
    time = "least(m.completed_at, m.first_seen_at)" if day_of == "ended" else "s.completed_at"
    return await _rows(scoring, _points(time, _LATEST), of, sorted(DOUBTFUL_FLAGS))


async def figures(scoring: Scoring, of: Selection, day_of: DayOf = "scored") -> Rows:
    time = "least(m.completed_at, m.first_seen_at)" if day_of == "ended" else "s.completed_at"
    sql = FIGURES.replace("<chosen>", f"{_LATEST} AND {_CHOSEN} AND {_IN_TIME.format(time)}")
    return await _rows(scoring, sql, of, sorted(DOUBTFUL_FLAGS))


async def distribution(scoring: Scoring, of: Selection, bands: Sequence[Band]) -> tuple[Rows, Rows]:
    ends = [b.id for b in bands], [b.low for b in bands], [b.high for b in bands]
    counts = await _rows(scoring, BANDS, of, *ends)
    return counts, await _rows(scoring, CATEGORIES, of, *ends)


async def failure_tags(scoring: Scoring, of: Selection) -> tuple[Rows, Rows]:
    return await _rows(scoring, CHAINS, of), await _rows(scoring, TAGS, of)


async def missed(scoring: Scoring, of: Selection, names: Sequence[str]) -> Rows:
    return await _rows(scoring, MISSED, of, names)


# Rows of the daily counts that differ from a count of the scores, on days that are not dirty.
DIFFERENCES = f"""
WITH scores AS (
  SELECT (s.completed_at AT TIME ZONE 'UTC')::date AS day, s.criteria, s.reference IS NOT NULL AS has_reference,
         s.total_score, count(*)
  FROM {{schema}}.session_scores s WHERE {_LATEST_OF_ITS_KIND} GROUP BY 1, 2, 3, 4
), counted AS (
  SELECT day, criteria, has_reference, total, sum(scores)::bigint FROM {{schema}}.daily_counts WHERE is_all
  GROUP BY 1, 2, 3, 4
)
SELECT * FROM ((TABLE scores EXCEPT TABLE counted) UNION ALL (TABLE counted EXCEPT TABLE scores)) d
WHERE day NOT IN (SELECT day FROM {{schema}}.dirty_days)""".replace("{schema}", "public")

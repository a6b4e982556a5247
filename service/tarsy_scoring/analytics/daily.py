"""
Daily counts: how scores are counted by day, and how readers use the counts.

A session counts once for each kind (with or without a reference), by the latest completed production score:
on the day when it was scored, and (`by_end`) on the day when it ended. Days are in UTC. A changed score marks
these days in `dirty_days`. Readers take clean days from the tables, and the newest `MOST_DIRTY` dirty ones
from the scores, with the statement that also fills the tables. So today, which is dirty, is always exact.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.scores.bands import DOUBTFUL_FLAGS
from tarsy_scoring.scores.latest import Kind, is_completed, latest_of
from tarsy_scoring.scores.session_list import CUSTOM_PLAN

MOST_DIRTY = 7  # days that one read counts from scores
FIRST_DAY, NO_DAY = date.min, date.max  # PostgreSQL's -infinity and infinity
ROOM = "SET LOCAL work_mem = '32MB'"  # sorts and hashes here exceed PostgreSQL's default of a few MB

DIRTY_DAYS = "SELECT DISTINCT day FROM {schema}.dirty_days ORDER BY day DESC"

# The scores that count in the time spans from $1 to $2, both arrays. They are looked up span by span and
# session by session (OFFSET 0): PostgreSQL cannot know how short the spans are, and would read all scores.
_FACTS = f"""
  SELECT s.by_end, (s.at AT TIME ZONE 'UTC')::date AS day, s.score_id, s.chain_id, s.criteria,
    s.judge_fingerprint,
    s.reference IS NOT NULL AS has_reference, s.flags ? 'tampering_suspected' AS is_tampered,
    s.flags ?| ARRAY{sorted(DOUBTFUL_FLAGS)} AS is_doubtful,
    s.total_score, coalesce(s.score_breakdown, s.rubric -> 'scores') AS stated, s.failure_tags,
    CASE WHEN s.pass_threshold IS NOT NULL OR s.gates <> '[]' THEN s.outcome END AS outcome,
    (s.usage ->> 'cost_usd')::numeric AS judging_usd,
    (s.interaction #>> '{{agent_tokens,input}}')::numeric AS input_tokens,
    (s.interaction #>> '{{agent_tokens,output}}')::numeric AS output_tokens,
    (s.interaction ->> 'agent_cost_usd')::numeric AS agent_usd,
    (s.interaction ->> 'duration_s')::numeric AS duration_s
  FROM (
    SELECT false AS by_end, s.completed_at AS at, s.*
    FROM unnest($1::timestamptz[], $2::timestamptz[]) AS t(since, until) CROSS JOIN LATERAL (
      SELECT * FROM {{schema}}.session_scores s
      WHERE s.completed_at >= t.since AND s.completed_at < t.until AND {is_completed("s")} OFFSET 0) s
    UNION ALL
    SELECT true, m.at, s.*
    FROM unnest($1::timestamptz[], $2::timestamptz[]) AS t(since, until) CROSS JOIN LATERAL (
      SELECT session_id, least(completed_at, first_seen_at) AS at FROM {{schema}}.sessions
      WHERE least(completed_at, first_seen_at) >= t.since AND least(completed_at, first_seen_at) < t.until
      OFFSET 0) m CROSS JOIN LATERAL (
      SELECT * FROM {{schema}}.session_scores s
      WHERE s.session_id = m.session_id AND {is_completed("s")} OFFSET 0) s
  ) s WHERE s.score_id = {latest_of("s.session_id", "latest.score_id", kind_of="s")}"""

# Scores by total, for each chain and for all chains together, with count and sum for each stated category.
COUNT_TOTALS = f"""
SELECT day, is_all, chain_id, criteria, has_reference, is_doubtful, total,
  (sum(n) FILTER (WHERE category IS NULL))::int AS scores,
  array_agg(category ORDER BY category) FILTER (WHERE category IS NOT NULL) AS categories,
  array_agg(n::int ORDER BY category) FILTER (WHERE category IS NOT NULL) AS stated,
  array_agg(points ORDER BY category) FILTER (WHERE category IS NOT NULL) AS points
FROM (
  SELECT f.day, a.is_all, CASE WHEN NOT a.is_all THEN f.chain_id END AS chain_id, f.criteria, f.has_reference,
    f.is_doubtful, f.total_score AS total, c.category, count(*) AS n, sum(c.points) AS points
  FROM ({_FACTS}) f CROSS JOIN (VALUES (false), (true)) a(is_all) CROSS JOIN LATERAL (
    SELECT NULL AS category, NULL::numeric AS points
    UNION ALL
    SELECT key, value::text::numeric
    FROM jsonb_each(CASE jsonb_typeof(f.stated) WHEN 'object' THEN f.stated ELSE '{{}}' END)
    WHERE jsonb_typeof(value) = 'number' AND f.total_score IS NOT NULL) c
  WHERE NOT f.by_end GROUP BY 1, 2, 3, 4, 5, 6, 7, 8) cells
GROUP BY 1, 2, 3, 4, 5, 6, 7"""

# Sums by chain and judge, on both days.
COUNT_SUMS = f"""
SELECT by_end, day, chain_id, criteria, judge_fingerprint, has_reference, is_doubtful,
  count(*)::int AS scores, count(total_score)::int AS totals, coalesce(sum(total_score), 0)::int AS points,
  coalesce(sum(total_score * total_score), 0) AS squares,
  min(total_score)::smallint AS minimum, max(total_score)::smallint AS maximum,
  count(outcome)::int AS outcomes, (count(*) FILTER (WHERE outcome = 'pass'))::int AS passed,
  count(judging_usd)::int AS judging_costs, coalesce(sum(judging_usd), 0) AS judging_usd,
  (count(*) FILTER (WHERE input_tokens IS NOT NULL AND output_tokens IS NOT NULL))::int AS token_counts,
  coalesce(sum(input_tokens), 0) AS input_tokens, coalesce(sum(output_tokens), 0) AS output_tokens,
  count(agent_usd)::int AS agent_costs, coalesce(sum(agent_usd), 0) AS agent_usd,
  count(duration_s)::int AS durations, coalesce(sum(duration_s), 0) AS duration_s
FROM ({_FACTS}) f GROUP BY 1, 2, 3, 4, 5, 6, 7"""

# Scores with a failure tag, and scores that miss the same tools: names as judges wrote them.
COUNT_NAMES = f"""
SELECT f.day, f.chain_id, f.criteria, f.has_reference, n.kind, n.names,
  count(*)::int AS scores
FROM ({_FACTS}) f CROSS JOIN LATERAL (
  SELECT DISTINCT 'failure_tag' AS kind, ARRAY[t.tag] AS names
  FROM jsonb_array_elements_text(f.failure_tags) AS t(tag)
  UNION ALL
  SELECT 'missing_tools', array_agg(DISTINCT t.tool_name) FROM {{schema}}.score_missing_tools t
  WHERE t.score_id = f.score_id AND NOT f.is_tampered HAVING count(*) > 0) n
WHERE NOT f.by_end GROUP BY 1, 2, 3, 4, 5, 6"""

_CLEAN = "day >= $3 AND day < $4 AND day <> ALL($5::date[])"
_CHOSEN = (
    """($6::text IS NULL OR chain_id = $6) AND ($7::text IS NULL OR criteria = $7) AND has_reference = $8"""
)

# What statements read: rows from a table and from the scores, in the columns above. Rows of one day add up.
TOTALS = f"""(
  SELECT * FROM (SELECT * FROM {{schema}}.daily_counts WHERE {_CLEAN} UNION ALL {COUNT_TOTALS}) t
  WHERE is_all = ($6::text IS NULL) AND {_CHOSEN})"""
SUMS = f"""(
  SELECT * FROM (SELECT * FROM {{schema}}.daily_sums WHERE {_CLEAN} UNION ALL {COUNT_SUMS}) t
  WHERE {_CHOSEN})"""
NAMES = f"""(
  SELECT * FROM (SELECT * FROM {{schema}}.daily_names WHERE {_CLEAN} UNION ALL {COUNT_NAMES}) t
  WHERE {_CHOSEN})"""
# The same without days. The table's rows are added up before the scores join them, so that PostgreSQL may do it in
# parallel.
_OVER_TIME = "chain_id, criteria, has_reference, kind, names"
NAMES_OVER_TIME = f"""(
  SELECT {_OVER_TIME}, sum(scores) AS scores FROM {{schema}}.daily_names
  WHERE {_CLEAN} AND {_CHOSEN} GROUP BY {_OVER_TIME}
  UNION ALL SELECT {_OVER_TIME}, scores FROM ({COUNT_NAMES}) t WHERE {_CHOSEN})"""


@dataclass(frozen=True, slots=True)
class Selection:
    """
    Which scores count; None: all. `since` is inclusive, `until` exclusive.

    Args:
        reference: Scores without or with a reference, never both.
    """

    chain: str | None = None
    criteria: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    reference: Kind = "without"

    @property
    def arguments(self) -> tuple[Any, ...]:
        """$1 to $4 of statements that read scores."""
        return self.chain, self.criteria, self.since, self.until


@dataclass(frozen=True, slots=True)
class Reading:
    """
    Where the numbers for a time range come from.

    Args:
        spans: Counted from the scores: dirty days, and parts of days at the ends of the range.
        first_day, end_day: Days read from the tables, except `left_out`; `end_day` is exclusive.
        recounted: How many dirty days lie beyond `MOST_DIRTY`, which the tables may show as they were.
    """

    spans: Sequence[tuple[datetime, datetime]]
    first_day: date
    end_day: date
    left_out: Sequence[date]
    recounted: int

    @property
    def arguments(self) -> tuple[Any, ...]:
        """$1 to $5 of statements that read `TOTALS`, `SUMS` or names."""
        since, until = [span[0] for span in self.spans], [span[1] for span in self.spans]
        return since, until, self.first_day, self.end_day, list(self.left_out)


def split(since: datetime | None, until: datetime | None, dirty: Sequence[date]) -> Reading:
    """Decide where to read a time range from; `dirty` has the newest day first."""
    first = (
        FIRST_DAY if since is None else (since.astimezone(UTC) + timedelta(days=1, microseconds=-1)).date()
    )
    end = NO_DAY if until is None else until.astimezone(UTC).date()
    if since is not None and until is not None and first > end:
        return Reading([(since, until)], NO_DAY, NO_DAY, (), 0)
    inside = [day for day in dirty if first <= day < end]
    counted = inside[:MOST_DIRTY]
    spans = [(midnight(day), midnight(day + timedelta(days=1))) for day in counted]
    spans += _partial_days(since, until, first, end)
    return Reading(spans, first, end, counted, len(inside[MOST_DIRTY:]))


def _partial_days(
    since: datetime | None, until: datetime | None, first: date, end: date
) -> Iterator[tuple[datetime, datetime]]:
    if since is not None and since < midnight(first):
        yield since, midnight(first)
    if until is not None and midnight(end) < until:
        yield midnight(end), until


def midnight(day: date) -> datetime:
    """When a day begins in UTC."""
    return datetime.combine(day, time(), UTC)


async def read_counts(
    database: Database, selection: Selection, *statements: tuple[str, Sequence[Any]]
) -> list[list[Any]]:
    """
    Run statements that read `TOTALS`, `SUMS` or names, each with arguments from $9 on.

    Raises:
        DatabaseAway: See `Database.once`.
    """

    async def work(connection: Connection) -> list[list[Any]]:
        await connection.execute(f"{CUSTOM_PLAN};{ROOM}")
        dirty = [row["day"] for row in await connection.fetch(database.sql(DIRTY_DAYS))]
        chosen = selection.chain, selection.criteria, selection.reference == "with"
        counted = (*split(selection.since, selection.until, dirty).arguments, *chosen)
        return [await connection.fetch(database.sql(sql), *counted, *more) for sql, more in statements]

    return await database.once(work)


async def count_recounted(database: Database, selection: Selection) -> int:
    """Number of selected days that are being counted again. Raises: DatabaseAway."""
    dirty = [row["day"] for row in await database.rows(DIRTY_DAYS)]
    return split(selection.since, selection.until, dirty).recounted

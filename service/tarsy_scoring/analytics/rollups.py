"""
Daily rollups of completed production scores: how deltas become rollups, and how readers count with both.

A trigger appends a delta in the transaction that ends, replaces or deletes a score (migration 0020). One
process at
a time folds deltas into the rollups, so no row is contended. Law: rollups and deltas together are always what
a
recount of the scores gives, for the days that are filled. Readers count the days before these from the
scores.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Literal

from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.scores.bands import DOUBTFUL_FLAGS
from tarsy_scoring.scores.built_tools import asked_before, requests_of
from tarsy_scoring.scores.latest import Kind, has_no_later, is_completed, is_of_kind

Measure = Literal["made", "latest", "ended", "missed"]
"""
`made`: completed scores by the day on which they were made. `latest`: of them, the latest of each session. `ended`: the
latest of each session, by the day on which the session ended. `missed`: like `latest`, for the tools that scores miss.
"""

FIRST_DAY, NO_DAY = date.min, date.max  # PostgreSQL's -infinity and infinity
WAITING = "SELECT count(*) FROM (SELECT FROM {schema}.score_deltas LIMIT 100000) waiting"
FOLDED_AT_ONCE = 5000  # deltas; folding as many takes half a second

FILLED_SINCE = "SELECT since FROM {schema}.rollups_filled"
FIGURES_SINCE = "SELECT figures_since FROM {schema}.rollups_filled"

# --- folding -------------------------------------------------------------------------------------------

_DAY = "(s.completed_at AT TIME ZONE 'UTC')::date"
_ENDED_AT = "least(m.completed_at, m.first_seen_at)"
_DOUBTFUL = ", ".join(f"'{flag}'" for flag in sorted(DOUBTFUL_FLAGS))


def _number(column: str, path: str) -> str:
    """A number of a JSON column; null where it is something else."""
    return (
        f"CASE jsonb_typeof(s.{column} #> '{path}') WHEN 'number' THEN (s.{column} #>> '{path}')::numeric END"
    )


_OF_SCORE: Mapping[str, str] = {
    "day": _DAY,
    "ended_day": f"({_ENDED_AT} AT TIME ZONE 'UTC')::date",
    **{
        name: f"s.{name}"
        for name in ("chain_id", "criteria", "judge_fingerprint", "tools_hash", "failure_tags")
    },
    "has_reference": "s.reference IS NOT NULL",
    "total_score": "s.total_score::smallint",
    "is_doubtful": f"s.flags ?| ARRAY[{_DOUBTFUL}]",
    "stated": "coalesce(s.score_breakdown, s.rubric -> 'scores')",
    "tools": """CASE WHEN s.flags ? 'tampering_suspected' THEN '{}' ELSE ARRAY(
    SELECT DISTINCT t.tool_name COLLATE "C" FROM {schema}.score_missing_tools t
    WHERE t.score_id = s.score_id ORDER BY 1) END""",
    "outcome": "s.outcome",
    "judging_usd": _number("usage", "{cost_usd}"),
    "input_tokens": _number("interaction", "{agent_tokens,input}"),
    "output_tokens": _number("interaction", "{agent_tokens,output}"),
    "agent_usd": _number("interaction", "{agent_cost_usd}"),
    "duration_s": _number("interaction", "{duration_s}"),
}


def _of_scores(names: Iterable[str], **counts: int | str) -> str:
    """SELECT and FROM of scores `s` and their sessions `m`, in these columns of `score_deltas`."""
    columns = [
        f"{sql} AS {name}" for name, sql in (counts | {name: _OF_SCORE[name] for name in names}).items()
    ]
    return f"SELECT {', '.join(columns)} FROM {{schema}}.session_scores s JOIN {{schema}}.sessions m USING (session_id)"


# The latest scores of a UTC day and the sessions that ended on it ($1), as if none of them were counted yet.
_HAS_NO_LATER = has_no_later("s", of_its_kind=True)
_IS_LATEST = f"({_HAS_NO_LATER})::int"
_RECOUNTED = f"""
{_of_scores(_OF_SCORE, made=1, latest=_IS_LATEST, ended=0, missed=_IS_LATEST)}
WHERE {is_completed("s")} AND s.completed_at >= $1::date::timestamp AT TIME ZONE 'UTC'
  AND s.completed_at < ($1::date + 1)::timestamp AT TIME ZONE 'UTC'
UNION ALL
{_of_scores(_OF_SCORE, made=0, latest=0, ended=1, missed=0)}
WHERE {is_completed("s")} AND s.completed_at IS NOT NULL AND {_HAS_NO_LATER}
  AND {_ENDED_AT} >= $1::date::timestamp AT TIME ZONE 'UTC'
  AND {_ENDED_AT} < ($1::date + 1)::timestamp AT TIME ZONE 'UTC'
"""

# Names and values of the categories that a score with a total states, in the order of the names.
_CATEGORIES = """
  SELECT coalesce(array_agg(c.key ORDER BY c.key COLLATE "C"), '{}') AS categories,
         array_agg((c.value #>> '{}')::numeric ORDER BY c.key COLLATE "C") AS numbers
  FROM jsonb_each(CASE WHEN d.total_score IS NOT NULL AND jsonb_typeof(d.stated) = 'object' THEN d.stated
                  ELSE '{}' END) c
  WHERE jsonb_typeof(c.value) = 'number'"""

_TAGS = """
  SELECT DISTINCT t.tag FROM jsonb_array_elements_text(
    CASE jsonb_typeof(d.failure_tags) WHEN 'array' THEN d.failure_tags ELSE '[]' END) AS t(tag)
  WHERE t.tag IS NOT NULL"""

# What `chain_figures` adds up -> the value of one row of deltas.
FIGURES = {
    "scores": "1",
    "totals": "(d.total_score IS NOT NULL)::int",
    "points": "coalesce(d.total_score, 0)",
    "outcomes": "(d.outcome IS NOT NULL)::int",
    "passed": "coalesce(d.outcome = 'pass', false)::int",
    "judging_costs": "(d.judging_usd IS NOT NULL)::int",
    "judging_usd": "coalesce(d.judging_usd, 0)",
    "token_counts": "(d.input_tokens IS NOT NULL AND d.output_tokens IS NOT NULL)::int",
    "input_tokens": "coalesce(d.input_tokens, 0)",
    "output_tokens": "coalesce(d.output_tokens, 0)",
    "agent_costs": "(d.agent_usd IS NOT NULL)::int",
    "agent_usd": "coalesce(d.agent_usd, 0)",
    "durations": "(d.duration_s IS NOT NULL)::int",
    "duration_s": "coalesce(d.duration_s, 0)",
}
_FACTS = ("outcome", "judging_usd", "input_tokens", "output_tokens", "agent_usd", "duration_s")
_OF_FIGURES = "day, chain_id, criteria, judge_fingerprint, has_reference, is_doubtful"

# A trigger on `score_deltas` does the same for deltas (migration 0027), also for those that an older version
# folds.
_RECOUNT_FIGURES = f"""figures AS (
  INSERT INTO {{schema}}.chain_figures (by_end, {_OF_FIGURES}, {", ".join(FIGURES)})
  SELECT k.by_end, k.day, d.chain_id, d.criteria, d.judge_fingerprint, d.has_reference, d.is_doubtful,
    {", ".join(f"sum(k.n * {value})" for value in FIGURES.values())}
  FROM deltas d, LATERAL (VALUES (false, d.day, d.latest), (true, d.ended_day, d.ended)) k(by_end, day, n)
  WHERE k.n <> 0 GROUP BY 1, 2, 3, 4, 5, 6, 7
), """


def _fold(deltas: str, also: str = "") -> str:
    """
    Statement that adds deltas to the rollups, and returns their number.

    Each delta counts twice: for its chain, and for all chains together, so that reads over all chains read as
    much as those of one.

    Args:
        deltas: SELECT or DELETE of rows like those of `score_deltas`.
        also: Another part of the statement.
    """
    return f"""
WITH deltas AS MATERIALIZED ({deltas}),
{also}facts AS MATERIALIZED (
  SELECT d.*, coalesce(d.total_score, -1) AS total, c.categories, c.numbers, k.is_all, k.of_chain, k.of_tools,
    md5(jsonb_build_array(k.is_all, k.of_chain, d.criteria, d.judge_fingerprint, k.of_tools, d.is_doubtful,
                          to_jsonb(c.categories))::text || CASE WHEN d.has_reference THEN 'reference' ELSE '' END
       )::uuid AS group_id
  FROM deltas d, LATERAL ({_CATEGORIES}) c,
    LATERAL (VALUES (false, d.chain_id, d.tools_hash), (true, NULL, NULL)) k(is_all, of_chain, of_tools)
), grouped AS (
  INSERT INTO {{schema}}.score_groups
    (group_id, is_all, chain_id, criteria, judge_fingerprint, tools_hash, has_reference, is_doubtful, categories)
  SELECT DISTINCT ON (group_id)
    group_id, is_all, of_chain, criteria, judge_fingerprint, of_tools, has_reference, is_doubtful, categories
  FROM facts ON CONFLICT (group_id) DO NOTHING
), counts AS (
  SELECT is_all, group_id, day, total, sum(made) AS made, sum(latest) AS latest, sum(ended) AS ended
  FROM (SELECT is_all, group_id, day, total, made, latest, 0 AS ended FROM facts WHERE made <> 0 OR latest <> 0
        UNION ALL SELECT is_all, group_id, ended_day, total, 0, 0, ended FROM facts WHERE ended <> 0) f
  GROUP BY is_all, group_id, day, total
), sums AS (
  SELECT group_id, day, total, array_agg(sum ORDER BY n) AS category_sums
  FROM (SELECT f.group_id, f.day, f.total, u.n, sum(f.latest * u.number)
        FROM facts f, unnest(f.numbers) WITH ORDINALITY AS u(number, n) WHERE f.latest <> 0 GROUP BY 1, 2, 3, 4) f
  GROUP BY group_id, day, total
), totals AS (
  INSERT INTO {{schema}}.score_rollups AS r (is_all, group_id, day, total, made, latest, ended, category_sums)
  SELECT is_all, group_id, day, total, made, latest, ended, category_sums
  FROM counts LEFT JOIN sums USING (group_id, day, total)
  ON CONFLICT (is_all, group_id, day, total) DO UPDATE SET
    made = r.made + excluded.made, latest = r.latest + excluded.latest, ended = r.ended + excluded.ended,
    category_sums = CASE WHEN excluded.category_sums IS NULL THEN r.category_sums ELSE (
      SELECT array_agg(coalesce(u.old, 0) + u.more ORDER BY u.n)
      FROM unnest(r.category_sums, excluded.category_sums) WITH ORDINALITY AS u(old, more, n)) END
), chains AS (
  INSERT INTO {{schema}}.chain_rollups AS r (group_id, day, scores)
  SELECT group_id, day, sum(latest) FROM facts WHERE latest <> 0 AND NOT is_all GROUP BY 1, 2
  ON CONFLICT (group_id, day) DO UPDATE SET scores = r.scores + excluded.scores
), tags AS (
  INSERT INTO {{schema}}.tag_rollups AS r (group_id, day, tag, scores)
  SELECT d.group_id, d.day, t.tag, sum(d.latest) FROM facts d, LATERAL ({_TAGS}) t
  WHERE d.latest <> 0 AND NOT d.is_all GROUP BY 1, 2, 3
  ON CONFLICT (group_id, day, tag) DO UPDATE SET scores = r.scores + excluded.scores
), missed AS MATERIALIZED (
  SELECT *, md5(to_jsonb(tools)::text)::uuid AS set_id FROM facts WHERE missed <> 0 AND tools <> '{{}}' AND NOT is_all
), sets AS (
  INSERT INTO {{schema}}.missed_sets (set_id, names) SELECT DISTINCT ON (set_id) set_id, tools FROM missed
  ON CONFLICT (set_id) DO NOTHING
), tools AS (
  INSERT INTO {{schema}}.missed_rollups AS r (group_id, day, set_id, scores, points_lost)
  SELECT group_id, day, set_id, sum(missed), sum(missed * coalesce(100 - total_score, 0)) FROM missed GROUP BY 1, 2, 3
  ON CONFLICT (group_id, day, set_id) DO UPDATE SET
    scores = r.scores + excluded.scores, points_lost = r.points_lost + excluded.points_lost
)
SELECT count(*) FROM deltas
"""


FOLD = _fold(
    "DELETE FROM {schema}.score_deltas WHERE delta_id IN "
    "(SELECT delta_id FROM {schema}.score_deltas ORDER BY delta_id LIMIT $1) RETURNING *"
)
RECOUNT_DAY = _fold(_RECOUNTED, _RECOUNT_FIGURES)
ROLLUPS = ("score_rollups", "chain_rollups", "tag_rollups", "missed_rollups", "chain_figures")

# Rows that count nothing, after erasures and retention.
REMOVE_EMPTY = (
    "DELETE FROM {schema}.score_rollups WHERE made = 0 AND latest = 0 AND ended = 0",
    "DELETE FROM {schema}.chain_rollups WHERE scores = 0",
    "DELETE FROM {schema}.tag_rollups WHERE scores = 0",
    "DELETE FROM {schema}.missed_rollups WHERE scores = 0",
)
REMOVE_UNUSED = (
    "DELETE FROM {schema}.score_groups g WHERE NOT EXISTS "
    "(SELECT FROM {schema}.score_rollups r WHERE r.group_id = g.group_id)",
    "DELETE FROM {schema}.missed_sets t WHERE NOT EXISTS "
    "(SELECT FROM {schema}.missed_rollups r WHERE r.set_id = t.set_id)",
)


async def count_waiting(database: Database) -> int:
    """Count the deltas that are not folded yet, up to 100,000. Raises: DatabaseAway."""
    number: int = await database.once(lambda c: c.fetchval(database.sql(WAITING)))
    return number


async def fold(database: Database, connection: Connection, limit: int = FOLDED_AT_ONCE) -> int:
    """
    Fold the oldest deltas into the rollups, in the caller's transaction; returns their number.

    The caller is the only process that writes rollups.
    """
    number: int = await connection.fetchval(database.sql(FOLD), limit)
    if number:
        for statement in REMOVE_EMPTY:
            await connection.execute(database.sql(statement))
    return number


# --- counting ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Covered:
    """
    The days of a time range that rollups cover. The rest of the range, if any, is counted from the scores.

    Args:
        first_day: The first day that they cover.
        end_day: The day after the last one.
        is_all: Whether they cover the whole range.
    """

    first_day: date
    end_day: date
    is_all: bool


def cover(since: datetime | None, until: datetime | None, filled_since: date) -> Covered:
    """
    The whole UTC days of a time range that are filled.

    Args:
        since, until: None: unbounded; `until` is exclusive.
        filled_since: As stored in `rollups_filled`.
    """
    first, end = FIRST_DAY, NO_DAY
    if since is not None:
        first = since.astimezone(UTC).date()
        if since.astimezone(UTC).time() != time():
            first += timedelta(days=1)
    if until is not None:
        end = until.astimezone(UTC).date()
    lowest = max(first, filled_since)
    if lowest >= end:
        return Covered(NO_DAY, NO_DAY, is_all=False)
    is_whole = since is None or datetime.combine(first, time(), UTC) == since
    is_whole &= until is None or datetime.combine(end, time(), UTC) == until
    return Covered(lowest, end, is_all=is_whole and lowest == first)


async def read_cover(
    database: Database, connection: Connection, since: datetime | None, until: datetime | None, filled: str
) -> Covered:
    """Like `cover`, with the days that are filled now: `FILLED_SINCE` or `FIGURES_SINCE`."""
    return cover(since, until, await connection.fetchval(database.sql(filled)))


# Arguments of all statements that count: $1 chain, $2 criteria, $3 since, $4 until, $5 to $7 a `Covered`, $8
# and $9 a `BuiltTools`: the scores that asked for these tools before they were built are left out.
def selected(alias: str, kind: Kind = "without") -> str:
    """
    The condition that rows of groups or deltas belong to the selected chain and criteria, and to the kind.
    """
    return f"{_is_chosen(alias)} AND {'' if kind == 'with' else 'NOT '}{alias}.has_reference"


def _is_chosen(alias: str) -> str:
    return f"($1::text IS NULL OR {alias}.chain_id = $1) AND ($2::text IS NULL OR {alias}.criteria = $2)"


_FIRST = "$5::date::timestamp AT TIME ZONE 'UTC'"
_END = "$6::date::timestamp AT TIME ZONE 'UTC'"


def not_rolled_up(measure: Measure, *more: str, kind: Kind = "without") -> str:
    """
    SELECT of what the rollups do not contain: deltas of covered days, and scores of the time that is not
    covered.

    Scores that are left out are taken away again like deleted ones, of all days. Without such tools the
    planner leaves this part of the statement out.

    Args:
        measure: It counts the row `number` times.
        more: Further columns of `score_deltas`.
    """
    day, at = ("ended_day", _ENDED_AT) if measure == "ended" else ("day", "s.completed_at")
    is_latest = "" if measure == "made" else f"AND {_HAS_NO_LATER}"
    columns = ("chain_id", "criteria", "judge_fingerprint", "is_doubtful", "total_score", *more)
    return f"""
  SELECT d.{day} AS day, {", ".join(f"d.{name}" for name in columns)}, d.{measure}::int AS number
  FROM {{schema}}.score_deltas d
  WHERE {selected("d", kind)} AND d.{day} >= $5::date AND d.{day} < $6::date AND d.{measure} <> 0
  UNION ALL
  SELECT {day}, {", ".join(columns)}, 1 FROM (
  {_of_scores([day, *columns])}
  WHERE NOT $7::bool AND {is_completed("s")} {is_latest} AND {_is_chosen("s")} AND {is_of_kind("s", kind)}
    AND ($3::timestamptz IS NULL OR {at} >= $3) AND ($4::timestamptz IS NULL OR {at} < $4)
    AND ({at} < {_FIRST} OR {at} >= {_END})) s
  UNION ALL
  SELECT {day}, {", ".join(columns)}, -1 FROM (
  {_of_scores([day, *columns])} JOIN ({requests_of("$8", "$9")}) a USING (score_id)
  WHERE cardinality($8::text[]) > 0 AND {asked_before("s", "a.built")} AND {is_completed("s")} {is_latest}
    AND {_is_chosen("s")}
    AND {is_of_kind("s", kind)}
    AND ($3::timestamptz IS NULL OR {at} >= $3) AND ($4::timestamptz IS NULL OR {at} < $4)) s"""


def _rolled_up(table: str, also: str = "", kind: Kind = "without") -> str:
    """FROM and WHERE of rollups `r` with their groups `g`; `also` is joined."""
    # No condition on `g.is_all`: the planner would take it for another one, and expect too few rows.
    level = "r.is_all = ($1::text IS NULL) AND" if table == "score_rollups" else ""
    return f"""FROM {{schema}}.score_groups g JOIN {{schema}}.{table} r USING (group_id){also}
  WHERE {level} {selected("g", kind)} AND r.day >= $5::date AND r.day < $6::date"""


def count_totals(measure: Measure, kind: Kind = "without") -> str:
    """SELECT of numbers of scores by total; several rows of one total add up, and -1 is no total."""
    return f"""
  SELECT r.day, g.criteria, g.judge_fingerprint, g.is_doubtful, r.total, r.{measure} AS number
  {_rolled_up("score_rollups", kind=kind)} AND r.{measure} <> 0
  UNION ALL
  SELECT d.day, d.criteria, d.judge_fingerprint, d.is_doubtful, coalesce(d.total_score, -1), d.number
  FROM ({not_rolled_up(measure, kind=kind)}) d"""


def count_totals_by_chain() -> str:
    """
    SELECT of numbers of the latest scores with a total that is not doubtful, by day, chain, judge and total.
    """
    return f"""
  SELECT r.day, g.chain_id, g.criteria, g.judge_fingerprint, r.total, r.latest AS number
  FROM {{schema}}.score_groups g JOIN {{schema}}.score_rollups r USING (group_id)
  WHERE NOT r.is_all AND {selected("g")} AND NOT g.is_doubtful AND r.day >= $5::date AND r.day < $6::date
    AND r.latest <> 0 AND r.total <> -1
  UNION ALL
  SELECT d.day, d.chain_id, d.criteria, d.judge_fingerprint, d.total_score, d.number
  FROM ({not_rolled_up("latest")}) d WHERE NOT d.is_doubtful AND d.total_score IS NOT NULL"""


def count_days(measure: Measure, kind: Kind = "without") -> str:
    """
    SELECT of scores with a total by day: their number, the sum of their totals, the lowest and the highest of
    them.

    Several rows of one day add up. The rollups of a day are added up at once, by group, unless other rows
    change the
    day: then by total, because a total whose scores are all gone is not the lowest one.
    """
    names = "criteria, judge_fingerprint, is_doubtful"
    return f"""
  WITH others AS MATERIALIZED ({not_rolled_up(measure, kind=kind)}),
  changed AS MATERIALIZED (SELECT DISTINCT day FROM others)
  SELECT * FROM (
    SELECT r.day, g.criteria, g.judge_fingerprint, g.is_doubtful, sum(r.{measure}) AS number,
      sum(r.{measure} * r.total) AS points, min(r.total) AS minimum, max(r.total) AS maximum
    {_rolled_up("score_rollups", kind=kind)} AND r.{measure} <> 0 AND r.total <> -1
    GROUP BY r.day, g.group_id OFFSET 0) c  -- the condition on each row would cost more, and change the plan
  WHERE day NOT IN (SELECT day FROM changed)
  UNION ALL
  SELECT day, {names}, sum(number), sum(number) * total, total, total FROM (
    SELECT r.day, g.criteria, g.judge_fingerprint, g.is_doubtful, r.total, r.{measure} AS number
    {_rolled_up("score_rollups", kind=kind)} AND r.{measure} <> 0 AND r.day IN (SELECT day FROM changed)
    UNION ALL
    SELECT day, criteria, judge_fingerprint, is_doubtful, total_score, number FROM others) t
  WHERE total >= 0 GROUP BY day, {names}, total HAVING sum(number) <> 0"""


def sum_categories(kind: Kind) -> str:
    """SELECT of sums of the categories of the latest scores by total; several rows of one total add up."""
    return f"""
  SELECT g.criteria, r.total, u.category, u.sum, r.latest AS number
  {_rolled_up("score_rollups", ", unnest(g.categories, r.category_sums) u(category, sum)", kind)}
    AND r.latest <> 0
  UNION ALL
  SELECT d.criteria, d.total_score, u.category, d.number * u.sum, d.number
  FROM ({not_rolled_up("latest", "stated", kind=kind)}) d, LATERAL ({_CATEGORIES}) c,
    unnest(c.categories, c.numbers) u(category, sum)"""


def count_tags(kind: Kind) -> str:
    """SELECT of numbers of the latest scores by day, failure tag, chain and judge; several rows add up."""
    return f"""
  SELECT r.day, r.tag, g.chain_id, g.judge_fingerprint, r.scores AS number {_rolled_up("tag_rollups", kind=kind)}
  UNION ALL
  SELECT d.day, t.tag, d.chain_id, d.judge_fingerprint, d.number
  FROM ({not_rolled_up("latest", "failure_tags", kind=kind)}) d, LATERAL ({_TAGS}) t"""


def count_by_chain(kind: Kind = "without") -> str:
    """
    SELECT of numbers of the latest scores by day, chain, judge and set of tools of the agents; several rows
    add up.
    """
    return f"""
  SELECT r.day, g.chain_id, g.judge_fingerprint, g.tools_hash, r.scores AS number
  {_rolled_up("chain_rollups", kind=kind)}
  UNION ALL
  SELECT d.day, d.chain_id, d.judge_fingerprint, d.tools_hash, d.number
  FROM ({not_rolled_up("latest", "tools_hash", kind=kind)}) d"""


def days_by_chain() -> str:
    """
    SELECT of the latest scores with a known judge, by chain, judge and set of tools: the days, as
    `date.toordinal` counts them, and the number on each.

    Several rows of one chain, judge and set add up, as do several numbers of one day. Rollups are collected
    by their group, because a sort of all of them by three texts takes half of the time.
    """
    ordinal = "day - DATE '0001-01-01' + 1"
    return f"""
  SELECT g.chain_id, g.judge_fingerprint, g.tools_hash, array_agg(r.{ordinal}) AS days, array_agg(r.scores) AS numbers
  {_rolled_up("chain_rollups")} AND g.judge_fingerprint IS NOT NULL GROUP BY g.group_id
  UNION ALL
  SELECT d.chain_id, d.judge_fingerprint, d.tools_hash, array_agg(d.{ordinal}), array_agg(d.number)
  FROM ({not_rolled_up("latest", "tools_hash")}) d WHERE d.judge_fingerprint IS NOT NULL GROUP BY 1, 2, 3"""


def chain_figures(measure: Measure, kind: Kind) -> str:
    """SELECT of the figures of the latest scores by day, chain, criteria and judge; several rows add up."""
    names = ("day", "chain_id", "criteria", "judge_fingerprint", "is_doubtful")
    return f"""
  SELECT {", ".join(f"f.{name}" for name in (*names, *FIGURES))} FROM {{schema}}.chain_figures f
  WHERE f.by_end = {measure == "ended"} AND {selected("f", kind)} AND f.day >= $5::date AND f.day < $6::date
  UNION ALL
  SELECT {", ".join(f"d.{name}" for name in names)}, {", ".join(f"d.number * {value}" for value in FIGURES.values())}
  FROM ({not_rolled_up(measure, *_FACTS, kind=kind)}) d"""


# Requests for tools are added up by month as well. The covered days are the whole months from the first of
# these on and before the second one, and the days before and after them.
FIRST_MONTH = "(date_trunc('month', ($5::date - 1)::timestamp) + interval '1 month')::date"
_END_MONTH = "date_trunc('month', $6::date::timestamp)::date"


def missed_in(table: str, first: str, end: str, columns: str, also: str = "") -> str:
    """
    SELECT of requests for tools in the selected groups `g`, from the rows `r` of months or days.

    Args:
        table: `missed_months` or `missed_rollups`.
        first, end: SQL of the first month or day, and of the one after the last.
        also: Joined.
    """
    day = "month" if table == "missed_months" else "day"
    return f"""
  SELECT {columns} FROM {{schema}}.score_groups g JOIN {{schema}}.{table} r USING (group_id){also}
  WHERE {selected("g")} AND r.{day} >= {first} AND r.{day} < {end}"""


def missed_sets(*columns: str) -> str:
    """
    SELECT of numbers of the latest scores that miss tools, by set of their names, with the sum of 100 -
    total.

    Several rows of one set add up. The rollups are added up before their sets are looked up: adding up by
    long arrays of names takes several times as long.

    Args:
        columns: None, or `chain_id` and `judge_fingerprint`.
    """
    named = "".join(f"{name}, " for name in columns)
    wanted = f"{''.join(f'g.{name}, ' for name in columns)}r.set_id, r.scores, r.points_lost"
    rolled_up = " UNION ALL ".join(
        (
            missed_in("missed_months", FIRST_MONTH, _END_MONTH, wanted),
            missed_in("missed_rollups", "$5::date", f"least({FIRST_MONTH}, $6::date)", wanted),
            missed_in("missed_rollups", f"greatest({FIRST_MONTH}, {_END_MONTH})", "$6::date", wanted),
        )
    )
    return f"""
  SELECT {named}t.names, r.number, r.lost
  FROM (SELECT {named}set_id, sum(scores) AS number, sum(points_lost) AS lost FROM ({rolled_up}) u
        GROUP BY {named}set_id) r JOIN {{schema}}.missed_sets t USING (set_id)
  UNION ALL
  SELECT {named}d.tools, d.number, d.number * coalesce(100 - d.total_score, 0)
  FROM ({not_rolled_up("missed", "tools")}) d WHERE d.tools <> '{{}}'"""

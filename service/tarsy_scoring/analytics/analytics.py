"""
Analytics over many scores: trends, distribution, failure tags.

A session counts once, by its latest completed score. Filters apply to that score, so a session that was
scored again under other criteria no longer counts for the former ones. Numbers are read from the rollups.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from tarsy_scoring.analytics.rollups import (
    FILLED_SINCE,
    Measure,
    count_by_chain,
    count_days,
    count_tags,
    count_totals,
    read_cover,
    sum_categories,
)
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.scores.bands import Band
from tarsy_scoring.scores.latest import Kind, is_latest
from tarsy_scoring.scores.session_list import CUSTOM_PLAN

DayOf = Literal["scored", "ended"]

KINDS: tuple[Kind, ...] = ("without", "with")

CHOSEN = """($1::text IS NULL OR s.chain_id = $1) AND ($2::text IS NULL OR s.criteria = $2)
  AND ($3::timestamptz IS NULL OR s.completed_at >= $3) AND ($4::timestamptz IS NULL OR s.completed_at < $4)"""
# The latest completed production score without a reference of each session; $1 to $4 are the arguments of a
# `Selection`.
SELECTED = f"""{is_latest("s", "without")} AND {CHOSEN}"""


def _trends(measure: Measure, kind: Kind = "without") -> str:
    return f"""
SELECT day, judge_fingerprint, criteria,
       (sum(points) FILTER (WHERE NOT is_doubtful) / sum(number) FILTER (WHERE NOT is_doubtful))::float8 AS average,
       min(minimum) FILTER (WHERE NOT is_doubtful) AS minimum, max(maximum) FILTER (WHERE NOT is_doubtful) AS maximum,
       coalesce(sum(number) FILTER (WHERE NOT is_doubtful), 0)::bigint AS count,
       coalesce(sum(number) FILTER (WHERE is_doubtful), 0)::bigint AS doubtful
FROM ({count_days(measure, kind)}) t
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""


MEASURES: Mapping[DayOf, Measure] = {"scored": "latest", "ended": "ended"}
TRENDS = {(day_of, kind): _trends(measure, kind) for day_of, measure in MEASURES.items() for kind in KINDS}
# Totals of every score, also of several scores of a session.
TOTALS_MADE = _trends("made")

# Totals by band ($10 ids, $11 lowest and $12 highest totals). A row without a band counts totals between
# bands, or scores without a total.
BANDS = {
    kind: f"""
SELECT b.id AS band, t.total >= 0 AS has_total, sum(t.number)::bigint AS count
FROM (SELECT total, sum(number) AS number FROM ({count_totals("latest", kind)}) c GROUP BY 1 HAVING sum(number) <> 0) t
LEFT JOIN unnest($10::text[], $11::int[], $12::int[]) AS b(id, low, high)
  ON t.total >= 0 AND t.total BETWEEN b.low AND b.high
GROUP BY 1, 2
"""
    for kind in KINDS
}

# The average of each category in each band, and over all bands (`is_all`), for each criteria by itself: a
# breakdown has points, a rubric has values 0-1.
CATEGORIES = {
    kind: f"""
SELECT b.id AS band, grouping(b.id) = 1 AS is_all, c.criteria, c.category,
       (sum(c.sum)::float8 / sum(c.number)::float8) AS average, sum(c.number)::bigint AS count
FROM (SELECT criteria, total, category, sum(sum) AS sum, sum(number) AS number
      FROM ({sum_categories(kind)}) c GROUP BY 1, 2, 3 HAVING sum(number) <> 0) c
LEFT JOIN unnest($10::text[], $11::int[], $12::int[]) AS b(id, low, high) ON c.total BETWEEN b.low AND b.high
GROUP BY GROUPING SETS ((b.id, c.criteria, c.category), (c.criteria, c.category))
ORDER BY c.criteria, c.category
"""
    for kind in KINDS
}

SCORES_OF_CHAINS = {
    kind: f"""
SELECT chain_id, sum(number)::bigint AS scores FROM ({count_by_chain(kind)}) c
GROUP BY 1 HAVING sum(number) <> 0
"""
    for kind in KINDS
}

FAILURE_TAGS = {
    kind: f"""
SELECT tag, chain_id, sum(number)::bigint AS scores FROM ({count_tags(kind)}) c GROUP BY 1, 2 HAVING sum(number) <> 0
"""
    for kind in KINDS
}

# Sorts and hashes here exceed PostgreSQL's default of a few MB per step.
ROOM = "SET LOCAL work_mem = '32MB'"
MOST_CHAINS = 100  # listed by name; the totals count all


@dataclass(frozen=True, slots=True)
class Selection:
    """
    Which scores count; None: all. `since` is inclusive, `until` exclusive.

    Args:
        reference: Scores without or with a reference, never both. Statistics of tools and `totals_made` are
            always of scores without one.
    """

    chain: str | None = None
    criteria: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    reference: Kind = "without"

    @property
    def arguments(self) -> tuple[Any, ...]:
        """$1 to $4 of the statements."""
        return self.chain, self.criteria, self.since, self.until


# --- trends --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrendPoint:
    """Totals of one UTC day under one judge fingerprint. Do not connect points of two fingerprints."""

    day: date
    judge_fingerprint: str | None
    criteria: str | None
    average: float
    minimum: int
    maximum: int
    count: int


LeftOut = Annotated[
    int, Field(description="Scores flagged `outcome_score_mismatch` or `tampering_suspected`: in no point.")
]


@dataclass(frozen=True, slots=True)
class Trends:
    """Points by day, then fingerprint."""

    points: list[TrendPoint]
    left_out: LeftOut


async def trends(database: Database, selection: Selection, day_of: DayOf = "scored") -> Trends:
    """
    Read the totals per day and fingerprint, without scores flagged for a contradiction or possible tampering.

    Args:
        day_of: `scored` counts a score on the day on which it was made, so a rescored session moves to the
            day of its new score; `ended` counts it on the day on which its session ended. `since` and `until`
            of the selection apply to the same time.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    [rows] = await count(database, selection, (TRENDS[day_of, selection.reference], ()))
    return Trends(_points(rows), sum(row["doubtful"] for row in rows))


async def totals_made(database: Database, selection: Selection) -> list[TrendPoint]:
    """
    Read the totals per day and fingerprint of every score, also of several scores of one session.

    Scores flagged as doubtful are left out.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    [rows] = await count(database, selection, (TOTALS_MADE, ()))
    return _points(rows)


def _points(rows: Iterable[Mapping[str, Any]]) -> list[TrendPoint]:
    names = TrendPoint.__slots__
    return [TrendPoint(**{name: row[name] for name in names}) for row in rows if row["count"]]


# --- distribution --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CategoryAverage:
    """A category of one criteria: points where a breakdown was stated, 0-1 for a rubric."""

    criteria: str | None
    category: str
    average: float
    count: Annotated[int, Field(description="Number of scores that state it.")]


@dataclass(frozen=True, slots=True)
class BandCount:
    """A band of totals from `low` to `high`, both included, with the number of scores in it."""

    band: str
    low: int
    high: int
    count: int
    categories: list[CategoryAverage]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Scores by band, the lowest first, and the averages of their categories."""

    bands: list[BandCount]
    between_bands: Annotated[int, Field(description="Number of totals that lie in no band.")]
    without_total: Annotated[int, Field(description="Completed scores of chains without a judge.")]
    categories: Annotated[list[CategoryAverage], Field(description="Over all totals.")]


async def distribution(database: Database, selection: Selection, bands: Sequence[Band]) -> Distribution:
    """
    Count scores by band, and average their categories.

    Flagged totals count: the distribution shows stored scores, not a trend of quality.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    ends = [b.id for b in bands], [b.low for b in bands], [b.high for b in bands]
    statements = (BANDS[selection.reference], ends), (CATEGORIES[selection.reference], ends)
    counted, averaged = await count(database, selection, *statements)
    counts = {(row["band"], row["has_total"]): row["count"] for row in counted}
    averages: defaultdict[tuple[str | None, bool], list[CategoryAverage]] = defaultdict(list)
    for row in averaged:
        average = CategoryAverage(row["criteria"], row["category"], row["average"], row["count"])
        averages[row["band"], row["is_all"]].append(average)
    return Distribution(
        [BandCount(b.id, b.low, b.high, counts.get((b.id, True), 0), averages[b.id, False]) for b in bands],
        counts.get((None, True), 0),
        counts.get((None, False), 0),
        averages[None, True],
    )


# --- failure tags --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChainShare:
    """Scores of a chain with a tag, as count and as share of the chain's scores."""

    chain_id: str | None
    count: int
    share: float


@dataclass(frozen=True, slots=True)
class TagCount:
    """Scores with a tag, as count and as share of all scores."""

    tag: str
    count: int
    share: float
    chains: int
    by_chain: Annotated[
        list[ChainShare], Field(description="At most 100, those with most such scores first.")
    ]


@dataclass(frozen=True, slots=True)
class FailureTags:
    """Tags, the most frequent first."""

    scores: Annotated[int, Field(description="All scores of the selection, with and without tags.")]
    tags: list[TagCount]


async def failure_tags(database: Database, selection: Selection) -> FailureTags:
    """
    Read the failure tags with the number and share of scores that have them. A tag counts once per score.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    statements = (SCORES_OF_CHAINS[selection.reference], ()), (FAILURE_TAGS[selection.reference], ())
    scores, tagged = await count(database, selection, *statements)
    return tag_shares({row["chain_id"]: row["scores"] for row in scores}, tagged)


def tag_shares(scores: Mapping[str | None, int], tagged: Iterable[Mapping[str, Any]]) -> FailureTags:
    """
    Turn counts of tags into shares of all scores and of each chain's scores, the most frequent tag first.

    Args:
        scores: Number of scores by chain, with and without tags.
        tagged: Rows of `tag`, `chain_id`, `scores`.
    """
    by_tag: defaultdict[str, Counter[str | None]] = defaultdict(Counter)
    for row in tagged:
        by_tag[row["tag"]][row["chain_id"]] += row["scores"]
    total = sum(scores.values())
    found = []
    for tag, counts in by_tag.items():
        # A score may end between the two statements, so a count may exceed its total; a share is at most 1.
        chains = [ChainShare(c, n, min(1.0, n / scores.get(c, n))) for c, n in counts.items()]
        chains.sort(key=lambda chain: (-chain.count, chain.chain_id or ""))
        count = counts.total()
        found.append(TagCount(tag, count, min(1.0, count / max(total, 1)), len(chains), chains[:MOST_CHAINS]))
    return FailureTags(total, sorted(found, key=lambda tag: (-tag.count, tag.tag)))


async def count(
    database: Database,
    selection: Selection,
    *statements: tuple[str, Sequence[Any]],
    filled: str = FILLED_SINCE,
) -> list[list[Any]]:
    """
    The rows of statements that count, each with its arguments from $10 on, all in one transaction.

    Args:
        filled: Which days of the rollups are filled that they read, see `read_cover`.

    Raises:
        DatabaseAway: See `Database.once`.
    """

    async def work(connection: Connection) -> list[list[Any]]:
        await connection.execute(CUSTOM_PLAN)
        await connection.execute(ROOM)
        covered = await read_cover(database, connection, selection.since, selection.until, filled)
        counting = (*selection.arguments, covered.first_day, covered.end_day, covered.is_all)
        counting += [], []
        return [await connection.fetch(database.sql(sql), *counting, *more) for sql, more in statements]

    return await database.once(work)

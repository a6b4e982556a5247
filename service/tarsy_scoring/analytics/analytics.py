"""
Analytics over many scores: trends, distribution, failure tags.

A session counts once, by the latest completed score. Filters apply to that score, so a session that was
scored again under other criteria no longer counts for the former ones. Numbers come from the daily counts.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import Field

from tarsy_scoring.analytics.daily import NAMES_OVER_TIME, SUMS, TOTALS, Selection, read_counts
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.scores.bands import Band, band_of
from tarsy_scoring.scores.latest import is_latest

DayOf = Literal["scored", "ended"]

CHOSEN = """($1::text IS NULL OR s.chain_id = $1) AND ($2::text IS NULL OR s.criteria = $2)
  AND ($3::timestamptz IS NULL OR s.completed_at >= $3)
  AND ($4::timestamptz IS NULL OR s.completed_at < $4)"""
# The latest completed production score without a reference of each session; $1 to $4 are the arguments of a
# `Selection`.
SELECTED = f"""{is_latest("s", "without")} AND {CHOSEN}"""

# Totals by day and judge; $9: by the day on which the sessions ended.
TRENDS = f"""
SELECT day, judge_fingerprint, criteria,
  sum(points) FILTER (WHERE NOT is_doubtful)::float8 / sum(totals) FILTER (WHERE NOT is_doubtful) AS average,
  min(minimum) FILTER (WHERE NOT is_doubtful) AS minimum,
  max(maximum) FILTER (WHERE NOT is_doubtful) AS maximum,
  coalesce(sum(totals) FILTER (WHERE NOT is_doubtful), 0)::bigint AS count,
  coalesce(sum(totals) FILTER (WHERE is_doubtful), 0)::bigint AS doubtful
FROM {SUMS} s WHERE by_end = $9 AND totals > 0 GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""

# Scores by criteria and total: without a category their count, with one what they state of it, points of a breakdown or
# values 0-1 of a rubric.
BY_TOTAL = f"""
SELECT criteria, total, category, sum(scores)::bigint AS count, sum(points)::float8 AS points
FROM (SELECT criteria, total, unnest(array_append(categories, NULL)) AS category,
  unnest(array_append(stated, scores)) AS scores, unnest(points) AS points FROM {TOTALS} t) c
GROUP BY 1, 2, 3 ORDER BY 1, 3
"""

SCORES_OF_CHAINS = f"""
SELECT chain_id, sum(scores)::bigint AS scores FROM {SUMS} s WHERE NOT by_end GROUP BY 1
"""

FAILURE_TAGS = f"""
SELECT names[1] AS tag, chain_id, sum(scores)::bigint AS scores FROM {NAMES_OVER_TIME} n
WHERE kind = 'failure_tag' GROUP BY 1, 2
"""

MOST_CHAINS = 100  # listed by name; the totals count all


# --- trends --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrendPoint:
    """Totals for one UTC day under one judge fingerprint. Do not connect points from two fingerprints."""

    day: date
    judge_fingerprint: str | None
    criteria: str | None
    average: float
    minimum: int
    maximum: int
    count: int


LeftOut = Annotated[int, Field(description="Scores with a flag that makes totals doubtful: in no point.")]


async def trends(
    database: Database, selection: Selection, day_of: DayOf = "scored"
) -> tuple[list[TrendPoint], int]:
    """
    Read the totals per day, then fingerprint, and how many scores are left out: by `DOUBTFUL_FLAGS`.

    Args:
        day_of: `scored` counts a score on the day on which it was made, so a rescored session moves to the
            day of the new score; `ended` counts it on the day on which the session ended. `since` and `until`
            of the selection apply to the same time.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    [rows] = await read_counts(database, selection, (TRENDS, (day_of == "ended",)))
    shown = [{name: row[name] for name in TrendPoint.__slots__} for row in rows if row["count"]]
    return [TrendPoint(**point) for point in shown], sum(row["doubtful"] for row in rows)


# --- distribution --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CategoryAverage:
    """A category: points where a breakdown was stated, 0-1 for a rubric."""

    category: str
    average: float
    count: Annotated[int, Field(description="Number of scores that state it.")]


@dataclass(frozen=True, slots=True)
class BandCount:
    """A band of totals from `low` to `high`, both included, and how many scores it holds."""

    band: str
    low: int
    high: int
    count: int
    categories: list[CategoryAverage]


@dataclass(frozen=True, slots=True)
class CriteriaTotals:
    """Totals under one criteria by its bands, the lowest first, and the averages of their categories."""

    criteria: str | None
    bands: list[BandCount]
    between_bands: Annotated[int, Field(description="Number of totals that lie in no band.")]
    categories: Annotated[list[CategoryAverage], Field(description="Over all totals.")]


@dataclass(frozen=True, slots=True)
class Distribution:
    """A group for each criteria, because totals and bands of two criteria are not comparable."""

    criteria: list[CriteriaTotals]
    without_total: Annotated[int, Field(description="Completed scores of chains without a judge.")]


async def distribution(
    database: Database, selection: Selection, bands: Callable[[str | None], Sequence[Band]]
) -> Distribution:
    """
    Count scores by criteria and band, and average their categories.

    Flagged totals count: the distribution shows stored scores, not a trend of quality.

    Args:
        bands: The bands of criteria by name.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    [rows] = await read_counts(database, selection, (BY_TOTAL, ()))
    by_criteria = defaultdict[str | None, list[Mapping[str, Any]]](list)
    for row in rows:
        if row["total"] is not None:
            by_criteria[row["criteria"]].append(row)
    groups = [_of_criteria(name, own, bands(name)) for name, own in by_criteria.items()]
    return Distribution(groups, _count(row for row in rows if row["total"] is None))


def _of_criteria(
    criteria: str | None, rows: Sequence[Mapping[str, Any]], bands: Sequence[Band]
) -> CriteriaTotals:
    by_band = defaultdict[str | None, list[Mapping[str, Any]]](list)
    for row in rows:
        by_band[band_of(row["total"], bands)].append(row)
    counts = [BandCount(b.id, b.low, b.high, _count(by_band[b.id]), _averages(by_band[b.id])) for b in bands]
    return CriteriaTotals(criteria, counts, _count(by_band[None]), _averages(rows))


def _count(rows: Iterable[Mapping[str, Any]]) -> int:
    return sum(row["count"] for row in rows if row["category"] is None)


def _averages(rows: Iterable[Mapping[str, Any]]) -> list[CategoryAverage]:
    stated: dict[str, tuple[int, float]] = {}
    for row in rows:
        if row["category"] is not None:
            count, points = stated.get(row["category"], (0, 0.0))
            stated[row["category"]] = count + row["count"], points + row["points"]
    return [CategoryAverage(name, points / count, count) for name, (count, points) in stated.items()]


# --- failure tags --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChainShare:
    """Scores in a chain with a tag, as count and as share of the chain's scores."""

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
    by_chain: Annotated[list[ChainShare], Field(description="At most 100, those with most scores first.")]


@dataclass(frozen=True, slots=True)
class FailureTags:
    """Tags, the most frequent first."""

    scores: Annotated[int, Field(description="All scores of the selection, with and without tags.")]
    tags: list[TagCount]


async def failure_tags(database: Database, selection: Selection) -> FailureTags:
    """
    Read the failure tags, and how many and what share of scores have them. A tag counts once per score.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    scores, tagged = await read_counts(database, selection, (SCORES_OF_CHAINS, ()), (FAILURE_TAGS, ()))
    return tag_shares({row["chain_id"]: row["scores"] for row in scores}, tagged)


def tag_shares(scores: Mapping[str | None, int], tagged: Iterable[Mapping[str, Any]]) -> FailureTags:
    """
    Turn tag counts into shares of all scores and of each chain's scores, the most frequent tag first.

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
        # A score may end between the two statements, so a count may exceed the total; a share is at most 1.
        chains = [ChainShare(c, n, min(1.0, n / scores.get(c, n))) for c, n in counts.items()]
        chains.sort(key=lambda chain: (-chain.count, chain.chain_id or ""))
        count = counts.total()
        found.append(TagCount(tag, count, min(1.0, count / max(total, 1)), len(chains), chains[:MOST_CHAINS]))
    return FailureTags(total, sorted(found, key=lambda tag: (-tag.count, tag.tag)))

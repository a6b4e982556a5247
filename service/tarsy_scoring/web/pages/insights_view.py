"""Values of the pages of trends, distribution and failure tags: pictures, and rows of tables."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup

from tarsy_scoring.analytics.analytics import Distribution, TrendPoint
from tarsy_scoring.analytics.chain_averages import ChainAverages, EveryChain
from tarsy_scoring.judge.criteria import Criteria
from tarsy_scoring.web.pages.charts import (
    Bar,
    bar_picture,
    judge_of,
    number_judges,
    spark_picture,
    trend_picture,
)
from tarsy_scoring.web.pages.period import FIELDS, PeriodForm
from tarsy_scoring.web.pages.score_view import in_order
from tarsy_scoring.web.pages.words import OUTCOMES, Tone, tone_of

# --- trends --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrendView:
    """
    Values of the page of trends.

    Args:
        judges: `number`, `fingerprint`, `criteria` and `count` of each judge of the picture.
        rows: Number of the judge and point, by day; `is_break` if the previous row has another judge.
    """

    picture: Markup
    judges: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    count: int


def trend_view(points: Sequence[TrendPoint], title: str) -> TrendView:
    """Points as a picture, a list of judges and a table."""
    numbers = number_judges(points)
    judges: list[dict[str, Any]] = []
    for name, number in numbers.items():
        of_judge = [point for point in points if judge_of(point) == name]
        count = sum(point.count for point in of_judge)
        criteria = of_judge[-1].criteria
        judges.append({"number": number, "fingerprint": name, "criteria": criteria, "count": count})
    rows: list[dict[str, Any]] = []
    for point in sorted(points, key=lambda p: (p.day, numbers[judge_of(p)])):
        number = numbers[judge_of(point)]
        rows.append(
            {"number": number, "point": point, "is_break": bool(rows) and rows[-1]["number"] != number}
        )
    return TrendView(trend_picture(points, title), judges, rows, sum(p.count for p in points))


@dataclass(frozen=True, slots=True)
class ChainRow:
    """
    A chain with the picture of its trend, and the query of its curve; empty where the form cannot select it.
    """

    chain: ChainAverages
    picture: Markup
    query: str


def chain_rows(found: EveryChain, form: PeriodForm) -> list[ChainRow]:
    """One row per chain; all pictures share one range of days."""
    days = [step.day for chain in found.chains for step in chain.trend]
    rows = []
    for chain in found.chains:
        picture = spark_picture(chain.trend, min(days), max(days)) if days else Markup("")
        is_linked = bool(chain.chain_id) and chain.chain_id != form.values["chain"]
        rows.append(
            ChainRow(chain, picture, form.query_with(chain=chain.chain_id or "") if is_linked else "")
        )
    return rows


# --- distribution --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BandRow:
    """
    A band, its share of all totals, and the address of its sessions in the list. A plain range has no other
    name.
    """

    name: str
    range: str
    count: int
    share: float
    sessions: str

    @property
    def title(self) -> str:
        """Name and range."""
        return self.name if self.name == self.range else f"{self.name} ({self.range})"


@dataclass(frozen=True, slots=True)
class CategoryRow:
    """
    Averages of a category over all totals and in each band; None in a band whose scores lack the category.

    Args:
        most: Its highest possible value; None if the criteria are not configured here.
    """

    category: str
    average: float
    count: int
    most: float | None
    by_band: list[float | None]


@dataclass(frozen=True, slots=True)
class DistributionView:
    """Values of the distribution page, with categories grouped by criteria, which are not comparable."""

    picture: Markup
    bands: list[BandRow]
    categories: list[tuple[str, list[CategoryRow]]]
    count: int


def distribution_view(
    found: Distribution, registry: Iterable[Criteria], form: PeriodForm, title: str, *, is_default: bool
) -> DistributionView:
    """
    Bands as a picture and a table, highest first.

    Args:
        is_default: Whether the bands are those of totals without an outcome, which are plain ranges.
    """
    count = sum(band.count for band in found.bands) + found.between_bands
    most = max((band.count for band in found.bands), default=0)
    rows, bars = [], []
    for band in reversed(found.bands):
        tone: Tone = tone_of(band.low) if is_default else OUTCOMES.get(band.band, "plain")
        totals = f"{band.low} to {band.high}"
        name = totals if is_default else band.band.replace("_", " ")
        share = band.count / count if count else 0.0
        sought = {"min": band.low, "max": band.high} | {
            name: form.values[name] for name in FIELDS if form.values[name]
        }
        rows.append(BandRow(name, totals, band.count, share, f"/?{urlencode(sought)}"))
        text = f"{band.count:,} ({100 * share:.0f} %)"
        bars.append(
            Bar(totals if is_default else f"{name}, {totals}", band.count / most if most else 0.0, text, tone)
        )
    picture = bar_picture(bars if count else [], title)
    return DistributionView(picture, rows, _categories(found, registry), count)


def _categories(found: Distribution, registry: Iterable[Criteria]) -> list[tuple[str, list[CategoryRow]]]:
    """Rows by criteria, in the order of the criteria."""
    # The highest value of each category: its points, or 1 for a rubric item.
    known = {c.name: {**c.max_points, **{item.id: 1.0 for item in c.rubric}} for c in registry}
    in_bands = [
        {(c.criteria, c.category): c.average for c in band.categories} for band in reversed(found.bands)
    ]
    by_criteria: defaultdict[str, dict[str, CategoryRow]] = defaultdict(dict)
    for found_category in found.categories:
        criteria, category = found_category.criteria or "", found_category.category
        most = known.get(criteria, {}).get(category)
        if most is not None and found_category.average > most:
            most = None  # earlier criteria of that name allowed more points, so that the share would exceed 1
        by_band = [averages.get((found_category.criteria, category)) for averages in in_bands]
        row = CategoryRow(category, found_category.average, found_category.count, most, by_band)
        by_criteria[criteria][category] = row
    return [
        (name, list(in_order(rows, known.get(name, {})).values()))
        for name, rows in sorted(by_criteria.items())
    ]


# --- failure tags --------------------------------------------------------------------------------------


def meanings(registry: Iterable[Criteria]) -> dict[str, str]:
    """Meanings of failure tags from the vocabularies of all criteria."""
    return {tag: meaning for criteria in registry for tag, meaning in criteria.failure_vocabulary.items()}

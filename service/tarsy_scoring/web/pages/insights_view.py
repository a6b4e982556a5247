"""Numbers of the pages of trends and the distribution, as pictures and rows of tables."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from markupsafe import Markup

from tarsy_scoring.judge.criteria import Criteria
from tarsy_scoring.records.analytics import BandCount, Distribution, TrendPoint
from tarsy_scoring.web.pages.charts import Bar, Day, Tone, bar_picture, judge_mark, number_judges, trend_picture
from tarsy_scoring.web.pages.period import FIELDS, PeriodForm
from tarsy_scoring.web.pages.words import band_of

UNKNOWN_JUDGE = "unknown"


# --- trends --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Judge:
    """A judge of the picture, with the mark of its line."""

    number: int
    mark: Markup
    fingerprint: str
    criteria: str | None
    count: int


@dataclass(frozen=True, slots=True)
class TrendRow:
    """A point of the picture as a row; `is_break` if its judge differs from that of the previous row."""

    number: int
    mark: Markup
    point: TrendPoint
    is_break: bool


@dataclass(frozen=True, slots=True)
class TrendView:
    """The page of trends."""

    picture: Markup
    judges: list[Judge]
    rows: list[TrendRow]
    count: int


def trend_view(points: Sequence[TrendPoint], title: str) -> TrendView:
    """Points as a picture, a list of judges and a table."""
    days = [Day(p.day, _judge_of(p), p.average, p.minimum, p.maximum, p.count) for p in points]
    numbers = number_judges(days)
    counts: defaultdict[str, int] = defaultdict(int)
    criteria: dict[str, str | None] = {}
    for point in points:
        counts[_judge_of(point)] += point.count
        criteria[_judge_of(point)] = point.criteria
    judges = [Judge(n, judge_mark(n), name, criteria[name], counts[name]) for name, n in numbers.items()]
    rows: list[TrendRow] = []
    for point in sorted(points, key=lambda p: (p.day, numbers[_judge_of(p)])):
        number = numbers[_judge_of(point)]
        rows.append(TrendRow(number, judge_mark(number), point, bool(rows) and rows[-1].number != number))
    return TrendView(trend_picture(days, title), judges, rows, sum(counts.values()))


def _judge_of(point: TrendPoint) -> str:
    return point.judge_fingerprint or UNKNOWN_JUDGE


# --- distribution --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BandRow:
    """A band, its share of all totals, and the address of its sessions in the list."""

    name: str
    range: str
    count: int
    share: float
    sessions: str


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
    """The page of the distribution. Categories are grouped by criteria, because criteria cannot be compared."""

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
        is_default: Whether the bands are those of the badges; only then they have their colours and names.
    """
    count = sum(band.count for band in found.bands) + found.between_bands
    bands = [_band_row(band, count, form, is_default=is_default) for band in reversed(found.bands)]
    most = max((row.count for row in bands), default=0)
    tones: list[Tone] = [_tone(band) if is_default else "plain" for band in reversed(found.bands)]
    bars = [
        Bar(f"{row.name}, {row.range}", row.count, _counted(row), most, tone)
        for row, tone in zip(bands, tones, strict=True)
    ]
    picture = bar_picture(bars if count else [], title, "bands")
    return DistributionView(picture, bands, _categories(found, registry), count)


def _band_row(band: BandCount, count: int, form: PeriodForm, *, is_default: bool) -> BandRow:
    kept = {name: form.values[name] for name in FIELDS}
    sought = {"min": band.low, "max": band.high, **kept}
    return BandRow(
        band_of(band.low) if is_default else band.band.replace("_", " "),
        f"{band.low} to {band.high}",
        band.count,
        band.count / count if count else 0.0,
        "/?" + urlencode({name: value for name, value in sought.items() if value != ""}),
    )


def _tone(band: BandCount) -> Tone:
    tones: dict[str, Tone] = {"good": "good", "fair": "fair", "weak": "weak"}
    return tones[band_of(band.low)]


def _counted(row: BandRow) -> str:
    return f"{row.count:,} ({100 * row.share:.0f} %)"


def _categories(found: Distribution, registry: Iterable[Criteria]) -> list[tuple[str, list[CategoryRow]]]:
    known = {criteria.name: _most_of(criteria) for criteria in registry}
    in_bands = [{(c.criteria, c.category): c.average for c in band.categories} for band in reversed(found.bands)]
    by_criteria: defaultdict[str, list[CategoryRow]] = defaultdict(list)
    for category in found.categories:
        most = known.get(category.criteria or "", {}).get(category.category)
        by_band = [averages.get((category.criteria, category.category)) for averages in in_bands]
        row = CategoryRow(category.category, category.average, category.count, most, by_band)
        by_criteria[category.criteria or ""].append(_without_impossible(row))
    return [(name, _in_order(rows, known.get(name, {}))) for name, rows in sorted(by_criteria.items())]


def _most_of(criteria: Criteria) -> dict[str, float]:
    """Highest value of each category, in the order of the criteria: its points, or 1 for a rubric item."""
    return {**criteria.max_points, **{item.id: 1.0 for item in criteria.rubric}}


def _without_impossible(row: CategoryRow) -> CategoryRow:
    """Drop `most` if earlier criteria of that name allowed more points, since the share would exceed 1."""
    return replace(row, most=None) if row.most is not None and row.average > row.most else row


def _in_order(rows: Iterable[CategoryRow], known: Mapping[str, float]) -> list[CategoryRow]:
    places = {name: place for place, name in enumerate(known)}
    return sorted(rows, key=lambda row: (places.get(row.category, len(places)), row.category))


# --- failure tags --------------------------------------------------------------------------------------


def meanings(registry: Iterable[Criteria]) -> dict[str, str]:
    """Meanings of failure tags from the vocabularies of all criteria."""
    return {tag: meaning for criteria in registry for tag, meaning in criteria.failure_vocabulary.items()}

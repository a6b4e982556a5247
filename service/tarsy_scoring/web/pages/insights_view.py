"""
What the pages across sessions show: the form above each of them, and their numbers as pictures and rows. Pure.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from urllib.parse import urlencode

from markupsafe import Markup

from tarsy_scoring.judge.criteria import Criteria
from tarsy_scoring.records.analytics import BandCount, Distribution, Selection, TrendPoint
from tarsy_scoring.web.pages.charts import Bar, Day, Tone, bar_picture, judge_mark, number_judges, trend_picture
from tarsy_scoring.web.pages.days import read_day
from tarsy_scoring.web.pages.markdown import legible
from tarsy_scoring.web.pages.words import band_of

DAYS_SHOWN = 90  # where a form says nothing about time
MAX_FIELD = 255
FIELDS = ("chain", "criteria", "since", "until")
UNKNOWN_JUDGE = "unknown"


# --- the form ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Choice:
    """A further field of a page's form: its options by value, the first of them where nothing is chosen."""

    name: str
    label: str
    options: Mapping[str, str]


DAY_OF = Choice("day_of", "Day on which", {"scored": "it was scored", "ended": "its session ended"})
SORT = Choice("sort", "Most wanted by", {"sessions": "sessions", "points_lost": "points lost"})


@dataclass(frozen=True, slots=True)
class Asked:
    """
    What the form of a page asks for.

    Args:
        values: As given, to fill the form again.
        chosen: Option of the page's own field.
        faults: What cannot be meant; nothing is looked for then.
    """

    values: Mapping[str, str]
    selection: Selection
    chosen: str = ""
    faults: list[str] = field(default_factory=list)

    @property
    def period(self) -> str:
        """The form's days, in words."""
        since, until = self.values["since"], self.values["until"]
        if since and until:
            return f"{since} to {until}"
        return f"since {since}" if since else f"until {until}" if until else "all time"

    @property
    def all_time(self) -> str:
        """The form without its days, as a query string."""
        return urlencode({**self.values, "since": "", "until": ""})


def asked(query: Mapping[str, str], today: date, choice: Choice | None = None) -> Asked:
    """
    Read a form's fields: an empty one asks for nothing, days are of UTC and belong to the period.

    Without any word about time it is the last `DAYS_SHOWN` days.
    """
    values = {name: query.get(name, "").strip() for name in FIELDS}
    if "since" not in query and "until" not in query:
        values["since"] = str(today - timedelta(days=DAYS_SHOWN - 1))
    faults = [
        f"{name}: at most {MAX_FIELD} characters, all of them visible"
        for name, value in values.items()
        if len(value) > MAX_FIELD or not _is_plain(value)
    ]
    since, until = (read_day(values[name], name, faults) for name in ("since", "until"))
    if since is not None and until is not None and since > until:
        faults.append("from: the earlier day comes first")
    chosen = ""
    if choice is not None:
        chosen = query.get(choice.name, "") or next(iter(choice.options))
        if chosen not in choice.options:
            faults.append(f"{choice.label.lower()}: there is no such choice")
    selection = Selection(
        values["chain"] or None,
        values["criteria"] or None,
        datetime.combine(since, time(), UTC) if since else None,
        datetime.combine(until + timedelta(days=1), time(), UTC) if until else None,
    )
    return Asked(values, selection, chosen, faults)


def _is_plain(text: str) -> bool:
    """Whether it can be looked for: a lone half of a character can be in no database."""
    return legible(text) == text and text.encode(errors="ignore").decode() == text


# --- trends --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Judge:
    """Who gave the totals of a line, with the mark that it has in the picture."""

    number: int
    mark: Markup
    fingerprint: str
    criteria: str | None
    count: int


@dataclass(frozen=True, slots=True)
class TrendRow:
    """A point of the picture in the table beside it; `is_break` where its judge is not the one of the row before."""

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
    """Points as a picture, the judges in it and a table."""
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
    """A band, its share of all totals, and where its sessions are listed: there days are those on which they ended."""

    name: str
    range: str
    count: int
    share: float
    sessions: str


@dataclass(frozen=True, slots=True)
class CategoryRow:
    """
    Averages of a category: over all totals, and in each band, null where none of its scores states it.

    Args:
        most: What it could have been; null where nobody here knows the criteria.
    """

    category: str
    average: float
    count: int
    most: float | None
    by_band: list[float | None]


@dataclass(frozen=True, slots=True)
class DistributionView:
    """The page of the distribution; categories are by criteria, as no two of these can be compared."""

    picture: Markup
    bands: list[BandRow]
    categories: list[tuple[str, list[CategoryRow]]]
    count: int


def distribution_view(
    found: Distribution, registry: Iterable[Criteria], asked: Asked, title: str, *, is_default: bool
) -> DistributionView:
    """
    Bands as a picture and a table, the highest first.

    Args:
        is_default: Whether the bands are those of the badges, and have their colours.
    """
    count = sum(band.count for band in found.bands) + found.between_bands
    bands = [_band_row(band, count, asked, is_default=is_default) for band in reversed(found.bands)]
    most = max((row.count for row in bands), default=0)
    tones: list[Tone] = [_tone(band) if is_default else "plain" for band in reversed(found.bands)]
    bars = [
        Bar(f"{row.name}, {row.range}", row.count, _counted(row), most, tone)
        for row, tone in zip(bands, tones, strict=True)
    ]
    picture = bar_picture(bars if count else [], title, "bands")
    return DistributionView(picture, bands, _categories(found, registry), count)


def _band_row(band: BandCount, count: int, asked: Asked, *, is_default: bool) -> BandRow:
    kept = {name: asked.values[name] for name in FIELDS}
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
    """Highest values by category, in the order of the criteria: points, or 1 in a rubric."""
    return {**criteria.max_points, **{item.id: 1.0 for item in criteria.rubric}}


def _without_impossible(row: CategoryRow) -> CategoryRow:
    """Criteria of that name once had more points to give: a share of today's would be none."""
    return replace(row, most=None) if row.most is not None and row.average > row.most else row


def _in_order(rows: Iterable[CategoryRow], known: Mapping[str, float]) -> list[CategoryRow]:
    places = {name: place for place, name in enumerate(known)}
    return sorted(rows, key=lambda row: (places.get(row.category, len(places)), row.category))


# --- failure tags --------------------------------------------------------------------------------------


def meanings(registry: Iterable[Criteria]) -> dict[str, str]:
    """What failure tags mean, out of the criteria that know them."""
    return {tag: meaning for criteria in registry for tag, meaning in criteria.failure_vocabulary.items()}

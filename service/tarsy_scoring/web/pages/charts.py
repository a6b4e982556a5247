"""
Geometry of the charts, which `charts.html` draws as inline SVG.

Each page with a chart has a table with the same numbers.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import pairwise
from typing import Any, Generic, Protocol, TypeVar

from markupsafe import Markup

from tarsy_scoring.analytics.analytics import TrendPoint
from tarsy_scoring.analytics.chain_averages import ChainStep
from tarsy_scoring.web.pages.legible import legible
from tarsy_scoring.web.pages.rendering import templates
from tarsy_scoring.web.pages.words import Tone

LETTER = 6.4  # upper estimate of the width of a small letter, in units of the picture
WIDTH = 720.0  # of every picture

_MOST_DATES = 8
_STEPS_DAYS = (1, 2, 7, 14, 28, 91, 182, 364)  # between two dates below the picture
_WIDEST_BAR = 14.0
_LONGEST_LABEL = 28
_BAR_ROOM = 240.0


def draw(picture: str, **values: Any) -> Markup:
    """Render a picture with its macro in `charts.html`, which escapes every value."""
    macro = getattr(templates().get_template("charts.html").module, picture)
    drawn: Markup = macro(**values)
    return drawn


# --- trends --------------------------------------------------------------------------------------------


class Day(Protocol):
    """Average total of a day, or of some days from this one on, under one judge."""

    @property
    def day(self) -> date: ...
    @property
    def judge_fingerprint(self) -> str | None: ...
    @property
    def average(self) -> float: ...


D = TypeVar("D", bound=Day)


@dataclass(frozen=True, slots=True)
class Run(Generic[D]):
    """Consecutive days of one judge: no day between them has scores of other judges only."""

    judge: str
    days: tuple[D, ...]


def judge_of(day: Day) -> str:
    """The fingerprint; scores without one count as those of a judge of their own."""
    return day.judge_fingerprint or "unknown"


def number_judges(days: Iterable[Day]) -> dict[str, int]:
    """A number for each fingerprint, from 1 in the order of their first days."""
    first: dict[str, date] = {}
    for day in days:
        first[judge_of(day)] = min(day.day, first.get(judge_of(day), day.day))
    return {name: n for n, name in enumerate(sorted(first, key=lambda name: (first[name], name)), 1)}


def split_into_runs(days: Iterable[D]) -> list[Run[D]]:
    """
    Split days into the lines of a picture, sorted by first day.

    A line has one judge, and ends where a day has scores of other judges only. Days without any score
    do not end a line, because no other judge was at work.
    """
    by_judge: defaultdict[str, list[D]] = defaultdict(list)
    for day in sorted(days, key=lambda d: d.day):
        by_judge[judge_of(day)].append(day)
    all_days = sorted({d.day for of_one in by_judge.values() for d in of_one})
    runs = []
    for judge, of_one in by_judge.items():
        started = 0
        for n in range(1, len(of_one) + 1):
            if n == len(of_one) or _lies_between(all_days, of_one[n - 1].day, of_one[n].day):
                runs.append(Run(judge, tuple(of_one[started:n])))
                started = n
    return sorted(runs, key=lambda r: (r.days[0].day, r.judge))


def _lies_between(days: Sequence[date], first: date, last: date) -> bool:
    return bisect_left(days, last) > bisect_right(days, first)


def trend_picture(days: Sequence[TrendPoint], title: str) -> Markup:
    """
    Draw average totals per day with the range from lowest to highest, and bars with the number of scores.

    A dashed line and a word mark each day on which a judge begins, except the first day of the picture.
    `charts.js` shows the values of the nearest day.

    Args:
        days: In any order, each day and judge once. Without days the result is empty.
    """
    if not days:
        return Markup("")
    numbers = number_judges(days)
    runs = split_into_runs(days)
    scale = _Scale(min(d.day for d in days), max(d.day for d in days))
    return draw(
        "trend",
        title=title,
        description=describe_trend(days),
        scale=scale,
        runs=runs,
        numbers=numbers,
        bars=_count_bars(days, numbers, scale),
        most=_most_a_day(days),
        dates=_dates(scale),
        beginnings=_beginnings(runs, numbers, scale),
        stops=_day_stops(days, numbers, scale),
    )


@dataclass(frozen=True, slots=True)
class Stop:
    """
    A part of a picture that the pointer or the keyboard chooses, `at` its middle, and the values shown there.
    """

    left: float
    at: float
    right: float
    text: str

    @property
    def width(self) -> float:
        return self.right - self.left


def _day_stops(days: Iterable[TrendPoint], numbers: Mapping[str, int], scale: "_Scale") -> list[Stop]:
    """
    One stop per day with scores; together they fill the width, so that each place belongs to its nearest day.
    """
    by_day: defaultdict[date, list[TrendPoint]] = defaultdict(list)
    for point in sorted(days, key=lambda d: (d.day, numbers[judge_of(d)])):
        by_day[point.day].append(point)
    middles = [scale.middle(day) for day in by_day]
    borders = [scale.left, *((one + next_) / 2 for one, next_ in pairwise(middles)), scale.right]
    return [
        Stop(borders[n], middles[n], borders[n + 1], _hint(day, points, numbers))
        for n, (day, points) in enumerate(by_day.items())
    ]


def _hint(day: date, points: Iterable[TrendPoint], numbers: Mapping[str, int]) -> str:
    """The numbers of a day, a line per judge."""
    of_judges = (
        f"judge {numbers[judge_of(p)]}: average {p.average:.1f}, {p.minimum:.0f} to {p.maximum:.0f}, "
        f"{_counted(p.count, 'score')}"
        for p in points
    )
    return "\n".join([f"{day:%a} {day}", *of_judges])


def describe_trend(days: Sequence[TrendPoint]) -> str:
    """The trend in sentences, for screen readers."""
    runs = split_into_runs(days)
    numbers = number_judges(days)
    count = sum(d.count for d in days)
    sentences = [f"{_counted(count, 'score')} from {runs[0].days[0].day} to {max(d.day for d in days)}."]
    for run in runs:
        who, first, last = f"Judge {numbers[run.judge]}", run.days[0], run.days[-1]
        if first is last:
            sentences.append(f"{who}: on average {first.average:.0f} on {first.day}.")
        else:
            sentences.append(
                f"{who}: on average {first.average:.0f} on {first.day}, {last.average:.0f} on {last.day}; "
                f"between {min(d.minimum for d in run.days):.0f} and {max(d.maximum for d in run.days):.0f}."
            )
    return " ".join(sentences)


class _Scale:
    """Positions: each day has an equal share of the width and is drawn in its middle; totals are heights."""

    left, right = 44.0, 708.0
    top, bottom = 30.0, 216.0
    counts_top, counts_bottom = 236.0, 270.0

    def __init__(self, first: date, last: date) -> None:
        self.first, self.last = first, last
        self.days = (last - first).days + 1
        self.slot = (self.right - self.left) / self.days
        self.point_size = min(max(self.slot / 3, 1.6), 4.0)

    def begin(self, day: date) -> float:
        return self.left + (day - self.first).days * self.slot

    def middle(self, day: date) -> float:
        return self.begin(day) + self.slot / 2

    def height(self, total: float) -> float:
        return self.bottom - (self.bottom - self.top) * min(max(total, 0.0), 100.0) / 100

    def places(self, days: Iterable[TrendPoint], total: str) -> list[tuple[float, float]]:
        """Positions of `average`, `minimum` or `maximum` on each of these days."""
        return [(self.middle(d.day), self.height(getattr(d, total))) for d in days]


def _dates(scale: _Scale) -> list[tuple[float, str]]:
    """Positions and texts of the dates below the picture."""
    fitting = (s for s in _STEPS_DAYS if scale.days <= s * _MOST_DATES)
    step = next(fitting, -(-scale.days // _MOST_DATES))
    form = "%Y-%m-%d" if scale.first.year != scale.last.year else "%d %b"
    dates = []
    for n in range(0, scale.days, step):
        day = scale.first + timedelta(days=n)
        text = day.strftime(form)
        half = len(text) * LETTER / 2
        dates.append((min(max(scale.middle(day), half), WIDTH - half), text))
    return dates


def _most_a_day(days: Iterable[TrendPoint]) -> int:
    per_day: defaultdict[date, int] = defaultdict(int)
    for day in days:
        per_day[day.day] += day.count
    return max(per_day.values())


def _count_bars(
    days: Iterable[TrendPoint], numbers: Mapping[str, int], scale: _Scale
) -> list[dict[str, Any]]:
    """Bars with the number of scores, stacked per day."""
    days = list(days)
    unit = (scale.counts_bottom - scale.counts_top) / _most_a_day(days)
    width = min(scale.slot * 0.8, _WIDEST_BAR)
    top: defaultdict[date, float] = defaultdict(lambda: scale.counts_bottom)
    bars = []
    for day in sorted(days, key=lambda d: (d.day, numbers[judge_of(d)])):
        height = unit * day.count
        top[day.day] -= height
        x = scale.middle(day.day) - width / 2
        number = numbers[judge_of(day)]
        bars.append(
            {"day": day, "number": number, "x": x, "y": top[day.day], "width": width, "height": height}
        )
    return bars


def _beginnings(
    runs: Sequence[Run[TrendPoint]], numbers: Mapping[str, int], scale: _Scale
) -> list[dict[str, Any]]:
    """
    Marks of the days on which judges begin.

    `line` is the place of the dashed line, None on the first day of the picture. `text` stands at `x`; it is
    empty where the text before leaves no room.
    """
    by_day: dict[date, list[int]] = {}
    for run in runs:
        by_day.setdefault(run.days[0].day, []).append(numbers[run.judge])
    beginnings, free_from = [], 0.0
    for day, judges in by_day.items():
        line = scale.begin(day) if day > scale.first else None
        text = ("judge " if line is None else "new judge: ") + ", ".join(map(str, sorted(judges)))
        width = len(text) * LETTER
        x = scale.begin(day) + 4 if line is None else min(line + 4, WIDTH - width)
        has_room = x >= free_from
        beginnings.append({"line": line, "text": text if has_room else "", "x": x})
        if has_room:
            free_from = x + width + LETTER
    return beginnings


# --- small trends of chains ----------------------------------------------------------------------------

_SPARK_WIDTH, _SPARK_TOP, _SPARK_BOTTOM, _SPARK_EDGE = 120.0, 2.0, 22.0, 3.0


def spark_picture(steps: Sequence[ChainStep], first: date, last: date) -> Markup:
    """
    Draw the trend of a chain between two days, without axes. Without steps the result is empty.

    Args:
        steps: In any order, each day and judge once.
    """
    if not steps:
        return Markup("")
    runs = split_into_runs(steps)
    numbers = number_judges(steps)
    unit = (_SPARK_WIDTH - 2 * _SPARK_EDGE) / max((last - first).days, 1)

    def place(step: ChainStep) -> tuple[float, float]:
        height = (_SPARK_BOTTOM - _SPARK_TOP) * step.average / 100
        return _SPARK_EDGE + unit * (step.day - first).days, _SPARK_BOTTOM - height

    oldest, newest = runs[0].days[0], max(steps, key=lambda step: step.day)
    label = f"average {oldest.average:.0f} from {oldest.day} on, {newest.average:.0f} from {newest.day} on"
    return draw(
        "spark", label=label, runs=[(numbers[run.judge], [place(step) for step in run.days]) for run in runs]
    )


# --- bars ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bar:
    """
    A row of a bar chart: the share of the track that it fills, 0-1, and a text after it such as "12 (40 %)".
    """

    label: str
    share: float
    text: str
    tone: Tone = "plain"


def bar_picture(bars: Sequence[Bar], title: str) -> Markup:
    """Draw horizontal bars. Without bars the result is empty."""
    if not bars:
        return Markup("")
    rows = [(shorten(bar.label), bar) for bar in bars]
    description = "; ".join(f"{label}: {bar.text}" for label, bar in rows) + "."
    left = 1.1 * LETTER * max(len(label) for label, _ in rows) + 10
    width = left + _BAR_ROOM + 1.1 * LETTER * max(len(bar.text) for bar in bars) + 10
    return draw(
        "bars", title=title, description=description, rows=rows, left=left, room=_BAR_ROOM, width=width
    )


def shorten(label: str) -> str:
    """A label that fits beside its bar: one line, shortened at its end."""
    words = " ".join(legible(label).split())
    return words if len(words) <= _LONGEST_LABEL else words[: _LONGEST_LABEL - 1] + "…"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"

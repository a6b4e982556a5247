"""
Charts with totals per day, which `charts.html` draws as inline SVG without scripts.

Each page with a chart has a table with the same numbers, and a chart shows them as tooltips.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, TypeVar

from markupsafe import Markup

from tarsy_scoring.analytics.analytics import TrendPoint
from tarsy_scoring.analytics.chain_averages import ChainStep
from tarsy_scoring.web.pages.rendering import templates

LEFT, RIGHT, TOP, BOTTOM = 44.0, 708.0, 14.0, 216.0  # the totals
COUNTS_TOP, COUNTS_BOTTOM = 232.0, 264.0  # the bars that count scores
SPARK_WIDTH, SPARK_HEIGHT, SPARK_EDGE = 120.0, 24.0, 3.0
MOST_DATES = 8
WIDEST_BAR = 14.0


D = TypeVar("D", TrendPoint, ChainStep)


def by_judge(days: Iterable[D]) -> dict[str, list[D]]:
    """
    Sort days by judge, and judges by first day. A line must never join two judges.

    Scores without a fingerprint count as a separate judge.
    """
    judges: dict[str, list[D]] = {}
    for day in sorted(days, key=lambda d: (d.day, d.judge_fingerprint or "")):
        judges.setdefault(day.judge_fingerprint or "unknown", []).append(day)
    return judges


@dataclass(frozen=True, slots=True)
class JudgeLine:
    """
    The days that one judge scored.

    Args:
        number: Chooses colour and dashes.
        begin: Place where this judge begins; None: with the picture.
        dots: Place, height and tooltip for each day.
        area: Corners around the range from lowest to highest totals.
    """

    number: int
    begin: float | None
    dots: Sequence[tuple[float, float, str]]
    area: Sequence[tuple[float, float]]


def trend_picture(points: Sequence[TrendPoint], title: str) -> Markup:
    """
    Draw average totals per day with the range from lowest to highest, and bars that count scores.

    A dashed line marks the day on which another judge begins. Without points the result is empty.
    """
    if not points:
        return Markup("")
    first, last = min(p.day for p in points), max(p.day for p in points)
    slot = (RIGHT - LEFT) / ((last - first).days + 1)

    def place(day: date) -> float:
        return LEFT + ((day - first).days + 0.5) * slot

    def height(total: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * total / 100

    counts = Counter[date]()
    for point in points:
        counts[point.day] += point.count
    return _draw(
        "trend",
        title=title,
        guides=[(height(total), total) for total in (0, 50, 75, 100)],
        dates=[(place(day), f"{day:%d %b}") for day in _some_days(first, last)],
        lines=[_line(n, own, place, height) for n, own in enumerate(by_judge(points).values(), 1)],
        bars=[
            (place(day), count / max(counts.values()), f"{day}: {count:,}") for day, count in counts.items()
        ],
        bar_width=min(slot * 0.8, WIDEST_BAR),
        most=max(counts.values()),
    )


def _line(
    number: int, days: Sequence[TrendPoint], place: Callable[[date], float], height: Callable[[float], float]
) -> JudgeLine:
    dots = [(place(d.day), height(d.average), _tooltip(number, d)) for d in days]
    highest = [(place(d.day), height(d.maximum)) for d in days]
    lowest = [(place(d.day), height(d.minimum)) for d in reversed(days)]
    return JudgeLine(number, dots[0][0] if number > 1 else None, dots, [*highest, *lowest])


def _tooltip(number: int, day: TrendPoint) -> str:
    scores = f"{day.count:,} score{'' if day.count == 1 else 's'}"
    return f"{day.day}, judge {number}: average {day.average:.1f}, {day.minimum} to {day.maximum}, {scores}"


def _some_days(first: date, last: date) -> list[date]:
    days = (last - first).days + 1
    return [first + timedelta(days=n) for n in range(0, days, -(-days // MOST_DATES))]


def spark_picture(steps: Sequence[ChainStep], first: date, last: date) -> Markup:
    """Draw how a chain went between two days, without axes. Without steps the result is empty."""
    if not steps:
        return Markup("")
    unit = (SPARK_WIDTH - 2 * SPARK_EDGE) / max((last - first).days, 1)
    judges = by_judge(steps).values()
    lines = [
        [(SPARK_EDGE + unit * (s.day - first).days, SPARK_HEIGHT - 2 - s.average / 5) for s in own]
        for own in judges
    ]
    oldest, newest = min(steps, key=lambda s: s.day), max(steps, key=lambda s: s.day)
    label = f"average {oldest.average:.0f} from {oldest.day} on, {newest.average:.0f} from {newest.day} on"
    return _draw("spark", label=label, lines=lines)


def _draw(picture: str, **values: Any) -> Markup:
    """Render a picture with the macro in `charts.html`, which escapes every value."""
    macro = getattr(templates().get_template("charts.html").module, picture)
    drawn: Markup = macro(**values)
    return drawn


# --- the table beside the picture ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrendView:
    """
    Totals per day as a picture and a table.

    Args:
        judges: `number`, `fingerprint`, `criteria`, `count` and first day `since` per judge.
        rows: Judge number and point, by day.
    """

    picture: Markup
    judges: Sequence[Mapping[str, Any]]
    rows: Sequence[tuple[int, TrendPoint]]
    count: int


def trend_view(points: Sequence[TrendPoint], title: str) -> TrendView:
    """Points as a picture, a list and a table."""
    judges: list[Mapping[str, Any]] = []
    rows: list[tuple[int, TrendPoint]] = []
    for number, (fingerprint, own) in enumerate(by_judge(points).items(), 1):
        rows += [(number, point) for point in own]
        count = sum(point.count for point in own)
        about = {"number": number, "fingerprint": fingerprint, "criteria": own[-1].criteria}
        judges.append(about | {"count": count, "since": own[0].day})
    rows.sort(key=lambda row: (row[1].day, row[0]))
    return TrendView(trend_picture(points, title), judges, rows, sum(point.count for point in points))

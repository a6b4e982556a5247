"""
Charts with totals per day, which `charts.html` draws as inline SVG without scripts.

Each page with a chart has a table with the same numbers, and a chart shows them as tooltips.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from markupsafe import Markup

from tarsy_scoring.analytics.analytics import TrendPoint
from tarsy_scoring.scores.bands import Band
from tarsy_scoring.web.pages.rendering import templates

LEFT, RIGHT, TOP, BOTTOM = 44.0, 708.0, 14.0, 216.0  # the totals
MOST_DATES = 8
WIDEST_BAR = 14.0


@dataclass(frozen=True, slots=True)
class TrendView:
    """
    Totals per day as a picture and a table.

    Args:
        judges: Days by fingerprint, in the order in which the judges begin.
        rows: Judge number and point, by day.
    """

    picture: Markup
    judges: dict[str, list[TrendPoint]]
    rows: Sequence[tuple[int, TrendPoint]]
    count: int


def trend_view(
    points: Sequence[TrendPoint], title: str, bands: Callable[[str | None], Sequence[Band]]
) -> TrendView:
    """
    Points as a picture, judges and a table. A line never joins two judges.

    Guides mark the edges of the bands where all points have one criteria.

    Scores without a fingerprint count as a separate judge.
    """
    judges = defaultdict[str, list[TrendPoint]](list)
    for point in sorted(points, key=lambda p: (p.day, p.judge_fingerprint or "")):
        judges[point.judge_fingerprint or "unknown"].append(point)
    rows = [(number, point) for number, own in enumerate(judges.values(), 1) for point in own]
    rows.sort(key=lambda row: (row[1].day, row[0]))
    picture = _draw(list(judges.values()), title, bands) if points else Markup("")
    return TrendView(picture, judges, rows, sum(point.count for point in points))


def _draw(
    judges: Sequence[Sequence[TrendPoint]], title: str, bands: Callable[[str | None], Sequence[Band]]
) -> Markup:
    """
    Draw average totals per day with the range from lowest to highest, and bars that count scores.

    A dashed line marks the day on which another judge begins.
    """
    points = [point for own in judges for point in own]
    first, last = min(p.day for p in points), max(p.day for p in points)
    days = (last - first).days + 1
    slot = (RIGHT - LEFT) / days

    def place(day: date) -> float:
        return LEFT + ((day - first).days + 0.5) * slot

    counts = Counter[date]()
    for point in points:
        counts[point.day] += point.count
    most = max(counts.values())
    drawn: Markup = (
        templates()
        .get_template("charts.html")
        .module.trend(  # type: ignore[attr-defined]
            title=title,
            guides=[(_height(total), total) for total in _edges(points, bands)],
            dates=[(place(day), f"{day:%d %b}") for day in _some_days(first, days)],
            lines=[_line(number, own, place) for number, own in enumerate(judges, 1)],
            bars=[(place(day), count / most, f"{day}: {count:,}") for day, count in counts.items()],
            bar_width=min(slot * 0.8, WIDEST_BAR),
            most=most,
        )
    )
    return drawn


def _edges(points: Sequence[TrendPoint], bands: Callable[[str | None], Sequence[Band]]) -> list[int]:
    names = {point.criteria for point in points}
    lowest = [band.low for band in bands(names.pop())] if len(names) == 1 else [0]
    return [*lowest, 100]


def _some_days(first: date, days: int) -> list[date]:
    return [first + timedelta(days=n) for n in range(0, days, -(-days // MOST_DATES))]


def _height(total: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * total / 100


def _line(number: int, days: Sequence[TrendPoint], place: Callable[[date], float]) -> dict[str, Any]:
    """A judge's dots with tooltips, and the corners around the range from lowest to highest totals."""
    return {
        "number": number,
        "dots": [(place(d.day), _height(d.average), _tooltip(number, d)) for d in days],
        "area": [
            *((place(d.day), _height(d.maximum)) for d in days),
            *((place(d.day), _height(d.minimum)) for d in reversed(days)),
        ],
    }


def _tooltip(number: int, day: TrendPoint) -> str:
    scores = f"{day.count:,} score{'' if day.count == 1 else 's'}"
    return f"{day.day}, judge {number}: average {day.average:.1f}, {day.minimum} to {day.maximum}, {scores}"

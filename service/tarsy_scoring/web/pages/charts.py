"""
Pictures of numbers as inline SVG.

Colours come from CSS classes (`static/charts.css`): the content security policy forbids inline styles, and a
picture follows the light or dark scheme of its page. Series differ by shape as well as by colour. The page
has a table with the same numbers.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Literal

from markupsafe import Markup

from tarsy_scoring.web.pages.markdown import legible

Tone = Literal["weak", "fair", "good", "plain"]

LOOKS = 6  # number of colours; the seventh line has the first colour again
GUIDES = (0, 50, 75, 100)  # borders of the bands of badges
LETTER = 6.4  # upper estimate of the width of a small letter, in units of the picture

_LEFT, _RIGHT, _WIDTH = 44.0, 708.0, 720.0
_TOP, _BOTTOM = 30.0, 216.0
_COUNTS_TOP, _COUNTS_BOTTOM = 236.0, 270.0
_HEIGHT = 292.0
_MOST_DATES = 8
_STEPS_DAYS = (1, 2, 7, 14, 28, 91, 182, 364)
_WIDEST_BAR = 14.0

_ROW, _BAR = 30.0, 16.0
_LABEL_WIDTH, _VALUE_WIDTH = 190.0, 130.0
_LONGEST_LABEL = 28


# --- trends --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Day:
    """Totals of one UTC day under one fingerprint; 0-100, `count` at least 1."""

    day: date
    fingerprint: str
    average: float
    lowest: float
    highest: float
    count: int


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive days of one fingerprint: no day between them has scores of other judges only."""

    fingerprint: str
    days: tuple[Day, ...]


def number_judges(days: Iterable[Day]) -> dict[str, int]:
    """A number for each fingerprint, from 1 in the order of their first days."""
    first: dict[str, date] = {}
    for day in days:
        first[day.fingerprint] = min(day.day, first.get(day.fingerprint, day.day))
    return {name: n for n, name in enumerate(sorted(first, key=lambda name: (first[name], name)), 1)}


def split_into_runs(days: Iterable[Day]) -> list[Run]:
    """
    Split days into the lines of a picture, sorted by first day.

    A line has one fingerprint, and ends where a day has scores of other judges only. Days without any score
    do not end a line, because no other judge was at work.
    """
    by_fingerprint: defaultdict[str, list[Day]] = defaultdict(list)
    for day in sorted(days, key=lambda d: d.day):
        by_fingerprint[day.fingerprint].append(day)
    all_days = sorted({d.day for of_one in by_fingerprint.values() for d in of_one})
    runs = []
    for fingerprint, of_one in by_fingerprint.items():
        started = 0
        for n in range(1, len(of_one) + 1):
            if n == len(of_one) or _lies_between(all_days, of_one[n - 1].day, of_one[n].day):
                runs.append(Run(fingerprint, tuple(of_one[started:n])))
                started = n
    return sorted(runs, key=lambda r: (r.days[0].day, r.fingerprint))


def _lies_between(days: Sequence[date], first: date, last: date) -> bool:
    return bisect_left(days, last) > bisect_right(days, first)


def trend_picture(days: Sequence[Day], title: str, name: str = "trend") -> Markup:
    """
    Draw average totals per day with the range from lowest to highest, and bars with the number of scores.

    A dashed line and a word mark each day on which a judge begins, except the first day of the picture.

    Args:
        days: In any order, each (day, fingerprint) once. Without days the result is empty.
        name: Prefix of the ids in the picture; unique on the page.
    """
    if not days:
        return Markup("")
    numbers = number_judges(days)
    runs = split_into_runs(days)
    scale = _Scale(min(d.day for d in days), max(d.day for d in days))
    parts = [*_guides(), *_dates(scale), *_counts(days, numbers, scale)]
    for run in runs:
        parts += _run(run, numbers[run.fingerprint], scale)
    parts += _beginnings(runs, numbers, scale)
    return picture_of(name, title, describe_trend(days), _HEIGHT, parts)


def describe_trend(days: Sequence[Day]) -> str:
    """The trend in sentences, for screen readers."""
    runs = split_into_runs(days)
    numbers = number_judges(days)
    count = sum(d.count for d in days)
    sentences = [f"{_some(count, 'score')} from {runs[0].days[0].day} to {max(d.day for d in days)}."]
    for run in runs:
        who, first, last = f"Judge {numbers[run.fingerprint]}", run.days[0], run.days[-1]
        if first is last:
            sentences.append(f"{who}: on average {first.average:.0f} on {first.day}.")
        else:
            sentences.append(
                f"{who}: on average {first.average:.0f} on {first.day}, {last.average:.0f} on {last.day}; "
                f"between {min(d.lowest for d in run.days):.0f} and {max(d.highest for d in run.days):.0f}."
            )
    return " ".join(sentences)


class _Scale:
    """Horizontal positions: each day has an equal share of the width and is drawn in its middle."""

    def __init__(self, first: date, last: date) -> None:
        self.first, self.last = first, last
        self.days = (last - first).days + 1
        self.slot = (_RIGHT - _LEFT) / self.days

    def begin(self, day: date) -> float:
        return _LEFT + (day - self.first).days * self.slot

    def middle(self, day: date) -> float:
        return self.begin(day) + self.slot / 2


def _height(total: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * min(max(total, 0.0), 100.0) / 100


def _guides() -> list[Markup]:
    parts = []
    for total in GUIDES:
        y = _height(total)
        parts.append(tag("line", "guide", x1=_LEFT, x2=_RIGHT, y1=y, y2=y))
        parts.append(words_at(total, "scale end", _LEFT - 6, y + 4))
    return parts


def _dates(scale: _Scale) -> list[Markup]:
    fitting = (s for s in _STEPS_DAYS if scale.days <= s * _MOST_DATES)
    step = next(fitting, -(-scale.days // _MOST_DATES))
    form = "%Y-%m-%d" if scale.first.year != scale.last.year else "%d %b"
    parts = []
    for n in range(0, scale.days, step):
        day = scale.first + timedelta(days=n)
        text = day.strftime(form)
        half = len(text) * LETTER / 2
        x = min(max(scale.middle(day), half), _WIDTH - half)
        parts.append(words_at(text, "scale middle", x, _HEIGHT - 6))
    return parts


def _counts(days: Sequence[Day], numbers: Mapping[str, int], scale: _Scale) -> list[Markup]:
    """Bars with the number of scores, stacked per day."""
    per_day: defaultdict[date, list[Day]] = defaultdict(list)
    for day in days:
        per_day[day.day].append(day)
    most = max(sum(d.count for d in of_day) for of_day in per_day.values())
    width = min(scale.slot * 0.8, _WIDEST_BAR)
    parts = [words_at(most, "scale end", _LEFT - 6, _COUNTS_TOP + 8)]
    parts.append(words_at("scores", "scale end", _LEFT - 6, _COUNTS_BOTTOM))
    parts.append(tag("line", "guide", x1=_LEFT, x2=_RIGHT, y1=_COUNTS_BOTTOM, y2=_COUNTS_BOTTOM))
    for of_day in per_day.values():
        y = _COUNTS_BOTTOM
        for day in sorted(of_day, key=lambda d: numbers[d.fingerprint]):
            height = (_COUNTS_BOTTOM - _COUNTS_TOP) * day.count / most
            y -= height
            x = scale.middle(day.day) - width / 2
            look = f"count {_look(numbers[day.fingerprint])}"
            parts.append(tag("rect", look, _hint(day, numbers), x=x, y=y, width=width, height=height))
    return parts


def _run(run: Run, number: int, scale: _Scale) -> list[Markup]:
    look = _look(number)
    at = [(scale.middle(d.day), d) for d in run.days]
    upper = [(x, _height(d.highest)) for x, d in at]
    lower = [(x, _height(d.lowest)) for x, d in reversed(at)]
    if len(at) == 1:  # the area of a single day would have no width
        parts = [tag("line", f"whisker {look}", x1=at[0][0], x2=at[0][0], y1=upper[0][1], y2=lower[0][1])]
    else:
        parts = [
            tag("polygon", f"range {look}", points=_points(upper + lower)),
            tag("polyline", f"average {look}", points=_points((x, _height(d.average)) for x, d in at)),
        ]
    size = min(max(scale.slot / 3, 1.6), 4.0)
    numbers = {run.fingerprint: number}
    parts += [_mark(number, x, _height(d.average), size, _hint(d, numbers)) for x, d in at]
    return parts


def _beginnings(runs: Sequence[Run], numbers: Mapping[str, int], scale: _Scale) -> list[Markup]:
    """A dashed line where each judge but the first begins, with its number where there is room."""
    by_day: dict[date, list[int]] = {}
    for run in runs:
        by_day.setdefault(run.days[0].day, []).append(numbers[run.fingerprint])
    parts, free_from = list[Markup](), 0.0
    for day, judges in by_day.items():
        x = scale.begin(day)
        is_break = day > scale.first
        text = ("new judge: " if is_break else "judge ") + ", ".join(map(str, sorted(judges)))
        if is_break:
            parts.append(tag("line", "break", x1=x, x2=x, y1=_TOP - 18, y2=_COUNTS_BOTTOM))
        width = len(text) * LETTER
        begin = min(x + 4, _WIDTH - width) if is_break else x + 4
        if begin >= free_from:
            parts.append(words_at(text, "break-word", begin, _TOP - 10))
            free_from = begin + width + LETTER
    return parts


def _hint(day: Day, numbers: Mapping[str, int]) -> Markup:
    """Tooltip of a day."""
    totals = f"average {day.average:.1f}, {day.lowest:.0f} to {day.highest:.0f}, {_some(day.count, 'score')}"
    return tag("title", None, f"{day.day}, judge {numbers[day.fingerprint]}: {totals}")


def judge_mark(number: int) -> Markup:
    """The shape and colour of a judge's line, for the list of judges."""
    mark = _mark(number, 6, 6, 4)
    return tag("svg", "mark", mark, viewBox="0 0 12 12", width=12, height=12, aria_hidden="true", focusable="false")


def _mark(number: int, x: float, y: float, size: float, *inside: Markup) -> Markup:
    look = f"point {_look(number)}"
    far, near = size * 1.25, size * 0.9
    match (number - 1) % 4:
        case 0:
            return tag("circle", look, *inside, cx=x, cy=y, r=size)
        case 1:
            return tag("rect", look, *inside, x=x - near, y=y - near, width=2 * near, height=2 * near)
        case 2:
            corners = [(x, y - far), (x + far, y), (x, y + far), (x - far, y)]
        case _:
            corners = [(x, y - far), (x + far, y + near), (x - far, y + near)]
    return tag("polygon", look, *inside, points=_points(corners))


def _look(number: int) -> str:
    return f"look-{(number - 1) % LOOKS + 1}"


# --- bars ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bar:
    """
    One row of a bar chart.

    Args:
        value: From 0 to `most`.
        text: Text after the bar, e.g. "12 (40 %)".
    """

    label: str
    value: float
    text: str
    most: float
    tone: Tone = "plain"


def bar_picture(bars: Sequence[Bar], title: str, name: str) -> Markup:
    """
    Draw horizontal bars that fill their share of `most`. Without bars the result is empty.

    Args:
        name: Prefix of the ids in the picture; unique on the page.
    """
    if not bars:
        return Markup("")
    room = _WIDTH - _LABEL_WIDTH - _VALUE_WIDTH
    parts = list[Markup]()
    for n, bar in enumerate(bars):
        y = n * _ROW + (_ROW - _BAR) / 2
        length = room * min(max(bar.value / bar.most, 0.0), 1.0) if bar.most > 0 else 0.0
        parts += [
            words_at(shorten(bar.label), "label end", _LABEL_WIDTH - 10, y + 12),
            tag("rect", "track", x=_LABEL_WIDTH, y=y, width=room, height=_BAR, rx=2),
            tag("rect", f"filled {bar.tone}", x=_LABEL_WIDTH, y=y, width=length, height=_BAR, rx=2),
            words_at(bar.text, "value", _LABEL_WIDTH + room + 10, y + 12),
        ]
    description = "; ".join(f"{shorten(bar.label)}: {bar.text}" for bar in bars) + "."
    return picture_of(name, title, description, len(bars) * _ROW, parts)


def shorten(label: str) -> str:
    """A label that fits beside its bar: one line, shortened at its end."""
    words = " ".join(legible(label).split())
    return words if len(words) <= _LONGEST_LABEL else words[: _LONGEST_LABEL - 1] + "…"


# --- SVG -----------------------------------------------------------------------------------------------


def picture_of(name: str, title: str, description: str, height: float, parts: Iterable[Markup]) -> Markup:
    """A picture, 720 units wide, with a title and a description for screen readers."""
    heading = (
        tag("title", None, title, id=f"{name}-title"),
        tag("desc", None, description, id=f"{name}-description"),
    )
    return tag(
        "svg",
        "chart",
        *heading,
        *parts,
        viewBox=f"0 0 {_number(_WIDTH)} {_number(height)}",
        role="img",
        aria_labelledby=f"{name}-title",
        aria_describedby=f"{name}-description",
        focusable="false",
    )


def words_at(text: object, look: str, x: float, y: float) -> Markup:
    """Escaped text in a picture."""
    return tag("text", look, str(text), x=x, y=y)


def tag(name: str, look: str | None, *inside: str, **attributes: str | float) -> Markup:
    """An element. Text that is not `Markup` is escaped, also in attributes. `aria_x` becomes `aria-x`."""
    written = {"class": look} if look else {}
    written |= {
        key.replace("_", "-"): value if isinstance(value, str) else _number(value) for key, value in attributes.items()
    }
    listed = Markup("").join(Markup(' {}="{}"').format(key, value) for key, value in written.items())
    return Markup("<{0}{1}>{2}</{0}>").format(name, listed, Markup("").join(inside))


def _points(corners: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{_number(x)},{_number(y)}" for x, y in corners)


def _number(value: float) -> str:
    """One decimal: smaller differences are not visible."""
    return f"{value:.1f}".removesuffix(".0")


def _some(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"

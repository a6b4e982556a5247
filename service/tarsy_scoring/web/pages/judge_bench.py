"""
The page of `judge-bench`: one file without scripts and references, to be opened in a browser or attached.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from markupsafe import Markup

from tarsy_scoring.web.pages.charts import draw, shorten
from tarsy_scoring.web.pages.rendering import static_files, templates

_LEFT, _RIGHT = 190.0, 700.0  # of the totals 0 and 100
_DOT = 4.0
_STEP = 9.0  # between two dots that would touch
_MOST_IN_A_STACK = 12  # more are drawn over each other
_GAP = 14.0


@dataclass(frozen=True, slots=True)
class Dot:
    """A session in a lane."""

    x: float
    y: float
    hint: str


@dataclass(frozen=True, slots=True)
class Lane:
    """The sessions of one outcome, as one judge scored them. `look` numbers colour and shape."""

    label: str
    look: int
    dots: Sequence[Dot]
    mean: float | None
    top: float
    bottom: float


def page(document: Mapping[str, Any]) -> str:
    """Render the document of `judge-bench` as HTML."""
    sheets = "\n".join(static_files()[name].content.decode() for name in ("pages.css", "charts.css"))
    digest = base64.b64encode(hashlib.sha256(sheets.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'"
    style = Markup(f"<style>{sheets}</style>")  # noqa: S704  # our own files
    pictures = [
        (criteria, strip_plot(list(combinations), number))
        for number, (criteria, combinations) in enumerate(
            groupby(document["combinations"], lambda c: c["criteria"]), 1
        )
    ]
    combinations = [c | {"wrongly": list(_ranked_wrongly(c))} for c in document["combinations"]]
    values = {**document, "combinations": combinations}
    template = templates().get_template("judge_bench.html")
    return template.render(values, style=style, policy=policy, pictures=pictures)


def strip_plot(combinations: Sequence[Mapping[str, Any]], number: int) -> Markup:
    """
    Draw the total of each session as a dot, in a lane for each provider and outcome.

    Args:
        combinations: Those of one criteria.
        number: Of the picture on its page.
    """
    lanes = list[Lane]()
    top = 8.0
    for one in combinations:
        for look, outcome in enumerate(("right", "wrong"), 1):
            lanes.append(_lane(one, outcome, look, top))
            top = lanes[-1].bottom + _GAP
    return draw(
        "strips",
        name=f"strip-{number}",
        title=f"Totals under {combinations[0]['criteria']}",
        description=" ".join(map(_in_words, combinations)),
        height=top + 12,
        lanes=lanes,
        guides=[(_place(total), total) for total in (0, 25, 50, 75, 100)],
        left=_LEFT,
    )


def _lane(combination: Mapping[str, Any], outcome: str, look: int, top: float) -> Lane:
    sessions = [s for s in combination["sessions"] if s["outcome"] == outcome]
    scored = sorted(
        (s for s in sessions if s["total"] is not None), key=lambda s: (s["total"], s["session_id"])
    )
    levels = _levels([_place(s["total"]) for s in scored])
    bottom = top + _STEP * (max(levels, default=0) + 1)
    dots = [
        Dot(_place(s["total"]), bottom - _STEP * (level + 0.5), f"{s['session_id']}: {s['total']}, {outcome}")
        for s, level in zip(scored, levels, strict=True)
    ]
    without = len(sessions) - len(scored)
    mean = combination[f"mean_{outcome}"]
    unscored = f" ({without} unscored)" if without else ""
    label = shorten(f"{len(sessions)} {outcome}{unscored}, {combination['provider']}")
    return Lane(label, look, dots, None if mean is None else _place(mean), top, bottom)


def _levels(places: Iterable[float]) -> list[int]:
    """The lowest level for each dot at which it touches no dot before it. The places ascend."""
    ends: list[float] = []
    levels = []
    for x in places:
        level = next((i for i, end in enumerate(ends) if x - end >= 2 * _DOT), len(ends))
        level = min(level, _MOST_IN_A_STACK - 1)
        ends[level : level + 1] = [x]
        levels.append(level)
    return levels


def _place(total: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * total / 100


def _in_words(combination: Mapping[str, Any]) -> str:
    means = [
        f"{combination[f'n_{outcome}']} {outcome}" + ("" if mean is None else f", on average {mean:.0f}")
        for outcome in ("right", "wrong")
        for mean in (combination[f"mean_{outcome}"],)
    ]
    return f"{combination['provider']}: {'; '.join(means)}."


def _ranked_wrongly(combination: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """The sessions that lose pairs or have no score, with what they lose."""
    lost = {m["session_id"]: m for m in combination["misranked"]}
    order = {session_id: place for place, session_id in enumerate(lost)}
    rows = [s for s in combination["sessions"] if s["session_id"] in lost or s["total"] is None]
    for row in sorted(rows, key=lambda s: order.get(s["session_id"], len(order))):
        yield {**row, "lost": 0.0, "pairs": 0, **lost.get(row["session_id"], {})}

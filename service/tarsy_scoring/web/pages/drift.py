"""
The page of drift: totals per day with their judges, what of a change is the judge's, and what may be concluded.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from markupsafe import Markup
from starlette.responses import HTMLResponse

from tarsy_scoring.drift.findings import Finding
from tarsy_scoring.drift.report import CAUSES, STATES, DriftReport, daily_totals, in_points, read_report
from tarsy_scoring.web.access import may_read
from tarsy_scoring.web.context import AppContext, Caller, context_of
from tarsy_scoring.web.pages import insights_view
from tarsy_scoring.web.pages.chains import chain_names
from tarsy_scoring.web.pages.charts import Tone, picture_of, tag, words_at
from tarsy_scoring.web.pages.insights_view import Asked, TrendView
from tarsy_scoring.web.pages.rendering import page

router = APIRouter(include_in_schema=False)

FINDINGS_SHOWN = 50
PAGE = "/drift"
TONES: Mapping[str | None, Tone] = {"judge": "fair", "agents": "weak", "both": "weak"}

_ROW, _LABEL_WIDTH, _VALUE_WIDTH, _WIDTH = 30.0, 130.0, 190.0, 720.0
_LEAST_SCALE = 5.0  # points: a change of one must not look like one of twenty

Reading = Annotated[Caller, Depends(may_read)]


@router.get(PAGE, response_model=None)
async def drift_page(request: Request, _: Reading) -> HTMLResponse:
    """Whether the agents changed, or the judge."""
    context, asked = context_of(request), insights_view.asked(request.query_params, datetime.now(UTC).date())
    report = newest = None
    shown: tuple[str, TrendView] | None = None
    if not asked.faults:
        report, shown = await _read(context, asked)
        newest = next((f for f in report.findings if f.is_event), None)
    return await asyncio.to_thread(
        page,
        "drift.html",
        422 if asked.faults else 200,
        here=PAGE,
        asked=asked,
        choice=None,
        chains=await chain_names(context),
        criteria_names=sorted(context.policy.hashes),
        shown=shown,
        report=report,
        newest=newest,
        parts_picture=Markup("") if newest is None else parts_picture(newest),
        causes=CAUSES,
        states=STATES,
        tones=TONES,
        in_points=in_points,
    )


async def _read(context: AppContext, asked: Asked) -> tuple[DriftReport, tuple[str, TrendView] | None]:
    """What is known, and the totals of the chain that was asked for, else of the one that was found to drift last."""
    chosen = asked.selection
    reading = read_report(context.inbox, chosen.chain, chosen.criteria, since=chosen.since, limit=FINDINGS_SHOWN)
    if chosen.chain is not None:
        return await asyncio.gather(reading, _totals(context, asked, chosen.chain))
    report = await reading
    chain = next((f.chain_id for f in report.findings if f.is_event), None)
    return report, None if chain is None else await _totals(context, asked, chain)


async def _totals(context: AppContext, asked: Asked, chain: str) -> tuple[str, TrendView]:
    points = await daily_totals(context.reader.database, replace(asked.selection, chain=chain))
    return chain, insights_view.trend_view(points, f"Totals per day, {asked.period}")


def parts_picture(finding: Finding) -> Markup:
    """The whole change and its parts, each a dot with its interval on one scale of points."""
    rows = [
        ("Whole change", finding.whole),
        ("Judge's part", finding.judge),
        ("Agents' part", finding.agents),
    ]
    ends = [abs(e) for _, part in rows for e in (part.value, part.low, part.high) if e is not None]
    scale = _scale_of(ends)
    first, last = _LABEL_WIDTH, _WIDTH - _VALUE_WIDTH

    def place(points: float) -> float:
        return first + (points + scale) / (2 * scale) * (last - first)

    height = len(rows) * _ROW
    drawn = [tag("line", "break", x1=place(0), x2=place(0), y1=0, y2=height)]
    drawn += [words_at(f"{e:+g}", "scale middle", place(e), height + 14) for e in (-scale, 0.0, scale)]
    for number, (name, part) in enumerate(rows):
        y = (number + 0.5) * _ROW
        drawn += [words_at(name, "label end", first - 10, y + 4), words_at(in_points(part), "value", last + 10, y + 4)]
        if part.value is None:
            continue
        if part.low is not None and part.high is not None:
            drawn.append(tag("line", f"whisker look-{number + 1}", x1=place(part.low), x2=place(part.high), y1=y, y2=y))
        drawn.append(tag("circle", f"point look-{number + 1}", cx=place(part.value), cy=y, r=4.5))
    told = "; ".join(f"{name}: {in_points(part)}" for name, part in rows) + "."
    return picture_of("parts", "The change in points, and whose it is", told, height + 20, drawn)


def _scale_of(ends: Sequence[float]) -> float:
    """The next five points that hold all of it."""
    return max(_LEAST_SCALE, 5 * math.ceil(max(ends, default=0.0) / 5))

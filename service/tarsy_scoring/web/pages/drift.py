"""The page of drift: whether a change of totals comes from the judge or from the agents."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fastapi import APIRouter, Request
from markupsafe import Markup
from starlette.responses import HTMLResponse

from tarsy_scoring.drift.findings import Finding
from tarsy_scoring.drift.report import CAUSES, STATES, DriftReport, daily_totals, in_points, read_report
from tarsy_scoring.web.access import Reading
from tarsy_scoring.web.context import AppContext, context_of
from tarsy_scoring.web.pages import insights_view
from tarsy_scoring.web.pages.charts import Tone, picture_of, tag, words_at
from tarsy_scoring.web.pages.insights_view import TrendView
from tarsy_scoring.web.pages.period import PeriodForm, period_page, requested_period

router = APIRouter(include_in_schema=False)

FINDINGS_SHOWN = 50
PAGE = "/drift"
TONES: Mapping[str | None, Tone] = {"judge": "fair", "agents": "weak", "both": "weak"}

_ROW, _LABEL_WIDTH, _VALUE_WIDTH, _WIDTH = 30.0, 130.0, 190.0, 720.0
_LEAST_SCALE = 5.0  # points; a smaller scale would make a change of one point look large


@router.get(PAGE)
async def drift_page(request: Request, _: Reading) -> HTMLResponse:
    """Findings, their meaning, and the totals per day of one chain."""
    form = requested_period(request)
    if form.faults:
        return await period_page(request, "drift.html", form)
    report, shown = await _read(context_of(request), form)
    newest = next((f for f in report.findings if f.is_event), None)
    return await period_page(
        request,
        "drift.html",
        form,
        shown=shown,
        report=report,
        newest=newest,
        parts_picture=Markup("") if newest is None else parts_picture(newest),
        causes=CAUSES,
        states=STATES,
        tones=TONES,
        in_points=in_points,
    )


async def _read(context: AppContext, form: PeriodForm) -> tuple[DriftReport, tuple[str, TrendView] | None]:
    """The report, and the totals of the form's chain, else of the chain of the newest finding."""
    chosen = form.selection
    reading = read_report(context.inbox, chosen.chain, chosen.criteria, since=chosen.since, limit=FINDINGS_SHOWN)
    if chosen.chain is not None:
        return await asyncio.gather(reading, _totals(context, form, chosen.chain))
    report = await reading
    chain = next((f.chain_id for f in report.findings if f.is_event), None)
    return report, None if chain is None else await _totals(context, form, chain)


async def _totals(context: AppContext, form: PeriodForm, chain: str) -> tuple[str, TrendView]:
    points = await daily_totals(context.reader.database, replace(form.selection, chain=chain))
    return chain, insights_view.trend_view(points, f"Totals per day, {form.period}")


def parts_picture(finding: Finding) -> Markup:
    """The whole change and its parts on one scale of points, each a dot with its interval."""
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
    description = "; ".join(f"{name}: {in_points(part)}" for name, part in rows) + "."
    return picture_of("parts", "The change in points, and its parts", description, height + 20, drawn)


def _scale_of(ends: Sequence[float]) -> float:
    """Half the width of the scale in points: the next multiple of five above the largest value."""
    return max(_LEAST_SCALE, 5 * math.ceil(max(ends, default=0.0) / 5))

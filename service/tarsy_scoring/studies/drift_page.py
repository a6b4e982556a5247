"""The page of drift: whether a change of totals comes from the judge or from the agents."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from fastapi import APIRouter, Request
from markupsafe import Markup
from starlette.responses import HTMLResponse

from tarsy_scoring.analytics import analytics
from tarsy_scoring.studies.drift_report import CAUSES, STATES, DriftReport, in_points, read_report
from tarsy_scoring.studies.findings import Finding
from tarsy_scoring.web.access import Analysing
from tarsy_scoring.web.context import AppContext, context_of
from tarsy_scoring.web.pages.charts import draw
from tarsy_scoring.web.pages.insights_view import trend_view
from tarsy_scoring.web.pages.period import PeriodForm, period_page, requested_period
from tarsy_scoring.web.pages.words import Tone

router = APIRouter(include_in_schema=False)

FINDINGS_SHOWN = 50
PAGE = "/drift"
TONES: Mapping[str | None, Tone] = {"judge": "fair", "agents": "weak", "both": "weak"}

_WIDTH, _ROW, _LABEL_WIDTH, _VALUE_WIDTH = 470.0, 30.0, 100.0, 180.0
_LEAST_SCALE = 5.0  # points; a smaller scale would make a change of one point look large


@router.get(PAGE)
async def drift_page(request: Request, _: Analysing) -> HTMLResponse:
    """Findings, their meaning, and totals per day of the chosen chain, else of the newest finding's chain."""
    form = requested_period(request)
    if form.faults:
        return await period_page(request, "drift.html", form)
    context, chosen = context_of(request), form.selection
    database = context.analytics.database
    report = await _read(context, form)
    newest = conclusion(report.findings)
    chain = chosen.chain or (newest.chain_id if newest else None)
    shown = None
    if chain is not None:
        points = await analytics.totals_made(database, replace(chosen, chain=chain))
        shown = chain, trend_view(points, f"Totals per day, {form.period}")
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


async def _read(context: AppContext, form: PeriodForm) -> DriftReport:
    chosen, database = form.selection, context.analytics.database
    return await read_report(
        database, context.policy, chosen.chain, chosen.criteria, since=chosen.since, limit=FINDINGS_SHOWN
    )


def conclusion(found: Sequence[Finding]) -> Finding | None:
    """
    The finding that the page begins with: the newest published one, or a later look that confirms it.

    A look that confirms a published finding is not published, and yet it knows more: the sessions beside the
    anchors.

    Args:
        found: The newest first.
    """
    published = next((f for f in found if f.is_event), None)
    return None if published is None else next(f for f in found if _claim(f) == _claim(published))


_claim = attrgetter("chain_id", "criteria", "cause", "old_fingerprint", "new_fingerprint")


def parts_picture(finding: Finding) -> Markup:
    """The whole change and its parts on one scale of points, each a dot with its interval."""
    parts = {"Whole change": finding.whole, "Judge's part": finding.judge, "Agents' part": finding.agents}
    rows = [
        {"y": (n + 0.5) * _ROW, "label": label, "part": part, "text": in_points(part)}
        for n, (label, part) in enumerate(parts.items())
    ]
    scale = _scale_of(
        [abs(e) for part in parts.values() for e in (part.value, part.low, part.high) if e is not None]
    )
    left, right = _LABEL_WIDTH, _WIDTH - _VALUE_WIDTH

    def place(points: float) -> float:
        return left + (points + scale) / (2 * scale) * (right - left)

    return draw(
        "intervals",
        title="The change in points, and its parts",
        description="; ".join(f"{row['label']}: {row['text']}" for row in rows) + ".",
        height=len(rows) * _ROW,
        row_height=_ROW,
        rows=rows,
        left=left,
        right=right,
        place=place,
        ends=(-scale, 0.0, scale),
        width=_WIDTH,
    )


def _scale_of(ends: Sequence[float]) -> float:
    """Half the width of the scale in points: the next multiple of five above the largest value."""
    return max(_LEAST_SCALE, 5 * math.ceil(max(ends, default=0.0) / 5))

"""The drift page: whether totals changed because the judge or the agents did."""

from collections.abc import Mapping
from dataclasses import replace

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from tarsy_scoring.analytics import analytics
from tarsy_scoring.scores.bands import Tone
from tarsy_scoring.studies.drift_report import CAUSES, STATES, read_report
from tarsy_scoring.studies.estimates import in_points
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.access import Analysing
from tarsy_scoring.web.pages.charts import trend_view
from tarsy_scoring.web.pages.period import period_page, requested_period

router = APIRouter(include_in_schema=False)

FINDINGS_SHOWN = 50
PAGE = "/drift"
TONES: Mapping[str | None, Tone] = {"judge": "fair", "agents": "weak", "both": "weak"}


@router.get(PAGE)
async def drift_page(request: Request, _: Analysing) -> HTMLResponse:
    """Findings, their meaning, and totals per day for the chosen chain or the newest finding's."""
    form = requested_period(request)
    if form.faults:
        return await period_page(request, "drift.html", form)
    context, chosen = context_of(request), form.selection
    database = context.analytics.database
    report = await read_report(
        database, context.policy, chosen.chain, chosen.criteria, chosen.since, FINDINGS_SHOWN
    )
    newest = next((f for f in report.findings if f.is_event), None)
    chain = chosen.chain or (newest.chain_id if newest else None)
    shown = None
    if chain is not None:
        points = (await analytics.trends(database, replace(chosen, chain=chain)))[0]
        shown = chain, trend_view(points, f"Totals per day, {form.period}", context.registry.bands)
    return await period_page(
        request,
        "drift.html",
        form,
        shown=shown,
        report=report,
        newest=newest,
        causes=CAUSES,
        states=STATES,
        tones=TONES,
        in_points=in_points,
    )

"""The page that averages chains, and shows one chain from day to day."""

from typing import cast

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from tarsy_scoring.analytics import analytics
from tarsy_scoring.analytics.analytics import DayOf
from tarsy_scoring.analytics.chain_averages import MOST_CHAINS, every_chain
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.access import Analysing
from tarsy_scoring.web.pages.charts import trend_view
from tarsy_scoring.web.pages.period import DAY_OF, KIND, period_page, requested_period

router = APIRouter(include_in_schema=False)


@router.get("/trends")
async def trends_page(request: Request, _: Analysing) -> HTMLResponse:
    """Averages by chain; for a chosen chain also totals from day to day, one line per judge."""
    form = requested_period(request, DAY_OF, KIND)
    if form.faults:
        return await period_page(request, "trends.html", form)
    context, day_of = context_of(request), cast(DayOf, form.chosen)
    database = context.analytics.database
    chains = await every_chain(database, form.selection, day_of)
    view = None
    if form.selection.chain is not None:
        points = (await analytics.trends(database, form.selection, day_of))[0]
        view = trend_view(points, f"Totals per day, {form.period}", context.registry.bands)
    return await period_page(
        request,
        "trends.html",
        form,
        averages=chains[:MOST_CHAINS],
        chains_left_out=len(chains[MOST_CHAINS:]),
        view=view,
        left_out=sum(chain.left_out for chain in chains),
    )

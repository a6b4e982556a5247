"""The pages of trends, distribution and failure tags: numbers of the analytics API as pictures and tables."""

from typing import cast

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from tarsy_scoring.live.signals import INSIGHTS
from tarsy_scoring.records import analytics
from tarsy_scoring.records.analytics import DayOf
from tarsy_scoring.records.chain_averages import every_chain
from tarsy_scoring.statistics.agreement import bands_of
from tarsy_scoring.web.access import Analysing
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.pages import insights_view
from tarsy_scoring.web.pages.period import DAY_OF, EXCLUDE, KIND, period_page, requested_period, selected
from tarsy_scoring.web.pages.rendering import Live

router = APIRouter(include_in_schema=False)


@router.get("/trends")
async def trends_page(request: Request, _: Analysing) -> HTMLResponse:
    """The averages of all chains; or of one chain, with its totals from day to day, one line per judge."""
    context, form = context_of(request), requested_period(request, DAY_OF, KIND, EXCLUDE)
    if form.faults:
        return await period_page(request, "trends.html", form)
    selection, day_of, live = await selected(context, form), cast(DayOf, form.chosen), Live(INSIGHTS, 0)
    chains = await every_chain(context.analytics.database, selection, day_of)
    view = None
    if selection.chain is not None:
        found = await analytics.trends(context.analytics.database, selection, day_of)
        view = insights_view.trend_view(found.points, f"Totals per day, {form.period}")
    rows, left_out = insights_view.chain_rows(chains, form), sum(chain.left_out for chain in chains.chains)
    return await period_page(
        request, "trends.html", form, live=live, every=chains, rows=rows, view=view, left_out=left_out
    )


@router.get("/distribution")
async def distribution_page(request: Request, _: Analysing) -> HTMLResponse:
    """How many scores each band holds, and their averages per category."""
    context, form = context_of(request), requested_period(request, KIND, EXCLUDE)
    if form.faults:
        return await period_page(request, "distribution.html", form)
    criteria = form.selection.criteria
    ranges = context.registry.get(criteria).bands if criteria is not None and criteria in context.registry else {}
    found = await analytics.distribution(context.analytics.database, await selected(context, form), bands_of(ranges))
    title = f"Scores by band, {form.period}"
    view = insights_view.distribution_view(found, context.registry, form, title, is_default=not ranges)
    return await period_page(request, "distribution.html", form, view=view, found=found)


@router.get("/failure-tags")
async def failure_tags_page(request: Request, _: Analysing) -> HTMLResponse:
    """Which failures judges named, and in which chains."""
    context, form = context_of(request), requested_period(request, KIND, EXCLUDE)
    if form.faults:
        return await period_page(request, "failure_tags.html", form)
    found = await analytics.failure_tags(context.analytics.database, await selected(context, form))
    meanings = insights_view.meanings(context.registry)
    return await period_page(request, "failure_tags.html", form, found=found, meanings=meanings)

"""
The pages of trends, distribution and failure tags: numbers of the analytics API as pictures, tables and CSV.
"""

from collections.abc import Mapping
from typing import cast

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from tarsy_scoring.analytics import analytics
from tarsy_scoring.analytics.analytics import DayOf, Distribution
from tarsy_scoring.analytics.chain_averages import EveryChain, every_chain
from tarsy_scoring.scores.bands import bands_of
from tarsy_scoring.web.access import Analysing
from tarsy_scoring.web.context import AppContext, context_of
from tarsy_scoring.web.pages import insights_view
from tarsy_scoring.web.pages.downloads import (
    band_sheet,
    category_sheet,
    chain_sheet,
    csv_file,
    download_form,
    line_sheet,
    tag_sheet,
    trend_sheet,
)
from tarsy_scoring.web.pages.period import (
    DAY_OF,
    KIND,
    PeriodForm,
    period_page,
    requested_period,
)

router = APIRouter(include_in_schema=False)

TRENDS = (DAY_OF, KIND)
SCORES = (KIND,)


@router.get("/trends")
async def trends_page(request: Request, _: Analysing) -> HTMLResponse:
    """The averages of all chains; or of one chain, with its totals from day to day, one line per judge."""
    context, form = context_of(request), requested_period(request, *TRENDS)
    if form.faults:
        return await period_page(request, "trends.html", form)
    selection, day_of = form.selection, cast(DayOf, form.chosen)
    chains = await every_chain(context.analytics.database, selection, day_of)
    view = None
    if selection.chain is not None:
        found = await analytics.trends(context.analytics.database, selection, day_of)
        view = insights_view.trend_view(found.points, f"Totals per day, {form.period}")
    rows, left_out = insights_view.chain_rows(chains, form), sum(chain.left_out for chain in chains.chains)
    return await period_page(
        request, "trends.html", form, every=chains, rows=rows, view=view, left_out=left_out
    )


@router.get("/trends.csv")
async def trends_file(request: Request, _: Analysing) -> Response:
    """The points of the curve, as CSV."""
    context, form = context_of(request), download_form(request, *TRENDS)
    found = await analytics.trends(context.analytics.database, form.selection, cast(DayOf, form.chosen))
    return csv_file("trends", trend_sheet(found.points))


@router.get("/trends/chains.csv")
async def chains_file(request: Request, _: Analysing) -> Response:
    """The table of chains, as CSV."""
    return csv_file("chains", chain_sheet((await _chains(request)).chains))


@router.get("/trends/lines.csv")
async def lines_file(request: Request, _: Analysing) -> Response:
    """The small trend lines of all chains, as CSV."""
    found = await _chains(request)
    return csv_file("trend-lines", line_sheet(found.chains, found.step_days))


async def _chains(request: Request) -> EveryChain:
    context, form = context_of(request), download_form(request, *TRENDS)
    return await every_chain(context.analytics.database, form.selection, cast(DayOf, form.chosen))


@router.get("/distribution")
async def distribution_page(request: Request, _: Analysing) -> HTMLResponse:
    """How many scores each band holds, and their averages per category."""
    context, form = context_of(request), requested_period(request, *SCORES)
    if form.faults:
        return await period_page(request, "distribution.html", form)
    found = await _distribution(context, form)
    title = f"Scores by band, {form.period}"
    view = insights_view.distribution_view(
        found, context.registry, form, title, is_default=not _own_bands(context, form.selection.criteria)
    )
    return await period_page(request, "distribution.html", form, view=view, found=found)


@router.get("/distribution.csv")
async def distribution_file(request: Request, _: Analysing) -> Response:
    """The scores by band, as CSV."""
    found = await _distribution(context_of(request), download_form(request, *SCORES))
    return csv_file("distribution", band_sheet(found))


@router.get("/distribution/categories.csv")
async def categories_file(request: Request, _: Analysing) -> Response:
    """The averages of the categories, as CSV."""
    found = await _distribution(context_of(request), download_form(request, *SCORES))
    return csv_file("categories", category_sheet(found))


async def _distribution(context: AppContext, form: PeriodForm) -> Distribution:
    bands = bands_of(_own_bands(context, form.selection.criteria))
    return await analytics.distribution(context.analytics.database, form.selection, bands)


def _own_bands(context: AppContext, criteria: str | None) -> Mapping[str, tuple[int, int]]:
    """The bands of the criteria; empty where these have none or are unknown."""
    return (
        context.registry.get(criteria).bands if criteria is not None and criteria in context.registry else {}
    )


@router.get("/failure-tags")
async def failure_tags_page(request: Request, _: Analysing) -> HTMLResponse:
    """Which failures judges named, and in which chains."""
    context, form = context_of(request), requested_period(request, *SCORES)
    if form.faults:
        return await period_page(request, "failure_tags.html", form)
    found = await analytics.failure_tags(context.analytics.database, form.selection)
    meanings = insights_view.meanings(context.registry)
    return await period_page(request, "failure_tags.html", form, found=found, meanings=meanings)


@router.get("/failure-tags.csv")
async def failure_tags_file(request: Request, _: Analysing) -> Response:
    """The failure tags and their chains, as CSV."""
    context, form = context_of(request), download_form(request, *SCORES)
    found = await analytics.failure_tags(context.analytics.database, form.selection)
    return csv_file("failure-tags", tag_sheet(found))

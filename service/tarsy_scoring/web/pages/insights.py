"""
The pages across sessions: trends, distribution, missing tools, failure tags.

They read what the analytics endpoints tell, and show it as pictures with the same numbers in tables beside them.
"""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Request
from starlette.responses import HTMLResponse

from tarsy_scoring.live.signals import INSIGHTS
from tarsy_scoring.missing_tools.report import demand_in_words
from tarsy_scoring.records import analytics
from tarsy_scoring.records.analytics import DayOf, ToolSort
from tarsy_scoring.statistics.agreement import bands_of
from tarsy_scoring.web.access import may_read
from tarsy_scoring.web.api import ledger
from tarsy_scoring.web.context import AppContext, Caller, context_of
from tarsy_scoring.web.pages import insights_view
from tarsy_scoring.web.pages.chains import chain_names
from tarsy_scoring.web.pages.forms import faults_of_address
from tarsy_scoring.web.pages.insights_view import DAY_OF, SORT, Asked, Choice
from tarsy_scoring.web.pages.ledger import STATES
from tarsy_scoring.web.pages.rendering import Live, page

router = APIRouter(include_in_schema=False)

TOOLS_SHOWN = 100

Reading = Annotated[Caller, Depends(may_read)]


@router.get("/trends", response_model=None)
async def trends_page(request: Request, _: Reading) -> HTMLResponse:
    """How totals move from day to day, one line per judge."""
    context, asked = context_of(request), _asked(request, DAY_OF)
    view, left_out = None, 0
    if not asked.faults:
        found = await analytics.trends(context.reader.database, asked.selection, cast(DayOf, asked.chosen))
        view = insights_view.trend_view(found.points, f"Totals per day, {asked.period}")
        left_out = found.left_out
    live = None if asked.faults else Live(INSIGHTS, 0)
    return await _page("trends.html", context, asked, DAY_OF, live=live, view=view, left_out=left_out)


@router.get("/distribution", response_model=None)
async def distribution_page(request: Request, _: Reading) -> HTMLResponse:
    """How many scores each band holds, and what they got in each category."""
    context, asked = context_of(request), _asked(request)
    view = found = None
    if not asked.faults:
        criteria = asked.selection.criteria
        ranges = context.registry.get(criteria).bands if criteria is not None and criteria in context.registry else {}
        found = await analytics.distribution(context.reader.database, asked.selection, bands_of(ranges))
        title = f"Scores by band, {asked.period}"
        view = insights_view.distribution_view(found, context.registry, asked, title, is_default=not ranges)
    return await _page("distribution.html", context, asked, view=view, found=found)


@router.get("/missing-tools", response_model=None)
async def missing_tools_page(request: Request, caller: Reading) -> HTMLResponse:
    """Which tools judges missed, spellings merged, and how far each has come."""
    context, asked = context_of(request), _asked(request, SORT)
    found = None
    if not asked.faults:
        sort = cast(ToolSort, asked.chosen)
        found = await ledger.look_up(request, asked.selection, sort, TOOLS_SHOWN)
    more = {"found": found, "states": STATES, "in_words": demand_in_words, "may_say": "score" in caller.scopes}
    return await _page("missing_tools.html", context, asked, SORT, **more)


@router.get("/failure-tags", response_model=None)
async def failure_tags_page(request: Request, _: Reading) -> HTMLResponse:
    """Which failures judges named, and where."""
    context, asked = context_of(request), _asked(request)
    found = None if asked.faults else await analytics.failure_tags(context.reader.database, asked.selection)
    return await _page(
        "failure_tags.html", context, asked, found=found, meanings=insights_view.meanings(context.registry)
    )


def _asked(request: Request, choice: Choice | None = None) -> Asked:
    found = insights_view.asked(request.query_params, datetime.now(UTC).date(), choice)
    known = (*insights_view.FIELDS, *([choice.name] if choice else []))
    return replace(found, faults=faults_of_address(request.scope["query_string"], known) + found.faults)


async def _page(
    template: str, context: AppContext, asked: Asked, choice: Choice | None = None, **values: Any
) -> HTMLResponse:
    # In a thread: many rows take a while to render.
    return await asyncio.to_thread(
        page,
        template,
        422 if asked.faults else 200,
        here="/" + template.removesuffix(".html").replace("_", "-"),
        asked=asked,
        choice=choice,
        chains=await chain_names(context),
        criteria_names=sorted(context.policy.hashes),
        **values,
    )

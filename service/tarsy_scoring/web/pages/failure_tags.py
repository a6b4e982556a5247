"""The page that counts failure tags by chain."""

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from tarsy_scoring.analytics import analytics
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.access import Analysing
from tarsy_scoring.web.pages.period import KIND, period_page, requested_period

router = APIRouter(include_in_schema=False)


@router.get("/failure-tags")
async def failure_tags_page(request: Request, _: Analysing) -> HTMLResponse:
    """Which failures judges named, and in which chains."""
    context, form = context_of(request), requested_period(request, KIND)
    if form.faults:
        return await period_page(request, "failure_tags.html", form)
    found = await analytics.failure_tags(context.analytics.database, form.selection)
    meanings = {tag: text for one in context.registry for tag, text in one.failure_vocabulary.items()}
    return await period_page(request, "failure_tags.html", form, found=found, meanings=meanings)

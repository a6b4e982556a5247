"""The page that lists better approaches named by judges."""

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from tarsy_scoring.analytics.approaches import read_approaches
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.access import Analysing
from tarsy_scoring.web.pages.period import period_page, requested_period

router = APIRouter(include_in_schema=False)

APPROACHES_SHOWN = 100


@router.get("/approaches")
async def approaches_page(request: Request, _: Analysing) -> HTMLResponse:
    """Better ways to investigate, grouped over sessions, with the sessions that went another way."""
    form = requested_period(request)
    if form.faults:
        return await period_page(request, "approaches.html", form)
    database = context_of(request).analytics.database
    found = await read_approaches(database, form.selection, APPROACHES_SHOWN)
    return await period_page(request, "approaches.html", form, approaches=found)

"""The page that lists better approaches named by judges."""

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from tarsy_scoring.analytics.approaches import MOST_READ, Approaches, read_approaches
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.access import Analysing
from tarsy_scoring.web.pages.downloads import csv_file, download_form
from tarsy_scoring.web.pages.period import PeriodForm, period_page, requested_period

router = APIRouter(include_in_schema=False)

APPROACHES_SHOWN = 100


@router.get("/approaches")
async def approaches_page(request: Request, _: Analysing) -> HTMLResponse:
    """Better ways to investigate, grouped over sessions, with the sessions that went another way."""
    form = requested_period(request)
    if form.faults:
        return await period_page(request, "approaches.html", form)
    return await period_page(
        request, "approaches.html", form, found=await _read(request, form), most_read=MOST_READ
    )


@router.get("/approaches.csv")
async def approaches_file(request: Request, _: Analysing) -> Response:
    """The approaches as CSV."""
    found = await _read(request, download_form(request))
    rows = ((a.name, a.sessions, a.chains, a.mean_total) for a in found.approaches)
    return csv_file("approaches", "approach sessions chains mean_total", rows)


async def _read(request: Request, form: PeriodForm) -> Approaches:
    return await read_approaches(context_of(request).analytics.database, form.selection, APPROACHES_SHOWN)

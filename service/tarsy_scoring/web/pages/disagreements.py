"""The page of sessions where judge and people say the opposite."""

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from tarsy_scoring.labels.disagreements import read_disagreements
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.access import Analysing
from tarsy_scoring.web.pages.period import period_page, requested_period

router = APIRouter(include_in_schema=False)


@router.get("/disagreements")
async def disagreements_page(request: Request, _: Analysing) -> HTMLResponse:
    """The sessions with both reasons, and the counts by chain and failure tag, by the days of the labels."""
    form, database = requested_period(request), context_of(request).analytics.database
    found = None if form.faults else await read_disagreements(database, *form.selection.arguments)
    return await period_page(request, "disagreements.html", form, found=found)

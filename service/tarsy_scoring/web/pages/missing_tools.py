"""The page of missing tools, and its forms: the state of a tool, and which names mean the same tool."""

from contextlib import suppress
from datetime import date
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BeforeValidator
from starlette.responses import HTMLResponse, RedirectResponse

from tarsy_scoring.missing_tools.decisions import ToolStateName
from tarsy_scoring.missing_tools.ledger import read_ledger
from tarsy_scoring.missing_tools.reasons import read_reasons
from tarsy_scoring.web.api import ledger
from tarsy_scoring.web.api.ledger import MergeRequest, SayingRequest
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.access import Admitted, Analysing
from tarsy_scoring.web.pages.forms import form_fields, read_as
from tarsy_scoring.web.pages.period import period_page, requested_period
from tarsy_scoring.web.queries import Moment

router = APIRouter(include_in_schema=False)

PAGE = "/missing-tools"
TOOLS_SHOWN = 100
# Label and CSS class of each state's chip. A tool in the state `open` has no chip.
STATES: dict[ToolStateName, tuple[str, str]] = {"planned": ("planned", ""), "built": ("built", "good")}


@router.get(PAGE)
async def missing_tools_page(request: Request, caller: Analysing) -> HTMLResponse:
    """Which tools judges missed and why, with merged spellings and the state of each tool."""
    form = requested_period(request)
    if form.faults:
        return await period_page(request, "missing_tools.html", form)
    database = context_of(request).analytics.database
    found = await read_ledger(database, form.selection, TOOLS_SHOWN)
    return await period_page(
        request,
        "missing_tools.html",
        form,
        found=found,
        reasons=await read_reasons(database, form.selection, found.tools),
        states=STATES,
        may_edit="score" in caller.scopes,
    )


def _start_of_day(value: Any) -> Any:
    """Midnight (UTC) of a day as browsers write it; any other value unchanged."""
    with suppress(TypeError, ValueError):
        return f"{date.fromisoformat(value)}T00:00:00Z"
    return value


class StateForm(SayingRequest):
    """The state of a tool, since a day."""

    since: Annotated[Moment | None, BeforeValidator(_start_of_day)] = None


@router.post(f"{PAGE}/states")
async def set_state(request: Request, caller: Admitted) -> RedirectResponse:
    """
    Store the state of a tool as `POST /api/v1/scoring/missing-tools/states` does, and return to the page.
    """
    await ledger.set_state(request, caller, read_as(StateForm, form_fields(await request.body())))
    return RedirectResponse(PAGE, 303)


@router.post(f"{PAGE}/merges")
async def merge_names(request: Request, caller: Admitted) -> RedirectResponse:
    """Merge or separate names as `POST /api/v1/scoring/missing-tools/merges` does, and return to the page."""
    await ledger.merge_names(request, caller, read_as(MergeRequest, form_fields(await request.body())))
    return RedirectResponse(PAGE, 303)

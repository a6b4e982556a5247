"""
The forms of the page of missing tools: how far a tool has come, and which names are one tool.
"""

from contextlib import suppress
from datetime import date
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import BeforeValidator
from starlette.responses import RedirectResponse

from tarsy_scoring.missing_tools.ledger import State
from tarsy_scoring.web.access import may_score
from tarsy_scoring.web.api import ledger
from tarsy_scoring.web.api.ledger import MergeRequest, SayingRequest
from tarsy_scoring.web.context import Caller
from tarsy_scoring.web.pages.forms import form_fields, read_as
from tarsy_scoring.web.queries import Moment

router = APIRouter(include_in_schema=False)

PAGE = "/missing-tools"
# What a state is called, and how its chip looks; a tool that is open needs no chip.
STATES: dict[State, tuple[str, str]] = {
    "planned": ("planned", ""),
    "built": ("built, being measured", "fair"),
    "confirmed": ("built, no longer asked for", "good"),
    "still_missed": ("built, still missed", "weak"),
}

Scoring = Annotated[Caller, Depends(may_score)]


def _first_moment(value: Any) -> Any:
    """Of a day, as browsers write it, the first moment (UTC); what is no day stays."""
    with suppress(TypeError, ValueError):
        return f"{date.fromisoformat(value)}T00:00:00Z"
    return value


class StateForm(SayingRequest):
    """How far a tool has come, since a day."""

    since: Annotated[Moment | None, BeforeValidator(_first_moment)] = None


@router.post(f"{PAGE}/states", response_model=None)
async def say(request: Request, caller: Scoring) -> RedirectResponse:
    """Keep how far a tool has come, as `POST /api/v1/scoring/missing-tools/states` does, and go back to the list."""
    await ledger.set_state(request, caller, read_as(StateForm, form_fields(await request.body())))
    return RedirectResponse(PAGE, 303)


@router.post(f"{PAGE}/merges", response_model=None)
async def join(request: Request, caller: Scoring) -> RedirectResponse:
    """Join a name or keep it apart, as `POST /api/v1/scoring/missing-tools/merges` does, and go back to the list."""
    await ledger.merge_names(request, caller, read_as(MergeRequest, form_fields(await request.body())))
    return RedirectResponse(PAGE, 303)

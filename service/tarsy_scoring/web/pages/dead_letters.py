"""The page of dead letters: messages that could not be processed."""

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from tarsy_scoring.dead_letters.letter_states import newest_letters
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.access import Analysing
from tarsy_scoring.web.pages.rendering import page

router = APIRouter(include_in_schema=False)

LETTERS_SHOWN = 200


@router.get("/dead-letters")
async def dead_letters_page(request: Request, _: Analysing) -> HTMLResponse:
    """The messages that failed last, each once, with the time of its last replay."""
    found = await newest_letters(context_of(request).analytics.database, None, LETTERS_SHOWN)
    return page("dead_letters.html", here="/dead-letters", found=found)

"""Route that lists dead letters: messages that could not be processed."""

from typing import Annotated

from fastapi import Query, Request

from tarsy_scoring.dead_letters.letter_states import Letters, newest_letters
from tarsy_scoring.web.api.common import scoring_routes
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.access import Analysing
from tarsy_scoring.web.queries import DeadLettersQuery

router = scoring_routes("browsing")


@router.get("/dead-letters", summary="List messages that could not be processed")
async def read_dead_letters(
    request: Request, _: Analysing, query: Annotated[DeadLettersQuery, Query()]
) -> Letters:
    """
    Messages that became dead letters, by their original position, those that failed last first.

    The content is in the dead-letter topic alone: `tarsy-scoring dead-letters show` reads it, and `replay`
    sends it again.
    """
    return await newest_letters(context_of(request).analytics.database, query.state, query.limit)

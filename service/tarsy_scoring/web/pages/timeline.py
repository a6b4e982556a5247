"""
The timeline page: everything that the judge read, marked with what a score says about it.
"""

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from tarsy_scoring.references import store as stored_references
from tarsy_scoring.timeline.model import Timeline
from tarsy_scoring.web.api.common import SessionId
from tarsy_scoring.web.context import AppContext, context_of
from tarsy_scoring.web.edge.access import Admitted
from tarsy_scoring.web.edge.problems import Problem
from tarsy_scoring.web.pages.rendering import page
from tarsy_scoring.web.pages.session import UnreadableSession, read_with
from tarsy_scoring.web.pages.timeline_view import marks_of, show_timeline
from tarsy_scoring.web.queries import TimelineQuery, read_form

router = APIRouter(include_in_schema=False)

SHOWN = {
    "": "everything",
    "errors": "what failed",
    "cited": "what the judge cites",
    "suspicious": "suspicious text",
}


@router.get("/sessions/{session_id}/timeline")
async def timeline_page(request: Request, caller: Admitted, session_id: SessionId) -> HTMLResponse:
    """
    A session's timeline, read from the source now, with the citations in one score as marks.

    Raises:
        Problem: 404, the session or the score is unknown; 409, the session has not ended; 422, a malformed
            address; 503, the source cannot be read.
    """
    context = context_of(request)
    form = read_form(request.scope["query_string"], TimelineQuery)
    if form.query is None:
        raise Problem(422, "Malformed address", "; ".join(form.faults))
    document = None if form.query.blind else await _marking_score(context, session_id, form.query.score)
    found = await _read(context, session_id, form.query, document)
    marks = f"score={document['score_id']}&" if document else "blind=1&" if form.query.blind else ""
    plain = f"/sessions/{session_id}/timeline?{marks}"
    return await asyncio.to_thread(  # rendering many entries would block the event loop
        page,
        "timeline.html",
        here="/",
        criteria=context.registry,
        session_id=session_id,
        doc=document,
        timeline=found,
        form=form.values,
        shown=SHOWN,
        # Addresses to which the next field is appended.
        kept=plain + (f"show={form.query.show}&" if form.query.show else ""),
        plain=plain,
    )


async def _marking_score(
    context: AppContext, session_id: str, score_id: UUID | None
) -> dict[str, Any] | None:
    """The score whose citations are shown; None: the session has none. Raises: Problem: 404."""
    if score_id is None:
        return await context.reader.score_of_session(session_id)
    document = await context.reader.score(score_id)
    if document is None or document["session_id"] != session_id:
        advice = "open the timeline from the page of the session, which lists all its scores"
        raise Problem(404, "Unknown score", f"the session {session_id} has no score {score_id}: {advice}")
    return document


async def _read(
    context: AppContext, session_id: str, query: TimelineQuery, document: dict[str, Any] | None
) -> dict[str, Any]:
    reference, cut = None, ()
    if document is not None:
        cut = (document["coverage"] or {}).get("cut_entries", ())
        if document["reference"]:
            reference = await stored_references.text_of(context.reader.database, document["score_id"])
    extra_patterns = context.settings.config.masking_patterns

    def show(timeline: Timeline) -> dict[str, Any]:
        shown = replace(timeline, reference=reference)
        return show_timeline(shown, query, marks_of(document), cut, extra_patterns)

    found = await read_with(show, context, session_id)
    if isinstance(found, UnreadableSession):
        raise found.problem(session_id, has_score=document is not None)
    return found

"""
The page of a session's timeline: everything that the judge read, marked with what a score says about it.
"""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from tarsy_scoring.audit import audit
from tarsy_scoring.references import store as stored_references
from tarsy_scoring.timeline.model import Timeline
from tarsy_scoring.web.access import Reading
from tarsy_scoring.web.api.common import SessionId
from tarsy_scoring.web.context import AppContext, context_of
from tarsy_scoring.web.pages import score_view
from tarsy_scoring.web.pages.citations import marks_of
from tarsy_scoring.web.pages.rendering import page
from tarsy_scoring.web.pages.session import Unreadable, read_with
from tarsy_scoring.web.pages.timeline_view import Chosen, ShownTimeline, show_timeline
from tarsy_scoring.web.problems import Problem
from tarsy_scoring.web.queries import Form, TimelineQuery, read_form

router = APIRouter(include_in_schema=False)

FIELDS = {name: name for name in TimelineQuery.model_fields}
SHOWN = {
    "": "everything",
    "errors": "what failed",
    "cited": "what the judge cites",
    "suspicious": "suspicious text",
}
RETRY_S = 10


@router.get("/sessions/{session_id}/timeline")
async def timeline_page(request: Request, caller: Reading, session_id: SessionId) -> HTMLResponse:
    """
    The timeline of a session, read from its source now, with the citations of one of its scores as marks.

    Raises:
        Problem: 404, the session or the score is unknown; 409, the session has not ended; 422, a malformed
            address; 503, the source cannot be read.
    """
    context = context_of(request)
    form = read_form(request.scope["query_string"], TimelineQuery, FIELDS)
    if form.query is None:
        raise Problem(422, "Malformed address", "; ".join(form.faults))
    document = await _marking_score(context, session_id, form.query.score)
    audit.log_read("session", by=caller.name, session_id=session_id)
    found = await _read(context, session_id, form.query, document)
    return await asyncio.to_thread(  # rendering many entries would block the event loop
        page,
        "timeline.html",
        here="/",
        session_id=session_id,
        doc=document,
        timeline=found,
        kinds=SHOWN,
        **_form_values(session_id, form, document),
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
) -> ShownTimeline:
    reference = None
    if document is not None and document["reference"]:
        reference = await stored_references.text_of(context.reader.database, document["score_id"])
    show = partial(
        _show,
        reference=reference,
        chosen=Chosen(query.agent or "", query.tool or "", query.show, query.at or ""),
        document=document,
        extra_patterns=context.settings.config.masking.extra_patterns,
    )
    found = await read_with(show, context.source, session_id, context.session_reads)
    if isinstance(found, Unreadable):
        raise _unreadable(session_id, found, has_score=document is not None)
    return found


def _show(
    timeline: Timeline,
    *,
    reference: str | None,
    chosen: Chosen,
    document: dict[str, Any] | None,
    extra_patterns: Any,
) -> ShownTimeline:
    cut = score_view.cut_entries(document) if document else ()
    return show_timeline(
        replace(timeline, reference=reference), chosen, marks_of(document), cut, extra_patterns
    )


def _unreadable(session_id: str, found: Unreadable, *, has_score: bool) -> Problem:
    """Why there is no timeline, and what the reader can do."""
    kept = "; its scores and their analyses are kept: the page of the session shows them" if has_score else ""
    if found.is_running:
        return Problem(
            409, "Session has not ended", f"{found.reason}; its timeline can be read when it has ended"
        )
    if found.is_gone and not has_score:
        return Problem(404, "Unknown session", f"there is no session {session_id}, or it was deleted")
    detail = f"the timeline of {session_id} cannot be shown: {found.reason}{kept}"
    detail += f"; {found.advice}" if found.advice else ""
    if found.may_return:
        return Problem(503, "Timeline not readable", detail, headers={"Retry-After": str(RETRY_S)})
    return Problem(404, "No timeline", detail)


def _form_values(
    session_id: str, form: Form[TimelineQuery], document: dict[str, Any] | None
) -> dict[str, Any]:
    """
    The filters as given, and the start of addresses that keep them (`kept`) or only the score (`plain`).
    """
    score = {"score": str(document["score_id"])} if document else {}
    path = f"/sessions/{session_id}/timeline?"
    kept = score | {name: form.values[name] for name in ("agent", "tool", "show") if form.values[name]}
    return {
        "form": form.values,
        "is_narrowed": len(kept) > len(score),
        "kept": path + "".join(f"{urlencode({name: value})}&" for name, value in kept.items()),
        "plain": path + "".join(f"{urlencode({name: value})}&" for name, value in score.items()),
    }

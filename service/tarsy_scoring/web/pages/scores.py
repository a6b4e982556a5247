"""
The pages for a session and for one score, and their forms.

Forms do what the API does, with the same checks. Every page works without JavaScript; with it, `live.js`
keeps an open page up to date.
"""

import asyncio
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, RedirectResponse

from tarsy_scoring.events import MAX_REFERENCE_CHARACTERS, MAX_URL_CHARACTERS
from tarsy_scoring.live.events import OF_SESSION_PREFIX
from tarsy_scoring.web.api.common import SessionId, require_score
from tarsy_scoring.web.context import AppContext, context_of
from tarsy_scoring.web.edge.access import Admitted
from tarsy_scoring.web.edge.caller import Caller
from tarsy_scoring.web.pages.forms import form_fields, read_as, unreadable
from tarsy_scoring.web.pages.rendering import Live, page, position_of
from tarsy_scoring.web.pages.score_view import score_values
from tarsy_scoring.web.score_requests import ScoreRequest, request_score

router = APIRouter(include_in_schema=False)

MAX_KEY_CHARACTERS = 100


@router.get("/sessions/{session_id}")
async def session_page(request: Request, caller: Admitted, session_id: SessionId) -> HTMLResponse:
    """The latest completed score, else the newest one, and how the newest attempt stands."""
    context = context_of(request)
    position = await position_of(context)
    document = await context.reader.score_of_session(session_id)
    return await _score_page(context, caller, session_id, document, position, is_of_session=True)


@router.get("/scores/{score_id}")
async def score_page(request: Request, caller: Admitted, score_id: UUID) -> HTMLResponse:
    """One score, whatever the status and purpose."""
    context = context_of(request)
    position = await position_of(context)
    document = await require_score(context, score_id)
    return await _score_page(context, caller, document["session_id"], document, position, is_of_session=False)


async def _score_page(
    context: AppContext,
    caller: Caller,
    session_id: str,
    document: dict[str, Any] | None,
    position: int,
    *,
    is_of_session: bool,
) -> HTMLResponse:
    return await asyncio.to_thread(  # rendering a long analysis would block the event loop
        page,
        "score.html",
        here="/",
        criteria=context.registry,
        live=Live(f"{OF_SESSION_PREFIX}{session_id}", position),
        tarsy_url=context.settings.tarsy_url,
        is_of_session=is_of_session,
        may_score="score" in caller.scopes,
        max_reference=MAX_REFERENCE_CHARACTERS,
        max_url=MAX_URL_CHARACTERS,
        **await score_values(context, session_id, document),
    )


# --- forms ---------------------------------------------------------------------------------------------


@router.post("/sessions/{session_id}/score")
async def score_session(request: Request, caller: Admitted, session_id: SessionId) -> RedirectResponse:
    """
    Request a score as `POST /api/v1/scoring/sessions/{session_id}/score` does, and go to the page of the
    session, or of the trial.

    The form has an idempotency key, so a double click requests one score.
    """
    key, wanted = read_score_form(await request.body())
    answer, _ = await request_score(request, caller, session_id, wanted, key)
    is_trial = wanted.purpose == "shadow"
    return RedirectResponse(f"/scores/{answer.score_id}" if is_trial else f"/sessions/{session_id}", 303)


def read_score_form(body: bytes) -> tuple[str | None, ScoreRequest]:
    """The idempotency key, and what the form requests. Raises: Problem: 422."""
    fields = form_fields(body)
    key, text, link = fields.get("key"), fields.get("reference"), fields.get("source_url")
    if key is not None and not (key.isprintable() and len(key) <= MAX_KEY_CHARACTERS):
        raise unreadable()
    wanted: dict[str, Any] = {
        "force_rescore": "force" in fields,
        "use_reference": "use_reference" not in fields,
    }
    wanted |= {name: fields[name] for name in ("criteria", "reason", "purpose") if name in fields}
    if text or link:
        # A browser sends CR LF, and the same text sent to the API is the same reference.
        wanted["reference"] = {"text": text and text.replace("\r\n", "\n"), "source_url": link}
    return key, read_as(ScoreRequest, wanted)


@router.post("/scores/{score_id}/cancel")
async def cancel(request: Request, caller: Admitted, score_id: UUID) -> RedirectResponse:
    """
    Cancel a score and go to the session page. A score that ended in the meantime stays as it ended.
    """
    context = context_of(request)
    await context.leases.cancel(score_id, caller.name)
    document = await require_score(context, score_id)
    return RedirectResponse(f"/sessions/{document['session_id']}", 303)

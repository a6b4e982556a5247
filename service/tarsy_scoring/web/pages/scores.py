"""
The pages of sessions, scores and criteria, and their forms.

Callers with the scope `read` see the pages. Forms do what the API does, with the same checks. Every page
works without JavaScript; with it, `live.js` keeps an open page up to date.
"""

import asyncio
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, RedirectResponse

from tarsy_scoring.events import SESSION_ID_PATTERN
from tarsy_scoring.live.events import OF_SESSION_PREFIX, SESSIONS
from tarsy_scoring.live.stored import END
from tarsy_scoring.records.cursors import InvalidCursor
from tarsy_scoring.records.session_list import SessionPage, list_sessions, read_cursor
from tarsy_scoring.web.access import Reading, Scoring
from tarsy_scoring.web.context import AppContext, Caller, context_of
from tarsy_scoring.web.pages import criteria_view, insights_view, labelling, score_view, sessions_view
from tarsy_scoring.web.pages.forms import chain_names, form_fields, read_as
from tarsy_scoring.web.pages.rendering import Live, page, static_files
from tarsy_scoring.web.pages.session import Unreadable, read_session
from tarsy_scoring.web.problems import Problem
from tarsy_scoring.web.score_requests import request_score

router = APIRouter(include_in_schema=False)

HISTORY_SHOWN = 20
YEAR_S = 31_536_000

SessionId = Annotated[str, Path(pattern=f"^{SESSION_ID_PATTERN.pattern}$")]
Hash = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,255}$")]


@router.get("/static/{digest}/{name}")
async def static_file(request: Request, _: Reading, digest: str, name: str) -> Response:
    """A style sheet, script or icon. Its address contains a digest of its content, so browsers may keep it."""
    file = static_files().get(name)
    if file is None or file.digest != digest:
        raise Problem(404, "Not found", "this version has no such file: reload the page that links to it")
    headers = {"Cache-Control": f"private, max-age={YEAR_S}, immutable"}
    return Response(file.content, 200, headers, media_type=file.media_type)


# --- sessions ------------------------------------------------------------------------------------------


@router.get("/")
async def sessions_page(request: Request, caller: Reading) -> HTMLResponse:
    """The list of known sessions, filtered by its form."""
    context = context_of(request)
    form = sessions_view.read_list_form(request.scope["query_string"])
    faults = list(form.faults)
    found, position = SessionPage([], None), 0
    after = None
    if form.cursor and not faults:
        try:
            after = read_cursor(form.cursor, form.filters, form.sort)
        except InvalidCursor:
            faults.append("this link belongs to a list with other filters: go to the first page")
    if not faults:
        position = await position_of(context)
        hashes = context.policy.hashes
        found = await list_sessions(context.reader, hashes, form.filters, form.sort, after, sessions_view.PAGE_SIZE)
    rows = [sessions_view.row(session) for session in found.sessions]
    return page(
        "sessions.html",
        422 if faults else 200,
        here="/",
        live=None if faults else Live(SESSIONS, position),
        form=form,
        faults=faults,
        may_score="score" in caller.scopes,
        rows=rows,
        explained=sessions_view.explained(rows),
        next_query=form.query(cursor=found.next_cursor) if found.next_cursor else None,
        is_continued=form.cursor is not None,
        sorts=sessions_view.SORTS,
        outcomes=sessions_view.OUTCOMES,
        chains=await chain_names(context),
        criteria_names=sorted(context.policy.hashes),
    )


# --- scores --------------------------------------------------------------------------------------------


@router.get("/sessions/{session_id}")
async def session_page(request: Request, caller: Reading, session_id: SessionId) -> HTMLResponse:
    """The latest completed score of a session, else its newest one, and the state of its newest attempt."""
    context = context_of(request)
    position = await position_of(context)
    document = await context.reader.score_of_session(session_id)
    return await _score_page(context, caller, session_id, document, position, is_of_session=True)


@router.get("/scores/{score_id}")
async def score_page(request: Request, caller: Reading, score_id: UUID) -> HTMLResponse:
    """One score of any status and purpose."""
    context = context_of(request)
    position = await position_of(context)
    document = await context.reader.score(score_id)
    if document is None:
        raise Problem(404, "Unknown score", f"there is no score {score_id}")
    return await _score_page(context, caller, document["session_id"], document, position, is_of_session=False)


async def position_of(context: AppContext) -> int:
    """
    Position of the newest published event.

    Read it before the content of a page: an event in between is then delivered twice and never missed.
    """
    database = context.reader.database
    return await database.once(lambda c: c.fetchval(database.sql(END))) or 0


async def _score_page(
    context: AppContext,
    caller: Caller,
    session_id: str,
    document: dict[str, Any] | None,
    position: int,
    *,
    is_of_session: bool,
) -> HTMLResponse:
    history = await context.reader.history(session_id, HISTORY_SHOWN + 1) or []
    turns = await context.reader.replies(document["score_id"]) if document else None
    rows = await context.reader.scores_of_session(session_id, 1)
    cited, cut = (score_view.cited(document), score_view.cut_entries(document)) if document else ([], [])
    session = await read_session(context.source, session_id, cited, cut)
    if document is None and isinstance(session, Unreadable) and not session.is_running:
        if session.is_gone or context.source is None:
            raise Problem(404, "Unknown session", f"there is no session {session_id}, or it was deleted")
        raise Problem(503, "Session not readable", f"the session {session_id} cannot be shown: {session.reason}")
    newest = await context.reader.history(session_id, 1, purpose="production") or []
    shown = score_view.values(
        session_id,
        document,
        session,
        row=rows[0] if rows else None,
        history=history[:HISTORY_SHOWN],
        newest=newest[0] if newest else None,
        turns=turns or (),
        criteria_content=await _criteria_content(context, document["criteria_hash"]) if document else {},
    )
    return await asyncio.to_thread(  # rendering a long analysis would block the event loop
        page,
        "score.html",
        here="/",
        live=Live(f"{OF_SESSION_PREFIX}{session_id}", position),
        is_of_session=is_of_session,
        may_score="score" in caller.scopes,
        has_more=len(history) > HISTORY_SHOWN,
        current_hash=context.policy.hashes.get(document["criteria"] or "") if document else None,
        criteria_names=sorted(context.policy.hashes),
        meanings=insights_view.meanings(context.registry),
        key=str(uuid4()),
        **await labelling.label_values(context, document),
        **shown,
    )


# --- criteria ------------------------------------------------------------------------------------------


@router.get("/criteria/{criteria_hash}")
async def criteria_page(request: Request, _: Reading, criteria_hash: Hash, before: str | None = None) -> HTMLResponse:
    """The prompts and settings stored under a hash, and their changes since the criteria `before`."""
    context = context_of(request)
    found = await _criteria(context, criteria_hash)
    older = await _criteria(context, before) if before is not None else None
    if found is None or (before is not None and older is None):
        raise Problem(404, "Unknown criteria", "no criteria with this hash are stored or configured here")
    return page(
        "criteria.html",
        here="/",
        name=found["name"],
        criteria_hash=criteria_hash,
        first_used_at=found["first_used_at"],
        is_current=context.policy.hashes.get(found["name"]) == criteria_hash,
        before=older,
        changes=criteria_view.changes(older["content"], found["content"]) if older else None,
        content=criteria_view.in_sections(found["content"]),
    )


async def _criteria(context: AppContext, criteria_hash: str) -> dict[str, Any] | None:
    current = next((c for c in context.registry if c.criteria_hash == criteria_hash), None)
    stored = await context.reader.criteria(criteria_hash) if "\0" not in criteria_hash else None
    if stored is None and current is not None:
        return {
            "criteria_hash": criteria_hash,
            "name": current.name,
            "content": current.content,
            "first_used_at": None,
        }
    return stored


async def _criteria_content(context: AppContext, criteria_hash: str | None) -> dict[str, Any]:
    """Stored or configured content; empty if the hash is unknown."""
    found = await _criteria(context, criteria_hash) if criteria_hash else None
    return found["content"] if found else {}


# --- forms ---------------------------------------------------------------------------------------------


NoNul = Field(None, pattern=r"^[^\x00]*$")


class ScoreForm(BaseModel):
    """Fields of the form that requests a score."""

    model_config = ConfigDict(hide_input_in_errors=True)

    key: Annotated[str, Field(max_length=100)] | None = NoNul
    criteria: Annotated[str, Field(max_length=255)] | None = NoNul
    reason: Annotated[str, Field(max_length=500)] | None = NoNul
    force: Literal["1"] | None = None


@router.post("/sessions/{session_id}/score")
async def score_session(request: Request, caller: Scoring, session_id: SessionId) -> RedirectResponse:
    """
    Request a score as `POST /api/v1/scoring/sessions/{session_id}/score` does, and go to the session's page.

    The form has an idempotency key, so a double click requests one score.
    """
    context = context_of(request)
    form = read_as(ScoreForm, form_fields(await request.body()))
    if form.criteria is not None and form.criteria not in context.policy.hashes:
        raise Problem(422, "Unknown criteria", "criteria of that name are no longer configured: choose others")
    is_forced = form.force is not None
    await request_score(
        request, caller, session_id, key=form.key, force=is_forced, criteria=form.criteria, reason=form.reason
    )
    return RedirectResponse(f"/sessions/{session_id}", 303)


@router.post("/scores/{score_id}/cancel")
async def cancel(request: Request, caller: Scoring, score_id: UUID) -> RedirectResponse:
    """Cancel a score and go to its session's page. A score that has ended in the meantime stays as it ended."""
    context = context_of(request)
    await context.leases.cancel(score_id, caller.name, is_patient=False)
    document = await context.reader.score(score_id)
    if document is None:
        raise Problem(404, "Unknown score", f"there is no score {score_id}")
    return RedirectResponse(f"/sessions/{document['session_id']}", 303)


# --- problems ------------------------------------------------------------------------------------------


def problem_page(connection: HTTPConnection, problem: Problem, request_id: str) -> HTMLResponse:
    """An error as a page, with the words of the API's problem document."""
    parts = connection.scope["path"].split("/")
    is_of_session = parts[1:2] == ["sessions"] and len(parts) == 4 and SESSION_ID_PATTERN.fullmatch(parts[2])
    return page(
        "problem.html",
        problem.status,
        headers=problem.headers,
        problem=problem,
        request_id=request_id,
        back=f"/sessions/{parts[2]}" if is_of_session else "/",
    )

"""
The pages of sessions and scores, and the forms on them.

Whoever may read the API may look, and a form does what the API does, with the same checks. Nothing here needs
JavaScript; where there is some, `live.js` keeps the page as it would be read anew.
"""

import asyncio
from typing import Annotated, Any
from urllib.parse import parse_qs
from uuid import UUID, uuid4

from fastapi import APIRouter, Depends, Path, Request, Response
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, RedirectResponse

from tarsy_scoring.events import SESSION_ID_PATTERN
from tarsy_scoring.live.events import OF_SESSION_PREFIX, SESSIONS
from tarsy_scoring.live.stored import END
from tarsy_scoring.records.cursors import InvalidCursor
from tarsy_scoring.records.session_list import LONGEST_CURSOR, SessionPage, list_sessions, read_cursor
from tarsy_scoring.web.access import may_read, may_score
from tarsy_scoring.web.context import AppContext, Caller, context_of
from tarsy_scoring.web.pages import criteria_view, forms, insights_view, labelling, score_view, sessions_view
from tarsy_scoring.web.pages.chains import chain_names
from tarsy_scoring.web.pages.rendering import Live, page, static_files
from tarsy_scoring.web.pages.session import Unreadable, read_session
from tarsy_scoring.web.problems import Problem
from tarsy_scoring.web.score_requests import request_score

router = APIRouter(include_in_schema=False)

HISTORY_SHOWN = 20
MAX_REASON, MAX_KEY, MAX_FIELDS = 500, 100, 20
YEAR_S = 31_536_000

Reading = Annotated[Caller, Depends(may_read)]
Scoring = Annotated[Caller, Depends(may_score)]
SessionId = Annotated[str, Path(pattern=f"^{SESSION_ID_PATTERN.pattern}$")]
Hash = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,255}$")]


@router.get("/static/{digest}/{name}", response_model=None)
async def static_file(request: Request, _: Reading, digest: str, name: str) -> Response:
    """A style sheet, script or icon; it never changes under its address."""
    file = static_files().get(name)
    if file is None or file.digest != digest:
        raise Problem(404, "Not found", "there is no such file here any more: reload the page that asks for it")
    headers = {"Cache-Control": f"private, max-age={YEAR_S}, immutable"}
    return Response(file.content, 200, headers, media_type=file.media_type)


# --- sessions ------------------------------------------------------------------------------------------


@router.get("/", response_model=None)
async def sessions_page(request: Request, caller: Reading) -> HTMLResponse:
    """The sessions that scoring knows, as the form above them asks."""
    context = context_of(request)
    asked = sessions_view.asked(request.query_params)
    cursor = request.query_params.get("cursor", "")
    faults = forms.faults_of_address(request.scope["query_string"], (*sessions_view.FIELDS, "cursor"))
    faults += asked.faults
    found, position = SessionPage([], None), 0
    after = None
    if cursor and not faults:
        try:
            after = read_cursor(cursor[: LONGEST_CURSOR + 1], asked.filters, asked.sort)
        except InvalidCursor:
            faults.append("page: this list has changed, so begin with its first page")
    if not faults:
        position = await position_of(context)
        hashes = context.policy.hashes
        found = await list_sessions(context.reader, hashes, asked.filters, asked.sort, after, sessions_view.PAGE_SIZE)
    rows = [sessions_view.row(session) for session in found.sessions]
    return page(
        "sessions.html",
        422 if faults else 200,
        here="/",
        live=None if faults else Live(SESSIONS, position),
        asked=asked,
        faults=faults,
        may_ask="score" in caller.scopes,
        rows=rows,
        explained=sessions_view.explained(rows),
        next_query=asked.query(cursor=found.next_cursor) if found.next_cursor else None,
        is_continued=bool(cursor),
        sorts=sessions_view.SORTS,
        outcomes=sessions_view.OUTCOMES,
        chains=await chain_names(context),
        criteria_names=sorted(context.policy.hashes),
    )


# --- scores --------------------------------------------------------------------------------------------


@router.get("/sessions/{session_id}", response_model=None)
async def session_page(request: Request, caller: Reading, session_id: SessionId) -> HTMLResponse:
    """The score of a session: the latest completed one, else the newest; and what its newest attempt is doing."""
    context = context_of(request)
    position = await position_of(context)
    document = await context.reader.score_of_session(session_id)
    return await _score_page(context, caller, session_id, document, position, is_of_session=True)


@router.get("/scores/{score_id}", response_model=None)
async def score_page(request: Request, caller: Reading, score_id: UUID) -> HTMLResponse:
    """One score, whatever its status and purpose."""
    context = context_of(request)
    position = await position_of(context)
    document = await context.reader.score(score_id)
    if document is None:
        raise Problem(404, "Unknown score", f"there is no score {score_id}")
    return await _score_page(context, caller, document["session_id"], document, position, is_of_session=False)


async def position_of(context: AppContext) -> int:
    """Of the last event that was given one: read it before what a page shows, and the page misses nothing."""
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
    doc = score_view.sound(document) if document else None
    history = await context.reader.history(session_id, HISTORY_SHOWN + 1) or []
    turns = await context.reader.replies(doc["score_id"]) if doc else None
    rows = await context.reader.scores_of_session(session_id, 1)
    cited, cut = (score_view.cited(doc), doc["coverage"]["cut_entries"]) if doc else ([], [])
    session = await read_session(context.source, session_id, cited, cut)
    if doc is None and isinstance(session, Unreadable) and not session.is_running:
        if session.is_gone or context.source is None:
            raise Problem(404, "Unknown session", f"there is no session {session_id} here, or it was deleted")
        raise Problem(503, "Session not readable", f"the session {session_id} cannot be shown: {session.reason}")
    newest = await context.reader.history(session_id, 1, purpose="production") or []
    shown = score_view.values(
        session_id,
        doc,
        session,
        row=rows[0] if rows else None,
        history=history[:HISTORY_SHOWN],
        newest=newest[0] if newest else None,
        turns=turns or (),
        criteria_content=await _criteria_content(context, doc["criteria_hash"]) if doc else {},
    )
    # In a thread: a long analysis takes a while to render, and events go to sockets meanwhile.
    return await asyncio.to_thread(
        page,
        "score.html",
        here="/",
        live=Live(f"{OF_SESSION_PREFIX}{session_id}", position),
        is_of_session=is_of_session,
        may_ask="score" in caller.scopes,
        has_more=len(history) > HISTORY_SHOWN,
        current_hash=context.policy.hashes.get(doc["criteria"] or "") if doc else None,
        criteria_names=sorted(context.policy.hashes),
        meanings=insights_view.meanings(context.registry),
        key=str(uuid4()),
        **await labelling.about(context, doc),
        **shown,
    )


# --- criteria ------------------------------------------------------------------------------------------


@router.get("/criteria/{criteria_hash}", response_model=None)
async def criteria_page(request: Request, _: Reading, criteria_hash: Hash, before: str | None = None) -> HTMLResponse:
    """What the judge was asked, and what is different from other criteria."""
    context = context_of(request)
    found = await _criteria(context, criteria_hash)
    older = await _criteria(context, before) if before is not None else None
    if found is None or (before is not None and older is None):
        raise Problem(404, "Unknown criteria", "no criteria with this hash have judged or can judge here")
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


async def _criteria_content(context: AppContext, criteria_hash: str | None) -> Any:
    """Whatever is stored; empty where nobody knows it."""
    found = await _criteria(context, criteria_hash) if criteria_hash else None
    return found["content"] if found else {}


# --- forms ---------------------------------------------------------------------------------------------


@router.post("/sessions/{session_id}/score", response_model=None)
async def ask(request: Request, caller: Scoring, session_id: SessionId) -> RedirectResponse:
    """
    Ask for a score, as `POST /api/v1/scoring/sessions/{session_id}/score` does, and go to the session's page.

    The form carries a key of its own: sent twice by an impatient hand it asks once.
    """
    context = context_of(request)
    fields = await _fields(request)
    criteria, reason, key = fields.get("criteria") or None, fields.get("reason") or None, fields.get("key") or None
    if criteria is not None and criteria not in context.policy.hashes:
        raise Problem(422, "Unknown criteria", "there are no criteria of that name any more: choose others")
    is_forced = fields.get("force") == "1"
    await request_score(request, caller, session_id, key=key, force=is_forced, criteria=criteria, reason=reason)
    return RedirectResponse(f"/sessions/{session_id}", 303)


@router.post("/scores/{score_id}/cancel", response_model=None)
async def cancel(request: Request, caller: Scoring, score_id: UUID) -> RedirectResponse:
    """Cancel a score, and go to its session's page; one that has ended in the meantime is shown as it ended."""
    context = context_of(request)
    await context.leases.cancel(score_id, caller.name, is_patient=False)
    document = await context.reader.score(score_id)
    if document is None:
        raise Problem(404, "Unknown score", f"there is no score {score_id}")
    return RedirectResponse(f"/sessions/{document['session_id']}", 303)


async def _fields(request: Request) -> dict[str, str]:
    """The fields of a form, of each the last. Raises: Problem: 422, it is none of ours."""
    try:
        body = (await request.body()).decode("ascii")
        fields = {name: values[-1] for name, values in parse_qs(body, max_num_fields=MAX_FIELDS).items()}
    except ValueError as error:
        raise Problem(422, "Malformed request", "the form cannot be read: reload its page and try again") from error
    limits = {"key": MAX_KEY, "reason": MAX_REASON, "criteria": 255}
    for name, most in limits.items():
        if len(fields.get(name, "")) > most or "\0" in fields.get(name, ""):
            raise Problem(422, "Malformed request", f"`{name}` holds at most {most} characters, and no NUL")
    return fields


# --- problems ------------------------------------------------------------------------------------------


def problem_page(connection: HTTPConnection, problem: Problem, request_id: str) -> HTMLResponse:
    """A refusal for somebody who looks at pages, in the same words as for programs."""
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

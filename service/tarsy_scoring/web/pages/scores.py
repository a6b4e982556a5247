"""
The pages of sessions, scores and criteria, and their forms.

Callers with the scope `read` see the pages. Forms do what the API does, with the same checks. Every page
works without JavaScript; with it, `live.js` keeps an open page up to date.
"""

import asyncio
from typing import Annotated, Any, Literal, Self
from uuid import UUID, uuid4

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, RedirectResponse

from tarsy_scoring.audit import audit
from tarsy_scoring.events import (
    BOTH_REFERENCES,
    MAX_REFERENCE_CHARACTERS,
    MAX_URL_CHARACTERS,
    SESSION_ID_PATTERN,
    GivenReference,
)
from tarsy_scoring.live.events import OF_SESSION_PREFIX
from tarsy_scoring.missing_tools.built import read_marks
from tarsy_scoring.references import store as stored_references
from tarsy_scoring.statistics.loading import begin_to_load
from tarsy_scoring.web.access import Reading, Scoring
from tarsy_scoring.web.api.common import CRITERIA_HASH, CriteriaHash, SessionId, find_criteria, no_such_score
from tarsy_scoring.web.context import AppContext, Caller, context_of
from tarsy_scoring.web.pages import criteria_view, insights_view, labelling, score_view
from tarsy_scoring.web.pages.forms import form_fields, read_as
from tarsy_scoring.web.pages.rendering import Live, page, position_of, static_files
from tarsy_scoring.web.pages.session import Unreadable, read_session
from tarsy_scoring.web.problems import Problem
from tarsy_scoring.web.score_requests import request_score

router = APIRouter(include_in_schema=False)

HISTORY_SHOWN = 20
UNNAMED = ("auto", "event")  # requests of events that name no person
YEAR_S = 31_536_000

EarlierHash = Annotated[str | None, Query(pattern=CRITERIA_HASH)]


@router.get("/static/{digest}/{name}")
async def static_file(request: Request, _: Reading, digest: str, name: str) -> Response:
    """
    A style sheet, script or icon. Its address contains a digest of its content, so browsers may keep it.
    """
    file = static_files().get(name)
    if file is None or file.digest != digest:
        raise Problem(404, "Not found", "this version has no such file: reload the page that links to it")
    headers = {"Cache-Control": f"private, max-age={YEAR_S}, immutable"}
    return Response(file.content, 200, headers, media_type=file.media_type)


# --- scores --------------------------------------------------------------------------------------------


@router.get("/sessions/{session_id}")
async def session_page(request: Request, caller: Reading, session_id: SessionId) -> HTMLResponse:
    """The latest completed score of a session, else its newest one, and the state of its newest attempt."""
    audit.log_read("session", by=caller.name, session_id=session_id)
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
        raise no_such_score(score_id)
    audit.log_read("session", by=caller.name, session_id=document["session_id"], score_id=score_id)
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
    if document is not None:
        if document["total_score"] is not None:
            begin_to_load()  # for the trust card, which comes last
        document = await context.reader.with_labels_nearby(document)
    history = await context.reader.history(session_id, HISTORY_SHOWN + 1) or []
    turns = await context.reader.replies(document["score_id"]) if document else None
    row = await context.reader.newest_score(session_id)
    requested_by = await _requested_by(context, document) if document else None
    cited, cut = (score_view.cited(document), score_view.cut_entries(document)) if document else ([], [])
    references = (await stored_references.references_of(context.reader.database, [session_id])).get(
        session_id
    )
    judged_against = None
    if document is not None and document["reference"]:
        judged_against = await stored_references.text_of(context.reader.database, document["score_id"])
    marks = await read_marks(context.reader.database, [document["score_id"]] if document else ())
    session = await read_session(
        context.source,
        session_id,
        cited,
        cut,
        reference=judged_against,
        places=context.session_reads,
        extra_patterns=context.settings.config.masking.extra_patterns,
    )
    if document is None and isinstance(session, Unreadable) and not session.is_running:
        if session.is_gone or context.source is None:
            raise Problem(404, "Unknown session", f"there is no session {session_id}, or it was deleted")
        raise Problem(
            503, "Session not readable", f"the session {session_id} cannot be shown: {session.reason}"
        )
    newest = await context.reader.history(session_id, 1, purpose="production") or []
    criteria_hash = document["criteria_hash"] if document else None
    judged = await find_criteria(context, criteria_hash) if criteria_hash else None
    shown = score_view.values(
        session_id,
        document,
        session,
        row=row,
        history=history[:HISTORY_SHOWN],
        newest=newest[0] if newest else None,
        turns=turns or (),
        criteria_content=judged["content"] if judged else {},
    )
    return await asyncio.to_thread(  # rendering a long analysis would block the event loop
        page,
        "score.html",
        here="/",
        live=Live(f"{OF_SESSION_PREFIX}{session_id}", position),
        tarsy_url=context.settings.tarsy_url,
        is_of_session=is_of_session,
        may_score="score" in caller.scopes,
        has_more=len(history) > HISTORY_SHOWN,
        current_hash=context.policy.current_hash(document["criteria"], document["chain_id"])
        if document
        else None,
        criteria_names=sorted(context.policy.hashes),
        meanings=insights_view.meanings(context.registry),
        meaning_of_total=_meaning_of_total(context, document),
        key=str(uuid4()),
        requested_by=requested_by,
        built_since=marks.get(document["score_id"], ()) if document else (),
        judged_against=judged_against,
        newest_reference=references[0] if references else None,
        max_reference=MAX_REFERENCE_CHARACTERS,
        max_url=MAX_URL_CHARACTERS,
        **await labelling.label_values(context, document),
        **shown,
    )


def _meaning_of_total(context: AppContext, document: dict[str, Any] | None) -> str | None:
    if document is None or document["total_score"] is None or document["criteria"] not in context.registry:
        return None
    return context.registry.get(document["criteria"]).meaning


async def _requested_by(context: AppContext, document: dict[str, Any]) -> str:
    """
    Who asked for a score, so that a name which an event claims does not look like that of a signed-in person.
    """
    name: str = document["score_triggered_by"]
    if name in UNNAMED or await context.reader.is_asked_by_person(document["score_id"], name):
        return name
    return f"event: {name}"


# --- criteria ------------------------------------------------------------------------------------------


@router.get("/criteria/{criteria_hash}")
async def criteria_page(
    request: Request, _: Reading, criteria_hash: CriteriaHash, before: EarlierHash = None
) -> HTMLResponse:
    """The prompts and settings stored under a hash, and their changes since the criteria `before`."""
    context = context_of(request)
    found = await find_criteria(context, criteria_hash)
    older = await find_criteria(context, before) if before is not None else None
    if found is None or (before is not None and older is None):
        raise Problem(404, "Unknown criteria", "no criteria with this hash are stored or configured here")
    return page(
        "criteria.html",
        here="/",
        name=found["name"],
        criteria_hash=criteria_hash,
        first_used_at=found["first_used_at"],
        is_current=context.policy.is_current(found["name"], criteria_hash),
        before=older,
        changes=criteria_view.changes(older["content"], found["content"]) if older else None,
        content=criteria_view.in_sections(found["content"]),
    )


# --- forms ---------------------------------------------------------------------------------------------


NoNul = Field(None, pattern=r"^[^\x00]*$")


class ScoreForm(BaseModel):
    """Fields of the form that requests a score."""

    model_config = ConfigDict(hide_input_in_errors=True)

    key: Annotated[str, Field(max_length=100)] | None = NoNul
    criteria: Annotated[str, Field(max_length=255)] | None = NoNul
    reason: Annotated[str, Field(max_length=500)] | None = NoNul
    force: Literal["1"] | None = None
    reference: Annotated[str, Field(max_length=MAX_REFERENCE_CHARACTERS)] | None = NoNul
    source_url: str | None = None
    use_reference: Literal["0"] | None = None

    @model_validator(mode="after")
    def _has_a_text(self) -> Self:
        if self.source_url is not None and self.reference is None:
            raise ValueError("a link needs the text of the reference")
        if self.use_reference is not None and self.reference is not None:
            raise ValueError(BOTH_REFERENCES)
        return self

    @property
    def given(self) -> dict[str, str | None] | None:
        """The reference. Who gives it is known from the request alone."""
        if self.reference is None:
            return None
        # A browser sends CR LF, and the same text sent to the API is the same reference.
        return {"text": self.reference.replace("\r\n", "\n"), "source_url": self.source_url}


@router.post("/sessions/{session_id}/score")
async def score_session(request: Request, caller: Scoring, session_id: SessionId) -> RedirectResponse:
    """
    Request a score as `POST /api/v1/scoring/sessions/{session_id}/score` does, and go to the session's page.

    The form has an idempotency key, so a double click requests one score.
    """
    context = context_of(request)
    form = read_as(ScoreForm, form_fields(await request.body()))
    if form.criteria is not None and form.criteria not in context.policy.hashes:
        raise Problem(
            422, "Unknown criteria", "criteria of that name are no longer configured: choose others"
        )
    try:
        await request_score(
            request,
            caller,
            session_id,
            key=form.key,
            force=form.force is not None,
            criteria=form.criteria,
            reason=form.reason,
            reference=None if form.given is None else read_as(GivenReference, form.given),
            use_reference=form.use_reference is None,
        )
    except Problem as problem:
        if problem.status != 404 or await context.reader.newest_score(session_id) is None:
            raise
        detail = f"the session {session_id} cannot be scored again: the source no longer has it; its stored scores remain"
        raise Problem(404, "The source no longer has this session", detail) from problem
    return RedirectResponse(f"/sessions/{session_id}", 303)


@router.post("/scores/{score_id}/cancel")
async def cancel(request: Request, caller: Scoring, score_id: UUID) -> RedirectResponse:
    """
    Cancel a score and go to its session's page. A score that has ended in the meantime stays as it ended.
    """
    context = context_of(request)
    await context.leases.cancel(score_id, caller.name, is_patient=False)
    document = await context.reader.score(score_id)
    if document is None:
        raise no_such_score(score_id)
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

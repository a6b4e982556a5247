"""
Scores over HTTP: ask for one, read it, its history and the judge's replies, cancel it; and what scores refer to.
"""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json
from starlette.convertors import Convertor, register_url_convertor

from tarsy_scoring.queue import idempotency
from tarsy_scoring.queue.score_parts import Turn
from tarsy_scoring.records.cursors import InvalidCursor, decode_cursor, encode_cursor, read_id, read_time
from tarsy_scoring.web.api.common import (
    NO_SUCH_SCORE,
    PLAIN_TEXT,
    PREFIX,
    Reading,
    ScoreId,
    Scoring,
    SessionId,
    json_answer,
    no_such_score,
)
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.documents import ScoreDocument
from tarsy_scoring.web.problems import Problem, malformed
from tarsy_scoring.web.queries import HistoryQuery, no_parameters
from tarsy_scoring.web.score_requests import SOURCE_API, IdempotencyKey, one_idempotency_key, request_score


class _Anything(Convertor[str]):
    """A part of an address with whatever is in it: an encoded slash makes a malformed id, and not another address."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("anything", _Anything())
router = APIRouter(prefix=PREFIX, tags=["scores"])

MAX_REQUESTS_SHOWN = 1000


class ScoreRequest(BaseModel):
    """What is wanted; every part may be left out."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        json_schema_extra={"examples": [{"force_rescore": True, "reason": "the runbook was wrong"}]},
    )

    force_rescore: bool = Field(False, description="Make a new score, whatever has ended before.")
    criteria: str | None = Field(
        None, min_length=1, max_length=255, pattern=PLAIN_TEXT, description="A name; default: those of its chain."
    )
    reason: str | None = Field(None, max_length=4000, pattern=PLAIN_TEXT, description="Kept with the request.")


class History(BaseModel):
    """Scores of a session, newest first."""

    scores: list[ScoreDocument]
    next_cursor: str | None = Field(description="For `cursor`, to read on; null: this was the last page.")


class Reply(Turn):
    """One answered call of the judge, with its text."""

    ordinal: int
    reply: str
    refusal: str | None
    has_tool_calls: bool
    attempt: int
    created_at: datetime


class Replies(BaseModel):
    """What the judge answered in the course of a score."""

    score_id: UUID
    turns: list[Reply]


class RequestDocument(BaseModel):
    """Somebody's wish to have a session scored, and what became of it."""

    request_id: UUID
    event_id: str
    session_id: str | None = Field(description="Null where the session has been erased.")
    source: str = Field(examples=["session-completed", "rescore-requested", SOURCE_API, "cli"])
    disposition: str = Field(examples=["accepted", "in_progress", "deferred", "already_scored", "disabled", "stale"])
    score_id: UUID | None = Field(description="The score that it made, or that answers it.")
    arrivals: int = Field(ge=1, description="How often it came.")
    received_at: datetime
    chain_id: str | None
    requested_by: str
    force: bool
    criteria: str | None
    reason: str | None


class Requests(BaseModel):
    """The requests with one event id, oldest first: one for each topic and session that it was used for."""

    requests: list[RequestDocument]


class CriteriaDocument(BaseModel):
    """A definition of how to judge, as it was when it had this hash."""

    criteria_hash: str
    name: str
    content: dict[str, Any]
    first_used_at: datetime | None = Field(description="Null where nothing was judged under it yet.")
    is_current: bool = Field(description="Whether the criteria of that name still have this hash.")


# --- asking --------------------------------------------------------------------------------------------


@router.post(
    "/sessions/{session_id:anything}/score",
    summary="Ask for a score",
    response_model=None,
    status_code=202,
    dependencies=[Depends(no_parameters), Depends(one_idempotency_key)],
    responses={
        200: {"model": ScoreDocument, "description": "The latest completed score; nothing runs."},
        202: {"model": ScoreDocument, "description": "A new score, or the one that is pending or in progress."},
        400: {"description": "The session has not ended."},
        404: {"description": "There is no such session, it was deleted, or what was asked under the key was erased."},
        409: {"description": "A score is under way, and `force_rescore` or other criteria ask for another."},
        503: {"description": "The database is away, or nobody can say whether the session has ended."},
    },
)
async def ask(
    request: Request,
    caller: Scoring,
    session_id: SessionId,
    wanted: ScoreRequest | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """
    Have a session scored that has ended, or find its score.

    Without `force_rescore` the pending or in-progress score answers (202), else the latest completed one (200);
    where there is neither, a new one is made (202). With it a new one is made, and where one runs that is 409. Where
    `criteria` is given only scores under these count, and 409 says that one under others runs. A session that has
    not ended is 400.
    """
    wanted = wanted or ScoreRequest.model_validate({})
    found = await request_score(
        request,
        caller,
        session_id,
        key=idempotency_key,
        force=wanted.force_rescore,
        criteria=wanted.criteria,
        reason=wanted.reason,
    )
    text = found.first_answer
    if text is None:
        text = to_json(await _score(request, found.score_id)).decode()
        if found.key is not None:
            database = context_of(request).inbox.database
            text = await idempotency.complete_answer(database, found.key, found.request_id, text)
    location = request.url_for("read_score", score_id=str(found.score_id)).path
    return json_answer(text, 200 if found.outcome == "completed" else 202, {"Location": location})


@router.post(
    "/scores/{score_id}/cancel",
    summary="Cancel a score",
    response_model=None,
    dependencies=[Depends(no_parameters)],
    responses={
        200: {"model": ScoreDocument, "description": "It is cancelled."},
        404: NO_SUCH_SCORE,
        409: {"description": "It has ended."},
    },
)
async def cancel(request: Request, caller: Scoring, score_id: ScoreId) -> Response:
    """End a pending or in-progress score without a number. What the judge answered so far is kept."""
    is_cancelled = await context_of(request).leases.cancel(score_id, caller.name, is_patient=False)
    document = await _score(request, score_id)
    if is_cancelled:
        metrics = context_of(request).metrics
        metrics.scores.labels("cancelled", "cancelled", metrics.chain(document["chain_id"])).inc()
    else:
        raise Problem(
            409,
            "Score has ended",
            f"the score {score_id} is {document['status']}: only a pending or in-progress one can be cancelled",
            extra={"score_status": document["status"]},
        )
    return json_answer(document)


# --- reading -------------------------------------------------------------------------------------------


@router.get(
    "/sessions/{session_id:anything}/score",
    summary="Read the score of a session",
    response_model=None,
    dependencies=[Depends(no_parameters)],
    responses={200: {"model": ScoreDocument}, 404: {"description": "The session has no score."}},
)
async def read_score_of_session(request: Request, _: Reading, session_id: SessionId) -> Response:
    """
    The latest completed score, with `latest_attempt` where something newer runs or failed; where none is completed,
    the newest of any status.
    """
    document = await context_of(request).reader.score_of_session(session_id)
    if document is None:
        raise Problem(404, "No score", f"the session {session_id} has no score: POST here to ask for one")
    return json_answer(document)


@router.get(
    "/sessions/{session_id:anything}/scores",
    summary="Read all scores of a session",
    response_model=None,
    responses={200: {"model": History}, 404: {"description": "Nobody has asked about this session."}},
)
async def read_history(
    request: Request,
    _: Reading,
    session_id: SessionId,
    query: Annotated[HistoryQuery, Query()],
) -> Response:
    """Every score of the session, newest first, in pages that stay stable while scores are added."""
    asked = [session_id, query.purpose]
    try:
        after = None if query.cursor is None else decode_cursor(query.cursor, asked, [read_time, read_id])
    except InvalidCursor as error:
        raise malformed(["query", "cursor"], str(error)) from error
    reader, place = context_of(request).reader, (after[0], after[1]) if after else None
    documents = await reader.history(session_id, query.limit + 1, place, query.purpose)
    if documents is None:
        raise Problem(404, "Unknown session", f"nobody has asked about a session {session_id}")
    page = documents[: query.limit]
    next_cursor = None
    if len(documents) > query.limit:
        next_cursor = encode_cursor([page[-1]["created_at"], page[-1]["score_id"]], asked)
    return json_answer({"scores": page, "next_cursor": next_cursor})


@router.get(
    "/scores/{score_id}",
    summary="Read a score",
    response_model=None,
    dependencies=[Depends(no_parameters)],
    responses={200: {"model": ScoreDocument}, 404: NO_SUCH_SCORE},
)
async def read_score(request: Request, _: Reading, score_id: ScoreId) -> Response:
    """One score, whatever its status and purpose."""
    return json_answer(await _score(request, score_id))


@router.get(
    "/scores/{score_id}/turns",
    summary="Read the judge's replies",
    response_model=None,
    dependencies=[Depends(no_parameters)],
    responses={200: {"model": Replies}, 404: NO_SUCH_SCORE},
)
async def read_turns(request: Request, _: Reading, score_id: ScoreId) -> Response:
    """What the judge answered, in full and in order; an open score has those that were stored so far."""
    turns = await context_of(request).reader.replies(score_id)
    if turns is None:
        raise no_such_score(score_id)
    return json_answer({"score_id": score_id, "turns": turns})


@router.get(
    "/requests/{event_id:path}",
    summary="Look up what became of an event",
    response_model=None,
    dependencies=[Depends(no_parameters)],
    responses={200: {"model": Requests}, 404: {"description": "No request has this event id."}},
)
async def read_requests(
    request: Request,
    _: Reading,
    event_id: Annotated[str, Path(min_length=1, max_length=255, pattern=PLAIN_TEXT, examples=["event-4711"])],
) -> Response:
    """
    The requests with this event id, at most 1000. One made over HTTP has its `Idempotency-Key` for one, else its own
    `request_id`.
    """
    found = await context_of(request).inbox.requests_of_event(event_id, MAX_REQUESTS_SHOWN)
    if not found:
        raise Problem(404, "Unknown event", "no request has this event id; one that was refused is a dead letter")
    return json_answer({"requests": [{name: row[name] for name in RequestDocument.model_fields} for row in found]})


@router.get(
    "/criteria/{criteria_hash}",
    summary="Read criteria",
    response_model=None,
    dependencies=[Depends(no_parameters)],
    responses={200: {"model": CriteriaDocument}, 404: {"description": "None have this hash."}},
)
async def read_criteria(
    request: Request,
    _: Reading,
    criteria_hash: Annotated[str, Path(min_length=1, max_length=255, pattern=r"^[A-Za-z0-9_-]+$")],
) -> Response:
    """The whole content of criteria that a score was or will be judged under."""
    context = context_of(request)
    found = await context.reader.criteria(criteria_hash)
    if found is None:
        current = next((c for c in context.registry if c.criteria_hash == criteria_hash), None)
        if current is None:
            raise Problem(404, "Unknown criteria", "no criteria with this hash have judged or can judge here")
        known = {"criteria_hash": criteria_hash, "name": current.name, "content": current.content}
        found = known | {"first_used_at": None}
    return json_answer(found | {"is_current": context.policy.hashes.get(found["name"]) == criteria_hash})


async def _score(request: Request, score_id: UUID) -> dict[str, Any]:
    document = await context_of(request).reader.score(score_id)
    if document is None:
        raise no_such_score(score_id)
    return document

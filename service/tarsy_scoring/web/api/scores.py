"""Routes for single scores: request, read and cancel; history, replies, requests and criteria."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import Path, Query, Request, Response
from pydantic import BaseModel, Field, TypeAdapter
from pydantic_core import to_json

from tarsy_scoring.queue import idempotency
from tarsy_scoring.scores.cursors import InvalidCursor, Time, decode_cursor, encode_cursor
from tarsy_scoring.scores.shapes import ScoreDocument, Turn
from tarsy_scoring.scores.why_no_score import why_no_score
from tarsy_scoring.web.api.common import (
    NO_SUCH_SCORE,
    PLAIN_TEXT,
    CriteriaHash,
    ScoreId,
    SessionId,
    find_criteria,
    json_answer,
    no_such_score,
    require_score,
    scoring_routes,
)
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.access import Admitted
from tarsy_scoring.web.edge.problems import Problem, malformed
from tarsy_scoring.web.queries import HistoryQuery
from tarsy_scoring.web.score_requests import SOURCE_API, IdempotencyKey, ScoreRequest, request_score

router = scoring_routes("scores")

_PLACE = TypeAdapter(tuple[Time, UUID])  # time and id after which a history page begins
# `:path`: an encoded slash makes a malformed id (422), and not another address.
SESSION = "/sessions/{session_id:path}"


class History(BaseModel):
    """Scores that a session has, newest first."""

    scores: list[ScoreDocument]
    next_cursor: str | None = Field(description="Value of `cursor` for the next page; null on the last page.")


class Reply(Turn):
    """One judge call with the reply text."""

    ordinal: int
    reply: str
    refusal: str | None
    has_tool_calls: bool
    attempt: int
    created_at: datetime


class Replies(BaseModel):
    """The judge's replies for one score."""

    score_id: UUID
    turns: list[Reply]


class RequestDocument(BaseModel):
    """A request for a score, and what became of it."""

    request_id: UUID
    event_id: str
    session_id: str | None = Field(description="Null if the session has been erased.")
    source: str = Field(examples=["session-completed", "rescore-requested", SOURCE_API, "cli", "review"])
    disposition: str = Field(examples=["accepted", "in_progress", "superseded", "disabled", "stale"])
    superseded_by: UUID | None = Field(
        description="The request that replaced a superseded one, while the event about it is stored."
    )
    score_id: UUID | None = Field(description="The score that the request made, or that answers it.")
    arrivals: int = Field(ge=1, description="How often the request arrived.")
    received_at: datetime
    chain_id: str | None
    requested_by: str
    force: bool
    criteria: str | None
    reason: str | None


class Requests(BaseModel):
    """The requests with one event id, oldest first; several if it was used for several topics or sessions."""

    requests: list[RequestDocument]


class CriteriaDocument(BaseModel):
    """Criteria as they were when they had this hash."""

    criteria_hash: str
    name: str
    content: dict[str, Any]
    first_used_at: datetime | None = Field(description="Null if no score was judged under them yet.")
    is_current: bool = Field(description="Whether the criteria of that name still have this hash.")


# --- requests ------------------------------------------------------------------------------------------


@router.post(
    f"{SESSION}/score",
    summary="Request a score",
    status_code=202,
    responses={
        200: {"model": ScoreDocument, "description": "The latest completed score; no score is open."},
        202: {"model": ScoreDocument, "description": "A new score, or the open one."},
        400: {"description": "The session has not ended."},
        404: {"description": "The session is unknown, deleted, or, under this key, erased."},
        409: {"description": "A score is under way, and `force_rescore` or `criteria` requires another one."},
    },
)
async def ask(
    request: Request,
    caller: Admitted,
    session_id: SessionId,
    wanted: ScoreRequest | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """
    Score a session that has ended, or return its score.

    Without `force_rescore` the answer is the pending or in-progress score (202), else the latest completed
    one (200), else a new one (202). With `force_rescore` a new score is made; if one is open, the answer is
    409. With a `reference` the new score is judged against it, and so are later ones that do not decline it
    with `use_reference`. With `criteria` only scores under these criteria count; if one under other criteria
    is open, the answer is 409. If the session has not ended, the answer is 400.
    """
    wanted = wanted or ScoreRequest()
    found, key = await request_score(request, caller, session_id, wanted, idempotency_key)
    text = found.text
    if text is None:
        text = to_json(await require_score(context_of(request), found.score_id)).decode()
        if key is not None:
            database = context_of(request).inbox.database
            text = await idempotency.complete_answer(database, key, found.request_id, text)
    location = request.url_for("read_score", score_id=str(found.score_id)).path
    return json_answer(text, 200 if found.disposition == "already_scored" else 202, {"Location": location})


@router.post(
    "/scores/{score_id}/cancel",
    summary="Cancel a score",
    responses={
        200: {"model": ScoreDocument, "description": "The score is cancelled."},
        404: NO_SUCH_SCORE,
        409: {"description": "The score has ended."},
    },
)
async def cancel(request: Request, caller: Admitted, score_id: ScoreId) -> Response:
    """End a pending or in-progress score without a number. The judge's replies so far are kept."""
    context = context_of(request)
    is_cancelled = await context.leases.cancel(score_id, caller.name)
    document = await require_score(context, score_id)
    status = document["status"]
    if not is_cancelled:
        detail = f"the score {score_id} is {status}: only an open score can be cancelled"
        raise Problem(409, "Score has ended", detail, extra={"score_status": status})
    context.metrics.scores.labels("cancelled", "cancelled", context.metrics.chain(document["chain_id"])).inc()
    return json_answer(document)


# --- reading -------------------------------------------------------------------------------------------


@router.get(
    f"{SESSION}/score",
    summary="Read the score of a session",
    responses={200: {"model": ScoreDocument}, 404: {"description": "The session has no score."}},
)
async def read_score_of_session(request: Request, session_id: SessionId) -> Response:
    """
    The latest completed score, with `latest_attempt` if a newer one is open or failed; without a completed
    score the newest, whatever the status.
    """
    reader = context_of(request).reader
    document = await reader.score_of_session(session_id)
    if document is None:
        advice = "if the source has the session, POST to this address to request one"
        why = why_no_score(None, await reader.disposition(session_id))
        raise Problem(404, "No score", f"no score of a session {session_id} is stored: {advice}. {why}")
    return json_answer(document)


@router.get(
    f"{SESSION}/scores",
    summary="Read all scores of a session",
    responses={200: {"model": History}, 404: {"description": "The session is unknown."}},
)
async def read_history(
    request: Request, session_id: SessionId, query: Annotated[HistoryQuery, Query()]
) -> Response:
    """Every score that the session has, newest first. Pages stay stable while scores are added."""
    asked = [session_id, query.purpose]
    try:
        after = None if query.cursor is None else decode_cursor(query.cursor, asked, _PLACE)
    except InvalidCursor as error:
        raise malformed(["query", "cursor"], str(error)) from error
    documents = await context_of(request).reader.history(session_id, query.limit + 1, after, query.purpose)
    if documents is None:
        raise Problem(404, "Unknown session", f"no event and no request has named the session {session_id}")
    page = documents[: query.limit]
    next_cursor = None
    if len(documents) > query.limit:
        next_cursor = encode_cursor([page[-1]["created_at"], page[-1]["score_id"]], asked)
    return json_answer({"scores": page, "next_cursor": next_cursor})


@router.get(
    "/scores/{score_id}",
    summary="Read a score",
    responses={200: {"model": ScoreDocument}, 404: NO_SUCH_SCORE},
)
async def read_score(request: Request, score_id: ScoreId) -> Response:
    """One score, whatever the status and purpose."""
    return json_answer(await require_score(context_of(request), score_id))


@router.get(
    "/scores/{score_id}/turns",
    summary="Read the judge's replies",
    responses={200: {"model": Replies}, 404: NO_SUCH_SCORE},
)
async def read_turns(request: Request, caller: Admitted, score_id: ScoreId) -> Response:
    """The judge's replies in full and in order; while a score is open, those stored so far."""
    turns = await context_of(request).reader.replies(score_id)
    if turns is None:
        raise no_such_score(score_id)
    return json_answer({"score_id": score_id, "turns": turns})


@router.get(
    "/requests/{event_id:path}",
    summary="Look up the requests of an event",
    responses={200: {"model": Requests}, 404: {"description": "No request has this event id."}},
)
async def read_requests(
    request: Request,
    event_id: Annotated[str, Path(min_length=1, max_length=255, pattern=PLAIN_TEXT, examples=["event-4711"])],
) -> Response:
    """
    The requests with this event id, at most 1000. A request over HTTP has its
    `Idempotency-Key` as event id, else the `request_id`.
    """
    found = await context_of(request).inbox.requests_of_event(event_id)
    if not found:
        raise Problem(404, "Unknown event", "no request has this event id; refused events are dead letters")
    return json_answer(
        {"requests": [{name: row[name] for name in RequestDocument.model_fields} for row in found]}
    )


@router.get(
    "/criteria/{criteria_hash}",
    summary="Read criteria",
    responses={200: {"model": CriteriaDocument}, 404: {"description": "No criteria have this hash."}},
)
async def read_criteria(request: Request, criteria_hash: CriteriaHash) -> Response:
    """Criteria that a score was or will be judged under."""
    context = context_of(request)
    found = await find_criteria(context, criteria_hash)
    if found is None:
        raise Problem(404, "Unknown criteria", "no stored or configured criteria have this hash")
    return json_answer(found | {"is_current": context.policy.is_current(found["name"], criteria_hash)})

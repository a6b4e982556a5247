"""
Requests a score for an HTTP caller.

Only `request_score` turns an HTTP request into a queue request. The API, the routes at TARSy's addresses and
the page form call it.
"""

import asyncio
import hashlib
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal
from uuid import uuid4

from fastapi import Header
from pydantic import ConfigDict, Field
from pydantic_core import to_json
from starlette.requests import Request as HttpRequest

from tarsy_scoring import errors
from tarsy_scoring.events import GivenReference, Referring
from tarsy_scoring.queue.admission import Answer, Priority, Request, ScoreUnderWay
from tarsy_scoring.queue.idempotency import Key, KeyErased, KeyUsedOtherwise
from tarsy_scoring.queue.inbox import NotStorable, UnverifiedSession
from tarsy_scoring.references.model import reference_of
from tarsy_scoring.telemetry.otel import read_traceparent
from tarsy_scoring.telemetry.tracing import TRACEPARENT
from tarsy_scoring.timeline.clean.masking import masking_of
from tarsy_scoring.timeline.model import TERMINAL_STATUSES
from tarsy_scoring.web.api.common import PLAIN_TEXT
from tarsy_scoring.web.context import AppContext, context_of
from tarsy_scoring.web.edge.caller import Caller
from tarsy_scoring.web.edge.problems import NOT_TERMINAL, Problem, malformed
from tarsy_scoring.web.queries import Word

SOURCE_API = "api"
TIMELINE_RETRY_S = 5
IDEMPOTENCY_KEY = "Idempotency-Key"

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias=IDEMPOTENCY_KEY,
        min_length=1,
        max_length=255,
        pattern=r"^[!-~]([ -~]*[!-~])?$",
        description="A repeat under the same key gets the first answer again, for 24 hours. Keys are per "
        "caller, and for anonymous callers per address.",
    ),
]


class WantedReference(GivenReference):
    """What people found out about an incident later. The judge judges against it."""

    model_config = ConfigDict(extra="forbid")


class ScoreRequest(Referring):
    """Options when requesting a score; all optional."""

    model_config = ConfigDict(strict=True, extra="forbid")

    force_rescore: bool = Field(False, description="Make a new score, even if there is a completed one.")
    criteria: Word | None = Field(
        None, description="Name of criteria; default: those of the session's chain."
    )
    reason: str | None = Field(
        None, max_length=4000, pattern=PLAIN_TEXT, description="Kept with the request."
    )
    reference: WantedReference | None = Field(None, description="Judge against it; implies `force_rescore`.")
    use_reference: bool = Field(
        True,
        description="False: without the session's reference; implies `force_rescore`, excludes `reference`.",
    )
    purpose: Literal["production", "shadow"] = Field(
        "production", description="`shadow`: a trial beside the session's score, without a reference."
    )


async def request_score(
    http: HttpRequest, caller: Caller, session_id: str, wanted: ScoreRequest, key: str | None = None
) -> tuple[Answer, Key | None]:
    """
    Find or make the score that answers a request: a new one, the open one, or a completed one.

    Args:
        http: Holds context, key headers, and the caller's trace.
        key: The caller's idempotency key. A repeat under the key finds the first score again.

    Returns:
        The answer, and the key under which it was kept.

    Raises:
        Problem: 400, the session has not ended; 404, it does not exist, or the session first requested
            under the key was erased; 409, another score is under way; 422, the session is too large, the
            criteria are unknown, a text cannot be stored, the key belongs to a different request, or there
            are several keys; 503, the source cannot say whether the session has ended.
        DatabaseAway: Repeating the request under the same key is safe.
    """
    if len(http.headers.getlist(IDEMPOTENCY_KEY)) > 1:
        raise malformed(["header", IDEMPOTENCY_KEY], f"{IDEMPOTENCY_KEY}: given more than once")
    request_id, context = uuid4(), context_of(http)
    patterns, reference = context.settings.config.masking_patterns, None
    if wanted.reference is not None:
        if wanted.purpose == "shadow":
            raise malformed(["body"], "a trial is judged without a reference: leave one of them out")
        sender = partial(reference_of, by=caller.name, sent_by=caller.sender)
        reference = await asyncio.to_thread(sender, wanted.reference, session_id, patterns)
    request = Request(
        request_id=request_id,
        session_id=session_id,
        source=SOURCE_API,
        event_id=key or str(request_id),
        requested_by=caller.name,
        force=wanted.force_rescore or reference is not None or not wanted.use_reference,
        criteria=wanted.criteria,
        reason=wanted.reason,
        priority=Priority.PEOPLE,
        purpose=wanted.purpose,
        reference=reference,
        use_reference=bool(wanted.use_reference),
        traceparent=read_traceparent(http.headers.getlist(TRACEPARENT)),
    )
    request = await asyncio.to_thread(request.masked, masking_of(patterns))
    # The key is stored with this hash, which is the same however the request is spelt, in earlier versions too.
    newer = {"purpose"} if wanted.purpose == "production" else None
    asked = hashlib.sha256(to_json([session_id, wanted.model_dump(mode="json", exclude=newer)])).hexdigest()
    stored_key = None if key is None else Key(caller.identity, key, asked)
    answer = await _ask(context, request, stored_key)
    disposition = "repeated" if answer.is_repeat else answer.disposition
    context.metrics.requests.labels(SOURCE_API, disposition).inc()
    return answer, stored_key


async def _ask(context: AppContext, request: Request, key: Key | None) -> Answer:
    """
    Request the score from the queue, after checking the session at the source if the queue requires that.

    The source is read only if a new score would be made, and outside the transaction that locks the
    session's row.

    Raises:
        Problem: See `request_score`.
    """
    # Decides again under the lock after the session was verified, since another request may have come first.
    try:
        answer = await context.inbox.request_score(request, key, is_verified=False)
        if isinstance(answer, UnverifiedSession):
            verified = await _verify(context, request, answer)
            answer = await context.inbox.request_score(verified, key, is_verified=True)
    except errors.UnknownCriteria as error:
        known = ", ".join(sorted(context.policy.hashes))
        detail = f"there are no criteria with the name in `criteria` (known: {known})"
        raise malformed(["body", "criteria"], detail, "Unknown criteria") from error
    except KeyErased as error:
        detail = (
            "the session first requested under this Idempotency-Key has been erased: use another key to "
            "score a session that the source still has"
        )
        raise Problem(404, "Erased", detail) from error
    except NotStorable as error:
        raise malformed(["body"], "a text in the body cannot be stored") from error
    except KeyUsedOtherwise as error:
        detail = "this Idempotency-Key was used for a different request: use another key"
        raise malformed(["header", IDEMPOTENCY_KEY], detail, "Key used before") from error
    except ScoreUnderWay as error:
        way_out = ", or leave out force_rescore and reference to get it"
        if error.is_otherwise:
            way_out = f"; it is under other criteria than {request.criteria}"
        detail = f"a score of {request.session_id} is under way: wait until it ends, or cancel it{way_out}"
        extra = {"score_id": str(error.score_id)}
        raise Problem(409, "Scoring under way", detail, extra=extra) from error
    assert not isinstance(answer, UnverifiedSession), "its session was verified"
    return answer


async def _verify(context: AppContext, request: Request, known: UnverifiedSession) -> Request:
    """
    Check that the session has ended, and add chain, status and end to the request.

    The chain that the source gives wins over the one from an event, unless the operator lets events choose.
    Without a source, or while it cannot be read, what events have said about the session counts.

    Raises:
        Problem: 400, 404, 422 or 503, see `request_score`.
    """
    if context.source is None:
        if not known.is_known:
            raise _unknown(request.session_id)
        if known.status not in (None, *TERMINAL_STATUSES):
            raise _running(request.session_id)
        return request
    try:
        found = await context.source.find_session(request.session_id)
    except errors.SessionNotFound as error:
        raise _unknown(request.session_id) from error
    except errors.SessionNotTerminal as error:
        raise _running(request.session_id) from error
    except errors.SessionTooLarge as error:
        raise malformed(["path", "session_id"], str(error), "Session too large") from error
    except errors.TimelineUnavailable as error:
        if known.status in TERMINAL_STATUSES:
            return request
        raise Problem(
            503,
            "Sessions unavailable",
            f"the timeline source cannot be read for the session {request.session_id} now: try again shortly",
            headers={"Retry-After": str(TIMELINE_RETRY_S)},
        ) from error
    chains = [found.chain_id, known.chain_id]
    if context.settings.events_choose_chains:
        chains.reverse()
    return replace(
        request, chain_id=chains[0] or chains[1], session_status=found.status, completed_at=found.completed_at
    )


def _unknown(session_id: str) -> Problem:
    return Problem(404, "Unknown session", f"there is no session {session_id}, or it was deleted")


def _running(session_id: str) -> Problem:
    return Problem(400, NOT_TERMINAL, f"the session {session_id} has not ended: ask again when it has")

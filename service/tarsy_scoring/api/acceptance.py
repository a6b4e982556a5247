"""
How a score is asked for over HTTP, whoever spells the address: answered at once, or refused with the reason.
"""

from dataclasses import replace

from tarsy_scoring.admission import Request
from tarsy_scoring.api.site import Problem, Site
from tarsy_scoring.asking import Answer
from tarsy_scoring.errors import SessionNotFound, SessionNotTerminal, TimelineUnavailable
from tarsy_scoring.inbox import NotStorable, Unvouched
from tarsy_scoring.journal import KeptAnswer, Key
from tarsy_scoring.timeline.model import TERMINAL_STATUSES, FoundSession

SOURCE_API = "api"
TIMELINE_RETRY_S = 5


async def ask_for_score(site: Site, request: Request, key: Key | None = None) -> Answer | KeptAnswer:
    """
    The score that answers a request: a new one, the open one, or a completed one.

    The source is asked about the session only where a score would be made, and never while its row is locked.

    Raises:
        Problem: 400 the session has not ended, 404 there is none, 409 another score runs, 422 other things were
            asked under this key, 503 nobody can say whether the session has ended.
        DatabaseAway: Asking again under the same key is safe.
    """
    try:
        answer = await site.inbox.ask(request, key, is_vouched=False)
        if isinstance(answer, Unvouched):
            vouched = await _vouch(site, request, answer)
            answer = await site.inbox.ask(vouched, key, is_vouched=True)
    except NotStorable as error:
        raise Problem(422, "Malformed request", "the request holds a text that cannot be stored") from error
    assert not isinstance(answer, Unvouched), "this one was vouched for"
    if isinstance(answer, KeptAnswer):
        if not answer.is_same_question:
            raise Problem(
                422,
                "Key used before",
                "something else was asked under this Idempotency-Key: take another key for another request",
            )
        return answer
    if answer.decision is None:
        raise _busy(request, answer)
    return answer


def _busy(request: Request, answer: Answer) -> Problem:
    if answer.outcome == "busy_otherwise":
        detail = (
            f"a score of the session {request.session_id} is under way, and not under the criteria "
            f"{request.criteria}: ask again when it has ended, or cancel it"
        )
    else:
        detail = (
            f"a score of the session {request.session_id} is under way: ask again when it has ended, cancel it, or "
            "take it as it is by asking without force_rescore"
        )
    return Problem(409, "Scoring under way", detail, extra={"score_id": str(answer.score_id)})


async def _vouch(site: Site, request: Request, known: Unvouched) -> Request:
    """
    The request, with what is known of its session; what an event said of the chain goes before what the source says.

    What we were told ourselves counts where there is no source, or it cannot be read.
    """
    found: FoundSession | None = None
    if site.source is not None:
        try:
            found = await site.source.find_session(request.session_id)
        except SessionNotFound as error:
            raise _unknown(request.session_id) from error
        except SessionNotTerminal as error:
            raise _running(request.session_id) from error
        except TimelineUnavailable as error:
            if known.status not in TERMINAL_STATUSES:
                raise Problem(
                    503,
                    "Sessions unavailable",
                    f"whether the session {request.session_id} has ended cannot be read now: try again shortly",
                    headers={"Retry-After": str(TIMELINE_RETRY_S)},
                ) from error
    elif not known.is_known:
        raise _unknown(request.session_id)
    elif known.status is not None and known.status not in TERMINAL_STATUSES:
        raise _running(request.session_id)
    if found is None:
        return request
    return replace(
        request,
        chain_id=known.chain_id or found.chain_id,
        session_status=found.status,
        completed_at=found.completed_at,
    )


def _unknown(session_id: str) -> Problem:
    return Problem(404, "Unknown session", f"there is no session {session_id}, or it was deleted")


def _running(session_id: str) -> Problem:
    return Problem(
        400, "Session not terminal", f"the session {session_id} has not ended: ask for its score when it has"
    )

"""
How a score is asked for over HTTP, whoever spells the address: answered at once, or refused with the reason.
"""

import hashlib
from dataclasses import replace
from typing import Annotated

import structlog
from fastapi import Header
from pydantic_core import to_json

from tarsy_scoring.errors import SessionNotFound, SessionNotTerminal, TimelineUnavailable, UnknownCriteria
from tarsy_scoring.queue.admission import Request
from tarsy_scoring.queue.idempotency import KeptAnswer, Key, KeyErased
from tarsy_scoring.queue.inbox import NotStorable, Unvouched
from tarsy_scoring.queue.on_demand import Answer
from tarsy_scoring.timeline.files import BrokenSessionFile
from tarsy_scoring.timeline.model import TERMINAL_STATUSES, FoundSession
from tarsy_scoring.web.context import Caller, Problem, Site, malformed
from tarsy_scoring.web.declared import IDEMPOTENCY_KEY

log = structlog.get_logger()

SOURCE_API = "api"
TIMELINE_RETRY_S = 5

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias=IDEMPOTENCY_KEY,
        min_length=1,
        max_length=255,
        pattern=r"^[!-~]([ -~]*[!-~])?$",
        description="A repeat under the same key gets the first answer again, for 24 hours. Keys are per caller, "
        "and of callers whom nobody names per address.",
    ),
]


def key_of(caller: Caller, key: str | None, asked: Request) -> Key | None:
    """The key under which somebody asks; however a question is spelt, it is the same one."""
    if key is None:
        return None
    wanted = {"force_rescore": asked.force, "criteria": asked.criteria, "reason": asked.reason}
    return Key(caller.identity, key, hashlib.sha256(to_json([asked.session_id, wanted])).hexdigest())


async def ask_for_score(site: Site, request: Request, key: Key | None = None) -> Answer | KeptAnswer:
    """
    The score that answers a request: a new one, the open one, or a completed one.

    The source is asked about the session only where a score would be made, and never while its row is locked.

    Raises:
        Problem: 400 the session has not ended, 404 there is none, or what was asked under the key has been erased,
            409 another score runs, 422 there are no such criteria or other things were asked under this key, 503
            nobody can say whether the session has ended.
        DatabaseAway: Asking again under the same key is safe.
    """
    try:
        answer = await site.inbox.ask(request, key, is_vouched=False)
        if isinstance(answer, Unvouched):
            vouched = await _vouch(site, request, answer)
            answer = await site.inbox.ask(vouched, key, is_vouched=True)
    except UnknownCriteria as error:
        known = ", ".join(sorted(site.policy.hashes))
        detail = f"no criteria have the name that `criteria` gives (known: {known})"
        raise malformed(["body", "criteria"], detail, "Unknown criteria") from error
    except KeyErased as error:
        detail = (
            "what was asked under this Idempotency-Key has been erased, and nothing new is made under it: to score a "
            "session that its source still has, ask under another key"
        )
        raise Problem(404, "Erased", detail) from error
    except NotStorable as error:
        raise malformed(["body"], "it holds a text that cannot be stored") from error
    assert not isinstance(answer, Unvouched), "this one was vouched for"
    if isinstance(answer, KeptAnswer):
        if not answer.is_same_question:
            detail = "something else was asked under this Idempotency-Key: take another key for another request"
            raise malformed(["header", IDEMPOTENCY_KEY], detail, "Key used before")
        site.metrics.requests.labels(SOURCE_API, "repeated").inc()
        return answer
    if answer.decision is None:
        raise _busy(request, answer)
    site.metrics.requests.labels(SOURCE_API, answer.decision.disposition).inc()
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
        except BrokenSessionFile as error:
            if known.status not in TERMINAL_STATUSES:
                log.warning("api.session_unreadable", session_id=request.session_id, reason=str(error))
                raise _unreadable(request.session_id) from error
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


def _unreadable(session_id: str) -> Problem:
    """Without a time to try again: nothing changes until somebody mends it."""
    return Problem(
        503,
        "Session unreadable",
        f"whether the session {session_id} has ended cannot be told: its file cannot be read as a session; the log of "
        "the API says what is wrong with it",
    )


def _running(session_id: str) -> Problem:
    return Problem(
        400, "Session not terminal", f"the session {session_id} has not ended: ask for its score when it has"
    )

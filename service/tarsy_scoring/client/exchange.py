"""
The exchange of one method with the API, without input or output: what to send, when to wait, what the answer
means.

A method is a generator. It yields a `Call` or a `Pause` and gets back what came of it; `synchronous.py` and
`asynchronous.py` only carry that out. So both clients behave alike, and tests need no network.
"""

import json
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tarsy_scoring.client import parameters
from tarsy_scoring.client.errors import BY_STATUS, ApiError, RequestRefused, Unavailable
from tarsy_scoring.client.models import Score
from tarsy_scoring.client.parameters import Call

A = TypeVar("A", bound=BaseModel)
T = TypeVar("T")

TRIES = 3
PAUSES_S = (0.5, 2.0)  # before the second and the third try, where the API does not say
LONGEST_PAUSE_S = 30.0  # a longer `Retry-After` is the caller's decision
POLLS_S = (1.0, 2.0, 5.0, 10.0)  # a judgement takes a minute or more, so the last one is repeated
LONGEST_MESSAGE = 1_000  # characters of an answer that is no problem document


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before the next step."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. The names of `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


Step = Call | Pause
Got = Reply | Unavailable | None
Exchange = Generator[Step, Got, T]


def once(call: Call, kind: type[A]) -> Exchange[A]:
    """
    Send a request, up to three times where a repeat may help, and read its answer.

    A 429 or 503 is repeated after `Retry-After`, and a broken connection where a repeat does no harm.

    Raises:
        ApiError: The API refused the last try, or asks for a wait of more than 30 s.
    """
    for left in reversed(range(TRIES)):
        got = yield call
        error = error_of(got) if isinstance(got, Reply) else got
        if error is None:
            assert isinstance(got, Reply)
            return read(got.body, kind)
        pause_s = _pause_before_repeat(error, call, left)
        if pause_s is None:
            raise error
        yield Pause(pause_s)
    raise AssertionError("the last try returns or raises")


def _pause_before_repeat(error: ApiError, call: Call, left: int) -> float | None:
    """Seconds to wait before a repeat; None: the error is final."""
    is_asked_to = error.status in (429, 503) and error.retry_after_s is not None
    is_broken = error.status is None and call.is_repeatable
    if not left or not (is_asked_to or is_broken):
        return None
    pause_s = PAUSES_S[-left] if error.retry_after_s is None else error.retry_after_s
    return pause_s if pause_s <= LONGEST_PAUSE_S else None


def wait_for_score(
    of: str | Score, timeout_s: float, clock: Callable[[], float] = time.monotonic
) -> Exchange[Score]:
    """
    Read a score, or the newest one of a session, until it has ended.

    Args:
        of: Id of a session, or a score.

    Raises:
        TimeoutError: It is still open after `timeout_s`; the message says what it waits for.
        ApiError: See `once`.
    """
    deadline = clock() + timeout_s
    score = of if isinstance(of, Score) else (yield from _newest_of(of))
    polls = iter(POLLS_S)
    while score.is_open:
        left_s = deadline - clock()
        if left_s <= 0:
            why = f": {score.waiting_for_text}" if score.waiting_for_text else ""
            raise TimeoutError(f"score {score.score_id} is {score.status} after {timeout_s:g} s{why}")
        yield Pause(min(next(polls, POLLS_S[-1]), left_s))
        score = yield from once(parameters.score_by_id(score.score_id), Score)
    return score


def _newest_of(session_id: str) -> Exchange[Score]:
    score = yield from once(parameters.score_of_session(session_id), Score)
    if score.latest_attempt is None:
        return score
    return (yield from once(parameters.score_by_id(score.latest_attempt.score_id), Score))


def error_of(reply: Reply) -> ApiError | None:
    """The error that an answer is; None for a success."""
    if 200 <= reply.status < 300:
        return None
    try:
        problem = json.loads(reply.body)
    except ValueError:  # a proxy answered
        problem = None
    if not isinstance(problem, dict):
        text = reply.body.decode("utf-8", "replace").strip()[:LONGEST_MESSAGE]
        problem = {"detail": f"the answer has the status {reply.status}" + (f": {text}" if text else "")}
    otherwise = Unavailable if reply.status >= 500 else RequestRefused
    message = str(problem.get("detail") or problem.get("message") or f"status {reply.status}")
    faults = problem.get("errors")
    if isinstance(faults, list) and reply.status == 422:
        message += "".join(f"; {_fault(fault)}" for fault in faults if isinstance(fault, dict))
    return BY_STATUS.get(reply.status, otherwise)(
        message,
        status=reply.status,
        type=problem.get("type"),
        request_id=reply.headers.get("x-request-id"),
        retry_after_s=_seconds(reply.headers.get("retry-after")),
    )


def _fault(fault: Mapping[str, Any]) -> str:
    place = fault.get("loc")
    return (
        f"{'.'.join(map(str, place))}: {fault.get('msg')}"
        if isinstance(place, list)
        else str(fault.get("msg"))
    )


def _seconds(retry_after: str | None) -> float | None:
    return float(retry_after) if retry_after is not None and retry_after.isdecimal() else None


def read(body: bytes, kind: type[A]) -> A:
    """Read an answer. Raises: Unavailable: it is not one of this API."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, fault["loc"])) or "the document"
        raise Unavailable(
            f"the answer is not one of this API ({place}: {fault['msg']}); check `base_url`, and whether the service "
            "is older than the client"
        ) from None


class Lines:
    """Splits a stream of bytes into lines at line feeds alone; JSON may hold other line separators."""

    def __init__(self) -> None:
        self._begun = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that end in this chunk."""
        *lines, self._begun = (self._begun + chunk).split(b"\n")
        return lines

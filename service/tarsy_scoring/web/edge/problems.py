"""
Refusals and failures as RFC 9457 problem details, or as a page for browsers.

An answer never repeats what was sent, and says nothing about the cause.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.routing import Match

from tarsy_scoring.missing_tools.decisions import SameTool, UnknownTool
from tarsy_scoring.postgres.analytic_reads import ReadTooSlow
from tarsy_scoring.postgres.database import DatabaseAway
from tarsy_scoring.web.edge.semaphore import QueueFull

log = structlog.get_logger()

MEDIA_TYPE = "application/problem+json"
TYPES = "urn:tarsy-scoring:problem:"
BUSY_RETRY_S = 1
DATABASE_RETRY_S = 2
ANALYTIC_RETRY_S = 10
CHALLENGE = 'Bearer realm="tarsy-scoring"'
FAULTS_SHOWN = 20
NOT_TERMINAL = "Session not terminal"
MAX_BODY_BYTES = 64 * 1024

# Titles and details for what the framework and the server refuse. Python's own phrases change between
# versions.
REFUSALS = {
    400: ("Unreadable request", "the request cannot be read: check its body and its headers"),
    404: ("Not found", "there is nothing at this address: check it; /openapi.json lists all addresses"),
    405: (
        "Method not allowed",
        "this address does not support the method: the header Allow lists those it supports",
    ),
    408: ("Too slow", "the request did not arrive in time: send it again"),
    413: (
        "Content too large",
        f"a body may have {MAX_BODY_BYTES:,} bytes, and no request to this API needs more",
    ),
}
_TARSYS = re.compile(r"/api/v1/sessions/.*/score", re.DOTALL)  # an encoded slash is part of the id
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(eq=False)
class Problem(Exception):
    """
    A refusal or failure, answered as RFC 9457 problem details.

    Args:
        title: Short, and the same for every such problem.
        detail: What was asked, why it is refused, what would help.
        extra: More members for the document.
    """

    status: int
    title: str
    detail: str
    headers: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    extra: dict[str, Any] = field(default_factory=dict, kw_only=True)


def malformed(where: Sequence[str | int], why: str, title: str = "Malformed request") -> Problem:
    """
    A 422 shaped like validation errors, for checks that no model can make.

    Args:
        where: Path to the fault, beginning with `path`, `body`, `query` or `header`.
    """
    return Problem(422, title, why, extra={"errors": [{"loc": list(where), "msg": why}]})


ProblemPage = Callable[[HTTPConnection, Problem, str], Response]


def problem_response(connection: HTTPConnection, problem: Problem) -> Response:
    """The answer to a refused or failed request: problem details, or a page where a browser asked for one."""
    request_id = str(connection.state.request_id)
    path: str = connection.scope["path"]
    render: ProblemPage | None = getattr(connection.app.state, "problem_page", None)
    accepts_pages = "text/html" in connection.headers.get("accept", "")
    if render and accepts_pages and connection.scope["type"] == "http" and not path.startswith("/api/"):
        return render(connection, problem, request_id)
    if is_tarsys_path(path):
        status, message = _in_tarsys_words(problem)
        body = to_json({"message": message})
        return Response(body, status, problem.headers, media_type="application/json")
    document: dict[str, Any] = {
        "type": TYPES + re.sub(r"[^a-z0-9]+", "-", problem.title.lower()).strip("-"),
        "title": problem.title,
        "status": problem.status,
        "detail": problem.detail,
        "instance": f"urn:tarsy-scoring:request:{request_id}",
    }
    return Response(to_json(document | problem.extra), problem.status, problem.headers, media_type=MEDIA_TYPE)


def is_tarsys_path(path: str) -> bool:
    """Whether an address is one of TARSy's own, whose errors are `message` alone, in JSON."""
    return _TARSYS.fullmatch(path) is not None


def _in_tarsys_words(problem: Problem) -> tuple[int, str]:
    """Status and message as TARSy answers, or ours where TARSy has no such refusal."""
    match problem.status:
        case 400 if problem.title == NOT_TERMINAL:
            return 409, "session is not in a terminal state"
        case 404:
            return 404, "resource not found"
        case 409:
            return 409, "scoring already in progress for this session"
        case 503:
            return 503, "scoring service is not available"
    return problem.status, problem.detail


def unauthorized(detail: str, challenge: str | None = None) -> Problem:
    """A 401. Args: challenge: None where no credentials in the request would help."""
    # A peer that reads no refusals would otherwise fill the connection buffer with them.
    headers = {"Connection": "close"} | ({"WWW-Authenticate": challenge} if challenge else {})
    return Problem(401, "Not authenticated", detail, headers=headers)


def failed() -> Problem:
    """500 for an unexpected error, without its cause."""
    return Problem(
        500,
        "Internal error",
        "an unexpected error, which the log describes: give an operator the id at the end of `instance`",
    )


def too_busy() -> Problem:
    """503 where every place for such requests is taken. Nothing waits for a place: places would run out."""
    detail = "too many requests of this kind are under way: try again shortly"
    return Problem(503, "Too busy", detail, headers={"Retry-After": str(BUSY_RETRY_S)})


def add_problem_handlers(app: FastAPI) -> None:
    """Make the application answer errors with problem details."""
    handler: Any = _answer  # also for WebSockets, where Starlette's types expect another function
    own = (Problem, QueueFull, DatabaseAway, UnknownTool, SameTool)
    for kind in (*own, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, handler)


async def _answer(connection: HTTPConnection, error: Exception) -> Response:
    return problem_response(connection, _problem_of(connection, error))


def _problem_of(connection: HTTPConnection, error: Exception) -> Problem:
    match error:
        case Problem():
            return error
        case QueueFull():
            return too_busy()
        case UnknownTool():
            return Problem(404, "Unknown tool", str(error))
        case SameTool():
            return malformed(["body"], str(error), "Same tool")
        case ReadTooSlow():
            log.warning("api.read_too_slow", reason=str(error))
            detail = (
                "these scores could not be read in time: choose a shorter period, one chain or criteria, or "
                "try again when fewer people read"
            )
            return Problem(503, "Too much to read", detail, headers={"Retry-After": str(ANALYTIC_RETRY_S)})
        case DatabaseAway():
            connection.app.state.context.reader.database.note_away(error)
            detail = "the database does not answer: try again shortly"
            return Problem(503, "Database away", detail, headers={"Retry-After": str(DATABASE_RETRY_S)})
        case RequestValidationError():
            is_json = "json" in connection.headers.get("content-type", "")
            faults = [_fault(fault, is_json=is_json) for fault in error.errors()[:FAULTS_SHOWN]]
        case HTTPException(status_code=400):  # only FastAPI raises it, for a body that is not JSON
            faults = [{"loc": ["body"], "msg": "not JSON in UTF-8"}]
        case HTTPException():
            title, detail = REFUSALS.get(error.status_code, ("Refused", "the request was refused"))
            headers = error.headers or {}
            if error.status_code == 405:  # Starlette lists the methods of the first route alone
                headers = {"Allow": ", ".join(_methods_at(connection))}
            return Problem(error.status_code, title, detail, headers=headers)
        case _:
            raise error
    if faults[0]["loc"][0] == "path" and is_tarsys_path(connection.scope["path"]):
        return Problem(404, *REFUSALS[404])  # TARSy looks a malformed id up and finds no session
    detail = f"{[part for part in faults[0]['loc'] if part != '?'][-1]}: {faults[0]['msg']}"
    return Problem(422, "Malformed request", detail, extra={"errors": faults})


def _methods_at(connection: HTTPConnection) -> list[str]:
    """The methods that the routes at this address support."""
    # Without the keys that the request's own route has stored in the scope.
    scope = {k: v for k, v in connection.scope.items() if k not in ("fastapi", "route", "path_params")}
    routes = [r for r in connection.app.router.routes if r.matches(dict(scope))[0] is not Match.NONE]
    return sorted({method for route in routes for method in route.methods or ()})


def _fault(fault: Mapping[str, Any], *, is_json: bool) -> dict[str, Any]:
    """Place and message of a validation error. Names that the caller chose are shown only if plain."""
    loc = [part if isinstance(part, int) or _PLAIN_NAME.fullmatch(part) else "?" for part in fault["loc"]]
    msg = str(fault["msg"]).removeprefix("Value error, ")
    if loc == ["body"] and not is_json and fault["type"] != "missing":
        msg = "expected JSON with Content-Type: application/json"
    elif str(fault["type"]).endswith("parsing"):
        msg = msg.partition(", ")[0]  # the rest quotes a character of the body
    return {"loc": loc, "msg": msg}

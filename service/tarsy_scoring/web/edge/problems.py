"""
Refusals and failures as RFC 9457 problem details, or as a page for browsers.

An answer never repeats what was sent, and says nothing about the cause.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.routing import Match
from starlette.websockets import WebSocket, WebSocketState

from tarsy_scoring.postgres.analytic_reads import ReadTooSlow
from tarsy_scoring.postgres.database import DatabaseAway
from tarsy_scoring.telemetry.http_server import MAX_HEAD_BYTES

log = structlog.get_logger()

MEDIA_TYPE = "application/problem+json"
TYPES = "urn:tarsy-scoring:problem:"
DATABASE_RETRY_S = 2
ANALYTIC_RETRY_S = 10
CHALLENGE = 'Bearer realm="tarsy-scoring"'
FAULTS_SHOWN = 20
MAX_BODY_BYTES = 64 * 1024
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
INTERNAL_ERROR, POLICY_VIOLATION = 1011, 1008

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
    431: ("Head too large", f"address and headers together may have {MAX_HEAD_BYTES:,} bytes: shorten them"),
}
MALFORMED = "the request is malformed: see `errors`"
_TARSYS = re.compile(r"/api/v1/sessions/.*/score", re.DOTALL)  # an encoded slash is part of the id
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Problem(Exception):
    """
    A refusal or failure, answered as RFC 9457 problem details.

    Args:
        title: Short, and the same for every such problem.
        detail: What was asked, why it is refused, what would help.
        extra: More members for the document.
    """

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.title = title
        self.detail = detail
        self.headers = dict(headers or {})
        self.extra = dict(extra or {})


def malformed(where: Sequence[str | int], why: str, title: str = "Malformed request") -> Problem:
    """
    A 422 shaped like validation errors, for checks that no model can make.

    Args:
        where: Path to the fault, beginning with `path`, `body`, `query` or `header`.
    """
    return Problem(422, title, why, extra={"errors": [{"loc": list(where), "msg": why}]})


# RFC 9110 and RFC 6455 require these with a 426.
UPGRADE_HEADERS = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
ProblemPage = Callable[[HTTPConnection, Problem, str], Response]


def problem_response(connection: HTTPConnection, problem: Problem) -> Response:
    """The answer to a refused or failed request: problem details, or a page where a browser asked for one."""
    if (page := _page_of(connection, problem)) is not None:
        return page
    is_tarsys = is_tarsys_path(connection.scope["path"])
    document = problem_document(
        problem, request_id(connection), {"message": problem.detail} if is_tarsys else {}
    )
    media_type = "application/json" if is_tarsys else MEDIA_TYPE
    return Response(document, problem.status, dict(problem.headers), media_type=media_type)


def is_tarsys_path(path: str) -> bool:
    """Whether an address is one of TARSy's own, whose clients expect `message` in the JSON of every error."""
    return _TARSYS.fullmatch(path) is not None


def problem_document(
    problem: Problem, request_id: str, more: Mapping[str, Any] = MappingProxyType({})
) -> bytes:
    """Problem details as JSON. The members that RFC 9457 defines win over `problem.extra` and `more`."""
    slug = re.sub(r"[^a-z0-9]+", "-", problem.title.lower()).strip("-")
    document: dict[str, Any] = {
        "type": TYPES + slug,
        "title": problem.title,
        "status": problem.status,
        "detail": problem.detail,
        "instance": f"urn:tarsy-scoring:request:{request_id}",
    }
    return to_json({**document, **problem.extra, **more, **document})


def _page_of(connection: HTTPConnection, problem: Problem) -> Response | None:
    render: ProblemPage | None = getattr(connection.app.state, "problem_page", None)
    path: str = connection.scope["path"]
    accepts_pages = "text/html" in connection.headers.get("accept", "")
    if render is None or connection.scope["type"] != "http" or path.startswith("/api/") or not accepts_pages:
        return None
    try:
        return render(connection, problem, request_id(connection))
    except Exception as error:  # noqa: BLE001 - answering a failure must not fail as well
        log.error("api.problem_page_failed", error=type(error).__name__)
        return None


def request_id(connection: HTTPConnection) -> str:
    """The id that the middleware gave to this request."""
    return str(getattr(connection.state, "request_id", None) or uuid4().hex)


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
        "an unexpected error, which the log of the API describes: give an operator the id at the end of `instance`",
    )


def database_away() -> Problem:
    """503 while PostgreSQL cannot be used, without its address."""
    return Problem(
        503,
        "Database away",
        "the database does not answer: try again shortly",
        headers={"Retry-After": str(DATABASE_RETRY_S)},
    )


def read_too_slow() -> Problem:
    """503 for a read over many scores that did not end in time."""
    return Problem(
        503,
        "Too much to read",
        "these scores could not be read in time: choose a shorter period, one chain or criteria, or try again when "
        "fewer people read",
        headers={"Retry-After": str(ANALYTIC_RETRY_S)},
    )


def add_problem_handlers(app: FastAPI) -> None:
    """Make the application answer errors with problem details."""
    handler: Any = _answer  # also for WebSockets, where Starlette's types expect another function
    own = (Problem, DatabaseAway)
    for kind in (*own, HTTPException, RequestValidationError, WebSocketRequestValidationError):
        app.add_exception_handler(kind, handler)


async def _answer(connection: HTTPConnection, error: Exception) -> Response | None:
    if isinstance(error, WebSocketRequestValidationError):
        assert isinstance(connection, WebSocket)
        await connection.close(POLICY_VIOLATION)
        return None
    problem = _problem_of(connection, error)
    if isinstance(connection, WebSocket) and connection.application_state is not WebSocketState.CONNECTING:
        await connection.close(INTERNAL_ERROR)  # after the handshake there is no other answer
        return None
    return problem_response(connection, problem)


def _problem_of(connection: HTTPConnection, error: Exception) -> Problem:
    match error:
        case Problem():
            return error
        case ReadTooSlow():
            log.warning("api.read_too_slow", reason=str(error))
            return read_too_slow()
        case DatabaseAway():
            connection.app.state.context.reader.database.note_away(error)
            return database_away()
        case RequestValidationError():
            is_json = "json" in connection.headers.get("content-type", "")
            faults = [_fault(fault, is_json=is_json) for fault in error.errors()[:FAULTS_SHOWN]]
        case HTTPException(status_code=400):  # only FastAPI raises it, for a body that is not JSON
            faults = [{"loc": ["body"], "msg": "not JSON in UTF-8"}]
        case HTTPException():
            return _refusal_of(connection, error)
        case _:
            raise error
    return Problem(422, "Malformed request", MALFORMED, extra={"errors": faults})


def _refusal_of(connection: HTTPConnection, error: HTTPException) -> Problem:
    headers = dict(error.headers or {})
    if error.status_code == 405:  # Starlette lists the methods of the first route alone
        headers["Allow"] = ", ".join(_methods_at(connection))
    title, detail = REFUSALS.get(error.status_code, ("Refused", "the request was refused"))
    return Problem(error.status_code, title, detail, headers=headers)


def _methods_at(connection: HTTPConnection) -> list[str]:
    """The methods that the routes at this address support."""
    routes = connection.app.router.routes

    def is_known(method: str) -> bool:
        # Leave out the keys that the request's own route has stored in the scope.
        scope = {k: v for k, v in connection.scope.items() if k not in ("fastapi", "route", "path_params")}
        return any(r.matches(dict(scope, method=method))[0] is Match.FULL for r in routes)

    known = {method for method in METHODS if is_known(method)}
    return sorted(known | ({"HEAD"} if "GET" in known else set()))  # the middleware serves it


def _fault(fault: Mapping[str, Any], *, is_json: bool) -> dict[str, Any]:
    """Place and message of a validation error. Names that the caller chose are shown only if plain."""
    loc = [part if isinstance(part, int) or _PLAIN_NAME.fullmatch(part) else "?" for part in fault["loc"]]
    msg = str(fault["msg"]).removeprefix("Value error, ")
    if loc == ["body"] and not is_json and fault["type"] != "missing":
        msg = "expected JSON with Content-Type: application/json"
    elif fault["type"] == "json_invalid":
        msg = f"not JSON from character {loc[-1]} on: {fault['ctx']['error']}"
    elif str(fault["type"]).endswith("parsing"):
        msg = msg.partition(", ")[0]  # the rest quotes a character of the body
    return {"loc": loc, "msg": msg}

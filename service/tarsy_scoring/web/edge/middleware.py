"""
The middleware that every request passes, on any route.

On the way in: a request id, limits, access. On the way out: security headers, one log line, metrics, and a
500 without a cause for an unexpected error. It works on ASGI messages, so that streamed answers stay
streamed.
"""

import asyncio
import re
import time
import traceback
from contextlib import nullcontext
from uuid import uuid4

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tarsy_scoring.audit import audit
from tarsy_scoring.audit.audit import ChangeOrigin
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.web.edge import problems
from tarsy_scoring.web.edge.access import Access
from tarsy_scoring.web.edge.caller import Caller
from tarsy_scoring.web.edge.problems import Problem
from tarsy_scoring.web.edge.semaphore import BoundedSemaphore, QueueFull

log = structlog.get_logger()

BODY_TIMEOUT_S = 30.0
# More than the pool has connections: a further request would only wait for those before it.
MAX_REQUESTS_AT_ONCE = 256  # of admitted callers
# Probes are answered from memory but for one look at the database a second, so these suffice for any number
# of honest probes.
MAX_PROBES_AT_ONCE = 32
PROBES = frozenset({"/healthz", "/readyz"})
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
UNMATCHED = "unmatched"
WEBSOCKET = "WEBSOCKET"
SWITCHED, REFUSED = 101, 403
PATH_SHOWN = 300
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{8,64}")

# Defaults: a route may set others (a page allows styles, a static file allows caching).
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


class RequestMiddleware:
    """
    The outermost layer of the application.

    Args:
        access: Checks every request but the probes.
    """

    def __init__(self, app: ASGIApp, *, access: Access, metrics: Metrics) -> None:
        self._app = app
        self._access = access
        self._metrics = metrics
        self._requests = BoundedSemaphore(MAX_REQUESTS_AT_ONCE)
        self._probes = BoundedSemaphore(MAX_PROBES_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = _Exchange(scope, receive, send)
        with structlog.contextvars.bound_contextvars(request_id=exchange.request_id):
            try:
                await self._answer(exchange)
            finally:
                self._record(exchange)

    async def _answer(self, exchange: "_Exchange") -> None:
        """
        Check the request and call the application; answer a refusal or an error instead.

        Raises:
            ResponseCut: The application failed after the answer had begun.
        """
        connection = HTTPConnection(exchange.scope)
        try:
            _require_one_length(connection.headers)
            is_probe = exchange.scope["path"] in PROBES
            if not is_probe:
                connection.state.caller = exchange.caller = self._access.admit(connection)
            # A WebSocket takes no place: the gateway bounds their number.
            places = self._probes if is_probe else self._requests
            async with places.hold() if exchange.scope["type"] == "http" else nullcontext():
                _require_small_body(connection.headers)
                with audit.coming_from(exchange.caller.origin if exchange.caller else ChangeOrigin()):
                    await self._app(exchange.scope, exchange.receive, exchange.send)
        except (Problem, QueueFull) as refusal:
            await _send(exchange, refusal if isinstance(refusal, Problem) else problems.too_busy())
        except ClientDisconnect:  # in the middle of a body: there is no client left to answer
            exchange.status = exchange.status or 400
        except Exception as error:  # noqa: BLE001 - the outermost place: no detail may reach a caller
            # The text of an error may quote stored data, so that only type and place are logged.
            log.error("api.failed", error=type(error).__name__, at=_places_of(error))
            if exchange.status is not None:
                raise ResponseCut("the answer had begun") from None
            await _send(exchange, problems.failed())

    def _record(self, exchange: "_Exchange") -> None:
        """Count a finished request in the metrics, and write a log line."""
        duration_s = time.monotonic() - exchange.began
        route = getattr(exchange.scope.get("route"), "path_format", UNMATCHED)
        method = exchange.method
        known = method if method in METHODS or method == WEBSOCKET else "other"
        self._metrics.api_requests.labels(route, known, str(exchange.status or 500)).inc()
        if exchange.scope["type"] == "http":
            self._metrics.api_request_duration.labels(route).observe(duration_s)
        emit = log.debug if exchange.scope["path"] in PROBES else log.info
        emit(
            "api.request",
            method=method,
            route=route,
            path=exchange.scope["path"][:PATH_SHOWN],
            status=exchange.status,
            by=exchange.caller and exchange.caller.name,
            through=exchange.caller and exchange.caller.origin.through,
            address=exchange.caller and exchange.caller.origin.address,
            duration_ms=round(duration_s * 1000, 1),
        )


async def _send(exchange: "_Exchange", problem: Problem) -> None:
    response = problems.problem_response(HTTPConnection(exchange.scope), problem)
    await response(exchange.scope, exchange.receive, exchange.send)


def _require_one_length(headers: Headers) -> None:
    """
    Refuse a request that states its length in two ways: an intermediary may see another end of it.

    Raises:
        Problem: 400.

    Source: RFC 9112, 6.1.
    """
    if "content-length" in headers and "transfer-encoding" in headers:
        detail = "the request states its length in two ways: send one of them"
        raise Problem(400, problems.REFUSALS[400][0], detail, headers={"Connection": "close"})


def _require_small_body(headers: Headers) -> None:
    """Raises: Problem: 413, before the body arrives."""
    size = headers.get("content-length", "")
    if size.isdecimal() and int(size) > problems.MAX_BODY_BYTES:
        raise Problem(413, *problems.REFUSALS[413], headers={"Connection": "close"})


class ResponseCut(Exception):
    """Makes the server close the connection, so that the caller sees that the answer is incomplete."""


class _Exchange:
    """
    One request and the answer: adds the id, bounds the body, and records the status.

    The application gets a HEAD request as GET, so that routes need not support HEAD. The server drops the
    body of the answer.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.began = time.monotonic()
        self.method: str = scope.get("method", WEBSOCKET)
        self.scope = {**scope, "method": "GET"} if self.method == "HEAD" else scope
        self.status: int | None = None
        self.caller: Caller | None = None
        given = Headers(scope=scope).get("x-request-id", "")
        self.request_id = given if _REQUEST_ID.fullmatch(given) else uuid4().hex
        self.scope.setdefault("state", {})["request_id"] = self.request_id
        self._receive, self._send = receive, send
        self._received_bytes = 0
        self._is_received = scope["type"] != "http"

    async def receive(self) -> Message:
        """The next ASGI message. Raises: HTTPException: 413 or 408, the body is too large or too slow."""
        if self._is_received:
            return await self._receive()
        try:
            async with asyncio.timeout(self.began + BODY_TIMEOUT_S - time.monotonic()):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, headers={"Connection": "close"}) from None
        self._received_bytes += len(message.get("body", b""))
        if self._received_bytes > problems.MAX_BODY_BYTES:
            raise HTTPException(413, headers={"Connection": "close"})
        self._is_received = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        """Pass an answer on with our headers."""
        kind = message["type"]
        if kind in ("http.response.start", "websocket.http.response.start"):
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = self.request_id
            for name, value in SECURITY_HEADERS.items():
                headers.setdefault(name, value)
        elif kind == "websocket.accept":
            self.status = SWITCHED
        elif kind == "websocket.close":
            self.status = self.status or REFUSED
        await self._send(message)


def _places_of(error: BaseException) -> list[str]:
    """Files, lines and functions of a traceback, the innermost last."""
    steps = traceback.extract_tb(error.__traceback__)[-12:]
    return [f"{step.filename.rpartition('site-packages/')[2]}:{step.lineno} {step.name}" for step in steps]

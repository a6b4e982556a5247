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
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from urllib.parse import unquote
from uuid import uuid4

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tarsy_scoring.audit import audit
from tarsy_scoring.audit.audit import ChangeOrigin
from tarsy_scoring.telemetry.http_server import MAX_HEAD_BYTES
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.web.edge.access import Access
from tarsy_scoring.web.edge.caller import Caller
from tarsy_scoring.web.edge.problems import (
    MAX_BODY_BYTES,
    METHODS,
    POLICY_VIOLATION,
    REFUSALS,
    Problem,
    database_away,
    failed,
    problem_response,
)
from tarsy_scoring.web.edge.semaphore import BoundedSemaphore, QueueFull

log = structlog.get_logger()

PIECE_BYTES = 32 * 1024  # see `_send_body`
BODY_TIMEOUT_S = 30.0
GO_AWAY_S = 1.0
REVOKED_S = 5.0  # between two looks for WebSockets whose token is no longer valid
# More than the pool has connections: a further request would only wait for those before it.
MAX_REQUESTS_AT_ONCE = 256  # of admitted callers
# Probes are answered from memory but for one look at the database a second, so these suffice for any number
# of honest probes.
MAX_PROBES_AT_ONCE = 32
BUSY_RETRY_S = 1
PROBES = frozenset({"/healthz", "/readyz"})
UNMATCHED = "unmatched"
WEBSOCKET = "WEBSOCKET"
SWITCHED, REFUSED = 101, 403
PATH_SHOWN = 300
_ABSOLUTE = re.compile(rb"https?://([^/?#]+)(/.*)?", re.IGNORECASE | re.DOTALL)
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


@dataclass(slots=True)
class Lifecycle:
    """
    Server state: starting, running or stopping.

    Args:
        has_started: False until the database was found to have the right tables; only probes are served then.
        sockets: The open WebSockets.
        access: The access rules; None: no caller is revoked.
    """

    has_started: bool = True
    is_stopping: bool = False
    sockets: "set[_Exchange]" = field(default_factory=set)
    access: Access | None = None

    async def watch(self) -> None:
        """Close WebSockets whose token was removed or has expired, until cancelled."""
        while True:
            await self.close_revoked()
            await asyncio.sleep(REVOKED_S)

    async def close_revoked(self) -> None:
        """Close each WebSocket whose caller is revoked with 1008."""
        access = self.access
        if access is None:
            return
        revoked = [s for s in self.sockets if s.caller is not None and access.is_revoked(s.caller)]
        closing = [asyncio.create_task(s.go_away("the token is no longer valid")) for s in revoked]
        if closing:  # the kernel cuts off clients that do not read
            _, late = await asyncio.wait(closing, timeout=GO_AWAY_S)
            for task in late:
                task.cancel()


class RequestMiddleware:
    """
    The outermost layer of the application.

    Args:
        access: Checks every request but the probes.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        access: Access,
        metrics: Metrics,
        lifecycle: Lifecycle,
    ) -> None:
        self._app = app
        self._access = access
        self._metrics = metrics
        self._lifecycle = lifecycle
        self._requests = BoundedSemaphore(MAX_REQUESTS_AT_ONCE)
        self._probes = BoundedSemaphore(MAX_PROBES_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            exchange = _Exchange(scope, receive, send)
            self._lifecycle.sockets.add(exchange)
            try:
                await self._serve(exchange)
            finally:
                self._lifecycle.sockets.discard(exchange)
        else:  # the server sends no lifespan events
            await self._serve(_Exchange(scope, receive, send))

    async def _serve(self, exchange: "_Exchange") -> None:
        with structlog.contextvars.bound_contextvars(request_id=exchange.request_id):
            try:
                await self._answer(exchange)
            finally:
                self._record(exchange)

    async def _answer(self, exchange: "_Exchange") -> None:
        """
        Check the request and call the application; answer a refusal or an error instead.

        Raises:
            AnswerCut: The application failed after the answer had begun.
        """
        is_admitted = False
        try:
            _check_head(exchange)
            is_probe = exchange.scope["path"] in PROBES
            if not is_probe:
                exchange.caller = self._identify(HTTPConnection(exchange.scope))
            # A WebSocket takes no place: the gateway bounds their number.
            places = self._probes if is_probe else self._requests
            async with places.hold() if exchange.scope["type"] == "http" else nullcontext():
                if not is_probe:
                    self._admit(exchange)
                is_admitted = True
                await self._call_app(exchange)
        except (Problem, QueueFull) as refusal:
            await self._refuse(exchange, refusal, is_admitted=is_admitted)
        except ClientDisconnect:  # in the middle of a body: there is no client left to answer
            exchange.status = exchange.status or 400
        except Exception as error:  # noqa: BLE001 - the outermost place: no detail may reach a caller
            # The text of an error may quote stored data, so that only type and place are logged.
            log.error("api.failed", error=type(error).__name__, at=_places_of(error))
            if exchange.status is not None:
                raise ResponseCut("the answer had begun") from None
            await _send(exchange, failed())

    async def _call_app(self, exchange: "_Exchange") -> None:
        origin = exchange.caller.origin if exchange.caller else ChangeOrigin()
        with audit.coming_from(origin):
            await self._app(exchange.scope, exchange.receive, exchange.send)

    async def _refuse(
        self, exchange: "_Exchange", refusal: Problem | QueueFull, *, is_admitted: bool
    ) -> None:
        problem = refusal if isinstance(refusal, Problem) else _too_busy()
        if not is_admitted:
            self._metrics.api_refused.labels(exchange.scope["type"], str(problem.status)).inc()
        await _send(exchange, problem)

    def _identify(self, connection: HTTPConnection) -> Caller:
        """
        Identify the caller, before the request takes a place. Raises: Problem: 400, 401, 403, 429 or 503.
        """
        if self._lifecycle.is_stopping:
            retry = {"Retry-After": str(BUSY_RETRY_S)}
            raise Problem(503, "Stopping", "this server is stopping: try again", headers=retry)
        connection.state.caller = caller = self._access.admit(connection)
        return caller

    def _admit(self, exchange: "_Exchange") -> None:
        """Check what an identified caller sends. Raises: Problem: 413 or 503."""
        if exchange.declared_bytes > MAX_BODY_BYTES:
            raise Problem(413, *REFUSALS[413], headers={"Connection": "close"})
        if not self._lifecycle.has_started:
            raise database_away()

    def _record(self, exchange: "_Exchange") -> None:
        """Count a finished request in the metrics, and write a log line."""
        duration_s = time.monotonic() - exchange.began
        route = getattr(exchange.scope.get("route"), "path_format", UNMATCHED)
        method = exchange.method
        if exchange.scope["type"] == "http":
            known = method if method in METHODS else "other"
            self._metrics.api_requests.labels(route, known, str(exchange.status or 500)).inc()
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
    response = problem_response(HTTPConnection(exchange.scope), problem)
    await response(exchange.scope, exchange.receive, exchange.send)


def _check_head(exchange: "_Exchange") -> None:
    """Raises: Problem: 400 or 431."""
    # The server limits only a head that arrives in several pieces.
    if exchange.head_bytes > MAX_HEAD_BYTES:
        raise Problem(431, *REFUSALS[431])
    if exchange.is_ambiguous:  # RFC 9112, 6.1: an intermediary may see another end of this request
        detail = "the request states its length in two ways: send one of them"
        raise Problem(400, REFUSALS[400][0], detail, headers={"Connection": "close"})


def _too_busy() -> Problem:
    retry = {"Retry-After": str(BUSY_RETRY_S)}
    return Problem(503, "Too busy", "too many requests are under way: try again shortly", headers=retry)


class ResponseCut(Exception):
    """Makes the server close the connection, so that the caller sees that the answer is incomplete."""


class _Exchange:
    """
    One request and the answer: adds the id, bounds the body, and records the status.

    A HEAD request is passed on as GET, and only the head of the answer is sent, so that routes need not
    support HEAD.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.began = time.monotonic()
        self.method: str = scope.get("method", WEBSOCKET)
        self._has_body = self.method != "HEAD"
        scope = _in_origin_form(scope)
        self.scope = scope = scope if self._has_body else {**scope, "method": "GET"}
        self.status: int | None = None
        self.caller: Caller | None = None
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        self.request_id = given if _REQUEST_ID.fullmatch(given) else uuid4().hex
        scope.setdefault("state", {})["request_id"] = self.request_id
        size = headers.get("content-length", "")
        fields = [*scope["headers"], (scope.get("raw_path") or b"", scope.get("query_string", b""))]
        self.head_bytes = sum(len(name) + len(value) for name, value in fields)
        self.declared_bytes = int(size) if size.isdecimal() else 0
        self.is_ambiguous = "content-length" in headers and "transfer-encoding" in headers
        self._receive, self._send = receive, send
        self._received_bytes = 0
        self._is_received = scope["type"] != "http"
        self._is_gone = False
        self._is_whole = False

    async def receive(self) -> Message:
        """The next ASGI message. Raises: HTTPException: 413 or 408, the body is too large or too slow."""
        if self._is_received:
            return await self._receive()
        try:
            async with asyncio.timeout(max(0.0, self.began + BODY_TIMEOUT_S - time.monotonic())):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, headers={"Connection": "close"}) from None
        self._received_bytes += len(message.get("body", b""))
        if self._received_bytes > MAX_BODY_BYTES:
            raise HTTPException(413, headers={"Connection": "close"})
        self._is_received = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        """
        Pass an answer on with our headers. Raises: OSError: The WebSocket was closed here.
        """
        if self._is_gone:
            raise OSError("the WebSocket is closed")
        kind = message["type"]
        if kind == "http.response.body":
            await self._send_body(message)
            return
        if kind in ("http.response.start", "websocket.http.response.start"):
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = self.request_id
            for name, value in SECURITY_HEADERS.items():
                headers.setdefault(name, value)
        await self._send(message)
        if kind == "websocket.accept":
            self.status = SWITCHED
        elif kind == "websocket.close":
            self._is_gone = True
            self.status = self.status or REFUSED

    async def _send_body(self, message: Message) -> None:
        """
        Pass a part of a body on, in pieces of `PIECE_BYTES`.

        The server waits between pieces while the buffer is full, so the buffer stays small.
        """
        if not self._has_body:
            # End the answer to a HEAD request once. A stream then sees a disconnect and ends.
            if not self._is_whole:
                self._is_whole = True
                await self._send({"type": message["type"], "body": b"", "more_body": False})
            return
        body = message.get("body", b"")
        last = len(body) // PIECE_BYTES * PIECE_BYTES
        for start in range(0, last, PIECE_BYTES):
            piece = body[start : start + PIECE_BYTES]
            await self._send({"type": message["type"], "body": piece, "more_body": True})
        await self._send({**message, "body": body[last:]} if last else message)

    async def go_away(self, reason: str) -> None:
        """Close a WebSocket that is open, because the caller may not use it any more."""
        if self.status == SWITCHED and not self._is_gone:
            with suppress(Exception):  # the client may have left at the same moment
                await self.send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": reason})


def _in_origin_form(scope: Scope) -> Scope:
    """
    The scope with a path as target. If the target was an absolute URL, the host in it replaces the header.

    Source: RFC 9112, 3.2.2.
    """
    found = _ABSOLUTE.fullmatch(scope.get("raw_path") or b"")
    if found is None:
        return scope
    path = found[2] or b"/"
    headers = [(b"host", found[1]), *(header for header in scope["headers"] if header[0] != b"host")]
    return {**scope, "raw_path": path, "path": unquote(path.decode("ascii")), "headers": headers}


def _places_of(error: BaseException) -> list[str]:
    """Files, lines and functions of a traceback, the innermost last."""
    steps = traceback.extract_tb(error.__traceback__)[-12:]
    return [f"{step.filename.rpartition('site-packages/')[2]}:{step.lineno} {step.name}" for step in steps]

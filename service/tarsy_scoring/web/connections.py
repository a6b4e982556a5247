"""
Connections of the HTTP server, bounded in number and in time.

uvicorn parses HTTP and WebSocket, but does not limit how long a peer may take to send a request or to read an
answer. `Connection` stands between asyncio and uvicorn's protocol: it sees bytes, pauses and closes, and cuts
the peer off when a limit is exceeded. It neither subclasses nor patches uvicorn: uvicorn gets it as its
`http` class, it hands a wrapped transport on to uvicorn's own protocol, and `watched` tells it where requests
begin and end.
"""

import asyncio
import re
import socket
import struct
from collections import OrderedDict
from http import HTTPStatus
from typing import Any, cast
from uuid import uuid4

import h11
import structlog
from h11._receivebuffer import ReceiveBuffer
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from tarsy_scoring.web.middleware import SECURITY_HEADERS
from tarsy_scoring.web.problems import (
    MAX_HEAD_BYTES,
    MEDIA_TYPE,
    REFUSALS,
    UPGRADE_HEADERS,
    Problem,
    problem_document,
)

log = structlog.get_logger()

HEAD_TIMEOUT_S = 10.0
# Longest time in which a full buffer of the transport does not become nearly empty. A reader needs about
# 3 KB/s, kernel buffers not counted.
STALL_TIMEOUT_S = 30.0
# Time for a WebSocket peer to take the last bytes and to answer the close frame.
CLOSE_S = 5.0
# Twice the backlog of the listening socket. A burst of honest peers may all be accepted before the first of
# them is read, and must not displace each other.
MAX_WITHOUT_HEAD = 4_096
MAX_IDLE = 4_096
# The kernel would buffer up to 4 MB for each WebSocket peer that does not read; this holds a second of
# events.
SEND_BUFFER_BYTES = 131_072
NO_LINGER = struct.pack("ii", 1, 0)  # `struct linger`: a close resets the connection and drops unsent bytes
_STATE_KEY = "tarsy_scoring.connection"
_LOOSE_LINE = re.compile(rb"(?<!\r)\n|\n[ \t]")


class _StrictHeads(ReceiveBuffer):
    """
    Refuses heads with a bare line feed or a folded line: a proxy may find other headers in them than h11
    does.

    Cuts off the connection with 400.
    """

    _is_head = False

    def maybe_extract_lines(self) -> list[bytearray] | None:
        self._is_head = True
        try:
            return super().maybe_extract_lines()
        finally:
            self._is_head = False

    def _extract(self, count: int) -> bytearray:
        extracted = super()._extract(count)
        if self._is_head and _LOOSE_LINE.search(extracted):
            raise h11.LocalProtocolError("a line of the head is folded, or does not end with CR LF")
        return extracted


class Waiting:
    """
    Connections that have not sent a request, in the order in which they began to wait.

    Beyond `limit` the first in line is cut off. Honest peers send their requests at once and leave the line,
    so a flood of silent connections mostly displaces itself.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._connections: OrderedDict[Connection, None] = OrderedDict()

    def add(self, connection: "Connection") -> None:
        """Put a connection last in line."""
        self._connections[connection] = None
        if len(self._connections) > self._limit:
            first, _ = self._connections.popitem(last=False)
            first.cut_off("too many connections wait")

    def discard(self, connection: "Connection") -> None:
        """Take a connection out of the line, if it is in it."""
        self._connections.pop(connection, None)


class Connections:
    """
    The connections of one server.

    Args:
        max_without_head: Connections that have not sent a whole head yet.
        max_idle: Connections between two requests.
    """

    def __init__(self, max_without_head: int = MAX_WITHOUT_HEAD, max_idle: int = MAX_IDLE) -> None:
        self.without_head = Waiting(max_without_head)
        self.idle = Waiting(max_idle)
        self.closing: set[Connection] = set()

    def http(self, **options: Any) -> "Connection":
        """A new connection; for `http` of `uvicorn.Config`."""
        return Connection(self, **options)

    def websocket(self, **options: Any) -> asyncio.Protocol:
        """uvicorn's protocol for a handshake that has begun; for `ws` of `uvicorn.Config`."""
        options["app_state"][_STATE_KEY].handshake_began()
        return WebSocketsSansIOProtocol(**options)

    def cut_off_closing(self) -> None:
        """Cut off every connection that waits for its peer to take the last bytes."""
        for connection in list(self.closing):
            connection.cut_off("the server is stopping")


class Connection(asyncio.Protocol):
    """
    One connection of a peer.

    From its start, and from the first byte after an answer, a peer has `HEAD_TIMEOUT_S` to send a whole head;
    the body has a timeout of its own in `middleware`. While the transport's buffer is full, it must become
    nearly empty within `STALL_TIMEOUT_S`. A connection that is being closed must end within the same time, a
    WebSocket within `CLOSE_S`. A peer that exceeds a limit is reset, and what was not sent is dropped.

    Args:
        app_state, options: Arguments that uvicorn gives its protocol classes; the options are `config`,
            `server_state` and `_loop`.

    Attributes:
        transport: The transport of asyncio.
    """

    transport: asyncio.Transport

    def __init__(self, connections: Connections, *, app_state: dict[str, Any], **options: Any) -> None:
        # uvicorn copies `app_state` into each `scope["state"]`, by which `connection_of` finds the connection
        # again.
        self._state = app_state | {_STATE_KEY: self}
        protocol = H11Protocol(app_state=self._state, **options)
        protocol.conn._receive_buffer = _StrictHeads()  # h11 has no option for it
        self._protocol: asyncio.Protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._connections = connections
        self._head_timer: asyncio.TimerHandle | None = None
        self._end_timer: asyncio.TimerHandle | None = None
        self._has_request = False
        self._has_answer = False
        self._has_handshake = False
        self._is_refused = False
        self._is_websocket = False
        self._unparsed_bytes = 0
        # None until `handshake_began`; only WebSockets have them.
        self._writable: asyncio.Event | None = None
        self._ended: asyncio.Event | None = None
        self._takes_frames = False

    # --- callbacks of asyncio --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._protocol.connection_made(cast(asyncio.Transport, _Transport(self.transport, self)))
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        if self._is_websocket:
            self._protocol.data_received(data)
            return
        self._connections.idle.discard(self)
        if not self._has_request:
            self._expect_head()
            self._unparsed_bytes += len(data)
        try:
            self._protocol.data_received(data)
        except h11.LocalProtocolError:  # uvicorn tries to answer 400 in the middle of another answer
            self.cut_off("what followed a request is not HTTP")

    def eof_received(self) -> bool | None:
        self._loop.call_soon(self._bound_closing)  # asyncio closes the transport when this returns
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()
        if self._writable is not None:
            self._writable.clear()
        else:
            self._expect_end(STALL_TIMEOUT_S, "the answer is not being read")

    def resume_writing(self) -> None:
        self._protocol.resume_writing()
        if self._writable is not None:
            self._writable.set()
        elif not self.transport.is_closing():
            self._cancel_end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.closing.discard(self)
        self._expect_nothing()
        self._cancel_end()
        # A second call has no effect: `cut_off` calls this before asyncio does. Breaking the reference cycle
        # frees the connection without the garbage collector.
        protocol, self._protocol = self._protocol, asyncio.Protocol()
        self._state.pop(_STATE_KEY, None)
        # None whatever the reason: with an error uvicorn would keep its keep-alive timer, and with it the
        # connection.
        protocol.connection_lost(None)
        if self._writable is not None and self._ended is not None:
            self._writable.set()
            self._ended.set()

    # --- what uvicorn does with its transport ----------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Pass bytes of uvicorn on. A refusal that uvicorn makes itself is replaced by a problem document."""
        if self._is_refused:
            return
        if not self._has_answer and data.startswith(b"HTTP/1.1 4"):
            self._is_refused = True
            data = self._refusal()
        self.transport.write(data)

    def close(self) -> None:
        """Close the transport when its buffer is empty, within a deadline."""
        self.transport.close()
        self._bound_closing()

    def become_websocket(self, protocol: asyncio.Protocol) -> None:
        """Pass further bytes to the protocol of a WebSocket."""
        self._protocol = protocol
        self._is_websocket = True

    def _refusal(self) -> bytes:
        if self._has_handshake:
            detail = (
                "this is no WebSocket handshake of version 13 with a key: docs/live.md describes the protocol"
            )
            problem = Problem(426, "Upgrade required", detail, headers=UPGRADE_HEADERS)
        else:
            status = 431 if self._unparsed_bytes > MAX_HEAD_BYTES else 400
            problem = Problem(status, *REFUSALS[status], headers={"Connection": "close"})
        request_id = uuid4().hex
        body = problem_document(problem, request_id)
        headers = {"Content-Type": MEDIA_TYPE, "Content-Length": str(len(body)), "X-Request-Id": request_id}
        lines = [f"{name}: {value}" for name, value in (headers | SECURITY_HEADERS | problem.headers).items()]
        first = f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}"
        return "\r\n".join([first, *lines, "", ""]).encode("ascii") + body

    # --- what the application does ---------------------------------------------------------------------

    @property
    def is_refused(self) -> bool:
        """Whether uvicorn has refused the rest of a request that the application is working on."""
        return self._is_refused

    def request_began(self) -> None:
        """Record that a whole head has arrived; its deadline no longer applies."""
        self._has_request = True
        self._unparsed_bytes = 0
        self._expect_nothing()

    def answer_began(self) -> None:
        """Record that the application answers, so that `write` leaves its 4xx answers unchanged."""
        self._has_answer = True

    def answer_ended(self) -> None:
        """Record that uvicorn has taken the last byte of an answer; a connection that stays open is idle."""
        self._has_request = self._has_answer = False
        # uvicorn may have begun a handshake that followed the request already.
        if not self._is_websocket and not self._has_handshake and not self.transport.is_closing():
            self._connections.idle.add(self)

    def handshake_began(self) -> None:
        """Prepare for a WebSocket that a head asks for; uvicorn checks the handshake after this."""
        self._expect_nothing()
        self._cancel_end()
        self._has_handshake = True
        self._writable, self._ended = asyncio.Event(), asyncio.Event()
        self._writable.set()
        self._takes_frames = True
        self._set_option(socket.SO_SNDBUF, SEND_BUFFER_BYTES)

    def frames_end(self) -> None:
        """Take no more frames, because a close frame follows; the peer has `CLOSE_S` to answer it."""
        self._takes_frames = False
        self._expect_end(CLOSE_S, "the WebSocket does not close")

    def write_now(self, frames: bytes) -> bool:
        """
        Hand whole WebSocket frames to the transport; False: its buffer is full, or the WebSocket closes.
        """
        if self._writable is None or not self._writable.is_set() or not self._is_open:
            return False
        self.transport.write(frames)
        return True

    async def write_soon(self, frames: bytes) -> None:
        """
        Hand whole WebSocket frames to the transport when its buffer has room.

        Raises:
            ConnectionResetError: The WebSocket is closing or closed.
        """
        assert self._writable is not None, "only a WebSocket has frames"
        await self._writable.wait()
        if not self._is_open:
            raise ConnectionResetError("the client has left")
        self.transport.write(frames)

    async def ended(self) -> None:
        """Wait until a WebSocket has ended."""
        assert self._ended is not None, "only for a WebSocket"
        await self._ended.wait()

    def cut_off(self, reason: str) -> None:
        """Reset the connection at once, and drop what was not sent, in the kernel as well."""
        log.debug("api.cut_off", reason=reason)
        self._set_option(socket.SO_LINGER, NO_LINGER)
        self.transport.abort()
        self.connection_lost(None)

    @property
    def _is_open(self) -> bool:
        return self._takes_frames and not self.transport.is_closing()

    def _set_option(self, option: int, value: int | bytes) -> None:
        # Missing where the server listens on something else than a TCP socket of its own.
        if (ours := self.transport.get_extra_info("socket")) is not None:
            ours.setsockopt(socket.SOL_SOCKET, option, value)

    # --- limits ----------------------------------------------------------------------------------------

    def _expect_head(self) -> None:
        """Start the deadline of the next head, unless it runs already."""
        if self._head_timer is None:
            self._connections.without_head.add(self)
            self._head_timer = self._loop.call_later(
                HEAD_TIMEOUT_S, self.cut_off, "the request's head took too long"
            )

    def _expect_nothing(self) -> None:
        """Leave both lines of waiting connections, and stop the deadline of the head."""
        self._connections.without_head.discard(self)
        self._connections.idle.discard(self)
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _expect_end(self, within_s: float, reason: str) -> None:
        if self._end_timer is None:
            self._end_timer = self._loop.call_later(within_s, self.cut_off, reason)

    def _cancel_end(self) -> None:
        if self._end_timer is not None:
            self._end_timer.cancel()
            self._end_timer = None

    def _bound_closing(self) -> None:
        """Start the deadline of a transport that is closing; do nothing if it is not, or if it has ended."""
        # A closing transport waits for its buffer to empty, which never happens if the peer does not read.
        if _STATE_KEY in self._state and self.transport.is_closing():
            self._expect_nothing()
            self._connections.closing.add(self)
            self._expect_end(
                CLOSE_S if self._has_handshake else STALL_TIMEOUT_S, "the peer does not read the rest"
            )


class _Transport:
    """asyncio's transport for uvicorn; writes, closes and protocol changes go through the connection."""

    def __init__(self, transport: asyncio.Transport, connection: Connection) -> None:
        self._transport = transport
        self.write = connection.write
        self.close = connection.close
        self.set_protocol = connection.become_websocket

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def connection_of(scope: Scope) -> Connection | None:
    """The connection of a request; None under another server than `server.serve`."""
    connection: Connection | None = scope.get("state", {}).get(_STATE_KEY)
    return connection


def watched(app: ASGIApp) -> ASGIApp:
    """Wrap an application so that each connection learns where its requests and answers begin and end."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        connection = connection_of(scope)
        assert connection is not None, "only `server.serve` calls this"
        if scope["type"] == "websocket":
            await _watch_websocket(app, connection, scope, receive, send)
        else:
            await _watch_request(app, connection, scope, receive, send)

    return application


async def _watch_request(
    app: ASGIApp, connection: Connection, scope: Scope, receive: Receive, send: Send
) -> None:
    connection.request_began()

    async def send_watched(message: Message) -> None:
        if connection.is_refused:
            raise ClientDisconnect
        if message["type"] == "http.response.start":
            connection.answer_began()
        await send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            connection.answer_ended()

    await app(scope, receive, send_watched)


async def _watch_websocket(
    app: ASGIApp, connection: Connection, scope: Scope, receive: Receive, send: Send
) -> None:
    is_denied = False

    async def send_watched(message: Message) -> None:
        nonlocal is_denied
        connection.answer_began()
        if message["type"] == "websocket.close":
            connection.frames_end()
        await send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            is_denied = True

    await app(scope, receive, send_watched)
    if is_denied:
        # uvicorn logs an application that denies the handshake and returns before the connection ends as
        # broken.
        await connection.ended()

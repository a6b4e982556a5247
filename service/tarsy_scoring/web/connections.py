"""
Connections of the HTTP server, bounded in number and in time.

uvicorn parses HTTP and WebSocket, and leaves open how long a peer may send half a request, or leave an answer
unread. `Connection` stands between asyncio and uvicorn's protocol: it sees bytes, pauses and closes, and cuts
the peer off when a limit is exceeded. It neither subclasses nor patches uvicorn: uvicorn gets it as its
`http` class, it hands a wrapped transport on to uvicorn's own protocol, and `watched` tells it where requests
begin and end.
"""

import asyncio
import socket
import struct
from collections import OrderedDict
from http import HTTPStatus
from typing import Any, cast
from uuid import uuid4

import h11
import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from tarsy_scoring.web.middleware import MAX_HEAD_BYTES, SECURITY_HEADERS
from tarsy_scoring.web.problems import MEDIA_TYPE, REFUSALS, UPGRADE_HEADERS, Problem, problem_document

log = structlog.get_logger()

HEAD_TIMEOUT_S = 10.0
# Without the transport's buffer becoming nearly empty: a reader needs about 3 KB/s, kernel buffers not
# counted.
STALL_TIMEOUT_S = 30.0
# For a WebSocket peer to take the last bytes and to answer the close frame.
CLOSE_S = 5.0
# Twice the backlog of the listening socket: honest peers of one burst, all accepted before one of them is
# read, do not cut each other off.
MAX_WITHOUT_HEAD = 4_096
MAX_IDLE = 4_096
# The kernel would buffer up to 4 MB for each WebSocket peer that does not read; this holds a second of
# events.
SEND_BUFFER_BYTES = 131_072
NO_LINGER = struct.pack("ii", 1, 0)
_STATE_KEY = "tarsy_scoring.connection"


class Waiting:
    """
    Connections without a request, in the order in which they began to wait; beyond `limit` the first is cut
    off.

    A peer in earnest sends its request at once, so that a flood of silent connections displaces itself.
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
        options: What uvicorn calls its protocol classes with: `config`, `server_state`, `app_state` and
            `_loop`.

    Attributes:
        transport: The transport of asyncio.
    """

    transport: asyncio.Transport

    def __init__(self, connections: Connections, *, app_state: dict[str, Any], **options: Any) -> None:
        # uvicorn copies `app_state` into each `scope["state"]`, by which `connection_of` finds the connection
        # again.
        self._state = app_state | {_STATE_KEY: self}
        self._protocol: asyncio.Protocol = H11Protocol(app_state=self._state, **options)
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
        # Of WebSockets alone, made with the handshake.
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
        # Has an effect once: `cut_off` calls this before asyncio does. Dropping the references that form a
        # circle frees the connection without the garbage collector.
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
        """Pass bytes of uvicorn on. A request that it refuses by itself is answered with a problem document."""
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
            detail = "this is no WebSocket handshake of version 13 with a key: docs/live.md describes the protocol"
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
        """A whole head has arrived."""
        self._has_request = True
        self._unparsed_bytes = 0
        self._expect_nothing()

    def answer_began(self) -> None:
        """From now on the application answers, and not uvicorn by itself."""
        self._has_answer = True

    def answer_ended(self) -> None:
        """The last byte of an answer was handed over. uvicorn may have begun with the next request already."""
        self._has_request = self._has_answer = False
        if not self._is_websocket and not self._has_handshake and not self.transport.is_closing():
            self._connections.idle.add(self)

    def handshake_began(self) -> None:
        """A head asks for a WebSocket, and uvicorn is about to look at it."""
        self._expect_nothing()
        self._cancel_end()
        self._has_handshake = True
        self._writable, self._ended = asyncio.Event(), asyncio.Event()
        self._writable.set()
        self._takes_frames = True
        self._set_option(socket.SO_SNDBUF, SEND_BUFFER_BYTES)

    def frames_end(self) -> None:
        """A close frame is about to be sent: no frame may follow it, and the peer has `CLOSE_S` to answer."""
        self._takes_frames = False
        self._expect_end(CLOSE_S, "the WebSocket does not close")

    def write_now(self, frames: bytes) -> bool:
        """Hand whole WebSocket frames to the transport; False: its buffer is full, or the WebSocket closes."""
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
        if self._head_timer is None:
            self._connections.without_head.add(self)
            self._head_timer = self._loop.call_later(HEAD_TIMEOUT_S, self.cut_off, "the request's head took too long")

    def _expect_nothing(self) -> None:
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
        # A closing transport waits for its buffer to empty, which a peer that does not read puts off for
        # ever.
        if _STATE_KEY in self._state and self.transport.is_closing():
            self._expect_nothing()
            self._connections.closing.add(self)
            self._expect_end(CLOSE_S if self._has_handshake else STALL_TIMEOUT_S, "the peer does not read the rest")


class _Transport:
    """asyncio's transport as uvicorn gets it: writes, closes and a change of protocol pass through the
    connection.
    """

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
    """The application, which tells its connection where requests and answers begin and end."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        connection = connection_of(scope)
        assert connection is not None, "only `server.serve` calls this"
        if scope["type"] == "websocket":
            await _watch_websocket(app, connection, scope, receive, send)
        else:
            await _watch_request(app, connection, scope, receive, send)

    return application


async def _watch_request(app: ASGIApp, connection: Connection, scope: Scope, receive: Receive, send: Send) -> None:
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


async def _watch_websocket(app: ASGIApp, connection: Connection, scope: Scope, receive: Receive, send: Send) -> None:
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
        # uvicorn takes an application that denied the handshake and returns at once for a broken one, and
        # logs it.
        await connection.ended()

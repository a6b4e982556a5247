"""
A connection of the HTTP server, and how long it may keep a peer waiting for nothing.

uvicorn speaks HTTP/1.1; here is what it leaves open: a peer that never says what it wants, or does not read what it
is told, and what the server refuses by itself. All of it costs a timer, and nothing per message.
"""

import asyncio
import socket
import struct
import sys
from collections import OrderedDict
from typing import Any
from uuid import uuid4

import h11
import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol

from tarsy_scoring.web.middleware import SECURITY_HEADERS
from tarsy_scoring.web.problems import MEDIA_TYPE, REFUSALS, Problem, problem_document

log = structlog.get_logger()

HEAD_TIMEOUT_S = 10.0
# Without the server's buffer getting nearly empty: some 3 KB/s are enough, the kernel's own buffers not counted.
STALL_TIMEOUT_S = 30.0
# Twice what the system lets wait to be accepted: a burst of honest peers, all accepted before one of them is read,
# drives none of them away.
MAX_WITHOUT_HEAD = 4_096
MAX_IDLE = 4_096
NO_LINGER = struct.pack("ii", 1, 0)


class Waiting:
    """
    Connections on which nothing is under way, in order of waiting; beyond `limit` the first is cut.

    Who means it sends a request at once, so under a flood those go that only wait.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._connections: OrderedDict[HttpConnection, None] = OrderedDict()

    def add(self, connection: "HttpConnection") -> None:
        self._connections[connection] = None
        if len(self._connections) > self._limit:
            first, _ = self._connections.popitem(last=False)
            first.cut_off("too many connections wait")

    def discard(self, connection: "HttpConnection") -> None:
        self._connections.pop(connection, None)


class HttpConnection(H11Protocol):
    """
    uvicorn's connection, which gives up on peers that only hold it.

    From its start, and from the first byte after an answer, a peer has `HEAD_TIMEOUT_S` to send a whole head; a body
    has its own time, see `edge`. While the transport's buffer is full nothing may stand still for `STALL_TIMEOUT_S`;
    the same holds for a connection that is being closed. What is cut off is reset: what was not sent is dropped.

    Args:
        without_head, idle: Shared by the connections of one server.
    """

    def __init__(self, *args: Any, without_head: Waiting, idle: Waiting, **options: Any) -> None:
        super().__init__(*args, **options)
        self._without_head = without_head
        self._idle = idle
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    # --- heads -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        self._idle.discard(self)
        if self._is_at_rest:
            self._expect_head()
        super().data_received(data)
        if not self._is_at_rest:
            self._expect_nothing()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # may begin with what was sent ahead
        if self.transport.is_closing():
            self._expect_progress()
        elif self._is_at_rest and self.transport.get_protocol() is self:  # else a WebSocket has taken it over
            self._idle.add(self)

    def _should_upgrade(self) -> bool:
        """A WebSocket of another version is answered as a plain request: 426 names the one that we speak."""
        versions = [value for name, value in self.headers if name == b"sec-websocket-version"]
        return versions == [b"13"] and super()._should_upgrade()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._let_go()
        super().handle_websocket_upgrade(event)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._expect_progress()

    @property
    def _is_at_rest(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._without_head.add(self)
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.cut_off, "the request's head took too long")

    def _expect_nothing(self) -> None:
        self._without_head.discard(self)
        self._idle.discard(self)
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    # --- answers ---------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_progress()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._forget_progress()

    def _expect_progress(self) -> None:
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(STALL_TIMEOUT_S, self.cut_off, "the answer is not being read")

    def _forget_progress(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    # --- ends ------------------------------------------------------------------------------------------

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._let_go()

    def cut_off(self, reason: str) -> None:
        """End the connection and drop what was not sent, in the kernel as well."""
        self._let_go()
        log.debug("api.cut_off", reason=reason)
        # Missing where the server listens on something else than a TCP socket of its own.
        if (ours := self.transport.get_extra_info("socket")) is not None:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        self.transport.abort()

    def _let_go(self) -> None:
        """Wait for nothing of this peer any more."""
        self._expect_nothing()
        self._forget_progress()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, with problem details; cut off where an answer has begun already."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.cut_off("what followed a request is no HTTP")
            return
        if self.cycle is not None:  # whoever works on it may stop, and has nobody to tell
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        # Called while the parser's error is being handled, which knows whether it was the size.
        is_too_large = getattr(sys.exc_info()[1], "error_status_hint", 400) == 431
        status = 431 if is_too_large else 400
        title, detail = REFUSALS[status]
        request_id = uuid4().hex
        body = problem_document(Problem(status, title, detail), request_id)
        headers = {"Content-Type": MEDIA_TYPE, "Content-Length": str(len(body)), "Connection": "close"}
        headers |= {"X-Request-Id": request_id, **SECURITY_HEADERS}
        events = (h11.Response(status_code=status, headers=list(headers.items())), h11.Data(data=body))
        self.transport.write(b"".join(self.conn.send(event) or b"" for event in (*events, h11.EndOfMessage())))
        self.transport.close()
        self._expect_nothing()
        self._expect_progress()

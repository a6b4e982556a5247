"""
uvicorn with limits for slow peers, for the API and for `/metrics`.

uvicorn bounds idle connections and WebSockets that answer no ping. The kernel cuts off peers that do not read
(`TCP_USER_TIMEOUT`). `_Connection` does the rest: a peer has `HEAD_TIMEOUT_S` to send the head of a request.
"""

import asyncio
import logging
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

HEAD_TIMEOUT_S = 10.0
# A peer that takes no bytes for so long is reset by the kernel, also while the connection is being closed.
STALL_TIMEOUT_S = 10.0
MAX_HEAD_BYTES = 32 * 1024  # cookies of an authenticating proxy take up to 8 KiB each
BACKLOG = 2048
# The kernel would buffer up to 4 MB for each WebSocket that does not read; this holds a second of events.
SEND_BUFFER_BYTES = 131_072
HEAD_END = b"\r\n\r\n"
# ASGI extension of WebSockets: the transport, for frames that many clients get. uvicorn would encode each message
# for each client, and call the kernel for each.
TRANSPORT = "tarsy_scoring.transport"
# The connection whose bytes are read: a request's task starts meanwhile, and keeps it. Addresses do not tell
# connections apart, as one peer may use a port for several addresses of ours.
_reading: ContextVar["_Connection"] = ContextVar("_reading")
# A line that ends without CR, or is folded: a proxy may find other headers in the head than h11 does.
_LOOSE_LINE = re.compile(rb"(?<!\r)\n|\n[ \t]")


def listen(host: str, port: int) -> socket.socket:
    """
    Listen on a TCP socket whose connections end when the peer does not read. Port 0 takes any free port.

    Raises:
        OSError: The address or the port cannot be used.
        UnicodeError: The host is not a valid name.
    """
    family, _, _, _, address = socket.getaddrinfo(
        host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    # On `::` accept IPv4 as well, where the system supports it.
    is_any = family == socket.AF_INET6 and ip_address(address[0]).is_unspecified
    listening = socket.create_server(
        address[:2], family=family, backlog=BACKLOG, dualstack_ipv6=is_any and socket.has_dualstack_ipv6()
    )
    # Accepted connections inherit both options.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(STALL_TIMEOUT_S * 1000))
    return listening


def bounded_server(app: ASGIApp, **options: Any) -> uvicorn.Server:
    """
    A uvicorn server for `app` without signal handlers, logging and lifespan events.

    Args:
        options: More options of `uvicorn.Config`.
    """
    # Applications log their failures. uvicorn would report a refused handshake as one.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)

    async def with_deadlines(scope: Scope, receive: Receive, send: Send) -> None:
        connection = _reading.get()
        connection.head_arrived()
        if scope["type"] == "websocket":
            scope["extensions"][TRANSPORT] = connection.transport
        try:
            return await app(scope, receive, send)
        finally:
            connection.expect_head()

    config = uvicorn.Config(
        with_deadlines,
        http="h11",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # `web` identifies callers by the address of the peer
        server_header=False,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        **options,
    )
    config.load()
    inner: Any = config.http_protocol_class

    def protocol(**given: Any) -> asyncio.Protocol:
        return _Connection(inner(**given))

    # uvicorn declares a class, and only calls it.
    config.http_protocol_class = cast(type[asyncio.Protocol], protocol)
    return _Server(config)


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Connection(asyncio.Protocol):
    """
    Passes everything on to uvicorn's protocol, and ends a peer whose head is late, too long or ambiguous.

    A head has `HEAD_TIMEOUT_S` from the beginning of the connection, later from the first byte; between two
    requests uvicorn's keep-alive timeout holds.
    """

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        self._head: bytes | None = b""  # None while a request is under way
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._start_deadline()
        self._protocol.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            self._start_deadline()
            head, end, _ = (self._head + data).partition(HEAD_END)
            self._head = None if end else head
            if len(head) > MAX_HEAD_BYTES:
                return self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            if _LOOSE_LINE.search(head):
                return self._refuse(HTTPStatus.BAD_REQUEST)
        _reading.set(self)
        return self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_deadline()
        self._protocol.connection_lost(exc)

    def head_arrived(self) -> None:
        """End the deadline: the application has the request."""
        self._head = None
        self._stop_deadline()

    def expect_head(self) -> None:
        """The next bytes are a head."""
        self._head = b""

    def _start_deadline(self) -> None:
        if self._deadline is None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(HEAD_TIMEOUT_S, self.transport.abort)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, status: HTTPStatus) -> None:
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        self.transport.write(head.encode())
        self.transport.close()

"""
`WS /api/v1/ws`: the gateway's clients come in here. docs/live.md has the protocol.

Under uvicorn with `LiveProtocol` (see `UVICORN_OPTIONS`) a client gets frames that were made once for all,
and one that does not read can be cut off; under any other server the same messages go through ASGI.
"""

import asyncio
import socket
import struct
from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, WebSocket, WebSocketDisconnect
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request
from websockets.protocol import State

from tarsy_scoring.live.client import DEFAULT_LIMITS, Chunk
from tarsy_scoring.live.gateway import Gateway
from tarsy_scoring.web.access import ANYBODY, may_read, peer_address
from tarsy_scoring.web.context import Caller, context_of
from tarsy_scoring.web.problems import Problem

router = APIRouter(prefix="/api/v1")

EXTENSION = "tarsy_scoring.live"
RETRY_AFTER_S = 5
CLOSE_S = 5.0  # for the last bytes to a peer that may not be reading
# The kernel would keep up to 4 MB for each peer that does not read; this is plenty for a second of events.
SEND_BUFFER_BYTES = 131_072
NO_LINGER = struct.pack("ii", 1, 0)


@router.websocket("/ws")
async def live(websocket: WebSocket, caller: Annotated[Caller, Depends(may_read)]) -> None:
    """Scoring events as they happen, in TARSy's protocol. Who asks, and from which site, was looked at before."""
    gateway: Gateway | None = context_of(websocket).gateway
    if gateway is None or gateway.is_full:
        why = "there is no gateway in this process" if gateway is None else "too many clients are connected"
        retry = {"Retry-After": str(RETRY_AFTER_S)}
        raise Problem(503, "No live events", f"{why}; try again in a moment", headers=retry)
    # Who is not named is told apart by where they come from.
    whose = (caller.name, peer_address(websocket) if caller.name == ANYBODY else None)
    if gateway.has_enough(whose):
        raise Problem(
            429,
            "Too many connections",
            f"{caller.name} is connected too often to the live events of this process: close some connections first",
            headers={"Retry-After": str(RETRY_AFTER_S)},
        )
    await websocket.accept()
    protocol = websocket.scope.get("extensions", {}).get(EXTENSION)
    connection = _DirectSocket(websocket, protocol) if protocol is not None else _AsgiSocket(websocket)
    await gateway.serve(connection, whose)


@router.get("/ws", include_in_schema=False)
async def not_upgraded() -> None:
    """What is there for those who do not ask for a WebSocket."""
    raise Problem(
        426,
        "Upgrade required",
        "live events come over a WebSocket: ask with a WebSocket client; docs/live.md has the protocol",
        headers={"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"},
    )


class _AsgiSocket:
    """A connection through ASGI alone: one `send` per message."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    def send_now(self, _chunk: Chunk) -> bool:
        return False

    async def send(self, chunk: Chunk) -> None:
        try:
            for text in chunk.texts:
                await self._websocket.send_text(text.decode())
        except (WebSocketDisconnect, RuntimeError) as error:
            raise ConnectionResetError("the client has left") from error

    async def receive(self) -> str | bytes | None:
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            return None
        text = message.get("text")
        return text if text is not None else bytes(message.get("bytes") or b"")

    async def close(self, code: int, reason: str) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._websocket.close(code, reason)
        except (TimeoutError, WebSocketDisconnect, RuntimeError):
            pass


class _DirectSocket(_AsgiSocket):
    """A connection whose server takes frames as they are."""

    def __init__(self, websocket: WebSocket, protocol: "LiveProtocol") -> None:
        super().__init__(websocket)
        self._protocol = protocol

    def send_now(self, chunk: Chunk) -> bool:
        return self._protocol.write_now(chunk.frames)

    async def send(self, chunk: Chunk) -> None:
        await self._protocol.write(chunk.frames)

    async def close(self, code: int, reason: str) -> None:
        self._protocol.close_now(code, reason)


class LiveProtocol(WebSocketsSansIOProtocol):
    """
    uvicorn's WebSocket connection, which also takes frames as they are, and gives up on a peer that does not read.

    uvicorn closes such a peer's transport and waits until its buffer is empty, which may be for ever: so `_expect_end`
    bounds that, whoever closes it and why.
    """

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):  # the handshake was not refused; the application has not run yet
            extensions: dict[str, Any] = self.scope["extensions"]
            extensions[EXTENSION] = self
            self._set_option(socket.SO_SNDBUF, SEND_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_end()  # a close frame, or what is no WebSocket

    def eof_received(self) -> None:
        super().eof_received()
        self.loop.call_soon(self._expect_end)  # the transport closes itself behind this

    def handle_close(self, event: Frame) -> None:
        super().handle_close(event)
        self.close_sent = True  # as the answer; a server that stops would send another one, which is an error

    async def run_asgi(self) -> None:
        await super().run_asgi()
        self._expect_end()

    async def send(self, message: Any) -> None:
        """As uvicorn, but that a close is sent at once, also to a peer that does not read."""
        if message["type"] == "websocket.close" and self.handshake_complete:
            self.close_now(message.get("code", 1000), message.get("reason") or "")
        else:
            await super().send(message)
            if message["type"] == "websocket.http.response.body" and self.close_sent:
                # Refused with a whole answer. uvicorn counts that as no answer, and would say so as an error.
                self.handshake_complete = True

    def write_now(self, frames: bytes) -> bool:
        """Hand frames to the transport; False: its buffer is full, or the connection is not open."""
        if not self.writable.is_set() or not self._is_open():
            return False
        self.transport.write(frames)
        return True

    async def write(self, frames: bytes) -> None:
        """
        Hand frames to the transport when its buffer has room.

        Raises:
            ConnectionResetError: The connection is not open any more.
        """
        await self.writable.wait()
        if not self._is_open():
            raise ConnectionResetError("the client has left")
        self.transport.write(frames)

    def close_now(self, code: int, reason: str) -> None:
        """Send a close frame behind what is buffered; cut the peer off if it does not take that in time."""
        if self._is_open():
            self.conn.send_close(code, reason)
            self._write_all(self.conn.data_to_send())
            self.close_sent = True
            self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
            if self.read_paused:
                self.read_paused = False
                self.transport.resume_reading()
            self.close_timer = self.loop.call_later(CLOSE_S, self.cut_off)

    def cut_off(self) -> None:
        """End the connection and drop what was not sent, in the kernel as well."""
        if not self.disconnected:
            self._set_option(socket.SO_LINGER, NO_LINGER)
            self.transport.abort()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self._expect_end()

    def shutdown(self) -> None:
        super().shutdown()
        self._expect_end()

    def _expect_end(self) -> None:
        """Wait no longer than `CLOSE_S` for a connection that is being closed."""
        if self.transport.is_closing() and not self.disconnected:
            self.loop.call_later(CLOSE_S, self.cut_off)

    def _set_option(self, option: int, value: int | bytes) -> None:
        # Missing where the server listens on something else than a TCP socket of its own.
        if (ours := self.transport.get_extra_info("socket")) is not None:
            ours.setsockopt(socket.SOL_SOCKET, option, value)

    def _write_all(self, parts: Iterable[bytes]) -> None:
        self.transport.write(b"".join(parts))

    def _is_open(self) -> bool:
        return (
            self.conn.state is State.OPEN
            and not self.close_sent
            and not self.disconnected
            and not self.transport.is_closing()
        )


# What `uvicorn.Config` is given: frames as they are, no compression (a window per client is most of its memory,
# and would have to be run for each), pings to see who is still there.
UVICORN_OPTIONS: dict[str, Any] = {
    "ws": LiveProtocol,
    "ws_max_size": DEFAULT_LIMITS.message_bytes,
    "ws_per_message_deflate": False,
    "ws_ping_interval": 20.0,
    "ws_ping_timeout": 20.0,
}

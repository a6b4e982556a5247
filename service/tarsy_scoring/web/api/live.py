"""
`WS /api/v1/ws`, where clients of the gateway connect. docs/live.md describes the protocol.

A client gets frames that were encoded once for all clients; `server.serve` gives access to its connection.
"""

import asyncio
from typing import Any

from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from tarsy_scoring.live.client import DEFAULT_LIMITS, Chunk
from tarsy_scoring.web.access import Reading
from tarsy_scoring.web.connections import CLOSE_S, Connection, connection_of
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.problems import UPGRADE_HEADERS, Problem

router = APIRouter(prefix="/api/v1")

RETRY_AFTER_S = 5


@router.websocket("/ws")
async def live(websocket: WebSocket, caller: Reading) -> None:
    """Scoring events as they happen, in TARSy's protocol. The middleware has checked access and origin."""
    gateway, connection = context_of(websocket).gateway, connection_of(websocket.scope)
    if gateway is None or connection is None or gateway.is_full:
        why = (
            "too many clients are connected"
            if gateway and gateway.is_full
            else "this process serves no live events"
        )
        retry = {"Retry-After": str(RETRY_AFTER_S)}
        raise Problem(503, "No live events", f"{why}; try again in a moment", headers=retry)
    if gateway.has_enough(caller.identity):
        raise Problem(
            429,
            "Too many connections",
            f"{caller.name} has too many connections to the live events of this process: close some of them",
            headers={"Retry-After": str(RETRY_AFTER_S)},
        )
    await websocket.accept()
    await gateway.serve(_Socket(websocket, connection), caller.identity)


@router.get("/ws", include_in_schema=False)
async def not_upgraded() -> None:
    """426 for a plain GET, for example through a proxy that drops `Upgrade`."""
    raise Problem(
        426,
        "Upgrade required",
        "live events need a WebSocket: use a WebSocket client; docs/live.md describes the protocol",
        headers=UPGRADE_HEADERS,
    )


class _Socket:
    """The socket of a client for the gateway: frames go straight to the transport of the connection."""

    def __init__(self, websocket: WebSocket, connection: Connection) -> None:
        self._websocket = websocket
        self.connection = connection

    def send_now(self, chunk: Chunk) -> bool:
        return self.connection.write_now(chunk.frames)

    async def send(self, chunk: Chunk) -> None:
        await self.connection.write_soon(chunk.frames)

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


# Options for `uvicorn.Config`. Compression is off: its window would be most of a client's memory, and frames
# could not be shared between clients.
UVICORN_OPTIONS: dict[str, Any] = {
    "ws_max_size": DEFAULT_LIMITS.message_bytes,
    "ws_per_message_deflate": False,
    "ws_ping_interval": 20.0,
    "ws_ping_timeout": 20.0,
}

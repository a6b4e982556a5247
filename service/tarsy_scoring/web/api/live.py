"""`WS /api/v1/ws`, where gateway clients connect. docs/live.md describes the protocol."""

import asyncio
from contextlib import suppress

from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from tarsy_scoring.live.client import Chunk
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.access import Admitted
from tarsy_scoring.web.edge.problems import Problem

router = APIRouter(prefix="/api/v1")

RETRY_AFTER_S = 5
CLOSE_S = 5.0


@router.websocket("/ws")
async def live(websocket: WebSocket, caller: Admitted) -> None:
    """Scoring events as they happen, in TARSy's protocol. The middleware has checked access and origin."""
    gateway = context_of(websocket).gateway
    if gateway is None or gateway.is_full:
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
    access = websocket.app.state.access
    await gateway.serve(_Socket(websocket), caller.identity, lambda: access.is_revoked(caller))


@router.get("/ws", include_in_schema=False)
async def not_upgraded() -> None:
    """426 for a plain GET, for example through a proxy that drops `Upgrade`."""
    raise Problem(
        426,
        "Upgrade required",
        "live events need a WebSocket: use a WebSocket client; docs/live.md describes the protocol",
        headers={"Upgrade": "websocket", "Connection": "Upgrade"},
    )


class _Socket:
    """A client's WebSocket, as the gateway uses it."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def send(self, chunk: Chunk) -> None:
        try:
            for text in chunk.texts:
                await self._websocket.send_text(text)
        except (WebSocketDisconnect, RuntimeError, OSError) as error:
            raise ConnectionResetError("the client has left") from error

    async def receive(self) -> str | bytes | None:
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            return None
        text = message.get("text")
        return text if text is not None else bytes(message.get("bytes") or b"")

    async def close(self, code: int, reason: str) -> None:
        with suppress(TimeoutError, WebSocketDisconnect, RuntimeError, OSError):
            async with asyncio.timeout(CLOSE_S):
                await self._websocket.close(code, reason)

"""`WS /api/v1/ws`, where gateway clients connect. docs/live.md describes the protocol."""

from fastapi import APIRouter, WebSocket

from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.access import Admitted
from tarsy_scoring.web.edge.problems import Problem

router = APIRouter(prefix="/api/v1")

RETRY_AFTER_S = 5


@router.websocket("/ws")
async def live(websocket: WebSocket, caller: Admitted) -> None:
    """Scoring events as they happen, in TARSy's protocol. The middleware has checked access and origin."""
    gateway = context_of(websocket).gateway
    if gateway is None or gateway.is_full:
        why = "this process serves no live events, or too many clients are connected; try again in a moment"
        raise Problem(503, "No live events", why, headers={"Retry-After": str(RETRY_AFTER_S)})
    if gateway.has_enough(caller.identity):
        raise Problem(
            429,
            "Too many connections",
            f"{caller.name} has too many connections to the live events of this process: close some of them",
            headers={"Retry-After": str(RETRY_AFTER_S)},
        )
    await websocket.accept()
    access = websocket.app.state.access
    await gateway.serve(websocket, caller.identity, lambda: access.is_revoked(caller))


@router.get("/ws", include_in_schema=False)
async def not_upgraded() -> None:
    """426 for a plain GET, for example through a proxy that drops `Upgrade`."""
    raise Problem(
        426,
        "Upgrade required",
        "live events need a WebSocket: use a WebSocket client; docs/live.md describes the protocol",
        headers={"Upgrade": "websocket", "Connection": "Upgrade"},
    )

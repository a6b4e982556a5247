"""Shared by tests of live events: a fake WebSocket peer, gateways and events."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from pydantic_core import from_json, to_json
from starlette.websockets import WebSocket

from infrastructure import wait_until
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.kafka.consumer import Record
from tarsy_scoring.live.client import GatewayLimits
from tarsy_scoring.live.gateway import Gateway
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.telemetry.http_server import TRANSPORT
from tarsy_scoring.telemetry.metrics import Metrics

WAIT_S = 30.0
MARK = "end-of-answers-"  # no channel has such a name


class FakeSocket:
    """
    WebSocket peer, and the transport to it, with room while `reading` is set; sends what a test passes to `say`.

    Attributes:
        closed: Close code and reason, once the gateway has closed the connection.
        received: All messages, in order, with the replies that `answer` asked for.
    """

    def __init__(self) -> None:
        self.scope = {"extensions": {TRANSPORT: self}}
        self.received: list[dict[str, Any]] = []
        self.closed: tuple[int, str] | None = None
        self.reading = asyncio.Event()
        self.reading.set()
        self._said: asyncio.Queue[str | bytes | None] = asyncio.Queue()
        self._is_gone = False

    # --- the gateway's side

    def get_write_buffer_size(self) -> int:
        return 0 if self.reading.is_set() else 1

    def is_closing(self) -> bool:
        return self._is_gone

    def write(self, data: bytes) -> None:
        while data:
            begin, end = (2, 2 + data[1]) if data[1] < 126 else (4, 4 + int.from_bytes(data[2:4], "big"))
            self.received.append(from_json(data[begin:end]))
            data = data[end:]

    async def receive(self) -> dict[str, Any]:
        said = await self._said.get()
        if said is None:
            return {"type": "websocket.disconnect"}
        return {"type": "websocket.receive", "text" if isinstance(said, str) else "bytes": said}

    async def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)

    # --- the peer's side

    def say(self, message: Mapping[str, Any] | str | bytes) -> None:
        self._said.put_nowait(message if isinstance(message, str | bytes) else to_json(message).decode())

    def leave(self) -> None:
        self._is_gone = True
        self._said.put_nowait(None)

    @property
    def unread(self) -> int:
        """Messages of the peer that the gateway has not received yet."""
        return self._said.qsize()

    @property
    def messages(self) -> list[dict[str, Any]]:
        """All messages it received, in order, without the replies that `answer` asked for."""
        return [m for m in self.received if not m.get("channel", "").startswith(MARK)]

    @property
    def positions(self) -> list[int]:
        """Positions of the events it received."""
        return [m["position"] for m in self.messages if "position" in m]

    async def answer(self) -> list[dict[str, Any]]:
        """
        All messages up to the gateway's answer to the latest request.

        The gateway answers requests in order, so the answer to one extra request comes after all others.
        """
        mark = f"{MARK}{len(self.received)}"
        self.say({"action": "subscribe", "channel": mark})
        await wait_until(lambda: any(m.get("channel") == mark for m in self.received), WAIT_S, "the answers")
        return self.messages


def unplaced(metrics: Metrics | None = None, **limits: Any) -> Gateway:
    """A gateway without a position in the stream of events; it never queries its database."""
    database = Database("postgresql://localhost:1/none", "public", pool_size=1)
    return Gateway(Settings(), database, metrics or Metrics(), GatewayLimits(**limits))


def placed(metrics: Metrics | None = None, **limits: Any) -> Gateway:
    """A gateway positioned before the first event."""
    gateway = unplaced(metrics, **limits)
    gateway.begin_at(0)
    return gateway


@asynccontextmanager
async def connected_to(gateway: Gateway, *channels: str, last_event_id: int | None = None) -> AsyncIterator[FakeSocket]:
    """A client of the gateway with these subscriptions; disconnected at the end."""
    async with silent_client_of(gateway) as socket:
        for channel in channels:
            socket.say({"action": "subscribe", "channel": channel, "last_event_id": last_event_id})
        await socket.answer()
        yield socket


@asynccontextmanager
async def silent_client_of(gateway: Gateway) -> AsyncIterator[FakeSocket]:
    """A client of the gateway that has sent nothing yet; disconnected at the end."""
    socket = FakeSocket()
    serving = asyncio.create_task(gateway.serve(cast(WebSocket, socket)))
    try:
        yield socket
    finally:
        socket.leave()
        await asyncio.wait_for(serving, WAIT_S)


def event(position: int, session_id: str = "session-1", kind: str = "scoring.started", **more: Any) -> dict[str, Any]:
    """The payload of a production score's event."""
    return {
        "type": kind,
        "event_id": str(uuid.uuid4()),
        "sequence": position,
        "position": position,
        "purpose": "production",
        "session_id": session_id,
        "timestamp_us": 1_700_000_000_000_000,
    } | more


def records(*events: Mapping[str, Any]) -> list[Record]:
    """The Kafka records of events."""
    return [Record("scoring-events", 0, n, 0, b"key", to_json(e), ()) for n, e in enumerate(events)]


def of_type(messages: Sequence[Mapping[str, Any]], kind: str) -> list[Mapping[str, Any]]:
    return [m for m in messages if m["type"] == kind]


async def until(condition: Callable[[], Any], what: str) -> None:
    await wait_until(condition, WAIT_S, what)

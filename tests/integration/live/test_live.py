"""Live events through the real server: messages, refusals before the handshake, peers that do not read."""

import asyncio
import contextlib
import hashlib
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient, WebSocketDenialResponse
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from builders import policy
from infrastructure import wait_until
from live import event, records
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.live.client import GatewayLimits
from tarsy_scoring.live.gateway import Gateway
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.queue.inbox import Inbox
from tarsy_scoring.queue.leases import Leases
from tarsy_scoring.scores.reader import Reader
from tarsy_scoring.telemetry.http_server import listen
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.web.app import create_app
from tarsy_scoring.web.context import AppContext
from tarsy_scoring.web.server import serve

WAIT_S = 30.0


@dataclass
class Served:
    """A gateway behind uvicorn on a free port; `send` replaces topic and database."""

    gateway: Gateway
    metrics: Metrics
    address: str
    stopping: asyncio.Event
    serving: asyncio.Task[None]
    sent: int = 0

    async def stop(self) -> None:
        """Stop as on SIGTERM; returns when the server is down."""
        self.stopping.set()
        await asyncio.wait_for(self.serving, WAIT_S)

    @property
    def url(self) -> str:
        return f"ws://{self.address}/api/v1/ws"

    def send(self, number: int = 1, **more: Any) -> None:
        """Give the gateway this many events of the channel `sessions`."""
        self.gateway.take_records(records(*(event(self.sent + n, **more) for n in range(1, number + 1))))
        assert self.gateway.deliver() == number
        self.sent += number

    @contextlib.asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[ClientConnection]:
        """A client that has subscribed to `sessions`."""
        async with connect(self.url, proxy=None, **options) as client:
            await client.send('{"action": "subscribe", "channel": "sessions"}')
            assert [json.loads(await client.recv())["type"] for _ in range(2)] == [
                "connection.established",
                "subscription.confirmed",
            ]
            yield client

    def closed_as(self, reason: str) -> float:
        return self.metrics.registry.get_sample_value("tarsy_scoring_gateway_closed_total", {"reason": reason}) or 0.0

    def count(self, what: str) -> float | None:
        """The `clients` or `subscriptions` of the gateway."""
        return self.metrics.registry.get_sample_value(f"tarsy_scoring_gateway_{what}")

    async def has_clients(self, number: int) -> None:
        await wait_until(lambda: self.count("clients") == number, WAIT_S, f"{number} clients")


def site_on(database: Database, metrics: Metrics) -> AppContext:
    inbox = Inbox(database, policy())
    leases, reader = Leases(database, inbox), Reader(database, inbox.policy.current_hash)
    return AppContext(Settings(api_port=0), load_criteria(), inbox, leases, reader, reader, metrics, None)


@contextlib.asynccontextmanager
async def serving(database_url: str, *, tokens_file: Path | None = None, **limits: Any) -> AsyncIterator[Served]:
    """A gateway with these limits behind the real server."""
    database, metrics = Database(database_url, "public", pool_size=2), Metrics()
    await database.open()
    gateway = Gateway(Settings(), database, metrics, GatewayLimits(**limits))
    await gateway.read_missing()
    listening = listen("127.0.0.1", 0)
    address, stopping = f"127.0.0.1:{listening.getsockname()[1]}", asyncio.Event()
    site = site_on(database, metrics)
    site.settings = site.settings.model_copy(update={"api_tokens_file": tokens_file})
    task = asyncio.create_task(serve(create_app(replace(site, gateway=gateway)), site.settings, listening, stopping))
    served = Served(gateway, metrics, address, stopping, task)
    try:
        yield served
    finally:
        await served.stop()
        await database.close()


@pytest.fixture
async def served(database_url: str) -> AsyncIterator[Served]:
    async with serving(database_url, clients=3, queue_bytes=200_000) as served:
        yield served


async def positions(client: ClientConnection, number: int) -> list[int]:
    async with asyncio.timeout(WAIT_S):
        return [json.loads(await client.recv())["position"] for _ in range(number)]


class UnreadingClient:
    """A peer that subscribes and then never reads."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    async def subscribe(self, served: Served) -> None:
        before = served.count("subscriptions")
        await asyncio.to_thread(self._connect, served.address)
        await wait_until(lambda: served.count("subscriptions") != before, WAIT_S, "its subscription")

    def _connect(self, address: str) -> None:
        host, port = address.split(":")
        self._socket.connect((host, int(port)))
        self._socket.sendall(
            f"GET /api/v1/ws HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        assert b" 101 " in self._socket.recv(4096)
        text = b'{"action": "subscribe", "channel": "sessions"}'
        self._socket.sendall(bytes((0x81, 0x80 | len(text), 0, 0, 0, 0)) + text)  # masked with zeros

    def read_until(self, end: bytes) -> bytes:
        """Read up to `end`; returns the last bytes before it. Raises ConnectionResetError when cut off."""
        self._socket.settimeout(WAIT_S)
        seen = b""
        while not seen.endswith(end):
            seen = (seen + self._socket.recv(1 << 20))[-100:]
        return seen.removesuffix(end)

    def close(self) -> None:
        self._socket.close()


async def test_events_arrive_one_message_each_and_in_order(served: Served) -> None:
    """Each event is one text message, whichever length its frame header encodes."""
    async with served.client() as client:
        messages = []
        for size in (1, 200, 70_000):
            served.send(3, note="ä" * size)
            messages += [await asyncio.wait_for(client.recv(), WAIT_S) for _ in range(3)]
    assert [json.loads(m)["position"] for m in messages] == list(range(1, 10))
    assert [len(json.loads(m)["note"]) for m in messages] == [1] * 3 + [200] * 3 + [70_000] * 3
    assert all(isinstance(m, str) for m in messages)


async def test_a_page_of_another_site_is_refused_before_the_handshake(served: Served) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with connect(served.url, proxy=None, origin="https://evil.example"):  # type: ignore[arg-type]
            pass
    assert refused.value.response.status_code == 403
    async with served.client(origin=f"http://{served.address}"):
        pass


@pytest.mark.parametrize(
    ("limits", "status"),
    [
        pytest.param({"clients": 1}, 503, id="full"),
        pytest.param({"clients_per_caller": 1}, 429, id="full for a caller"),
    ],
)
async def test_a_full_gateway_refuses_before_the_handshake(
    database_url: str, limits: dict[str, int], status: int
) -> None:
    """Callers are anonymous here, so each address is a caller. A client that leaves makes room."""
    async with serving(database_url, **limits) as served:
        async with served.client():
            with pytest.raises(InvalidStatus) as refused:
                async with connect(served.url, proxy=None):
                    pass
            assert refused.value.response.status_code == status
            assert refused.value.response.headers["Retry-After"]
        await served.has_clients(0)
        async with served.client():
            pass


async def test_a_peer_that_does_not_read_is_cut_off_and_others_get_everything(served: Served) -> None:
    """Its queue is bounded, and dropped with what it has not taken."""
    peer = UnreadingClient()
    await peer.subscribe(served)
    async with served.client() as client:
        received = []
        for _ in range(200):
            served.send(5, note="x" * 20_000)
            received += await positions(client, 5)
            if served.closed_as("slow"):
                break
        assert received == list(range(1, served.sent + 1))
        assert served.closed_as("slow") == 1
        await served.has_clients(1)
    peer.close()


async def test_a_slow_peer_that_reads_again_learns_why(served: Served) -> None:
    """It gets what was already sent, then the close frame: reconnect and catch up."""
    peer = UnreadingClient()
    await peer.subscribe(served)
    while not served.closed_as("slow"):
        served.send(5, note="x" * 20_000)
        await asyncio.sleep(0)
    seen = await asyncio.to_thread(peer.read_until, b"too slow: reconnect and catch up")
    peer.close()
    assert seen.endswith((4008).to_bytes(2, "big"))


async def test_a_server_that_stops_does_not_wait_for_a_deaf_peer(served: Served) -> None:
    peer = UnreadingClient()
    await peer.subscribe(served)
    for _ in range(20):
        served.send(1, note="x" * 50_000)
        await asyncio.sleep(0)
    await served.stop()  # in time, or it fails
    peer.close()


def test_without_a_gateway_the_handshake_is_answered_503() -> None:
    database = Database("postgresql://localhost:1/none", "public", pool_size=1)
    app = create_app(site_on(database, Metrics()))
    with pytest.raises(WebSocketDenialResponse) as refused:
        TestClient(app, headers={"Host": "localhost"}).websocket_connect("/api/v1/ws").__enter__()
    assert refused.value.status_code == 503


async def test_sockets_of_a_removed_token_are_closed(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a further request; those of other tokens stay."""
    monkeypatch.setattr("tarsy_scoring.live.gateway.REVOKED_S", 0.05)
    tokens = [
        {"name": name, "scope": "read", "sha256": hashlib.sha256(name.encode()).hexdigest()} for name in ("old", "new")
    ]
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps(tokens))

    def with_token(name: str) -> dict[str, Any]:
        return {"additional_headers": {"Authorization": f"Bearer {name}"}}

    async with (
        serving(database_url, tokens_file=path) as served,
        served.client(**with_token("old")) as old,
        served.client(**with_token("new")) as new,
    ):
        following = asyncio.create_task(served.gateway.run(served.stopping))
        path.write_text(json.dumps(tokens[1:]))
        with pytest.raises(ConnectionClosed) as closed:
            async with asyncio.timeout(WAIT_S):
                await old.recv()
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "the token is no longer valid")
        await served.has_clients(1)
        served.send(1)
        async with asyncio.timeout(WAIT_S):
            assert json.loads(await new.recv())["type"]
        served.stopping.set()
        await following

"""The server of `/metrics` and of the probes: shared looks, and bounds for connections."""

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from infrastructure import wait_until
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.errors import StartRefused
from tarsy_scoring.telemetry import health as health_module
from tarsy_scoring.telemetry.health import Health, HealthServer, Look
from tarsy_scoring.telemetry.metrics import Metrics

ENOUGH_S = 20.0


async def test_many_callers_share_one_look_a_second() -> None:
    """While a look is under way, callers get the result before it; before the first result they wait."""
    now, looks, go_on = 100.0, 0, asyncio.Event()

    async def check() -> str | None:
        nonlocal looks
        looks += 1
        await go_on.wait()
        return None if looks == 1 else "away"

    look = Look(check, lambda: now)
    waiting = [asyncio.create_task(look()) for _ in range(3)]
    await asyncio.sleep(0)
    go_on.set()
    first = await asyncio.gather(*waiting)
    now += 0.9
    soon = await look()
    now += 0.2
    go_on.clear()
    looking = asyncio.create_task(look())
    await asyncio.sleep(0)
    meanwhile = await look()
    go_on.set()

    assert (first, soon, meanwhile, await looking) == ([None] * 3, None, None, "away")
    assert looks == 2


class Peer:
    """A connection to a `HealthServer`, on which a test sends what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    @classmethod
    async def of(cls, server: HealthServer, data: bytes) -> "Peer":
        peer = cls(*await asyncio.open_connection("127.0.0.1", server.port))
        peer.writer.write(data)
        return peer

    async def answer(self) -> bytes:
        """All bytes until the server ends the connection."""
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(self._reader.read(), ENOUGH_S)
        return b""


@contextlib.asynccontextmanager
async def health_server() -> AsyncIterator[HealthServer]:
    server = HealthServer(load_settings({"SCORING_METRICS_PORT": "0"}), Metrics().registry, Health("starting"))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def test_a_half_sent_request_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "CONNECTION_S", 0.2, raising=False)
    async with health_server() as server:
        for half in (b"", b"GET /metrics HTTP/1.1\r\nHost: a\r\n", b"GET /metr"):
            assert await (await Peer.of(server, half)).answer() == b""


async def test_more_half_sent_requests_than_places_displace_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "MAX_CONNECTIONS", 3, raising=False)
    async with health_server() as server:
        half_sent = [await Peer.of(server, b"GET /metrics HTTP/1.1\r\n") for _ in range(5)]
        scrape = await Peer.of(server, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        scraped = await scrape.answer()
        ended = [await peer.answer() for peer in half_sent[:3]]
        half_sent[-1].writer.write(b"Host: a\r\n\r\n")
        last = await half_sent[-1].answer()

    assert scraped.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"tarsy_scoring_build_info" in scraped
    assert ended == [b""] * 3
    assert last.startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(
    ("request_line", "status", "body"),
    [
        pytest.param("GET /healthz?verbose HTTP/1.1", 200, b'{"status": "running"}', id="healthz"),
        pytest.param("GET /readyz HTTP/1.1", 503, b'{"status": "not ready", "reason": "starting"}', id="readyz"),
        pytest.param("HEAD /healthz HTTP/1.1", 200, b"", id="head"),
        pytest.param("POST /metrics HTTP/1.1", 405, b"use GET\n", id="other method"),
        pytest.param("GET / HTTP/1.1", 404, b"not found\n", id="other path"),
        pytest.param("GET /metrics", 400, b"not HTTP\n", id="no http"),
    ],
)
async def test_answers(request_line: str, status: int, body: bytes) -> None:
    """Each ends its connection and gives its length."""
    async with health_server() as server:
        answer = await (await Peer.of(server, f"{request_line}\r\nHost: a\r\n\r\n".encode())).answer()

    head, _, found = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"\r\nConnection: close" in head
    assert found == body


async def test_a_head_without_end_is_refused() -> None:
    async with health_server() as server:
        answer = await (await Peer.of(server, b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20_000)).answer()

    assert answer.startswith(b"HTTP/1.1 431 ")


async def test_a_peer_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "CONNECTION_S", 0.2)
    monkeypatch.setattr(health_module, "generate_latest", lambda _: b"x" * 50_000_000)
    async with health_server() as server:
        peer = await Peer.of(server, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        await wait_until(lambda: server._open, ENOUGH_S, "the connection is open")
        await wait_until(lambda: not server._open, ENOUGH_S, "the connection is cut off")
        answer = await peer.answer()

    assert len(answer) < 50_000_000


@pytest.mark.parametrize(
    ("env", "serves_probes", "expected"),
    [
        pytest.param({}, True, ("127.0.0.1", 9090), id="worker"),
        pytest.param({}, False, ("127.0.0.1", 9091), id="api"),
        pytest.param({"SCORING_METRICS_PORT": "0"}, False, ("127.0.0.1", 0), id="any port"),
        pytest.param({"SCORING_METRICS_HOST": "::1", "SCORING_METRICS_PORT": "7"}, True, ("::1", 7), id="settings"),
    ],
)
async def test_metrics_listen_on_the_address_of_the_settings(
    env: dict[str, str], serves_probes: bool, expected: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    listened = []

    async def listen(_: object, host: str, port: int) -> None:
        listened.append((host, port))
        raise OSError(errno.EACCES, "planted")

    monkeypatch.setattr(asyncio, "start_server", listen)
    health = Health("starting") if serves_probes else None
    with pytest.raises(StartRefused, match="SCORING_METRICS_HOST"):
        await HealthServer(load_settings(env), CollectorRegistry(), health).start()
    assert listened == [expected]

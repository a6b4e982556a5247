"""Limits on connections: real sockets, an application without a database, short timeouts."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from fastapi import FastAPI, Request, WebSocket
from starlette.responses import Response, StreamingResponse
from structlog.testing import capture_logs

from infrastructure import wait_until
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.telemetry import http_server
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.web.edge.access import Access
from tarsy_scoring.web.edge.middleware import RequestMiddleware
from tarsy_scoring.web.edge.problems import add_problem_handlers
from tarsy_scoring.web.server import listen, serve

ENOUGH_S = 20.0
SHORT_S = 0.2
# For tests that expect no cut-off: a busy machine may pause the process for some tenths of a second.
LONGER_S = 1.0
LARGE = 8_000_000
PING = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
HANDSHAKE = (
    b"GET /echo HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class Peer:
    """A client under the control of a test: it sends and reads only when a test calls it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.port: int = writer.get_extra_info("sockname")[1]

    def say(self, data: bytes) -> None:
        self._writer.write(data)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next answer."""
        text = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), ENOUGH_S)
        first, *lines = text.decode().strip().split("\r\n")
        return int(first.split()[1]), {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        status, headers = await self.head()
        body = self._reader.readexactly(int(headers["content-length"]))
        return status, headers, await asyncio.wait_for(body, ENOUGH_S)

    async def some(self) -> bytes:
        return await asyncio.wait_for(self._reader.read(1_000_000), ENOUGH_S)

    async def rest(self) -> bytes:
        """The bytes until the connection ends."""
        content = b""
        with suppress(ConnectionError):
            while piece := await self.some():
                content += piece
        return content

    def leave(self) -> None:
        self._writer.transport.abort()


class Site:
    """A running server with its peers."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._peers: list[Peer] = []

    async def peer(self, host: str = "127.0.0.1", port: int = 0) -> Peer:
        """A peer with this port of its own, connected to this address of the server."""
        connected = socket.socket()
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        connected.bind(("127.0.0.1", port))
        # Otherwise the kernel buffers megabytes for a peer that does not read.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        connected.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connected, (host, self._port))
        self._peers.append(Peer(*await asyncio.open_connection(sock=connected, limit=1000)))
        return self._peers[-1]

    async def let_a_silent_peer_go(self) -> None:
        """Wait until a new peer has exceeded the time for a head."""
        await (await self.peer()).rest()

    def close(self) -> None:
        for peer in self._peers:
            peer.leave()


def application() -> FastAPI:
    app = FastAPI(openapi_url=None)
    settings = load_settings({})
    app.add_middleware(RequestMiddleware, access=Access(settings), metrics=Metrics())
    add_problem_handlers(app)

    @app.get("/healthz")
    async def healthz() -> Response:
        return Response("fine")

    @app.websocket("/echo")
    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        async for text in websocket.iter_text():
            websocket.scope["extensions"][http_server.TRANSPORT].write(text.encode())

    @app.post("/body")
    async def body(request: Request) -> Response:
        return Response(str(len(await request.body())))

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def content() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 100_000
                await asyncio.sleep(0)

        return StreamingResponse(content())

    return app


@asynccontextmanager
async def serving() -> AsyncIterator[Site]:
    anywhere = {"SCORING_API_HOST": "0.0.0.0", "SCORING_API_OPEN": "true"}
    settings = load_settings({"SCORING_API_PORT": "0", "SCORING_DRAIN_TIMEOUT_S": "1"} | anywhere)
    listening, stopping = listen(settings), asyncio.Event()
    site = Site(listening.getsockname()[1])
    task = asyncio.create_task(serve(application(), settings, listening, stopping))
    try:
        yield site
    finally:
        site.close()
        stopping.set()
        await asyncio.wait_for(task, 30)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with serving() as running:
        yield running


# --- heads ---------------------------------------------------------------------------------------------


BEGUN = {
    "nothing": b"",
    "half a head": b"GET /healthz HTTP/1.1\r\nHost: loc",
    "half a second head": PING + b"GET",
    "a body that no route reads": b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1",
}


async def test_a_head_must_arrive_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_TIMEOUT_S", SHORT_S)
    async with serving() as site:
        for said in BEGUN.values():
            peer = await site.peer()
            peer.say(said)
            if b"\r\n\r\n" in said:
                await peer.answer()
                peer.say(b" ")
            await peer.rest()


async def test_single_bytes_do_not_extend_the_time_for_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_TIMEOUT_S", SHORT_S)
    async with serving() as site:
        peer = await site.peer()
        ended = asyncio.create_task(peer.rest())
        async with asyncio.timeout(ENOUGH_S):
            while not ended.done():
                peer.say(b"G")
                await asyncio.wait([ended], timeout=SHORT_S / 10)


async def test_the_time_for_a_head_excludes_body_and_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_TIMEOUT_S", LONGER_S)
    async with serving() as site:
        peer = await site.peer()
        peer.say(b"POST /body HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n1")
        await site.let_a_silent_peer_go()
        peer.say(b"2")
        assert (await peer.answer())[2] == b"2"
        await site.let_a_silent_peer_go()
        peer.say(PING)
        assert (await peer.answer())[2] == b"fine"


async def test_a_websocket_has_no_deadline_of_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_TIMEOUT_S", SHORT_S)
    async with serving() as site:
        live = await site.peer()
        live.say(PING + HANDSHAKE)
        assert (await live.answer())[2] == b"fine"
        assert (await live.head())[0] == 101
        await site.let_a_silent_peer_go()
        live.say(bytes((0x81, 0x82, 0, 0, 0, 0)) + b"hi")  # a text, masked with zeros
        assert await live.some() == b"hi"


async def test_a_websocket_has_the_transport_of_its_connection(site: Site) -> None:
    """A peer may use one port for connections to two addresses of the server."""
    one = await site.peer()
    peers = {b"to": one, b"me": await site.peer("127.0.0.2", one.port)}
    for peer in peers.values():
        peer.say(HANDSHAKE)
        assert (await peer.head())[0] == 101
    for text, peer in peers.items():
        peer.say(bytes((0x81, 0x82, 0, 0, 0, 0)) + text)
        assert await peer.some() == text


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the kernel has no such limit")
async def test_an_unread_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "STALL_TIMEOUT_S", SHORT_S)
    async with serving() as site:
        peer = await site.peer()
        with capture_logs() as lines:
            peer.say(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await wait_until(lambda: any(x["event"] == "api.request" for x in lines), ENOUGH_S, "it is cut off")
        assert len(await peer.rest()) < LARGE


# --- what the server refuses by itself -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "status"),
    [
        pytest.param(b"hello\r\n\r\n", 400, id="no HTTP"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: a\nY: b\r\n\r\n", 400, id="bare line feed"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", 400, id="folded line"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 40_000, 431, id="no end"),
    ],
)
async def test_a_head_that_a_proxy_may_read_otherwise_is_refused(site: Site, head: bytes, status: int) -> None:
    peer = await site.peer()
    peer.say(head)
    assert (await peer.head())[0] == status
    await peer.rest()


async def test_a_malformed_body_is_refused_without_an_error_log(site: Site) -> None:
    peer = await site.peer()
    with capture_logs() as lines:
        peer.say(b"POST /body HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nnot-a-size\r\n")
        assert (await peer.head())[0] == 400
        await peer.rest()
        await wait_until(lambda: any(line["event"] == "api.request" for line in lines), ENOUGH_S, "it has ended")
    assert [line["error"] for line in lines if line["event"] == "api.failed"] == []
    other = await site.peer()
    other.say(PING)
    assert (await other.answer())[2] == b"fine"


async def test_head_answers_as_get_without_a_body(site: Site) -> None:
    peer = await site.peer()
    peer.say(PING)
    _, shown, _ = await peer.answer()
    peer.say(PING.replace(b"GET", b"HEAD"))
    status, headers = await peer.head()
    differing = dict.fromkeys(("x-request-id", "date"), "")
    assert (status, headers | differing) == (200, shown | differing)
    peer.say(PING)
    assert (await peer.answer())[2] == b"fine"

"""
Signals of the operating system, readiness, and the HTTP server for `/metrics`, `/healthz` and `/readyz`.
"""

import asyncio
import errno
import gc
import json
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, NamedTuple

import h11
import structlog
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import StartRefused

log = structlog.get_logger()

LOOK_EVERY_S = 1.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)
METRICS_PORT, API_METRICS_PORT = 9090, 9091
# A connection serves one request, so that its whole life has one time limit. A scrape takes some
# milliseconds.
CONNECTION_S = 10.0
MAX_CONNECTIONS = 64
MAX_HEAD_BYTES = 16_384
JSON = "application/json; charset=utf-8"


async def run_until_signalled(main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """
    Run `main` with an event that the first SIGTERM or SIGINT sets; the second signal cancels `main`.

    Returns when `main` returns, and raises what it raises.
    """
    stopping = asyncio.Event()
    task = asyncio.ensure_future(main(stopping))
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        if stopping.is_set():
            log.warning("service.stopping_now", signal=number.name)
            task.cancel()
        else:
            log.info("service.stopping", signal=number.name)
            stopping.set()

    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        await task
    except asyncio.CancelledError:
        if not stopping.is_set():
            raise
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


async def unless_stopped(work: Coroutine[Any, Any, None], stopping: asyncio.Event) -> bool:
    """
    Run `work` until it is done or `stopping` is set, which cancels it. Raises what `work` raises.

    Returns:
        Whether the work was done.
    """
    task = asyncio.create_task(work)
    stop = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return False
        task.result()
        return True
    finally:
        for unfinished in (task, stop):
            unfinished.cancel()
        await asyncio.gather(task, stop, return_exceptions=True)


def calm_garbage_collector() -> None:
    """
    Let Python's garbage collector run rarely, and exempt all objects built so far.

    Call it once, at the end of the start.

    Source:
        `make bench`, 200 slots at 200 ms per turn: 17-19 % less CPU per score at the same peak memory. In an
        API with 100,000 scores each walk stopped the process for 0.2 to 0.4 s.
    """
    # A score or an answer consists of thousands of small objects, which reference counting frees. With
    # Python's own thresholds the collector walks all of them, and all imported modules, again and again.
    # Without a collection before: imports leave less than 0.1 MB of garbage, and the walk would take 0.05 s.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


Check = Callable[[], Awaitable[str | None]]


class Look:
    """
    A check that runs at most once a second, however many callers ask for its result.

    While it runs, further callers get the previous result at once; before the first result they wait for it.

    Args:
        monotonic: Clock, in s.
    """

    def __init__(self, check: Check, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._check = check
        self._monotonic = monotonic
        self._lock = asyncio.Lock()
        self._looked_at: float | None = None
        self._missing: str | None = None

    async def __call__(self) -> str | None:
        if self._looked_at is not None and self._lock.locked():
            return self._missing
        async with self._lock:
            if self._looked_at is None or self._monotonic() - self._looked_at >= LOOK_EVERY_S:
                self._missing = await self._check()
                self._looked_at = self._monotonic()
            return self._missing


class Health:
    """
    Readiness of a process: a list of checks, each of which returns the missing part, or None.

    Args:
        starting: The reason given until the first check is added.
    """

    def __init__(self, starting: str) -> None:
        self._starting = starting
        self._checks: list[Check] = []
        self._notes: list[Callable[[], str | None]] = []

    def add(self, check: Check) -> None:
        """Add a check. Checks run in the order of their addition, at each request."""
        self._checks.append(check)

    def note(self, note: Callable[[], str | None]) -> None:
        """Add a remark that `/readyz` shows and that does not end readiness; None: nothing to remark."""
        self._notes.append(note)

    def notes(self) -> list[str]:
        """The remarks that apply now."""
        return [words for note in self._notes if (words := note()) is not None]

    async def missing(self) -> str | None:
        """Run the checks; returns the first missing part, or None when the process is ready."""
        if not self._checks:
            return self._starting
        for check in self._checks:
            if (reason := await check()) is not None:
                return reason
        return None


class HealthServer:
    """
    Serves `/metrics`, and with a `health` also `/healthz` and `/readyz`.

    `/healthz` answers as long as the event loop runs; it checks nothing else, because a loop of the service
    that fails ends the process. `/readyz` asks `health`. Each connection serves one request and ends after
    `CONNECTION_S`; beyond `MAX_CONNECTIONS` the oldest is cut off. It is so small that it needs a parser of
    HTTP, not a server with a quarter of a second and 10 MB for its start.

    Args:
        settings: With the port; 0 takes any free one. A port that was not set explicitly is replaced by a
            free one if it is taken.
        health: None for the API, which serves the probes beside its routes.
    """

    def __init__(self, settings: Settings, registry: CollectorRegistry, health: Health | None = None) -> None:
        default = API_METRICS_PORT if health is None else METRICS_PORT
        self.port = default if settings.metrics_port is None else settings.metrics_port
        self._host = settings.metrics_host.strip("[]")
        self._may_move = settings.metrics_port is None
        self._registry = registry
        self._health = health
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}  # oldest first

    async def start(self) -> None:
        """Start to listen. Raises: StartRefused: The configured address or port cannot be used."""
        try:
            self._server = await self._listen()
        except OSError as error:
            if not self._may_move or error.errno != errno.EADDRINUSE:
                raise StartRefused(
                    f"cannot listen on {self._host}, port {self.port}, for /metrics: {error.strerror or error}; "
                    "set SCORING_METRICS_HOST to an address of this machine and SCORING_METRICS_PORT to a free "
                    "port (0: any)"
                ) from error
            log.warning("service.metrics_port_taken", port=self.port, effect="listening on another one")
            self.port = 0
            self._server = await self._listen()
        self.port = self._server.sockets[0].getsockname()[1]

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, self._host, self.port)

    async def stop(self) -> None:
        """Stop listening, and cut off open connections. Safe to call twice."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = None
        if len(self._open) > MAX_CONNECTIONS:
            next(iter(self._open)).transport.abort()
        try:
            async with asyncio.timeout(CONNECTION_S):
                await self._serve_one(reader, writer)
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError):
            pass
        finally:
            del self._open[writer]
            writer.transport.abort()  # does nothing after a close

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        is_head = False
        try:
            while (event := connection.next_event()) is h11.NEED_DATA:
                connection.receive_data(await reader.read(MAX_HEAD_BYTES))
            if not isinstance(event, h11.Request):  # the peer closed the connection
                return
            is_head = event.method == b"HEAD"
            answer = await self._answer(event.method, event.target.partition(b"?")[0])
        except h11.RemoteProtocolError as error:
            answer = _Answer("not HTTP\n", error.error_status_hint)
        body = answer.body.encode()
        headers = {"Content-Type": answer.media_type, "Content-Length": str(len(body)), "Connection": "close"}
        head = h11.Response(
            status_code=answer.status,
            reason=HTTPStatus(answer.status).phrase,
            headers=[*headers.items(), *answer.headers.items()],
        )
        writer.write(connection.send(head) or b"")
        if not is_head:
            writer.write(body)

    async def _answer(self, method: bytes, path: bytes) -> "_Answer":
        if method not in (b"GET", b"HEAD"):
            return _Answer("use GET\n", 405, headers={"Allow": "GET, HEAD"})
        if path == b"/metrics":
            return _Answer(generate_latest(self._registry).decode(), 200, CONTENT_TYPE_LATEST)
        if self._health is not None and path == b"/healthz":
            return _json({"status": "running"})
        if self._health is not None and path == b"/readyz":
            return await self._readyz(self._health)
        return _Answer("not found\n", 404)

    async def _readyz(self, health: Health) -> "_Answer":
        missing = await health.missing()
        answer: dict[str, Any] = (
            {"status": "ready"} if missing is None else {"status": "not ready", "reason": missing}
        )
        if notes := health.notes():
            answer["notes"] = notes
        return _json(answer, 200 if missing is None else 503)


class _Answer(NamedTuple):
    body: str
    status: int
    media_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = MappingProxyType({})


def _json(answer: Mapping[str, Any], status: int = 200) -> _Answer:
    return _Answer(json.dumps(answer), status, JSON)

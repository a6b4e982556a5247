"""
Signals of the operating system, readiness, and the HTTP server for `/metrics`, `/healthz` and `/readyz`.
"""

import asyncio
import errno
import gc
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import StartRefused

log = structlog.get_logger()

SIGNALS = (signal.SIGTERM, signal.SIGINT)
LOOK_EVERY_S = 1.0
METRICS_PORT, API_METRICS_PORT = 9090, 9091
# A connection serves one request, so that its whole life has one time limit. A scrape takes some milliseconds.
CONNECTION_S = 10.0
MAX_CONNECTIONS = 64


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
    gc.collect()
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
    `CONNECTION_S`; beyond `MAX_CONNECTIONS` the oldest is cut off.

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
        self._runner: web.ServerRunner | None = None

    async def start(self) -> None:
        """Start to listen. Raises: StartRefused: The configured address or port cannot be used."""
        self._runner = web.ServerRunner(_Server(self._answer, access_log=None))
        await self._runner.setup()
        try:
            await self._listen(self._runner)
        except OSError as error:
            if not self._may_move or error.errno != errno.EADDRINUSE:
                await self.stop()
                raise StartRefused(
                    f"cannot listen on {self._host}, port {self.port}, for /metrics: {error.strerror or error}; "
                    "set SCORING_METRICS_HOST to an address of this machine and SCORING_METRICS_PORT to a free "
                    "port (0: any)"
                ) from error
            log.warning("service.metrics_port_taken", port=self.port, effect="listening on another one")
            self.port = 0
            await self._listen(self._runner)
        self.port = self._runner.addresses[0][1]

    async def _listen(self, runner: web.ServerRunner) -> None:
        await web.TCPSite(runner, self._host, self.port).start()

    async def stop(self) -> None:
        """Stop listening. Safe to call twice."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        answer = web.Response(status=404, text="not found\n")
        if request.method not in ("GET", "HEAD"):
            answer = web.Response(status=405, text="use GET\n", headers={"Allow": "GET, HEAD"})
        elif request.path == "/metrics":
            headers = {"Content-Type": CONTENT_TYPE_LATEST}
            answer = web.Response(body=generate_latest(self._registry), headers=headers)
        elif self._health is not None and request.path == "/healthz":
            answer = web.json_response({"status": "running"})
        elif self._health is not None and request.path == "/readyz":
            answer = await self._readyz(self._health)
        answer.force_close()
        return answer

    async def _readyz(self, health: Health) -> web.Response:
        missing = await health.missing()
        answer: dict[str, Any] = {"status": "ready"} if missing is None else {"status": "not ready", "reason": missing}
        if notes := health.notes():
            answer["notes"] = notes
        return web.json_response(answer, status=200 if missing is None else 503)


class _Server(web.Server):
    """aiohttp's server, whose connections are bounded in number and in time; it has no limit for heads itself."""

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        for oldest in self.connections[:-MAX_CONNECTIONS]:
            _cut_off(oldest)
        self._loop.call_later(CONNECTION_S, transport.abort)


def _cut_off(handler: web.RequestHandler) -> None:
    if isinstance(handler.transport, asyncio.Transport):
        handler.transport.abort()

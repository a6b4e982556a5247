"""Serves `/metrics`, and with a `Health` also `/healthz` and `/readyz`."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tarsy_scoring.config.hosts import Hosts
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import StartRefused
from tarsy_scoring.telemetry.health import Health
from tarsy_scoring.telemetry.http_server import bounded_server, listen

log = structlog.get_logger()

METRICS_PORT, API_METRICS_PORT = 9090, 9091
STOP_S = 1
ONCE = {"Connection": "close"}


@asynccontextmanager
async def serve_metrics(
    settings: Settings, registry: CollectorRegistry, health: Health | None = None
) -> AsyncIterator[int]:
    """
    Serve metrics and probes during the block; yields the port.

    `/healthz` answers as long as the event loop runs; a loop of the service that fails ends the process. The
    port 0 takes any free one, and so does a port that was not set explicitly and is taken.

    Args:
        health: Answers `/readyz`; None for the API, which serves the probes itself.

    Raises:
        StartRefused: The configured address or port cannot be used.
    """
    default = API_METRICS_PORT if health is None else METRICS_PORT
    listening = _listen(settings, default)
    server = bounded_server(
        metrics_app(registry, Hosts(settings.api_hosts), health), timeout_graceful_shutdown=STOP_S
    )
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await serving
        listening.close()


def metrics_app(registry: CollectorRegistry, hosts: Hosts, health: Health | None) -> Starlette:
    """The application behind `serve_metrics`."""

    async def metrics(request: Request) -> Response:
        if not all(hosts.allow_scrape(host) for host in request.headers.getlist("host")):
            return Response("use an address, or a name in SCORING_API_HOSTS\n", 403, headers=ONCE)
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST, headers=ONCE)

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "running"}, headers=ONCE)

    async def readyz(_: Request) -> Response:
        assert health is not None, "has a route only then"
        missing = await health.missing()
        if missing is None:
            return JSONResponse({"status": "ready", **health.read_details()}, headers=ONCE)
        return JSONResponse({"status": "not ready", "reason": missing}, 503, headers=ONCE)

    probes = [] if health is None else [Route("/healthz", healthz), Route("/readyz", readyz)]
    return Starlette(routes=[Route("/metrics", metrics), *probes])


def _listen(settings: Settings, default: int) -> socket.socket:
    port = default if settings.metrics_port is None else settings.metrics_port
    try:
        return listen(settings.metrics_host, port)
    except (OSError, UnicodeError) as error:
        is_taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        if settings.metrics_port is not None or not is_taken:
            raise StartRefused(
                f"cannot listen on {settings.metrics_host}, port {port}, for /metrics: {error}; set "
                "SCORING_METRICS_HOST to an address of this machine and SCORING_METRICS_PORT to a free port "
                "(0: any)"
            ) from error
    log.warning("service.metrics_port_taken", port=port, effect="listening on another one")
    return listen(settings.metrics_host, 0)

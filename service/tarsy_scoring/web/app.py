"""
The HTTP application: routes, what stands in front of them, probes; and a server for it.
"""

import asyncio
import errno
import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from ipaddress import ip_address
from typing import Literal, cast

import structlog
import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, Field
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tarsy_scoring import __version__
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ConfigurationError, StartRefused
from tarsy_scoring.live.gateway import Gateway
from tarsy_scoring.postgres.database import DatabaseAway
from tarsy_scoring.web.access import Access
from tarsy_scoring.web.api import browse, drift, labels, ledger, live, scores, tarsy
from tarsy_scoring.web.connections import MAX_IDLE, MAX_WITHOUT_HEAD, HttpConnection, Waiting
from tarsy_scoring.web.context import Problem, Served, Site, site_of
from tarsy_scoring.web.declared import as_declared
from tarsy_scoring.web.middleware import MAX_HEAD_BYTES, Edge, Running
from tarsy_scoring.web.openapi import openapi_document
from tarsy_scoring.web.pages import drift as drift_page
from tarsy_scoring.web.pages import insights, labelling
from tarsy_scoring.web.pages import ledger as ledger_forms
from tarsy_scoring.web.pages import router as pages
from tarsy_scoring.web.problems import REFUSALS, tell_problems

log = structlog.get_logger()

READY_TIMEOUT_S = 2.0
KEEP_ALIVE_S = 75  # longer than the minute that proxies keep an idle connection, so that they close it and not we
LONGEST_STOP_S = 30.0
NOT_OURS = (errno.EADDRNOTAVAIL, socket.EAI_NONAME)

probes = APIRouter(tags=["probes"])


def create_app(site: Site, gateway: Gateway | None = None, *, access: Access | None = None) -> FastAPI:
    """
    The application; connects to nothing.

    Args:
        gateway: Serves WebSockets; None: there are none.
        access: Default: as the settings say.

    Raises:
        ConfigurationError: See `Access`.
    """
    app = application()
    app.state.served = Served(site, gateway)
    app.state.running = Running()
    access = access or Access(site.settings)
    app.add_middleware(Edge, access=access, metrics=site.metrics, running=app.state.running)
    return app


def application() -> FastAPI:
    """The routes and how they refuse, without what they work with: enough to describe them."""
    app = FastAPI(
        title="tarsy-scoring",
        version=__version__,
        openapi_url=None,  # ours is below; the framework's pages load scripts from elsewhere
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        separate_input_output_schemas=False,
        generate_unique_id_function=lambda route: f"{route.tags[0]}_{route.name}" if route.tags else route.name,
    )
    for router in (scores.router, browse.router, drift.router, ledger.router, labels.router):
        app.include_router(router, dependencies=[Depends(as_declared)])
    for router in (
        probes,
        tarsy.router,
        live.router,
        pages.router,
        insights.router,
        drift_page.router,
        labelling.router,
        ledger_forms.router,
    ):
        app.include_router(router)
    app.state.problem_page = pages.problem_page
    tell_problems(app)
    not_found = app.router.default

    async def nothing_here(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # the framework would close it, which is 403 and says nothing
            raise Problem(404, *REFUSALS[404])
        await not_found(scope, receive, send)

    app.router.default = nothing_here
    document = openapi_document(app)
    app.openapi = lambda: document  # type: ignore[method-assign]
    return app


# --- probes --------------------------------------------------------------------------------------------


class Health(BaseModel):
    """How the process is."""

    status: Literal["running", "ready", "not ready"]
    reason: str | None = Field(None, description="What is lacking, where it is not ready.")


@probes.get(
    "/healthz",
    summary="Whether the process runs",
    response_model=None,
    responses={200: {"model": Health, "description": "It runs."}},
)
async def healthz() -> Response:
    """200 while the process answers at all; needs no access."""
    return JSONResponse({"status": "running"})


@probes.get(
    "/readyz",
    summary="Whether requests can be answered",
    response_model=None,
    responses={
        200: {"model": Health, "description": "The database answers."},
        503: {"model": Health, "description": "It does not."},
    },
)
async def readyz(request: Request) -> Response:
    """200 while the database answers. A broker that is away takes nobody away: reading and asking go on without it."""
    if not request.app.state.running.has_started:
        return _not_ready("the database has not answered yet")
    database = site_of(request).reader.database
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            await database.once(lambda c: c.execute("SELECT 1"))
    except (DatabaseAway, TimeoutError):
        site_of(request).metrics.database_up.set(0)
        return _not_ready("the database does not answer")
    site_of(request).metrics.database_up.set(1)
    return JSONResponse({"status": "ready"})


@probes.get("/openapi.json", response_model=None, include_in_schema=False)
async def openapi_json(request: Request) -> Response:
    """What there is to ask for, as an OpenAPI document."""
    return JSONResponse(request.app.openapi())


@probes.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Text exposition."}},
)
async def metrics(request: Request) -> Response:
    """What docs/operations.md lists; no label holds an id."""
    return Response(generate_latest(site_of(request).metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _not_ready(reason: str) -> Response:
    return JSONResponse({"status": "not ready", "reason": reason}, status_code=503)


# --- the server ----------------------------------------------------------------------------------------


def listen(settings: Settings) -> socket.socket:
    """
    A socket at the address of the API; port 0 takes any.

    Raises:
        ConfigurationError: The address is not ours.
        StartRefused: It is taken, or may not be ours.
    """
    host, port = settings.api_host.strip("[]"), settings.api_port
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # On `::` we hear IPv4 as well, where the system can.
        both = family == socket.AF_INET6 and ip_address(address[0]).is_unspecified and socket.has_dualstack_ipv6()
        return socket.create_server(address[:2], family=family, backlog=2048, dualstack_ipv6=both)
    except (OSError, UnicodeError) as error:
        is_wrong = isinstance(error, UnicodeError) or error.errno in NOT_OURS
        why = "that is no name" if isinstance(error, UnicodeError) else error.strerror or error
        raise (ConfigurationError if is_wrong else StartRefused)(
            f"cannot listen on {host}, port {port}: {why}; set SCORING_API_HOST to an address of "
            "this machine and SCORING_API_PORT to a free port (0: any)"
        ) from error


def address_of(listening: socket.socket) -> str:
    """Where a socket listens, as a URL."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(app: FastAPI, settings: Settings, listening: socket.socket, stopping: asyncio.Event) -> None:
    """
    Serve until `stopping`; then take nothing new, close WebSockets with 1001, and let requests end.

    A cancel cuts whatever is under way. The socket is closed in either case.

    Args:
        listening: From `listen`; ours from now on.
    """
    # Requests, WebSockets and connections that wait are each bounded where they are counted, so uvicorn counts none.
    connection = partial(HttpConnection, without_head=Waiting(MAX_WITHOUT_HEAD), idle=Waiting(MAX_IDLE))
    stop_s = max(1, math.ceil(min(settings.drain_timeout_s, LONGEST_STOP_S)))
    server = _Server(
        uvicorn.Config(
            app,
            http=cast(type[asyncio.Protocol], connection),
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # who asks is decided by Access, from the real peer
            server_header=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=stop_s,
            **live.UVICORN_OPTIONS,
        )
    )

    async def stop() -> None:
        await stopping.wait()
        await app.state.running.stop()
        server.should_exit = True

    waiting = asyncio.create_task(stop())
    try:
        await server.serve(sockets=[listening])
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        listening.close()


class _Server(uvicorn.Server):
    """Signals are ours: see `lifecycle`."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

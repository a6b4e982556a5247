"""The HTTP server: its socket, and uvicorn with bounded connections."""

import asyncio
import errno
import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import cast

import uvicorn
from fastapi import FastAPI

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ConfigurationError, StartRefused
from tarsy_scoring.web.api import live
from tarsy_scoring.web.connections import Connections, watched
from tarsy_scoring.web.problems import MAX_HEAD_BYTES

KEEP_ALIVE_S = 75  # proxies keep an idle connection for 60 s; if we closed it first, a request could be lost
LONGEST_STOP_S = 30.0
NOT_OURS = (errno.EADDRNOTAVAIL, socket.EAI_NONAME)  # this machine lacks the address; the name does not exist


def listen(settings: Settings) -> socket.socket:
    """
    A listening socket at the address of the API. Port 0 takes any free port.

    Raises:
        ConfigurationError: This machine does not have the address, or the name does not exist.
        StartRefused: The port is taken, or the name cannot be resolved now.
    """
    host, port = settings.api_host.strip("[]"), settings.api_port
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # On `::` accept IPv4 as well, where the system supports it.
        both = (
            family == socket.AF_INET6
            and ip_address(address[0]).is_unspecified
            and socket.has_dualstack_ipv6()
        )
        return socket.create_server(address[:2], family=family, backlog=2048, dualstack_ipv6=both)
    except (OSError, UnicodeError) as error:
        is_setting_wrong = isinstance(error, UnicodeError) or error.errno in NOT_OURS
        why = "not a valid name" if isinstance(error, UnicodeError) else error.strerror or error
        raise (ConfigurationError if is_setting_wrong else StartRefused)(
            f"cannot listen on {host}, port {port}: {why}; set SCORING_API_HOST to an address of "
            "this machine and SCORING_API_PORT to a free port (0: any)"
        ) from error


def address_of(listening: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(
    app: FastAPI,
    settings: Settings,
    listening: socket.socket,
    stopping: asyncio.Event,
    *,
    connections: Connections | None = None,
) -> None:
    """
    Serve until `stopping` is set, and then drain.

    Draining refuses new requests, closes WebSockets with 1001, and waits for running requests: for the drain
    timeout of the settings, at most `LONGEST_STOP_S`. A cancel aborts running requests. The socket is closed
    in either case.

    Args:
        listening: From `listen`; this function closes it.
        connections: Default: with the limits of `connections`.
    """
    # `middleware` bounds requests, the gateway WebSockets, and `connections` the rest: `limit_concurrency`
    # stays unset.
    connections = connections or Connections()
    stop_s = max(1, math.ceil(min(settings.drain_timeout_s, LONGEST_STOP_S)))
    server = _Server(
        uvicorn.Config(
            watched(app),
            # uvicorn documents these two as classes, but only calls them.
            http=cast(type[asyncio.Protocol], connections.http),
            ws=cast(type[asyncio.Protocol], connections.websocket),
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # Access identifies callers by the address of the peer
            server_header=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=stop_s,
            **live.UVICORN_OPTIONS,
        ),
        connections,
    )

    async def stop() -> None:
        await stopping.wait()
        await app.state.lifecycle.stop()
        server.should_exit = True

    beside = [asyncio.create_task(stop()), asyncio.create_task(app.state.lifecycle.watch())]
    try:
        await server.serve(sockets=[listening])
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        listening.close()


class _Server(uvicorn.Server):
    """uvicorn without signal handlers of its own; `telemetry.health` installs them."""

    def __init__(self, config: uvicorn.Config, connections: Connections) -> None:
        super().__init__(config)
        self._connections = connections

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn would send a second close frame to a WebSocket that is closing, and its library raises then.
        self._connections.cut_off_closing()
        await super().shutdown(sockets)

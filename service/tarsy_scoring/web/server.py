"""HTTP server for the API: socket and drain."""

import asyncio
import errno
import math
import socket

from fastapi import FastAPI

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ConfigurationError, StartRefused
from tarsy_scoring.live.client import DEFAULT_LIMITS
from tarsy_scoring.telemetry import http_server

KEEP_ALIVE_S = 75  # proxies keep an idle connection for 60 s; if we closed it first, a request could be lost
LONGEST_STOP_S = 30.0
NOT_OURS = (errno.EADDRNOTAVAIL, socket.EAI_NONAME)  # this machine lacks the address; the name does not exist


def listen(settings: Settings) -> socket.socket:
    """
    Listen at the API address. Port 0 takes any free port.

    Raises:
        ConfigurationError: This machine does not have the address, or the name does not exist.
        StartRefused: The port is taken, or the name cannot be resolved now.
    """
    try:
        return http_server.listen(settings.api_host, settings.api_port)
    except (OSError, UnicodeError) as error:
        is_setting_wrong = isinstance(error, UnicodeError) or error.errno in NOT_OURS
        why = "not a valid name" if isinstance(error, UnicodeError) else error.strerror or error
        raise (ConfigurationError if is_setting_wrong else StartRefused)(
            f"cannot listen on {settings.api_host}, port {settings.api_port}: {why}; set SCORING_API_HOST to "
            "an address of this machine and SCORING_API_PORT to a free port (0: any)"
        ) from error


def address_of(listening: socket.socket) -> str:
    """URL for a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(app: FastAPI, settings: Settings, listening: socket.socket, stopping: asyncio.Event) -> None:
    """
    Serve until `stopping` is set, and then drain.

    Draining refuses new requests and waits for running ones: for `SCORING_DRAIN_TIMEOUT_S`, at most
    `LONGEST_STOP_S`. A cancel aborts running requests. The socket is closed in either case.

    Args:
        listening: From `listen`; this function closes it.
    """
    # `middleware` bounds requests, and the gateway WebSockets: `limit_concurrency` stays unset.
    server = http_server.bounded_server(
        app,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, math.ceil(min(settings.drain_timeout_s, LONGEST_STOP_S))),
        ws_max_size=DEFAULT_LIMITS.message_bytes,
        ws_per_message_deflate=False,  # the window would take most of the memory of a client
        ws_ping_interval=20.0,
        ws_ping_timeout=20.0,
    )

    async def stop() -> None:
        await stopping.wait()
        server.should_exit = True

    waiting = asyncio.create_task(stop())
    try:
        await server.serve(sockets=[listening])
    finally:
        waiting.cancel()
        listening.close()

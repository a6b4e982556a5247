"""LISTEN on a separate connection, reconnected for ever."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NoReturn

import asyncpg

from tarsy_scoring.postgres.failures import DRIVER_ERRORS
from tarsy_scoring.postgres.url import UrlSource

PROBE_S = 10.0  # a LISTEN connection dies silently when PostgreSQL restarts
PROBE_TIMEOUT_S = 5.0


async def answers(connection: asyncpg.Connection) -> bool:
    """Probe a connection that always listens."""
    await connection.execute("SELECT 1", timeout=PROBE_TIMEOUT_S)
    return True


async def listen(
    url: UrlSource,
    on_notify: Mapping[str, Callable[[str], None]],
    *,
    retry_after: Callable[[Exception], float],
    contact_s: float,
    on_connect: Callable[[], None] = lambda: None,
    probe: Callable[[asyncpg.Connection], Awaitable[bool]] = answers,
) -> NoReturn:
    """
    Call a function for every notification, until cancelled.

    Notifications may be lost at any time: they are sent at most once, none arrives while the connection is
    down, PgBouncer forwards none and a standby has none. Every listener must also poll.

    Args:
        on_notify: By channel; called with the payload.
        retry_after: Decides how many seconds to wait after a failure; the place to log it.
        contact_s: Deadline for connecting and for each statement.
        on_connect: Called after every successful LISTEN; something may have happened before it.
        probe: Called on every new connection and then every `PROBE_S`; decides whether to listen until the
            next call. PostgreSQL wakes each session that listens for every notification in the database.
    """

    def dispatch(_connection: object, _pid: int, channel: str, payload: object) -> None:
        on_notify[channel](str(payload))

    while True:
        try:
            connection = await asyncpg.connect(
                url(), timeout=contact_s, command_timeout=contact_s, statement_cache_size=0
            )
            try:
                is_listening = False
                while True:
                    if await probe(connection) != is_listening:
                        is_listening = not is_listening
                        change = connection.add_listener if is_listening else connection.remove_listener
                        for channel in on_notify:
                            await change(channel, dispatch)
                        if is_listening:
                            on_connect()
                    await asyncio.sleep(PROBE_S)
            finally:
                connection.terminate()
        except DRIVER_ERRORS as error:  # a TimeoutError is an OSError
            await asyncio.sleep(retry_after(error))

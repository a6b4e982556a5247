"""LISTEN on a separate connection, reconnected for ever."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NoReturn

import asyncpg

from tarsy_scoring.postgres.failures import DRIVER_ERRORS
from tarsy_scoring.postgres.url import UrlSource

PROBE_S = 10.0  # a LISTEN connection dies silently when PostgreSQL restarts
RETRY_S = 2.0


async def listen(
    url: UrlSource,
    on_notify: Mapping[str, Callable[[str], None]],
    *,
    contact_s: float,
    probe: Callable[[asyncpg.Connection], Awaitable[bool]],
) -> NoReturn:
    """
    Call a function for every notification, until cancelled.

    Notifications may be lost at any time: they are sent at most once, none arrives while the connection is
    down, and PgBouncer forwards none. Every listener must also poll.

    Args:
        on_notify: By channel; called with the payload.
        contact_s: Deadline for connecting and for each statement.
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
                    await asyncio.sleep(PROBE_S)
            finally:
                connection.terminate()
        except DRIVER_ERRORS:  # a TimeoutError is an OSError
            await asyncio.sleep(RETRY_S)

"""
One transaction on a pooled connection, ended in bounded time even if the server stops answering.

A server that stands still closes nothing, so an open connection says nothing about it. Every step here has a
deadline, and a connection that misses the deadline is closed without waiting for the server.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy
from pydantic_core import from_json, to_json

from tarsy_scoring.postgres.failures import DRIVER_ERRORS
from tarsy_scoring.postgres.url import UrlSource

COMMAND_TIMEOUT_S = 30.0
CLOSE_S = 5.0
ROLLBACK_S = 1.0  # a caller that gives up must not wait for the server that made it give up

# A worker that freezes in the middle of a transaction keeps all locks, and the scores could not be reclaimed.
# Longer than the relay waits for acknowledgements (10 s).
IDLE_IN_TRANSACTION_S = 15
# A worker that freezes between preparing and running a statement is neither idle nor in a statement, so only
# a limit on the whole transaction ends it. PostgreSQL has that limit since version 17.
TRANSACTION_S = 40
TRANSACTION_LIMIT_SINCE = 17
# A statement that waits for a lock until the statement timeout looks like one that is too slow.
LOCK_TIMEOUT_S = 10.0
LONG_TRANSACTION = """
SELECT set_config('transaction_timeout', '0', true)
  WHERE current_setting('transaction_timeout', true) IS NOT NULL
"""
"""First statement of a transaction that is meant to stay open for longer than `TRANSACTION_S`."""

# The server then ends the connection of a node that vanished while it owed the server no answer. The only
# state that a session keeps: it does no harm to other clients of a pooler.
_KEEP_ALIVE = """
SELECT set_config('tcp_keepalives_idle', '20', false), set_config('tcp_keepalives_interval', '5', false),
  set_config('tcp_keepalives_count', '4', false), set_config('tcp_user_timeout', '40s', false)
"""


def own_limits() -> dict[str, str]:
    """
    Limits that the server enforces in each of our transactions, so that they hold while this process is
    frozen.
    """
    return {
        "idle_in_transaction_session_timeout": f"{IDLE_IN_TRANSACTION_S}s",
        "statement_timeout": f"{COMMAND_TIMEOUT_S:.0f}s",
        "lock_timeout": f"{LOCK_TIMEOUT_S:.0f}s",
        "transaction_timeout": f"{TRANSACTION_S}s",
    }


@contextlib.asynccontextmanager
async def transaction_of(
    pool: asyncpg.Pool, begin_s: float, limits: Mapping[str, str], characteristics: str = ""
) -> AsyncIterator[PoolConnectionProxy]:
    """
    Run one transaction on one connection of a pool; an error or a cancel rolls it back.

    If the rollback takes longer than `ROLLBACK_S`, the connection is closed and the server rolls back when it
    notices.

    Args:
        pool: Made by `open_pool`.
        begin_s: Deadline for getting a connection and beginning the transaction.
        limits: Settings for this transaction alone. They travel with BEGIN, so they cost no round trip. A
            session's settings would stay with a server connection of a pooler, for other clients.
        characteristics: Isolation level and access mode, as in `BEGIN`.

    Raises:
        TimeoutError: It did not begin in time.
    """
    connection = await _begin(pool, begin_s, limits, characteristics)
    try:
        try:
            yield connection
            await connection.execute("COMMIT;")
        except BaseException:
            await _await_end(connection, "ROLLBACK;")
            raise
    finally:
        await pool.release(connection, timeout=ROLLBACK_S)


@contextlib.asynccontextmanager
async def connection_of(pool: asyncpg.Pool, begin_s: float) -> AsyncIterator[PoolConnectionProxy]:
    """
    One connection of a pool for one statement, which is a transaction by itself.

    The server enforces no limit. So the statement must be quick, and the client gives it a deadline: a cancel
    and a missed deadline break the statement off on the server.

    Args:
        pool, begin_s: As in `transaction_of`.

    Raises:
        TimeoutError: No connection was free in time.
    """
    async with asyncio.timeout(begin_s):
        connection = await pool.acquire()
    try:
        try:
            yield connection
        except BaseException:
            await _await_end(connection, "SELECT;")
            raise
    finally:
        await pool.release(connection, timeout=ROLLBACK_S)


async def open_pool(
    url: UrlSource, prepare: Callable[[asyncpg.Connection], Awaitable[None]] | None = None, **options: Any
) -> asyncpg.Pool:
    """
    A pool without connections; each new one goes to the URL as it is then, and the server keeps it alive.

    Args:
        prepare: Prepares a new connection further.
    """

    async def connect(_url: str, **connect_options: Any) -> asyncpg.Connection:
        return await asyncpg.connect(url(), **connect_options)

    async def prepare_session(connection: asyncpg.Connection) -> None:
        try:
            if prepare:
                await prepare(connection)
            await connection.fetchval(_KEEP_ALIVE)
        except BaseException:
            connection.terminate()  # otherwise the pool would wait for the server to close it
            raise

    async def keep_session(_connection: object) -> None:
        """Reset nothing when a connection returns: transactions leave nothing in their session."""

    options |= {"connect": connect, "min_size": 0, "init": prepare_session, "reset": keep_session}
    pool: asyncpg.Pool = await asyncpg.create_pool(url(), **options)
    return pool


async def read_jsonb(connection: asyncpg.Connection) -> None:
    """Prepare a new connection of our own pool: it reads and writes jsonb as values."""
    await connection.set_type_codec(
        "jsonb", schema="pg_catalog", encoder=_encode_jsonb, decoder=_decode_jsonb, format="binary"
    )


# The binary form of jsonb is the version, 1, and the text. It spares a copy of each document.
def _encode_jsonb(value: object) -> bytes:
    return b"\x01" + to_json(value)


def _decode_jsonb(data: bytes) -> Any:
    return from_json(data[1:])


async def _begin(
    pool: asyncpg.Pool, begin_s: float, limits: Mapping[str, str], characteristics: str
) -> PoolConnectionProxy:
    connection: PoolConnectionProxy | None = None
    try:
        async with asyncio.timeout(begin_s):
            connection = await pool.acquire()
            has_limit = connection.get_server_version().major >= TRANSACTION_LIMIT_SINCE
            known = [(k, v) for k, v in limits.items() if k != "transaction_timeout" or has_limit]
            # Without JIT: where scans are avoided, or a table was never analyzed, PostgreSQL before 18 compiles
            # statements that read one row, for up to 3 s.
            known.append(("jit", "off"))
            await connection.execute(
                f"BEGIN {characteristics};" + "".join(f"SET LOCAL {k} = '{v}';" for k, v in known)
            )
    except BaseException:
        if connection is not None:
            _close_now(connection)
            await pool.release(connection)
        raise
    return connection


async def _await_end(connection: PoolConnectionProxy, statement: str) -> None:
    """
    Execute a statement after one that failed, if the server answers in time, else close the connection.

    The driver first awaits that the server has broken the failed one off. Raises only a cancel that arrives
    meanwhile.
    """
    try:
        async with asyncio.timeout(ROLLBACK_S):
            await connection.execute(statement)
    except DRIVER_ERRORS:  # a TimeoutError is an OSError
        _close_now(connection)
    except asyncio.CancelledError:
        _close_now(connection)
        raise


def _close_now(connection: PoolConnectionProxy) -> None:
    """Close the connection without waiting for the server, so that the place in the pool is free."""
    with contextlib.suppress(asyncpg.InterfaceError):  # already lost
        connection.terminate()


async def close_pool(pool: asyncpg.Pool | None) -> None:
    """Close a pool, if there is one; connections still in use after `CLOSE_S` are cut."""
    if pool is not None:
        try:
            await asyncio.wait_for(pool.close(), CLOSE_S)
        except TimeoutError:
            pool.terminate()

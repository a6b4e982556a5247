"""
One transaction on a pooled connection, ended in bounded time even if the server stops answering.

A server that stands still closes nothing, so an open connection says nothing about it. Every step here has a
deadline, and a connection that misses its deadline is closed without waiting for the server.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy
from asyncpg.transaction import Transaction
from pydantic_core import from_json, to_json

COMMAND_TIMEOUT_S = 30.0
CLOSE_S = 5.0
ROLLBACK_S = 1.0  # a caller that gives up must not wait for the server that made it give up

# A worker that freezes in the middle of a transaction keeps its locks, and its scores could not be reclaimed.
# Longer than the relay waits for acknowledgements (10 s).
IDLE_IN_TRANSACTION_S = 15
# A worker that freezes between preparing and running a statement is neither idle nor in a statement, so only
# a limit on the whole transaction ends it. PostgreSQL has that limit since version 17.
TRANSACTION_S = 40
_TRANSACTION_TIMEOUT = """
SELECT set_config('transaction_timeout', '{seconds}s', {is_local})
WHERE current_setting('transaction_timeout', true) IS NOT NULL
"""
LONG_TRANSACTION = _TRANSACTION_TIMEOUT.format(seconds=0, is_local="true")
"""First statement of a transaction that is meant to stay open for longer than `TRANSACTION_S`."""


@contextlib.asynccontextmanager
async def transaction_of(pool: asyncpg.Pool, begin_s: float, **options: Any) -> AsyncIterator[PoolConnectionProxy]:
    """
    Run one transaction on one connection of a pool; an error or a cancel rolls it back.

    If the rollback takes longer than `ROLLBACK_S`, the connection is closed and the server rolls back when it
    notices.

    Args:
        pool: Made with `reset=keep_session`; otherwise returning a connection costs another round trip.
        begin_s: Deadline for getting a connection and beginning the transaction.
        options: Those of `asyncpg.Connection.transaction`.

    Raises:
        TimeoutError: It did not begin in time.
    """
    connection, transaction = await _begin(pool, begin_s, options)
    try:
        try:
            yield connection
            await transaction.commit()
        except BaseException:
            await _roll_back(connection, transaction)
            raise
    finally:
        await pool.release(connection, timeout=ROLLBACK_S)


async def keep_session(_connection: object) -> None:
    """Reset nothing when a connection returns to the pool: transactions leave nothing in their session."""


async def prepare_session(connection: asyncpg.Connection) -> None:
    """Set the limits and the JSON codec of a new connection of our own pool."""
    try:
        await connection.execute(
            f"SET idle_in_transaction_session_timeout = '{IDLE_IN_TRANSACTION_S}s'; "
            f"SET statement_timeout = '{COMMAND_TIMEOUT_S:.0f}s'; "
            f"{_TRANSACTION_TIMEOUT.format(seconds=TRANSACTION_S, is_local='false')}"
        )
        await connection.set_type_codec(
            "jsonb", schema="pg_catalog", encoder=_encode_jsonb, decoder=_decode_jsonb, format="binary"
        )
    except BaseException:
        connection.terminate()  # otherwise the pool would wait for the server to close it
        raise


# The binary form of jsonb is its version, which is 1, and the text. It spares a copy of each document.
def _encode_jsonb(value: object) -> bytes:
    return b"\x01" + to_json(value)


def _decode_jsonb(data: bytes) -> Any:
    return from_json(data[1:])


async def _begin(
    pool: asyncpg.Pool, begin_s: float, options: Mapping[str, Any]
) -> tuple[PoolConnectionProxy, Transaction]:
    connection: PoolConnectionProxy | None = None
    try:
        async with asyncio.timeout(begin_s):
            connection = await pool.acquire()
            transaction = connection.transaction(**options)
            await transaction.start()
    except BaseException:
        if connection is not None:
            _close_now(connection)
            await pool.release(connection)
        raise
    return connection, transaction


async def _roll_back(connection: PoolConnectionProxy, transaction: Transaction) -> None:
    """Roll back if the server answers in time. Raises only a cancel that arrives meanwhile."""
    try:
        async with asyncio.timeout(ROLLBACK_S):
            await transaction.rollback()
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):  # a TimeoutError is an OSError
        _close_now(connection)
    except asyncio.CancelledError:
        _close_now(connection)
        raise


def _close_now(connection: PoolConnectionProxy) -> None:
    """Close the connection without waiting for the server, so that its place in the pool is free."""
    with contextlib.suppress(asyncpg.InterfaceError):  # already lost
        connection.terminate()


async def close_pool(pool: asyncpg.Pool | None) -> None:
    """Close a pool, if there is one; connections still in use after `CLOSE_S` are cut."""
    if pool is not None:
        try:
            await asyncio.wait_for(pool.close(), CLOSE_S)
        except TimeoutError:
            pool.terminate()

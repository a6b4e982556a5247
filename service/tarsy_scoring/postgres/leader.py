"""
Advisory locks: one process at a time does a job.

The lock belongs to a transaction. PostgreSQL frees it when that transaction or connection ends, so a
process that dies blocks no other. Unlike a session's lock it works behind a transaction pooler.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tarsy_scoring.postgres.database import CONTACT_S, Connection, Database
from tarsy_scoring.postgres.transactions import LONG_TRANSACTION
from tarsy_scoring.telemetry.stopping import cancelling

# PostgreSQL ends the transaction of a leader that is frozen or lost after this time without a statement.
SILENCE_S = 30
BEAT_S = 5.0

_ACQUIRE = "SELECT pg_advisory_xact_lock(hashtext($1), hashtext($2))"
_TRY_ACQUIRE = "SELECT pg_try_advisory_xact_lock(hashtext($1), hashtext($2))"


@dataclass(frozen=True, slots=True)
class AdvisoryLock:
    """
    A lock by name, held until the transaction that took it ends.

    Args:
        name: Never change it: during a rollout old and new versions exclude each other by it.
    """

    name: str

    async def acquire(self, connection: Connection, scope: str) -> None:
        """
        Wait for the lock.

        Args:
            scope: Several may hold the lock in different scopes; usually the schema, since advisory locks are
                per database.
        """
        await connection.execute(_ACQUIRE, self.name, scope)

    async def try_acquire(self, connection: Connection, scope: str) -> bool:
        """Take the lock if it is free; returns whether this transaction holds it now."""
        return bool(await connection.fetchval(_TRY_ACQUIRE, self.name, scope))

    async def lead(self, database: Database, work: Callable[[], Awaitable[None]]) -> bool:
        """
        Do long work while this process holds the lock; returns False at once while another process holds it.

        A transaction that does nothing else holds the lock, so it holds back no vacuum. A beat beside the
        work keeps it alive. After a failed beat the work is cancelled: another process may hold the lock. So
        two processes work at the same time for `BEAT_S` and a contact at most, or when one was frozen, until
        the next beat.

        Raises:
            DatabaseAway: The lock could not be taken, or the beat failed.
            Exception: The error of `work`.
        """

        async def hold(connection: Connection) -> bool:
            if not await connection.fetchval(_TRY_ACQUIRE, self.name, database.schema, timeout=CONTACT_S):
                return False
            # After the lock, and without a prepared statement: a process that freezes between preparing and
            # running one is not idle, so only the limit of the whole transaction ends it.
            limits = f"SET LOCAL idle_in_transaction_session_timeout = '{SILENCE_S}s';{LONG_TRANSACTION}"
            await connection.execute(limits, timeout=CONTACT_S)
            working = asyncio.ensure_future(work())
            async with cancelling(working):
                while not (await asyncio.wait({working}, timeout=BEAT_S))[0]:
                    await connection.execute("SELECT 1", timeout=CONTACT_S)
                await working
            return True

        return await database.once(hold)

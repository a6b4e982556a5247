"""
Advisory locks: one process at a time does a job.

The lock belongs to a transaction. PostgreSQL frees it when that transaction or its connection ends, so a
process that dies blocks no other. Unlike a session's lock it works behind a transaction pooler.
"""

from dataclasses import dataclass

from tarsy_scoring.postgres.database import CONTACT_S, Connection
from tarsy_scoring.postgres.transactions import LONG_TRANSACTION

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

    async def try_lead(self, connection: Connection, scope: str) -> bool:
        """
        Take the lock for a long time, if it is free.

        The transaction must do nothing but hold the lock: then it holds back no vacuum. Its time limits are
        lifted. Each statement has the deadline of a contact, because none of them depends on the size of the
        data.
        """
        await connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0", timeout=CONTACT_S)
        await connection.execute(LONG_TRANSACTION, timeout=CONTACT_S)
        return bool(await connection.fetchval(_TRY_ACQUIRE, self.name, scope, timeout=CONTACT_S))

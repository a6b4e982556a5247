"""What PostgreSQL counted for a database: transactions and written rows."""

import asyncio
from dataclasses import astuple, dataclass
from typing import Self

import asyncpg

_FLUSHED_WITHIN_S = 10.0

_COUNT = """
SELECT xact_commit + xact_rollback, inserted, updated FROM pg_stat_database, (
  SELECT coalesce(sum(n_tup_ins), 0)::bigint AS inserted, coalesce(sum(n_tup_upd), 0)::bigint AS updated
  FROM pg_stat_user_tables) AS tables
WHERE datname = current_database()
"""

_OTHERS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


@dataclass(frozen=True, slots=True)
class Activity:
    """Transactions, inserted and updated rows."""

    transactions: float
    inserts: float
    updates: float

    def since(self, before: Self, scores: int) -> "Activity":
        """The counts per score after an earlier look."""
        changes = zip(astuple(self), astuple(before), strict=True)
        return Activity(*((now - then) / scores for now, then in changes))


async def read_activity(connection: asyncpg.Connection) -> Activity:
    """
    Read the counts of the connection's database.

    Waits until no other connection is left, because a backend adds its last counts when it ends.

    Raises:
        TimeoutError: Other connections stayed open.
    """
    async with asyncio.timeout(_FLUSHED_WITHIN_S):
        while await connection.fetchval(_OTHERS):  # noqa: ASYNC110 - backends signal no event
            await asyncio.sleep(0.05)
    row = await connection.fetchrow(_COUNT)
    assert row is not None
    return Activity(*row)

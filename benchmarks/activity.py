"""What PostgreSQL counted for a database: transactions and written rows."""

import asyncio
from dataclasses import dataclass
from typing import Self

import asyncpg

_FLUSHED_WITHIN_S = 10.0

_COUNT = """
SELECT xact_commit + xact_rollback, inserted, updated, hot_updated FROM pg_stat_database, (
  SELECT coalesce(sum(n_tup_ins), 0)::bigint AS inserted, coalesce(sum(n_tup_upd), 0)::bigint AS updated,
    coalesce(sum(n_tup_hot_upd), 0)::bigint AS hot_updated FROM pg_stat_user_tables) AS tables
WHERE datname = current_database()
"""

_OTHERS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


@dataclass(frozen=True, slots=True)
class Activity:
    """Transactions, inserted and updated rows; `hot_updates` left every index as it was."""

    transactions: float
    inserts: float
    updates: float
    hot_updates: float

    def __sub__(self, other: Self) -> "Activity":
        return Activity(
            self.transactions - other.transactions,
            self.inserts - other.inserts,
            self.updates - other.updates,
            self.hot_updates - other.hot_updates,
        )

    def per(self, scores: int) -> "Activity":
        """The counts per score."""
        return Activity(
            self.transactions / scores, self.inserts / scores, self.updates / scores, self.hot_updates / scores
        )


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

"""
Reads over many scores: in a pool of their own, and each with a time limit.

However many of them are under way, and however slow they are, they take no connection from the statements
that accept, claim, end or show a score.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import asyncpg

from tarsy_scoring.postgres.database import Connection, Database, DatabaseAway
from tarsy_scoring.postgres.url import UrlSource

T = TypeVar("T")

CONNECTIONS = 6
READ_S = 20.0  # one read with all statements, and the wait for a connection
_TOO_SLOW = (TimeoutError, asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError)


class ReadTooSlow(DatabaseAway):
    """A read over many scores did not end in time, or found no free connection in that time."""


class AnalyticReads(Database):
    """
    The service's database for reads over many scores.

    Args:
        read_s: Time limit of one read.
        options: As for `Database`.
    """

    def __init__(self, url: str | UrlSource, schema: str, *, read_s: float = READ_S, **options: int) -> None:
        super().__init__(url, schema, **{"pool_size": CONNECTIONS} | options)
        self._read_s = read_s

    async def once(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """
        Run `work` in a separate transaction, once. Cancels a statement that is still running after
        `read_s`.

        Raises:
            ReadTooSlow: It did not end in time.
            DatabaseAway, ConfigurationError: See `Database.once`.
        """
        try:
            # A `TimeoutError` is that of this limit: `Database.once` translates every other one.
            async with asyncio.timeout(self._read_s):
                return await super().once(work)
        except (TimeoutError, DatabaseAway) as error:
            if isinstance(error, DatabaseAway) and not isinstance(error.__cause__, _TOO_SLOW):
                raise
            raise ReadTooSlow(
                f"a read over many scores at {self.place} did not end within {self._read_s:g} s"
            ) from error

    async def single(self, statement: str, *arguments: object) -> list[asyncpg.Record]:
        """As `fetch`: a read over many scores needs a time limit."""
        return await self.fetch(statement, *arguments)

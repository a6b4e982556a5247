"""
A connection pool for TARSy's database, used by timelines, bridge and write-back.

Errors tell a database that is away from one that lacks what the service needs. The pool works behind a
transaction pooler. Whatever happens to this process, the server ends the transactions after the pool's
timeout.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import asyncpg

from tarsy_scoring.errors import ScoringError, StartRefused
from tarsy_scoring.postgres.database import Connection
from tarsy_scoring.postgres.failures import DRIVER_ERRORS, why_away
from tarsy_scoring.postgres.transactions import close_pool, open_pool, transaction_of
from tarsy_scoring.postgres.url import UrlSource, place_of, url_source
from tarsy_scoring.tarsy.schema import SelectLists, Table, inspect

TIMEOUT_S = 10.0
LOCK_TIMEOUT_S = 3.0  # while this service waits for a lock, TARSy's own work queues behind it


class TarsyAway(ScoringError):
    """TARSy's database cannot be used right now; the same work may succeed later."""


class TarsyUnfit(StartRefused):
    """TARSy's database lacks a table, a column or a privilege; waiting does not help."""


class TarsyPool:
    """
    A pool of `max_connections` connections at most, opened at the first use.

    Every piece of work is one short transaction; read-only work sees one snapshot. A cancellation rolls the
    transaction back and returns the connection, and waits at most a second for a server that does not answer.

    Args:
        variable: The setting that `url` comes from, for messages.
        needs: Tables that must be there. Checked before the first work, and again after an error.
        is_read_only: Let the server refuse every write, whatever the role may do.
        timeout_s: For one piece of work, connecting included.
        max_connections: Upper bound of the pool.
        statement_cache: Prepared statements per connection. A transaction pooler that does not track them may
            give each transaction another server, so it needs 0.
    """

    def __init__(
        self,
        url: str | UrlSource,
        variable: str,
        needs: Mapping[str, Table],
        *,
        is_read_only: bool,
        timeout_s: float = TIMEOUT_S,
        max_connections: int = 2,
        statement_cache: int = 0,
    ) -> None:
        self._url = url_source(url)
        self.timeout_s = timeout_s
        self._variable = variable
        self._needs = needs
        self._is_read_only = is_read_only
        self._max_connections = max_connections
        self._statement_cache = statement_cache
        self._pool: asyncpg.Pool | None = None
        self._opening = asyncio.Lock()
        self._select_lists: SelectLists | None = None

    @property
    def place(self) -> str:
        """Hosts and database, for people."""
        return place_of(self._url())

    def look_again(self) -> None:
        """Inspect the tables before the next work: an upgrade of TARSy may have added columns."""
        self._select_lists = None

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[tuple[Connection, SelectLists]]:
        """
        One transaction; gives the connection and, per table, the columns to select.

        Violated constraints and refused values are raised as they are: only the caller knows what they mean.

        Raises:
            TarsyAway: The work took longer than the timeout, or the database cannot be used right now.
            TarsyUnfit: The database lacks a table, a column or a privilege.
        """
        try:
            async with asyncio.timeout(self.timeout_s), self._begin() as connection:
                if self._select_lists is None:
                    self._select_lists = await self._inspect(connection)
                yield connection, self._select_lists
        except (asyncpg.IntegrityConstraintViolationError, asyncpg.DataError):
            raise
        except TimeoutError as error:
            raise self._away(
                f"no answer within {self.timeout_s:g} s; is it busy, or the network closed?"
            ) from error
        except DRIVER_ERRORS as error:
            self._select_lists = None  # the error may come from a changed schema
            if isinstance(error, asyncpg.ReadOnlySQLTransactionError) and self._pool is not None:
                # A connection stays read-only when the database accepts writes again.
                await self._pool.expire_connections()
            raise self._away(why_away(error, self._variable)) from error

    async def close(self) -> None:
        """Close the pool; see `close_pool`. Safe to call twice."""
        pool, self._pool = self._pool, None
        await close_pool(pool)

    @asynccontextmanager
    async def _begin(self) -> AsyncIterator[Connection]:
        kind = "REPEATABLE READ READ ONLY" if self._is_read_only else "READ COMMITTED"
        # The server enforces them, so they also hold while this process is frozen.
        limits = dict.fromkeys(
            ("statement_timeout", "idle_in_transaction_session_timeout"), f"{self.timeout_s * 1000:.0f}ms"
        )
        limits["lock_timeout"] = f"{min(self.timeout_s, LOCK_TIMEOUT_S) * 1000:.0f}ms"
        pool = await self._open()
        async with transaction_of(pool, self.timeout_s, limits, f"ISOLATION LEVEL {kind}") as connection:
            yield connection

    async def _open(self) -> asyncpg.Pool:
        async with self._opening:  # two first users must not make two pools
            if self._pool is None:
                self._pool = await open_pool(
                    self._url,
                    max_size=self._max_connections,
                    timeout=self.timeout_s,
                    statement_cache_size=self._statement_cache,
                    server_settings={"application_name": "tarsy-scoring"},
                )
        return self._pool

    async def _inspect(self, connection: Connection) -> SelectLists:
        select_lists, lacking = await inspect(connection, self._needs)
        if lacking:
            raise TarsyUnfit(
                f"TARSy's database at {self.place} lacks for this role: {', '.join(lacking)}; grant it to "
                f"the role in {self._variable}, or let that lead to TARSy's own database (docs/bridge.md "
                "lists what is needed)"
            )
        return select_lists

    def _away(self, why: str) -> TarsyAway:
        return TarsyAway(f"TARSy's database at {self.place} cannot be used: {why}")

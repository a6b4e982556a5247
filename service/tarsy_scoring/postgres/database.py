"""
The service's own database: a pool, work in transactions, and notifications between processes.

Statements name their tables `{schema}.table`. The schema is substituted as text, because a search path that
is set per connection does not survive PgBouncer.
"""

import asyncio
import contextlib
import contextvars
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import lru_cache, partial
from typing import Literal, TypeVar

import asyncpg
import structlog
from asyncpg.pool import PoolConnectionProxy

from tarsy_scoring.errors import ScoringError
from tarsy_scoring.postgres import transactions
from tarsy_scoring.postgres.failures import DRIVER_ERRORS, misconfigured, reaction_to, why_away
from tarsy_scoring.postgres.listen import listen
from tarsy_scoring.postgres.url import UrlSource, place_of, url_source

T = TypeVar("T")
Connection = asyncpg.Connection | PoolConnectionProxy
Channel = Literal["scores", "events"]

log = structlog.get_logger()

# Deadline for getting a connection and the first answer, which are quick even under load. Includes the wait
# for one of PgBouncer's server connections.
CONTACT_S = 10.0
RETRY_MIN_S, RETRY_MAX_S = 0.1, 2.0
TRIES = 10  # of work whose failure may last: a quarter of a minute, or five minutes of statement timeouts
SETTLED_S = 60.0  # every wait tries more often than this, also if each try runs into the statement timeout
_STALE_CONNECTION = (
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InvalidSQLStatementNameError,
    asyncpg.DuplicatePreparedStatementError,
)
NOTIFY = "SELECT pg_notify(channel, '') FROM unnest($1::text[]) AS n(channel)"
NOTIFY_EVERY_S = 0.05  # a NOTIFY per transaction halves commit throughput (Source: own measurement)
# Number of judging processes from which on their polls, one a second each, find a score within 0.1 s in half
# of all cases.
LARGE_FLEET = 8

_JUDGING = """
FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND classid = (hashtext('tarsy-scoring judging')::bigint & 4294967295)::oid
  AND objid = (hashtext($1)::bigint & 4294967295)::oid
"""
# The lock excludes no process. It is the session's, so a process counts while the connection lives.
JOIN_FLEET = f"""
SELECT pg_try_advisory_lock_shared(hashtext('tarsy-scoring judging'), hashtext($1))
WHERE NOT EXISTS (SELECT {_JUDGING} AND pid = pg_backend_pid())
"""
COUNT_FLEET = f"SELECT count(*) {_JUDGING}"


class DatabaseAway(Exception):
    """
    PostgreSQL cannot be used right now; the same work may succeed later.

    Attributes:
        may_last: The same work may fail for ever, so it must not be repeated without a limit.
    """

    def __init__(self, message: str, *, may_last: bool = False) -> None:
        super().__init__(message)
        self.may_last = may_last


class DatabaseRefuses(ScoringError):
    """PostgreSQL failed the same work `TRIES` times in a row, although it was reachable."""


class Patience:
    """
    A context for each pass of one loop: a `DatabaseAway` inside ends the pass, and not the loop.

    Raises:
        DatabaseRefuses: `TRIES` passes in a row ended with a failure that may last.
    """

    def __init__(self, note_away: Callable[[DatabaseAway], None]) -> None:
        self._note_away = note_away
        self._failures = 0

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        if error is None:
            self._failures = 0
        if not isinstance(error, DatabaseAway):
            return False
        self._note_away(error)
        # An outage ends the row: during one of hours, connections also fail in ways that may last.
        self._failures = self._failures + 1 if error.may_last else 0
        if self._failures >= TRIES:
            raise DatabaseRefuses(f"{error}; this was tried {TRIES} times") from error.__cause__
        return True


class Outage:
    """
    Tells the first failure from repetitions, and the end of an outage from a success beside failures.

    While some work fails, other work may succeed: a lock concerns one row, a full server only new
    connections. So an outage is over at the first success after `SETTLED_S` without a failure.
    """

    def __init__(self) -> None:
        self._began_at: float | None = None
        self._failed_at = 0.0

    def begins(self) -> bool:
        """Note a failure; returns whether an outage begins with it."""
        self._failed_at = time.monotonic()
        if self._began_at is not None:
            return False
        self._began_at = self._failed_at
        return True

    def ends(self) -> float | None:
        """Note a success; returns the seconds from first to last failure of the outage that is now over."""
        if self._began_at is None or time.monotonic() - self._failed_at < SETTLED_S:
            return None
        lasted_s = self._failed_at - self._began_at
        self._began_at = None
        return lasted_s


class Database:
    """
    The connection pool and the notification channels.

    A notification wakes loops of this process at once, and loops of other processes through NOTIFY. It may be
    lost (NOTIFY is sent at most once, PgBouncer forwards none), so every waiter also polls.

    A large fleet notifies no other process and listens to none. The workers find a score by polling, so
    that they also share the scores evenly, and the relay polls more often.

    Attributes:
        judging: Processes that judge, by the last count, which is made every 10 s; 0 before the first.
    """

    def __init__(
        self, url: str | UrlSource, schema: str, *, pool_size: int, statement_cache: int = 100
    ) -> None:
        self.schema = schema
        self._url = url_source(url)
        self._pool_size = pool_size
        self._statement_cache = statement_cache
        self._pool: asyncpg.Pool | None = None
        self._notified: dict[Channel, asyncio.Event] = {"scores": asyncio.Event(), "events": asyncio.Event()}
        self._to_send: set[Channel] = set()
        self._has_to_send = asyncio.Event()
        self._kept: dict[Channel, bool] = {}
        self.judging = 0
        self._was_reached = False
        self._outage = Outage()
        self._limits = transactions.own_limits()

    async def open(self) -> None:
        """Create the pool. Connects to nothing yet, so it cannot fail because the database is unavailable."""
        self._pool = await transactions.open_pool(
            self._url,
            max_size=self._pool_size,
            command_timeout=transactions.COMMAND_TIMEOUT_S,
            timeout=CONTACT_S,
            statement_cache_size=self._statement_cache,
            prepare=transactions.read_jsonb,
        )

    def plan_once(self) -> None:
        """
        Plan each statement once on each connection from now on, and for indexes.

        By default PostgreSQL plans the first five runs apart, which takes it longer than the runs. It keeps a
        plan until a table is analyzed, so one that was made while the table was small would scan it while it
        grows.
        """
        self._limits |= {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off"}

    async def close(self) -> None:
        """Close the pool; see `close_pool`."""
        await transactions.close_pool(self._pool)

    @property
    def place(self) -> str:
        """Host and database name, for messages."""
        return place_of(self._url())

    def sql(self, statement: str) -> str:
        """The statement with our schema in place of `{schema}`."""
        return _qualified(statement, self.schema)

    def transaction(self) -> AbstractAsyncContextManager[Connection]:
        """
        One transaction on one connection; an error or a cancel rolls it back.

        Raises:
            TimeoutError: It did not begin within `CONTACT_S`.
        """
        assert self._pool is not None, "open() comes first"
        return transactions.transaction_of(self._pool, CONTACT_S, self._limits)

    async def once(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """
        Run `work` in a separate transaction, once.

        Raises:
            DatabaseAway: The database cannot be used right now.
            ConfigurationError: The database was never reached, and the URL can never work.
        """
        return await self._contact(self.transaction(), work)

    async def _contact(
        self, connected: AbstractAsyncContextManager[Connection], work: Callable[[Connection], Awaitable[T]]
    ) -> T:
        """Run `work` on this connection. Raises: See `once`."""
        try:
            async with connected as connection:
                result = await work(connection)
        except DRIVER_ERRORS as error:
            reaction = reaction_to(error)
            # A login that worked before is being replaced: the file of the URL follows the database, or is
            # ahead of it.
            is_login = isinstance(error, asyncpg.InvalidAuthorizationSpecificationError)
            if reaction == "raise" and not (is_login and self._was_reached):
                raise
            if isinstance(error, _STALE_CONNECTION) and self._pool is not None:
                # A connection stays read-only, and a pool keeps it in use, when the database accepts writes
                # again. The same holds for the names of prepared statements behind a pooler.
                await self._pool.expire_connections()
            # A URL that worked before is right: a certificate file may be missing while it is being replaced.
            if isinstance(error, asyncpg.ClientConfigurationError) and not self._was_reached:
                raise misconfigured(self._url(), error) from error
            message = f"the database at {self.place} is away: {why_away(error)}"
            raise DatabaseAway(message, may_last=reaction == "retry") from error
        self._was_reached = True
        if (away_s := self._outage.ends()) is not None:
            contextvars.Context().run(lambda: log.info("database.back", away_s=round(away_s, 1)))
        return result

    def patience(self) -> Patience:
        """
        A context for the passes of one loop, which skips a pass while the database is away, and logs that.
        """
        return Patience(self.note_away)

    def note_away(self, error: DatabaseAway) -> None:
        """Log that the database is away, once per outage; `once` logs the end."""
        if self._outage.begins():
            # An empty context: the line belongs to the process, and not to the score that met the outage
            # first.
            contextvars.Context().run(lambda: log.warning("database.away", reason=str(error)))

    async def fetch(self, statement: str, *arguments: object) -> list[asyncpg.Record]:
        """
        The rows of one short statement, run in a separate transaction; `{schema}` is filled in.

        Raises:
            DatabaseAway: The database cannot be used right now.
        """
        sql = self.sql(statement)
        return await self.once(lambda c: c.fetch(sql, *arguments, timeout=CONTACT_S))

    async def rows(self, statement: str, *arguments: object) -> list[asyncpg.Record]:
        """The rows of one statement of any length, run in a separate transaction. Raises: See `once`."""
        sql = self.sql(statement)
        return await self.once(lambda c: c.fetch(sql, *arguments))

    async def single(self, statement: str, *arguments: object) -> list[asyncpg.Record]:
        """
        The rows of one short statement in one round trip, without BEGIN and COMMIT; `{schema}` is filled in.

        Without a cache of statements it takes a transaction: a pooler could otherwise prepare the statement
        on one server connection and run it on another.

        Raises:
            DatabaseAway: The database cannot be used right now. The statement may have been committed.
        """
        if not self._statement_cache:
            return await self.fetch(statement, *arguments)
        assert self._pool is not None, "open() comes first"
        sql = self.sql(statement)
        connected = transactions.connection_of(self._pool, CONTACT_S)
        return await self._contact(connected, lambda c: c.fetch(sql, *arguments, timeout=CONTACT_S))

    async def persist(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """
        Run `work` in a transaction, and repeat it without a time limit while the database is away.

        `work` must be idempotent: it is repeated after a commit whose reply was lost.

        Raises:
            ConfigurationError: See `once`.
            DatabaseRefuses: See `Patience`.
        """
        wait_s, patience = RETRY_MIN_S, self.patience()
        while True:
            with patience:
                return await self.once(work)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, RETRY_MAX_S)

    # --- notifications ---------------------------------------------------------------------------------

    @property
    def is_in_large_fleet(self) -> bool:
        """Whether more than `LARGE_FLEET` processes judge."""
        return self.judging > LARGE_FLEET

    def notify(self, *channels: Channel) -> None:
        """Wake the waiters of `channels`: in this process at once, in others within 50 ms."""
        for channel in channels:
            if not (self.is_in_large_fleet and channel == "scores"):
                self._notified[channel].set()
            if not (self.is_in_large_fleet or self._kept.get(channel)):
                self._to_send.add(channel)
                self._has_to_send.set()

    def keep_notifications(self, channel: Channel, is_kept: bool) -> None:
        """Set whether only this process waits for notifications of `channel`, so that others need none."""
        self._kept[channel] = is_kept

    def notify_locally(self, channel: Channel, _payload: str = "") -> None:
        """Wake the waiters of `channel` in this process only."""
        self._notified[channel].set()

    async def wait_notified(self, channel: Channel, timeout_s: float) -> None:
        """
        Wait for a notification, at most `timeout_s`; returns at once if one arrived since the last call.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._notified[channel].wait()
        self._notified[channel].clear()

    async def exchange_notifications(self, *, is_judging: bool = False) -> None:
        """
        Run until cancelled: send our notifications to other processes, coalesced, and receive theirs.

        Args:
            is_judging: This process counts as one of the fleet.
        """
        channels = {self._pg_channel(c): partial(self.notify_locally, c) for c in self._notified}

        async def count(connection: asyncpg.Connection) -> bool:
            # In a transaction, because a pooler may run each statement in another session of the server.
            async with connection.transaction():
                if is_judging:
                    await connection.execute(JOIN_FLEET, self.schema)
                self.judging = await connection.fetchval(COUNT_FLEET, self.schema)
            self.keep_notifications("scores", is_judging and self.judging == 1)
            return not self.is_in_large_fleet

        async with asyncio.TaskGroup() as group:
            group.create_task(self.send_notifications())
            await listen(self._url, channels, contact_s=CONTACT_S, probe=count)

    async def send_notifications(self) -> None:
        """Run until cancelled: send our notifications to other processes, coalesced."""
        while True:
            await self._has_to_send.wait()
            self._has_to_send.clear()
            channels, self._to_send = self._to_send, set()
            with contextlib.suppress(DatabaseAway):  # the other processes poll
                await self.single(NOTIFY, list(map(self._pg_channel, channels)))
            await asyncio.sleep(NOTIFY_EVERY_S)

    def _pg_channel(self, channel: Channel) -> str:
        # LISTEN truncates names to 63 bytes and NOTIFY refuses longer ones; the end tells our channels apart.
        return f"tarsy_scoring.{self.schema}.{channel}"[-63:]


def insert_of(table: str, columns: Sequence[str], argument: int = 1) -> str:
    """Statement that inserts rows given as one JSON array of objects with these columns as keys."""
    names = ", ".join(columns)
    rows = f"jsonb_populate_recordset(NULL::{{schema}}.{table}, ${argument}::jsonb)"
    return f"INSERT INTO {{schema}}.{table} ({names}) SELECT {names} FROM {rows}"


@lru_cache(maxsize=512)
def _qualified(statement: str, schema: str) -> str:
    return statement.replace("{schema}", f'"{schema}"')

"""
PostgreSQL as this service meets it: a pool, a database that may be away for a while, and a bell.

Statements name their tables `{schema}.table`; the schema is put in as text because a search path set
per connection does not survive PgBouncer.
"""

import asyncio
import contextlib
import contextvars
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import asyncpg
import structlog
from asyncpg.pool import PoolConnectionProxy
from asyncpg.transaction import Transaction
from pydantic_core import from_json, to_json

from tarsy_scoring.errors import ConfigurationError

T = TypeVar("T")
Item = TypeVar("Item")
Result = TypeVar("Result")
Connection = asyncpg.Connection | PoolConnectionProxy
BellName = Literal["scores", "events"]

log = structlog.get_logger()

COMMAND_TIMEOUT_S = 30.0
# For a connection and the first word on it, which no work makes slow: a server that stands still closes nothing, so
# an open connection says nothing of it. Through PgBouncer the wait for one of its servers is in it too.
CONTACT_S = 10.0
GIVE_UP_S = 1.0  # for rolling back; whoever gives up must not wait for the very server that made them
# A worker that stands still, or is cut off, in the middle of a transaction holds its locks: until then
# nobody could take its scores back. Longer than the relay waits for acknowledgements (10 s).
IDLE_IN_TRANSACTION_S = 15
# Stopped between preparing a statement and running it, it is neither idle nor in a statement that could be cancelled:
# there only the end of its transaction helps, which PostgreSQL has known since 17.
TRANSACTION_S = 40
_TRANSACTION_TIMEOUT = """
SELECT set_config('transaction_timeout', '{seconds}s', {is_local})
WHERE current_setting('transaction_timeout', true) IS NOT NULL
"""
LONG_TRANSACTION = _TRANSACTION_TIMEOUT.format(seconds=0, is_local="true")
"""To be said first in a transaction that is meant to stay open for longer than `TRANSACTION_S`."""
RETRY_MIN_S, RETRY_MAX_S = 0.1, 2.0
NOTIFY_EVERY_S = 0.05  # a NOTIFY per transaction halves commit throughput (Source: own measurement; see docs)
# Writes of one kind at once: a slow one does not hold up everybody, and batches stay large under load.
WRITERS = 2
PROBE_S = 10.0  # a LISTEN connection dies silently when PostgreSQL restarts

# Whatever goes wrong with a database of others, whose schema and rights are not ours. The last one also where, for a
# moment of a fail-over, no server is what `target_session_attrs` asks for.
DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, asyncpg.InternalClientError)

# What "away" looks like: refused, cut, starting up, shutting down, read-only after a fail-over, too slow,
# its disk full; and what is to be tried again: a deadlock, a plan from before a migration.
_AWAY = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.OperatorInterventionError,
    asyncpg.TooManyConnectionsError,
    asyncpg.DiskFullError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.InvalidCachedStatementError,
    asyncpg.InternalClientError,
)
# What it is and what would help, the first that fits; what has no words here is told by its own, or by its type.
_WORDS: tuple[tuple[type[Exception], str | None, str], ...] = (
    (TimeoutError, "no answer in time", "is it running and the network open?"),
    (ConnectionRefusedError, "connection refused", "start PostgreSQL there, or correct SCORING_DATABASE_URL"),
    (FileNotFoundError, "its socket, or a file of its options, is not there", "correct SCORING_DATABASE_URL"),
    (socket.gaierror, None, "correct the host in SCORING_DATABASE_URL"),
    (ssl.SSLError, None, "look at its TLS certificate and at sslmode in SCORING_DATABASE_URL"),
    (OSError, None, "start PostgreSQL there, or correct SCORING_DATABASE_URL"),
    (asyncpg.CannotConnectNowError, "it is starting up or shutting down", "wait for it"),
    (asyncpg.QueryCanceledError, "a statement took too long", "look for what it waits for or is busy with"),
    (asyncpg.OperatorInterventionError, "it was shut down, or cut us off", "wait for it"),
    (asyncpg.PostgresConnectionError, "the connection broke", "wait for it, or look at the network"),
    (asyncpg.TooManyConnectionsError, "it takes no more connections", "raise max_connections, or run fewer workers"),
    (asyncpg.ReadOnlySQLTransactionError, "it is read-only", "let SCORING_DATABASE_URL lead to the primary"),
    (asyncpg.DiskFullError, "its disk is full", "make room there"),
    (asyncpg.InterfaceError, "the connection broke", "wait for it, or look at the network"),
    (asyncpg.InternalClientError, "the connection broke", "wait for it, or look at the network"),
)
# Options of a URL that the driver would refuse at every contact, and what they can be.
_OPTIONS = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "target_session_attrs": ("any", "primary", "standby", "prefer-standby", "read-write", "read-only"),
}
# Options of a URL that name a file; without it the driver would fail at every contact as if nobody were there.
_FILE_OPTIONS = ("sslrootcert", "sslcert", "sslkey", "sslcrl")


def check_url(url: str, variable: str) -> None:
    """
    See what can be seen of a PostgreSQL URL without connecting; whoever waits for the rest waits for ever.

    Args:
        variable: Where it comes from, for the message.

    Raises:
        ConfigurationError: It can never work. Names the variable and never the URL.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = None
    if parts is None or parts.netloc.count("@") > 1:
        raise ConfigurationError(
            f"{variable}: not a URL; write special characters of user and password as %XX, such as %40 for @"
        )
    for host in parts.netloc.rpartition("@")[2].split(","):
        port = host.rpartition(":")[2]
        if ":" in host and port.isdecimal() and not 0 < int(port) < 2**16:
            raise ConfigurationError(f"{variable}: {port} is no port; give one between 1 and 65535")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name, allowed in _OPTIONS.items():
        if name in options and options[name] not in allowed:
            # The value stays unsaid: behind a wrong separator it holds the next option, which may be the password.
            raise ConfigurationError(f"{variable}: there is no such {name}; give one of {', '.join(allowed)}")
    for name in _FILE_OPTIONS:
        if path := options.get(name):
            try:
                Path(path).open("rb").close()
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else "that is no name of a file"
                # Its name stays unsaid, for the same reason.
                raise ConfigurationError(f"{variable}: cannot read the file of {name}: {why}") from None


def place_of(url: str) -> str:
    """Hosts, ports and database of a PostgreSQL URL, for people; without user, password and other options."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    hosts = parts.netloc.rpartition("@")[2]
    if not hosts:
        hosts = options.get("host", "localhost") + (f":{options['port']}" if "port" in options else "")
    database = unquote(parts.path).lstrip("/") or options.get("dbname")
    return f"{hosts}/{database}" if database else hosts


class Database:
    """
    The pool and the bells.

    A bell wakes loops in this process at once and those of other processes through NOTIFY. It may be
    missed (NOTIFY is at most once, PgBouncer forwards none), so every waiter also polls.
    """

    def __init__(self, url: str, schema: str, *, pool_size: int, statement_cache: int = 100) -> None:
        self.schema = schema
        self._url = url
        self._pool_size = pool_size
        self._statement_cache = statement_cache
        self._pool: asyncpg.Pool | None = None
        self._bells: dict[BellName, asyncio.Event] = {"scores": asyncio.Event(), "events": asyncio.Event()}
        self._to_notify: set[BellName] = set()
        self._anything_to_notify = asyncio.Event()
        self.is_available = False
        self._was_reached = False

    async def open(self) -> None:
        """
        Make the pool; connects to nothing yet, so it cannot fail because the database is away.

        Raises:
            ConfigurationError: See `check_url`.
        """
        check_url(self._url, "SCORING_DATABASE_URL")
        self._pool = await asyncpg.create_pool(
            self._url,
            min_size=0,
            max_size=self._pool_size,
            command_timeout=COMMAND_TIMEOUT_S,
            timeout=CONTACT_S,
            statement_cache_size=self._statement_cache,
            init=_prepare_session,
            reset=nothing_to_reset,
        )

    async def close(self) -> None:
        """Close the pool; connections in use are cut after 5 s."""
        if self._pool is None:
            return
        try:
            async with asyncio.timeout(5):
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return place_of(self._url)

    def sql(self, statement: str) -> str:
        """The statement with our schema in it."""
        return _qualified(statement, self.schema)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """
        One transaction on one connection; an error or a cancel rolls it back.

        It begins within `CONTACT_S` or not at all; see `transaction_of`.
        """
        assert self._pool is not None, "open() comes first"
        async with transaction_of(self._pool, CONTACT_S) as connection:
            yield connection
        self.is_available = True

    async def once(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """
        Do `work` in a transaction of its own, once.

        Raises:
            DatabaseAway: The database cannot be used right now.
            ConfigurationError: It was never reached, and what its URL says can never work.
        """
        try:
            async with self.transaction() as connection:
                result = await work(connection)
        except _AWAY as error:
            self.is_available = False
            # What worked once was right; a certificate file may be missing while it is exchanged.
            if isinstance(error, asyncpg.ClientConfigurationError) and not self._was_reached:
                raise misconfigured(self._url, error) from error
            raise DatabaseAway(f"the database at {self.place} is away: {why_away(error)}") from error
        self._was_reached = True
        return result

    async def persist(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """
        Do `work` in a transaction, again and again until the database is there.

        `work` must stand being repeated after a commit whose reply was lost. What the caller holds in
        memory is kept; only a cancel ends the waiting.
        """
        wait_s = RETRY_MIN_S
        while True:
            try:
                return await self.once(work)
            except DatabaseAway as error:
                log.warning("database.away", reason=str(error), retry_in_s=wait_s)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, RETRY_MAX_S)

    # --- bells -----------------------------------------------------------------------------------------

    def ring(self, bell: BellName) -> None:
        """Wake whoever waits for `bell`, here at once and elsewhere within 50 ms."""
        self._bells[bell].set()
        self._to_notify.add(bell)
        self._anything_to_notify.set()

    def wake(self, bell: BellName) -> None:
        """Wake whoever waits for `bell` in this process alone."""
        self._bells[bell].set()

    async def heard(self, bell: BellName, timeout_s: float) -> None:
        """Wait until `bell` rings, at most `timeout_s`; returns at once if it rang since the last call."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._bells[bell].wait()
        self._bells[bell].clear()

    async def carry_bells(self) -> None:
        """Loop for ever: pass our bells on, coalesced, and ring for those of other processes."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._notify_others())
            group.create_task(self._listen_to_others())

    async def _notify_others(self) -> None:
        while True:
            await self._anything_to_notify.wait()
            self._anything_to_notify.clear()
            bells, self._to_notify = sorted(self._to_notify), set()
            channels = [self._channel(b) for b in bells]
            with contextlib.suppress(DatabaseAway):  # the others poll
                await self.once(lambda c, n=channels: c.execute("SELECT pg_notify(x, '') FROM unnest($1::text[]) x", n))  # type: ignore[misc]
            await asyncio.sleep(NOTIFY_EVERY_S)

    async def _listen_to_others(self) -> None:
        by_channel = {self._channel(b): b for b in self._bells}

        def on_notify(_connection: object, _pid: int, channel: str, _payload: str) -> None:
            self._bells[by_channel[channel]].set()

        while True:
            try:
                connection = await asyncpg.connect(
                    self._url, timeout=CONTACT_S, command_timeout=CONTACT_S, statement_cache_size=0
                )
                try:
                    for channel in by_channel:
                        await connection.add_listener(channel, on_notify)  # type: ignore[arg-type]
                    while True:
                        await asyncio.sleep(PROBE_S)
                        await connection.execute("SELECT 1", timeout=5)
                finally:
                    connection.terminate()
            except (*_AWAY, asyncpg.PostgresError) as error:
                log.debug("database.listen_lost", reason=type(error).__name__)
                await asyncio.sleep(RETRY_MAX_S)

    def _channel(self, bell: str) -> str:
        # LISTEN cuts what is longer than 63 bytes and NOTIFY refuses it; the end is what tells bells apart.
        return f"tarsy_scoring.{self.schema}.{bell}"[-63:]


class DatabaseAway(Exception):
    """PostgreSQL cannot be used right now; the same work may succeed later."""


def misconfigured(url: str, error: asyncpg.ClientConfigurationError) -> ConfigurationError:
    """For what the driver cannot mean; waiting would change nothing."""
    what = str(error).partition("\n")[0].partition(": ")[0]  # what follows may quote the URL
    return ConfigurationError(f"SCORING_DATABASE_URL, {place_of(url)}: {what}")


def why_away(error: Exception) -> str:
    """What happened and what would help. Not in the words of the server: those may name the user."""
    if isinstance(error, ConnectionError) and "rejected SSL" in str(error):  # the driver has no type of its own for it
        return "it rejected SSL: it speaks no TLS; turn ssl on there, or correct SCORING_DATABASE_URL and its sslmode"
    for kind, what, advice in _WORDS:
        if isinstance(error, kind):
            return f"{what or _own_words(error)}; {advice}"
    return f"{type(error).__name__}; the same may go well when it is tried again"


def _own_words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        reason = (getattr(error, "reason", None) or "").replace("_", " ").lower()
        return f"TLS: {getattr(error, 'verify_message', None) or reason or error.strerror}"
    if isinstance(error, ConnectionError) and error.strerror is None:
        return "the connection broke"  # the driver's own word for that is the name of a function
    return (error.strerror or str(error)) if isinstance(error, OSError) else type(error).__name__


class Batcher(Generic[Item, Result]):
    """
    Many callers, few transactions: what arrives while all writers are busy goes into the next write.

    No timer: an idle database writes at once, a busy one in larger steps. If a write fails for another
    reason than the database being away, each item of it is written alone, so that one bad item cannot
    fail its neighbours. A caller that is cancelled leaves its item in: it may be written.

    Args:
        write: Writes all items, gives a result for each in the same order.
        limit: Items in one write.
    """

    def __init__(self, write: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]], limit: int = 100) -> None:
        self._write = write
        self._limit = limit
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._writers: set[asyncio.Task[None]] = set()

    async def submit(self, item: Item) -> Result:
        """Write `item` with others; returns after its commit."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if len(self._writers) < WRITERS:
            # Not in the context of this caller, who is only the first: its names would stand on lines about others.
            writer = asyncio.create_task(self._write_all(), context=contextvars.Context())
            self._writers.add(writer)
        return await future

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._limit], self._waiting[self._limit :]
                try:
                    await self._write_batch(batch)
                finally:
                    for _item, future in batch:
                        if not future.done():
                            future.cancel()  # only when this task itself is being cancelled
        finally:
            # In one step with the last look at who waits: an item that came between would wait for the next to come.
            self._writers.discard(asyncio.current_task())

    async def _write_batch(self, batch: list[tuple[Item, "asyncio.Future[Result]"]]) -> None:
        # Gathered, so that whatever the write raises reaches the callers and never the writer.
        [results] = await asyncio.gather(self._write([item for item, _ in batch]), return_exceptions=True)
        if isinstance(results, BaseException):
            if len(batch) > 1:
                for one in batch:
                    await self._write_batch([one])
            elif not batch[0][1].done():
                batch[0][1].set_exception(results)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)


@lru_cache(maxsize=512)
def _qualified(statement: str, schema: str) -> str:
    return statement.replace("{schema}", f'"{schema}"')


@contextlib.asynccontextmanager
async def transaction_of(pool: asyncpg.Pool, begin_s: float, **options: Any) -> AsyncIterator[PoolConnectionProxy]:
    """
    One transaction on one connection of a pool, for whoever must not wait for a server that stands still.

    It begins within `begin_s` or not at all. An error or a cancel rolls it back; a connection on which that does not
    succeed within `GIVE_UP_S` is cut off, and the server rolls back when it notices.

    Args:
        pool: Made with `reset=nothing_to_reset`, or giving a connection back asks the server once more.
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
        await pool.release(connection, timeout=GIVE_UP_S)


async def nothing_to_reset(_connection: Connection) -> None:
    """Work is done in transactions and leaves nothing in its session, so a round trip per use is saved."""


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
            _cut_off(connection)
            await pool.release(connection)
        raise
    return connection, transaction


async def _roll_back(connection: PoolConnectionProxy, transaction: Transaction) -> None:
    """Roll back if the server answers; what is raised is only a cancel of the rolling back."""
    try:
        async with asyncio.timeout(GIVE_UP_S):
            await transaction.rollback()
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):  # a TimeoutError is an OSError
        _cut_off(connection)
    except asyncio.CancelledError:
        _cut_off(connection)
        raise


def _cut_off(connection: PoolConnectionProxy) -> None:
    """Close it without a word to the server, and give its place in the pool back."""
    with contextlib.suppress(asyncpg.InterfaceError):  # it is lost already
        connection.terminate()


async def _prepare_session(connection: asyncpg.Connection) -> None:
    try:
        await connection.execute(
            f"SET idle_in_transaction_session_timeout = '{IDLE_IN_TRANSACTION_S}s'; "
            f"SET statement_timeout = '{COMMAND_TIMEOUT_S:.0f}s'; "
            f"{_TRANSACTION_TIMEOUT.format(seconds=TRANSACTION_S, is_local='false')}"
        )
        await connection.set_type_codec(
            "jsonb", schema="pg_catalog", encoder=lambda v: to_json(v).decode(), decoder=from_json, format="text"
        )
    except BaseException:
        connection.terminate()  # the pool would wait for the server to part from it
        raise

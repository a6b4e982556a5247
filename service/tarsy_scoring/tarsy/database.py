"""
TARSy's database as bridge and write-back meet it: it may be away, and it may not be what we need.

Its schema is somebody else's and moves, so what is needed is looked for by name, and what only some
deployments have is read as null. Works behind a transaction pooler, except for the notifications.
Whatever becomes of this process, it holds nothing there for longer than ten seconds.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import asyncpg
import structlog

from tarsy_scoring.errors import ScoringError, StartRefused
from tarsy_scoring.postgres.database import Connection
from tarsy_scoring.postgres.failures import DRIVER_ERRORS, why_away
from tarsy_scoring.postgres.listen import listen
from tarsy_scoring.postgres.transactions import keep_session, transaction_of
from tarsy_scoring.postgres.url import check_url, place_of

T = TypeVar("T")
Columns = Mapping[str, str]  # by table: what to select

log = structlog.get_logger()

TIMEOUT_S = 10.0
LOCK_TIMEOUT_S = 3.0  # TARSy's own work stands behind whoever waits
RETRY_S = 2.0
STANDBY_RETRY_S = 60.0  # it may be promoted
CHANNEL = "sessions"
# What TARSy says there when a session changes its status. Most of what it says is progress, and none of our business.
STATUS_MESSAGE = '"session.status"'

# The server gives up as well: also where this process stands still, or nobody waits for its work any more.
LIMITS = f"""
SET LOCAL statement_timeout = '{TIMEOUT_S:g}s';
SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S:g}s';
SET LOCAL idle_in_transaction_session_timeout = '{TIMEOUT_S:g}s'
"""

# The columns of these tables as this role meets them; one row without a column where there is no such table.
LOOK_AT_TABLES = """
SELECT n.name AS table, a.attname::text AS column,
  has_column_privilege(a.attrelid, a.attnum, 'SELECT') AS may_read,
  has_column_privilege(a.attrelid, a.attnum, 'INSERT') AS may_write,
  a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AS must_be_given
FROM unnest($1::text[]) AS n(name)
LEFT JOIN pg_attribute a ON a.attrelid = to_regclass(n.name) AND a.attnum > 0 AND NOT a.attisdropped
"""

# The schema that has all these tables and does not let this role in, which sees none of them then.
FIND_CLOSED_SCHEMA = """
SELECT s.nspname FROM pg_class t JOIN pg_namespace s ON s.oid = t.relnamespace
WHERE t.relname = ANY($1::text[]) AND t.relkind IN ('r', 'p', 'v') AND NOT has_schema_privilege(s.oid, 'USAGE')
GROUP BY s.nspname HAVING count(*) = cardinality($1::text[]) ORDER BY s.nspname <> 'public', s.nspname LIMIT 1
"""

# Why a transaction that is to write may not; null: it may.
WHY_READ_ONLY = """
SELECT CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE 'setting' END
WHERE current_setting('transaction_read_only')::boolean
"""

# What refuses us by a decision of somebody there, and what would help.
_REFUSALS: tuple[tuple[type[Exception], str], ...] = (
    (asyncpg.InvalidAuthorizationSpecificationError, "it refuses the role or its password; correct them in {variable}"),
    (asyncpg.InvalidCatalogNameError, "there is no such database; correct its name in {variable}"),
    (asyncpg.InsufficientPrivilegeError, "the role may not do that; see the grants in docs/bridge.md"),
    (asyncpg.LockNotAvailableError, "somebody there holds a row that is needed; look for a long transaction"),
)


class TarsyAway(ScoringError):
    """TARSy's database cannot be used right now; the same work may succeed later."""


class TarsyUnfit(StartRefused):
    """TARSy's database lacks a table, a column or a grant; waiting does not help."""


@dataclass(frozen=True, slots=True)
class Table:
    """
    A table of TARSy's and what is wanted of it.

    Args:
        columns: What is read.
        written: What is given in new rows; a column that must be given and is not among these makes it unfit.
        optional: Columns that only some deployments have, with their types; read as null elsewhere.
    """

    columns: Sequence[str]
    written: Sequence[str] = ()
    optional: Mapping[str, str] = field(default_factory=dict)

    def lacking(self, name: str, columns: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """What this table, which has these columns as `LOOK_AT_TABLES` tells of them, lacks for us."""
        reading = [*self.columns, *(c for c in self.optional if c in columns)]
        lacking = [f"the column {name}.{c}" for c in dict.fromkeys([*reading, *self.written]) if c not in columns]
        for privilege, may, wanted in (("SELECT", "may_read", reading), ("INSERT", "may_write", self.written)):
            refused = [c for c in wanted if c in columns and not columns[c][may]]
            if refused:
                only = "" if len(refused) == len(wanted) else f" ({', '.join(refused)})"
                lacking.append(f"{privilege}{only} on {name}")
        if self.written:
            unknown = [c for c, row in columns.items() if row["must_be_given"] and c not in self.written]
            lacking += [f"a default for {name}.{c}, which this version does not know" for c in unknown]
        return lacking


class Tarsy:
    """
    A small pool to TARSy's database, opened at the first use.

    Every piece of work is one short transaction: of one snapshot where it only reads. A cancel rolls it back and gives
    the connection back, and waits for a server that stands still for a second at most.

    Args:
        variable: Where `url` comes from, for messages.
        needs: By table. Looked for before the first work, and again after an error.
        is_read_only: Let the server refuse every write, whatever the role may do.

    Raises:
        ConfigurationError: The URL can never work.
    """

    def __init__(self, url: str, variable: str, needs: Mapping[str, Table], *, is_read_only: bool) -> None:
        check_url(url, variable)
        self._url = url
        self._variable = variable
        self._needs = needs
        self._is_read_only = is_read_only
        self._pool: asyncpg.Pool | None = None
        self._listed: Columns | None = None

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return place_of(self._url)

    def look_again(self) -> None:
        """See what the tables are like before the next work: an upgrade may have brought columns."""
        self._listed = None

    async def once(self, work: Callable[[Connection, Columns], Awaitable[T]]) -> T:
        """
        Do `work` in a transaction, once. It gets the connection and, per table, the list of columns to select.

        Violated constraints and refused values come through: what they mean is the caller's business.

        Raises:
            TarsyAway: It took longer than 10 s, or the database cannot be used right now.
            TarsyUnfit: It lacks what is needed.
        """
        try:
            async with asyncio.timeout(TIMEOUT_S), self._transaction() as connection:
                if self._listed is None:
                    self._listed = await self._look_at_tables(connection)
                return await work(connection, self._listed)
        except (asyncpg.IntegrityConstraintViolationError, asyncpg.DataError):
            raise
        except TimeoutError as error:
            raise self._away(f"no answer within {TIMEOUT_S:g} s; is it busy, or the network closed?") from error
        except DRIVER_ERRORS as error:
            self._listed = None  # the schema may have changed under us
            raise self._away(self._why(error)) from error

    async def follow(self, wake: Callable[[], None]) -> None:
        """
        Loop for ever: call `wake` when a session changes its status, and after every reconnection.

        Notifications may be lost at any time, a pooler forwards none, a standby has none: nothing may depend on them.
        """
        has_warned = False

        def on_notify(payload: str) -> None:
            if STATUS_MESSAGE in payload:
                wake()

        def retry_after(error: Exception) -> float:
            nonlocal has_warned
            if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
                if not has_warned:
                    log.warning("tarsy.listen_refused", reason="a standby", effect="sessions are looked for every 2 s")
                has_warned = True
                return STANDBY_RETRY_S
            log.debug("tarsy.listen_lost", reason=type(error).__name__)
            return RETRY_S

        await listen(self._url, {CHANNEL: on_notify}, retry_after=retry_after, contact_s=TIMEOUT_S, on_connect=wake)

    async def close(self) -> None:
        """Close the pool; connections in use are cut after 5 s."""
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                await asyncio.wait_for(pool.close(), 5)
            except TimeoutError:
                pool.terminate()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Connection]:
        if self._pool is None:
            self._pool = await asyncpg.create_pool(
                self._url,
                min_size=0,
                max_size=2,
                timeout=TIMEOUT_S,
                statement_cache_size=0,  # a transaction pooler may give each transaction another server
                server_settings={"application_name": "tarsy-scoring"},
                reset=keep_session,
            )
        snapshot = "repeatable_read" if self._is_read_only else "read_committed"
        options = {"isolation": snapshot, "readonly": self._is_read_only}
        async with transaction_of(self._pool, TIMEOUT_S, **options) as connection:
            await connection.execute(LIMITS)
            yield connection

    async def _look_at_tables(self, connection: Connection) -> Columns:
        found: dict[str, dict[str, Any]] = {name: {} for name in self._needs}
        for row in await connection.fetch(LOOK_AT_TABLES, list(self._needs)):
            if row["column"] is not None:
                found[row["table"]][row["column"]] = row
        absent, listed = [name for name in self._needs if not found[name]], {}
        closed = await connection.fetchval(FIND_CLOSED_SCHEMA, absent) if absent else None
        lacking = [f"USAGE on the schema {closed}"] if closed else [f"the table {name}" for name in absent]
        for name, table in self._needs.items():
            if found[name]:
                lacking += table.lacking(name, found[name])
            nulls = {c: f"NULL::{kind} AS {c}" for c, kind in table.optional.items()}
            listed[name] = ", ".join([*table.columns, *(c if c in found[name] else nulls[c] for c in nulls)])
        why_read_only = None if self._is_read_only else await self._why_read_only(connection)
        if why_read_only == "setting":
            lacking.append("transactions that may write (default_transaction_read_only is on)")
        if lacking:
            what = ", ".join(lacking)
            raise TarsyUnfit(
                f"TARSy's database at {self.place} lacks for this role: {what}; grant it to the role in "
                f"{self._variable}, or let that lead to TARSy's own database (docs/bridge.md lists what is needed)"
            )
        if why_read_only is not None:
            raise asyncpg.ReadOnlySQLTransactionError(why_read_only)
        return listed

    async def _why_read_only(self, connection: Connection) -> str | None:
        """See `WHY_READ_ONLY`. Never overruled: the setting may guard a database that is being moved."""
        why: str | None = await connection.fetchval(WHY_READ_ONLY)
        if why is not None and self._pool is not None:
            await self._pool.expire_connections()  # a session keeps the setting with which it began
        return why

    def refuses_all(self, error: Exception) -> TarsyUnfit:
        """What to raise where this refusal is about the schema, so that no other row would fare better."""
        return TarsyUnfit(
            f"TARSy's database at {self.place} refuses what is written: {told(error)}; its schema is not what this "
            "version knows: upgrade it, or switch SCORING_WRITE_BACK off"
        )

    def _away(self, why: str) -> TarsyAway:
        return TarsyAway(f"TARSy's database at {self.place} cannot be used: {why}")

    def _why(self, error: Exception) -> str:
        """What happened and what would help; never the driver's message, which may quote the address or a value."""
        for kind, words in _REFUSALS:
            if isinstance(error, kind):
                return words.format(variable=self._variable)
        return why_away(error).replace("SCORING_DATABASE_URL", self._variable)


def told(error: Exception) -> str:
    """A refused row by the names in the schema that refused it; never by its values."""
    names = [getattr(error, name, None) for name in ("table_name", "column_name", "constraint_name")]
    return " ".join([type(error).__name__, *(f"{n}" for n in names if n)])

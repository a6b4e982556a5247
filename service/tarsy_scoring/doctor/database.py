"""
Checks of the service's own PostgreSQL, as the service uses it: through its pool and in its transactions.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.doctor.checks import Check, Fault, NotChecked
from tarsy_scoring.postgres.analytic_reads import CONNECTIONS as ANALYTIC_CONNECTIONS
from tarsy_scoring.postgres.database import CONTACT_S, Connection, Database
from tarsy_scoring.postgres.failures import REFUSALS, refused
from tarsy_scoring.postgres.poolers import SESSION, shares_sessions
from tarsy_scoring.postgres.revisions import migrations_dir
from tarsy_scoring.postgres.transactions import (
    COMMAND_TIMEOUT_S,
    IDLE_IN_TRANSACTION_S,
    LOCK_TIMEOUT_S,
    TRANSACTION_S,
)
from tarsy_scoring.wiring import require_migrated

OLDEST_VERSION = 15
CLOCKS_APART_S = 30.0
LONG_TRANSACTION = timedelta(hours=1)
NOTIFIED_S = 3.0
IDLE_SESSION_S = 300.0  # the pool closes its idle connections after this time
POOLED = "a transaction pooler is in front of the database"

VERSION = (
    "SELECT current_setting('server_version') AS words, current_setting('server_version_num')::int AS number"
)

# The tables ($1) in our schema ($2), each with what the role may not do with it.
LACKING_PRIVILEGES = """
SELECT t.name, array_remove(ARRAY[
    CASE WHEN NOT has_table_privilege(c.oid, 'SELECT') THEN 'SELECT' END,
    CASE WHEN NOT has_table_privilege(c.oid, 'INSERT') THEN 'INSERT' END,
    CASE WHEN NOT has_table_privilege(c.oid, 'UPDATE') THEN 'UPDATE' END,
    CASE WHEN NOT has_table_privilege(c.oid, 'DELETE') THEN 'DELETE' END], NULL) AS lacking
FROM unnest($1::text[]) AS t(name) JOIN pg_class c ON c.relname = t.name AND c.relkind IN ('r', 'p')
JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = $2
ORDER BY t.name
"""

WRITABLE = """
SELECT pg_is_in_recovery() AS is_standby, current_setting('transaction_read_only')::bool AS is_read_only
"""

# Limits as they hold in a transaction of the service, in ms; 0: no limit.
LIMITS = """
SELECT name, setting::bigint AS ms FROM pg_settings
WHERE name IN ('lock_timeout', 'statement_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout',
               'idle_session_timeout')
"""

CONNECTIONS = """
SELECT r.rolconnlimit AS of_role, d.datconnlimit AS of_database, current_setting('max_connections')::int AS most,
  current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
    - coalesce(current_setting('reserved_connections', true)::int, 0) - (SELECT count(*) FROM pg_stat_activity
      WHERE backend_type = 'client backend')::int AS free
FROM pg_roles r, pg_database d WHERE r.rolname = current_user AND d.datname = current_database()
"""

# Standbys that commits wait for. Without `sees_all` the server counts them, and shows the state of none.
STANDBYS = """
SELECT current_setting('synchronous_standby_names') AS names, current_setting('synchronous_commit') AS level,
  count(*)::int AS connected, count(*) FILTER (WHERE sync_state IN ('sync', 'quorum'))::int AS synchronous,
  pg_has_role('pg_read_all_stats', 'USAGE') AS sees_all
FROM pg_stat_replication
"""

# What keeps vacuum from removing dead rows, with its age in s where that is known.
HOLDERS = """
SELECT 'a transaction of process ' || pid AS what, extract(epoch FROM now() - xact_start)::float8 AS age_s,
  'end it, or SELECT pg_terminate_backend(' || pid || ')' AS advice
FROM pg_stat_activity WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND now() - xact_start > $1
UNION ALL
SELECT 'the prepared transaction ' || gid, extract(epoch FROM now() - prepared)::float8,
  'COMMIT or ROLLBACK PREPARED it'
FROM pg_prepared_xacts WHERE now() - prepared > $1
UNION ALL
SELECT 'the inactive replication slot ' || slot_name, NULL, 'connect its consumer, or drop it'
FROM pg_replication_slots WHERE NOT active AND NOT temporary AND (xmin IS NOT NULL OR catalog_xmin IS NOT NULL
  OR restart_lsn IS NOT NULL)
"""


def database_checks(settings: Settings, database: Database) -> list[Check]:
    """
    The checks of our database.

    Args:
        database: A pool without prepared statements, open; connected at the first check.
    """
    looks = _Looks(settings, database)

    def check(name: str, look: Callable[[], Awaitable[str]], *needs: str) -> Check:
        return Check(name, look, needs, f"the database at {database.place}")

    return [
        check("database", looks.version),
        check("database-migrations", looks.migrations, "database"),
        check("database-privileges", looks.privileges, "database-migrations"),
        check("database-writable", looks.writable, "database"),
        check("database-standbys", looks.standbys, "database-writable"),
        check("database-pooler", looks.pooler, "database"),
        check("database-notifications", looks.notifications, "database-pooler", "database-writable"),
        check("database-timeouts", looks.timeouts, "database"),
        check("database-connections", looks.connections, "database-pooler"),
        check("database-vacuum", looks.vacuum, "database"),
        check("clock", looks.clock, "database"),
    ]


class _Looks:
    def __init__(self, settings: Settings, database: Database) -> None:
        self._url = settings.require_database()
        self._database = database
        self._statement_cache = settings.database_statement_cache
        self._connections = (
            settings.database_connections + ANALYTIC_CONNECTIONS
        )  # the two pools of an API process
        self._is_pooled = False

    async def version(self) -> str:
        [row] = await self._fetch(VERSION)
        if row["number"] < OLDEST_VERSION * 10_000:
            raise Fault(f"PostgreSQL {row['words']}", f"upgrade it to {OLDEST_VERSION} or newer")
        return f"PostgreSQL {row['words']} at {self._database.place}"

    async def migrations(self) -> str:
        await require_migrated(self._database, wait=False)
        return f"the schema {self._database.schema!r} has every table of this version"

    async def privileges(self) -> str:
        rows = await self._fetch(LACKING_PRIVILEGES, _tables(), self._database.schema)
        lacking = [f"{', '.join(row['lacking'])} on {row['name']}" for row in rows if row["lacking"]]
        if lacking:
            schema = self._database.schema
            advice = f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} to the role of the service"
            raise Fault(f"the role lacks {'; '.join(lacking)}", advice)
        return f"the role may read and write {len(rows)} tables"

    async def writable(self) -> str:
        [row] = await self._fetch(WRITABLE)
        if row["is_standby"]:
            raise Fault("the server is a standby", "let SCORING_DATABASE_URL lead to the primary")
        if row["is_read_only"]:
            raise Fault(
                "transactions are read-only (default_transaction_read_only)",
                "set it to off for the role and the database, or wait until the maintenance ends",
            )
        return "transactions may write"

    async def standbys(self) -> str:
        """Whether a commit is safe when it returns, and whether it returns."""
        [row] = await self._fetch(STANDBYS)
        names, level = row["names"], row["level"]
        if level == "off" or (names and level in ("local", "remote_write")):
            raise Fault(
                f"synchronous_commit is {level}: a crash or a fail-over may lose requests for good",
                "ALTER ROLE ... SET synchronous_commit = on",
            )
        if not names:
            return "commits wait for no standby, so one that takes over may lack the newest requests"
        needed = standbys_needed(names)
        in_sync = row["synchronous"] if row["sees_all"] else row["connected"]
        if in_sync < needed:
            raise Fault(
                f"synchronous_standby_names is {names!r}, and {in_sync} of {needed} such standbys are in sync: each "
                "commit waits for them without a limit",
                "start them, or take them out of synchronous_standby_names and reload the configuration",
            )
        if not row["sees_all"]:
            raise NotChecked(
                f"the role may not see whether standbys of {names!r} are in sync (pg_read_all_stats)"
            )
        return f"commits wait for {needed} of the standbys {names!r}, and {in_sync} are in sync"

    async def pooler(self) -> str:
        """Whether two clients share a server session, and whether prepared statements survive that."""
        async with self._connected() as one, self._connected() as other:
            self._is_pooled = await shares_sessions(one, other)
        if not self._is_pooled:
            return "each connection keeps its server session"
        if self._statement_cache:
            await self._require_prepared_statements()
        how = (
            "it keeps track of prepared statements"
            if self._statement_cache
            else "prepared statements are off"
        )
        return f"{POOLED}, and {how}; `migrate` needs a direct URL, and notifications do not pass"

    async def _require_prepared_statements(self) -> None:
        try:
            async with self._connected(self._statement_cache) as one, self._connected() as other:
                for _ in range(3):
                    async with one.transaction():
                        await one.fetchval("SELECT $1::int", 1)
                    async with other.transaction():
                        await other.fetchval(SESSION)
                        async with one.transaction():
                            await one.fetchval("SELECT $1::int", 1)
        except (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError):
            raise Fault(
                f"{POOLED} and loses prepared statements",
                "set SCORING_DATABASE_STATEMENT_CACHE=0, or max_prepared_statements in PgBouncer 1.21 or newer",
            ) from None

    async def notifications(self) -> str:
        if self._is_pooled:
            raise NotChecked(f"{POOLED}: workers look for new work once a second")
        arrived = asyncio.Event()
        channel = "tarsy_scoring_doctor"
        async with self._connected() as listener:
            try:
                async with asyncio.timeout(NOTIFIED_S):
                    await listener.add_listener(channel, lambda *_: arrived.set())
                    await self._database.once(lambda c: c.execute(f"NOTIFY {channel}"))
                    await arrived.wait()
            except TimeoutError:
                raise Fault(
                    f"a notification did not arrive within {NOTIFIED_S:g} s",
                    "look for a proxy on the way; without notifications workers look for new work once a second",
                ) from None
        return "LISTEN and NOTIFY work"

    async def timeouts(self) -> str:
        limits = {row["name"]: row["ms"] / 1000 for row in await self._fetch(LIMITS)}
        least = {
            "lock_timeout": LOCK_TIMEOUT_S,
            "statement_timeout": COMMAND_TIMEOUT_S,
            "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_S,
            "transaction_timeout": TRANSACTION_S,
            "idle_session_timeout": IDLE_SESSION_S,
        }
        short = {name: limits[name] for name in least if 0 < limits.get(name, 0) < least[name]}
        if short:
            found = ", ".join(f"{name} is {seconds:g} s" for name, seconds in short.items())
            wanted = ", ".join(f"{name} = 0" for name in short)
            raise Fault(
                f"limits of the role or the database cut off work of the service: {found}",
                f"ALTER ROLE ... SET {wanted}; the service sets limits of its own",
            )
        return (
            ", ".join(f"{name} {seconds:g} s" for name, seconds in sorted(limits.items()) if seconds)
            or "no limits"
        )

    async def connections(self) -> str:
        if self._is_pooled:
            raise NotChecked(f"{POOLED}: its own limits count")
        [row] = await self._fetch(CONNECTIONS)
        limits = {"the role": row["of_role"], "the database": row["of_database"]}
        for what, limit in limits.items():
            if 0 <= limit < self._connections:
                raise Fault(
                    f"{what} may have {limit} connections, and one process of the API needs {self._connections}",
                    f"raise the connection limit of {what}",
                )
        if row["free"] < self._connections:
            raise Fault(
                f"{row['free']} of {row['most']} connections are free, and one process of the API needs "
                f"{self._connections}",
                "raise max_connections, end idle clients, or put a pooler in front",
            )
        return f"{row['free']} of {row['most']} connections are free"

    async def vacuum(self) -> str:
        rows = await self._fetch(HOLDERS, LONG_TRANSACTION)
        if rows:
            found = ", ".join(_holder(row) for row in rows)
            raise Fault(f"dead rows cannot be removed because of {found}", rows[0]["advice"])
        can_see_all = await self._fetch("SELECT pg_has_role('pg_read_all_stats', 'USAGE') AS may")
        seen = "" if can_see_all[0]["may"] else " (only of this role; GRANT pg_read_all_stats shows all)"
        return f"no transaction is older than an hour{seen}, and no replication slot is inactive"

    async def clock(self) -> str:
        async def difference(connection: Connection) -> float:
            before = time.time()
            at = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
            return float(at) - (before + time.time()) / 2

        apart_s = await self._database.once(difference)
        found = f"the clock of the database is {abs(apart_s):.1f} s {'ahead of' if apart_s > 0 else 'behind'} ours"
        if abs(apart_s) > CLOCKS_APART_S:
            raise Fault(
                found,
                "synchronise both hosts by NTP: tokens, certificates and the age of events depend on it",
            )
        return found

    async def _fetch(self, statement: str, *arguments: object) -> list[asyncpg.Record]:
        try:
            return await self._database.fetch(statement, *arguments)
        except REFUSALS as error:
            raise refused(self._database.place, error) from error

    @asynccontextmanager
    async def _connected(self, statement_cache: int = 0) -> AsyncIterator[asyncpg.Connection]:
        connection = await asyncpg.connect(self._url, timeout=CONTACT_S, statement_cache_size=statement_cache)
        try:
            yield connection
        finally:
            connection.terminate()


def _tables() -> list[str]:
    """The tables that the migrations create."""
    texts = (path.read_text(encoding="utf-8") for path in (migrations_dir() / "versions").glob("*.py"))
    return sorted({name for text in texts for name in re.findall(r"CREATE (?:UNLOGGED )?TABLE (\w+)", text)})


def standbys_needed(names: str) -> int:
    """Number of standbys that a commit waits for, by a value of `synchronous_standby_names`."""
    number = re.match(r"\s*(?:(?:FIRST|ANY)\s+)?(\d+)\s*\(", names, re.IGNORECASE)
    return int(number[1]) if number else 1


def _holder(row: Any) -> str:
    return str(row["what"]) if row["age_s"] is None else f"{row['what']} ({row['age_s'] / 60:.0f} minutes)"

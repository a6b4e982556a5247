"""
Checks of the service's own PostgreSQL, as the service uses it: through the pool and in transactions.
"""

import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.doctor.checks import Check, CheckFault
from tarsy_scoring.postgres import transactions
from tarsy_scoring.postgres.database import CONTACT_S, Connection, Database
from tarsy_scoring.postgres.failures import REFUSALS, refused
from tarsy_scoring.postgres.poolers import SESSION, shares_sessions
from tarsy_scoring.postgres.revisions import migrations_dir
from tarsy_scoring.wiring import require_migrated

OLDEST_VERSION = 15
CLOCKS_APART_S = 30.0
# The shortest limits that leave the service's own work alone.
LEAST_LIMITS_S = {
    "lock_timeout": transactions.LOCK_TIMEOUT_S,
    "statement_timeout": transactions.COMMAND_TIMEOUT_S,
    "idle_in_transaction_session_timeout": transactions.IDLE_IN_TRANSACTION_S,
    "transaction_timeout": transactions.TRANSACTION_S,
    "idle_session_timeout": 300.0,  # the pool closes idle connections after this time
}

SERVER = """
SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int AS number,
  pg_is_in_recovery() OR current_setting('transaction_read_only')::bool AS is_read_only
"""

# The tables ($1) in our schema ($2) on which the role lacks a privilege.
LACKING_PRIVILEGES = """
SELECT t.name FROM unnest($1::text[]) AS t(name)
JOIN pg_class c ON c.relname = t.name AND c.relkind IN ('r', 'p')
JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = $2
WHERE NOT (has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
  AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'))
ORDER BY t.name
"""

# Limits that hold in our transactions, in ms; 0: no limit.
LIMITS = "SELECT name, setting::bigint AS ms FROM pg_settings WHERE name = ANY($1::text[])"


def database_checks(settings: Settings, database: Database) -> list[Check]:
    """
    The checks of our database.

    Args:
        database: A pool without prepared statements, open; connected at the first check.
    """
    looks = _DatabaseLooks(settings, database)
    return [
        Check("database", looks.server),
        Check("database-tables", looks.tables, ["database"]),
        Check("database-pooler", looks.pooler, ["database"]),
        Check("database-timeouts", looks.timeouts, ["database"]),
        Check("clock", looks.clock, ["database"]),
    ]


class _DatabaseLooks:
    def __init__(self, settings: Settings, database: Database) -> None:
        self._url = settings.require_database()
        self._database = database
        self._statement_cache = settings.database_statement_cache

    async def server(self) -> str:
        [row] = await self._fetch(SERVER)
        found = f"PostgreSQL {row['version']} at {self._database.place}"
        if row["number"] < OLDEST_VERSION * 10_000:
            raise CheckFault(found, f"upgrade it to {OLDEST_VERSION} or newer")
        if row["is_read_only"]:
            advice = "let SCORING_DATABASE_URL lead to the primary, without default_transaction_read_only"
            raise CheckFault(f"{found} is a standby or read-only", advice)
        return found

    async def tables(self) -> str:
        await require_migrated(self._database, wait=False)
        texts = (path.read_text(encoding="utf-8") for path in (migrations_dir() / "versions").glob("*.py"))
        tables = {name for t in texts for name in re.findall(r"CREATE (?:UNLOGGED )?TABLE (\w+)", t)}
        schema = self._database.schema
        if lacking := await self._fetch(LACKING_PRIVILEGES, sorted(tables), schema):
            names = ", ".join(row["name"] for row in lacking)
            advice = f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} to the role"
            raise CheckFault(f"the role lacks privileges on {names}", advice)
        return f"the schema {schema!r} has every table, and the role may use them"

    async def pooler(self) -> str:
        """Whether two clients share a server session, and whether prepared statements survive that."""
        async with self._connected() as one, self._connected() as other:
            if not await shares_sessions(one, other):
                return "each connection keeps its server session"
        if self._statement_cache:
            await self._require_prepared_statements()
        return "a transaction pooler; `migrate` needs a direct URL, and workers poll once a second"

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
            raise CheckFault(
                "a transaction pooler loses prepared statements",
                "set SCORING_DATABASE_STATEMENT_CACHE=0, or max_prepared_statements in PgBouncer 1.21 or newer",
            ) from None

    async def timeouts(self) -> str:
        rows = await self._fetch(LIMITS, list(LEAST_LIMITS_S))
        short = {r["name"]: r["ms"] / 1000 for r in rows if 0 < r["ms"] / 1000 < LEAST_LIMITS_S[r["name"]]}
        if short:
            found = ", ".join(f"{name} is {limit_s:g} s" for name, limit_s in short.items())
            wanted = ", ".join(f"{name} = 0" for name in short)
            raise CheckFault(f"limits cut off work of the service: {found}", f"ALTER ROLE ... SET {wanted}")
        return "no limit cuts off work of the service"

    async def clock(self) -> str:
        async def ahead_s(connection: Connection) -> float:
            before = time.time()
            at = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
            return float(at) - (before + time.time()) / 2

        apart_s = await self._database.once(ahead_s)
        found = f"the clock of the database differs by {apart_s:+.1f} s from ours"
        if abs(apart_s) > CLOCKS_APART_S:
            raise CheckFault(found, "synchronise both hosts by NTP")
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

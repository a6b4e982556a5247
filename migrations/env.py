"""
Run the revisions of Alembic: one migrator at a time, one transaction per revision, in the configured schema.

A statement that changes a table waits for the transactions that use the table, and later statements wait
behind it. Therefore a revision gives up after `LOCK_TIMEOUT_S`, and is retried for about ten minutes while a
backup or a long query holds the table. A revision may leave its transaction (`autocommit_block`) to build an
index on a database in use; that commits the statements before it. No other limit applies: a build may take
hours. `tarsy_scoring.postgres.migrate` runs this module and passes URL and schema in `config.attributes`.
"""

import asyncio

import asyncpg
import structlog
from alembic import context
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from tarsy_scoring.errors import StartRefused
from tarsy_scoring.postgres.poolers import shares_sessions
from tarsy_scoring.postgres.url import place_of

log = structlog.get_logger()

VERSION_TABLE = "tarsy_scoring_version"  # not Alembic's default: the schema may be shared with others
LOOK_EVERY_S = 0.1
LOCK_TIMEOUT_S = 3
PAUSES_S = (1, 2, 5, 10, 20, *[30] * 18)  # ten minutes, of which the tables are free for nine
IN_USE = {"55P03", "40P01"}  # lock_not_available, deadlock_detected

# For the whole session, because the build of an index is outside of transactions. Limits of role and database
# would cancel it, and each run would begin anew. Keepalives, because a firewall may forget a connection that
# is silent for minutes.
NO_LIMITS = """
SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET tcp_keepalives_idle = 20;
SELECT set_config('transaction_timeout', '0', false) WHERE current_setting('transaction_timeout', true) IS NOT NULL
"""


def run_on(connection: Connection) -> None:
    """Create the schema if it is missing, and run the pending revisions; blocks."""
    schema = context.config.attributes["schema"]

    # SET LOCAL and not a startup parameter: PgBouncer forwards no unknown startup parameters.
    @event.listens_for(connection, "begin")
    def _set_path(begun: Connection) -> None:
        begun.exec_driver_sql(f'SET LOCAL search_path TO "{schema}"')
        begun.exec_driver_sql(f"SET LOCAL lock_timeout TO '{LOCK_TIMEOUT_S}s'")

    context.configure(
        connection=connection,
        version_table=VERSION_TABLE,
        version_table_schema=schema,
        transaction_per_migration=True,
        on_version_apply=context.config.attributes.get("on_version_apply"),
    )
    with context.begin_transaction():
        # CREATE SCHEMA IF NOT EXISTS requires the right to create schemas even if the schema exists.
        if not connection.scalar(
            text("SELECT 1 FROM pg_namespace WHERE nspname = :schema"), {"schema": schema}
        ):
            connection.execute(text(f'CREATE SCHEMA "{schema}"'))
        context.run_migrations()


async def take_turn(guard: AsyncConnection) -> None:
    """
    Wait until no other migrator works, and lock the others out until the transaction of `guard` ends.
    """
    # The lock belongs to a transaction of its own, which the commits of the revisions do not end. A lock of
    # the session would stay with a server connection of PgBouncer. The lock is polled, because a waiting
    # statement holds a snapshot, and a concurrent build of an index waits for all snapshots.
    while not await guard.scalar(text("SELECT pg_try_advisory_xact_lock(hashtext('tarsy-scoring migrate'))")):
        await guard.rollback()
        await asyncio.sleep(LOOK_EVERY_S)
    # A SELECT keeps its snapshot until the next statement of its transaction.
    await guard.execute(text("SET LOCAL application_name = 'tarsy-scoring migrate'"))


async def connect() -> asyncpg.Connection:
    """A connection of its own, without limits."""
    # asyncpg reads the URL as it does for the service; SQLAlchemy would refuse its `?sslmode=...`.
    connection = await asyncpg.connect(context.config.attributes["url"], timeout=10, statement_cache_size=0)
    await connection.execute(NO_LIMITS)
    return connection


async def refuse_pooler() -> None:
    """
    Check that each connection keeps a session of its own.

    Raises:
        StartRefused: A transaction pooler shares sessions, so limits would not stay lifted.
    """
    place = place_of(context.config.attributes["url"])
    one, other = await connect(), await connect()
    try:
        if await shares_sessions(one, other):
            raise StartRefused(
                f"cannot migrate the database at {place}: a transaction pooler "
                "answers there, and building an index needs a session of its own; run `migrate` with "
                "SCORING_DATABASE_URL set to PostgreSQL itself (in the Helm chart: migrations.existingSecret)"
            )
    finally:
        for connection in (one, other):
            await connection.close(timeout=10)


async def run() -> None:
    """
    Run the pending revisions under the lock, and retry while tables are in use.

    Raises:
        DBAPIError: A revision failed, or tables were still in use after the last of `PAUSES_S`.
        StartRefused: See `refuse_pooler`.
    """
    await refuse_pooler()
    engine = create_async_engine("postgresql+asyncpg://", poolclass=NullPool, async_creator=connect)
    try:
        async with engine.connect() as guard:
            await take_turn(guard)
            for pause_s in (*PAUSES_S, None):
                try:
                    async with engine.connect() as connection:
                        await connection.run_sync(run_on)
                    break
                except DBAPIError as error:
                    if pause_s is None or getattr(error.orig, "sqlstate", None) not in IN_USE:
                        raise
                log.warning(
                    "migrate.tables_in_use", next_try_s=pause_s, advice="look for a backup or a long query"
                )
                await asyncio.sleep(pause_s)
    finally:
        await engine.dispose()


asyncio.run(run())

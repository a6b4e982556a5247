"""
Run the revisions of Alembic: one migrator at a time, one transaction per revision, in the configured schema.

A statement that changes a table waits for the transactions that use the table, and later statements wait
behind it. Therefore a revision gives up after `LOCK_TIMEOUT_S`, and is retried for about ten minutes while a
backup or a long query holds the table. A revision may leave its transaction (`autocommit_block`) to build an
index on a database in use; that commits the statements before it. `tarsy_scoring.postgres.migrate` runs this
module and passes URL and schema in `config.attributes`.
"""

import asyncio

import asyncpg
import structlog
from alembic import context
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

log = structlog.get_logger()

VERSION_TABLE = "tarsy_scoring_version"  # not Alembic's default: the schema may be shared with others
LOOK_EVERY_S = 0.1
LOCK_TIMEOUT_S = 3
PAUSES_S = (1, 2, 5, 10, 20, *[30] * 18)  # ten minutes, of which the tables are free for nine
IN_USE = {"55P03", "40P01"}  # lock_not_available, deadlock_detected


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
    )
    with context.begin_transaction():
        # CREATE SCHEMA IF NOT EXISTS requires the right to create schemas even if the schema exists.
        if not connection.scalar(text("SELECT 1 FROM pg_namespace WHERE nspname = :schema"), {"schema": schema}):
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
    # Building an index may take hours. This statement comes last, because a SELECT keeps its snapshot until
    # the next statement of its transaction.
    await guard.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))


async def run() -> None:
    """
    Run the pending revisions under the lock, and retry while tables are in use.

    Raises:
        DBAPIError: A revision failed, or tables were still in use after the last of `PAUSES_S`.
    """

    # asyncpg reads the URL as it does for the service; SQLAlchemy would refuse its `?sslmode=...`.
    async def connect() -> asyncpg.Connection:
        return await asyncpg.connect(context.config.attributes["url"], timeout=10, statement_cache_size=0)

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
                log.warning("migrate.tables_in_use", next_try_s=pause_s, advice="look for a backup or a long query")
                await asyncio.sleep(pause_s)
    finally:
        await engine.dispose()


asyncio.run(run())

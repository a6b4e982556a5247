"""
Alembic's entry: one transaction, our schema, one migrator at a time.

Driven by `tarsy_scoring.schema`, which hands the URL and the schema over in `config.attributes`.
"""

import asyncio

from alembic import context
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

VERSION_TABLE = "tarsy_scoring_version"  # not Alembic's default: the schema may be shared with others


def run_on(connection: Connection) -> None:
    schema = context.config.attributes["schema"]
    # SET LOCAL and not a startup parameter: PgBouncer forwards no unknown startup parameters.
    connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('tarsy-scoring migrate'))"))
    connection.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{schema}"'))
    connection.execute(text(f'SET LOCAL search_path TO "{schema}"'))
    context.configure(connection=connection, version_table=VERSION_TABLE, version_table_schema=schema)
    context.run_migrations()


async def run() -> None:
    engine = create_async_engine(
        context.config.attributes["url"],
        poolclass=NullPool,
        connect_args={"statement_cache_size": 0, "prepared_statement_cache_size": 0},
    )
    try:
        async with engine.begin() as connection:
            await connection.run_sync(run_on)
    finally:
        await engine.dispose()


asyncio.run(run())

"""
Alembic's entry: one transaction, our schema, one migrator at a time.

Driven by `tarsy_scoring.schema`, which hands the URL and the schema over in `config.attributes`.
"""

import asyncio

import asyncpg
from alembic import context
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

VERSION_TABLE = "tarsy_scoring_version"  # not Alembic's default: the schema may be shared with others


def run_on(connection: Connection) -> None:
    schema = context.config.attributes["schema"]
    # SET LOCAL and not a startup parameter: PgBouncer forwards no unknown startup parameters.
    connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('tarsy-scoring migrate'))"))
    # Looked for first: IF NOT EXISTS asks for the right to make schemas even where there is nothing to make.
    if not connection.scalar(text("SELECT 1 FROM pg_namespace WHERE nspname = :schema"), {"schema": schema}):
        connection.execute(text(f'CREATE SCHEMA "{schema}"'))
    connection.execute(text(f'SET LOCAL search_path TO "{schema}"'))
    context.configure(connection=connection, version_table=VERSION_TABLE, version_table_schema=schema)
    context.run_migrations()


async def run() -> None:
    # asyncpg reads the URL as it does for the service; SQLAlchemy would refuse its `?sslmode=...`.
    async def connect() -> asyncpg.Connection:
        return await asyncpg.connect(context.config.attributes["url"], timeout=10, statement_cache_size=0)

    engine = create_async_engine("postgresql+asyncpg://", poolclass=NullPool, async_creator=connect)
    try:
        async with engine.begin() as connection:
            await connection.run_sync(run_on)
    finally:
        await engine.dispose()


asyncio.run(run())

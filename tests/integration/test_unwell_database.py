"""A database that answers and refuses: work waits for what passes and ends loudly at what does not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import asyncpg
import pytest

from builders import connected
from tarsy_scoring.postgres.database import Connection, Database, DatabaseAway

CONNECTIONS = 3
WRITE = "INSERT INTO dead_letter_bodies (body_id, headers) VALUES (gen_random_uuid(), '[]')"


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url, "public", pool_size=CONNECTIONS)
    await database.open()
    yield database
    await database.close()


@asynccontextmanager
async def read_only(url: str) -> AsyncIterator[None]:
    """New connections are read-only meanwhile, as during maintenance or behind a demoted primary."""
    async with connected(url) as operator:
        name = urlsplit(url).path.lstrip("/")
        await operator.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        try:
            yield
        finally:
            await operator.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")


async def write(connection: Connection) -> str:
    return str(await connection.execute(WRITE))


async def open_all(database: Database) -> None:
    """Use every connection of the pool, so that all of them are open."""
    all_are_there = asyncio.Barrier(CONNECTIONS)

    async def meet(connection: Connection) -> None:
        await all_are_there.wait()
        await connection.fetchval("SELECT 1")

    await asyncio.gather(*(database.once(meet) for _ in range(CONNECTIONS)))


async def test_writers_continue_when_the_database_is_no_longer_read_only(database: Database, database_url: str) -> None:
    async with read_only(database_url):
        await open_all(database)
        waiting = asyncio.create_task(database.persist(write))
        for _ in range(CONNECTIONS):
            with pytest.raises(DatabaseAway, match="it is read-only") as away:
                await database.once(write)
            assert isinstance(away.value.__cause__, asyncpg.ReadOnlySQLTransactionError)

    assert await asyncio.wait_for(waiting, 30) == "INSERT 0 1"
    assert [await database.once(write) for _ in range(CONNECTIONS)] == ["INSERT 0 1"] * CONNECTIONS


async def test_connections_opened_while_read_only_cost_one_failed_write(database: Database, database_url: str) -> None:
    """A connection keeps the setting with which it began."""
    async with read_only(database_url):
        await open_all(database)

    with pytest.raises(DatabaseAway, match="it is read-only"):
        await database.once(write)
    for _ in range(CONNECTIONS):
        assert await database.once(write) == "INSERT 0 1"

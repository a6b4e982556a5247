"""A database that answers and refuses: work waits for what passes and ends loudly at what does not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from structlog.testing import capture_logs

from builders import Scoring, connected
from pooler import TransactionPooler
from tarsy_scoring.postgres import database as database_module
from tarsy_scoring.postgres.database import TRIES, Connection, Database, DatabaseAway, DatabaseRefuses

CONNECTIONS = 3
# A sequence, because its steps are not rolled back.
FAIL = Path(__file__).with_suffix(".sql").read_text("utf-8")
WRITE = "INSERT INTO dead_letter_bodies (body_id, headers) VALUES (gen_random_uuid(), '[]')"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "RETRY_MAX_S", 0.1)


@pytest.fixture
async def database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    """A pool of one caller, for which an outage is over with its first success."""
    monkeypatch.setattr(database_module, "SETTLED_S", 0.0)
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


# --- errors of the server ------------------------------------------------------------------------------


async def fail(database: Database, state: str, times: int) -> tuple[Any, int]:
    """Work that the server fails `times` times with this SQLSTATE; gives its end and how often it was tried."""
    await database.once(lambda c: c.execute(FAIL))
    [end] = await asyncio.gather(
        database.persist(lambda c: c.fetchval("SELECT fail($1, $2)", state, times)), return_exceptions=True
    )
    return end, await database.once(lambda c: c.fetchval("SELECT last_value FROM tried"))


@pytest.mark.parametrize("state", ["25006", "40001", "53400", "55P03"])
async def test_a_server_error_that_passes_is_waited_for(database: Database, state: str) -> None:
    """One log line at the start of the wait, one at its end, however often the work is tried."""
    with capture_logs() as lines:
        end = await fail(database, state, TRIES + 2)

    assert end == ("done", TRIES + 3)
    assert [line["event"] for line in lines] == ["database.away", "database.back"]


@pytest.mark.parametrize("state", ["57014", "XX000"])
async def test_a_server_error_that_may_last_is_tried_a_few_times(database: Database, state: str) -> None:
    assert await fail(database, state, TRIES - 1) == ("done", TRIES)

    await database.once(lambda c: c.execute("DROP SEQUENCE tried; DROP FUNCTION fail"))
    end, tries = await fail(database, state, TRIES)
    assert isinstance(end, DatabaseRefuses)
    assert isinstance(end.__cause__, asyncpg.PostgresError)
    assert end.__cause__.sqlstate == state
    assert tries == TRIES


# --- limits of transactions ----------------------------------------------------------------------------

LIMITS = ("idle_in_transaction_session_timeout", "statement_timeout", "lock_timeout", "transaction_timeout", "jit")


async def limits(connection: Connection) -> dict[str, str]:
    rows = await connection.fetch("SELECT name, setting, unit FROM pg_settings WHERE name = ANY($1)", LIMITS)
    return {row["name"]: row["setting"] + (row["unit"] or "") for row in rows}


async def test_limits_do_not_stay_with_a_server_connection_of_a_pooler(database_url: str) -> None:
    """Other clients of the pooler get that connection, such as a migration that builds an index for an hour."""
    async with TransactionPooler(database_url, servers=1) as pooler:
        database = Database(pooler.url, "public", pool_size=2, statement_cache=0)
        await database.open()
        other = await asyncpg.connect(pooler.url, statement_cache_size=0)
        await other.execute("SET jit = on")
        pid = "SELECT pg_backend_pid()"

        assert await database.once(lambda c: c.fetchval(pid)) == await other.fetchval(pid)
        ours, theirs = await database.once(limits), await limits(other)

        await other.close()
        await database.close()
    assert ours == {
        "idle_in_transaction_session_timeout": "15000ms",
        "statement_timeout": "30000ms",
        "lock_timeout": "10000ms",
        "jit": "off",
    } | ({"transaction_timeout": "40000ms"} if "transaction_timeout" in theirs else {})
    assert theirs == dict.fromkeys(ours, "0ms") | {"jit": "on"}


async def test_a_single_statement_that_fails_raises_its_error(scoring: Scoring) -> None:
    """Its connection serves the next statement."""
    backend = "SELECT pg_backend_pid() AS pid"
    [before] = await scoring.database.single(backend)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await scoring.database.single("SELECT 1 / 0")

    assert await scoring.database.single(backend) == [before]

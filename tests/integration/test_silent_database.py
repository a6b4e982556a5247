"""A database that stops answering and closes no connection: every caller gives up in time."""

import asyncio
import time
from collections.abc import AsyncIterator

import httpx
import pytest

from builders import connected
from infrastructure import wait_until
from proxy import DatabaseProxy
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.errors import SessionNotFound, TimelineUnavailable
from tarsy_scoring.postgres import database as database_module
from tarsy_scoring.postgres.database import CONTACT_S, Connection, Database, DatabaseAway
from tarsy_scoring.postgres.failures import DRIVER_ERRORS
from tarsy_scoring.postgres.recent import READY_TIMEOUT_S
from tarsy_scoring.tarsy.timeline_db import TarsyDatabase
from tarsy_scoring.web.app import create_app
from tarsy_scoring.web.context import AppContext
from tarsy_scoring.wiring import open_parts

CONNECTIONS = 3
SHORT_S = 0.5
# On a busy machine, too, a call that `SHORT_S` limits has ended by then; one that it does not limit
# takes at least 10 s.
IN_TIME_S = 7.0


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[DatabaseProxy]:
    async with DatabaseProxy(database_url) as proxy:
        yield proxy


@pytest.fixture
async def tarsy_proxy(tarsy_database_url: str) -> AsyncIterator[DatabaseProxy]:
    async with DatabaseProxy(tarsy_database_url) as proxy:
        yield proxy


@pytest.fixture
async def database(proxy: DatabaseProxy) -> AsyncIterator[Database]:
    """A pool whose connections were all used before the database falls silent."""
    database = Database(proxy.url, "public", pool_size=CONNECTIONS)
    await database.open()
    all_are_there = asyncio.Barrier(CONNECTIONS)

    async def meet(connection: Connection) -> None:
        await all_are_there.wait()
        await one(connection)

    await asyncio.gather(*(database.once(meet) for _ in range(CONNECTIONS)))
    yield database
    await database.close()


async def one(connection: Connection) -> int:
    return int(await connection.fetchval("SELECT 1"))


async def test_a_contact_is_given_up_in_time(
    proxy: DatabaseProxy, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "CONTACT_S", SHORT_S)
    proxy.fall_silent()

    for _ in range(CONNECTIONS + 1):
        began = time.monotonic()
        with pytest.raises(DatabaseAway, match="no answer in time"):
            await database.once(one)
        assert time.monotonic() - began < IN_TIME_S

    monkeypatch.undo()
    proxy.speak_again()
    assert await asyncio.gather(*(database.once(one) for _ in range(CONNECTIONS))) == [1] * CONNECTIONS


async def test_a_cancelled_caller_does_not_wait_for_the_rollback(proxy: DatabaseProxy, database: Database) -> None:
    """The rollback gets a short time, and the cancellation is raised."""

    async def work(connection: Connection) -> None:
        await one(connection)
        proxy.fall_silent()
        await one(connection)

    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(SHORT_S):
            await database.persist(work)  # type: ignore[func-returns-value]

    assert time.monotonic() - began < IN_TIME_S
    proxy.speak_again()
    assert await database.once(one) == 1


async def test_a_cancel_rolls_back_and_keeps_the_connection(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tarsy_scoring.postgres.transactions.ROLLBACK_S", 20.0)

    async def work(connection: Connection) -> None:
        await connection.execute("CREATE TABLE half_done ()")
        await connection.execute("SELECT pg_sleep(60)")

    async def backends(connection: Connection) -> dict[int, bool]:
        """The connections by process id, and whether each is at work."""
        rows = await connection.fetch(
            "SELECT pid, state <> 'idle' AND pid <> pg_backend_pid() AS works FROM pg_stat_activity "
            "WHERE datname = current_database()"
        )
        return {row["pid"]: row["works"] for row in rows}

    before = await database.once(backends)
    working = asyncio.create_task(database.once(work))
    # The server ignores a cancel request that arrives before the statement.
    asleep = (
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database())"
    )
    await wait_until(lambda: database.once(lambda c: c.fetchval(asleep)), 30, "the statement runs")
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working

    assert await database.once(backends) == before
    assert list(before.values()) == [False] * CONNECTIONS
    assert await database.once(lambda c: c.fetchval("SELECT to_regclass('half_done')")) is None


async def test_a_session_in_a_silent_database_is_given_up_in_time(
    tarsy_proxy: DatabaseProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = TarsyDatabase(tarsy_proxy.url)
    with pytest.raises(SessionNotFound):
        await source.find_session("none")
    tarsy_proxy.fall_silent(at="SET LOCAL statement_timeout")

    with monkeypatch.context() as impatient:
        impatient.setattr(source.tarsy, "timeout_s", SHORT_S)
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(TimelineUnavailable, match="no answer within"):
                await source.find_session("none")
            assert time.monotonic() - began < IN_TIME_S
    tarsy_proxy.speak_again()
    with pytest.raises(SessionNotFound):
        await source.find_session("none")

    patient = TarsyDatabase(tarsy_proxy.url, timeout_s=60)
    tarsy_proxy.fall_silent(at="SET LOCAL statement_timeout")
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(SHORT_S):
            await patient.find_session("none")
    assert time.monotonic() - began < IN_TIME_S
    tarsy_proxy.speak_again()
    await asyncio.gather(source.close(), patient.close())


async def test_requests_are_answered_in_time(proxy: DatabaseProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The readiness probe answers within 3 s, reads within 10 s."""
    assert READY_TIMEOUT_S <= 3
    assert CONTACT_S <= 10
    monkeypatch.setattr(database_module, "CONTACT_S", 600.0)
    settings = load_settings({"SCORING_DATABASE_URL": proxy.url})
    async with open_parts(settings) as parts:
        reads = parts.reader, parts.analytics
        site = AppContext(settings, parts.registry, parts.inbox, parts.leases, *reads, parts.metrics, None)
        app = create_app(site)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
            ready = await asyncio.gather(*(client.get("/readyz") for _ in range(2)))
            assert [answer.status_code for answer in ready] == [200, 200]
            proxy.fall_silent()

            path = "/api/v1/scoring/sessions/session-1/score"
            reading = asyncio.create_task(client.get(path))

            async def is_away() -> bool:
                return (await client.get("/readyz")).status_code == 503

            await wait_until(is_away, 60, "the probe sees the silence")
            assert not reading.done(), "the probe has a time of its own"
            reading.cancel()
            monkeypatch.setattr(database_module, "CONTACT_S", SHORT_S)
            async with asyncio.timeout(60):
                assert (await client.get(path)).status_code == 503


async def test_a_client_stuck_between_parse_and_execute_loses_its_locks(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backend is neither idle nor in a statement, so only `transaction_timeout` ends it."""
    monkeypatch.setattr("tarsy_scoring.postgres.transactions.TRANSACTION_S", 1)
    database = Database(database_url, "public", pool_size=1)
    await database.open()
    async with connected(database_url) as other:
        if await other.fetchval("SELECT current_setting('server_version_num')::int") < 170000:
            pytest.skip("PostgreSQL knows transaction_timeout since 17")

        async def stand_still() -> None:
            async with database.transaction() as standing:
                await standing.execute("LOCK TABLE session_scores")
                await standing.prepare("SELECT 1 FROM session_scores")
                await asyncio.wait_for(other.fetchval("SELECT count(*) FROM session_scores"), 15)
                await standing.fetchval("SELECT 1")

        with pytest.raises(DRIVER_ERRORS):  # which one depends on whether the server's last word was read
            await stand_still()
    await database.close()

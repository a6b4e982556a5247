"""The lock of a leader: kept by a beat beside its work, and free soon after the leader froze or vanished."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from builders import connected
from infrastructure import wait_until
from proxy import DatabaseProxy
from tarsy_scoring.postgres import leader as leader_module
from tarsy_scoring.postgres.database import Database, DatabaseAway
from tarsy_scoring.postgres.leader import AdvisoryLock

LOCK = AdvisoryLock("tests")
# How long the transaction that holds the lock has been open.
HELD_S = """
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - a.xact_start)), 0)
FROM pg_stat_activity a JOIN pg_locks l USING (pid) WHERE l.locktype = 'advisory' AND a.datname = current_database()
"""


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_module, "SILENCE_S", 1)
    monkeypatch.setattr(leader_module, "BEAT_S", 0.1)
    monkeypatch.setattr(leader_module, "CONTACT_S", 0.5)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    database = Database(url, "public", pool_size=1)
    await database.open()
    yield database
    await database.close()


async def nothing() -> None:
    pass


async def test_a_silent_leader_loses_the_lock_and_its_work_is_cancelled(database_url: str) -> None:
    begun, was_cancelled = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            was_cancelled.set()

    async with DatabaseProxy(database_url) as proxy, opened(proxy.url) as silent, opened(database_url) as other:
        leading = asyncio.create_task(LOCK.lead(silent, work))
        await asyncio.wait_for(begun.wait(), 30)
        assert not await LOCK.lead(other, nothing)
        proxy.fall_silent()

        await wait_until(lambda: LOCK.lead(other, nothing), 30, "another process leads")
        await asyncio.wait_for(was_cancelled.wait(), 30)
        with pytest.raises(DatabaseAway):
            await leading


async def test_work_may_take_longer_than_the_server_waits_for_a_silent_leader(database_url: str) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await may_end.wait()

    async with opened(database_url) as database, opened(database_url) as other, connected(database_url) as observer:
        leading = asyncio.create_task(LOCK.lead(database, work))
        await asyncio.wait_for(begun.wait(), 30)

        async def is_held_for_long() -> bool:
            return float(await observer.fetchval(HELD_S)) > 3 * leader_module.SILENCE_S

        await wait_until(is_held_for_long, 30, "the lock is held for long")
        assert not await LOCK.lead(other, nothing)
        may_end.set()

        assert await leading
        assert await LOCK.lead(other, nothing)


async def test_an_error_of_the_work_frees_the_lock(database_url: str) -> None:
    async def work() -> None:
        raise ValueError("planted")

    async with opened(database_url) as database, opened(database_url) as other:
        with pytest.raises(ValueError, match="planted"):
            await LOCK.lead(database, work)
        assert await LOCK.lead(other, nothing)

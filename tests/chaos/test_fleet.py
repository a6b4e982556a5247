"""
A fleet under load in the field: workers are killed, one session kills its worker, and everything around the fleet
fails in turn.

The environment enlarges the run: `CHAOS_REQUESTS` (default 600) and `CHAOS_SOURCE_AWAY_S` (default 8).
"""

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator

import pytest

from builders import connected
from infrastructure import wait_until
from processes import Process, Service, assert_whole, small_session
from proxy import DatabaseProxy
from taking_in import dead_letters
from tarsy_scoring_lab.tarsy import load_session

REQUESTS = int(os.environ.get("CHAOS_REQUESTS", "600"))
SOURCE_AWAY_S = float(os.environ.get("CHAOS_SOURCE_AWAY_S", "8"))
MAX_PENDING = REQUESTS // 10
HELD = 2 * MAX_PENDING  # requests of the chain that is paused
KILLS = REQUESTS // 200
WORKERS, SLOTS, LEASE_S = 3, 8, 8
POISON = "poison"
PAST = "day < (now() AT TIME ZONE 'UTC')::date"
COUNTS = f"SELECT s::text FROM daily_sums s WHERE {PAST} ORDER BY 1"


class Fleet:
    """Workers that die when they read the poison; each that ends is replaced."""

    def __init__(self, service: Service, chance: random.Random, **env: str) -> None:
        self._service, self._chance, self._env = service, chance, env
        self._workers: list[Process] = []

    @contextlib.asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        keeping = asyncio.create_task(self._keep())
        try:
            yield
            assert not keeping.done(), "the fleet is kept to the end"
        finally:
            keeping.cancel()

    async def _keep(self) -> None:
        while True:
            running = [w for w in self._workers if w.status is None]
            started = [
                self._service.worker(dies_at=f"read-{POISON}", **self._env) for _ in range(WORKERS - len(running))
            ]
            self._workers = running + started
            await asyncio.sleep(0.1)

    async def lose_one(self) -> None:
        await self._chance.choice(self._workers).kill()


class Field:
    """What the fleet works with, and the ways in which it fails."""

    def __init__(self, service: Service, database: DatabaseProxy, tarsy_database_url: str) -> None:
        self._service = service
        self._database = database
        self.source = DatabaseProxy(tarsy_database_url)
        self._serving = contextlib.AsyncExitStack()

    async def __aenter__(self) -> "Field":
        await self._serving.enter_async_context(self.source)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._serving.aclose()

    async def source_goes_away(self) -> None:
        await self._serving.aclose()
        await asyncio.sleep(SOURCE_AWAY_S)
        await self._serving.enter_async_context(self.source)

    async def network_is_cut(self) -> None:
        """For longer than a lease, between all workers and the database."""
        self._database.fall_silent()
        await asyncio.sleep(LEASE_S + 4)
        self._database.speak_again()

    async def rows_are_locked(self) -> None:
        """By a stranger, for longer than `lock_timeout`."""
        async with connected(self._service.database_url) as stranger, stranger.transaction():
            await stranger.execute(
                "SELECT FROM session_scores WHERE completed_at IS NULL ORDER BY random() LIMIT 50 FOR UPDATE"
            )
            await asyncio.sleep(2)

    async def database_is_read_only(self) -> None:
        """As after a connection to a standby, from the next connection of each worker on."""
        name = await self._service.value("SELECT current_database()")
        await self._service.rows(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        await self._service.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        await asyncio.sleep(3)
        await self._service.rows(f"ALTER DATABASE {name} RESET default_transaction_read_only")


@pytest.mark.slow
async def test_a_fleet_in_the_field_fails_nothing_but_the_poison(service: Service, tarsy_database_url: str) -> None:
    """
    Each request makes one score, repeats none, and under 5 % of the judge's calls are repeated. Daily counts are those
    of a recount.
    """
    chance = random.Random(20260105)
    held = [f"held-{n:04d}" for n in range(HELD)]
    ids = [f"session-{n:04d}" for n in range(REQUESTS - HELD)]
    async with connected(tarsy_database_url) as tarsy:
        for session_id in (*ids, *held, POISON):
            await load_session(tarsy, small_session(session_id))
    assert (await service.run("pause", "--chain", "held")).status == 0
    name = await service.value("SELECT current_database()")
    await service.rows(f"ALTER DATABASE {name} SET lock_timeout = '1s'")
    service.judge.latency_s = 0.2

    async with DatabaseProxy(service.database_url) as database, Field(service, database, tarsy_database_url) as field:
        fleet = Fleet(
            service,
            chance,
            SCORING_DATABASE_URL=database.url,
            SCORING_TIMELINE_SOURCE="tarsy-db",
            SCORING_TIMELINE_DATABASE_URL=field.source.url,
            SCORING_SLOTS=str(SLOTS),
            SCORING_LEASE_S=str(LEASE_S),  # calls are counted: a pause of the machine must not cost any
            SCORING_MAX_PENDING=str(MAX_PENDING),
            SCORING_MAX_ATTEMPTS="4",
            SCORING_LOG_LEVEL="warning",
        )
        async with fleet.kept():
            events = set(await service.announce(*held, chain_id="held"))
            arriving = ids + chance.sample(ids, REQUESTS // 10)
            chance.shuffle(arriving)
            arriving.insert(100, POISON)
            events |= set(await service.announce(*arriving, chain_id="kubernetes"))
            faults = [
                field.rows_are_locked,
                field.source_goes_away,
                field.database_is_read_only,
                field.network_is_cut,
                *[fleet.lose_one] * KILLS,
            ]
            chance.shuffle(faults)
            for nth, fault in enumerate(faults, start=1):
                await service.scores_reach(nth * len(ids) // (len(faults) + 2), "status = 'completed'")
                await fault()
            assert (await service.run("resume", "--chain", "held")).status == 0
            await service.all_end(REQUESTS + 1, timeout_s=300, without_backoff=True)

            async def all_arrived() -> bool:
                return int(await service.value("SELECT sum(arrivals) FROM scoring_requests")) >= REQUESTS * 1.1

            async def past_is_counted() -> bool:
                return not await service.value(f"SELECT EXISTS (SELECT FROM dirty_days WHERE {PAST})")

            await wait_until(all_arrived, 60, "the repeats have arrived, too")
            await wait_until(past_is_counted, 60, "the workers have counted the days on which sessions ended")
            counted = await service.rows(COUNTS)
            await assert_whole(service, events - {f"event-{POISON}"}, failed=[f"event-{POISON}"])
    assert await service.count("true") == REQUESTS + 1
    assert await dead_letters(service.topics) == []
    assert service.judge.calls < 2 * REQUESTS * 1.05
    assert (await service.run("recount")).status == 0
    assert counted
    assert counted == await service.rows(COUNTS)

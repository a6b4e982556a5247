"""From TARSy's tables and back: bridge, workers and write-back as processes that are killed at random."""

import asyncio
import contextlib
import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from builders import connected
from infrastructure import wait_until
from processes import Process, Service, assert_whole, small_session
from tarsy_scoring.events import SessionCompleted, decode
from tarsy_scoring_lab.tarsy import load_session

SESSIONS = 400
KILLS = 8
STATUS_CHANGED = '{"type": "session.status"}'


class Tarsy:
    """
    A TARSy deployment at work: sessions begin and end all the time, some commit late, some are deleted.

    Args:
        chance: Draws the fate of each session; seeded, so that every run is the same.
    """

    def __init__(self, url: str, chance: random.Random) -> None:
        self._url = url
        self._chance = chance
        self.fates = {f"session-{n:04d}": self._fate(n) for n in range(SESSIONS)}

    def _fate(self, number: int) -> str:
        if number % 40 == 7:
            return "late"
        return self._chance.choices(
            ("completed", "failed", "timed_out", "deleted", "never_ends"), weights=(90, 3, 3, 3, 1)
        )[0]

    def of(self, *fates: str) -> set[str]:
        """Sessions of these fates."""
        return {s for s, fate in self.fates.items() if fate in fates}

    async def work(self) -> None:
        """Run all sessions; those that commit late do so when half of the others have ended."""
        async with contextlib.AsyncExitStack() as stack:
            here = await stack.enter_async_context(connected(self._url))
            slow = await stack.enter_async_context(connected(self._url))
            transaction = slow.transaction()
            await transaction.start()
            for session_id in sorted(self.of("late")):
                await self._load(slow, session_id, "completed")
            ids = sorted(set(self.fates) - self.of("late"))
            for first in range(0, len(ids), 20):
                batch = ids[first : first + 20]
                for session_id in batch:
                    await self._load(here, session_id, "in_progress")
                self._chance.shuffle(batch)
                for session_id in batch:
                    await self._end(here, session_id)
                if first == SESSIONS // 2:
                    await transaction.commit()

    async def _load(self, connection: asyncpg.Connection, session_id: str, status: str) -> None:
        now = datetime.now(UTC)
        ended = now.isoformat() if status == "completed" else None
        times = {"created_at": (now - timedelta(minutes=1)).isoformat(), "completed_at": ended}
        await load_session(connection, small_session(session_id) | {"status": status} | times)

    async def _end(self, connection: asyncpg.Connection, session_id: str) -> None:
        fate = self.fates[session_id]
        if fate == "never_ends":
            return
        await connection.execute(
            "UPDATE alert_sessions SET status = $2, completed_at = clock_timestamp(), "
            "deleted_at = CASE WHEN $3 THEN now() END WHERE session_id = $1",
            *(session_id, "completed" if fate == "deleted" else fate, fate == "deleted"),
        )
        if self._chance.random() < 0.5:  # the other half of the notifications is lost
            await connection.execute("SELECT pg_notify('sessions', $1)", STATUS_CHANGED)


class Fleet:
    """Two bridges and two workers; each kill strikes one of the four."""

    def __init__(self, service: Service, env: Mapping[str, str]) -> None:
        self._service = service
        self._env = env
        self._running = [self._start(kind) for kind in ("bridge", "bridge", "worker", "worker")]

    def _start(self, kind: str) -> tuple[str, Process]:
        options = ("--since", "beginning") if kind == "bridge" else ()
        return kind, self._service.command(kind, *options, **self._env)

    async def lose(self, chance: random.Random) -> None:
        """Kill one of them and start another of its kind."""
        kind, victim = self._running.pop(chance.randrange(len(self._running)))
        await victim.kill()
        self._running.append(self._start(kind))

    async def sweep(self) -> None:
        """Kill the bridges and start others, which begin with a sweep."""
        bridges = [each for each in self._running if each[0] == "bridge"]
        await asyncio.gather(*(process.kill() for _, process in bridges))
        self._running = [each for each in self._running if each[0] != "bridge"]
        self._running += [self._start("bridge") for _ in bridges]

    async def stop(self) -> list[int]:
        """Send SIGTERM to all; returns their exit statuses."""
        return list(await asyncio.gather(*(process.stop() for _, process in self._running)))


async def everything_is_written_back(service: Service) -> None:
    async def caught_up() -> bool:
        statement = "SELECT r.position = b.position FROM relay_position r, write_back_bookmark b"
        return bool(await service.value(statement))

    await wait_until(caught_up, 60, "every score is written back")


async def announced(service: Service) -> dict[str, Counter[str]]:
    """Event ids on the topic by session."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for record in await service.records(service.topics.session_completed):
        event = decode(SessionCompleted, record.value)
        found[event.session_id][event.event_id or ""] += 1
    return found


async def tally(connection: asyncpg.Connection, statement: str) -> Counter[Any]:
    return Counter(r[0] for r in await connection.fetch(statement))


@pytest.mark.slow
async def test_sessions_survive_kills(service: Service, tarsy_database_url: str) -> None:
    """Each ended session has one event id; if its status is scored, one score, written back once."""
    chance = random.Random(20261121)
    tarsy = Tarsy(tarsy_database_url, random.Random(7))
    scored, ended = tarsy.of("completed", "late"), tarsy.of("completed", "late", "failed", "timed_out")
    fleet = Fleet(
        service,
        {
            "SCORING_TIMELINE_SOURCE": "tarsy-db",
            "SCORING_TIMELINE_DATABASE_URL": tarsy_database_url,
            "SCORING_WRITE_BACK_DATABASE_URL": tarsy_database_url,
            "SCORING_SLOTS": "8",
            "SCORING_MAX_ATTEMPTS": "15",
            "SCORING_LOG_LEVEL": "warning",
        },
    )
    working = asyncio.create_task(tarsy.work())
    for killed in range(KILLS):
        await service.scores_reach((killed + 1) * len(scored) // (KILLS + 2), "completed_at IS NOT NULL", timeout_s=60)
        await fleet.lose(chance)
    await working
    await fleet.sweep()
    await service.all_end(len(scored), timeout_s=60)

    async def all_arrived() -> bool:
        return int(await service.value("SELECT count(*) FROM scoring_requests")) == len(ended)

    await wait_until(all_arrived, 60, "every end has arrived")
    await everything_is_written_back(service)
    assert await fleet.stop() == [0, 0, 0, 0]

    events = await announced(service)
    assert set(events) == ended, "the deleted and the open ones were not announced"
    assert all(len(ids) == 1 for ids in events.values()), "a repeat is the same event"
    await assert_whole(service, {next(iter(events[s])) for s in scored})
    assert await service.count("true") == await service.count("status = 'completed'") == len(scored)
    async with connected(tarsy_database_url) as connection:
        scores = await tally(connection, "SELECT session_id FROM session_scores WHERE status = 'completed'")
        stages = await tally(connection, "SELECT session_id FROM stages WHERE stage_type = 'scoring'")
        ids = await tally(connection, "SELECT score_id FROM session_scores")
    assert scores == stages == Counter(scored)
    assert set(ids) == {str(r["score_id"]) for r in await service.rows("SELECT score_id FROM session_scores")}


async def leads(process: Process) -> bool:
    return "tarsy_scoring_bridge_leading 1.0" in (await process.get("/metrics"))[1]


@pytest.mark.slow
async def test_11a_a_frozen_bridge_is_replaced_within_a_minute(service: Service, tarsy_database_url: str) -> None:
    """PostgreSQL ends its transaction, and with it the lock; when it wakes, it announces nothing a second time."""
    env = {"SCORING_TIMELINE_DATABASE_URL": tarsy_database_url}
    frozen = service.command("bridge", "--since", "beginning", **env)
    await wait_until(lambda: leads(frozen), 60, "the first bridge leads")
    other = service.command("bridge", "--since", "beginning", **env)
    await other.ready()

    frozen.pause()
    async with connected(tarsy_database_url) as connection:
        now = datetime.now(UTC).isoformat()
        await load_session(connection, small_session("meanwhile") | {"created_at": now, "completed_at": now})
    await wait_until(lambda: leads(other), 60, "the other bridge leads")
    await other.says("bridge.announced")
    frozen.resume()
    await frozen.says("database.away")

    assert not await leads(frozen)
    assert await asyncio.gather(frozen.stop(), other.stop()) == [0, 0]
    assert {session: list(ids.values()) for session, ids in (await announced(service)).items()} == {"meanwhile": [1]}

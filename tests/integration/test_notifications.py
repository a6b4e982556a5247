"""Which notifications leave a process, and which processes listen."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from builders import Scoring, connected
from infrastructure import Topics, wait_until
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.outbox.relay import POLL_IN_LARGE_FLEET_S, POLL_S, Relay
from tarsy_scoring.postgres import listen
from tarsy_scoring.postgres.database import LARGE_FLEET, NOTIFY_EVERY_S, Database
from tarsy_scoring.telemetry.metrics import Metrics


class Fleet:
    """Processes that judge, as far as their notifications are concerned."""

    def __init__(self, url: str, group: asyncio.TaskGroup) -> None:
        self._url = url
        self._group = group
        self._running: list[asyncio.Task[None]] = []
        self.databases: list[Database] = []

    async def grow(self, size: int) -> None:
        """Add processes until there are so many; returns when all know it."""
        while len(self.databases) < size:
            database = Database(self._url, "public", pool_size=1)
            await database.open()
            self.databases.append(database)
            self._running.append(self._group.create_task(database.exchange_notifications(is_judging=True)))
        await self._all_know()

    async def shrink(self, size: int) -> None:
        """End processes until so few are left; returns when all know it."""
        while len(self.databases) > size:
            self._running.pop().cancel()
            await self.databases.pop().close()
        await self._all_know()

    async def _all_know(self) -> None:
        size = len(self.databases)
        await wait_until(lambda: all(d.judging == size for d in self.databases), 30, f"all know of {size}")


@pytest.fixture
async def fleet(scoring: Scoring, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    monkeypatch.setattr(listen, "PROBE_S", 0.05)
    async with asyncio.TaskGroup() as group:
        fleet = Fleet(scoring.url, group)
        yield fleet
        await fleet.shrink(0)


@contextlib.asynccontextmanager
async def heard_outside(url: str, channel: str) -> AsyncIterator[list[str]]:
    """The payloads of notifications that leave a process."""
    heard: list[str] = []
    async with connected(url) as connection:
        await connection.add_listener(f"tarsy_scoring.public.{channel}", lambda *args: heard.append(args[-1]))
        yield heard


async def assert_silent(url: str, channel: str, heard: Sequence[str]) -> None:
    """No process has sent a notification: one that we send is heard first."""
    await asyncio.sleep(2 * NOTIFY_EVERY_S)
    async with connected(url) as connection:
        await connection.execute("SELECT pg_notify($1, 'ours')", f"tarsy_scoring.public.{channel}")
    await wait_until(lambda: len(heard) > 0, 30, "our notification is heard")
    assert heard == ["ours"]


async def ring_until(notify: Callable[[], None], heard: Sequence[str]) -> None:
    """Notify until a process has sent it."""

    async def is_heard() -> bool:
        notify()
        await asyncio.sleep(0.01)
        return "" in heard

    await wait_until(is_heard, 30, "a notification is heard")


async def test_a_large_fleet_sends_no_notifications(scoring: Scoring, fleet: Fleet) -> None:
    """A process is woken for the events of its own relay, but leaves its scores to the polls of all."""
    await fleet.grow(LARGE_FLEET + 1)
    first = fleet.databases[0]
    async with heard_outside(scoring.url, "scores") as scores, heard_outside(scoring.url, "events") as events:
        first.notify("scores")
        first.notify("events")
        await first.wait_notified("events", 600)
        waiting = asyncio.create_task(first.wait_notified("scores", 600))
        await asyncio.wait([waiting], timeout=0.05)
        assert not waiting.done()
        await assert_silent(scoring.url, "scores", scores)
        await assert_silent(scoring.url, "events", events)

        await fleet.shrink(LARGE_FLEET)
        await ring_until(lambda: first.notify("scores"), scores)
        await ring_until(lambda: first.notify("events"), events)
        await waiting


async def test_a_large_fleet_does_not_listen(scoring: Scoring, fleet: Fleet) -> None:
    """Otherwise PostgreSQL would wake each process for every notification of an API."""
    await fleet.grow(LARGE_FLEET + 1)
    async with connected(scoring.url) as api:

        async def ring() -> list[bool]:
            await api.execute("SELECT pg_notify('tarsy_scoring.public.scores', '1')")
            return await asyncio.gather(*map(hears, fleet.databases))

        async def all_hear() -> bool:
            return all(await ring())

        assert not any(await ring())
        await fleet.shrink(LARGE_FLEET)
        await wait_until(all_hear, 30, "a smaller fleet listens again")


async def hears(database: Database) -> bool:
    """Whether a notification arrives within 0.2 s."""
    began = time.monotonic()
    await database.wait_notified("scores", 0.2)
    return time.monotonic() - began < 0.15


async def test_a_process_that_judges_alone_notifies_itself(scoring: Scoring, fleet: Fleet) -> None:
    await fleet.grow(1)
    async with heard_outside(scoring.url, "scores") as heard:
        fleet.databases[0].notify("scores")
        await fleet.databases[0].wait_notified("scores", 600)
        await assert_silent(scoring.url, "scores", heard)

        await fleet.grow(2)
        await ring_until(lambda: fleet.databases[0].notify("scores"), heard)


@pytest.mark.parametrize(
    ("judging", "poll_s"), [(LARGE_FLEET, POLL_S), (LARGE_FLEET + 1, POLL_IN_LARGE_FLEET_S)], ids=["small", "large"]
)
async def test_the_relay_of_a_fleet_without_notifications_polls_often(
    scoring: Scoring, topics: Topics, judging: int, poll_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, stopping = list[float](), asyncio.Event()

    async def wait(_channel: str, timeout_s: float) -> None:
        waits.append(timeout_s)
        stopping.set()

    monkeypatch.setattr(scoring.database, "wait_notified", wait)
    scoring.database.judging = judging
    await asyncio.wait_for(Relay(load_settings(topics.env), scoring.database, Metrics()).run(stopping), 60)

    assert waits == [poll_s]

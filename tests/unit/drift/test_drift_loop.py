"""The drift loop: failures do not end it, `stopping` does."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from tarsy_scoring.config.load import load_settings
from tarsy_scoring.drift import loop as loop_module
from tarsy_scoring.drift.loop import LOOK_EVERY_S, DriftLoop
from tarsy_scoring.errors import StartRefused
from tarsy_scoring.kafka.clients import BrokerAway
from tarsy_scoring.postgres.database import DatabaseAway
from tarsy_scoring.queue.inbox import Inbox
from tarsy_scoring.telemetry.metrics import Metrics


class Scripted(DriftLoop):
    """A loop whose passes do what a test tells them; `looks` says what each was asked for."""

    def __init__(self, work: Callable[[], Awaitable[bool]]) -> None:
        super().__init__(load_settings({}), cast(Inbox, SimpleNamespace(database=None)), Metrics())
        self._work = work
        self.looks: list[bool] = []

    async def run_once(self, now: datetime, *, looks: bool = True) -> bool:
        self.looks.append(looks)
        return await self._work()


async def ours() -> bool:
    return True


async def not_ours() -> bool:
    return False


@pytest.mark.parametrize(
    ("error", "event"),
    [
        pytest.param(DatabaseAway("it is away"), "drift.waiting", id="database-away"),
        pytest.param(BrokerAway("it is away"), "drift.waiting", id="broker-away"),
        pytest.param(StartRefused("there is no topic"), "drift.waiting", id="topic-missing"),
        pytest.param(ZeroDivisionError("a secret"), "drift.failed", id="what-cannot-be-reckoned"),
    ],
)
async def test_whatever_goes_wrong_judging_goes_on(error: Exception, event: str) -> None:

    async def fail() -> bool:
        raise error

    with capture_logs() as lines:
        await Scripted(fail)._pass()

    assert [line["event"] for line in lines] == [event]


async def test_scores_are_looked_at_every_few_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 1000.0
    monkeypatch.setattr(loop_module, "time", SimpleNamespace(monotonic=lambda: clock))
    loop = Scripted(not_ours)
    await loop._pass()
    loop._work = ours
    for passed_s in (1.0, 1.0, LOOK_EVERY_S - 2.0, 1.0, 1.0):
        await loop._pass()
        clock += passed_s

    assert loop.looks == [True, True, False, False, True, False]


async def test_it_ends_at_once_when_stopping_is_set() -> None:
    """Also in the middle of a pass: what was begun is rolled back, and another process does it."""
    begun, stopping = asyncio.Event(), asyncio.Event()

    async def hang() -> bool:
        begun.set()
        await asyncio.Event().wait()
        return True

    running: asyncio.Task[Any] = asyncio.create_task(Scripted(hang).run(stopping))
    await begun.wait()
    stopping.set()

    async with asyncio.timeout(30):
        await running

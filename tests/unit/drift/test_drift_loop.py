"""The drift loop: failures do not end it, `stopping` does."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from fakes import UnaskedInbox
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.errors import StartRefused
from tarsy_scoring.kafka.connect import BrokerAway
from tarsy_scoring.postgres.database import DatabaseAway
from tarsy_scoring.queue.inbox import Inbox
from tarsy_scoring.studies import drift_loop as loop_module
from tarsy_scoring.studies.drift_loop import LOOK_EVERY_S, DriftLoop
from tarsy_scoring.telemetry.metrics import Metrics


class Scripted(DriftLoop):
    """A loop whose passes run `work`; `looks` records the argument of each pass."""

    def __init__(self, work: Callable[[], Awaitable[bool]]) -> None:
        super().__init__(load_settings({}), cast(Inbox, UnaskedInbox()), Metrics())
        self._work = work
        self.looks: list[bool] = []

    async def run_once(self, now: datetime, *, looks: bool = True) -> bool:
        self.looks.append(looks)
        return await self._work()


async def test_no_failure_ends_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "ASK_EVERY_S", 0)
    errors: list[Exception] = [DatabaseAway("away"), BrokerAway("away"), StartRefused("no topic"), ZeroDivisionError()]
    stopping, left = asyncio.Event(), iter(errors)

    async def fail() -> bool:
        for error in left:
            raise error
        stopping.set()
        return True

    with capture_logs() as lines:
        await Scripted(fail).run(stopping)

    assert [line["event"] for line in lines] == ["database.away", "drift.waiting", "drift.waiting", "drift.failed"]


async def test_scores_are_looked_at_every_few_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look is not at the start; a pass that another process takes does not count as a look."""
    clock, stopping = 1000.0, asyncio.Event()
    passed_s = iter((LOOK_EVERY_S, 1.0, 1.0, LOOK_EVERY_S - 1.0, 1.0, 1.0))
    monkeypatch.setattr(loop_module, "time", SimpleNamespace(monotonic=lambda: clock))
    monkeypatch.setattr(loop_module, "ASK_EVERY_S", 0)

    async def work() -> bool:
        nonlocal clock
        clock += next(passed_s)
        if len(loop.looks) == 6:
            stopping.set()
        return len(loop.looks) > 2

    loop = Scripted(work)
    await loop.run(stopping)

    assert loop.looks == [False, True, True, False, False, True]


async def test_loop_ends_at_once_when_stopping_is_set() -> None:
    """A pass under way is cancelled; its transaction rolls back, and another process repeats it."""
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

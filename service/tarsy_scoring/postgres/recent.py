"""A read of the database whose result is used again for a bounded time."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from tarsy_scoring.postgres.database import Database, DatabaseAway
from tarsy_scoring.telemetry.metrics import Metrics

T = TypeVar("T")

READY_TIMEOUT_S = 2.0
LOOK_EVERY_S = 1.0  # at the database, however many probes ask


class Recent(Generic[T]):
    """
    The result of a read, at most `most_s` old. Callers at the same time share one read.

    Calling it raises what the read raises; the next caller reads again.
    """

    def __init__(self, read: Callable[[], Awaitable[T]], most_s: float) -> None:
        self._read = read
        self._most_s = most_s
        self._reading = asyncio.Lock()
        self._kept: list[T] = []
        self._began = -math.inf

    async def __call__(self) -> T:
        async with self._reading:
            now = time.monotonic()
            if now - self._began >= self._most_s:
                self._kept = [await self._read()]
                self._began = now
            return self._kept[0]


def database_look(database: Database, metrics: Metrics) -> Recent[str | None]:
    """Look at the database for `/readyz`, and set the metric; the result is why the process is not ready."""

    async def look() -> str | None:
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                await database.once(lambda c: c.execute("SELECT 1"))
        except (DatabaseAway, TimeoutError):
            metrics.database_up.set(0)
            return "the database does not answer"
        metrics.database_up.set(1)
        return None

    return Recent(look, LOOK_EVERY_S)

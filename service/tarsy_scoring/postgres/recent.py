"""A read of the database whose result is used again for a bounded time."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


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

"""Measures how long an attempt works, without the time that it waits for this service."""

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class AttemptClock:
    """
    Measures one attempt, or another piece of work with a time limit. Begins when created.

    Time inside `waiting()` counts neither as spent nor against the limit: a limit, a pool or a database
    causes it. While several tasks run at once in an attempt, the clock stands as long as one waits.

    Args:
        limit_s: Working seconds allowed.
        spent_s: Seconds that were spent before.
    """

    def __init__(self, limit_s: float, spent_s: float = 0.0) -> None:
        self._limit_s = limit_s
        self._now = asyncio.get_running_loop().time
        self._started = self._now() - spent_s
        self._waited_s = 0.0
        self._waits = 0
        self._waiting_since = 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning, waits included."""
        return self._now() - self._started

    @property
    def spent_s(self) -> float:
        """Seconds since the beginning, without waits."""
        waiting_s = self._now() - self._waiting_since if self._waits else 0.0
        return self.elapsed_s - self._waited_s - waiting_s

    @property
    def left_s(self) -> float:
        """Working seconds left; below 0 after the limit."""
        return self._limit_s - self.spent_s

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Stop the clock inside the block."""
        if self._waits == 0:
            self._waiting_since = self._now()
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1
            if self._waits == 0:
                self._waited_s += self._now() - self._waiting_since

    async def untimed(self, work: Awaitable[T]) -> T:
        """Await this service with the clock stopped."""
        with self.waiting():
            return await work

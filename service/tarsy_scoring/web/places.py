"""Places for work of one kind in this process: a bounded number runs, a bounded number waits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class NoPlace(Exception):
    """Every place is taken, and so is every place to wait."""


class Places:
    """
    Bounds work of one kind.

    Args:
        at_once: Pieces of work that may run.
        waiting: Further pieces that may wait for a place; what waits counts as under way.
    """

    def __init__(self, at_once: int, waiting: int = 0) -> None:
        self._most = at_once + waiting
        self._here = 0
        self._running = asyncio.Semaphore(at_once)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Hold one place, after a wait for it. Raises: NoPlace."""
        if self._here >= self._most:
            raise NoPlace
        self._here += 1
        try:
            async with self._running:
                yield
        finally:
            self._here -= 1

"""A semaphore with a bounded wait queue."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class QueueFull(Exception):
    """The semaphore is taken, and the queue is full."""


class BoundedSemaphore:
    """
    Bounds concurrent work in this process.

    Args:
        at_once: Pieces that may run.
        queue: Further pieces that may wait.
    """

    def __init__(self, at_once: int, queue: int = 0) -> None:
        self._most = at_once + queue
        self._here = 0
        self._running = asyncio.Semaphore(at_once)

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Hold the semaphore during the block, after a wait for it. Raises: QueueFull."""
        if self._here >= self._most:
            raise QueueFull
        self._here += 1
        try:
            async with self._running:
                yield
        finally:
            self._here -= 1

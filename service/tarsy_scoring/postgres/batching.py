"""Shares transactions between callers: items that arrive during a write are written by the next one."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """
    Group the items of concurrent callers into writes.

    There is no timer: an idle batcher writes at once, a busy one in larger batches. One batch is written at a
    time: two writers would share the same items, in more transactions and on more connections. If a batch
    fails, each of its items is written alone, so that one bad item cannot fail the others. A cancelled caller
    leaves the item in the queue: the item may still be written.

    Args:
        write: Writes all items and returns a result for each, in the same order.
        limit: Items per write.
    """

    def __init__(
        self, write: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]], limit: int = 100
    ) -> None:
        self._write = write
        self._limit = limit
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def submit(self, item: Item) -> Result:
        """
        Write `item` together with others; returns the result after the commit.

        Raises:
            Exception: The error of `write`, if it also fails for this item alone.
        """
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._writer is None:
            # An empty context: the writer serves many callers, so log lines must not carry the names of
            # the first.
            self._writer = asyncio.create_task(self._write_all(), context=contextvars.Context())
        return await future

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._limit], self._waiting[self._limit :]
                try:
                    await self._write_batch(batch)
                finally:
                    for _item, future in batch:
                        if not future.done():
                            future.cancel()  # only when this task itself is being cancelled
        finally:
            # No await between the last look at `_waiting` and this line: an item that arrived in between
            # would stay there until the next caller comes.
            self._writer = None

    async def _write_batch(self, batch: list[tuple[Item, "asyncio.Future[Result]"]]) -> None:
        # `gather` returns whatever the write raises, so that it reaches the callers and never ends the
        # writer.
        [results] = await asyncio.gather(self._write([item for item, _ in batch]), return_exceptions=True)
        if isinstance(results, BaseException):
            if len(batch) > 1:
                for one in batch:
                    await self._write_batch([one])
            elif not batch[0][1].done():
                batch[0][1].set_exception(results)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)

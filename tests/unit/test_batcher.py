"""The batcher merges the writes of many callers, isolates a bad item, and survives a cancelled caller."""

import asyncio
from collections.abc import Sequence

import asyncpg
import pytest

from infrastructure import wait_until
from tarsy_scoring.postgres.batching import Batcher


class Writes:
    """A write that records its batches, and waits while a test holds it."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.may_go = asyncio.Event()
        self.may_go.set()
        self.bad: dict[int, Exception] = {}

    async def __call__(self, items: Sequence[int]) -> Sequence[int]:
        self.batches.append(list(items))
        await self.may_go.wait()
        for item in items:
            if item in self.bad:
                raise self.bad[item]
        return [item * 10 for item in items]


async def test_items_that_arrive_during_a_write_go_into_the_next() -> None:
    writes = Writes()
    writes.may_go.clear()
    batcher = Batcher(writes, limit=100)
    first = asyncio.create_task(batcher.submit(0))
    await wait_until(lambda: writes.batches, 30, "the first write")

    others = [asyncio.create_task(batcher.submit(n)) for n in range(1, 101)]
    await asyncio.sleep(0)
    writes.may_go.set()

    assert await asyncio.gather(first, *others) == [n * 10 for n in range(101)]
    assert writes.batches == [[0], list(range(1, 101))]


async def test_a_write_is_never_larger_than_the_limit() -> None:
    writes = Writes()
    batcher = Batcher(writes, limit=3)

    assert await asyncio.gather(*(batcher.submit(n) for n in range(8))) == [n * 10 for n in range(8)]
    assert writes.batches == [[0, 1, 2], [3, 4, 5], [6, 7]]


@pytest.mark.parametrize(
    "error", [asyncpg.DataError("refused"), ValueError("cannot be encoded")], ids=["database", "anything-else"]
)
async def test_a_bad_item_does_not_fail_its_neighbours(error: Exception) -> None:
    writes = Writes()
    writes.bad[1] = error
    batcher = Batcher(writes)

    results = await asyncio.gather(*(batcher.submit(n) for n in range(3)), return_exceptions=True)

    assert results == [0, error, 20]
    assert writes.batches == [[0, 1, 2], [0], [1], [2]]


async def test_an_item_that_arrives_as_the_writer_ends_is_written() -> None:
    batcher = Batcher(Writes())

    async def come_twice() -> int:
        await batcher.submit(0)
        return await batcher.submit(2)

    assert await asyncio.wait_for(come_twice(), 30) == 20


async def test_the_item_of_a_cancelled_caller_is_still_written() -> None:
    writes = Writes()
    writes.may_go.clear()
    batcher = Batcher(writes)
    callers = [asyncio.create_task(batcher.submit(n)) for n in range(2)]
    await wait_until(lambda: writes.batches, 30, "the write")

    callers[0].cancel()
    writes.may_go.set()

    assert await callers[1] == 10
    with pytest.raises(asyncio.CancelledError):
        await callers[0]
    assert writes.batches == [[0, 1]]

"""The end of a consumer: what the library lets out of it is not a cancel of ours."""

import asyncio
from typing import Any

import pytest

from tarsy_scoring.config.load import load_settings
from tarsy_scoring.kafka.clients import Consumer


class StoppingLikeTheLibrary:
    """Ends as `AIOKafkaConsumer.stop` does in the middle of a fetch that failed: with the cancel of its own task."""

    def __init__(self) -> None:
        self.is_stopping = asyncio.Event()
        self.may_end = asyncio.Event()
        self.is_closed = asyncio.Event()
        self._client = self

    async def close(self) -> None:
        self.is_closed.set()

    async def stop(self) -> None:
        self.is_stopping.set()
        await self.may_end.wait()
        raise asyncio.CancelledError


def consumer_around(library: Any) -> Consumer:
    consumer = Consumer(load_settings({}), [])
    consumer._consumer = library
    return consumer


async def test_a_cancel_inside_of_the_library_stays_there() -> None:
    """Whoever stops a consumer goes on with what comes next; what the library left out is done."""
    library = StoppingLikeTheLibrary()
    library.may_end.set()

    await consumer_around(library).stop()

    assert library.is_closed.is_set()


async def test_a_cancel_of_ours_comes_through() -> None:
    """A deadline over stopping holds."""
    library = StoppingLikeTheLibrary()
    stopping = asyncio.create_task(consumer_around(library).stop())
    await library.is_stopping.wait()

    stopping.cancel()

    with pytest.raises(asyncio.CancelledError):
        await stopping

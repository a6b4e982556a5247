"""The Faust consumer of scoring events ends with all that it started."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import faust
import pytest
from aiokafka.consumer.group_coordinator import CoordinatorGroupRebalance

from infrastructure import Topics
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.signals import consumer


async def test_a_cancel_during_a_slow_join_leaves_no_thread(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers answer a join late when a former member left without a word: here when Faust is stopping already."""
    before = set(threading.enumerate())
    loop, joining, is_stopping = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    answers: list[Callable[[], object]] = []  # each lets the brokers answer a join that has begun
    join, stop = CoordinatorGroupRebalance.perform_group_join, faust.App.stop
    monkeypatch.setattr(consumer, "STOP_WITHIN_S", 0)

    async def join_late(self: CoordinatorGroupRebalance) -> Any:
        """In the thread of the consumer, which has an event loop of its own."""
        answered = asyncio.Event()
        answers.append(partial(asyncio.get_running_loop().call_soon_threadsafe, answered.set))
        loop.call_soon_threadsafe(joining.set)
        if not is_stopping.is_set():
            await answered.wait()
        return await join(self)

    async def stop_during_a_join(self: faust.App) -> None:
        is_stopping.set()
        for answer in answers:
            loop.call_soon(answer)
        await stop(self)

    monkeypatch.setattr(CoordinatorGroupRebalance, "perform_group_join", join_late)
    monkeypatch.setattr(faust.App, "stop", stop_during_a_join)
    consuming = asyncio.create_task(consumer.consume(load_settings(topics.env), lambda _: None))
    await asyncio.wait_for(joining.wait(), 30)
    consuming.cancel()
    await asyncio.wait({consuming})

    assert set(threading.enumerate()) == before

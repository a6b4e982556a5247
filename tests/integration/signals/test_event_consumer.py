"""The Faust consumer of scoring events ends with all that it started."""

import asyncio
import threading
from typing import Any

import pytest
from aiokafka.consumer.group_coordinator import CoordinatorGroupRebalance

from infrastructure import Topics
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.signals import consumer


async def test_a_cancel_during_a_slow_join_leaves_no_thread(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers answer a join late when a former member left without a word."""
    before, begun, loop = set(threading.enumerate()), asyncio.Event(), asyncio.get_running_loop()
    join = CoordinatorGroupRebalance.perform_group_join
    monkeypatch.setattr(consumer, "STOP_WITHIN_S", 0)

    async def join_late(self: CoordinatorGroupRebalance) -> Any:
        loop.call_soon_threadsafe(begun.set)
        await asyncio.sleep(2)
        return await join(self)

    monkeypatch.setattr(CoordinatorGroupRebalance, "perform_group_join", join_late)
    consuming = asyncio.create_task(consumer.consume(load_settings(topics.env), lambda _: None))
    await asyncio.wait_for(begun.wait(), 30)
    consuming.cancel()
    await asyncio.wait({consuming})

    assert set(threading.enumerate()) == before

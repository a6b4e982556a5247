"""Topic functions close their connections however they end, and wait for brokers where that can help."""

import asyncio
import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from aiokafka import TopicPartition

from tarsy_scoring.config.load import load_settings
from tarsy_scoring.errors import StartRefused
from tarsy_scoring.kafka import connect, topics
from tarsy_scoring.kafka.connect import BrokerAway
from tarsy_scoring.kafka.topics import ensure_topics, read_topic

Answer = Callable[[], Any]


class Reader:
    """A consumer of a topic with one partition and three records; counts how often it is stopped."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.stopped = 0
        self.at = 0

    async def start(self) -> None:
        """Connects at once."""

    async def stop(self) -> None:
        self.stopped += 1

    def partitions_for_topic(self, _: str) -> set[int]:
        return {0}

    def assignment(self) -> set[TopicPartition]:
        return {TopicPartition("t", 0)}

    async def end_offsets(self, partitions: list[Any]) -> dict[Any, int]:
        return dict.fromkeys(partitions, 3)

    async def position(self, _: Any) -> int:
        return self.at

    def highwater(self, _: Any) -> int:
        return 3

    last_stable_offset = highwater

    async def getmany(self, place: Any, **_: Any) -> dict[Any, list[Any]]:
        offset, self.at = self.at, self.at + 1
        return {
            place: [
                SimpleNamespace(topic="t", partition=0, offset=offset, timestamp=0, key=None, value=None, headers=())
            ]
        }


async def test_brokers_that_go_away_in_the_middle_of_a_topic_end_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:

    class Silent(Reader):
        async def getmany(self, place: Any, **how: Any) -> dict[Any, list[Any]]:
            await asyncio.sleep(0)
            return await super().getmany(place, **how) if self.at == 0 else {}

    reader = Silent()
    monkeypatch.setattr(topics, "AIOKafkaConsumer", lambda *_, **__: reader)
    monkeypatch.setattr(topics, "SILENCE_S", 0.0, raising=False)
    read = []

    async def read_all() -> None:
        async for record in read_topic(load_settings({"SCORING_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}), "t"):
            read.append(record.offset)

    with pytest.raises(BrokerAway, match="cannot read topic t"):
        await asyncio.wait_for(read_all(), 30)
    assert (read, reader.stopped) == ([0], 1)


FENCED = "Unable to replicate the partition 1 time(s): All brokers are currently fenced."
TOO_FEW = "The target replication factor of 3 cannot be reached because only 1 broker(s) are registered."


@pytest.mark.parametrize(
    ("code", "said", "lasts"), [(38, FENCED, False), (41, "moved", False), (7, "late", False), (38, TOO_FEW, True)]
)
async def test_only_an_error_that_lasts_refuses_the_start(
    monkeypatch: pytest.MonkeyPatch, code: int, said: str, *, lasts: bool
) -> None:
    answers = [SimpleNamespace(topic_errors=[("t", *answer)]) for answer in ((code, said), (0, ""))]
    admin = AsyncMock(list_topics=AsyncMock(return_value=[]), create_topics=AsyncMock(side_effect=answers))
    monkeypatch.setattr(topics, "AIOKafkaAdminClient", lambda **_: admin)
    monkeypatch.setattr(connect, "RETRY_S", 0.0)
    env = {"SCORING_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1", "SCORING_CREATE_TOPICS": "true"}

    with pytest.raises(StartRefused) if lasts else contextlib.nullcontext():
        await ensure_topics(load_settings(env), ["t"])
    assert admin.create_topics.await_count == (1 if lasts else 2)

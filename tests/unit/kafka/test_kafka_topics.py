"""Topic functions close their connections however they end, and wait for brokers where that can help."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaConnectionError

from tarsy_scoring.config.load import load_settings
from tarsy_scoring.kafka import connect, topics
from tarsy_scoring.kafka.connect import BrokerAway
from tarsy_scoring.kafka.topics import ensure_topics, read_topic

Answer = Callable[[], Any]


class Admin(AIOKafkaAdminClient):  # type: ignore[misc]
    """An admin client that connects at once, answers with `answer`, and counts how often it is closed."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.is_asked = asyncio.Event()
        self.closed = 0

    async def start(self) -> None:
        """Connects at once."""

    async def list_topics(self) -> list[str]:
        self.is_asked.set()
        answer = self.answer()
        return list(await answer if asyncio.iscoroutine(answer) else answer)

    async def close(self) -> None:
        self.closed += 1


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

    async def getmany(self, place: Any, **_: Any) -> dict[Any, list[Any]]:
        offset, self.at = self.at, self.at + 1
        return {
            place: [
                SimpleNamespace(topic="t", partition=0, offset=offset, timestamp=0, key=None, value=None, headers=())
            ]
        }


def connected(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> Admin:
    admin = Admin(answer)
    monkeypatch.setattr(topics, "AIOKafkaAdminClient", lambda **_: admin)
    return admin


async def test_brokers_that_go_away_before_they_answer_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judging has begun by then, so only an error that waiting cannot cure ends the worker."""
    answers: list[Any] = [KafkaConnectionError("hung up"), ["mine"]]
    obstacles = [BrokerAway("no answer")]

    def answer() -> Any:
        if isinstance(given := answers.pop(0), Exception):
            raise given
        return given

    async def check_brokers(_: Any) -> None:
        raise obstacles.pop(0)

    admin = connected(monkeypatch, answer)
    monkeypatch.setattr(topics, "check_brokers", check_brokers)
    monkeypatch.setattr(connect, "RETRY_S", 0.0)

    await ensure_topics(load_settings({"SCORING_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}), ["mine"])

    assert (answers, obstacles, admin.closed) == ([], [], 2)


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

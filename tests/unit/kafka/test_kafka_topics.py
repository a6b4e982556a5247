"""Topic functions close their connections however they end, and wait for brokers where that can help."""

import asyncio
import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

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


class Admin:
    """Gives these answers to attempts to create the topic `t`: error codes with their messages."""

    def __init__(self, *answers: tuple[int, str]) -> None:
        self.answers = list(answers)

    async def start(self) -> None:
        """Connects at once."""

    stop = start

    async def list_topics(self) -> list[str]:
        return []

    async def create_topics(self, _: Any) -> Any:
        return SimpleNamespace(topic_errors=[("t", *self.answers.pop(0))])


PASSING = [(38, FENCED), (41, "not the controller"), (7, "timed out")]
LASTING = [(38, "factor of 3 cannot be reached because only 1 broker(s) are registered"), (29, "not allowed")]


@pytest.mark.parametrize("answer", PASSING + LASTING)
async def test_only_an_error_that_lasts_refuses_the_start(
    monkeypatch: pytest.MonkeyPatch, answer: tuple[int, str]
) -> None:
    admin = Admin(answer, (0, ""))
    monkeypatch.setattr(topics, "AIOKafkaAdminClient", lambda **_: admin)
    monkeypatch.setattr(connect, "RETRY_S", 0.0)
    env = {"SCORING_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1", "SCORING_CREATE_TOPICS": "true"}

    with pytest.raises(StartRefused) if answer in LASTING else contextlib.nullcontext():
        await ensure_topics(load_settings(env), ["t"])

    assert len(admin.answers) == (answer in LASTING)

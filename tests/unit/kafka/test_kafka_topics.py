"""Topic functions close their connections however they end, and wait for brokers where that can help."""

import contextlib
from itertools import chain, repeat
from types import SimpleNamespace
from unittest.mock import AsyncMock, create_autospec

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from tarsy_scoring.config.load import load_settings
from tarsy_scoring.errors import StartRefused
from tarsy_scoring.kafka import connect, topics
from tarsy_scoring.kafka.connect import BrokerAway
from tarsy_scoring.kafka.topics import ensure_topics, read_topic

PARTITION = TopicPartition("t", 0)


async def test_brokers_that_go_away_in_the_middle_of_a_topic_end_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic has one partition with three records, of which the first arrives."""
    first = SimpleNamespace(topic="t", partition=0, offset=0, timestamp=0, key=None, value=None, headers=())
    reader = create_autospec(AIOKafkaConsumer, instance=True)
    reader.partitions_for_topic.return_value = {0}
    reader.end_offsets.return_value = {PARTITION: 3}
    reader.highwater.return_value = reader.last_stable_offset.return_value = 3
    reader.position.return_value = 1
    reader.getmany.side_effect = chain([{PARTITION: [first]}], repeat({}))
    monkeypatch.setattr(topics, "AIOKafkaConsumer", lambda *_, **__: reader)
    monkeypatch.setattr(topics, "has_topic", AsyncMock(return_value=True))
    monkeypatch.setattr(topics, "SILENCE_S", 0.0)

    records = read_topic(load_settings({"SCORING_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}), "t")
    assert (await anext(records)).offset == 0
    with pytest.raises(BrokerAway, match="cannot read topic t"):
        await anext(records)
    reader.stop.assert_awaited_once()


FENCED = "Unable to replicate the partition 1 time(s): All brokers are currently fenced."
TOO_FEW = "The target replication factor of 3 cannot be reached because only 1 broker(s) are registered."


@pytest.mark.parametrize(
    ("code", "said", "lasts"), [(38, FENCED, False), (41, "moved", False), (7, "late", False), (38, TOO_FEW, True)]
)
async def test_only_an_error_that_lasts_refuses_the_start(
    monkeypatch: pytest.MonkeyPatch, code: int, said: str, *, lasts: bool
) -> None:
    answers = [SimpleNamespace(topic_errors=[("t", *answer)]) for answer in ((code, said), (0, ""))]
    admin = AsyncMock(
        list_topics=AsyncMock(side_effect=[[], [], [], ["t"]]), create_topics=AsyncMock(side_effect=answers)
    )
    monkeypatch.setattr(topics, "AIOKafkaAdminClient", lambda **_: admin)
    monkeypatch.setattr(connect, "RETRY_S", 0.0)
    monkeypatch.setattr(topics, "LISTED_WAIT_S", 0.0)
    env = {"SCORING_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1", "SCORING_CREATE_TOPICS": "true"}

    with pytest.raises(StartRefused) if lasts else contextlib.nullcontext():
        await ensure_topics(load_settings(env), ["t"])
    assert admin.create_topics.await_count == (1 if lasts else 2)

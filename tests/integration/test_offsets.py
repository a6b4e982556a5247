"""Offsets with holes: what a topic has is asked of the topic, and not of its numbers."""

import uuid

import pytest
from aiokafka import AIOKafkaProducer

from infrastructure import Kafka
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.kafka.topics import ensure_topics, first_offset


async def test_the_mark_of_a_transaction_is_no_record(kafka: Kafka) -> None:
    if kafka.name == "tansu":
        pytest.skip("this broker has no transactions")
    topic = f"holes-{uuid.uuid4().hex[:8]}"
    env = {"SCORING_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers, "SCORING_CREATE_TOPICS": "true"}
    settings = load_settings(env | {"SCORING_TOPIC_PARTITIONS": "1"})
    await ensure_topics(settings, [topic])
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=topic) as producer:
        for _ in range(2):
            async with producer.transaction():
                await producer.send_and_wait(topic, b"x")

    assert [await first_offset(settings, topic, 0, since) for since in range(4)] == [0, 2, 2, None]

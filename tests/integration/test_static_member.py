"""A consumer that is a static member of its group keeps its place while it restarts."""

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from infrastructure import Kafka, Topics
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.kafka.consumer import Consumer
from tarsy_scoring_lab.broker import EmbeddedTansu


async def members(topics: Topics) -> int:
    admin = AIOKafkaAdminClient(bootstrap_servers=topics.bootstrap_servers)
    await admin.start()
    try:
        [answer] = await admin.describe_consumer_groups([topics.group])
        return len(answer.groups[0][-1])
    finally:
        await admin.close()


@pytest.mark.parametrize(
    ("names", "while_one_restarts"),
    [(("intake-0", "intake-1"), 2), (("", ""), 1)],
    ids=["static members", "dynamic members"],
)
async def test_a_static_member_stays_in_its_group_while_it_restarts(
    kafka: Kafka, topics: Topics, names: tuple[str, str], while_one_restarts: int
) -> None:
    if kafka.name == EmbeddedTansu.name:
        pytest.skip("Tansu has no static members")
    first, second = (
        Consumer(load_settings(topics.env | {"SCORING_KAFKA_GROUP_INSTANCE_ID": name}), [topics.session_completed])
        for name in names
    )
    await first.start()
    await second.start()
    try:
        await first.stop()
        assert await members(topics) == while_one_restarts
        await first.start()
        assert await members(topics) == 2
    finally:
        await first.stop()
        await second.stop()

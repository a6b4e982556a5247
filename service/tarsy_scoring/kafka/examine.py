"""
Asks the brokers about topics: size, replicas, configuration, and what this login may do.

Nothing is written and no group is joined.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    NotCoordinatorForGroupError,
    TopicAuthorizationFailedError,
)

from tarsy_scoring.kafka.connect import connected

FETCH_S = 1.0
COORDINATOR_RETRY_S = 0.5
_NO_COORDINATOR_YET = (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    NotCoordinatorForGroupError,
)


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """
    A topic.

    Args:
        replicas: Fewest replicas that any partition has.
        in_sync: Fewest replicas in sync that any partition has.
        config: Configuration by name; None: this login may not read it.
    """

    name: str
    partitions: int
    replicas: int
    in_sync: int
    config: Mapping[str, str] | None


async def read_topics(options: Mapping[str, Any], names: Collection[str]) -> list[TopicFacts]:
    """
    Read the topics with these names that exist and are visible to this login.

    Args:
        options: The result of `connection_options`.

    Raises:
        BrokerAway: The brokers did not answer.
    """
    async with connected(AIOKafkaAdminClient(**options), options, "read the topics") as admin:
        # All topics: brokers may create one that is asked for by name.
        found = [topic for topic in await admin.describe_topics() if topic["topic"] in names]
        wanted = [ConfigResource(ConfigResourceType.TOPIC, topic["topic"]) for topic in found]
        answers = await admin.describe_configs(wanted) if wanted else []
    configs = _configs(answers)
    facts = {topic["topic"]: _facts(topic, configs.get(topic["topic"])) for topic in found}
    return [facts[name] for name in names if name in facts]


def _facts(topic: Mapping[str, Any], config: Mapping[str, str] | None) -> TopicFacts:
    partitions = topic["partitions"]
    replicas, in_sync = (min((len(p[what]) for p in partitions), default=0) for what in ("replicas", "isr"))
    return TopicFacts(topic["topic"], len(partitions), replicas, in_sync, config)


async def may_read(options: Mapping[str, Any], topic: str) -> bool:
    """
    Whether this login may fetch from a topic that exists; False for one that it may not see. Raises:
    BrokerAway.
    """
    consumer = AIOKafkaConsumer(**options, group_id=None, enable_auto_commit=False, fetch_max_wait_ms=100)
    async with connected(consumer, options, f"read the topic {topic}"):
        if topic not in await consumer.topics():
            return False
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        try:
            await consumer.seek_to_end(partition)
            await consumer.getmany(partition, timeout_ms=int(FETCH_S * 1000), max_records=1)
        except TopicAuthorizationFailedError:
            return False
    return True


async def may_use_group(options: Mapping[str, Any], group: str) -> bool:
    """
    Whether this login may see a consumer group. Waits for the coordinator without a limit. Raises:
    BrokerAway.
    """
    async with connected(AIOKafkaAdminClient(**options), options, f"look at the group {group}") as admin:
        while True:
            try:
                await admin.list_consumer_group_offsets(group)
                return True
            except GroupAuthorizationFailedError:
                return False
            except _NO_COORDINATOR_YET:  # the first use of groups in a cluster creates a topic
                await asyncio.sleep(COORDINATOR_RETRY_S)


def has_codecs() -> bool:
    """Whether this installation can read batches of every codec of Kafka."""
    return find_spec("cramjam") is not None  # for snappy, lz4 and zstd; gzip needs nothing


def _configs(answers: Iterable[Any]) -> dict[str, dict[str, str]]:
    """Settings by topic, where the broker gave them."""
    return {
        name: {entry[0]: entry[1] or "" for entry in entries}
        for answer in answers
        for code, _, _, name, entries in answer.resources
        if code == 0
    }

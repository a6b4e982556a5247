"""
What the brokers say about topics: size, replicas, configuration, and what this login may do with them.

Nothing is written and no group is joined.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.codec import (
    gzip_decode,
    gzip_encode,
    lz4_decode,
    lz4_encode,
    snappy_decode,
    snappy_encode,
    zstd_decode,
    zstd_encode,
)
from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    KafkaError,
    NotCoordinatorForGroupError,
    TopicAuthorizationFailedError,
)
from aiokafka.protocol.produce import ProduceRequest

from tarsy_scoring.kafka.connect import BrokerAway, end_client, start_client

FETCH_S = 1.0
COORDINATOR_RETRY_S = 0.5
REFUSED = (TopicAuthorizationFailedError.errno, GroupAuthorizationFailedError.errno)
# The partition to which a write is tried: no topic has as many, and brokers check the permission first.
NO_PARTITION = 2**31 - 1
_NO_COORDINATOR_YET = (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    NotCoordinatorForGroupError,
)
_CODECS = {
    "gzip": (gzip_encode, gzip_decode),
    "snappy": (snappy_encode, snappy_decode),
    "lz4": (lz4_encode, lz4_decode),
    "zstd": (zstd_encode, zstd_decode),
}


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """
    A topic.

    Args:
        replicas: Number of replicas of the partition that has fewest.
        in_sync: Number of replicas in sync of the partition that has fewest.
        config: Its configuration by name; None: this login may not read it.
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
    async with _admin(options, "read the topics") as admin:
        # All topics: brokers may create one that is asked for by name.
        found = [topic for topic in await admin.describe_topics() if topic["topic"] in names]
        wanted = [ConfigResource(ConfigResourceType.TOPIC, topic["topic"]) for topic in found]
        answers = await admin.describe_configs(wanted) if wanted else []
    configs = {
        name: {entry[0]: entry[1] or "" for entry in entries}
        for answer in answers
        for code, _, _, name, entries in answer.resources
        if code == 0
    }
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
    async with _started(consumer, options, f"read the topic {topic}"):
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


async def may_write(options: Mapping[str, Any], topic: str) -> bool:
    """
    Whether this login may write to a topic: asks to write nothing to a partition that does not exist.

    Raises:
        BrokerAway: The brokers did not answer.
    """
    login = {name: value for name, value in options.items() if name != "bootstrap_servers"}
    host, port, _ = collect_hosts(options["bootstrap_servers"], randomize=False)[0]
    try:
        connection = await create_conn(host, port, **login)
        try:
            answer = await connection.send(ProduceRequest(None, -1, 1000, [(topic, [(NO_PARTITION, b"")])]))
        finally:
            connection.close()
    except (KafkaError, OSError) as error:
        raise BrokerAway(f"cannot ask for the permission to write to {topic}: {error!r}") from error
    return all(partition[1] not in REFUSED for _, partitions in answer.topics for partition in partitions)


async def may_use_group(options: Mapping[str, Any], group: str) -> bool:
    """
    Whether this login may see a consumer group. Waits for its coordinator without a limit. Raises:
    BrokerAway.
    """
    async with _admin(options, f"look at the group {group}") as admin:
        while True:
            try:
                await admin.list_consumer_group_offsets(group)
                return True
            except GroupAuthorizationFailedError:
                return False
            except _NO_COORDINATOR_YET:  # the first use of groups in a cluster creates a topic
                await asyncio.sleep(COORDINATOR_RETRY_S)


def unreadable_codecs() -> list[str]:
    """Codecs of Kafka that this installation cannot read."""
    text = b"a batch of records"
    unreadable = []
    for name, (encode, decode) in _CODECS.items():
        try:
            is_read = bytes(decode(encode(text))) == text
        except Exception:  # noqa: BLE001 - without its library a codec fails in its own way
            is_read = False
        if not is_read:
            unreadable.append(name)
    return unreadable


@asynccontextmanager
async def _admin(options: Mapping[str, Any], purpose: str) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(**options)
    async with _started(client, options, purpose):
        yield client


@asynccontextmanager
async def _started(client: Any, options: Mapping[str, Any], purpose: str) -> AsyncIterator[None]:
    try:
        await start_client(client, options)
        try:
            yield
        finally:
            await end_client(client)
    except KafkaError as error:
        raise BrokerAway(f"cannot {purpose}: {error!r}") from error

"""
Asks the brokers about topics: size and configuration.

Nothing is written and no group is joined.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tarsy_scoring.kafka.connect import connected


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """
    A topic.

    Args:
        config: Configuration by name; None: this login may not read it.
    """

    name: str
    partitions: int
    config: Mapping[str, str] | None


async def read_topics(options: Mapping[str, Any], names: Collection[str]) -> list[TopicFacts]:
    """
    Read the topics with these names that exist and are visible to this login, by name.

    Args:
        options: The result of `connection_options`.

    Raises:
        BrokerAway: The brokers did not answer.
    """
    async with connected(AIOKafkaAdminClient(**options), options, "read the topics") as admin:
        # All topics: brokers may create one that is asked for by name.
        every = await admin.describe_topics()
        found = sorted((t for t in every if t["topic"] in names), key=lambda t: str(t["topic"]))
        wanted = [ConfigResource(ConfigResourceType.TOPIC, topic["topic"]) for topic in found]
        answers = await admin.describe_configs(wanted) if wanted else []
    configs = {
        name: {entry[0]: entry[1] or "" for entry in entries}
        for answer in answers
        for code, _, _, name, entries in answer.resources
        if code == 0  # else the broker did not give them
    }
    return [TopicFacts(t["topic"], len(t["partitions"]), configs.get(t["topic"])) for t in found]


def has_codecs() -> bool:
    """Whether this installation can read batches of every codec of Kafka."""
    return find_spec("cramjam") is not None  # for snappy, lz4 and zstd; gzip needs nothing

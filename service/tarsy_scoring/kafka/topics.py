"""
Topics outside of a consumer group: create them, look for one, read one to the end, follow one.

Each function connects for itself and closes the connection with the answer. A `Tail` stays connected.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Literal

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, KafkaTimeoutError, TopicAlreadyExistsError, for_code

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import StartRefused
from tarsy_scoring.kafka.connect import BrokerAway, connected, end_client, start_client, wait_out
from tarsy_scoring.kafka.consumer import Record
from tarsy_scoring.kafka.partitions import READING, is_about_batch, known_position, stable_end
from tarsy_scoring.kafka.security import connection_options

log = structlog.get_logger()

COMPACTED = {"cleanup.policy": "compact", "segment.ms": "3600000"}  # Kafka compacts closed segments only
FOLLOW_METADATA_MS = 5_000  # delay until a tail sees new partitions, or a topic that was created again
SILENCE_S = 30.0  # longest wait for the next record while a topic is read to the end
LISTED_TRIES, LISTED_WAIT_S = 20, 0.1
TAKE_LIMIT = 2000
TAKE_S = 0.5  # longest delay until `Tail.follow` notices that it should stop


async def ensure_topics(settings: Settings, topics: Sequence[str], compacted: Sequence[str] = ()) -> None:
    """
    Wait for the brokers, then check that the topics exist; create them if `SCORING_CREATE_TOPICS` allows it.

    Args:
        compacted: More topics, created with log compaction: the newest message of each key is kept.

    Raises:
        StartRefused: Topics are missing, with their names and the remedy.
    """
    options = connection_options(settings)
    while True:
        try:
            admin = AIOKafkaAdminClient(**options)
            await start_client(admin, options)
            try:
                await _ensure(admin, settings, topics, compacted)
                return
            finally:
                await end_client(admin)
        except BrokerAway as away:
            await wait_out(away, "topics")
        except KafkaError as error:
            why = f"cannot check the topics at {settings.require_kafka()}: {error!r}"
            if not error.retriable:
                raise StartRefused(why) from error
            await wait_out(BrokerAway(why), "topics")


async def _ensure(
    admin: AIOKafkaAdminClient, settings: Settings, topics: Sequence[str], compacted: Sequence[str]
) -> None:
    missing = sorted({*topics, *compacted} - set(await admin.list_topics()))
    if not missing:
        return
    if not settings.create_topics:
        raise StartRefused(
            f"missing topics: {', '.join(missing)}; create them, or let the service do it: "
            "SCORING_CREATE_TOPICS=true"
        )
    size = (settings.topic_partitions, settings.topic_replication)
    new = [NewTopic(t, *size, topic_configs=COMPACTED if t in compacted else {}) for t in missing]
    response = await admin.create_topics(new)
    for topic, code, *message in response.topic_errors:
        if code not in (0, TopicAlreadyExistsError.errno):
            why = f"cannot create topic {topic}: error {code} {message[0] if message else ''}"
            # Brokers that have just started, or froze, are fenced until their next heartbeat.
            raise (BrokerAway if for_code(code).retriable or "fenced" in why else StartRefused)(why)
    log.info("kafka.topics_created", topics=missing)
    for _ in range(LISTED_TRIES):  # brokers list a new topic a moment later, and readers look there
        if set(missing) <= set(await admin.list_topics()):
            return
        await asyncio.sleep(LISTED_WAIT_S)


# --- reading -------------------------------------------------------------------------------------------


async def has_topic(options: Mapping[str, Any], topic: str) -> bool:
    """
    Whether the topic exists and is visible to us. Each reader asks this first, by a list of all topics: brokers
    create one that is asked for by name, with one partition.

    Args:
        options: The result of `connection_options`.

    Raises:
        BrokerAway: The brokers did not answer.
    """
    async with connected(AIOKafkaAdminClient(**options), options, f"look for the topic {topic}") as admin:
        return topic in await admin.list_topics()


async def read_topic(settings: Settings, topic: str) -> AsyncIterator[Record]:
    """
    All records of a topic, from the beginning to the end it has at the start of the call. An open transaction
    is the end of a partition. Leaves out the rest of a partition behind a batch that cannot be read.

    Raises:
        BrokerAway: The brokers cannot be reached or do not answer.
        StartRefused: There is no such topic.
    """
    # "earliest" instead of a seek: a seek races with the client's own reset to "latest", and if it loses, the
    # partition reads as empty.
    options = connection_options(settings)
    if not await has_topic(options, topic):
        raise StartRefused(f"there is no topic {topic}")
    async with connected(_reader(options, topic), options, f"read topic {topic}") as reader:
        partitions = [TopicPartition(topic, p) for p in sorted(reader.partitions_for_topic(topic) or ())]
        ends = await reader.end_offsets(partitions)
        for partition in (p for p in partitions if ends[p] > 0):
            async for record in _read_partition(reader, partition, ends[partition]):
                yield record


async def _read_partition(
    reader: AIOKafkaConsumer, partition: TopicPartition, end: int
) -> AsyncIterator[Record]:
    answered_s, is_end_known = time.monotonic(), False
    while not is_end_known or (await known_position(reader, partition) or 0) < end:
        try:
            found = await reader.getmany(partition, timeout_ms=1000, max_records=TAKE_LIMIT)
        except Exception as error:
            if not is_about_batch(error):
                raise
            where = {"topic": partition.topic, "partition": partition.partition}
            log.warning(
                "kafka.batch_skipped", **where, reason=repr(error), effect="the rest of it is not read"
            )
            return
        if not is_end_known:
            # Tansu reports the start of the last batch as the end of the partition; fetch answers are
            # right.
            end, is_end_known = max(end, stable_end(reader, partition) or 0), True
        for record in found.get(partition, ()):
            if record.offset < end:
                yield Record.of(record)
        if found:
            answered_s = time.monotonic()
        elif time.monotonic() > answered_s + SILENCE_S:
            raise KafkaTimeoutError("records are missing at the end of the topic, and no more arrive")


def _reader(
    options: Mapping[str, Any], *topics: str, begin: Literal["earliest", "latest"] = "earliest", **more: Any
) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(*topics, **options, **READING, group_id=None, auto_offset_reset=begin, **more)


# --- following -----------------------------------------------------------------------------------------


class Tail:
    """
    Follows all partitions of a topic: for the demo and the gateway.

    Survives a broker that restarts and a topic that is created again. Started at `now`, it may miss records
    that are written during the start, or to a new partition before it is seen: use another source for those.

    Args:
        options: The result of `connection_options`, built once for all tails: the files may be missing later.
        since: Where to begin, and where to continue if the position is lost.
    """

    def __init__(
        self, options: Mapping[str, Any], topic: str, *, since: Literal["beginning", "now"] = "beginning"
    ) -> None:
        self._options = options
        self._topic = topic
        begin: Literal["earliest", "latest"] = "latest" if since == "now" else "earliest"
        self._reader = _reader(options, topic, begin=begin, metadata_max_age_ms=FOLLOW_METADATA_MS)

    async def start(self) -> None:
        """Raises: BrokerAway: The brokers cannot be reached, refuse us, or have no such topic."""
        if not await has_topic(self._options, self._topic):
            raise BrokerAway(f"cannot follow the topic {self._topic}: it does not exist")
        try:
            await start_client(self._reader, self._options)
        except KafkaError as error:
            raise BrokerAway(f"cannot follow the topic {self._topic}: {error!r}") from error

    async def take(self, wait_s: float) -> list[Record]:
        """
        Records that have arrived, waiting at most `wait_s` for the first. Must not be cancelled.

        Raises:
            BrokerAway: This tail cannot go on, or cannot read a batch; create a new one.
        """
        try:
            found = await self._reader.getmany(timeout_ms=int(wait_s * 1000), max_records=TAKE_LIMIT)
        except Exception as error:
            raise BrokerAway(f"cannot follow the topic {self._topic}: {error!r}") from error
        return [Record.of(r) for records in found.values() for r in records]

    async def follow(self, take: Callable[[Sequence[Record]], None], stopping: asyncio.Event) -> None:
        """
        Start, pass records to `take` as they arrive until `stopping` is set, then stop.

        Args:
            take: Called with an empty list where no record arrived within `TAKE_S`.

        Raises:
            BrokerAway: This tail cannot go on; create a new one.
        """
        try:
            await self.start()
            while not stopping.is_set():
                take(await self.take(TAKE_S))
                await asyncio.sleep(0)
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Close the connections; a tail that was not started is left alone."""
        await end_client(self._reader)

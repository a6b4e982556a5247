"""
Topics outside of a consumer group: create them, look for one, read one to its end, follow one.

Each function connects for itself and closes the connection with its answer. A `Tail` stays connected.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Literal

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import (
    KafkaError,
    KafkaTimeoutError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
)

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import StartRefused
from tarsy_scoring.kafka.batches import find_batch
from tarsy_scoring.kafka.connect import BrokerAway, end_client, raise_if_away, start_client, wait_out
from tarsy_scoring.kafka.consumer import Record
from tarsy_scoring.kafka.partitions import PartitionReader, Unreadable
from tarsy_scoring.kafka.security import connection_options

log = structlog.get_logger()

COMPACTED = {"cleanup.policy": "compact", "segment.ms": "3600000"}  # Kafka compacts closed segments only
FOLLOW_METADATA_MS = 5_000  # delay until a tail sees new partitions, or a topic that was created again
SILENCE_S = 30.0  # longest wait for the next record while a topic is read to its end
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
            async with _started(AIOKafkaAdminClient(**options), options) as admin:
                try:
                    await _ensure(admin, settings, topics, compacted)
                    return
                except KafkaError as error:
                    await raise_if_away(options, error)
                    raise
        except BrokerAway as away:
            await wait_out(away, "topics")
        except KafkaError as error:
            raise StartRefused(f"cannot check the topics at {settings.require_kafka()}: {error!r}") from error


async def _ensure(
    admin: AIOKafkaAdminClient, settings: Settings, topics: Sequence[str], compacted: Sequence[str]
) -> None:
    missing = sorted({*topics, *compacted} - set(await admin.list_topics()))
    if not missing:
        return
    if not settings.create_topics:
        raise StartRefused(
            f"missing topics: {', '.join(missing)}; create them, or let the service do it: SCORING_CREATE_TOPICS=true"
        )
    size = (settings.topic_partitions, settings.topic_replication)
    new = [NewTopic(t, *size, topic_configs=COMPACTED if t in compacted else {}) for t in missing]
    response = await admin.create_topics(new)
    for topic, code, *message in response.topic_errors:
        if code not in (0, TopicAlreadyExistsError.errno):
            raise StartRefused(f"cannot create topic {topic}: error {code} {message[0] if message else ''}")
    log.info("kafka.topics_created", topics=missing)


# --- reading -------------------------------------------------------------------------------------------


async def has_topic(options: Mapping[str, Any], topic: str) -> bool:
    """
    Whether the topic exists and is visible to us. Lists all topics: brokers may create one that is asked for
    by name.

    Args:
        options: The result of `connection_options`.

    Raises:
        BrokerAway: The brokers did not answer.
    """
    async with _connected(AIOKafkaAdminClient(**options), options, f"look for the topic {topic}") as admin:
        return topic in await admin.list_topics()


async def read_topic(settings: Settings, topic: str) -> AsyncIterator[Record]:
    """
    All records of a topic, from its beginning to the end it has at the start of the call. Skips what cannot
    be read, as `Tail` does.

    Raises:
        BrokerAway: The brokers cannot be reached or do not answer.
        StartRefused: There is no such topic.
    """
    # "earliest" instead of a seek: a seek races with the client's own reset to "latest", and if it loses, the
    # partition reads as empty.
    options = connection_options(settings)
    async with _connected(_reader(options, topic), options, f"read topic {topic}") as reader:
        partitions = [TopicPartition(topic, p) for p in sorted(reader.partitions_for_topic(topic) or ())]
        if not partitions:
            raise StartRefused(f"there is no topic {topic}")
        ends, reading = await reader.end_offsets(partitions), PartitionReader(reader)
        for partition in (p for p in partitions if ends[p] > 0):
            end, answered_s = None, time.monotonic()
            while end is None or await _position(reader, partition) < end:
                records, unreadable = await reading.take(1.0, TAKE_LIMIT, skip={*partitions} - {partition})
                # Tansu reports the start of the last batch as the end of the partition; its fetch answers are
                # right.
                end = max(ends[partition], reader.highwater(partition) or 0) if end is None else end
                for record in records:
                    if record.offset < end:
                        yield Record.of(record)
                for found in unreadable:
                    await _skip(options, reader, found)
                now_s = time.monotonic()
                if records or unreadable:
                    answered_s = now_s
                elif now_s > answered_s + SILENCE_S:
                    raise KafkaTimeoutError("records are missing at the end of the topic, and no more arrive")


async def skip_to_end(settings: Settings, group: str, topic: str) -> None:
    """
    Commit the present end of each partition for a group that has no members at the moment.

    Raises:
        BrokerAway: Nothing was committed: the brokers cannot be reached, or the group has a member.
    """
    options, purpose = connection_options(settings), f"skip records of topic {topic}"
    async with _connected(_reader(options, topic), options, purpose) as reader:
        ends = await reader.end_offsets(
            [TopicPartition(topic, p) for p in reader.partitions_for_topic(topic) or ()]
        )
    # Assigned by hand, it does not join the group.
    client = AIOKafkaConsumer(**options, group_id=group, enable_auto_commit=False)
    client.assign(list(ends))
    async with _connected(client, options, purpose):
        await client.commit(ends)


async def _skip(options: Mapping[str, Any], reader: AIOKafkaConsumer, found: Unreadable) -> None:
    """Move the position behind a batch that cannot be read. Raises: KafkaError: It is about no batch."""
    if isinstance(found.error, TopicAuthorizationFailedError):
        raise found.error
    batch = None if found.offset is None else await find_batch(options, found.partition, found.offset)
    if batch is not None:
        reader.seek(found.partition, batch.end)
    else:
        await reader.seek_to_end(found.partition)
    log.warning(
        "kafka.batch_skipped",
        topic=found.partition.topic,
        partition=found.partition.partition,
        offset=found.offset,
        end=None if batch is None else batch.end,
        reason=repr(found.error),
    )


async def _position(reader: AIOKafkaConsumer, partition: TopicPartition) -> int:
    """The next offset to read. Raises: KafkaTimeoutError: The brokers did not answer with the first one."""
    try:
        async with asyncio.timeout(SILENCE_S):
            return int(await reader.position(partition))
    except TimeoutError as error:
        raise KafkaTimeoutError("the brokers do not answer with the first offset") from error


def _reader(
    options: Mapping[str, Any], *topics: str, begin: Literal["earliest", "latest"] = "earliest", **more: Any
) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        *topics, **options, group_id=None, enable_auto_commit=False, auto_offset_reset=begin, **more
    )


@contextlib.asynccontextmanager
async def _started(client: Any, options: Mapping[str, Any]) -> AsyncIterator[Any]:
    """The client, started; closed at the end of the block."""
    await start_client(client, options)
    try:
        yield client
    finally:
        await end_client(client)


@contextlib.asynccontextmanager
async def _connected(client: Any, options: Mapping[str, Any], purpose: str) -> AsyncIterator[Any]:
    """
    The client, started; closed at the end of the block.

    Raises:
        BrokerAway: It, or the block, failed; the message names the `purpose`.
    """
    try:
        async with _started(client, options):
            yield client
    except KafkaError as error:
        raise BrokerAway(f"cannot {purpose}: {error!r}") from error


# --- following -----------------------------------------------------------------------------------------


class Tail:
    """
    Follows all partitions of a topic: for the demo and the gateway.

    Survives a broker that restarts and a topic that is created again. Logs and skips a batch that cannot be
    read; if its end is unknown, all that its partition holds. Started at `now`, it may miss records that are
    written during the start, or to a new partition before it is seen: use another source for those.

    Args:
        options: The result of `connection_options`, built once for all tails: its files may be missing later.
        since: Where to begin, and where to continue if the position is lost.
    """

    def __init__(
        self, options: Mapping[str, Any], topic: str, *, since: Literal["beginning", "now"] = "beginning"
    ) -> None:
        self._options = options
        self._topic = topic
        begin: Literal["earliest", "latest"] = "latest" if since == "now" else "earliest"
        self._reader = _reader(options, topic, begin=begin, metadata_max_age_ms=FOLLOW_METADATA_MS)
        self._partitions = PartitionReader(self._reader, is_prompt=True)

    async def start(self) -> None:
        """Raises: BrokerAway: The brokers cannot be reached, refuse us, or have no such topic."""
        try:
            await start_client(self._reader, self._options)
        except KafkaError as error:
            raise BrokerAway(f"cannot follow the topic {self._topic}: {error!r}") from error

    async def take(self, wait_s: float) -> list[Record]:
        """
        Records that have arrived, waiting at most `wait_s` for the first. Must not be cancelled.

        Raises:
            BrokerAway: This tail cannot go on; create a new one.
        """
        try:
            records, unreadable = await self._partitions.take(wait_s, TAKE_LIMIT)
            for found in unreadable:
                await _skip(self._options, self._reader, found)
        except KafkaError as error:
            raise BrokerAway(f"cannot follow the topic {self._topic}: {error!r}") from error
        return [Record.of(r) for r in records]

    async def follow(
        self, take: Callable[[Sequence[Record]], None], stopping: asyncio.Event, gather_s: float = 0.0
    ) -> None:
        """
        Start, pass records to `take` as they arrive until `stopping` is set, then stop.

        Args:
            take: Called with an empty list where no record arrived within `TAKE_S`.
            gather_s: Pause after each batch, in which records gather for one call.

        Raises:
            BrokerAway: This tail cannot go on; create a new one.
        """
        try:
            await self.start()
            while not stopping.is_set():
                take(await self.take(TAKE_S))
                await asyncio.sleep(gather_s)
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Close its connections; a tail that was not started is left alone."""
        await end_client(self._reader)

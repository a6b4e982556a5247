"""
Topics as seen from outside of any group: whether they are there, what they hold and how far a group is in them.

Each question is asked over connections of its own, which end with the answer. A `Tail` stays and follows.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, KafkaTimeoutError, TopicAlreadyExistsError

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import StartRefused
from tarsy_scoring.kafka.clients import BrokerAway, Record, end_client, raise_if_away, start_client, wait_out
from tarsy_scoring.kafka.security import connection_options

log = structlog.get_logger()

COMPACTED = {"cleanup.policy": "compact", "segment.ms": "3600000"}  # only closed segments are compacted
FOLLOW_METADATA_MS = 5_000  # how late a tail may learn of new partitions, or of a topic made anew
SILENCE_S = 30.0  # whoever reads a topic to its end waits no longer for the next record
FIRST_RECORD_MS = 5_000  # a record that is there comes within some milliseconds


async def ensure_topics(settings: Settings, topics: Sequence[str], compacted: Sequence[str] = ()) -> None:
    """
    Wait for the broker, loudly; then see that the topics are there, or make them where that is allowed.

    Args:
        compacted: More topics, which are made so that the newest message of every key stays.

    Raises:
        StartRefused: Some are missing, with their names and what to do.
    """
    options = connection_options(settings)
    while True:
        admin = await _admin(settings, options)
        try:
            await _ensure(admin, settings, topics, compacted)
            return
        except KafkaError as error:
            try:
                await raise_if_away(options, error)
            except BrokerAway as away:
                await wait_out(away, "topics")
            else:
                where = settings.require_kafka()
                raise StartRefused(f"cannot look after the topics at {where}: {error!r}") from error
        finally:
            await end_client(admin)


async def _ensure(
    admin: AIOKafkaAdminClient, settings: Settings, topics: Sequence[str], compacted: Sequence[str]
) -> None:
    missing = sorted({*topics, *compacted} - set(await admin.list_topics()))
    if missing and settings.create_topics:
        await _create(admin, settings, missing, compacted)
        log.info("kafka.topics_created", topics=missing)
    elif missing:
        raise StartRefused(
            f"missing topics: {', '.join(missing)}; create them, or let the service do it: SCORING_CREATE_TOPICS=true"
        )


async def _admin(settings: Settings, options: Mapping[str, Any]) -> AIOKafkaAdminClient:
    while True:
        admin = AIOKafkaAdminClient(**options)
        try:
            await start_client(admin, options)
            return admin
        except BrokerAway as error:
            await wait_out(error, "topics")
        except KafkaError as error:
            raise StartRefused(f"the brokers at {settings.require_kafka()} refuse us: {error!r}") from error


async def _create(
    admin: AIOKafkaAdminClient, settings: Settings, topics: Sequence[str], compacted: Sequence[str]
) -> None:
    size = (settings.topic_partitions, settings.topic_replication)
    new = [NewTopic(t, *size, topic_configs=COMPACTED if t in compacted else {}) for t in topics]
    response = await admin.create_topics(new)
    for topic, code, *message in response.topic_errors:
        if code not in (0, TopicAlreadyExistsError.errno):
            raise StartRefused(f"cannot create topic {topic}: error {code} {message[0] if message else ''}")


# --- questions -----------------------------------------------------------------------------------------


async def has_topic(options: Mapping[str, Any], topic: str) -> bool:
    """
    Whether we may see this topic. All are listed: brokers may make a topic that is asked for by its name.

    Args:
        options: Those of `connection_options`.

    Raises:
        BrokerAway: Nobody can say.
    """
    async with _asking(AIOKafkaAdminClient(**options), options, f"look for the topic {topic}") as admin:
        return topic in await admin.list_topics()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a group stands in one partition, and the offsets between which that has records."""

    committed: int | None
    begin: int
    end: int

    @property
    def behind(self) -> int:
        """Records that it has not committed and that are still there."""
        return self.end - max(self.committed or 0, self.begin)


async def read_places(settings: Settings, group: str, topics: Sequence[str]) -> dict[tuple[str, int], Place]:
    """
    How far a group is, by topic and partition.

    Raises:
        BrokerAway: Nobody can say.
    """
    options, question = connection_options(settings), f"ask how far the group {group} is"
    async with _asking(AIOKafkaAdminClient(**options), options, question) as admin:
        committed = await admin.list_consumer_group_offsets(group)
    # A reader of subscribed topics fetches by itself: from "latest" on that is nothing.
    async with _asking(_reader(options, *topics, begin="latest"), options, question) as reader:
        partitions = [TopicPartition(t, p) for t in topics for p in reader.partitions_for_topic(t) or ()]
        begins, ends = await reader.beginning_offsets(partitions), await reader.end_offsets(partitions)
    stand = {p: committed[p].offset if p in committed else None for p in partitions}
    return {(p.topic, p.partition): Place(stand[p], begins[p], ends[p]) for p in partitions}


async def first_offset(settings: Settings, topic: str, partition: int, since: int) -> int | None:
    """
    The offset of the first record from `since` on; None: there is none yet.

    It is larger than `since` where records were removed, and where a transaction left its mark.

    Raises:
        BrokerAway: Nobody can say.
    """
    options = connection_options(settings)
    place = TopicPartition(topic, partition)
    async with _asking(_reader(options), options, f"look for records of {topic}") as reader:
        reader.assign([place])
        reader.seek(place, since)  # before anything is awaited, or the reset to "earliest" might win
        records = await reader.getmany(place, timeout_ms=FIRST_RECORD_MS, max_records=1)
    return next((r.offset for r in records.get(place, ())), None)


async def read_topic(settings: Settings, topic: str) -> AsyncIterator[Record]:
    """
    All records of a topic from its beginning to its end as of now.

    Raises:
        BrokerAway: The brokers cannot be reached or do not answer.
        StartRefused: There is no such topic.
    """
    # "earliest" and no seek: a seek races with the reset to "latest" that the client began by itself, and
    # the loser's partition would read as empty.
    options = connection_options(settings)
    async with _asking(_reader(options, topic), options, f"read topic {topic}") as reader:
        partitions = [TopicPartition(topic, p) for p in sorted(reader.partitions_for_topic(topic) or ())]
        if not partitions:
            raise StartRefused(f"there is no topic {topic}")
        ends = await reader.end_offsets(partitions)
        for partition in (p for p in partitions if ends[p] > 0):
            end, heard_s = None, time.monotonic()
            while end is None or await _position(reader, partition) < end:
                batches = await reader.getmany(partition, timeout_ms=1000)
                # Tansu answers the question for the end with the start of the last batch, but a fetch correctly.
                end = max(ends[partition], reader.highwater(partition) or 0) if end is None else end
                for record in batches.get(partition, ()):
                    if record.offset < end:
                        yield Record.of(record)
                now_s = time.monotonic()
                if batches:
                    heard_s = now_s
                elif now_s > heard_s + SILENCE_S:
                    raise KafkaTimeoutError("no more records come, and there are some")


async def _position(reader: AIOKafkaConsumer, partition: TopicPartition) -> int:
    """Where it is; the client waits for brokers that are away to learn where it begins."""
    try:
        async with asyncio.timeout(SILENCE_S):
            return int(await reader.position(partition))
    except TimeoutError as error:
        raise KafkaTimeoutError("the first offset is not told") from error


def _reader(
    options: Mapping[str, Any], *topics: str, begin: Literal["earliest", "latest"] = "earliest", **more: Any
) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        *topics, **options, group_id=None, enable_auto_commit=False, auto_offset_reset=begin, **more
    )


@contextlib.asynccontextmanager
async def _asking(client: Any, options: Mapping[str, Any], question: str) -> AsyncIterator[Any]:
    """
    The client, started, for as long as it takes to `question`.

    Raises:
        BrokerAway: It cannot be answered.
    """
    try:
        await start_client(client, options)
        try:
            yield client
        finally:
            await end_client(client)
    except KafkaError as error:
        raise BrokerAway(f"cannot {question}: {error!r}") from error


# --- following -----------------------------------------------------------------------------------------


class Tail:
    """
    All partitions of a topic as they grow: for the demo's table and the gateway.

    Follows a broker that restarts and a topic that is made anew by itself. Started `now`, it may miss what is
    written at that moment, or to a new partition before it is seen: whoever needs all looks elsewhere, too.

    Args:
        options: Those of `connection_options`; made once where tails are made anew, as files may be away meanwhile.
        since: Where to begin, and to go on where the place is lost.
    """

    def __init__(
        self, options: Mapping[str, Any], topic: str, *, since: Literal["beginning", "now"] = "beginning"
    ) -> None:
        self._options = options
        begin: Literal["earliest", "latest"] = "latest" if since == "now" else "earliest"
        self._reader = _reader(options, topic, begin=begin, metadata_max_age_ms=FOLLOW_METADATA_MS)

    async def start(self) -> None:
        """Raises: BrokerAway: The brokers cannot be reached, do not let us in, or have no such topic."""
        try:
            await start_client(self._reader, self._options)
        except KafkaError as error:
            raise BrokerAway(f"cannot follow the topic: {error!r}") from error

    async def take(self, wait_s: float) -> list[Record]:
        """
        What has arrived, waiting at most `wait_s` for the first. Nothing cancels it.

        Raises:
            BrokerAway: It cannot go on; make a new one.
        """
        try:
            batches = await self._reader.getmany(timeout_ms=int(wait_s * 1000))
        except KafkaError as error:
            raise BrokerAway(f"cannot follow the topic: {error!r}") from error
        return [Record.of(r) for records in batches.values() for r in records]

    async def stop(self) -> None:
        await end_client(self._reader)

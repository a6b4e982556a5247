"""
Kafka as this service meets it: consume without auto-commit, publish with every acknowledgement awaited.

The one owner of `aiokafka`. Facts this is built around: rebalances are eager and positions go back
to the committed offset (intake is idempotent, so nothing has to be drained); cancelling `getmany`
leaves its fetch counter up, so it is never cancelled; `pause()` is forgotten in a rebalance, so
back-pressure is simply not asking.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    NodeNotReadyError,
    TopicAlreadyExistsError,
)
from aiokafka.helpers import create_ssl_context

from tarsy_scoring.errors import ConfigurationError, ScoringError, StartRefused
from tarsy_scoring.settings import Settings

log = structlog.get_logger()

Headers = Sequence[tuple[str, bytes]]

RETRY_S = 1.0
REQUEST_TIMEOUT_MS = 10_000
# Intake pauses on purpose and for as long as it must; its own watchdog sees a loop that died.
NO_POLL_WATCHDOG_MS = 2**31 - 1
MAX_REQUEST_BYTES = 1_048_576
FOLLOW_METADATA_MS = 5_000  # how late a tail may learn of new partitions, or of a topic made anew


class BrokerAway(ScoringError):
    """The broker cannot be used right now; nothing was lost, the same work may succeed later."""


class TooLarge(ScoringError):
    """A message is larger than client or topic allow."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record as it stood in its topic."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def connection_options(settings: Settings) -> dict[str, Any]:
    """
    What every client needs to reach the brokers.

    Raises:
        ConfigurationError: No brokers are given, or a certificate cannot be read.
    """
    options: dict[str, Any] = {
        "bootstrap_servers": settings.require_kafka(),
        "security_protocol": settings.kafka_security_protocol,
        "request_timeout_ms": REQUEST_TIMEOUT_MS,
    }
    if settings.kafka_security_protocol.endswith("SSL"):
        try:
            options["ssl_context"] = create_ssl_context(
                cafile=_text(settings.kafka_ca_file),
                certfile=_text(settings.kafka_cert_file),
                keyfile=_text(settings.kafka_key_file),
            )
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"Kafka TLS: cannot load the certificates: {error}") from error
    if settings.kafka_security_protocol.startswith("SASL"):
        assert settings.kafka_sasl_password is not None
        options |= {
            "sasl_mechanism": settings.kafka_sasl_mechanism,
            "sasl_plain_username": settings.kafka_sasl_username,
            "sasl_plain_password": settings.kafka_sasl_password.get_secret_value(),
        }
    return options


async def ensure_topics(settings: Settings, topics: Sequence[str]) -> None:
    """
    Wait for the broker, loudly; then see that the topics are there, or make them where that is allowed.

    Raises:
        StartRefused: Some are missing, with their names and what to do.
    """
    admin = await _admin(settings)
    try:
        missing = sorted(set(topics) - set(await admin.list_topics()))
        if missing and settings.create_topics:
            await _create(admin, settings, missing)
            log.info("kafka.topics_created", topics=missing)
        elif missing:
            raise StartRefused(
                f"missing topics: {', '.join(missing)}; "
                "create them, or let the service do it: SCORING_CREATE_TOPICS=true"
            )
    except KafkaError as error:
        raise StartRefused(f"cannot look after the topics at {settings.require_kafka()}: {error!r}") from error
    finally:
        await admin.close()


async def _admin(settings: Settings) -> AIOKafkaAdminClient:
    while True:
        admin = AIOKafkaAdminClient(**connection_options(settings))
        try:
            await admin.start()
            return admin
        except (KafkaConnectionError, NodeNotReadyError, OSError, TimeoutError) as error:
            await admin.close()
            log.warning("kafka.away", brokers=settings.require_kafka(), reason=str(error), retry_in_s=RETRY_S)
            await asyncio.sleep(RETRY_S)
        except KafkaError as error:
            await admin.close()
            raise StartRefused(f"the brokers at {settings.require_kafka()} refuse us: {error!r}") from error


async def _create(admin: AIOKafkaAdminClient, settings: Settings, topics: Sequence[str]) -> None:
    new = [NewTopic(t, settings.topic_partitions, settings.topic_replication) for t in topics]
    response = await admin.create_topics(new)
    for topic, code, *message in response.topic_errors:
        if code not in (0, TopicAlreadyExistsError.errno):
            raise StartRefused(f"cannot create topic {topic}: error {code} {message[0] if message else ''}")


class Consumer:
    """
    The records of some topics for this member of the group. One task uses it; nothing cancels `take`.
    """

    def __init__(self, settings: Settings, topics: Sequence[str]) -> None:
        self._settings = settings
        self._topics = topics
        self._consumer: AIOKafkaConsumer | None = None
        self._taken: dict[TopicPartition, int] = {}

    async def start(self) -> None:
        """
        Join the group; waits for a broker that is away. May take a dead member's session timeout.

        A cancel leaves the group at once.
        """
        timeout_ms = int(self._settings.kafka_session_timeout_s * 1000)
        while True:
            consumer = AIOKafkaConsumer(
                *self._topics,
                **connection_options(self._settings),
                group_id=self._settings.kafka_group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                session_timeout_ms=timeout_ms,
                heartbeat_interval_ms=max(200, min(3000, timeout_ms // 5)),
                max_poll_interval_ms=NO_POLL_WATCHDOG_MS,
            )
            try:
                await consumer.start()
            except (KafkaConnectionError, NodeNotReadyError, OSError, TimeoutError) as error:
                await consumer.stop()
                log.warning("kafka.away", what="intake", reason=str(error), retry_in_s=RETRY_S)
                await asyncio.sleep(RETRY_S)
            except KafkaError as error:
                await consumer.stop()
                group, brokers = self._settings.kafka_group, self._settings.require_kafka()
                raise StartRefused(f"cannot join the group {group!r} at {brokers}: {error!r}") from error
            except asyncio.CancelledError:
                await consumer.stop()
                raise
            else:
                self._consumer = consumer
                return

    async def take(self, wait_s: float, limit: int) -> list[Record]:
        """
        What has arrived, at most `limit` records, waiting at most `wait_s` for the first.

        Raises:
            BrokerAway: Try again.
        """
        assert self._consumer is not None, "start() comes first"
        try:
            batches = await self._consumer.getmany(timeout_ms=int(wait_s * 1000), max_records=limit)
        except KafkaError as error:
            raise BrokerAway(f"cannot fetch: {error!r}") from error
        self._taken |= {place: records[-1].offset + 1 for place, records in batches.items() if records}
        return [_record(r) for records in batches.values() for r in records]

    async def commit(self, records: Sequence[Record]) -> bool:
        """
        Commit the offsets behind `records`.

        Returns:
            False if the group has moved on: the records come again to whoever has the partition now.
        """
        assert self._consumer is not None, "start() comes first"
        offsets: dict[TopicPartition, int] = {}
        for r in records:
            place = TopicPartition(r.topic, r.partition)
            offsets[place] = max(offsets.get(place, 0), r.offset + 1)
        try:
            await self._consumer.commit(offsets)
        except (CommitFailedError, IllegalStateError):
            return False
        except KafkaError as error:
            log.warning("intake.commit_failed", reason=repr(error))
            return False
        return True

    def lag(self) -> int:
        """Records in our partitions that were not taken yet, as far as the broker has told."""
        if self._consumer is None:
            return 0
        ours = self._consumer.assignment()
        return sum(max(0, (self._consumer.highwater(p) or 0) - at) for p, at in self._taken.items() if p in ours)

    async def stop(self) -> None:
        """Leave the group; offsets that were not committed come again."""
        if self._consumer is not None:
            await self._consumer.stop()
            self._consumer = None


async def read_topic(settings: Settings, topic: str) -> AsyncIterator[Record]:
    """
    All records of a topic from its beginning to its end as of now, outside of any group.

    Raises:
        BrokerAway: The brokers cannot be reached or do not answer.
        StartRefused: There is no such topic.
    """
    # "earliest" and no seek: a seek races with the reset to "latest" that the client began by itself, and
    # the loser's partition would read as empty.
    consumer = AIOKafkaConsumer(
        topic, **connection_options(settings), enable_auto_commit=False, group_id=None, auto_offset_reset="earliest"
    )
    try:
        await consumer.start()
        partitions = [TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic) or ())]
        if not partitions:
            raise StartRefused(f"there is no topic {topic}")
        ends = await consumer.end_offsets(partitions)
        for partition in (p for p in partitions if ends[p] > 0):
            end: int | None = None
            while end is None or await consumer.position(partition) < end:
                batches = await consumer.getmany(partition, timeout_ms=1000)
                # Tansu answers the question for the end with the start of the last batch, but a fetch correctly.
                end = max(ends[partition], consumer.highwater(partition) or 0) if end is None else end
                for record in batches.get(partition, ()):
                    if record.offset < end:
                        yield _record(record)
    except KafkaError as error:
        raise BrokerAway(f"cannot read topic {topic}: {error!r}") from error
    finally:
        await consumer.stop()


class Tail:
    """
    All partitions of a topic as they grow, outside of any group: for the demo's table and the gateway.

    Follows a broker that restarts and a topic that is made anew by itself. Started `now`, it may miss what is
    written at that moment, or to a new partition before it is seen: whoever needs all looks elsewhere, too.

    Args:
        since: Where to begin, and to go on where the place is lost.
    """

    def __init__(self, settings: Settings, topic: str, *, since: Literal["beginning", "now"] = "beginning") -> None:
        self._consumer = AIOKafkaConsumer(
            topic,
            **connection_options(settings),
            enable_auto_commit=False,
            group_id=None,
            auto_offset_reset="latest" if since == "now" else "earliest",
            metadata_max_age_ms=FOLLOW_METADATA_MS,
        )

    async def start(self) -> None:
        """Raises: BrokerAway: The brokers cannot be reached, or have no such topic."""
        try:
            await self._consumer.start()
        except (KafkaError, OSError, TimeoutError) as error:
            raise BrokerAway(f"cannot follow the topic: {error!r}") from error

    async def take(self, wait_s: float) -> list[Record]:
        """
        What has arrived, waiting at most `wait_s` for the first. Nothing cancels it.

        Raises:
            BrokerAway: It cannot go on; make a new one.
        """
        try:
            batches = await self._consumer.getmany(timeout_ms=int(wait_s * 1000))
        except KafkaError as error:
            raise BrokerAway(f"cannot follow the topic: {error!r}") from error
        return [_record(r) for records in batches.values() for r in records]

    async def stop(self) -> None:
        await self._consumer.stop()


class Publisher:
    """
    Sends records and says which ones the brokers acknowledged (all in-sync replicas).

    Idempotent where the broker can. One batch per partition is under way at a time, so records of one
    key keep their order also where it cannot.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._producer: AIOKafkaProducer | None = None
        self.is_idempotent = True

    async def start(self, timeout_s: float) -> None:
        """
        Connect, unless that has been done; waits for a broker that is away.

        Raises:
            BrokerAway: It did not come back in time, or refuses us.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._connect()
        except TimeoutError:
            raise BrokerAway(f"the brokers could not be reached within {timeout_s:g} s") from None

    async def _connect(self) -> None:
        while self._producer is None:
            producer = AIOKafkaProducer(
                **connection_options(self._settings),
                acks="all",
                enable_idempotence=self.is_idempotent,
                linger_ms=2,
                max_request_size=MAX_REQUEST_BYTES,
            )
            try:
                await producer.start()
                self._producer = producer
            except (KafkaConnectionError, NodeNotReadyError, OSError, TimeoutError) as error:
                await producer.stop()
                log.warning("kafka.away", what="publisher", reason=str(error), retry_in_s=RETRY_S)
                await asyncio.sleep(RETRY_S)
            except KafkaError as error:
                await producer.stop()
                if not self.is_idempotent:
                    raise BrokerAway(f"cannot publish: {error!r}") from error
                log.warning("kafka.not_idempotent", reason=repr(error), effect="a retry may repeat an event")
                self.is_idempotent = False
            except asyncio.CancelledError:
                await producer.stop()
                raise

    async def publish(
        self, topic: str, messages: Sequence[tuple[bytes | None, bytes | None, Headers]], timeout_s: float
    ) -> list[bool]:
        """
        Send (key, value, headers) in order; says for each whether it was acknowledged in time.

        After a failure the producer is made anew, so that a late success cannot overtake the resend.

        Raises:
            TooLarge: One of them can never be sent; nothing after it was.
            BrokerAway: The broker cannot be reached at all.
        """
        await self.start(timeout_s)
        assert self._producer is not None
        futures = []
        try:
            async with asyncio.timeout(timeout_s):
                for key, value, headers in messages:
                    futures.append(await self._producer.send(topic, value=value, key=key, headers=list(headers)))
                await asyncio.gather(*futures, return_exceptions=True)
        except MessageSizeTooLargeError as error:
            raise TooLarge(f"a message for topic {topic} is too large: {error}") from error
        except (KafkaError, TimeoutError) as error:
            log.warning("kafka.publish_failed", topic=topic, reason=repr(error))
        acknowledged = [f.done() and not f.cancelled() and f.exception() is None for f in futures]
        acknowledged += [False] * (len(messages) - len(futures))
        if not all(acknowledged):
            for f in futures:
                if f.done() and not f.cancelled() and isinstance(f.exception(), MessageSizeTooLargeError):
                    raise TooLarge(f"a message for topic {topic} is larger than the topic allows")
            await self.stop()
        return acknowledged

    async def stop(self) -> None:
        """Flush for a moment and close; what was not acknowledged was said so."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            async with asyncio.timeout(5):
                await producer.stop()
        except (TimeoutError, KafkaError) as error:
            log.debug("kafka.publisher_stop", reason=repr(error))


def _record(r: Any) -> Record:
    return Record(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, tuple(r.headers))


def _text(path: Any) -> str | None:
    return str(path) if path is not None else None

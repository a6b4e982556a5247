"""
Kafka as this service works on it: consume in a group without auto-commit, publish with every acknowledgement awaited.

Facts this is built around: rebalances are eager and positions go back
to the committed offset (intake is idempotent, so nothing has to be drained); cancelling `getmany`
leaves its fetch counter up, so it is cancelled only where the client ends with it; `pause()` is forgotten in a
rebalance, so back-pressure is simply not asking. The client works in tasks of its own, and goes on without one that
has failed: it is looked after, and replaced.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    NodeNotReadyError,
)

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ScoringError, StartRefused
from tarsy_scoring.kafka.diagnose import Obstacle, find_obstacle
from tarsy_scoring.kafka.security import connection_options

log = structlog.get_logger()

Headers = Sequence[tuple[str, bytes]]

RETRY_S = 1.0
# Whoever is not let in waits for a person; brokers, and those who read their logs, are spared meanwhile.
REFUSED_RETRY_S = 5.0
# How often a publisher says that an outage goes on.
SAY_EVERY_S = 60.0
# Brokers answer a fetch within half a second, also with nothing; after so long without any answer we ask why.
QUIET_S = 15.0
# A member without partitions gets no answers, and its brokers a login of it so often.
LOOK_EVERY_S = 60.0
WATCH_S = 1.0
# Intake pauses on purpose and for as long as it must; its own watchdog sees a loop that died.
NO_POLL_WATCHDOG_MS = 2**31 - 1
MAX_REQUEST_BYTES = 1_048_576


class BrokerAway(ScoringError):
    """The broker cannot be used right now; nothing was lost, the same work may succeed later."""


class BrokerRefuses(BrokerAway):
    """The brokers are there and do not let us in: login, certificate or protocol are not what they want."""


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

    @classmethod
    def of(cls, read: Any) -> "Record":
        """From one that the library has read."""
        return cls(read.topic, read.partition, read.offset, read.timestamp, read.key, read.value, tuple(read.headers))


class Consumer:
    """
    The records of some topics for this member of the group. One task uses it.

    For its partitions, and for the answer to a commit, it waits as long as brokers are away. Whoever cancels that can
    only `stop` it.
    """

    def __init__(self, settings: Settings, topics: Sequence[str]) -> None:
        self._settings = settings
        self._topics = topics
        self._consumer: AIOKafkaConsumer | None = None
        self._watching: asyncio.Task[None] | None = None
        self._heard = 0
        self._look_at_s: float | None = None
        self.is_served = False
        """Whether brokers answer us. False until we were let in for the first time; some 20 s late, or a minute."""

    @cached_property
    def _options(self) -> dict[str, Any]:
        """Made once: certificates that are being exchanged must not end a worker that makes a new client."""
        return connection_options(self._settings)

    async def start(self) -> None:
        """
        Join the group; waits for a broker that is away. May take a dead member's session timeout.

        A cancel leaves the group at once.
        """
        timeout_ms = int(self._settings.kafka_session_timeout_s * 1000)
        while True:
            consumer = AIOKafkaConsumer(
                *self._topics,
                **self._options,
                group_id=self._settings.kafka_group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                session_timeout_ms=timeout_ms,
                heartbeat_interval_ms=max(200, min(3000, timeout_ms // 5)),
                max_poll_interval_ms=NO_POLL_WATCHDOG_MS,
            )
            try:
                await start_client(consumer, self._options)
            except BrokerAway as error:
                await wait_out(error, "intake")
            except KafkaError as error:
                group, brokers = self._settings.kafka_group, self._settings.require_kafka()
                raise StartRefused(f"cannot join the group {group!r} at {brokers}: {error!r}") from error
            else:
                self._consumer, self.is_served = consumer, True
                self._watching = asyncio.create_task(self._watch())
                return

    async def take(self, wait_s: float, limit: int) -> list[Record]:
        """
        What has arrived, at most `limit` records, waiting at most `wait_s` for the first once there are partitions.

        Raises:
            BrokerAway: Try again.
        """
        if self._watching is not None and self._watching.done():
            self._watching.result()  # who does not see whether it is served is not healthy
        if self._consumer is not None and (failure := _failure_in(self._consumer)) is not None:
            log.warning("kafka.client_failed", what="intake", reason=repr(failure), effect="joining the group anew")
            await self.stop()
        if self._consumer is None:
            await self._join_anew()
        assert self._consumer is not None
        try:
            batches = await self._consumer.getmany(timeout_ms=int(wait_s * 1000), max_records=limit)
        except KafkaError as error:
            raise BrokerAway(f"cannot fetch: {error!r}") from error
        return [Record.of(r) for records in batches.values() for r in records]

    async def _join_anew(self) -> None:
        try:
            await self.start()
        except StartRefused as error:  # a right that it had once may be given back
            raise BrokerAway(str(error)) from error

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            await self.watch_once(time.monotonic())

    async def watch_once(self, now_s: float) -> None:
        """
        Keep `is_served` true, and say so where it is not; the client goes on trying by itself and tells nobody.

        While our partitions are answered nobody has to be asked. Else we ask over connections of our own, up to
        10 s: a login may be refused long after the start, when a broker came back or an old connection was ended.

        Args:
            now_s: By a clock that never goes back.
        """
        answered = self._answered()
        if self._look_at_s is None or answered != self._heard:
            self._heard, self._look_at_s = answered, now_s + QUIET_S
            self.is_served = True
        elif now_s >= self._look_at_s:
            obstacle = await find_obstacle(self._options)
            self.is_served = obstacle is None or not _keeps_out(obstacle)
            if obstacle is not None and not self.is_served:
                _say_away(_away_by(obstacle), "intake")
            self._look_at_s = now_s + (LOOK_EVERY_S if self.is_served else QUIET_S)

    def _answered(self) -> int:
        """Changes with each answer about a partition of ours."""
        assert self._consumer is not None
        return max((self._consumer.last_poll_timestamp(p) or 0 for p in self._consumer.assignment()), default=0)

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

    async def lag(self) -> int:
        """Records in our partitions that were not taken yet, as far as the broker has told; waits for nothing."""
        if self._consumer is None:
            return 0
        lag = 0
        ends = {place: self._consumer.highwater(place) for place in self._consumer.assignment()}
        for place, end in ends.items():
            if end is None:
                continue
            # A known position is given without an await, so that no time at all is enough for it.
            with contextlib.suppress(TimeoutError, KafkaError):
                async with asyncio.timeout(0):
                    lag += max(0, end - await self._consumer.position(place))
        return lag

    async def stop(self) -> None:
        """Leave the group; offsets that were not committed come again."""
        self.is_served = False
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None
        if self._consumer is not None:
            await end_client(self._consumer)
            self._consumer = None


class Publisher:
    """
    Sends records and says which ones the brokers acknowledged (all in-sync replicas).

    Idempotent where the broker can. One batch per partition is under way at a time, so records of one
    key keep their order also where it cannot.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._producer: AIOKafkaProducer | None = None
        self._obstacle: BrokerAway | None = None
        self._said_at_s = 0.0
        self._ending: set[asyncio.Task[None]] = set()
        self.is_idempotent = True

    @cached_property
    def _options(self) -> dict[str, Any]:
        return connection_options(self._settings)  # once, as for the consumer

    async def start(self, timeout_s: float) -> None:
        """
        Connect, unless that has been done; waits for a broker that is away.

        Raises:
            BrokerAway: It did not come back in time, or refuses us. Finding out why may take 10 s longer.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._connect()
        except TimeoutError as error:
            why = self._obstacle or await _why_away(self._options, error)
            raise BrokerAway(f"the brokers could not be reached within {timeout_s:g} s: {why}") from None

    async def _connect(self) -> None:
        while self._producer is None:
            producer = AIOKafkaProducer(
                **self._options,
                acks="all",
                enable_idempotence=self.is_idempotent,
                linger_ms=2,
                max_request_size=MAX_REQUEST_BYTES,
            )
            try:
                await start_client(producer, self._options)
                self._producer, self._obstacle = producer, None
            except BrokerAway as error:
                await wait_out(error, "publisher", is_news=self._is_news(error))
            except KafkaError as error:
                if not self.is_idempotent:
                    raise BrokerAway(f"cannot publish: {error!r}") from error
                log.warning("kafka.not_idempotent", reason=repr(error), effect="a retry may repeat an event")
                self.is_idempotent = False

    def _is_news(self, error: BrokerAway) -> bool:
        """Whether to say so: when an outage begins or becomes another one, and then from time to time."""
        before, self._obstacle = self._obstacle, error
        now_s = time.monotonic()
        if type(error) is type(before) and now_s < self._said_at_s + SAY_EVERY_S:
            return False
        self._said_at_s = now_s
        return True

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
        """Close; what was not acknowledged was said so, and is not sent any more."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        ending = asyncio.create_task(_end_producer(producer))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        await asyncio.wait({ending}, timeout=5)


# --- the library's clients -----------------------------------------------------------------------------


async def start_client(client: Any, options: Mapping[str, Any]) -> None:
    """
    Start a client of the library; it is ended if that fails or is cancelled.

    Args:
        options: Those that it was made with, of `connection_options`.

    Raises:
        BrokerAway, BrokerRefuses: It may succeed later; says why it did not.
        KafkaError: It was let in, and may not do what it wants.
    """
    try:
        await client.start()
    except (KafkaConnectionError, NodeNotReadyError, OSError, TimeoutError) as error:
        await end_client(client)
        raise await _why_away(options, error) from error
    except KafkaError as error:
        await end_client(client)
        await raise_if_away(options, error)
        raise
    except BaseException:
        await end_client(client)
        raise


async def end_client(client: Any) -> None:
    """
    Close its connections.

    While a fetch fails, a consumer of the library lets the cancel of its own task out, as if ours, and where a task
    has failed the error of that. It gets no further then, so the rest is done here.
    """
    try:
        await (client.close() if isinstance(client, AIOKafkaAdminClient) else client.stop())
    except (asyncio.CancelledError, KafkaError) as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
            raise
        await client._client.close()


def _failure_in(consumer: AIOKafkaConsumer) -> BaseException | None:
    """What ended one of the tasks in which it works: it takes nothing any more, and may say so, but not end."""
    coordinator = consumer._coordinator
    tasks = (
        consumer._client._sync_task,
        consumer._fetcher._fetch_task,
        coordinator._coordination_task,
        coordinator._heartbeat_task,
        coordinator._commit_refresh_task,
    )
    failures = (task.exception() for task in tasks if task is not None and task.done() and not task.cancelled())
    return next((failure for failure in failures if failure is not None), None)


async def _end_producer(producer: AIOKafkaProducer) -> None:
    """
    Close its connections when what is on its way has been answered, or the library's own deadlines have passed.

    What is not on its way stays here. The library's `stop` waits for all of it, an idempotent producer tries for ever,
    and goes on to do so when the waiting is given up.
    """
    sending: asyncio.Task[None] = producer._sender.sender_task
    sending.cancel()
    await asyncio.wait({sending})
    producer._closed = True
    await producer.client.close()


async def _why_away(options: Mapping[str, Any], error: Exception) -> BrokerAway:
    """The client's own error names the brokers that were tried, and not why it was not let in."""
    obstacle = await find_obstacle(options)
    if obstacle is None:
        return BrokerAway(
            f"the brokers at {options['bootstrap_servers']} could not be used a moment ago, and can now: "
            f"{str(error) or 'no answer in time'}"
        )
    return _away_by(obstacle)


async def raise_if_away(options: Mapping[str, Any], error: KafkaError) -> None:
    """
    See whether brokers are there, where a client that was let in did not get an answer: it may say anything then.

    Raises:
        BrokerAway, BrokerRefuses: They are not; the same may succeed later.
    """
    obstacle = await find_obstacle(options)
    if obstacle is not None and _keeps_out(obstacle):
        raise _away_by(obstacle) from error


def _keeps_out(obstacle: Obstacle) -> bool:
    """A broker less is the cluster's own matter."""
    return obstacle.is_refusal or obstacle.is_everywhere


def _away_by(obstacle: Obstacle) -> BrokerAway:
    kind = BrokerRefuses if obstacle.is_refusal else BrokerAway
    return kind(f"the brokers cannot be used: {obstacle.reason}")


async def wait_out(error: BrokerAway, what: str, *, is_news: bool = True) -> None:
    """Say that `what` waits, where that is news, and let some time pass before the next try."""
    wait_s = REFUSED_RETRY_S if isinstance(error, BrokerRefuses) else RETRY_S
    if is_news:
        _say_away(error, what, retry_in_s=wait_s)
    await asyncio.sleep(wait_s)


def _say_away(error: BrokerAway, what: str, **fields: Any) -> None:
    if isinstance(error, BrokerRefuses):
        log.error("kafka.refused", what=what, reason=str(error), **fields)
    else:
        log.warning("kafka.away", what=what, reason=str(error), **fields)

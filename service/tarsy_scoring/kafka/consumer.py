"""
The consumer of a group.

aiokafka rebalances eagerly and moves positions back to the committed offset; intake is idempotent, so nothing
has to be drained. A cancelled `getmany` leaves the fetch counter raised, so it is cancelled only when the
client ends as well. A rebalance forgets `pause()`, so back-pressure means not asking for records, and so does
the stop of one partition. The library works in separate tasks and goes on without a task that has failed;
`Consumer` notices that from outside and builds a new client.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import StartRefused
from tarsy_scoring.kafka.connect import BrokerAway, Headers, check_brokers, end_client, start_client, wait_out
from tarsy_scoring.kafka.partitions import READING, PartitionReader, Unreadable, known_position, stable_end
from tarsy_scoring.kafka.security import connection_options

log = structlog.get_logger()

# Brokers answer each fetch within 0.5 s, also without records. After this time without an answer we look for
# a reason.
QUIET_S = 15.0
# Without partitions there are no answers. Each check costs the brokers a login, so such a member checks less
# often.
CHECK_EVERY_S = 60.0
WATCH_S = 1.0
# Turns off the client's own watchdog over calls of `getmany`: intake pauses for as long as it has to, and a
# loop that died ends the process anyway.
NO_POLL_WATCHDOG_MS = 2**31 - 1
# Pause before a partition that cannot be read is asked again: an operator has to change something.
UNREADABLE_RETRY_S = 30.0
# A transaction that is open for longer is logged, each time after as long. Stream processors need seconds; the
# brokers end one whose producer is gone after the time-out that it asked for.
OPEN_S = 30.0


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a topic."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @classmethod
    def of(cls, read: Any) -> "Record":
        """Convert the library's `ConsumerRecord`."""
        # Kafka allows headers without a value.
        headers = tuple((name, value or b"") for name, value in read.headers)
        return cls(read.topic, read.partition, read.offset, read.timestamp, read.key, read.value, headers)


class Consumer:
    """
    Reads records of some topics as one member of the group. Used by one task.

    A batch that cannot be read stops one partition, and no other. The partition is asked again every
    `UNREADABLE_RETRY_S`, and nothing of it is skipped.

    While the brokers are away, `take` waits for partitions and `commit` for an answer, without a limit.
    After a cancellation of either, `stop` is the only call allowed.

    Args:
        group: Default: the group of the settings.
        begin: Where a group without a committed offset begins.
        is_stopped: Whether records of a topic must not be taken now.
    """

    def __init__(
        self,
        settings: Settings,
        topics: Sequence[str],
        *,
        group: str | None = None,
        begin: Literal["earliest", "latest"] = "earliest",
        is_stopped: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._group = group or settings.kafka_group
        self._begin = begin
        self._consumer: AIOKafkaConsumer | None = None
        self._reader: PartitionReader | None = None
        self._retry_at_s: dict[TopicPartition, float] = {}  # of partitions that cannot be read
        self._is_stopped = is_stopped
        self._held: dict[TopicPartition, int | None] = {}  # where an open transaction held a partition up
        self._look_at_s = 0.0
        self._watching: asyncio.Task[None] | None = None
        self._last_answer_ms = 0
        self._check_at_s: float | None = None
        self._found_nothing = False  # a `take` ended without records since the last look of the watch
        self._is_stuck = False
        self.is_served = False
        """Whether brokers answer. False until the first login succeeded; an outage shows after 20 s to a minute."""

    @cached_property
    def _options(self) -> dict[str, Any]:
        """Cached, so a half-rotated certificate cannot break a reconnect."""
        return connection_options(self._settings)

    async def start(self) -> None:
        """
        Join the group; waits for brokers that are away. May take the session timeout of a member that died.

        A cancellation leaves the group at once.

        Raises:
            StartRefused: The brokers refuse the group or a topic.
        """
        timeout_ms = int(self._settings.kafka_session_timeout_s * 1000)
        while True:
            consumer = AIOKafkaConsumer(
                *self._topics,
                **self._options,
                **READING,
                group_id=self._group,
                auto_offset_reset=self._begin,
                session_timeout_ms=timeout_ms,
                heartbeat_interval_ms=max(200, min(3000, timeout_ms // 5)),
                max_poll_interval_ms=NO_POLL_WATCHDOG_MS,
            )
            try:
                await start_client(consumer, self._options)
            except BrokerAway as error:
                await wait_out(error, "intake")
            except KafkaError as error:
                group, brokers = self._group, self._settings.require_kafka()
                raise StartRefused(f"cannot join the group {group!r} at {brokers}: {error!r}") from error
            else:
                self._consumer, self._reader, self.is_served = consumer, PartitionReader(consumer), True
                self._check_at_s, self._is_stuck = None, False
                self._watching = asyncio.create_task(self._watch())
                return

    async def take(self, wait_s: float, limit: int) -> list[Record]:
        """
        Records that have arrived: at most `limit` or `TAKE_BYTES`, waiting at most `wait_s` for the first once
        partitions are assigned.

        Raises:
            BrokerAway: Try again.
        """
        if self._watching is not None and self._watching.done():
            self._watching.result()  # ends the process: outages would go unnoticed without the watch
        if self._is_stuck:
            await self._discard("brokers let us in, and the client gets no answer")
        if self._consumer is None:
            try:
                await self.start()
            except StartRefused as error:  # it was allowed before, so the permission may come back
                raise BrokerAway(str(error)) from error
        assert self._reader is not None
        now_s = time.monotonic()
        self._retry_at_s = {p: at_s for p, at_s in self._retry_at_s.items() if now_s < at_s}
        stopped = self._retry_at_s.keys() | self._partitions_of_stopped_topics()
        try:
            read, unreadable = await self._reader.take(wait_s, limit, stopped)
        except KafkaError as error:
            # A member whose heartbeat was refused never sends another one. The library reports that at each
            # call, and expects the user to build a new client.
            await self._discard(repr(error))
            raise BrokerAway(f"cannot fetch: {error!r}") from error
        for found in unreadable:
            self._stop_partition(found)
        self._found_nothing = self._found_nothing or not (read or unreadable)
        return [Record.of(r) for r in read]

    def _stop_partition(self, found: Unreadable) -> None:
        log.error(
            "kafka.partition_unreadable",
            topic=found.partition.topic,
            partition=found.partition.partition,
            offset=found.offset,
            reason=repr(found.error),
            effect="nothing of this partition is read or skipped; other partitions go on",
            advice="mend what `reason` names; or stop all workers, move the group's offset behind the batch with "
            "kafka-consumer-groups --reset-offsets, and start them (docs/operations.md, partitions are stopped)",
            retry_every_s=UNREADABLE_RETRY_S,
        )
        self._retry_at_s[found.partition] = time.monotonic() + UNREADABLE_RETRY_S

    def _partitions_of_stopped_topics(self) -> set[TopicPartition]:
        return {partition for partition in self._partitions() if self._is_stopped(partition.topic)}

    def count_stopped(self, topic: str) -> dict[str, int]:
        """Assigned partitions of the topic that are not read, by reason."""
        stopped = {
            "unreadable": self._retry_at_s.keys(),
            "dead_letters": self._partitions_of_stopped_topics(),
        }
        return {reason: sum(p.topic == topic for p in partitions) for reason, partitions in stopped.items()}

    async def _discard(self, reason: str) -> None:
        log.warning("kafka.client_failed", what="intake", reason=reason, effect="joining the group again")
        await self.stop()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            await self.watch_once(time.monotonic())

    async def watch_once(self, now_s: float) -> None:
        """
        Update `is_served`, and log an outage: the library retries silently.

        As long as fetches are answered, the brokers are not asked. Otherwise connections of our own show the
        reason, within 10 s: a broker may refuse a login hours after the start.

        A client that wants records, has partitions and gets no answer from brokers that let us in has failed.

        Args:
            now_s: Monotonic clock.
        """
        assert self._consumer is not None
        if now_s >= self._look_at_s:
            self._log_open_transactions(self._consumer, now_s)
        # Of our partitions; 0: none, or no partitions.
        answers_ms = (self._consumer.last_poll_timestamp(p) or 0 for p in self._partitions())
        answer_ms = max(answers_ms, default=0)
        found_nothing, self._found_nothing = self._found_nothing, False
        if self._check_at_s is None or answer_ms != self._last_answer_ms:
            self._last_answer_ms, self._check_at_s = answer_ms, now_s + QUIET_S
            self.is_served, self._is_stuck = True, False
        elif now_s >= self._check_at_s:
            try:
                await check_brokers(self._options)
            except BrokerAway as away:
                self.is_served = self._is_stuck = False
                log.warning("kafka.away", what="intake", reason=str(away))
            else:
                self.is_served = True
                # While intake is paused, the client is full of prefetched records and rightly fetches
                # nothing. So only a client whose last `take` came back empty is stuck. Nor are stopped
                # partitions fetched.
                asks = self._partitions() - self._retry_at_s.keys() - self._partitions_of_stopped_topics()
                self._is_stuck = found_nothing and bool(asks)
            self._check_at_s = now_s + (CHECK_EVERY_S if self.is_served else QUIET_S)

    def _log_open_transactions(self, consumer: AIOKafkaConsumer, now_s: float) -> None:
        ends = {p: stable_end(consumer, p) for p in self._partitions()}
        held = {p: end for p, end in ends.items() if end != consumer.highwater(p)}
        for partition, offset in held.items() & self._held.items():
            effect = (
                "records behind it wait for its end; `kafka-transactions.sh find-hanging` names its producer"
            )
            log.warning("kafka.transaction_open", **partition._asdict(), offset=offset, effect=effect)
        self._held, self._look_at_s = held, now_s + OPEN_S

    def _partitions(self) -> set[TopicPartition]:
        return set() if self._consumer is None else self._consumer.assignment()

    async def commit(self, records: Sequence[Record]) -> bool:
        """
        Commit the offsets behind `records`.

        Returns:
            False: Nothing was committed: the group has moved on, or the request failed. The next member that
                gets the partition gets the records again, unless a later commit covers them.
        """
        assert self._consumer is not None, "start() comes first"
        offsets: dict[TopicPartition, int] = {}
        for r in records:
            partition = TopicPartition(r.topic, r.partition)
            offsets[partition] = max(offsets.get(partition, 0), r.offset + 1)
        try:
            await self._consumer.commit(offsets)
        except KafkaError:
            return False
        return True

    async def lag(self) -> int:
        """
        Records of our partitions not taken yet, by the last answers of the brokers. Does not wait.

        Those behind an open transaction count.
        """
        if self._consumer is None:
            return 0
        lag = 0
        ends = {partition: self._consumer.highwater(partition) for partition in self._partitions()}
        for partition, end in ends.items():
            position = await known_position(self._consumer, partition)
            if end is not None and position is not None:
                lag += max(0, end - position)
        return lag

    async def stop(self) -> None:
        """Leave the group; records that were not committed come again."""
        self.is_served = self._is_stuck = False
        self._retry_at_s.clear()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None
        if self._consumer is not None:
            consumer, self._consumer, self._reader = self._consumer, None, None
            await end_client(consumer)

"""
Turn Kafka messages into stored requests or dead letters, and commit their offsets afterwards.

No offset waits for a judgement. A message that cannot be decoded or stored becomes a dead letter. If the
dead-letter topic cannot be written, intake stops and drops nothing. If too many messages of a topic are
invalid, intake pauses that topic (`DeadLetterLimit`). While too many scores are due, intake asks for no
records (`Capacity`).
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import structlog

from tarsy_scoring import events
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.dead_letters import dead_letters
from tarsy_scoring.dead_letters.limit import DeadLetterLimit
from tarsy_scoring.errors import InvalidMessage
from tarsy_scoring.events import Origin
from tarsy_scoring.kafka.connect import BrokerAway
from tarsy_scoring.kafka.consumer import Consumer, Record
from tarsy_scoring.kafka.publisher import Publisher, TooLarge
from tarsy_scoring.postgres.moments import moment
from tarsy_scoring.queue.admission import Priority, Request
from tarsy_scoring.queue.backlog import BOUNDS
from tarsy_scoring.queue.capacity import Capacity
from tarsy_scoring.queue.inbox import Inbox, NotStorable
from tarsy_scoring.references.model import Reference, reference_of
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.telemetry.otel import traceparent_of
from tarsy_scoring.telemetry.stopping import unless_stopped
from tarsy_scoring.timeline.clean.masking import masking_of

log = structlog.get_logger()

# `TAKE_BYTES` bounds a take, too: masking takes up to 15 us for each byte of a hostile reference.
TAKE_LIMIT = 500
TAKE_WAIT_S = 0.2
PAUSE_CHECK_S = 0.5
RETRY_S = 1.0


class Intake:
    """
    The consumer of both incoming topics in this process.

    A cancel at any await leaves records uncommitted. They are redelivered, and storing them again changes
    nothing.
    """

    def __init__(
        self,
        settings: Settings,
        inbox: Inbox,
        capacity: Capacity,
        metrics: Metrics,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._inbox = inbox
        self._capacity = capacity
        self._metrics = metrics
        self._clock = clock
        self._sources = {
            settings.topic_session_completed: events.SOURCE_COMPLETED,
            settings.topic_rescore_requested: events.SOURCE_RESCORE,
        }
        self._publisher = Publisher(settings)
        share, streak = settings.dead_letter_max_share, settings.dead_letter_max_streak
        self._limits = {topic: DeadLetterLimit(share, streak, monotonic) for topic in self._sources}
        self._consumer = Consumer(
            settings, tuple(self._sources), is_stopped=lambda topic: self._limits[topic].excess is not None
        )
        self.has_joined = False

    async def run(self, stopping: asyncio.Event) -> None:
        """Join the consumer group and store records until `stopping`, then leave the group."""
        try:
            if not await unless_stopped(self._consumer.start(), stopping):
                return
            self.has_joined = True
            # Evaluated at each scrape: a pass may wait for the database while the state of the broker
            # changes.
            self._metrics.kafka_up.labels("intake").set_function(lambda: self._consumer.is_served)
            log.info("intake.joined", group=self._settings.kafka_group)
            patience = self._inbox.database.patience()
            while not stopping.is_set():
                try:
                    with patience:
                        # The client waits without a limit for partitions and for commits while brokers
                        # are away.
                        await unless_stopped(self.run_once(), stopping)
                        if self._consumer.is_served or self._capacity.is_paused:
                            self._metrics.intake_last_pass.set(self._clock())
                        self._metrics.consumer_lag.set(await self._consumer.lag())
                        for topic in self._sources:
                            for reason, count in self._consumer.count_stopped(topic).items():
                                self._metrics.intake_stopped.labels(topic, reason).set(count)
                        continue
                except BrokerAway as error:
                    log.warning("intake.waiting", reason=str(error), retry_in_s=RETRY_S)
                await asyncio.sleep(RETRY_S)
        finally:
            # The process may drain scores for minutes. The intake gauges must not raise alerts meanwhile,
            # because another process consumes the partitions.
            paused = [self._metrics.intake_paused.labels(bound) for bound in BOUNDS]
            for gauge in (self._metrics.intake_last_pass, self._metrics.consumer_lag, *paused):
                gauge.set(0)
            self._metrics.intake_stopped.clear()
            self._metrics.kafka_up.remove("intake")
            await self._consumer.stop()
            await self._publisher.stop()

    async def run_once(self) -> None:
        """
        Take arrived records, store them and commit their offsets.

        After a cancel the consumer can only be stopped: records taken before are not delivered to it again.

        Raises:
            BrokerAway, DatabaseAway: No offset of an unstored record was committed.
        """
        room = await self._capacity.room()
        if room <= 0:
            await asyncio.sleep(PAUSE_CHECK_S)
            return
        records = await self._consumer.take(TAKE_WAIT_S, min(room, TAKE_LIMIT))
        self._capacity.use(len(records))
        if not records:
            return
        await self.store(records)
        if not await self._consumer.commit(records):
            self._metrics.offset_commits_refused.inc()

    async def store(self, records: Sequence[Record]) -> None:
        """
        Store the requests of `records`, then write dead letters for the others; waits until that is done.

        A topic with too many invalid messages is paused behind them.
        """
        origins = await dead_letters.find_replays(self._inbox.database, records)
        requests, invalid = await asyncio.to_thread(self._decode_all, records, origins)
        invalid |= await self._accept(records, requests)
        for place, error in sorted(invalid.items()):
            await self._dead_letter(records[place], error, origins.get(place))
        # Replayed dead letters were counted when they arrived; tombstones are neither valid nor invalid.
        counted = [p for p, record in enumerate(records) if record.value is not None and p not in origins]
        for topic, limit in self._limits.items():
            excess = limit.count(place in invalid for place in counted if records[place].topic == topic)
            if excess is not None:
                log.error(
                    "intake.topic_stopped",
                    topic=topic,
                    reason=excess,
                    pause_s=limit.pause_s,
                    advice="correct the producers, or raise that setting to make all of them dead letters",
                )

    def stopped_topics(self) -> dict[str, str | None]:
        """By topic: why it is not read now; None where it is."""
        return {topic: limit.excess for topic, limit in self._limits.items()}

    def _decode_all(
        self, records: Sequence[Record], origins: Mapping[int, Origin]
    ) -> tuple[dict[int, Request], dict[int, InvalidMessage]]:
        """Decode all records but tombstones; requests and errors by their places in `records`."""
        requests: dict[int, Request] = {}
        invalid: dict[int, InvalidMessage] = {}
        for place, record in enumerate(records):
            if record.value is None:  # a tombstone, which says that a key is gone, and asks for nothing
                self._metrics.requests.labels(self._sources[record.topic], "tombstone").inc()
                continue
            try:
                requests[place] = self.decode(record, replayed_from=origins.get(place))
            except InvalidMessage as error:
                invalid[place] = error
        return requests, invalid

    def _is_stale(self, record: Record) -> bool:
        limit_s = self._settings.config.max_event_age_s
        sent_at = moment(record.timestamp_ms / 1000)
        return limit_s is not None and sent_at is not None and self._clock() - sent_at.timestamp() > limit_s

    def decode(self, record: Record, *, replayed_from: Origin | None = None) -> Request:
        """
        Decode the request in a record. Text of strangers is masked here, so call it in a thread.

        Args:
            replayed_from: The origin of a replayed record.

        Raises:
            InvalidMessage: The record holds no valid request.
        """
        origin = replayed_from or dead_letters.position_of(record)
        masking = masking_of(self._settings.config.masking_patterns)
        if self._sources[record.topic] == events.SOURCE_COMPLETED:
            event = events.decode(events.SessionCompleted, record.value)
            return Request(
                request_id=events.request_id_of("session.completed", event, origin, record.value),
                session_id=event.session_id,
                source=events.SOURCE_COMPLETED,
                event_id=event.event_id,
                chain_id=event.chain_id,
                alert_type=event.alert_type,
                labels=event.labels or {},
                session_status=event.status or "completed",
                completed_at=event.completed_at,
                is_stale=replayed_from is None and self._is_stale(record),
                traceparent=traceparent_of(record.headers),
            ).masked(masking)
        asked = events.decode(events.RescoreRequested, record.value)
        reference = self._reference_of(asked, record)
        return Request(
            request_id=events.request_id_of("scoring.rescore_requested", asked, origin, record.value),
            session_id=asked.session_id,
            source=events.SOURCE_RESCORE,
            event_id=asked.event_id,
            requested_by=asked.requested_by or "event",
            force=asked.force is not False or asked.reference is not None or asked.use_reference is False,
            reference=reference,
            use_reference=asked.use_reference is not False,
            is_reference_refused=asked.reference is not None and reference is None,
            criteria=asked.criteria,
            reason=asked.reason,
            priority=Priority.PEOPLE,
            traceparent=traceparent_of(record.headers),
        ).masked(masking)

    def _reference_of(self, asked: events.RescoreRequested, record: Record) -> Reference | None:
        if asked.reference is None:
            return None
        by, config = asked.requested_by or "event", self._settings.config
        if not config.references.get("from_events", True):
            log.warning("intake.reference_refused", session_id=asked.session_id, requested_by=by)
            return None
        sent_at, sent_by = moment(record.timestamp_ms / 1000), events.sender_of_event(by)
        given, patterns = asked.reference, config.masking_patterns
        return reference_of(given, asked.session_id, patterns, by=by, sent_by=sent_by, at=sent_at)

    async def _accept(
        self, records: Sequence[Record], requests: Mapping[int, Request]
    ) -> dict[int, InvalidMessage]:
        """
        Store requests by their places in `records`; returns those that the database refuses even alone.
        """
        refused: dict[int, InvalidMessage] = {}
        try:
            dispositions = await self._inbox.accept(list(requests.values())) if requests else {}
        except NotStorable as error:
            if len(requests) == 1:
                return dict.fromkeys(requests, InvalidMessage("not_storable", str(error)))
            for place, request in requests.items():
                refused |= await self._accept(records, {place: request})
            return refused
        for place, request in {r.request_id: (place, r) for place, r in requests.items()}.values():
            disposition = dispositions.get(request.request_id, "repeated")
            self._metrics.requests.labels(request.source, disposition).inc()
            sent_at = moment(records[place].timestamp_ms / 1000)
            if disposition == "accepted" and sent_at is not None:
                delay_s = max(0.0, self._clock() - sent_at.timestamp())
                self._metrics.request_delay.labels(request.source).observe(delay_s)
        return refused

    async def _dead_letter(self, record: Record, error: InvalidMessage, replayed_from: Origin | None) -> None:
        now = datetime.fromtimestamp(self._clock(), UTC)
        letter = (self._settings.topic_dead_letters, self._inbox.database, record, error, now)
        while True:
            try:
                await dead_letters.write_dead_letter(self._publisher, *letter, replayed_from=replayed_from)
                break
            except (BrokerAway, TooLarge) as away:  # the consumer does not deliver the record a second time
                log.error("intake.stopped", reason=str(away), retry_in_s=RETRY_S)
                await asyncio.sleep(RETRY_S)
        await dead_letters.note_failure(
            self._inbox.database, replayed_from or dead_letters.position_of(record)
        )
        self._metrics.dead_letters.labels(error.reason).inc()
        log.warning(
            "intake.dead_letter",
            reason=error.reason,
            detail=str(error),
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            bytes=len(record.value or b""),
        )

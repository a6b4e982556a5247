"""
Sends notifications about scoring events, to each target independently.

Laws. Each target has a consumer group, whose offsets are the only state: they are committed after the target
took the message, so a crash repeats one message and loses none. A target that is away is asked again, and
holds up only itself, because that consumer asks for no records meanwhile. A repeated event is recognised by
id and sent once.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping

import structlog

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.events import ScoringCompleted
from tarsy_scoring.kafka.connect import BrokerAway
from tarsy_scoring.kafka.consumer import Consumer, Record
from tarsy_scoring.notifications.targets import MessageRefused, Target, TargetAway
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.telemetry.stopping import unless_stopped

log = structlog.get_logger()

TAKE_S, TAKE_LIMIT = 1.0, 100
SEND_S = 60.0  # limit for one message with all that the library does
RETRY_MIN_S, RETRY_MAX_S = 1.0, 60.0
OLDEST_S = 86_400.0  # a target that was away for days would get thousands
KNOWN_IDS = 10_000


class Notifier:
    """Sends to all targets; several processes share the partitions in each group."""

    def __init__(self, settings: Settings, targets: Mapping[str, Target], metrics: Metrics) -> None:
        self._settings = settings
        self._targets = targets
        self._metrics = metrics
        self._joined: set[str] = set()

    @property
    def lacking(self) -> str | None:
        """The group that has not been joined yet, for `/readyz`."""
        waiting = sorted(self._targets.keys() - self._joined)
        return f"the consumer group of the target {waiting[0]} has not been joined yet" if waiting else None

    async def run(self, stopping: asyncio.Event) -> None:
        """
        Send until `stopping`; what was not sent is sent by another process, or after the next start.

        Raises:
            ExceptionGroup: A loop died, or the brokers refuse a group (`StartRefused`).
        """
        async with asyncio.TaskGroup() as group:
            for name, target in self._targets.items():
                group.create_task(self._notify(name, target, stopping))

    async def _notify(self, name: str, target: Target, stopping: asyncio.Event) -> None:
        group = f"{self._settings.kafka_group}-notify-{name}"
        consumer = Consumer(
            self._settings, [self._settings.topic_scoring_events], group=group, begin="latest"
        )
        sending = _Sending(name, target, self._metrics)
        try:
            if not await unless_stopped(consumer.start(), stopping):
                return
            self._joined.add(name)
            while not stopping.is_set():
                try:
                    records = await consumer.take(TAKE_S, TAKE_LIMIT)
                except BrokerAway as error:
                    log.warning("notification.broker_away", target=name, reason=str(error))
                    await unless_stopped(asyncio.sleep(RETRY_MIN_S), stopping)
                    continue
                for record in records:
                    if (event := sending.wanted(record)) is None:
                        continue
                    if not await unless_stopped(sending.send(event), stopping):
                        return
                    await consumer.commit([record])
                if records:
                    await consumer.commit(records)
        finally:
            await consumer.stop()


class _Sending:
    """Sends events to one target, each once."""

    def __init__(self, name: str, target: Target, metrics: Metrics) -> None:
        self._name = name
        self._target = target
        self._metrics = metrics
        self._known: OrderedDict[str, None] = OrderedDict()
        metrics.notification_target_away.labels(name).set(0)
        # A series that begins with the first count has no increase.
        for result in ("sent", "refused", "outdated"):
            metrics.notifications.labels(name, result)

    def wanted(self, record: Record) -> ScoringCompleted | None:
        """The completed score to send; None: another event, an unwanted score, or a repeat."""
        try:
            event = ScoringCompleted.model_validate_json(record.value or b"")
        except ValueError:
            return None
        return event if event.event_id not in self._known and self._target.wants(event) else None

    async def send(self, event: ScoringCompleted) -> None:
        """Send the message about a score; asks a target that is away again."""
        result = await self._deliver(event)
        self._metrics.notification_target_away.labels(self._name).set(0)
        self._metrics.notifications.labels(self._name, result).inc()
        self._known[event.event_id] = None
        if len(self._known) > KNOWN_IDS:
            self._known.popitem(last=False)

    async def _deliver(self, event: ScoringCompleted) -> str:
        retry_s = RETRY_MIN_S
        while time.time() - event.timestamp_us / 1e6 < OLDEST_S:
            try:
                async with asyncio.timeout(SEND_S):
                    await asyncio.to_thread(self._target.send, event)
                return "sent"
            except MessageRefused as error:
                log.error(
                    "notification.refused", target=self._name, event_id=event.event_id, reason=str(error)
                )
                return "refused"
            except (TargetAway, ConfigurationError, TimeoutError) as error:
                if retry_s == RETRY_MIN_S:
                    log.warning(
                        "notification.waiting", target=self._name, reason=str(error) or "no answer in time"
                    )
            self._metrics.notification_target_away.labels(self._name).set(1)
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, RETRY_MAX_S)
        return "outdated"

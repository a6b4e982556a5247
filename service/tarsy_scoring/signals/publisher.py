"""
Publishes rolling figures per chain, in one process at a time.

The figures are read again when events report that a score ended, at most once a second, and every minute,
because windows lose scores as time passes and events may be lost. Chains whose figures differ from their last
message are published.

Laws. A message has the figures that the database had when it was read. Only the process that holds the
advisory lock publishes. A process that was frozen may still send older figures after another one took over;
consumers keep the message with the later `timestamp`, which comes from the database's clock.
"""

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import structlog
from pydantic_core import from_json, to_json

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.kafka.connect import BrokerAway
from tarsy_scoring.kafka.publisher import Publisher, TooLarge
from tarsy_scoring.postgres.database import Database, DatabaseAway
from tarsy_scoring.postgres.leader import AdvisoryLock
from tarsy_scoring.signals.consumer import consume
from tarsy_scoring.signals.figures import NO_CHAIN, is_empty, read_figures
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.telemetry.stopping import unless_stopped

log = structlog.get_logger()

ROUND_S = 1.0  # how often changed figures are published
READING_SHARE = 0.1  # most time spent reading figures: a large fleet gets them less often
REFRESH_S = 60  # divides every hop, so that a window is published as soon as it moved
STANDBY_S = 2.0
PUBLISH_TIMEOUT_S = 10.0
ENDS = ("scoring.completed", "scoring.failed")

_LEADER = AdvisoryLock("tarsy-scoring insights")


class RollingSignals:
    """
    This publisher leads, or stands by while another process leads.

    Attributes:
        lacking: Why the last try failed, for `/readyz`; None: it leads or stands by.
    """

    def __init__(self, settings: Settings, database: Database, metrics: Metrics) -> None:
        self._settings = settings
        self._database = database
        self._metrics = metrics
        self._publisher = Publisher(settings)
        self._has_changed = False  # whether a score may have ended since the figures were read
        # The figures in each chain's last acknowledged message, so that equal figures are not sent again.
        self._published: dict[str, Mapping[str, Any]] = {}
        self._reading_s = 0.0
        self.lacking: str | None = "the database has not answered yet"

    async def run(self, stopping: asyncio.Event) -> None:
        """Lead or stand by until `stopping`; retries while the database or broker is away."""
        try:
            while not stopping.is_set():
                try:
                    await _LEADER.lead(self._database, lambda: self._lead(stopping))
                    self.lacking = None
                except DatabaseAway as error:
                    self._report(error)
                await unless_stopped(asyncio.sleep(STANDBY_S), stopping)
        finally:
            await self._publisher.stop()

    async def _lead(self, stopping: asyncio.Event) -> None:
        """Publish until `stopping`."""
        self._published.clear()  # the former leader may have published other figures
        # The brokers answered when the start looked for the topics.
        self._metrics.kafka_up.labels("insights").set(1)
        consumer = asyncio.create_task(consume(self._settings, self.take_event))
        try:
            await self._publish_rounds(stopping)
        finally:
            consumer.cancel()
            await asyncio.wait({consumer})
            self._metrics.kafka_up.remove("insights")

    async def _publish_rounds(self, stopping: asyncio.Event) -> None:
        refreshed_at: int | None = None
        while not stopping.is_set():
            try:
                [[now]] = await self._database.fetch("SELECT clock_timestamp()")
                minute = int(now.timestamp()) // REFRESH_S
                if self._has_changed or minute != refreshed_at:
                    await self.publish_changed(now)
                if refreshed_at is None:
                    log.info("insights.ready", chains=len(self._published))
                refreshed_at, self.lacking = minute, None
                self._metrics.kafka_up.labels("insights").set(1)
            except (DatabaseAway, TooLarge) as error:
                self._report(error)
            except BrokerAway as error:
                self._metrics.kafka_up.labels("insights").set(0)
                self._report(error)
            await unless_stopped(asyncio.sleep(max(ROUND_S, self._reading_s / READING_SHARE)), stopping)

    def _report(self, error: Exception) -> None:
        self.lacking = str(error)
        if isinstance(error, DatabaseAway):
            self._database.note_away(error)
        else:
            log.warning("insights.waiting", reason=self.lacking)

    def take_event(self, value: bytes | None) -> None:
        """Note the end of a production score. Never raises."""
        try:
            event = from_json(value or b"")
            is_end = event["type"] in ENDS and event["purpose"] == "production"
        except (ValueError, KeyError, TypeError):
            self._metrics.insights_events.labels("unreadable").inc()
            return
        if is_end:
            self._metrics.insights_events.labels("counted").inc()
            self._has_changed = True

    async def publish_changed(self, now: datetime) -> int:
        """
        Read the figures of all chains, and publish those that differ from the last ones published.

        Args:
            now: By the database clock.

        Returns:
            How many messages the brokers acknowledged.

        Raises:
            DatabaseAway, BrokerAway, TooLarge: What was not published is published by the next call.
        """
        self._has_changed, began_s = False, time.monotonic()
        try:
            figures = await read_figures(self._database, self._settings, now, self._published)
            self._reading_s = time.monotonic() - began_s
            news = {
                chain: windows for chain, windows in figures.items() if windows != self._published.get(chain)
            }
            acknowledged = await self._publish(news, now)
            for chain in acknowledged:
                self._published[chain] = news[chain]
                if is_empty(news[chain]):  # sent once, when the last score has left the windows
                    del self._published[chain]
            if len(acknowledged) < len(news):
                missing = len(news) - len(acknowledged)
                raise BrokerAway(f"{missing} of {len(news)} messages were not acknowledged in time")
        except (DatabaseAway, BrokerAway, TooLarge):
            self._has_changed = True
            raise
        return len(news)

    async def _publish(self, news: Mapping[str, Mapping[str, Any]], now: datetime) -> list[str]:
        """Publish the windows; returns the chains whose message the brokers acknowledged."""
        messages = [
            (chain.encode(), to_json(_message(chain, windows, now)), ()) for chain, windows in news.items()
        ]
        topic = self._settings.topic_scoring_insights
        are_there = await self._publisher.publish(topic, messages, PUBLISH_TIMEOUT_S)
        return [chain for chain, is_there in zip(news, are_there, strict=True) if is_there]


def _message(chain: str, windows: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    return {
        "type": "scoring.windows",
        "chain_id": None if chain == NO_CHAIN else chain,
        "timestamp": now.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "timestamp_us": round(now.timestamp() * 1_000_000),
        "windows": windows,
    }

"""
Publishes rolling figures per chain, in one process at a time.

A chain is published when events report a change, at most once a second, and whenever the windows moved. Every
minute all figures are read again, because windows lose scores as time passes and events may be
lost.

Laws. A message has the figures that the database had when it was read. Only the process that holds the
advisory lock publishes. A process that was frozen may still send older figures after another one took over;
consumers keep the message with the later `timestamp`, which comes from the database's clock.
"""

import asyncio
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import structlog
from pydantic_core import to_json

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.kafka.connect import BrokerAway
from tarsy_scoring.kafka.publisher import Publisher, TooLarge
from tarsy_scoring.postgres.database import Database, DatabaseAway
from tarsy_scoring.postgres.leader import AdvisoryLock
from tarsy_scoring.signals.consumer import consume, read_ended_chain
from tarsy_scoring.signals.figures import NO_CHAIN, is_empty, read_figures
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.telemetry.stopping import unless_stopped

log = structlog.get_logger()

ROUND_S = 1.0  # how often changed chains are published
READING_SHARE = 0.1  # most time spent reading figures: a large fleet gets them less often
REFRESH_S = 60  # divides every hop, so that a window is published as soon as it moved
STANDBY_S = 2.0
PUBLISH_TIMEOUT_S = 10.0
# Keys of `scoring.drift_detected` in the same compacted topic. A chain with such a name is not published: it
# would overwrite the finding.
DRIFT_KEY = re.compile(r"drift:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

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
        self._changed: set[str] = set()  # chains whose figures may have changed
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
        self._metrics.kafka_up.labels("insights").set(
            1
        )  # the brokers answered when the start looked for the topics
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
                await self.publish_changed(now, refresh=minute != refreshed_at)
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

    # --- marking ---------------------------------------------------------------------------------------

    def take_event(self, value: bytes | None) -> None:
        """Mark the chain of a score that ended as changed. Never raises."""
        try:
            chain = read_ended_chain(value)
        except ValueError:
            self._metrics.insights_events.labels("unreadable").inc()
            return
        if chain is not None:
            self._metrics.insights_events.labels("counted").inc()
            self._changed.add(chain)

    # --- publishing ------------------------------------------------------------------------------------

    async def publish_changed(self, now: datetime, *, refresh: bool) -> int:
        """
        Publish windows for changed chains that differ from the last ones published.

        Args:
            now: By the database clock.
            refresh: Read all chains, and not only the changed ones: windows move, and an event may be lost.

        Returns:
            How many messages the brokers acknowledged.

        Raises:
            DatabaseAway, BrokerAway, TooLarge: Chains that were not published stay marked as changed.
        """
        changed, self._changed = self._changed, set()
        chains = {*changed, *self._published} if refresh else changed
        try:
            began_s, figures = time.monotonic(), {}
            if refresh or chains:
                figures = await read_figures(self._database, self._settings, now, chains, with_others=refresh)
            self._reading_s = time.monotonic() - began_s
            news = {chain: windows for chain, windows in figures.items() if self._is_news(chain, windows)}
            acknowledged = await self._publish(news, now)
        except BaseException:
            self._changed |= changed
            raise
        for chain in acknowledged:
            self._published.pop(chain, None)
            if not is_empty(news[chain]):
                self._published[chain] = news[chain]
        if missing := news.keys() - acknowledged:
            self._changed |= missing
            raise BrokerAway(f"{len(missing)} of {len(news)} messages were not acknowledged in time")
        return len(news)

    async def _publish(self, news: Mapping[str, Mapping[str, Any]], now: datetime) -> list[str]:
        """Publish the windows; returns the chains whose message the brokers acknowledged."""
        if not news:
            return []
        messages = [
            (chain.encode(), to_json(_message(chain, windows, now)), ()) for chain, windows in news.items()
        ]
        topic = self._settings.topic_scoring_insights
        are_there = await self._publisher.publish(topic, messages, PUBLISH_TIMEOUT_S)
        return [chain for chain, is_there in zip(news, are_there, strict=True) if is_there]

    def _is_news(self, chain: str, windows: Mapping[str, Any]) -> bool:
        """Whether the windows of the chain differ from the last acknowledged message."""
        if DRIFT_KEY.fullmatch(chain):
            return False
        last = self._published.get(chain)
        # Windows that count nothing are sent once, when the last score has left them.
        return windows != last and not (last is None and is_empty(windows))


def _message(chain: str, windows: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    return {
        "type": "scoring.windows",
        "chain_id": None if chain == NO_CHAIN else chain,
        "timestamp": now.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "timestamp_us": round(now.timestamp() * 1_000_000),
        "windows": windows,
    }

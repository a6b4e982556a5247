"""
The channel `insights`: the newest message of each chain and the last drift findings.

A new subscriber gets a snapshot, then live messages. Each process reads the compacted topic from the
beginning and keeps the newest messages, so clients need no position and no catch-up. Without a broker or the
topic the channel is silent; the other channels do not depend on it.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from pydantic_core import from_json

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.kafka.connect import BrokerAway
from tarsy_scoring.kafka.consumer import Record
from tarsy_scoring.kafka.security import connection_options
from tarsy_scoring.kafka.topics import Tail, has_topic
from tarsy_scoring.live.client import Chunk
from tarsy_scoring.live.subscriptions import Subscriptions
from tarsy_scoring.telemetry.stopping import unless_stopped

log = structlog.get_logger()

INSIGHTS = "insights"
WINDOWS, DRIFT = "scoring.windows", "scoring.drift_detected"
MOST_FINDINGS = 20
FINDING_KEPT_S = 30 * 86_400
# Half of a client's queue, so that a snapshot does not overflow it. About 500 chains fit.
MOST_MESSAGES, MOST_BYTES = 500, 512 * 1024
LONGEST_BYTES = 16 * 1024
MOST_AHEAD_S = 3600  # a message dated further ahead would stay the newest for too long
GATHER_S = 0.25  # length of a round; only the newest message per chain of a round is sent
RETRY_S = 10.0


@dataclass(frozen=True, slots=True)
class Insight:
    """A message of the topic; `text` is sent to clients unchanged."""

    kind: str
    text: bytes
    emitted_us: int


def decode(key: bytes | None, value: bytes) -> Insight | None:
    """The message in a record; None: it is of another kind, too large, or under a wrong key."""
    if len(value) > LONGEST_BYTES:
        return None
    try:
        payload = from_json(value, allow_inf_nan=False)
        kind, emitted_us = payload["type"], payload["timestamp_us"]
        if type(emitted_us) is not int or key != _key_of(kind, payload):
            return None
        return Insight(kind, value, emitted_us)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _key_of(kind: str, payload: Mapping[str, Any]) -> bytes | None:
    if kind == WINDOWS:
        return bytes((payload["chain_id"] or "").encode())
    return f"drift:{payload['event_id']}".encode() if kind == DRIFT else None


class Newest:
    """The messages that a new subscriber gets, bounded in number and size whatever the topic holds."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Insight] = {}
        self._snapshot: Chunk | None = None

    def take(self, records: Sequence[Record], now_us: int) -> list[bytes]:
        """
        Keep the newest message per key; a tombstone removes the key, and other records are skipped.

        Returns:
            The texts that are new, the last one per key. A message that is read again is not new.
        """
        news: dict[bytes, bytes] = {}
        for record in records:
            key = record.key
            if key is None:
                continue
            if record.value is None:
                if self._kept.pop(key, None) is not None:
                    self._snapshot = None
                continue
            insight = decode(key, record.value)
            if insight is None or not self._is_newer(key, insight, now_us):
                continue
            news.pop(key, None)
            news[key] = insight.text
            self._kept[key] = insight
            self._snapshot = None
        self._forget(now_us)
        return [text for key, text in news.items() if key in self._kept]

    def _is_newer(self, key: bytes, insight: Insight, now_us: int) -> bool:
        if insight.emitted_us > now_us + MOST_AHEAD_S * 1_000_000:
            return False
        held = self._kept.get(key)
        # A tail that was replaced starts at the beginning of the topic, with outdated messages.
        return held is None or (insight.emitted_us >= held.emitted_us and insight.text != held.text)

    def snapshot(self, now_us: int) -> Chunk:
        """All kept messages, the oldest first; the same object while nothing changes."""
        self._forget(now_us)
        if self._snapshot is None:
            self._snapshot = Chunk([i.text for i in sorted(self._kept.values(), key=lambda i: i.emitted_us)])
        return self._snapshot

    def _forget(self, now_us: int) -> None:
        """Drop findings that are too many or too old, and the oldest messages beyond a snapshot's size."""
        kept: dict[bytes, Insight] = {}
        findings, room = 0, MOST_BYTES
        for key, insight in sorted(self._kept.items(), key=lambda item: item[1].emitted_us, reverse=True):
            if insight.kind == DRIFT:
                findings += 1
                if findings > MOST_FINDINGS or insight.emitted_us < now_us - FINDING_KEPT_S * 1_000_000:
                    continue
            room -= len(insight.text)
            if len(kept) == MOST_MESSAGES or room < 0:
                break
            kept[key] = insight
        if len(kept) < len(self._kept):
            self._kept, self._snapshot = kept, None


class LiveInsights:
    """The channel `insights` of one process: `run` follows the topic, `snapshot` serves a new subscriber."""

    def __init__(self, settings: Settings, subscriptions: Subscriptions) -> None:
        self._settings = settings
        self._subscriptions = subscriptions
        self._newest = Newest()
        self._is_silence_logged = False

    def snapshot(self) -> Chunk:
        """The messages read so far. While the topic is still being read, the others follow live."""
        return self._newest.snapshot(_now_us())

    def take_records(self, records: Sequence[Record]) -> None:
        """Keep the messages of these records, and send the new ones to subscribers."""
        if records:
            self._is_silence_logged = False
        if news := self._newest.take(records, _now_us()):
            self._subscriptions.broadcast(INSIGHTS, Chunk(news))

    async def run(self, stopping: asyncio.Event) -> None:
        """Follow the topic until `stopping`; retries while the broker is away or the topic is missing."""
        options = connection_options(self._settings)
        topic = self._settings.topic_scoring_insights
        while not stopping.is_set():
            try:
                if await has_topic(options, topic):
                    await Tail(options, topic).follow(self.take_records, stopping, GATHER_S)
                else:
                    self._log_silence(f"there is no topic {topic}, or it may not be read")
            except BrokerAway as error:
                self._log_silence(str(error))
            await unless_stopped(asyncio.sleep(RETRY_S), stopping)

    def _log_silence(self, reason: str) -> None:
        """Log that no message comes, once until the next message."""
        # An installation without rolling signals must not fill the log.
        if not self._is_silence_logged:
            log.warning("gateway.insights_away", reason=reason, effect="clients get no rolling signals")
        self._is_silence_logged = True


def _now_us() -> int:
    return time.time_ns() // 1000

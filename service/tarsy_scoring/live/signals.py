"""
The channel `insights`: the newest message of every chain and the last findings of drift, at once and then live.

Every process reads the compacted topic from its beginning and keeps what is newest, so nobody needs a position or a
catch-up. Without a broker or the topic the channel is silent, and nothing else is harmed.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from pydantic_core import from_json

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.kafka.clients import BrokerAway, Record
from tarsy_scoring.kafka.security import connection_options
from tarsy_scoring.kafka.topics import Tail, has_topic
from tarsy_scoring.live.client import Chunk
from tarsy_scoring.live.subscriptions import Audience

log = structlog.get_logger()

INSIGHTS = "insights"
WINDOWS, DRIFT = "scoring.windows", "scoring.drift_detected"
MOST_FINDINGS = 20
FINDING_KEPT_S = 30 * 86_400
# Half of what may wait for a client: a snapshot makes nobody slow. Some 500 chains have room.
MOST_MESSAGES, MOST_BYTES = 500, 512 * 1024
LONGEST_BYTES = 16 * 1024
MOST_AHEAD_S = 3600  # what says that it is of later still would stay the newest whatever comes
TAKE_S = 0.5
GATHER_S = 0.25  # of a chain only the newest message of a round is sent
RETRY_S = 10.0


@dataclass(frozen=True, slots=True)
class Insight:
    """A message of the topic, as it is sent to clients."""

    kind: str
    text: bytes
    emitted_us: int


def decode(key: bytes | None, value: bytes) -> Insight | None:
    """A message as the topic has it; None: it is none of ours, or stands under the key of another."""
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
    """What a client that comes now has to be told. Pure; bounded, whoever writes to the topic."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Insight] = {}
        self._snapshot: Chunk | None = None
        self._has_overflowed = False

    def take(self, records: Sequence[Record], now_us: int) -> list[bytes]:
        """
        Take in what the topic brought; what is foreign is passed over, and a tombstone takes its key away.

        Returns:
            What is news, as it is sent: of each key the last. What is read a second time is none.
        """
        news: dict[bytes, bytes] = {}
        for record in records:
            key = record.key
            if key is None:
                continue
            if record.value is None:
                self._drop([key])
                continue
            insight, held = decode(key, record.value), self._kept.get(key)
            if insight is None or insight.emitted_us > now_us + MOST_AHEAD_S * 1_000_000:
                continue
            # A tail that had to be made anew begins at the beginning, with what is long outdated.
            if held is not None and (insight.emitted_us < held.emitted_us or insight.text == held.text):
                continue
            news.pop(key, None)
            news[key] = insight.text
            self._kept[key] = insight
            self._snapshot = None
        self._forget(now_us)
        return [text for key, text in news.items() if key in self._kept]

    def snapshot(self, now_us: int) -> Chunk:
        """All that is kept, the oldest first; the same object while nothing changes."""
        self._forget(now_us)
        if self._snapshot is None:
            self._snapshot = Chunk([i.text for i in sorted(self._kept.values(), key=lambda i: i.emitted_us)])
        return self._snapshot

    def _forget(self, now_us: int) -> None:
        """Keep the last findings that are not too old, and of everything as much as one snapshot may hold."""
        newest = sorted(self._kept, key=lambda k: self._kept[k].emitted_us, reverse=True)
        findings = [k for k in newest if self._kept[k].kind == DRIFT]
        oldest_us = now_us - FINDING_KEPT_S * 1_000_000
        fresh = [k for k in findings if self._kept[k].emitted_us >= oldest_us][:MOST_FINDINGS]
        self._drop(set(findings).difference(fresh))
        room = MOST_BYTES
        for number, key in enumerate(k for k in newest if k in self._kept):
            room -= len(self._kept[key].text)
            if number >= MOST_MESSAGES or room < 0:
                self._drop([key])
                if not self._has_overflowed:
                    log.warning("gateway.insights_overflow", effect="of so many chains only the newest are told")
                self._has_overflowed = True

    def _drop(self, keys: Sequence[bytes] | set[bytes]) -> None:
        for key in keys:
            if self._kept.pop(key, None) is not None:
                self._snapshot = None


class LiveInsights:
    """The channel of one process: `run` follows the topic, `snapshot` is what a new subscriber gets."""

    def __init__(self, settings: Settings, audience: Audience) -> None:
        self._settings = settings
        self._audience = audience
        self._newest = Newest()
        self._has_complained = False

    def snapshot(self) -> Chunk:
        """What is known now; the rest comes live, also while the topic is still being read."""
        return self._newest.snapshot(_now_us())

    def take_records(self, records: Sequence[Record]) -> None:
        """What the topic brought: kept, and offered to those who subscribed."""
        if news := self._newest.take(records, _now_us()):
            self._audience.tell(INSIGHTS, Chunk(news))

    async def run(self, stopping: asyncio.Event) -> None:
        """Follow the topic until `stopping`; a broker that is away and a topic that is missing are waited for."""
        options = connection_options(self._settings)
        topic = self._settings.topic_scoring_insights
        while not stopping.is_set():
            try:
                if await has_topic(options, topic):
                    await self._follow(Tail(options, topic), stopping)
                else:
                    self._complain(f"there is no topic {topic}, or we may not read it")
            except BrokerAway as error:
                self._complain(str(error))
            await _wait(stopping, RETRY_S)

    async def _follow(self, tail: Tail, stopping: asyncio.Event) -> None:
        try:
            await tail.start()
            while not stopping.is_set():
                if records := await tail.take(TAKE_S):
                    self._has_complained = False
                    self.take_records(records)
                    await _wait(stopping, GATHER_S)
        finally:
            await tail.stop()

    def _complain(self, reason: str) -> None:
        """Once, until something comes: nobody needs this channel to score."""
        if not self._has_complained:
            log.warning("gateway.insights_away", reason=reason, effect="rolling signals are not told live")
        self._has_complained = True


def _now_us() -> int:
    return time.time_ns() // 1000


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()

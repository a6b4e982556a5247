"""
Outbox to `scoring-events`: one relay at a time, in order per session, at least once.

Laws. One transaction gives committed events the next positions; a second one, under the same advisory
lock, publishes in that order and marks what the broker acknowledged. A crash between acknowledgement
and mark repeats events, which consumers drop by `event_id`; the other order would lose them. Whoever
finds the lock free is the relay, so a dead one is replaced at the next poll. Positions are given also while a
broker is waited for: where it is away, live events come by their positions from the database.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog
from pydantic_core import to_json

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.events import cloudevents_headers
from tarsy_scoring.kafka.clients import MAX_REQUEST_BYTES, BrokerAway, Headers, Publisher, TooLarge
from tarsy_scoring.postgres.database import Connection, Database, DatabaseAway
from tarsy_scoring.queue import outbox
from tarsy_scoring.queue.outbox import Placed
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.telemetry.tracing import TRACEPARENT

log = structlog.get_logger()

T = TypeVar("T")

POLL_S = 1.0
# How often positions are given while a broker is waited for: live events then wait for little more than the second of
# those who read them from the database.
NUMBER_EVERY_S = 0.25
LIMIT = 1000
# How long a transaction may stand open for acknowledgements: it holds back vacuum and the next relay.
PUBLISH_TIMEOUT_S = 10.0
FLUSH_S = 10.0
# Between two passes: a pass costs the same for one event as for twenty.
GATHER_S = 0.025
MAX_EVENT_BYTES = MAX_REQUEST_BYTES - 16_384  # Kafka counts headers and framing, too


class Relay:
    """The relay of this process: working, or standing by while another process relays."""

    def __init__(self, settings: Settings, database: Database, metrics: Metrics) -> None:
        self._topic = settings.topic_scoring_events
        self._database = database
        self._metrics = metrics
        self._publisher = Publisher(settings)

    async def run(self, stopping: asyncio.Event) -> None:
        """Relay until `stopping`, then flush for at most 10 s; what remains is the next relay's."""
        try:
            while not stopping.is_set():
                if await self._pass() == 0:
                    await self._database.wait_notified("events", POLL_S)
                await asyncio.sleep(GATHER_S)
            with contextlib.suppress(TimeoutError):  # a pass that is cut off is rolled back, and repeats its events
                async with asyncio.timeout(FLUSH_S):
                    while await self._pass() > 0:
                        pass
        finally:
            await self._publisher.stop()

    async def run_once(self) -> int:
        """
        Number and publish what is waiting; returns how many events were acknowledged.

        Raises:
            DatabaseAway, BrokerAway: Nothing is marked that was not acknowledged.
        """

        async def publish(connection: Connection) -> int:
            if not await outbox.RELAY_LOCK.try_acquire(connection, self._database.schema):
                return 0
            events = await outbox.unpublished(self._database, connection, LIMIT)
            if not events:
                return 0
            done = await self.number_while(self._publish(events), is_the_relay=True)
            await outbox.mark_published(self._database, connection, [e.position for e in done])
            return len(done)

        if not await self._number():
            return 0
        # Outside of a transaction, which must not wait for a broker.
        await self.number_while(self._publisher.start(PUBLISH_TIMEOUT_S))
        return await self._database.once(publish)

    async def _number(self, *, is_the_relay: bool = False) -> bool:
        """
        Give positions to what is committed; False: somebody else is the relay.

        Args:
            is_the_relay: The lock is held by a transaction of ours that is open, and needs not be taken.
        """

        async def work(connection: Connection) -> bool:
            if not is_the_relay and not await outbox.RELAY_LOCK.try_acquire(connection, self._database.schema):
                return False
            await outbox.place(self._database, connection, LIMIT)
            return True

        return await self._database.once(work)

    async def number_while(self, broker: Coroutine[Any, Any, T], *, is_the_relay: bool = False) -> T:
        """
        What the broker answers in the end; meanwhile positions are given all the same.

        Args:
            is_the_relay: See `_number`.
        """
        waiting = asyncio.ensure_future(broker)
        try:
            while not (await asyncio.wait({waiting}, timeout=NUMBER_EVERY_S))[0]:
                with contextlib.suppress(DatabaseAway):  # the next pass says so
                    await self._number(is_the_relay=is_the_relay)
            return await waiting
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def _publish(self, events: list[Placed]) -> list[Placed]:
        """Send in order; gives the acknowledged ones up to the first failure of each session."""
        messages = [_message(e) for e in events]
        acknowledged = await self._publisher.publish(self._topic, messages, PUBLISH_TIMEOUT_S)
        done, broken = [], set()
        for event, was_acknowledged in zip(events, acknowledged, strict=True):
            if not was_acknowledged:
                broken.add(event.session_id)
            elif event.session_id not in broken:
                done.append(event)
                self._metrics.events_published.labels(event.payload["type"]).inc()
        return done

    async def _pass(self) -> int:
        try:
            return await self.run_once()
        except (DatabaseAway, BrokerAway, TooLarge) as error:
            log.warning("relay.waiting", reason=str(error), retry_in_s=POLL_S)
            return 0


def _message(event: Placed) -> tuple[bytes, bytes, Headers]:
    """
    Key, value and headers of an event.

    Labels are the one part that others fill without a limit: where they would make the event too large
    for Kafka, it goes out without them, rather than stopping everything behind it.
    """
    value = to_json(event.payload)
    if len(value) > MAX_EVENT_BYTES:
        log.error("relay.labels_left_out", position=event.position, session_id=event.session_id, bytes=len(value))
        value = to_json(event.payload | {"labels": {}})
    headers = cloudevents_headers(event.payload)
    if event.traceparent is not None:
        headers.append((TRACEPARENT, event.traceparent.encode()))
    return event.session_id.encode(), value, headers

"""
Publish the outbox to `scoring-events`: one relay at a time, in order per session, at least once.

Laws. One statement assigns the next positions to committed events. A transaction, under the same advisory
lock, publishes in that order and marks what the brokers acknowledged. A crash between acknowledgement and
mark repeats events, which consumers drop by `event_id`; the other order would lose them. The process that
finds the lock free is the relay, so another process replaces a dead one at the next poll. Notifications are
for the relay at work. A relay that finds another at work stands by: it looks once a second, and makes a pass
only if an event waits and no position was assigned since the last look. So relays do not take turns.
Positions are assigned even while a broker is unavailable, because live clients read events by position from
the database.
"""

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import structlog
from pydantic_core import to_json

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.events import cloudevents_headers
from tarsy_scoring.kafka.connect import BrokerAway, Headers
from tarsy_scoring.kafka.publisher import Publisher, TooLarge
from tarsy_scoring.outbox import outbox
from tarsy_scoring.outbox.outbox import OutboxEvent
from tarsy_scoring.postgres.database import Connection, Database, DatabaseAway
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.telemetry.stopping import cancelling
from tarsy_scoring.telemetry.tracing import TRACEPARENT

log = structlog.get_logger()

T = TypeVar("T")

POLL_S = 1.0
# Of a relay whose fleet sends no notifications. It makes fewer passes than the fleet makes other polls.
POLL_IN_LARGE_FLEET_S = 0.05
# How often positions are assigned while a broker call is pending. Live clients poll the database every
# second, so this adds little to their delay.
ASSIGN_EVERY_S = 0.25
LIMIT = 1000
# Limits the time that a transaction stays open for acknowledgements: it holds back vacuum and the next relay.
PUBLISH_TIMEOUT_S = 10.0
FLUSH_S = 10.0
# Pause after each pass, which costs the same CPU for one event as for ten.
REST_S = 0.02

Extent = Literal["whole", "small", "nothing"]  # how much of an event is published

# Fields of no fixed size, which a small event goes without. Consumers rely on those that have an empty value.
_LARGE = ("labels", "failure_tags", "error_message", "interaction")
_EMPTY: Mapping[str, Any] = {"labels": {}, "failure_tags": [], "error_message": ""}


class Relay:
    """
    The relay of this process: at work, or on standby while another process relays.

    Args:
        publisher: Used in place of one made from the settings; stopped at the end of `run`.
    """

    def __init__(
        self, settings: Settings, database: Database, metrics: Metrics, publisher: Publisher | None = None
    ) -> None:
        self._topic = settings.topic_scoring_events
        self._database = database
        self._metrics = metrics
        self._publisher = publisher or Publisher(settings)
        self._patience = database.patience()
        self._is_at_work = True
        self._last_position: int | None = None  # by the last pass or look of this relay

    async def run(self, stopping: asyncio.Event) -> None:
        """Relay until `stopping`, then flush for at most 10 s; the next relay publishes the rest."""
        try:
            while not stopping.is_set():
                if await self._pass() == 0:
                    await self._wait(stopping)
                await asyncio.sleep(REST_S)
            self._is_at_work = True  # the last process that stops publishes the rest
            with contextlib.suppress(TimeoutError):  # a pass that is cut off is rolled back and repeated
                async with asyncio.timeout(FLUSH_S):
                    while await self._pass() > 0:
                        pass
        finally:
            self._database.keep_notifications("events", False)
            await self._publisher.stop()

    async def _wait(self, stopping: asyncio.Event) -> None:
        if self._is_at_work:
            poll_s = POLL_IN_LARGE_FLEET_S if self._database.is_in_large_fleet else POLL_S
            await self._database.wait_notified("events", poll_s)
        else:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), POLL_S)

    async def run_once(self) -> int:
        """
        Assign positions and publish waiting events; returns the number of acknowledged events.

        Raises:
            DatabaseAway, BrokerAway: Only acknowledged events are marked.
        """

        async def publish(connection: Connection) -> int:
            if not await outbox.RELAY_LOCK.try_acquire(connection, self._database.schema):
                return 0
            events = await outbox.unpublished(self._database, connection, LIMIT)
            if not events:
                return 0
            done = await self.assign_positions_during(self._publish(events), is_leading=True)
            await outbox.mark_published(self._database, connection, events, done)
            return len(done)

        if not await self._assign_positions():
            return 0  # another process is the relay, or nothing waits
        # Connect before the transaction begins, so that it is open only while events are published.
        await self.assign_positions_during(self._publisher.start(PUBLISH_TIMEOUT_S))
        return await self._database.once(publish)

    async def _assign_positions(self, *, is_leading: bool = False) -> bool:
        """
        Assign positions to committed events.

        Args:
            is_leading: Another transaction of this process holds the lock, so it is not taken again.

        Returns:
            Whether this process is the relay, and an event waits to be published.
        """

        assigned = await outbox.assign_positions(self._database, LIMIT, is_leading=is_leading)
        is_waiting = False
        if assigned is None:
            self._is_at_work = False
        else:
            before, count, is_waiting = assigned
            is_alone = self._last_position in (None, before)
            self._is_at_work = count > 0 or (self._is_at_work and is_alone)
            self._last_position = before + count
        self._database.keep_notifications("events", self._is_at_work)
        return is_waiting

    async def _is_needed(self) -> bool:
        """
        Whether an event waits, and no relay has assigned a position since the last pass or look of this one.
        """
        before = self._last_position
        self._last_position, is_waiting = await outbox.look(self._database)
        return is_waiting and self._last_position == before

    async def assign_positions_during(
        self, broker_call: Coroutine[Any, Any, T], *, is_leading: bool = False
    ) -> T:
        """
        Await a call to the brokers and keep assigning positions meanwhile; a cancel also cancels the call.

        Args:
            is_leading: See `_assign_positions`.
        """
        waiting = asyncio.ensure_future(broker_call)
        async with cancelling(waiting):
            while not (await asyncio.wait({waiting}, timeout=ASSIGN_EVERY_S))[0]:
                with contextlib.suppress(DatabaseAway):  # the next pass logs it
                    await self._assign_positions(is_leading=is_leading)
            return await waiting

    async def _publish(self, events: list[OutboxEvent]) -> list[OutboxEvent]:
        """Send in order; returns the events of each session that are done, up to the first failure."""
        deadline_s = asyncio.get_running_loop().time() + PUBLISH_TIMEOUT_S
        sent, messages = self._in_order_after_a_refusal(events)
        refused: Sequence[bool] = [False] * len(sent)
        try:
            acknowledged: Sequence[bool] = await self._publisher.publish(
                self._topic, messages, PUBLISH_TIMEOUT_S
            )
        except TooLarge as error:
            log.warning("relay.too_large", reason=str(error), effect="each refused event is sent alone")
            acknowledged, refused = error.acknowledged, error.refused
        done, broken = [], set()
        for event, was_acknowledged, was_refused in zip(sent, acknowledged, refused, strict=True):
            if event.session_id in broken:
                continue
            how: Extent | None = "whole" if was_acknowledged else None
            if not was_acknowledged:
                # Later events of the session may be on the topic: they are repeated.
                broken.add(event.session_id)
                how = await self._publish_alone(event, deadline_s) if was_refused else None
            if how is not None:
                done.append(event)
                self._count(event, how)
        return done

    def _in_order_after_a_refusal(
        self, events: list[OutboxEvent]
    ) -> tuple[list[OutboxEvent], list[tuple[bytes, bytes, Headers]]]:
        """
        The events to send now, with their messages.

        An event that is a batch of its own may be refused while later ones are accepted. So later events of
        that session wait for the next pass.
        """
        sent, messages, waiting = [], [], set()
        for event in events:
            if event.session_id not in waiting:
                sent.append(event)
                messages.append(_message(event))
                if len(messages[-1][1]) > self._publisher.batch_bytes:
                    waiting.add(event.session_id)
        return sent, messages

    async def _publish_alone(self, event: OutboxEvent, deadline_s: float) -> Extent | None:
        """
        Publish an event with as much of it as the topic accepts.

        Returns:
            How much that was; `nothing` if the topic refuses it even without content. None: the brokers
            did not answer in time, so it has to be sent again.
        """
        for how, payload in _ever_smaller(event.payload):
            remaining_s = deadline_s - asyncio.get_running_loop().time()
            if remaining_s <= 0:
                return None
            try:
                message = _message(replace(event, payload=payload))
                [was_acknowledged] = await self._publisher.publish(self._topic, [message], remaining_s)
            except TooLarge:
                continue
            except BrokerAway:
                return None  # the next pass logs why
            return how if was_acknowledged else None
        return "nothing"

    def _count(self, event: OutboxEvent, how: Extent) -> None:
        type_ = event.payload["type"]
        if how != "nothing":
            self._metrics.events_published.labels(type_).inc()
        if how != "whole":
            self._metrics.events_cut.labels(how).inc()
            log.error(
                "relay.event_cut",
                published=how,
                type=type_,
                position=event.position,
                session_id=event.session_id,
            )

    async def _pass(self) -> int:
        try:
            with self._patience:
                if self._is_at_work or await self._is_needed():
                    return await self.run_once()
        except BrokerAway as error:
            log.warning("relay.waiting", reason=str(error), retry_in_s=POLL_S)
        return 0


def _message(event: OutboxEvent) -> tuple[bytes, bytes, Headers]:
    """Key, value and headers of an event."""
    headers = cloudevents_headers(event.payload)
    if event.traceparent is not None:
        headers.append((TRACEPARENT, event.traceparent.encode()))
    return event.session_id.encode(), to_json(event.payload), headers


def _ever_smaller(payload: dict[str, Any]) -> Iterator[tuple[Extent, dict[str, Any]]]:
    """The payload whole, then without the large fields, which it names."""
    yield "whole", payload
    if left_out := [f for f in _LARGE if payload.get(f)]:
        kept = {k: v for k, v in payload.items() if k not in left_out}
        yield "small", kept | {f: _EMPTY[f] for f in left_out if f in _EMPTY} | {"left_out": left_out}

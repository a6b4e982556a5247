"""
Pushes scoring events to WebSocket clients in order of position, each once, without waiting for any client.

The topic brings events fast; the table `scoring_events` has all of them. Kafka keeps no order across
partitions and may be away. Positions have no gaps, so a missing event is noticed; the gateway waits for it
briefly, then reads it from the database.

A catch-up holds the client's live events back, sends the stored events up to the position where live events
stand, and releases the live ones. So there is no gap and no repeat, and a channel is never ahead of the
client's other channels.
"""

import asyncio
import random
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any

import structlog
from pydantic_core import to_json
from starlette.websockets import WebSocket

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.events import SESSION_ID_PATTERN
from tarsy_scoring.kafka.connect import BrokerAway
from tarsy_scoring.kafka.consumer import Record
from tarsy_scoring.kafka.security import connection_options
from tarsy_scoring.kafka.topics import Tail
from tarsy_scoring.live.client import (
    DEFAULT_LIMITS,
    GONE,
    Chunk,
    Client,
    ClientRequest,
    CloseReason,
    GatewayLimits,
    InvalidRequest,
    parse_request,
)
from tarsy_scoring.live.events import OF_SESSION_PREFIX, SESSIONS, EventSequence, decode, event_of
from tarsy_scoring.live.stored import READ_LIMIT, catch_up, newer
from tarsy_scoring.live.subscriptions import Subscriptions
from tarsy_scoring.postgres.database import Database, DatabaseAway
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.telemetry.stopping import unless_stopped

log = structlog.get_logger()

READER_WAIT_S = (
    10.0  # wait of a catch-up for a reader; 2,000 reconnecting clients take this long at 20 ms a read
)
PLACE_WAIT_S = 10.0  # wait of a client, after a start, for the position at which live events begin
GAP_S = 0.05  # wait for a missing event; partitions of one broker are a few ms apart
POLL_S = 1.0
CLOSE_S = 5.0
REVOKED_S = 5.0  # between two looks for clients whose token is no longer valid


class Gateway:
    """The clients of this process. `run` brings the events, `serve` is the life of one connection."""

    def __init__(
        self, settings: Settings, database: Database, metrics: Metrics, limits: GatewayLimits = DEFAULT_LIMITS
    ) -> None:
        self._settings = settings
        self._database = database
        self._metrics = metrics
        self._limits = limits
        self._order: EventSequence | None = None
        self._arrived = asyncio.Event()
        self._has_position = asyncio.Event()
        self._clients: set[Client] = set()
        self._callers: Counter[Hashable] = Counter()
        self._subscriptions = Subscriptions(metrics)
        self._readers = asyncio.Semaphore(limits.readers)

    @property
    def is_full(self) -> bool:
        """Whether the gateway has as many clients as it may have."""
        return len(self._clients) >= self._limits.clients

    def has_enough(self, caller: Hashable) -> bool:
        """Whether this caller has as many connections as one caller may have."""
        return self._callers[caller] >= self._limits.clients_per_caller

    # --- events ----------------------------------------------------------------------------------------

    async def run(self, stopping: asyncio.Event) -> None:
        """
        Bring events to clients until `stopping`, then close all connections.

        Waits for a database that is away. While the broker is away or not configured, events come from the
        database, a second late.
        """
        try:
            async with asyncio.TaskGroup() as group:
                if self._settings.kafka_bootstrap_servers:
                    group.create_task(self.follow_topic(stopping))
                group.create_task(self._follow_order(stopping))
                group.create_task(self.close_revoked(stopping))
        finally:
            self._close_all(CloseReason.STOPPING)

    def begin_at(self, position: int) -> None:
        """Treat the events after this position as live."""
        self._order = EventSequence(position)
        self._has_position.set()

    def take_records(self, records: Sequence[Record]) -> None:
        """Add the scoring events in these records of the topic to the order, and wake the delivery."""
        for record in records:
            event = decode(record.value)
            if event is not None and self._order is not None and not self._order.is_full:
                self._order.add(event)
                self._metrics.gateway_events.labels("kafka").inc()
        self._arrived.set()

    def deliver(self) -> int:
        """Send the events that follow without a gap to their subscribers; returns their number."""
        events = self._order.take() if self._order is not None else []
        self._subscriptions.send(events)
        return len(events)

    async def read_missing(self) -> bool:
        """
        Send the events that the database has after the current position, and move the position behind them.

        The first call sets the position to the end of the stream and sends nothing.

        Returns:
            Whether there is more to read.

        Raises:
            DatabaseAway: Nothing has changed.
        """
        end, payloads = await newer(self._database, None if self._order is None else self._order.position)
        if self._order is None:
            self.begin_at(end)
            return False
        if end < self._order.position:
            # The database was restored from a backup: it assigns positions again that clients have seen.
            log.warning("gateway.renumbered", position=self._order.position, database=end)
            self.begin_at(end)
            self._close_all(CloseReason.RENUMBERED)
            return False
        for payload in payloads:
            self._order.add(event_of(payload, to_json(payload)))
        self._metrics.gateway_events.labels("database").inc(len(payloads))
        has_more = len(payloads) == READ_LIMIT
        self._subscriptions.send(self._order.take_until(payloads[-1]["position"] if has_more else end))
        return has_more

    async def follow_topic(self, stopping: asyncio.Event) -> None:
        """Add the events of the topic until `stopping`; a tail that fails is replaced."""
        topic = self._settings.topic_scoring_events
        # Created once: certificate files may be missing for a moment while they are replaced.
        options = connection_options(self._settings)
        while not stopping.is_set():
            try:
                await Tail(options, topic, since="now").follow(self.take_records, stopping)
            except BrokerAway as error:
                log.warning(
                    "gateway.broker_away", reason=str(error), effect="events are read from the database"
                )
                await unless_stopped(asyncio.sleep(POLL_S), stopping)

    async def _follow_order(self, stopping: asyncio.Event) -> None:
        """
        Deliver events as they come, and read the database when it is due.

        It is due every second in which nothing was delivered, and `GAP_S` after an event was found missing.
        """
        read_at, missing_at, missing_since = -POLL_S, 0, 0.0
        while not stopping.is_set():
            now = time.monotonic()
            due_at = read_at + POLL_S
            if self._order is not None and self._order.has_gap:
                if missing_at != self._order.position:
                    missing_at, missing_since = self._order.position, now
                due_at = min(due_at, missing_since + GAP_S)
            if now < due_at:
                await _in_time(self._arrived.wait(), due_at - now)
                self._arrived.clear()
                if self.deliver():
                    read_at = time.monotonic()  # while events come in order, none is missing
                continue
            try:
                has_more = await self.read_missing()
                read_at = now - POLL_S if has_more else now
            except DatabaseAway as error:
                log.debug("gateway.database_away", reason=str(error))
                read_at = now
            # An event that the database lacks as well is looked for a second later.
            missing_since = now + POLL_S

    # --- clients ---------------------------------------------------------------------------------------

    async def serve(
        self, socket: WebSocket, caller: Hashable = None, is_revoked: Callable[[], bool] = lambda: False
    ) -> None:
        """
        Serve an accepted connection until it ends. A cancel leaves nothing of the client behind.

        Args:
            caller: The caller whose connection it is, as `has_enough` counts them.
            is_revoked: Asked every `REVOKED_S`; the connection is closed once it is true.
        """
        client = Client(socket, self._limits, is_revoked)
        self._clients.add(client)
        self._callers[caller] += 1
        self._metrics.gateway_clients.inc()
        client.send_message({"type": "connection.established", "connection_id": str(uuid.uuid4())})
        tasks = [
            asyncio.create_task(self._receive(client)),
            asyncio.create_task(self._answer_requests(client)),
        ]
        try:
            # After a restart all clients connect at once; they should not all have to reconnect at once.
            life_s = self._limits.life_s * random.uniform(0.75, 1)  # noqa: S311 - spreads load
            ends: set[asyncio.Future[Any]] = {*tasks, client.closing}
            done, _ = await asyncio.wait(ends, timeout=life_s, return_when=asyncio.FIRST_COMPLETED)
            for end in done:
                end.result()
            if not done:
                client.end(CloseReason.OLD)
        finally:
            self._forget(client, caller)  # before the awaits below, which a cancel could cut short
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await client.stop()
        if client.closing.done():
            code, text, label = client.closing.result().value
            self._metrics.gateway_closed.labels(label).inc()
            with suppress(TimeoutError, *GONE):
                async with asyncio.timeout(CLOSE_S):  # cuts off a peer that does not read
                    await socket.close(code, text)

    def _forget(self, client: Client, caller: Hashable) -> None:
        self._subscriptions.remove(client, client.channels)
        self._clients.discard(client)
        self._callers[caller] -= 1
        if not self._callers[caller]:
            del self._callers[caller]
        self._metrics.gateway_clients.dec()

    async def _receive(self, client: Client) -> None:
        """Receive the client's messages; a ping and an invalid message are answered at once."""
        while (message := await client.socket.receive())["type"] != "websocket.disconnect":
            text = message.get("text") or message.get("bytes") or b""
            if len(text) > self._limits.message_bytes:
                return client.end(CloseReason.TOO_BIG)
            if not client.may_send():
                return client.end(CloseReason.FLOOD)
            try:
                self._accept(client, parse_request(text))
            except InvalidRequest as error:
                client.send_message({"type": "error", "message": str(error)})
            await client.wait_for_room()
        return None

    def _accept(self, client: Client, request: ClientRequest | None) -> None:
        if request is None:
            return
        if request.action == "ping":
            client.send_message({"type": "pong"})
        elif client.requests.full():
            client.end(CloseReason.FLOOD)
        else:
            client.requests.put_nowait(request)

    async def _answer_requests(self, client: Client) -> None:
        """Answer the client's requests one after the other; two catch-ups at once would mix their events."""
        if not await _in_time(self._has_position.wait(), PLACE_WAIT_S):
            return client.end(CloseReason.NOT_READY)
        while True:
            await self._answer(client, await client.requests.get())
            await client.wait_for_room()

    async def _answer(self, client: Client, request: ClientRequest) -> None:
        """
        Confirm a subscription, send stored events, and go on with live ones.

        The channel of a session starts at the beginning unless the client gives a position. The channel of
        all sessions starts with live events unless it does.
        """
        action, channel, last = request
        if action == "unsubscribe":
            return self._subscriptions.remove(client, [channel])
        if refusal := self._refusal(client, channel):
            return client.send_message({"type": "subscription.error", "channel": channel, "message": refusal})
        since = last if channel == SESSIONS else last or 0
        if since is None:
            return self._subscribe(client, channel)
        return await self._catch_up(client, channel, since, is_subscription=action == "subscribe")

    def _refusal(self, client: Client, channel: str) -> str | None:
        """Why the client may not subscribe to this channel; None: it may."""
        session_id = channel.removeprefix(OF_SESSION_PREFIX)
        is_of_session = session_id != channel and SESSION_ID_PATTERN.fullmatch(session_id)
        if channel != SESSIONS and not is_of_session:
            return "there is no such channel: sessions, or session: and a session id"
        if channel not in client.channels and len(client.channels) >= self._limits.channels:
            return f"at most {self._limits.channels} channels per connection: unsubscribe from others"
        return None

    def _subscribe(self, client: Client, channel: str) -> None:
        self._subscriptions.add(client, channel)
        client.send_message({"type": "subscription.confirmed", "channel": channel})

    async def _catch_up(self, client: Client, channel: str, since: int, *, is_subscription: bool) -> None:
        """
        Send the channel's events after `since`, up to where live events stand, and go on with live ones.

        It does not go further, though the database may have more: events of the client's other channels
        before that point would come later, and a client that reconnects with the largest position it saw
        would miss them.

        If the database is away, or other clients occupy the readers for too long, the client gets the
        overflow message, after which it has to reload.

        Args:
            is_subscription: Also subscribe to the channel and confirm it.
        """
        assert self._order is not None, "clients wait until the gateway has its position"
        has_reader = await _in_time(self._readers.acquire(), READER_WAIT_S)
        # No await until the read, so that events are held back from the exact position at which it ends.
        if is_subscription:
            self._subscribe(client, channel)
        client.hold()
        try:
            if not has_reader:
                raise DatabaseAway(f"others have been reading for {READER_WAIT_S:g} s")
            texts, has_more = await catch_up(self._database, channel, since, self._order.position)
        except DatabaseAway as error:
            log.warning("gateway.catch_up_failed", reason=str(error))
            texts, has_more = [], True
        finally:
            if has_reader:
                self._readers.release()
        if texts:
            client.offer(Chunk(texts))
        if has_more:
            client.send_message({"type": "catchup.overflow", "channel": channel, "has_more": True})
        client.release()

    async def close_revoked(self, stopping: asyncio.Event) -> None:
        """Close the connections of callers whose access was revoked, until `stopping`."""
        while not stopping.is_set():
            for client in tuple(self._clients):
                if client.is_revoked():
                    client.end(CloseReason.REVOKED)
            await unless_stopped(asyncio.sleep(REVOKED_S), stopping)

    def _close_all(self, reason: CloseReason) -> None:
        for client in tuple(self._clients):
            client.end(reason)


async def _in_time(wait: Awaitable[Any], timeout_s: float) -> bool:
    """Await `wait` for at most this time; returns whether it ended. A wait that did not end is cancelled."""
    try:
        async with asyncio.timeout(timeout_s):
            await wait
    except TimeoutError:
        return False
    return True

"""
Scoring events to WebSocket clients: in order of position, each once, and never waiting for a client.

The topic brings events fast, `scoring_events` holds all of them. Positions have no gaps, so one that is
missing (Kafka orders nothing across partitions, and may be away) is waited for briefly and then read. A
catch-up holds a client's live events, sends what is stored, and goes on behind it: no gap, no repeat.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from pydantic_core import from_json, to_json

from tarsy_scoring.database import Connection, Database, DatabaseAway
from tarsy_scoring.kafka import BrokerAway, Record, Tail
from tarsy_scoring.live_client import (
    DEFAULT_LIMITS,
    FLOOD,
    RENUMBERED,
    STOPPING,
    TOO_BIG,
    Chunk,
    Client,
    Ending,
    Limits,
    Socket,
)
from tarsy_scoring.live_events import OF_SESSION_PREFIX, PHASES_FOR_ALL, SESSIONS, Event, Order, decode, event_of
from tarsy_scoring.settings import Settings
from tarsy_scoring.telemetry import Metrics
from tarsy_scoring.timeline.model import SESSION_ID_PATTERN

log = structlog.get_logger()

CATCH_UP_LIMIT = 200  # as TARSy: beyond it a client reloads
CATCH_UP_BYTES = 256 * 1024  # a quarter of what may wait for a client: a few catch-ups make nobody slow
READ_LIMIT = 1000
# Catch-ups that read at once: a thousand clients that reconnect together leave the pool to others, too.
READERS = 4
GAP_S = 0.05  # partitions of one broker are a few ms apart
POLL_S = 1.0
GATHER_S = 0.02  # between two rounds: a round costs each client the same for one event as for ten
READ_TIMEOUT_S = 5.0
TAKE_S = 0.5

# The last position that was given out.
END = "SELECT position FROM {schema}.relay_position"

# Everything behind a position.
NEWER = """
SELECT position, payload || jsonb_build_object('position', position) AS payload FROM {schema}.scoring_events
WHERE position > $1 AND position <= $2 ORDER BY position LIMIT $3
"""

# What the channel of a session has behind a position.
NEWER_OF_SESSION = """
SELECT (payload || jsonb_build_object('position', position))::text AS text FROM {schema}.scoring_events
WHERE position > $1 AND position <= $2 AND session_id = $4 ORDER BY position LIMIT $3
"""

# What the channel of all sessions has behind a position.
NEWER_OF_ALL = """
SELECT (payload || jsonb_build_object('position', position))::text AS text FROM {schema}.scoring_events
WHERE position > $1 AND position <= $2 AND payload->>'purpose' = 'production'
  AND (type <> 'scoring.progress' OR payload->>'phase' = ANY($4::text[]))
ORDER BY position LIMIT $3
"""


class Gateway:
    """
    All clients of this process. `run` brings the events, `serve` is a connection's life.

    Args:
        limits: What clients may take up.
    """

    def __init__(
        self, settings: Settings, database: Database, metrics: Metrics, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self._settings = settings
        self._database = database
        self._metrics = metrics
        self._limits = limits
        self._order: Order | None = None
        self._arrived = asyncio.Event()
        self._clients: set[Client] = set()
        self._subscribers: dict[str, set[Client]] = {}
        self._readers = asyncio.Semaphore(READERS)

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another client."""
        return len(self._clients) >= self._limits.clients

    # --- events ----------------------------------------------------------------------------------------

    async def run(self, stopping: asyncio.Event) -> None:
        """
        Bring events to clients until `stopping`, then end all connections.

        Waits for a database that is away; without a broker, away or not configured, events are a second late.
        """
        try:
            async with asyncio.TaskGroup() as group:
                if self._settings.kafka_bootstrap_servers:
                    group.create_task(self._follow_topic(stopping))
                group.create_task(self._follow_order(stopping))
        finally:
            self._end_all(STOPPING)

    def take_records(self, records: Sequence[Record]) -> None:
        """What the topic brought; what is no event of ours is passed over."""
        for record in records:
            event = decode(record.value)
            if event is not None and self._order is not None and not self._order.is_full:
                self._order.add(event)
                self._metrics.gateway_events.labels("kafka").inc()
        self._arrived.set()

    def deliver(self) -> int:
        """Offer what is in order to those who subscribed to it; returns how many events that were."""
        events = self._order.take() if self._order is not None else []
        self._broadcast(events)
        return len(events)

    async def read_missing(self) -> bool:
        """
        Deliver what the database has behind our position, and go on behind it.

        The first call finds out where the stream stands, and delivers nothing.

        Returns:
            Whether there is more to read.

        Raises:
            DatabaseAway: Nothing has changed.
        """

        async def work(connection: Connection) -> tuple[int, list[Any]]:
            end = await connection.fetchval(self._database.sql(END))
            if self._order is None or self._order.position >= end:
                return end, []
            sql = self._database.sql(NEWER)
            return end, await connection.fetch(sql, self._order.position, end, READ_LIMIT)

        end, rows = await self._read(work)
        if self._order is None:
            self._order = Order(end)
            return False
        if end < self._order.position:
            log.warning("gateway.renumbered", position=self._order.position, database=end)
            self._order = Order(end)
            self._end_all(RENUMBERED)
            return False
        for row in rows:
            self._order.add(event_of(row["payload"], to_json(row["payload"])))
        self._metrics.gateway_events.labels("database").inc(len(rows))
        has_more = len(rows) == READ_LIMIT
        self._broadcast(self._order.take_until(rows[-1]["position"] if has_more else end))
        return has_more

    async def _follow_topic(self, stopping: asyncio.Event) -> None:
        topic = self._settings.topic_scoring_events
        while not stopping.is_set():
            tail = Tail(self._settings, topic, since="now")
            try:
                await tail.start()
                while not stopping.is_set():
                    self.take_records(await tail.take(TAKE_S))
            except BrokerAway as error:
                log.warning("gateway.broker_away", reason=str(error), effect="events are read from the database")
                await _wait(stopping, POLL_S)
            finally:
                await tail.stop()

    async def _follow_order(self, stopping: asyncio.Event) -> None:
        """Deliver as events come; read what is missing for too long, and look every second whether anything is."""
        looked_at, missing_at, since = -POLL_S, 0, 0.0
        while not stopping.is_set():
            now = time.monotonic()
            due_at = looked_at + POLL_S
            if self._order is not None and self._order.has_gap:
                if missing_at != self._order.position:
                    missing_at, since = self._order.position, now
                due_at = min(due_at, since + GAP_S)
            if now < due_at:
                await _wait(self._arrived, due_at - now)
                self._arrived.clear()
                if self.deliver():
                    looked_at = time.monotonic()  # while events come in order, none is missing
                    await _wait(stopping, GATHER_S)
                continue
            try:
                has_more = await self.read_missing()
                looked_at = now - POLL_S if has_more else now
            except DatabaseAway as error:
                log.debug("gateway.database_away", reason=str(error))
                looked_at = now
            since = now + POLL_S  # what is missing still is not there either: no hurry

    async def _read(self, work: Any) -> Any:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await self._database.once(work)
        except TimeoutError:
            raise DatabaseAway(f"the database at {self._database.place} gave no answer in time") from None

    def _broadcast(self, events: Sequence[Event]) -> None:
        """Group by what clients have in common, so that what many get is made once."""
        audience: dict[Client, list[str]] = {}
        for channel in dict.fromkeys(c for e in events for c in e.channels):
            for client in self._subscribers.get(channel, ()):
                audience.setdefault(client, []).append(channel)
        selections: dict[tuple[str, ...], tuple[list[Event], Chunk]] = {}
        sent = 0
        for client, channels in audience.items():
            key = tuple(channels)
            if key not in selections:
                selected = [e for e in events if not set(channels).isdisjoint(e.channels)]
                selections[key] = selected, Chunk([e.text for e in selected])
            selected, chunk = selections[key]
            if client.takes_all:
                client.offer(chunk)
            else:
                client.give(selected)
            sent += len(selected)
        self._metrics.gateway_sent.inc(sent)
        if audience:
            now_us = time.time() * 1e6
            for event in events:
                self._metrics.gateway_lag.observe(max(0.0, now_us - event.emitted_us) / 1e6)

    # --- clients ---------------------------------------------------------------------------------------

    async def serve(self, socket: Socket) -> None:
        """The life of an accepted connection; returns when it is over. A cancel leaves nothing of it behind."""
        client = Client(socket, self._limits)
        self._clients.add(client)
        self._metrics.gateway_clients.inc()
        client.say({"type": "connection.established", "connection_id": str(uuid.uuid4())})
        reader = asyncio.create_task(self._listen_to(client))
        try:
            either: set[asyncio.Future[Any]] = {reader, client.ended}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if reader.done():
                reader.result()
        finally:
            reader.cancel()
            await asyncio.wait([reader])
            await client.stop()
            for channel in tuple(client.channels):
                self._unsubscribe(client, channel)
            self._clients.discard(client)
            self._metrics.gateway_clients.dec()
        if client.ended.done():
            ending = client.ended.result()
            self._metrics.gateway_closed.labels(ending.word).inc()
            await socket.close(ending.code, ending.reason)

    async def _listen_to(self, client: Client) -> None:
        while (text := await client.socket.receive()) is not None:
            if len(text) > self._limits.message_bytes:
                return client.end(TOO_BIG)
            if not client.may_speak():
                return client.end(FLOOD)
            await self._answer(client, text)
            await client.room()
        return None

    async def _answer(self, client: Client, text: str | bytes) -> None:
        """
        Do what a client asks; what cannot be understood gets an `error` and an action we do not know no answer.

        Messages are answered one after the other, so a `pong` comes behind everything asked for before it.
        """
        try:
            message = from_json(text)
        except ValueError:
            return client.say(_error("a message is a JSON object"))
        action = message.get("action") if isinstance(message, dict) else None
        if not isinstance(action, str):
            return client.say(_error("a message is a JSON object with an action"))
        if action == "ping":
            return client.say({"type": "pong"})
        if action not in ("subscribe", "unsubscribe", "catchup"):
            return None
        channel, last = message.get("channel"), message.get("last_event_id")
        if not isinstance(channel, str) or not channel:
            return client.say(_error(f"channel is required for {action}"))
        if last is not None and (isinstance(last, bool) or not isinstance(last, int) or not 0 <= last < 2**63):
            return client.say(_error("last_event_id is the position of an event: a whole number, 0 or more"))
        if action == "unsubscribe":
            return self._unsubscribe(client, channel)
        if fault := self._fault_of(client, channel):
            return client.say({"type": "subscription.error", "channel": channel[:300], "message": fault})
        if action == "subscribe":
            return await self._subscribe(client, channel, last)
        if last is None:
            return client.say(_error("last_event_id is required for catchup"))
        return await self._catch_up(client, channel, last)

    def _fault_of(self, client: Client, channel: str) -> str | None:
        """Why a client cannot have this channel; None: it can."""
        session_id = channel.removeprefix(OF_SESSION_PREFIX)
        if channel != SESSIONS and (session_id == channel or not SESSION_ID_PATTERN.fullmatch(session_id)):
            return "there is no such channel: sessions, or session: and a session id"
        if channel not in client.channels and len(client.channels) >= self._limits.channels:
            return f"at most {self._limits.channels} channels per connection: unsubscribe from others"
        return None

    async def _subscribe(self, client: Client, channel: str, last: int | None) -> None:
        """
        Confirm, send what is stored, go on with what comes.

        A session's channel is told from its beginning, unless the client says what it has; the channel of all
        sessions only from where the client says.
        """
        if channel not in client.channels:
            client.channels.add(channel)
            self._subscribers.setdefault(channel, set()).add(client)
            self._metrics.gateway_subscriptions.inc()
        since = last if channel == SESSIONS else last or 0
        if since is None:
            return client.say({"type": "subscription.confirmed", "channel": channel})
        return await self._catch_up(client, channel, since, {"type": "subscription.confirmed", "channel": channel})

    def _unsubscribe(self, client: Client, channel: str) -> None:
        if channel in client.channels:
            client.unsubscribe(channel)
            self._subscribers[channel].discard(client)
            if not self._subscribers[channel]:
                del self._subscribers[channel]
            self._metrics.gateway_subscriptions.dec()

    async def _catch_up(self, client: Client, channel: str, since: int, first: Mapping[str, Any] | None = None) -> None:
        """Say `first`; send what the channel has behind a position, and live events after that."""
        every = channel == SESSIONS
        sql = self._database.sql(NEWER_OF_ALL if every else NEWER_OF_SESSION)
        selection = list(PHASES_FOR_ALL) if every else channel.removeprefix(OF_SESSION_PREFIX)

        async def work(connection: Connection) -> tuple[int, list[Any]]:
            end = await connection.fetchval(self._database.sql(END))
            return end, await connection.fetch(sql, since, end, CATCH_UP_LIMIT + 1, selection)

        client.hold()
        if first is not None:
            client.say(first)
        end, has_more = 0, True
        texts: list[bytes] = []
        try:
            async with self._readers:
                end, rows = await self._read(work)
            texts, has_more = _first_of([r["text"].encode() for r in rows])
            # Who knows more than there is has seen another database.
            has_more = has_more or since > end
        except DatabaseAway as error:
            # "You miss something, reload" is what an overflow means: true, and clients know what to do.
            log.warning("gateway.catch_up_failed", reason=str(error))
        if texts:
            client.offer(Chunk(texts))
            self._metrics.gateway_sent.inc(len(texts))
        if has_more:
            client.say({"type": "catchup.overflow", "channel": channel, "has_more": True})
        client.release(channel, end)

    def _end_all(self, ending: Ending) -> None:
        for client in tuple(self._clients):
            client.end(ending)


def _first_of(texts: Sequence[bytes]) -> tuple[list[bytes], bool]:
    """As many as one catch-up may send, and whether there are more."""
    room = CATCH_UP_BYTES
    for number, text in enumerate(texts):
        room -= len(text)
        if number == CATCH_UP_LIMIT or (room < 0 and number > 0):
            return list(texts[:number]), True
    return list(texts), False


def _error(message: str) -> dict[str, str]:
    return {"type": "error", "message": message}


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()

"""
Scoring events to WebSocket clients: in order of position, each once, and never waiting for a client.

The topic brings events fast, `scoring_events` holds all of them. Positions have no gaps, so one that is
missing (Kafka orders nothing across partitions, and may be away) is waited for briefly and then read. A
catch-up holds a client's live events, sends what is stored up to where those stand, and goes on with them: no gap,
no repeat, and never ahead of what the client's other channels have got.
"""

import asyncio
import contextlib
import random
import time
import uuid
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import structlog
from pydantic_core import to_json

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.events import SESSION_ID_PATTERN
from tarsy_scoring.kafka.clients import BrokerAway, Record
from tarsy_scoring.kafka.security import connection_options
from tarsy_scoring.kafka.topics import Tail
from tarsy_scoring.live.client import (
    DEFAULT_LIMITS,
    FLOOD,
    NOT_READY,
    OLD,
    RENUMBERED,
    STOPPING,
    TOO_BIG,
    Chunk,
    Client,
    Ending,
    Limits,
    Misunderstood,
    Request,
    Socket,
    understand,
)
from tarsy_scoring.live.events import OF_SESSION_PREFIX, PHASES_FOR_ALL, SESSIONS, Order, decode, event_of
from tarsy_scoring.live.signals import INSIGHTS, LiveInsights
from tarsy_scoring.live.subscriptions import Audience
from tarsy_scoring.postgres.database import Connection, Database, DatabaseAway
from tarsy_scoring.telemetry.metrics import Metrics

log = structlog.get_logger()

CATCH_UP_LIMIT = 200  # as TARSy: beyond it a client reloads
CATCH_UP_BYTES = 256 * 1024  # a quarter of what may wait for a client: a few catch-ups make nobody slow
READ_LIMIT = 1000
# Catch-ups that read at once: a thousand clients that reconnect together leave the pool to others, too.
READERS = 4
READER_WAIT_S = 10.0  # 2,000 clients that come back to a slow database (20 ms a read) all have their turn
PLACE_WAIT_S = 10.0  # for our place in the stream, after a start
GAP_S = 0.05  # partitions of one broker are a few ms apart
POLL_S = 1.0
GATHER_S = 0.02  # between two rounds: a round costs each client the same for one event as for ten
READ_TIMEOUT_S = 5.0
TAKE_S = 0.5

# The last position that was given out.
END = "SELECT position FROM {schema}.relay_position"

# The last position up to which events may have been removed.
FORGOTTEN = "SELECT forgotten FROM {schema}.relay_position"

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
        self._has_place = asyncio.Event()
        self._clients: set[Client] = set()
        self._callers: Counter[Hashable] = Counter()
        self._audience = Audience(metrics)
        self._insights = LiveInsights(settings, self._audience)
        self._readers = asyncio.Semaphore(READERS)

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another client."""
        return len(self._clients) >= self._limits.clients

    def has_enough(self, caller: Hashable) -> bool:
        """Whether this caller has as many clients as one may have."""
        return self._callers[caller] >= self._limits.clients_per_caller

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
                    group.create_task(self._insights.run(stopping))
                group.create_task(self._follow_order(stopping))
        finally:
            self._end_all(STOPPING)

    def begin_at(self, position: int) -> None:
        """Stand at this position: what comes behind it is live."""
        self._order = Order(position)
        self._has_place.set()

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
        self._audience.send(events)
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
            self.begin_at(end)
            return False
        if end < self._order.position:
            log.warning("gateway.renumbered", position=self._order.position, database=end)
            self.begin_at(end)
            self._end_all(RENUMBERED)
            return False
        for row in rows:
            self._order.add(event_of(row["payload"], to_json(row["payload"])))
        self._metrics.gateway_events.labels("database").inc(len(rows))
        has_more = len(rows) == READ_LIMIT
        self._audience.send(self._order.take_until(rows[-1]["position"] if has_more else end))
        return has_more

    async def _follow_topic(self, stopping: asyncio.Event) -> None:
        topic = self._settings.topic_scoring_events
        options = connection_options(self._settings)
        while not stopping.is_set():
            tail = Tail(options, topic, since="now")
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

    # --- clients ---------------------------------------------------------------------------------------

    async def serve(self, socket: Socket, caller: Hashable = None) -> None:
        """
        The life of an accepted connection; returns when it is over. A cancel leaves nothing of it behind.

        Args:
            caller: Whose it is, as `has_enough` counts them.
        """
        client = Client(socket, self._limits)
        self._clients.add(client)
        self._callers[caller] += 1
        self._metrics.gateway_clients.inc()
        client.say({"type": "connection.established", "connection_id": str(uuid.uuid4())})
        tasks = [asyncio.create_task(self._listen_to(client)), asyncio.create_task(self._answer(client))]
        try:
            # They came at once, after a restart perhaps, and shall not all come back at once.
            life_s = self._limits.life_s * random.uniform(0.75, 1)  # noqa: S311 - spreads load, guards nothing
            ends: set[asyncio.Future[Any]] = {*tasks, client.ended}
            done, _ = await asyncio.wait(ends, timeout=life_s, return_when=asyncio.FIRST_COMPLETED)
            for end in done:
                end.result()
            if not done:
                client.end(OLD)
        finally:
            self._forget(client, caller)  # before anything that a cancel could cut short
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await client.stop()
        if client.ended.done():
            ending = client.ended.result()
            self._metrics.gateway_closed.labels(ending.word).inc()
            await socket.close(ending.code, ending.reason)

    def _forget(self, client: Client, caller: Hashable) -> None:
        self._audience.remove(client, client.channels)
        self._clients.discard(client)
        self._callers[caller] -= 1
        if not self._callers[caller]:
            del self._callers[caller]
        self._metrics.gateway_clients.dec()

    async def _listen_to(self, client: Client) -> None:
        """Take in what the client says; what needs nobody else is answered at once, a ping above all."""
        while (text := await client.socket.receive()) is not None:
            if len(text) > self._limits.message_bytes:
                return client.end(TOO_BIG)
            if not client.may_speak():
                return client.end(FLOOD)
            try:
                self._take(client, understand(text))
            except Misunderstood as error:
                client.say({"type": "error", "message": str(error)})
            await client.room()
        return None

    def _take(self, client: Client, request: Request | None) -> None:
        if request is None:
            return
        if request.action == "ping":
            client.say({"type": "pong"})
        elif client.asked.full():
            client.end(FLOOD)
        else:
            client.asked.put_nowait(request)

    async def _answer(self, client: Client) -> None:
        """Do what the client asks, one after the other, so that each catch-up stands for itself."""
        await _wait(self._has_place, PLACE_WAIT_S)
        if not self._has_place.is_set():
            return client.end(NOT_READY)
        while True:
            await self._do(client, await client.asked.get())
            await client.room()

    async def _do(self, client: Client, request: Request) -> None:
        """
        Confirm a subscription, send what is stored, go on with what comes.

        A session's channel is told from its beginning, unless the client says what it has; the channel of all
        sessions only from where the client says; insights have no positions, and are told as they stand.
        """
        action, channel, last = request
        if action == "unsubscribe":
            return self._audience.remove(client, [channel])
        if fault := self._fault_of(client, channel):
            return client.say({"type": "subscription.error", "channel": channel, "message": fault})
        if channel == INSIGHTS:
            return self._tell_insights(client, is_subscription=action == "subscribe")
        since = last if channel == SESSIONS else last or 0
        if since is None:
            return self._subscribe(client, channel)
        return await self._catch_up(client, channel, since, is_subscription=action == "subscribe")

    def _fault_of(self, client: Client, channel: str) -> str | None:
        """Why a client cannot have this channel; None: it can."""
        session_id = channel.removeprefix(OF_SESSION_PREFIX)
        is_of_session = session_id != channel and SESSION_ID_PATTERN.fullmatch(session_id)
        if channel not in (SESSIONS, INSIGHTS) and not is_of_session:
            return "there is no such channel: sessions, insights, or session: and a session id"
        if channel not in client.channels and len(client.channels) >= self._limits.channels:
            return f"at most {self._limits.channels} channels per connection: unsubscribe from others"
        return None

    def _subscribe(self, client: Client, channel: str) -> None:
        self._audience.add(client, channel)
        client.say({"type": "subscription.confirmed", "channel": channel})

    def _tell_insights(self, client: Client, *, is_subscription: bool) -> None:
        """Confirm, and send what is newest: whatever the client missed is outdated by it."""
        if is_subscription:
            self._subscribe(client, INSIGHTS)
        if (snapshot := self._insights.snapshot()).texts:
            client.offer(snapshot)
            self._metrics.gateway_sent.inc(len(snapshot.texts))

    async def _catch_up(self, client: Client, channel: str, since: int, *, is_subscription: bool) -> None:
        """
        Send what the channel has behind `since`, up to where live events stand, and go on with these.

        No further, though the database may know more: what other channels of the client have up to there would
        come later, and a client that comes back with the largest position it saw would miss it.

        Args:
            is_subscription: Subscribe to the channel, and confirm it, when its turn has come.
        """
        assert self._order is not None, "clients wait until there is a place"
        has_reader = await _acquired(self._readers, READER_WAIT_S)
        if not has_reader:
            log.warning("gateway.catch_up_failed", reason=f"others have been reading for {READER_WAIT_S:g} s")
        try:
            # Nothing may wait between these three: what is kept begins where live events stand.
            if is_subscription:
                self._subscribe(client, channel)
            client.hold()
            until = self._order.position
            texts, has_more = await self._stored(channel, since, until) if has_reader else ([], True)
        finally:
            if has_reader:
                self._readers.release()
        if texts:
            client.offer(Chunk(texts))
            self._metrics.gateway_sent.inc(len(texts))
        if has_more:
            client.say({"type": "catchup.overflow", "channel": channel, "has_more": True})
        client.release()

    async def _stored(self, channel: str, since: int, until: int) -> tuple[list[bytes], bool]:
        """
        What one catch-up sends, and whether the client misses something after that.

        "You miss something, reload" is also said where the database does not answer: true, and clients know what
        to do; to who knows more than there is, and so has seen another database; and to who stands where events were
        removed.
        """
        every = channel == SESSIONS
        sql = self._database.sql(NEWER_OF_ALL if every else NEWER_OF_SESSION)
        selection = list(PHASES_FOR_ALL) if every else channel.removeprefix(OF_SESSION_PREFIX)

        async def work(connection: Connection) -> tuple[int, list[Any], int]:
            # Another process may have been ahead of this one.
            end = until if since <= until else await connection.fetchval(self._database.sql(END))
            rows = await connection.fetch(sql, since, until, CATCH_UP_LIMIT + 1, selection)
            # Asked last: what is removed was marked as forgotten before.
            return end, rows, await connection.fetchval(self._database.sql(FORGOTTEN))

        try:
            end, rows, forgotten = await self._read(work)
        except DatabaseAway as error:
            log.warning("gateway.catch_up_failed", reason=str(error))
            return [], True
        texts, has_more = _first_of([r["text"].encode() for r in rows])
        # From its beginning a session is told as far as it is kept: all of what is new, and no reason to reload.
        return texts, has_more or since > end or (since < forgotten and (every or since > 0))

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


async def _acquired(semaphore: asyncio.Semaphore, timeout_s: float) -> bool:
    """Whether it was our turn in time; then the semaphore is ours."""
    try:
        async with asyncio.timeout(timeout_s):
            return await semaphore.acquire()
    except TimeoutError:
        return False


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()

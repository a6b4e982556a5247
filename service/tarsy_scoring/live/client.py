"""
One connected WebSocket client: what it asks for, what waits for it, bounded, and how its connection ends.

Laws. Nobody waits for a client: `offer` returns at once, and a client whose queue is full is ended with a
code that means "reconnect and catch up". What many clients get is encoded and framed once, and shared.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from pydantic_core import from_json, to_json
from websockets.frames import Frame, Opcode

from tarsy_scoring.limits.token_bucket import TokenBucket
from tarsy_scoring.live.events import Event


class Ending(NamedTuple):
    """Why we end a connection: close code, a sentence for people, and a word for the metrics."""

    code: int
    reason: str
    word: str


SLOW = Ending(4008, "too slow: reconnect and catch up", "slow")
FLOOD = Ending(1008, "too many messages", "flood")
TOO_BIG = Ending(1009, "message too big", "too_big")
NOT_READY = Ending(1013, "not ready yet: try again later", "not_ready")
OLD = Ending(4009, "connected for long enough: reconnect and catch up", "old")
STOPPING = Ending(1012, "the service restarts: reconnect and catch up", "stopping")
RENUMBERED = Ending(1012, "positions begin anew: reconnect and reload", "renumbered")


@dataclass(frozen=True, slots=True)
class Limits:
    """
    What one gateway and one client of it may take up.

    Args:
        clients: Connections of this process.
        clients_per_caller: Of one name, or of one address where nobody is named; a quarter of all, since behind an
            address may be a proxy and all who come through it.
        life_s: After three quarters of it at the least, and all of it at the most, a client has to come back and
            is asked again who it is: so long may it hear more after it lost the right to.
        channels: Per client.
        queue_events, queue_bytes: What may wait for one client beside what its connection buffers; a single
            chunk is always let in. 1,000 events are five seconds of a very busy fleet.
        message_bytes: One message of a client.
        messages_per_s, messages_at_once: What a client may say; the second is for the moment after it connected,
            and bounds what waits to be answered.
    """

    clients: int = 2000
    clients_per_caller: int = 500
    life_s: float = 3600.0
    channels: int = 100
    queue_events: int = 1000
    queue_bytes: int = 1_048_576
    message_bytes: int = 65_536
    messages_per_s: float = 50.0
    messages_at_once: int = 250


DEFAULT_LIMITS = Limits()
CHANNEL_MAX = 300  # characters; a session id has at most 255


class Request(NamedTuple):
    """
    What a client asks for; the channel may be one that does not exist.

    Args:
        action: `ping`, `subscribe`, `unsubscribe` or `catchup`.
        last: The position behind which it wants to be told; None: it does not say.
    """

    action: str
    channel: str = ""
    last: int | None = None


class Misunderstood(Exception):
    """A client's message means nothing; says to it what is wrong."""


def understand(text: str | bytes) -> Request | None:
    """
    What a client's message asks for; None: an action of another version, which has no answer.

    Raises:
        Misunderstood: It is none of the protocol's messages.
    """
    try:
        message = from_json(text)
    except ValueError:
        raise Misunderstood("a message is a JSON object") from None
    action = message.get("action") if isinstance(message, dict) else None
    if not isinstance(action, str):
        raise Misunderstood("a message is a JSON object with an action")
    if action == "ping":
        return Request("ping")
    if action not in ("subscribe", "unsubscribe", "catchup"):
        return None
    channel, last = message.get("channel"), message.get("last_event_id")
    if not isinstance(channel, str) or not channel:
        raise Misunderstood(f"channel is required for {action}")
    if last is not None and (isinstance(last, bool) or not isinstance(last, int) or not 0 <= last < 2**63):
        raise Misunderstood("last_event_id is the position of an event: a whole number, 0 or more")
    if action == "catchup" and last is None:
        raise Misunderstood("last_event_id is required for catchup")
    # What is longer is no channel, and need not be kept whole to be told so.
    return Request(action, channel[:CHANNEL_MAX], last)


class Chunk:
    """Messages that go out together, one frame each; made once, shared by all clients that get them."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self.texts = texts
        self.size_bytes = sum(map(len, texts))

    @cached_property
    def frames(self) -> bytes:
        """The messages as unmasked, uncompressed WebSocket text frames."""
        return b"".join(Frame(Opcode.TEXT, text).serialize(mask=False) for text in self.texts)


class Socket(Protocol):
    """A WebSocket connection that was accepted, as the gateway sees it."""

    def send_now(self, chunk: Chunk) -> bool:
        """Take the chunk without waiting, whole; False: it would have to wait, and nothing was taken."""
        ...

    async def send(self, chunk: Chunk) -> None:
        """Take the chunk, waiting for a slow peer. Raises: ConnectionError: The peer is gone."""
        ...

    async def receive(self) -> str | bytes | None:
        """The next message of the peer; None: there will be none."""
        ...

    async def close(self, code: int, reason: str) -> None:
        """Say good-bye; never waits for the peer, and cuts it off if it does not take that in time."""
        ...


class Client:
    """
    A connected client. What the gateway calls to send is synchronous and never waits.

    Attributes:
        channels: What it is subscribed to.
        asked: What it asked for and was not answered yet, the oldest first.
        ended: Done with the reason when we end the connection.
    """

    def __init__(self, socket: Socket, limits: Limits) -> None:
        self.socket = socket
        self.channels: set[str] = set()
        self.asked: asyncio.Queue[Request] = asyncio.Queue(limits.messages_at_once)
        self.ended: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._limits = limits
        self._held: list[Event] | None = None
        self._held_bytes = 0
        self._queue: deque[Chunk] = deque()
        self._queued_events = 0
        self._queued_bytes = 0
        self._has_room = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        now = asyncio.get_running_loop().time()
        self._messages = TokenBucket(limits.messages_per_s, limits.messages_at_once, now)

    @property
    def is_holding(self) -> bool:
        """Whether live events are to be kept, and not offered."""
        return self._held is not None

    def hold(self) -> None:
        """Keep live events back: a catch-up goes first."""
        self._held, self._held_bytes = [], 0

    def keep(self, events: Sequence[Event]) -> None:
        """Live events of its channels, for after the catch-up; ends the client if they are too many."""
        assert self._held is not None, "hold() comes first"
        self._held += events
        self._held_bytes += sum(len(e.text) for e in events)
        if len(self._held) > self._limits.queue_events or self._held_bytes > self._limits.queue_bytes:
            self.end(SLOW)

    def release(self) -> None:
        """The catch-up was sent: go on with what was kept, and live."""
        held, self._held = self._held, None
        if held:
            self.offer(Chunk([e.text for e in held]))

    def offer(self, chunk: Chunk) -> None:
        """Send the chunk after everything offered before; ends the client if too much is waiting already."""
        if self.ended.done() or (not self._queue and self.socket.send_now(chunk)):
            return
        events, size_bytes = self._queued_events + len(chunk.texts), self._queued_bytes + chunk.size_bytes
        if self._queue and (events > self._limits.queue_events or size_bytes > self._limits.queue_bytes):
            self.end(SLOW)
            return
        self._queue.append(chunk)
        self._queued_events, self._queued_bytes = events, size_bytes
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())

    def say(self, message: Mapping[str, Any]) -> None:
        """Offer one message of the protocol."""
        self.offer(Chunk([to_json(message)]))

    def end(self, ending: Ending) -> None:
        """End the connection for this reason, unless it has one already; what waits is dropped."""
        if not self.ended.done():
            self.ended.set_result(ending)
        self._drop_queue()

    def may_speak(self) -> bool:
        """Whether the client keeps within its rate with one more message."""
        return self._messages.take(asyncio.get_running_loop().time()) == 0.0

    async def room(self) -> None:
        """
        Wait until at most half of the queue is in use.

        Whoever reads a client's messages waits here between them: a client that does not take its answers
        is not served further, and cannot overrun its own queue by asking much at once.
        """
        while 2 * self._queued_events > self._limits.queue_events or 2 * self._queued_bytes > self._limits.queue_bytes:
            self._has_room.clear()
            await self._has_room.wait()

    async def stop(self) -> None:
        """Stop writing; what waits is dropped."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.wait([self._writer])
        self._drop_queue()

    async def _write(self) -> None:
        try:
            while self._queue:
                chunk = self._queue[0]  # stays in its place while it is sent, so that nothing overtakes it
                await self.socket.send(chunk)
                if self._queue:
                    self._queue.popleft()
                    self._queued_events -= len(chunk.texts)
                    self._queued_bytes -= chunk.size_bytes
                    self._has_room.set()
        except ConnectionError:
            self._drop_queue()  # whoever reads from the peer hears of it, too, and leaves

    def _drop_queue(self) -> None:
        self._queue.clear()
        self._queued_events = self._queued_bytes = 0
        self._has_room.set()

"""
One connected WebSocket client: what waits for it, bounded, and how its connection ends.

Laws. Nobody waits for a client: `offer` returns at once, and a client whose queue is full is ended with a
code that means "reconnect and catch up". What many clients get is encoded and framed once, and shared.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from pydantic_core import to_json

from tarsy_scoring.live_events import Event


class Ending(NamedTuple):
    """Why we end a connection: close code, a sentence for people, and a word for the metrics."""

    code: int
    reason: str
    word: str


SLOW = Ending(4008, "too slow: reconnect and catch up", "slow")
FLOOD = Ending(1008, "too many messages", "flood")
TOO_BIG = Ending(1009, "message too big", "too_big")
STOPPING = Ending(1012, "the service restarts: reconnect and catch up", "stopping")
RENUMBERED = Ending(1012, "positions begin anew: reconnect and reload", "renumbered")


@dataclass(frozen=True, slots=True)
class Limits:
    """
    What one gateway and one client of it may take up.

    Args:
        clients: Connections of this process.
        channels: Per client.
        queue_events, queue_bytes: What may wait for one client beside what its connection buffers; a single
            chunk is always let in. 1,000 events are five seconds of a very busy fleet.
        message_bytes: One message of a client.
        messages_per_s, messages_at_once: What a client may say; the second is for the moment after it connected.
    """

    clients: int = 2000
    channels: int = 100
    queue_events: int = 1000
    queue_bytes: int = 1_048_576
    message_bytes: int = 65_536
    messages_per_s: float = 50.0
    messages_at_once: int = 250


DEFAULT_LIMITS = Limits()


class Chunk:
    """Messages that go out together, one frame each; made once, shared by all clients that get them."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self.texts = texts
        self.size_bytes = sum(map(len, texts))

    @cached_property
    def frames(self) -> bytes:
        """The messages as unmasked, uncompressed WebSocket text frames. Source: RFC 6455, section 5.2."""
        return b"".join(part for text in self.texts for part in (_text_frame_header(len(text)), text))


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
        ended: Done with the reason when we end the connection.
    """

    def __init__(self, socket: Socket, limits: Limits) -> None:
        self.socket = socket
        self.channels: set[str] = set()
        self.ended: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._limits = limits
        self._held: list[Event] | None = None
        self._held_bytes = 0
        # Channels of which a catch-up has sent all up to a position that live events have not reached yet.
        self._covered: dict[str, int] = {}
        self._queue: deque[Chunk] = deque()
        self._queued_events = 0
        self._queued_bytes = 0
        self._has_room = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._may_say = float(limits.messages_at_once)
        self._spoke_at = asyncio.get_running_loop().time()

    @property
    def takes_all(self) -> bool:
        """Whether live events can be offered as they come: `give` would neither hold nor drop any."""
        return self._held is None and not self._covered

    def give(self, events: Sequence[Event]) -> None:
        """Live events of its channels, in order of position; those that a catch-up has sent are dropped."""
        if self._held is not None:
            self._held += events
            self._held_bytes += sum(len(e.text) for e in events)
            if len(self._held) > self._limits.queue_events or self._held_bytes > self._limits.queue_bytes:
                self.end(SLOW)
            return
        wanted = [e for e in events if all(e.position > self._covered.get(c, 0) for c in e.channels)]
        if wanted:
            self.offer(Chunk([e.text for e in wanted]))
        if events:
            self._covered = {c: until for c, until in self._covered.items() if until > events[-1].position}

    def hold(self) -> None:
        """Keep live events back: a catch-up goes first."""
        self._held, self._held_bytes = [], 0

    def release(self, channel: str, covered: int) -> None:
        """The catch-up of `channel` has sent everything up to position `covered`: go on with what was held."""
        held, self._held = self._held or [], None
        if channel in self.channels:
            self._covered[channel] = covered
        self.give(held)

    def unsubscribe(self, channel: str) -> None:
        self.channels.discard(channel)
        self._covered.pop(channel, None)

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
        now = asyncio.get_running_loop().time()
        refilled = self._may_say + (now - self._spoke_at) * self._limits.messages_per_s
        self._may_say = min(refilled, float(self._limits.messages_at_once)) - 1
        self._spoke_at = now
        return self._may_say >= 0

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


def _text_frame_header(length: int) -> bytes:
    if length < 126:
        return bytes((0x81, length))
    if length < 65_536:
        return struct.pack("!BBH", 0x81, 126, length)
    return struct.pack("!BBQ", 0x81, 127, length)

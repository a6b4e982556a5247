"""
One connected WebSocket client: requests, bounded queue, and how the connection ends.

Laws. The gateway never waits for a client: `offer` returns at once, and a client whose queue is full is
disconnected with a code that means "reconnect and catch up". A chunk for many clients is encoded once, and
written at once.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.frames import Frame, Opcode

from tarsy_scoring.limits.token_bucket import TokenBucket
from tarsy_scoring.live.events import LiveEvent
from tarsy_scoring.telemetry.http_server import TRANSPORT


class CloseReason(Enum):
    """Why the gateway closes a connection: close code, text for the peer, and label value for the metric."""

    SLOW = 4008, "too slow: reconnect and catch up", "slow"
    FLOOD = 1008, "too many messages", "flood"
    TOO_BIG = 1009, "message too big", "too_big"
    NOT_READY = 1013, "not ready yet: try again later", "not_ready"
    REVOKED = 1008, "the token is no longer valid", "revoked"
    OLD = 4009, "connected for long enough: reconnect and catch up", "old"
    STOPPING = 1012, "the service restarts: reconnect and catch up", "stopping"
    RENUMBERED = 1012, "positions begin anew: reconnect and reload", "renumbered"


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """
    Limits for a gateway and for each client.

    Args:
        clients: Connections in this process.
        clients_per_caller: Connections by name, or by address for anonymous callers. A quarter of
            all, since all users behind a proxy share an address.
        life_s: Seconds; a connection is closed after 75 to 100 % of them. Access is checked at the handshake,
            and later only for tokens, so this bounds how long a client gets events after it lost access.
        channels: Subscriptions per client.
        queue_events, queue_bytes: Bounds for a client's queue, in addition to the connection buffer. An
            empty queue accepts any chunk. 1,000 events are five seconds in a very busy fleet.
        message_bytes: Longest message from a client.
        messages_per_s, messages_at_once: Rate and burst by client. The burst, which a client has
            from the start, also bounds requests that wait for an answer.
        readers: Catch-ups that read the database at the same time. A thousand clients that reconnect together
            must not take the whole pool.
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
    readers: int = 4


DEFAULT_LIMITS = GatewayLimits()
GONE = (WebSocketDisconnect, RuntimeError, OSError)  # what a send raises when the peer has left
ROOM_S = 0.05  # between two looks whether a slow client has taken what its connection holds
CHANNEL_MAX = 300  # characters; a session id has at most 255


class ClientRequest(NamedTuple):
    """
    A client's request. The channel may not exist.

    Args:
        action: `ping`, `subscribe`, `unsubscribe` or `catchup`.
        last: The position after which the client wants events; None: not given.
    """

    action: str
    channel: str = ""
    last: int | None = None


class InvalidRequest(Exception):
    """A client's message breaks the protocol; the text is for the client."""


def parse_request(text: str | bytes) -> ClientRequest | None:
    """
    Parse a client's message; None: an unknown action, perhaps from another protocol version, gets no answer.

    Raises:
        InvalidRequest: The message breaks the protocol.
    """
    try:
        message = from_json(text)
        action = message["action"]
    except (ValueError, TypeError, KeyError):
        raise InvalidRequest("a message is a JSON object with an action") from None
    if action == "ping":
        return ClientRequest("ping")
    if action not in ("subscribe", "unsubscribe", "catchup"):
        return None
    channel, last = message.get("channel"), message.get("last_event_id")
    if not isinstance(channel, str) or not channel:
        raise InvalidRequest(f"channel is required for {action}")
    if last is not None and (type(last) is not int or not 0 <= last < 2**63):
        raise InvalidRequest("last_event_id is the position of an event: a whole number, 0 or more")
    if action == "catchup" and last is None:
        raise InvalidRequest("last_event_id is required for catchup")
    # No channel has a longer name, and waiting requests must stay small.
    return ClientRequest(action, channel[:CHANNEL_MAX], last)


class Chunk:
    """Messages that are sent together, one frame each; encoded once and shared by all their recipients."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        self.events, self.size_bytes = len(messages), sum(map(len, messages))
        self.frames = b"".join(Frame(Opcode.TEXT, message).serialize(mask=False) for message in messages)


class Client:
    """
    A connected client. The methods that send are synchronous and never wait.

    Attributes:
        channels: Channels that the client subscribed to.
        requests: Requests that were not answered yet, the oldest first.
        closing: A future that holds the reason once the gateway closes the connection.
        is_revoked: Tells whether the caller may no longer have this connection.
    """

    def __init__(
        self, socket: WebSocket, limits: GatewayLimits, is_revoked: Callable[[], bool] = lambda: False
    ) -> None:
        self.socket = socket
        self._transport: asyncio.Transport = socket.scope["extensions"][TRANSPORT]
        self.is_revoked = is_revoked
        self.channels: set[str] = set()
        self.requests: asyncio.Queue[ClientRequest] = asyncio.Queue(limits.messages_at_once)
        self.closing: asyncio.Future[CloseReason] = asyncio.get_running_loop().create_future()
        self._limits = limits
        self._held: list[LiveEvent] | None = None
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
        """Whether live events go to `hold_back` instead of `offer`."""
        return self._held is not None

    def hold(self) -> None:
        """Start to hold live events back, because a catch-up is sent first."""
        self._held, self._held_bytes = [], 0

    def hold_back(self, events: Sequence[LiveEvent]) -> None:
        """Keep live events until `release`; closes the connection if they are too many."""
        assert self._held is not None, "hold() comes first"
        self._held += events
        self._held_bytes += sum(len(e.text) for e in events)
        if len(self._held) > self._limits.queue_events or self._held_bytes > self._limits.queue_bytes:
            self.end(CloseReason.SLOW)

    def release(self) -> None:
        """Send the events that were held back; later ones are live again."""
        held, self._held = self._held, None
        if held:
            self.offer(Chunk([e.text for e in held]))

    def offer(self, chunk: Chunk) -> None:
        """Send the chunk after all earlier ones; closes the connection if the queue is full."""
        if self.closing.done():
            return
        if not self._queue and self._write(chunk):
            return
        events, size_bytes = self._queued_events + chunk.events, self._queued_bytes + chunk.size_bytes
        if self._queue and (events > self._limits.queue_events or size_bytes > self._limits.queue_bytes):
            self.end(CloseReason.SLOW)
            return
        self._queue.append(chunk)
        self._queued_events, self._queued_bytes = events, size_bytes
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_queue())

    def send_message(self, message: Mapping[str, Any]) -> None:
        """Offer one message of the protocol."""
        self.offer(Chunk([to_json(message)]))

    def end(self, reason: CloseReason) -> None:
        """Close the connection, unless it is being closed already, and drop the queue."""
        if not self.closing.done():
            self.closing.set_result(reason)
        self._drop_queue()

    def may_send(self) -> bool:
        """Whether one more message of the client is within the rate; counts the message."""
        return self._messages.take(asyncio.get_running_loop().time()) == 0.0

    async def wait_for_room(self) -> None:
        """
        Wait until at most half the queue is in use.

        The gateway waits for this before it reads the client's next message. So a client that does not read
        answers is not served further, and cannot overflow the queue with many requests.
        """
        while (
            2 * self._queued_events > self._limits.queue_events
            or 2 * self._queued_bytes > self._limits.queue_bytes
        ):
            self._has_room.clear()
            await self._has_room.wait()

    async def stop(self) -> None:
        """Stop writing and drop the queue."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.wait([self._writer])
        self._drop_queue()

    def _write(self, chunk: Chunk) -> bool:
        """Write the chunk if the connection's buffer is empty; returns whether it did, or the peer has left."""
        if self._transport.is_closing():
            return True  # the receiving task sees it, too
        if self._transport.get_write_buffer_size():
            return False
        self._transport.write(chunk.frames)
        return True

    async def _write_queue(self) -> None:
        while self._queue:
            await asyncio.sleep(ROOM_S)
            while self._queue and self._write(self._queue[0]):
                chunk = self._queue.popleft()
                self._queued_events -= chunk.events
                self._queued_bytes -= chunk.size_bytes
                self._has_room.set()

    def _drop_queue(self) -> None:
        self._queue.clear()
        self._queued_events = self._queued_bytes = 0
        self._has_room.set()

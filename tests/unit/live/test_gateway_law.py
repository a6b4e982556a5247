"""The law of live events, on random histories: a client that reconnects with its position has missed nothing."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic_core import to_json
from starlette.websockets import WebSocket

from live import FakeSocket, event, records
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.live.events import PHASES_FOR_ALL
from tarsy_scoring.live.gateway import Gateway
from tarsy_scoring.live.stored import END, FORGOTTEN, NEWER, NEWER_OF_ALL, NEWER_OF_SESSION
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.telemetry.metrics import Metrics

SESSIONS = ("a", "b", "c")
CHANNELS = ("sessions", *(f"session:{s}" for s in SESSIONS))
ENOUGH_TURNS = 500

Step = tuple[Any, ...]


class StoredEvents:
    """
    Stands for the database: committed events, read a few turns of the event loop later.

    Attributes:
        delay_turns: Turns before and between the statements of one read.
    """

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.delay_turns = 0

    def commit(self, session_id: str, is_for_all: bool) -> None:
        phase = PHASES_FOR_ALL[0] if is_for_all else "storing"
        self.events.append(event(len(self.events) + 1, session_id, "scoring.progress", phase=phase))

    def of(self, channel: str, behind: int) -> set[int]:
        """Positions of the channel's events after a position."""
        return {
            e["position"]
            for e in self.events[behind:]
            if (e["phase"] in PHASES_FOR_ALL if channel == "sessions" else channel == f"session:{e['session_id']}")
        }

    def sql(self, statement: str) -> str:
        return statement

    async def once(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        await turns(self.delay_turns)
        return await work(self)

    async def fetchval(self, statement: str) -> int:
        if statement == FORGOTTEN:
            return 0
        assert statement == END
        end = len(self.events)
        await turns(self.delay_turns)
        return end

    async def fetch(self, statement: str, since: int, until: int, limit: int, of: Any = None) -> list[dict[str, Any]]:
        wanted = {
            NEWER: lambda: set(range(since + 1, until + 1)),
            NEWER_OF_SESSION: lambda: self.of(f"session:{of}", since),
            NEWER_OF_ALL: lambda: self.of("sessions", since),
        }[statement]()
        found = [e for e in self.events if e["position"] in wanted and since < e["position"] <= until][:limit]
        await turns(self.delay_turns)
        return [{"position": e["position"], "payload": e, "text": to_json(e).decode()} for e in found]


class Dashboard:
    """
    A client that follows docs/live.md: an event advances its position while all channels are confirmed, and a
    confirmation takes it back to the position that it asked with.

    Attributes:
        position: The position that it would reconnect with.
        owed: Channels that it follows, each with the position after which it must get all events.
    """

    def __init__(self, gateway: Gateway) -> None:
        self.position = 0
        self.owed: dict[str, int] = {}
        self.seen: dict[str, set[int]] = {}
        self._asked: dict[str, int] = {}
        self._connect_to(gateway)

    def _connect_to(self, gateway: Gateway) -> None:
        self._socket, self._heard, self._last = FakeSocket(), 0, 0
        self._serving = asyncio.create_task(gateway.serve(cast(WebSocket, self._socket)))

    def subscribe(self, channel: str, *, from_the_beginning: bool) -> None:
        if channel in self.owed:
            return
        self._ask(channel, 0 if from_the_beginning else self.position)
        self.owed[channel], self.seen[channel] = self._asked[channel], set()

    def unsubscribe(self, channel: str) -> None:
        if channel in self.owed and channel not in self._asked:
            del self.owed[channel]
            self._socket.say({"action": "unsubscribe", "channel": channel})

    def _ask(self, channel: str, behind: int) -> None:
        self._asked[channel] = behind
        self._socket.say({"action": "subscribe", "channel": channel, "last_event_id": behind})

    def hear(self, number: int | None = None) -> None:
        """Take this many of the messages that were sent, or all."""
        messages = self._socket.messages[self._heard :][:number]
        self._heard += len(messages)
        for message in messages:
            assert message["type"] not in ("catchup.overflow", "error", "subscription.error")
            if message["type"] == "subscription.confirmed":
                self._last = 0
                self.position = min(self.position, self._asked.pop(message["channel"]))
            elif "position" in message:
                self._take(message)

    def _take(self, message: dict[str, Any]) -> None:
        position = message["position"]
        assert position > self._last, "behind a confirmation positions rise: in order, and none twice"
        self._last = position
        if not self._asked:
            self.position = position
        for channel in (f"session:{message['session_id']}", "sessions"):
            if channel in self.owed:
                self.seen[channel].add(position)

    async def leave(self) -> None:
        self._socket.leave()
        await self._serving
        assert self._socket.closed is None

    async def reconnect(self, gateway: Gateway) -> None:
        """Lose the messages that were not read, and reconnect with the remembered position."""
        await self.leave()
        self.position = min([self.position, *self._asked.values()])
        self._asked.clear()
        self._connect_to(gateway)
        for channel in self.owed:
            self._ask(channel, self.position)

    @property
    def is_waiting(self) -> bool:
        return bool(self._asked) or self._heard < len(self._socket.messages)


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


class Scenario:
    """A database, two processes that each follow it at their own pace, and a dashboard at one of them."""

    def __init__(self) -> None:
        self.stored = StoredEvents()
        self.gateways = [Gateway(Settings(), cast(Database, self.stored), Metrics()) for _ in range(2)]
        self._readers_of_others = [0, 0]

    async def play(self, steps: Sequence[Step]) -> None:
        """Take the steps, let all events arrive, and assert that none is missing."""
        for gateway in self.gateways:
            await gateway.read_missing()
        dashboard = Dashboard(self.gateways[0])
        for name, *how in [*steps, ("free", 0), ("free", 1), ("read", 0), ("read", 1)]:
            if name in ("subscribe", "unsubscribe", "hear", "drop"):
                await self._by(dashboard, name, how)
            else:
                await self._by_others(name, how)
        for _ in range(ENOUGH_TURNS):
            await turns(3)
            dashboard.hear()
            if not dashboard.is_waiting:
                break
        await turns(ENOUGH_TURNS)
        dashboard.hear()
        await dashboard.leave()
        for channel, behind in dashboard.owed.items():
            missed = self.stored.of(channel, behind) - dashboard.seen[channel]
            assert not missed, f"{channel} lacks {sorted(missed)} of the events after {behind}"

    async def _by(self, dashboard: Dashboard, name: str, how: Sequence[Any]) -> None:
        match name:
            case "subscribe":
                dashboard.subscribe(how[0], from_the_beginning=how[1])
            case "unsubscribe":
                dashboard.unsubscribe(how[0])
            case "hear":
                dashboard.hear(how[0])
            case "drop":
                await dashboard.reconnect(self.gateways[how[0]])

    async def _by_others(self, name: str, how: Sequence[Any]) -> None:
        match name:
            case "turn":
                await turns(how[0])
            case "delay":
                self.stored.delay_turns = how[0]
            case "commit":
                self.stored.commit(*how[1:])
            case "live":
                self.stored.commit(*how[1:])
                self.gateways[how[0]].take_records(records(*self.stored.events))
                self.gateways[how[0]].deliver()
            case "topic":
                known = (e for e in self.stored.events if how[1] >> e["position"] % 8 & 1)
                self.gateways[how[0]].take_records(records(*known))
            case "deliver":
                self.gateways[how[0]].deliver()
            case "read":
                await self.gateways[how[0]].read_missing()
            case "busy":
                while not self.gateways[how[0]]._readers.locked():
                    await self.gateways[how[0]]._readers.acquire()
                    self._readers_of_others[how[0]] += 1
            case "free":
                for _ in range(self._readers_of_others[how[0]]):
                    self.gateways[how[0]]._readers.release()
                self._readers_of_others[how[0]] = 0


small = st.integers(1, 6)
process = st.sampled_from([0, 0, 0, 1])
COMMITS = st.tuples(st.sampled_from(["commit", "live", "live"]), process, st.sampled_from(SESSIONS), st.booleans())
STEPS = st.one_of(
    COMMITS,
    COMMITS,
    COMMITS,
    st.tuples(st.just("topic"), process, st.integers(1, 255)),
    st.tuples(st.sampled_from(["deliver", "read", "drop", "busy", "free"]), process),
    st.tuples(st.just("delay"), st.integers(0, 4)),
    st.tuples(st.just("subscribe"), st.sampled_from(CHANNELS), st.booleans()),
    st.tuples(st.just("unsubscribe"), st.sampled_from(CHANNELS)),
    st.tuples(st.sampled_from(["hear", "turn"]), small),
    st.tuples(st.sampled_from(["hear", "turn"]), small),
)

# The gateway lags behind the database, so a catch-up reads events that the other channel has not sent yet.
AHEAD: list[Step] = [
    ("subscribe", "sessions", False),
    ("turn", 6),
    ("hear", 6),
    ("commit", 0, "a", True),
    ("commit", 0, "b", False),
    ("subscribe", "session:b", False),
    ("turn", 6),
    ("hear", 6),
    ("drop", 0),
]

# A catch-up waits for its turn while the stream goes on.
IN_A_QUEUE: list[Step] = [
    ("busy", 0),
    ("subscribe", "session:a", True),
    ("turn", 6),
    ("live", 0, "a", True),
    ("free", 0),
]
# The other process has not received an event that the dashboard knows.
BEHIND: list[Step] = [
    ("subscribe", "sessions", True),
    ("turn", 6),
    ("live", 0, "a", True),
    ("hear", 6),
    ("drop", 1),
    ("subscribe", "session:a", False),
]


@settings(max_examples=200)
@example(AHEAD)
@example(IN_A_QUEUE)
@example(BEHIND)
@given(st.lists(STEPS, max_size=60))
def test_a_client_that_reconnects_has_missed_nothing(steps: list[Step]) -> None:
    """
    All events of each channel arrive, however they are committed, delayed, held, lost or asked for again; after
    a confirmation they arrive in order and none twice.
    """
    asyncio.run(Scenario().play(steps))


@pytest.mark.parametrize("moment", range(1, 16))
def test_an_event_at_any_moment_of_a_catch_up_comes_once_and_behind_it(moment: int) -> None:
    """Before it, between its position and its read, during the read, after it: sent once, in order."""
    before: list[Step] = [("live", 0, "a", True), ("delay", 4), ("subscribe", "session:a", True)]
    asyncio.run(Scenario().play([*before, ("turn", moment), ("live", 0, "a", True)]))

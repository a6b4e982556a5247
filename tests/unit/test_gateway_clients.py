"""The gateway without a database: order, channels, queues that are bounded, and what a client may say."""

import asyncio
import struct
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from live import FakeSocket, connected_to, event, let_in_by, of_type, records, until
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.live.client import CHANNEL_MAX, Chunk, Client, Limits
from tarsy_scoring.live.events import EARLY_LIMIT, Event, Order, decode, event_of
from tarsy_scoring.live.gateway import Gateway
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.telemetry.metrics import Metrics


def at(position: int, *channels: str, size: int = 2) -> Event:
    """An event whose text is of no interest."""
    return Event(position, channels or ("sessions",), b"x" * size, 0)


def chunk(*positions: int, size: int = 2) -> Chunk:
    return Chunk([at(p, size=size).text for p in positions])


@pytest.fixture
def gateway(unplaced: Gateway) -> Gateway:
    """A gateway whose database is never asked: it stands at the beginning."""
    unplaced.begin_at(0)
    return unplaced


@pytest.fixture
def unplaced() -> Gateway:
    """A gateway that does not know yet where the stream stands."""
    return Gateway(Settings(), Database("postgresql://nobody@localhost:1/none", "public", pool_size=1), Metrics())


@pytest.fixture
async def socket(gateway: Gateway) -> AsyncIterator[FakeSocket]:
    async with connected_to(gateway) as socket:
        yield socket


class TestOrder:
    def test_positions_go_out_in_order_whatever_order_they_come_in(self) -> None:
        """Kafka orders nothing across partitions."""
        order = Order(10)
        out = []
        for position in (12, 14, 11, 13, 16):
            order.add(at(position))
            out += order.take()
        assert [e.position for e in out] == [11, 12, 13, 14]
        assert order.has_gap, "15 is missing before 16"

    def test_a_repeat_is_dropped(self) -> None:
        """Delivery to the topic is at least once."""
        order = Order(0)
        for position in (1, 2, 2, 1):
            order.add(at(position))
        assert [e.position for e in order.take()] == [1, 2]
        order.add(at(2))
        assert order.take() == []
        assert not order.has_gap

    def test_what_does_not_exist_any_more_is_passed_over(self) -> None:
        """An erased session leaves holes that nothing will ever fill; what came early behind them goes out as well."""
        order = Order(0)
        for position in (2, 5, 6, 7, 9):
            order.add(at(position))
        assert [e.position for e in order.take_until(6)] == [2, 5, 6, 7]
        assert order.position == 7
        assert order.has_gap

    def test_what_is_kept_ahead_of_a_gap_is_bounded(self) -> None:
        """Positions of another installation must not fill the memory, nor keep out what the database has."""
        order = Order(0)
        for position in range(2, EARLY_LIMIT + 1000):
            if not order.is_full:
                order.add(at(position))
        assert order.is_full
        order.add(at(1))
        assert [e.position for e in order.take_until(1)][:2] == [1, 2]

    def test_what_the_database_has_replaces_what_came_early(self) -> None:
        """The truth of a position is in the database."""
        order = Order(0)
        order.add(at(2))
        true = at(2)
        order.add(true)
        order.add(at(1))
        assert order.take()[1] is true

    @pytest.mark.parametrize(
        "value",
        [
            b'{"position": Infinity, "timestamp_us": 1, "session_id": "a", "purpose": "production", "type": "x"}',
            b'{"position": 1e400, "timestamp_us": 1, "session_id": "a", "purpose": "production", "type": "x"}',
            b'{"position": true, "timestamp_us": 1, "session_id": "a", "purpose": "production", "type": "x"}',
            b'{"position": 1, "timestamp_us": "x", "session_id": "a", "purpose": "production", "type": "x"}',
        ],
        ids=["infinite", "too-large", "a-boolean", "no-time"],
    )
    def test_a_record_with_nonsense_is_none_of_ours(self, value: bytes) -> None:
        """Whoever may write to the topic must not end a process."""
        assert decode(value) is None


class TestEvent:
    @pytest.mark.parametrize(
        ("says", "is_for_all"),
        [
            ({"kind": "scoring.started"}, True),
            ({"kind": "scoring.completed"}, True),
            ({"kind": "scoring.failed"}, True),
            ({"kind": "scoring.progress", "phase": "queued"}, True),
            ({"kind": "scoring.progress", "phase": "waiting_retry"}, True),
            ({"kind": "scoring.progress", "phase": "storing"}, False),
            ({"kind": "scoring.completed", "purpose": "shadow"}, False),
            ({"kind": "scoring.progress", "phase": "queued", "purpose": "consistency"}, False),
        ],
        ids=lambda v: "-".join(v.values()) if isinstance(v, dict) else str(v),
    )
    def test_channels(self, says: dict[str, Any], is_for_all: bool) -> None:
        """A session's channel gets all; the one of all sessions what a list of production scores shows."""
        channels = event_of(event(1, "session-7", **says), b"").channels
        assert channels == (("session:session-7", "sessions") if is_for_all else ("session:session-7",))

    @pytest.mark.parametrize(
        "value",
        [None, b"", b"{", b"[]", b"7", b"{}", b'{"position": "x", "session_id": 1}', b"\xff\xfe"],
        ids=["nothing", "empty", "half", "list", "number", "object", "wrong types", "not utf-8"],
    )
    def test_what_is_no_event_of_ours_is_passed_over(self, value: bytes | None) -> None:
        """Anybody may write to the topic."""
        assert decode(value) is None


class TestFrames:
    def test_of_several_messages_follow_each_other(self) -> None:
        """One frame per message, one piece of bytes for all, made once."""
        several = Chunk([b"one", b"three"])
        assert several.frames == struct.pack("!BB", 0x81, 3) + b"one" + struct.pack("!BB", 0x81, 5) + b"three"
        assert several.frames is several.frames


class TestQueue:
    async def test_of_a_client_that_reads_stays_empty(self) -> None:
        """What can be sent at once is not queued."""
        socket = FakeSocket()
        client = Client(socket, Limits(queue_events=2))
        for position in range(100):
            client.offer(chunk(position))
        assert len(socket.chunks) == 100
        assert not client.ended.done()

    @pytest.mark.parametrize(
        ("limits", "fit"),
        [(Limits(queue_events=5), 5), (Limits(queue_bytes=500), 5)],
        ids=["too many events", "too many bytes"],
    )
    async def test_that_is_full_ends_the_client(self, limits: Limits, fit: int) -> None:
        """Nobody waits for a client that does not read: it is told to reconnect and catch up."""
        socket = FakeSocket()
        socket.reading.clear()
        client = Client(socket, limits)
        for position in range(fit):
            client.offer(chunk(position, size=100))
        assert not client.ended.done()
        client.offer(chunk(99, size=100))
        assert client.ended.result().code == 4008
        await client.stop()

    async def test_takes_one_chunk_of_any_size(self) -> None:
        """A single large event must not cut off everybody who gets it."""
        socket = FakeSocket()
        socket.reading.clear()
        client = Client(socket, Limits(queue_bytes=10))
        client.offer(chunk(1, size=1000))
        assert not client.ended.done()
        socket.reading.set()
        await until(lambda: len(socket.chunks) == 1, "the chunk")

    async def test_is_sent_in_order_when_the_client_reads_again(self) -> None:
        """What is offered while older chunks wait goes behind them, also in the moment in which those are sent."""
        socket = FakeSocket()
        socket.reading.clear()
        client = Client(socket, Limits())
        offered = [chunk(n) for n in range(6)]
        for one in offered[:3]:
            client.offer(one)
        await asyncio.sleep(0)
        socket.reading.set()
        for one in offered[3:]:
            client.offer(one)
        await until(lambda: len(socket.chunks) == 6, "all chunks")
        assert socket.chunks == offered

    @pytest.mark.parametrize(
        "limits", [Limits(queue_events=3), Limits(queue_bytes=300)], ids=["counted in events", "counted in bytes"]
    )
    async def test_can_be_filled_anew_after_it_was_sent(self, limits: Limits) -> None:
        """What was sent does not count any more."""
        socket = FakeSocket()
        client = Client(socket, limits)
        for round_ in range(3):
            socket.reading.clear()
            for n in range(3):
                client.offer(chunk(n, size=100))
            socket.reading.set()
            await until(lambda sent=3 * (round_ + 1): len(socket.chunks) == sent, "the round")
        assert not client.ended.done()

    @pytest.mark.parametrize(
        "limits", [Limits(queue_events=3), Limits(queue_bytes=300)], ids=["too many events", "too many bytes"]
    )
    async def test_holds_live_events_back_during_a_catch_up_within_its_bounds(self, limits: Limits) -> None:
        """A slow database must not fill the memory with what a client would get after its catch-up."""
        client = Client(FakeSocket(), limits)
        client.hold()
        client.keep([at(n, size=100) for n in (1, 2, 3)])
        assert not client.ended.done()
        client.keep([at(4, size=100)])
        assert client.ended.result().word == "slow"

    async def test_goes_on_with_what_was_held(self) -> None:
        """In its order, once, behind what was offered meanwhile; and a second catch-up begins with nothing."""
        socket = FakeSocket()
        client = Client(socket, Limits())
        for positions in ((1, 2), ()):
            client.hold()
            assert client.is_holding
            client.keep([Event(p, ("sessions",), b"live", 0) for p in positions])
            client.offer(Chunk([b"stored"]))
            client.release()
            assert not client.is_holding
        assert [t for c in socket.chunks for t in c.texts] == [b"stored", b"live", b"live", b"stored"]


class TestProtocol:
    async def test_begins_with_a_name_for_the_connection(self, socket: FakeSocket) -> None:
        """The first message, before the client says anything."""
        [first, *_] = socket.messages
        assert first["type"] == "connection.established"
        assert set(first) == {"type", "connection_id"}

    async def test_ping(self, socket: FakeSocket) -> None:
        """Answered by a pong and nothing else."""
        socket.say({"action": "ping"})
        await socket.answer()
        assert socket.messages[-1] == {"type": "pong"}

    async def test_ping_waits_for_nothing(self, gateway: Gateway, socket: FakeSocket) -> None:
        """A client that pings to see whether we are there is answered while its catch-up waits for its turn."""
        while not gateway._readers.locked():
            await gateway._readers.acquire()
        socket.say({"action": "subscribe", "channel": "session:a"})
        socket.say({"action": "ping"})
        await until(lambda: of_type(socket.messages, "pong"), "the pong")
        assert of_type(socket.messages, "subscription.confirmed") == []

    async def test_subscribe_is_confirmed(self, socket: FakeSocket) -> None:
        """With the channel."""
        socket.say({"action": "subscribe", "channel": "sessions"})
        assert {"type": "subscription.confirmed", "channel": "sessions"} in await socket.answer()

    async def test_unsubscribe_has_no_answer(self, socket: FakeSocket) -> None:
        """Neither of a channel that it had nor of another one."""
        for channel in ("sessions", "session:x", "nonsense"):
            socket.say({"action": "unsubscribe", "channel": channel})
        assert len(await socket.answer()) == 1

    @pytest.mark.parametrize(
        "channel",
        ["cancellations", "session:", "session:../x", "session:a b", "sessions:", "Sessions", "session", "*", "ü"],
    )
    async def test_another_channel_is_an_error(self, socket: FakeSocket, channel: str) -> None:
        """There are two kinds of channels; the connection stays."""
        for action in ("subscribe", "catchup"):
            socket.say({"action": action, "channel": channel, "last_event_id": 0})
        errors = of_type(await socket.answer(), "subscription.error")
        assert [e["channel"] for e in errors] == [channel, channel]
        assert "sessions" in errors[0]["message"]

    async def test_a_channel_of_any_length_is_told_shortened(self, socket: FakeSocket) -> None:
        """What waits to be answered is small, whatever a client says; no channel has such a name."""
        socket.say({"action": "subscribe", "channel": "session:" + "a" * 10_000})
        [error] = of_type(await socket.answer(), "subscription.error")
        assert error["channel"] == "session:" + "a" * (CHANNEL_MAX - 8)

    @pytest.mark.parametrize(
        ("says", "hint"),
        [
            ("not json", "JSON"),
            ("[]", "JSON object"),
            ("7", "JSON object"),
            ("{}", "action"),
            ('{"action": 7}', "action"),
            (b"\xff\xfe", "JSON"),
            ("[" * 10_000, "JSON"),
            ({"action": "subscribe"}, "channel is required for subscribe"),
            ({"action": "unsubscribe", "channel": ""}, "channel is required for unsubscribe"),
            ({"action": "catchup", "channel": 5, "last_event_id": 1}, "channel is required for catchup"),
            ({"action": "catchup", "channel": "sessions"}, "last_event_id is required"),
            ({"action": "catchup", "channel": "sessions", "last_event_id": "7"}, "whole number"),
            ({"action": "catchup", "channel": "sessions", "last_event_id": 1.5}, "whole number"),
            ({"action": "catchup", "channel": "sessions", "last_event_id": True}, "whole number"),
            ({"action": "catchup", "channel": "sessions", "last_event_id": -1}, "whole number"),
            ({"action": "catchup", "channel": "sessions", "last_event_id": 2**63}, "whole number"),
        ],
    )
    async def test_nonsense_is_told_and_the_connection_stays(
        self, socket: FakeSocket, says: dict[str, Any] | str | bytes, hint: str
    ) -> None:
        """An error that says what is wrong; the next message is answered as ever."""
        socket.say(says)
        [error] = of_type(await socket.answer(), "error")
        assert hint in error["message"]
        assert socket.closed is None

    async def test_an_action_of_another_version_is_ignored(self, socket: FakeSocket) -> None:
        """As TARSy does."""
        socket.say({"action": "dance", "channel": "sessions"})
        assert len(await socket.answer()) == 1


class TestPlace:
    """What a client asks for before the gateway knows where the stream stands."""

    async def test_is_waited_for(self, unplaced: Gateway) -> None:
        """A subscription begins where the stream stands then; a ping is answered meanwhile."""
        async with let_in_by(unplaced) as socket:
            socket.say({"action": "subscribe", "channel": "sessions"})
            socket.say({"action": "ping"})
            await until(lambda: of_type(socket.messages, "pong"), "the pong")
            assert of_type(socket.messages, "subscription.confirmed") == []
            unplaced.begin_at(7)
            await socket.answer()
            assert len(of_type(socket.messages, "subscription.confirmed")) == 1
            unplaced.take_records(records(event(7), event(8)))
            unplaced.deliver()
            assert socket.positions == [8]

    async def test_that_stays_unknown_sends_the_client_away(
        self, unplaced: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another process may know it: try again later."""
        monkeypatch.setattr("tarsy_scoring.live.gateway.PLACE_WAIT_S", 0.01)
        async with let_in_by(unplaced) as socket:
            await until(lambda: socket.closed, "the end")
            assert socket.closed is not None
            assert socket.closed[0] == 1013
        assert unplaced._metrics.gateway_closed.labels("not_ready")._value.get() == 1


class TestLimits:
    async def test_a_connection_that_is_old_has_to_come_back(self, gateway: Gateway) -> None:
        """Who may hear is looked at on the handshake; nobody hears for ever after it lost the right to."""
        gateway._limits = Limits(life_s=0.2)
        began = time.monotonic()
        async with let_in_by(gateway) as socket:
            await until(lambda: socket.closed, "the end")
            assert socket.closed == (4009, "connected for long enough: reconnect and catch up")
        assert time.monotonic() - began >= 0.75 * 0.2

    async def test_connections_that_came_together_do_not_end_together(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After a restart all come at once, and not again an hour later: their lives differ, within bounds."""
        bounds: list[tuple[float, float]] = []
        monkeypatch.setattr("random.uniform", lambda low, high: bounds.append((low, high)) or high)
        async with connected_to(gateway), connected_to(gateway):
            assert bounds == [(0.75, 1), (0.75, 1)]

    async def test_clients_of_one_caller(self, gateway: Gateway) -> None:
        """Nobody takes up all connections; others are let in, and one that leaves makes room."""
        gateway._limits = Limits(clients_per_caller=1)
        one = FakeSocket()
        serving = asyncio.create_task(gateway.serve(one, "alice"))
        await until(lambda: one.messages, "the connection")
        assert gateway.has_enough("alice")
        assert not gateway.has_enough("bob")
        one.leave()
        await serving
        assert not gateway.has_enough("alice")
        assert not gateway._callers, "nothing is kept of who has left"

    async def test_what_waits_to_be_answered(self, gateway: Gateway) -> None:
        """Asking on while nothing can be answered fills no memory."""
        gateway._limits = Limits(messages_per_s=1e9, messages_at_once=10)
        async with let_in_by(gateway) as socket:
            while not gateway._readers.locked():
                await gateway._readers.acquire()
            for n in range(10):
                socket.say({"action": "subscribe", "channel": f"session:{n}"})
            socket.say({"action": "ping"})
            await until(lambda: of_type(socket.messages, "pong"), "the pong")
            assert socket.closed is None
            for n in range(2):  # for one there is room: the first of the ten is being answered
                socket.say({"action": "subscribe", "channel": f"session:more-{n}"})
            await until(lambda: socket.closed, "the end")
            assert socket.closed is not None
            assert socket.closed[0] == 1008

    async def test_too_many_messages_end_the_connection(self, gateway: Gateway) -> None:
        """A client in a loop costs us one connection."""
        gateway._limits = Limits(messages_per_s=0.001, messages_at_once=10)
        async with connected_to(gateway) as socket:
            for _ in range(10):
                socket.say({"action": "ping"})
            await until(lambda: socket.closed, "the end")
            assert socket.closed is not None
            assert socket.closed[0] == 1008
            assert len(of_type(socket.messages, "pong")) == 9

    async def test_a_message_too_large_ends_the_connection(self, gateway: Gateway) -> None:
        """Also where the server in front lets it through."""
        gateway._limits = Limits(message_bytes=100)
        async with connected_to(gateway) as socket:
            socket.say("x" * 101)
            await until(lambda: socket.closed, "the end")
            assert socket.closed is not None
            assert socket.closed[0] == 1009

    async def test_channels_per_client(self, gateway: Gateway) -> None:
        """One more is refused; one that it has is not one more, and one that it gave back makes room."""
        gateway._limits = Limits(channels=1)
        async with connected_to(gateway, "sessions") as socket:
            socket.say({"action": "subscribe", "channel": "sessions"})
            socket.say({"action": "subscribe", "channel": "session:a"})
            socket.say({"action": "unsubscribe", "channel": "sessions"})
            socket.say({"action": "subscribe", "channel": "sessions"})
            answers = await socket.answer()
        assert [a["channel"] for a in of_type(answers, "subscription.confirmed")] == ["sessions"] * 3
        assert [a["channel"] for a in of_type(answers, "subscription.error")] == ["session:a"]

    async def test_clients(self, gateway: Gateway) -> None:
        """A gateway says when it is full; a client that leaves makes room."""
        gateway._limits = Limits(clients=1)
        assert not gateway.is_full
        async with connected_to(gateway):
            assert gateway.is_full
        assert not gateway.is_full

    async def test_a_client_that_takes_no_answers_is_not_read_further(self, gateway: Gateway) -> None:
        """Asking much without reading cannot overrun one's own queue: the asking waits."""
        gateway._limits = Limits(queue_events=10, messages_at_once=1000)
        async with connected_to(gateway) as socket:
            socket.reading.clear()
            for _ in range(50):
                socket.say({"action": "ping"})
            await until(lambda: socket._said.qsize() <= 45, "the first messages to be read")
            waiting = socket._said.qsize()
            socket.reading.set()
            await until(lambda: len(of_type(socket.messages, "pong")) == 50, "all pongs")
        assert waiting >= 40
        assert socket.closed is None

    async def test_nothing_is_left_of_a_client_that_is_gone(self, gateway: Gateway) -> None:
        """No subscription, no client, no task."""
        tasks = asyncio.all_tasks()
        async with connected_to(gateway, "sessions"):
            assert gateway._audience._subscribers
        stuck = FakeSocket()
        stuck.reading.clear()
        serving = asyncio.create_task(gateway.serve(stuck))
        await until(lambda: gateway._clients, "a client to which something is being written")
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert (gateway._clients, gateway._audience._subscribers) == (set(), {})
        assert asyncio.all_tasks() == tasks
        assert gateway._metrics.gateway_subscriptions._value.get() == 0
        assert gateway._metrics.gateway_clients._value.get() == 0

    async def test_nothing_is_left_of_a_client_that_was_leaving_at_a_cancel(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A server that stops may cancel while what a client asked for is still being rolled back."""
        is_read, is_given_up, is_rolled_back = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def read(*_: object) -> None:
            is_read.set()
            try:
                await asyncio.Event().wait()
            finally:
                is_given_up.set()
                await is_rolled_back.wait()

        monkeypatch.setattr(gateway, "_stored", read)
        tasks = asyncio.all_tasks()
        socket = FakeSocket()
        serving = asyncio.create_task(gateway.serve(socket))
        socket.say({"action": "subscribe", "channel": "session:a"})
        await is_read.wait()
        socket.leave()
        await is_given_up.wait()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert (gateway._clients, gateway._callers, gateway._audience._subscribers) == (set(), {}, {})
        is_rolled_back.set()
        await until(lambda: asyncio.all_tasks() == tasks, "its tasks to end")

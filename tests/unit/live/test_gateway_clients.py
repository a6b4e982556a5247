"""The gateway without a database: order, channels, bounded queues, and the protocol of a client."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from starlette.websockets import WebSocket

from live import FakeSocket, connected_to, event, of_type, placed, records, silent_client_of, unplaced, until
from tables import table
from tarsy_scoring.live.client import (
    CHANNEL_MAX,
    Chunk,
    Client,
    CloseReason,
    GatewayLimits,
    InvalidRequest,
    parse_request,
)
from tarsy_scoring.live.events import EARLY_LIMIT, EventSequence, LiveEvent, decode, event_of
from tarsy_scoring.postgres.database import DatabaseAway
from tarsy_scoring.telemetry.metrics import Metrics


def at(position: int, size: int = 2) -> LiveEvent:
    return LiveEvent(position, ("sessions",), b"x" * size, 0)


def chunk(size: int = 2) -> Chunk:
    return Chunk([b"1" * size])


def client_of(socket: FakeSocket, **limits: int) -> Client:
    return Client(cast(WebSocket, socket), GatewayLimits(**limits))


async def close_code(socket: FakeSocket) -> int:
    await until(lambda: socket.closed, "the close frame")
    assert socket.closed is not None
    return socket.closed[0]


@pytest.fixture
async def socket() -> AsyncIterator[FakeSocket]:
    async with connected_to(placed()) as socket:
        yield socket


class TestOrder:
    def test_a_final_gap_is_skipped(self) -> None:
        """An erased session leaves positions that no event has; events after them are not held up."""
        order = EventSequence(0)
        for position in (2, 5, 6, 7, 9):
            order.add(at(position))
        assert [e.position for e in order.take_until(6)] == [2, 5, 6, 7]
        assert order.position == 7
        assert order.has_gap

    def test_events_behind_a_gap_are_bounded(self) -> None:
        """Positions of another installation must not fill the memory, nor keep out events of the database."""
        order = EventSequence(0)
        for position in range(2, EARLY_LIMIT + 1000):
            if not order.is_full:
                order.add(at(position))
        assert order.is_full
        order.add(at(1))
        assert [e.position for e in order.take_until(1)][:2] == [1, 2]


class TestEvent:
    def test_foreign_records_are_skipped(self) -> None:
        """Other producers may write to the topic; no record may end the process."""
        fields = b'"session_id": "a", "purpose": "production", "type": "x"}'
        values = [None, b"", b"{", b"[]", b"7", b"{}", b'{"position": "x", "session_id": 1}', b"\xff\xfe"]
        values += [b'{"timestamp_us": 1, "position": %s, ' % p + fields for p in (b"Infinity", b"1e400", b"true")]
        values.append(b'{"position": 1, "timestamp_us": "x", ' + fields)
        for value in values:
            assert decode(value) is None, value


@table
def test_channels_of_an_event(fields: dict[str, Any], is_for_all: bool) -> None:
    """A session's channel gets all its events; the channel of all sessions those that a list of scores shows."""
    channels = event_of(event(1, "session-7", **fields), b"").channels
    assert channels == ("session:session-7", *(["sessions"] if is_for_all else []))


class TestQueue:
    @pytest.mark.parametrize("limits", [{"queue_events": 5}, {"queue_bytes": 500}])
    async def test_that_is_full_closes_the_connection(self, limits: dict[str, int]) -> None:
        socket = FakeSocket()
        socket.reading.clear()
        client = client_of(socket, **limits)
        for _ in range(5):
            client.offer(chunk(size=100))
        assert not client.closing.done()
        client.offer(chunk(size=100))
        assert client.closing.result() is CloseReason.SLOW
        await client.stop()

    async def test_takes_one_chunk_of_any_size(self) -> None:
        """A single large event must not disconnect all its subscribers."""
        socket = FakeSocket()
        socket.reading.clear()
        client = client_of(socket, queue_bytes=10)
        client.offer(chunk(size=1000))
        assert not client.closing.done()
        socket.reading.set()
        await until(lambda: len(socket.received) == 1, "the chunk")

    @pytest.mark.parametrize("limits", [{"queue_events": 3}, {"queue_bytes": 300}])
    async def test_can_be_filled_again_after_it_was_sent(self, limits: dict[str, int]) -> None:
        socket = FakeSocket()
        client = client_of(socket, **limits)
        for sent in (3, 6, 9):
            socket.reading.clear()
            for _ in range(3):
                client.offer(chunk(size=100))
            socket.reading.set()
            await until(lambda sent=sent: len(socket.received) == sent, "the round")
        assert not client.closing.done()

    @pytest.mark.parametrize("limits", [{"queue_events": 3}, {"queue_bytes": 300}])
    async def test_bounds_the_events_held_back(self, limits: dict[str, int]) -> None:
        """A slow database must not fill the memory with the live events behind a catch-up."""
        client = client_of(FakeSocket(), **limits)
        client.hold()
        client.hold_back([at(n, size=100) for n in (1, 2, 3)])
        assert not client.closing.done()
        client.hold_back([at(4, size=100)])
        assert client.closing.result() is CloseReason.SLOW


class TestProtocol:
    async def test_a_catch_up_that_waits_too_long_is_an_overflow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The client is subscribed, asked to reload, and gets new events."""
        monkeypatch.setattr("tarsy_scoring.live.gateway.READER_WAIT_S", 0.01)
        gateway = placed(readers=0)
        async with connected_to(gateway, "session:a") as socket:
            types = ["connection.established", "subscription.confirmed", "catchup.overflow"]
            assert [m["type"] for m in socket.messages] == types
            gateway.take_records(records(event(1, "a")))
            gateway.deliver()
            await until(lambda: socket.positions == [1], "the event")

    async def test_ping_does_not_wait_for_a_catch_up(self) -> None:
        """The ping is answered while the client's catch-up waits for its turn to read."""
        async with silent_client_of(placed(readers=0)) as socket:
            socket.say({"action": "subscribe", "channel": "session:a"})
            socket.say({"action": "ping"})
            await until(lambda: of_type(socket.messages, "pong"), "the pong")
            assert socket.messages[-1] == {"type": "pong"}
            assert of_type(socket.messages, "subscription.confirmed") == []

    async def test_unsubscribing_and_unknown_actions_get_no_answer(self, socket: FakeSocket) -> None:
        """As in TARSy; an unknown action may belong to another version of the protocol."""
        for channel in ("sessions", "session:x", "nonsense"):
            socket.say({"action": "unsubscribe", "channel": channel})
        socket.say({"action": "dance", "channel": "sessions"})
        assert len(await socket.answer()) == 1

    async def test_an_unknown_channel_is_an_error(self, socket: FakeSocket) -> None:
        """The connection stays open. A long name comes back shortened, to keep waiting requests small."""
        channels = ["cancellations", "session:", "session:../x", "session:a b", "sessions:", "Sessions", "session"]
        channels += ["*", "ü", "session:" + "a" * 10_000]
        for channel in channels:
            for action in ("subscribe", "catchup"):
                socket.say({"action": action, "channel": channel, "last_event_id": 0})
        errors = of_type(await socket.answer(), "subscription.error")
        assert [e["channel"] for e in errors] == [c[:CHANNEL_MAX] for c in channels for _ in range(2)]
        assert "sessions" in errors[0]["message"]

    async def test_an_invalid_request_is_answered_and_the_connection_stays(self, socket: FakeSocket) -> None:
        for invalid in ("not json", b"\xff\xfe", "[" * 10_000, {"action": "subscribe"}):
            socket.say(invalid)
        assert len(of_type(await socket.answer(), "error")) == 4
        assert socket.closed is None


@table
def test_an_invalid_request_is_refused_with_a_hint(text: str, hint: str) -> None:
    with pytest.raises(InvalidRequest, match=hint):
        parse_request(text)


class TestPosition:
    """Requests that arrive before the gateway knows its position in the stream."""

    async def test_is_waited_for(self) -> None:
        """A subscription begins at the position that is found; a ping is answered meanwhile."""
        gateway = unplaced()
        async with silent_client_of(gateway) as socket:
            socket.say({"action": "subscribe", "channel": "sessions"})
            socket.say({"action": "ping"})
            await until(lambda: of_type(socket.messages, "pong"), "the pong")
            assert of_type(socket.messages, "subscription.confirmed") == []
            gateway.begin_at(7)
            await socket.answer()
            assert len(of_type(socket.messages, "subscription.confirmed")) == 1
            gateway.take_records(records(event(7), event(8)))
            gateway.deliver()
            await until(lambda: socket.positions == [8], "the event")

    async def test_that_stays_unknown_disconnects_the_client(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tarsy_scoring.live.gateway.PLACE_WAIT_S", 0.01)
        metrics = Metrics()
        async with silent_client_of(unplaced(metrics)) as socket:
            assert await close_code(socket) == 1013
        closed = metrics.registry.get_sample_value("tarsy_scoring_gateway_closed_total", {"reason": "not_ready"})
        assert closed == 1


async def test_a_database_that_is_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start and later, clients stay connected and then get the events that they missed."""
    away, stopping, is_there = DatabaseAway("planted"), asyncio.Event(), asyncio.Event()
    answers = iter([away, (7, [])])

    async def newer(_database: Any, _position: int | None) -> tuple[int, list[dict[str, Any]]]:
        answer = next(answers, (8, [event(8)]) if is_there.is_set() else away)
        if isinstance(answer, DatabaseAway):
            raise answer
        return answer

    monkeypatch.setattr("tarsy_scoring.live.gateway.newer", newer)
    monkeypatch.setattr("tarsy_scoring.live.gateway.POLL_S", 0.001)
    gateway = unplaced()
    running = asyncio.create_task(gateway.run(stopping))
    async with connected_to(gateway, "sessions") as socket:
        is_there.set()
        await until(lambda: socket.positions == [8], "the event")
        assert socket.closed is None
        stopping.set()
        await running


class TestLimits:
    async def test_an_old_connection_is_closed(self) -> None:
        """Access is checked only at the handshake, so a connection must not outlive a lost permission."""
        began = time.monotonic()
        async with silent_client_of(placed(life_s=0.2)) as socket:
            assert await close_code(socket) == 4009
        assert time.monotonic() - began >= 0.75 * 0.2

    async def test_clients_and_callers(self) -> None:
        """The gateway says when it is full, or full for one caller; a client that leaves makes room."""
        gateway, one = placed(clients=1, clients_per_caller=1), FakeSocket()
        assert not gateway.is_full
        serving = asyncio.create_task(gateway.serve(cast(WebSocket, one), "alice"))
        await until(lambda: one.messages, "the connection")
        assert gateway.is_full
        assert [gateway.has_enough(caller) for caller in ("alice", "bob")] == [True, False]
        one.leave()
        await serving
        assert not gateway.is_full
        assert not gateway.has_enough("alice")

    async def test_waiting_requests(self) -> None:
        async with silent_client_of(placed(messages_per_s=1e9, messages_at_once=10, readers=0)) as socket:
            for n in range(10):
                socket.say({"action": "subscribe", "channel": f"session:{n}"})
            socket.say({"action": "ping"})
            await until(lambda: of_type(socket.messages, "pong"), "the pong")
            assert socket.closed is None
            for n in range(2):  # there is room for one: the first of the ten is being answered
                socket.say({"action": "subscribe", "channel": f"session:more-{n}"})
            assert await close_code(socket) == 1008

    async def test_too_many_messages(self) -> None:
        async with connected_to(placed(messages_per_s=0.001, messages_at_once=10)) as socket:
            for _ in range(10):
                socket.say({"action": "ping"})
            assert await close_code(socket) == 1008

    async def test_a_message_too_large(self) -> None:
        async with connected_to(placed(message_bytes=100)) as socket:
            socket.say("x" * 101)
            assert await close_code(socket) == 1009

    async def test_channels_per_client(self) -> None:
        """A channel that the client has already does not count again, and one that it left makes room."""
        async with connected_to(placed(channels=1), "sessions") as socket:
            socket.say({"action": "subscribe", "channel": "sessions"})
            socket.say({"action": "subscribe", "channel": "session:a"})
            socket.say({"action": "unsubscribe", "channel": "sessions"})
            socket.say({"action": "subscribe", "channel": "sessions"})
            answers = await socket.answer()
        assert [a["channel"] for a in of_type(answers, "subscription.confirmed")] == ["sessions"] * 3
        assert [a["channel"] for a in of_type(answers, "subscription.error")] == ["session:a"]

    async def test_a_client_that_takes_no_answers_is_not_read_further(self) -> None:
        """Many requests without reading cannot overflow a client's own queue."""
        async with connected_to(placed(queue_events=10, messages_at_once=1000)) as socket:
            socket.reading.clear()
            for _ in range(50):
                socket.say({"action": "ping"})
            await until(lambda: socket.unread <= 45, "the first messages to be read")
            unread = socket.unread
            socket.reading.set()
            await until(lambda: len(of_type(socket.messages, "pong")) == 50, "all pongs")
        assert unread >= 40
        assert socket.closed is None


class TestCancel:
    async def test_leaves_nothing_of_a_client_that_does_not_read(self) -> None:
        metrics, stuck = Metrics(), FakeSocket()
        gateway, tasks = placed(metrics), asyncio.all_tasks()
        stuck.reading.clear()
        serving = asyncio.create_task(gateway.serve(cast(WebSocket, stuck)))
        await until(lambda: counts(metrics)[0] == 1, "a client to which something is being written")
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert counts(metrics) == (0, 0)
        assert asyncio.all_tasks() == tasks


def counts(metrics: Metrics) -> tuple[float | None, float | None]:
    """The numbers of clients and of subscriptions."""
    value = metrics.registry.get_sample_value
    return value("tarsy_scoring_gateway_clients"), value("tarsy_scoring_gateway_subscriptions")

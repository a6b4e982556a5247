"""The gateway on real PostgreSQL and a real broker: clients get every event once, from either source."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from builders import Scoring, completion, rescore, session_completed, step
from infrastructure import Kafka, Topics
from live import FakeSocket, connected_to, of_type, records, until
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.live.gateway import Gateway
from tarsy_scoring.live.stored import CATCH_UP_LIMIT, READ_LIMIT
from tarsy_scoring.outbox import outbox
from tarsy_scoring.outbox.relay import Relay
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.telemetry.metrics import Metrics

NO_BROKER = {"SCORING_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}


@pytest.fixture
async def gateway(scoring: Scoring) -> Gateway:
    """A gateway at the end of the stream; only the test makes it read on."""
    gateway = Gateway(load_settings(NO_BROKER), scoring.database, Metrics())
    await gateway.read_missing()
    return gateway


async def score(scoring: Scoring, *sessions: str) -> None:
    """Score these sessions from request to end: five events each."""
    await scoring.accept(*(session_completed(s) for s in sessions))
    for claimed in await scoring.claim():
        await scoring.store.record(step(claimed, "analyzing_methodology"))
        await scoring.store.end(completion(claimed))


async def assign_positions(scoring: Scoring) -> list[dict[str, Any]]:
    """Assign positions as the relay does; returns all positioned events, in order, as the topic has them."""
    await outbox.assign_positions(scoring.database, 100_000)
    rows = await scoring.rows(
        "SELECT payload || jsonb_build_object('position', position) AS payload FROM scoring_events ORDER BY position"
    )
    return [r["payload"] for r in rows]


async def publish_and_read(scoring: Scoring, gateway: Gateway) -> list[dict[str, Any]]:
    """Assign positions and let the gateway read to the end; returns all positioned events."""
    events = await assign_positions(scoring)
    while await gateway.read_missing():
        pass
    return events


async def many_events(scoring: Scoring, number: int) -> list[dict[str, Any]]:
    """A score with `number` progress events and three others, all with positions."""
    claimed = await scoring.claimed("session-long")
    for _ in range(number // 100):
        event = outbox.NewEvent(claimed.score_id, "scoring.progress", {"phase": "waiting_retry"})
        await scoring.database.once(lambda c, e=event: outbox.emit(scoring.database, c, [e] * 100))  # type: ignore[misc]
    return await assign_positions(scoring)


def of_session(events: Sequence[dict[str, Any]], session_id: str) -> list[int]:
    return [e["position"] for e in events if e["session_id"] == session_id]


class TestCatchUp:
    async def test_a_session_starts_with_stored_events_and_continues_live(
        self, scoring: Scoring, gateway: Gateway
    ) -> None:
        """Confirmation, stored events, live events: in order, without those of other sessions."""
        await score(scoring, "session-1", "session-2")
        await publish_and_read(scoring, gateway)
        async with connected_to(gateway, "session:session-1") as socket:
            assert [m["type"] for m in socket.messages][:3] == [
                "connection.established",
                "subscription.confirmed",
                "scoring.progress",
            ]
            await scoring.accept(rescore("session-1"), rescore("session-2"))
            events = await assign_positions(scoring)
            gateway.take_records(records(*events))
            gateway.deliver()
            stories = [m for m in await socket.answer() if "position" in m]
        assert [e["position"] for e in stories] == of_session(events, "session-1")
        assert len(stories) == 6
        assert stories == [e for e in events if e["session_id"] == "session-1"], "stored or live, the same document"

    async def test_of_all_sessions_has_the_same_events_as_live(self, scoring: Scoring, gateway: Gateway) -> None:
        """Events of production scores, stored or live; stored ones only on request."""
        await score(scoring, "session-1", "session-2")
        shadow = await scoring.claimed("session-3")
        await scoring.rows(
            'UPDATE scoring_events SET payload = payload || \'{"purpose": "shadow"}\' WHERE score_id = $1',
            shadow.score_id,
        )
        events = await assign_positions(scoring)
        async with connected_to(gateway, "sessions") as live:
            assert live.positions == [], "not asked for"
            gateway.take_records(records(*events))
            gateway.deliver()
            await live.answer()
        async with connected_to(gateway) as later:
            later.say({"action": "catchup", "channel": "sessions", "last_event_id": 0})
            await later.answer()
        assert later.positions == live.positions
        assert {m["session_id"] for m in live.messages if "position" in m} == {"session-1", "session-2"}
        assert 0 < len(live.positions) < len(events) - 1

    @pytest.mark.parametrize("action", ["subscribe", "catchup"])
    async def test_begins_after_the_clients_cursor(self, scoring: Scoring, gateway: Gateway, action: str) -> None:
        """`last_event_id` is a position; a cursor ahead of the stream holds no later event back."""
        await score(scoring, "session-1")
        await publish_and_read(scoring, gateway)
        async with connected_to(gateway) as socket:
            socket.say({"action": action, "channel": "session:session-1", "last_event_id": 3})
            await socket.answer()
            assert socket.positions == [4, 5]
        async with connected_to(gateway, "session:session-1", last_event_id=1000) as socket:
            assert len(of_type(socket.messages, "catchup.overflow")) == 1, "it has seen another database"
            await scoring.accept(rescore("session-1"))
            await publish_and_read(scoring, gateway)
            await until(lambda: socket.positions == [6], "the event")

    async def test_stops_at_its_limit_with_an_overflow(self, scoring: Scoring, gateway: Gateway) -> None:
        """The oldest events are sent and live events follow; exactly at the limit there is no overflow."""
        await many_events(scoring, 300)
        end = len(await publish_and_read(scoring, gateway))
        async with connected_to(gateway, "session:session-long", last_event_id=end - CATCH_UP_LIMIT) as socket:
            assert socket.positions == list(range(end - CATCH_UP_LIMIT + 1, end + 1))
            assert of_type(socket.messages, "catchup.overflow") == []
        async with connected_to(gateway, "session:session-long") as socket:
            assert socket.messages[-1] == {
                "type": "catchup.overflow",
                "channel": "session:session-long",
                "has_more": True,
            }
            assert socket.positions == list(range(1, CATCH_UP_LIMIT + 1))
            await one_more_event(scoring)
            await gateway.read_missing()
            await until(lambda: len(socket.positions) > CATCH_UP_LIMIT, "the live event")
            assert len(socket.positions) == CATCH_UP_LIMIT + 1, "events behind the overflow do not trickle in"

    async def test_that_fails_sends_an_overflow(self, scoring: Scoring, gateway: Gateway) -> None:
        """The client must not believe that it has every event; after an overflow it reloads."""
        await scoring.database.close()
        async with connected_to(gateway, "session:session-1") as socket:
            assert len(of_type(socket.messages, "catchup.overflow")) == 1
            assert len(of_type(socket.messages, "subscription.confirmed")) == 1


async def one_more_event(scoring: Scoring) -> None:
    """One more event of the long session."""
    score_id = await scoring.value("SELECT score_id FROM session_scores WHERE session_id = 'session-long'")
    event = outbox.NewEvent(score_id, "scoring.progress", {"phase": "storing"})
    await scoring.database.once(lambda c: outbox.emit(scoring.database, c, [event]))
    await assign_positions(scoring)


class TestLive:
    async def test_positions_of_an_erased_session_are_passed_over(self, scoring: Scoring, gateway: Gateway) -> None:
        """The gateway does not wait for them, even at the end of the stream."""
        await score(scoring, "session-1", "session-2")
        await assign_positions(scoring)
        async with connected_to(gateway, "session:session-2", last_event_id=0) as socket:
            await scoring.rows("DELETE FROM scoring_events WHERE session_id = 'session-1'")
            await gateway.read_missing()
            await scoring.accept(rescore("session-2"))
            events = await assign_positions(scoring)
            gateway.take_records(records(*events))
            gateway.deliver()
            await socket.answer()
        assert socket.positions == of_session(events, "session-2")

    async def test_a_long_backlog_is_read_in_steps(self, scoring: Scoring, gateway: Gateway) -> None:
        async with connected_to(gateway, "sessions") as socket:
            events = await many_events(scoring, READ_LIMIT + 100)
            assert await gateway.read_missing()
            assert not await gateway.read_missing()
            await socket.answer()
        assert socket.positions == [e["position"] for e in events if is_in_sessions(e)]

    async def test_a_restored_database_disconnects_all_clients(self, scoring: Scoring, gateway: Gateway) -> None:
        """It assigns positions again that clients have seen, so their cursors mean nothing any more."""
        await score(scoring, "session-1")
        await assign_positions(scoring)
        await gateway.read_missing()
        async with connected_to(gateway, "sessions") as socket:
            await scoring.rows("UPDATE relay_position SET position = 2")
            await gateway.read_missing()
            await until(lambda: socket.closed, "the end")
            assert socket.closed is not None
            assert socket.closed[0] == 1012


def is_in_sessions(event: dict[str, Any]) -> bool:
    return event["type"] != "scoring.progress" or event["phase"] in ("queued", "waiting_retry")


@asynccontextmanager
async def running(
    settings: Settings, database: Database, *, with_relay: bool = True
) -> AsyncIterator[tuple[Gateway, Metrics]]:
    """A running gateway and its metrics, with or without a relay beside it."""
    metrics, stopping = Metrics(), asyncio.Event()
    gateway = Gateway(settings, database, metrics)
    async with asyncio.TaskGroup() as group:
        if with_relay:
            group.create_task(Relay(settings, database, Metrics()).run(stopping))
        group.create_task(gateway.run(stopping))
        try:
            yield gateway, metrics
        finally:
            stopping.set()


def came_from(metrics: Metrics, source: str) -> float:
    """The number of events that the gateway took from this source."""
    return metrics.registry.get_sample_value("tarsy_scoring_gateway_events_total", {"source": source}) or 0.0


async def score_and_receive(scoring: Scoring, socket: FakeSocket, session: str) -> None:
    """Score this session, and wait until the client has its `scoring.completed`."""
    await score(scoring, session)
    scoring.database.notify("events")

    def ended() -> bool:
        return any(m.get("session_id") == session and m["type"] == "scoring.completed" for m in socket.messages)

    await until(ended, f"the end of {session}")


async def assert_has_everything_once(scoring: Scoring, socket: FakeSocket) -> None:
    """Assert that the client has all events of the channel `sessions`, in order and once."""
    events = await assign_positions(scoring)
    assert socket.positions == [e["position"] for e in events if is_in_sessions(e)]


class TestBroker:
    async def test_events_come_over_the_topic(self, scoring: Scoring, topics: Topics) -> None:
        """From commit over relay and broker to the client; the gateway does not read the database."""
        async with (
            running(load_settings(topics.env), scoring.database) as (gateway, metrics),
            connected_to(gateway, "sessions") as socket,
        ):
            await score_and_receive(scoring, socket, "session-0")
            for n in range(1, 50):
                await score(scoring, f"session-{n}")
            await score_and_receive(scoring, socket, "session-50")
            assert came_from(metrics, "kafka") > 200
            await assert_has_everything_once(scoring, socket)

    @pytest.mark.parametrize("env", [NO_BROKER, {}], ids=["away", "not configured"])
    async def test_without_a_broker_events_come_from_the_database(self, scoring: Scoring, env: dict[str, str]) -> None:
        async with (
            running(load_settings(env), scoring.database, with_relay=False) as (gateway, metrics),
            connected_to(gateway, "sessions") as socket,
        ):
            await score(scoring, "session-1")
            await assign_positions(scoring)
            await until(lambda: len(socket.positions) == 3, "the events")
            assert came_from(metrics, "database") == 5

    async def test_a_restarted_broker_is_followed(self, scoring: Scoring, own_kafka: Kafka, topics: Topics) -> None:
        """No event is lost or repeated, whatever the broker kept."""
        if not own_kafka.survives_restart:
            pytest.skip("this broker cannot be restarted here")
        async with (
            running(load_settings(topics.env), scoring.database) as (gateway, metrics),
            connected_to(gateway, "sessions") as socket,
        ):
            await score_and_receive(scoring, socket, "before")
            await own_kafka.stop()
            try:
                await score(scoring, "meanwhile")
            finally:
                await own_kafka.start()
            await score_and_receive(scoring, socket, "after")
            await assert_followed_again(scoring, socket, metrics)


async def assert_followed_again(scoring: Scoring, socket: FakeSocket, metrics: Metrics) -> None:
    """Assert that events come over the topic again and that none was lost or repeated."""
    before = came_from(metrics, "kafka")
    for n in range(200):
        await score_and_receive(scoring, socket, f"later-{n}")
        if came_from(metrics, "kafka") > before:
            break
    assert came_from(metrics, "kafka") > before, "the topic is followed again"
    await assert_has_everything_once(scoring, socket)

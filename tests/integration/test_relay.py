"""The relay on a real broker: in order per session, marked after the acknowledgement, one relay at a time."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
from pydantic_core import from_json

from builders import UNPUBLISHED, Scoring, completion, open_scoring, session_completed, step
from infrastructure import Topics, wait_until
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.kafka.connect import Headers
from tarsy_scoring.kafka.consumer import Record
from tarsy_scoring.kafka.publisher import Publisher
from tarsy_scoring.kafka.topics import read_topic
from tarsy_scoring.outbox.relay import POLL_S, Relay
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.queue.backlog import unpublished_events
from tarsy_scoring.telemetry.metrics import Metrics

EVENTS = 60
SESSIONS = [f"session-{n}" for n in range(20)]


@pytest.fixture
def settings(topics: Topics) -> Settings:
    return load_settings(topics.env)


async def finish(scoring: Scoring, *sessions: str) -> None:
    """Scores of these sessions, from request to end."""
    await scoring.accept(*(session_completed(s) for s in sessions))
    for claimed in await scoring.claim():
        await scoring.store.record(step(claimed, "analyzing_methodology"))
        await scoring.store.end(completion(claimed))


async def published(settings: Settings) -> list[Record]:
    return [r async for r in read_topic(settings, settings.topic_scoring_events)]


def payloads(records: Sequence[Record]) -> list[dict[str, Any]]:
    return [from_json(r.value or b"") for r in records]


async def run_dry(scoring: Scoring, settings: Settings, publisher: Publisher | None = None) -> list[int]:
    """Run passes until no event is left; returns the number of events of each."""
    publisher = publisher or Publisher(settings)
    relay, sent = Relay(settings, scoring.database, Metrics(), publisher), [-1]
    while sent[-1] != 0:
        sent.append(await relay.run_once())
    await publisher.stop()
    return sent[1:-1]


class Faulty(Publisher):
    """A publisher that loses the acknowledgements at some places of the first batch."""

    def __init__(self, settings: Settings, *places: int) -> None:
        super().__init__(settings)
        self._places = set(places)

    async def publish(
        self, topic: str, messages: Sequence[tuple[bytes | None, bytes | None, Headers]], timeout_s: float
    ) -> list[bool]:
        acknowledged = await super().publish(topic, messages, timeout_s)
        places, self._places = self._places, set()
        return [a and n not in places for n, a in enumerate(acknowledged)]


async def test_a_relay_waits_where_nothing_is_left_and_flushes_when_it_is_stopped(
    scoring: Scoring, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events that are stored while it waits are still published."""
    relay, stopping, passes = Relay(settings, scoring.database, Metrics()), asyncio.Event(), list[int]()
    run_once = relay.run_once

    async def counted() -> int:
        passes.append(await run_once())
        return passes[-1]

    async def wait(*_: Any) -> None:
        await finish(scoring, "session-0")
        stopping.set()

    monkeypatch.setattr(relay, "run_once", counted)
    monkeypatch.setattr(scoring.database, "wait_notified", wait)
    await asyncio.wait_for(relay.run(stopping), 60)

    assert passes == [0, len(await published(settings)), 0]


async def test_every_event_is_published_once_and_in_order(scoring: Scoring, settings: Settings) -> None:
    await finish(scoring, *SESSIONS)

    sent = await run_dry(scoring, settings)

    records = await published(settings)
    events = payloads(records)
    assert sum(sent) == len(records) == 5 * len(SESSIONS)
    assert sorted(e["position"] for e in events) == list(range(1, len(events) + 1))
    for session in SESSIONS:
        mine = [e for e in events if e["session_id"] == session]
        assert [e["sequence"] for e in mine] == [1, 2, 3, 4, 5]
        assert mine[-1]["type"] == "scoring.completed"
    assert await scoring.value(UNPUBLISHED) == 0


async def test_a_record_is_keyed_by_its_session_and_carries_cloudevents_headers(
    scoring: Scoring, settings: Settings
) -> None:
    await finish(scoring, "session-1")

    await run_dry(scoring, settings)

    for record in await published(settings):
        event, headers = from_json(record.value or b""), dict(record.headers)
        assert record.key == b"session-1"
        assert headers == {
            "ce_specversion": b"1.0",
            "ce_id": event["event_id"].encode(),
            "ce_source": b"/tarsy-scoring",
            "ce_type": event["type"].encode(),
            "ce_subject": b"session-1",
            "ce_time": event["timestamp"].encode(),
            "content-type": b"application/json",
        }


async def test_only_acknowledged_events_are_marked(scoring: Scoring, settings: Settings) -> None:
    """A lost acknowledgement repeats that event and the later ones of its session, no others."""
    await finish(scoring, "session-1", "session-2")

    sent = await run_dry(scoring, settings, Faulty(settings, 0))

    events = payloads(await published(settings))
    lost = events[0]["session_id"]
    repeated = [e for e in events if e["session_id"] == lost]
    assert sent == [5, 5], "the session without a loss is done at once, the other as a whole again"
    assert len(events) == 15
    assert len({e["event_id"] for e in events}) == 10
    assert [e["sequence"] for e in repeated[-5:]] == [1, 2, 3, 4, 5], "the last word on the topic is in order"


async def test_two_relays_do_not_repeat_each_other(scoring: Scoring, settings: Settings) -> None:
    await finish(scoring, *SESSIONS)

    async with scoring.database.transaction() as connection:
        await connection.fetchval(
            "SELECT pg_advisory_xact_lock(hashtext('tarsy-scoring relay'), hashtext($1))", scoring.database.schema
        )
        assert await run_dry(scoring, settings) == [], "another process relays"
    sent = await run_dry(scoring, settings) + await run_dry(scoring, settings)

    assert sum(sent) == len(await published(settings)) == 5 * len(SESSIONS)


async def test_a_notification_wakes_the_relay_at_work_alone(
    scoring: Scoring, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others look once a second whether it is gone, and one of them takes over."""
    passes, began_s = Counter[int](), time.monotonic()

    async def publish(session: str, bells: Sequence[Database]) -> None:
        await scoring.accept(session_completed(session))
        for database in bells:
            database.notify_locally("events")
        await wait_until(is_published, 30, "the event is published")

    async def is_published() -> bool:
        return await unpublished_events(scoring.database) == (0, 0.0)

    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        opened = [await stack.enter_async_context(open_scoring(scoring.url, pool_size=3)) for _ in range(4)]
        relays = {o.database: asyncio.Event() for o in opened}
        for n, (database, stopping) in enumerate(relays.items()):
            relay = Relay(settings, database, Metrics(), SilentBroker("nowhere"))

            async def counted(n: int = n, run_once: Callable[[], Awaitable[int]] = relay.run_once) -> int:
                passes[n] += 1
                return await run_once()

            monkeypatch.setattr(relay, "run_once", counted)
            group.create_task(relay.run(stopping))
        for n in range(EVENTS):
            await publish(f"session-{n}", list(relays))
        total, elapsed_s = passes.total(), time.monotonic() - began_s

        for n, stopping in enumerate(relays.values()):
            await publish(f"last-{n}", [])
            stopping.set()
    assert total <= 3 * EVENTS + len(relays) * (elapsed_s / POLL_S + 2), passes


class SilentBroker(Publisher):
    """A publisher whose broker does not answer until `may_go_on`, at the start or at a publication."""

    def __init__(self, place: str) -> None:
        super().__init__(load_settings({"SCORING_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9"}))
        self._place = place
        self.is_waited_for = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def start(self, timeout_s: float) -> None:
        await self._wait_at("start")

    async def publish(
        self, topic: str, messages: Sequence[tuple[bytes | None, bytes | None, Headers]], timeout_s: float
    ) -> list[bool]:
        await self._wait_at("publish")
        return [True] * len(messages)

    async def _wait_at(self, place: str) -> None:
        if place == self._place:
            self.is_waited_for.set()
            await self.may_go_on.wait()


@pytest.mark.parametrize("place", [pytest.param("start", id="away"), pytest.param("publish", id="silent")])
async def test_positions_are_assigned_while_the_broker_is_silent(scoring: Scoring, place: str) -> None:
    """The gateway reads events from the database by position, so it needs positions during an outage."""
    publisher = SilentBroker(place)
    relay = Relay(load_settings({}), scoring.database, Metrics(), publisher)
    await scoring.accept(session_completed("session-1"))
    passing = asyncio.create_task(relay.run_once())
    await publisher.is_waited_for.wait()

    await scoring.accept(session_completed("session-2"))

    async def is_numbered() -> bool:
        return bool(await scoring.value("SELECT bool_and(position IS NOT NULL) FROM scoring_events"))

    await wait_until(is_numbered, 30, "the event that came meanwhile has a position")
    assert not passing.done()
    publisher.may_go_on.set()
    sent = await passing + await relay.run_once()
    assert sent == 2
    assert [r["position"] for r in await scoring.rows("SELECT position FROM scoring_events ORDER BY entry")] == [1, 2]

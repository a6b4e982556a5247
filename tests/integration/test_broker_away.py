"""
Brokers that go away, or refuse us, after the start.

The client goes on trying and tells nobody, so the consumer finds out; and nobody who is to end waits for it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import GroupAuthorizationFailedError, KafkaConnectionError
from aiokafka.protocol.fetch import FetchRequest
from structlog.testing import capture_logs

from infrastructure import Kafka, Topics, wait_until
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.kafka import clients as kafka_module
from tarsy_scoring.kafka.clients import Consumer, Publisher, Record
from tarsy_scoring.kafka.security import connection_options
from tarsy_scoring.kafka.topics import Tail
from tarsy_scoring.queue.intake import Intake
from tarsy_scoring.telemetry.metrics import Metrics


async def test_an_outage_is_seen_and_so_is_its_end(
    own_kafka: Kafka, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing was announced for long; until then brokers that answer with nothing are not asked."""
    looks: list[object] = []

    async def find_obstacle(options: object) -> object:
        looks.append(options)
        return await real(options)

    real = kafka_module.find_obstacle
    monkeypatch.setattr(kafka_module, "find_obstacle", find_obstacle)
    monkeypatch.setattr(kafka_module, "WATCH_S", 3600.0)  # the test watches itself, by a clock of its own
    consumer, now_s = Consumer(load_settings(topics.env), [topics.session_completed]), 0.0
    await consumer.start()

    async def is_served() -> bool:
        nonlocal now_s
        now_s += kafka_module.QUIET_S
        await consumer.watch_once(now_s)
        return consumer.is_served

    async def is_cut_off() -> bool:
        return not await is_served()

    try:
        for _ in range(5):
            heard = consumer._answered()
            await wait_until(lambda heard=heard: consumer._answered() != heard, 30, "brokers answer with nothing")
            assert await is_served()
        assert looks == []
        with capture_logs() as lines:
            await own_kafka.stop()
            try:
                await wait_until(is_cut_off, 30, "the outage is seen")
            finally:
                await own_kafka.start()
            await wait_until(is_served, 30, "its end is seen")
    finally:
        await consumer.stop()

    away = [line for line in lines if line["event"] == "kafka.away"]
    assert away
    assert "connection refused" in away[0]["reason"]


# --- intake --------------------------------------------------------------------------------------------


class Intaking:
    """Intake beside nothing else: there is always room, and what was taken is stored in `taken`."""

    def __init__(self, topics: Topics, before_storing: Callable[[], Awaitable[None]] | None = None) -> None:
        self.taken: list[Record] = []
        self.stopping = asyncio.Event()
        self._before_storing = before_storing
        self._intake = Intake(load_settings(topics.env), cast(Any, self), cast(Any, None), Metrics())
        cast(Any, self._intake).store = self.store

    async def __aenter__(self) -> "Intaking":
        self.running = asyncio.create_task(self._intake.run(self.stopping))
        await wait_until(lambda: self._intake.has_joined or self.running.done(), 120, "the group is joined")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)

    @property
    def client(self) -> Any:
        """The library's consumer."""
        return self._intake._consumer._consumer

    async def count_due(self, _limit: int) -> int:
        return 0

    async def store(self, records: Sequence[Record]) -> None:
        if self._before_storing is not None:
            await self._before_storing()
        self.taken += records


async def publish_one(topics: Topics) -> None:
    publisher = Publisher(load_settings(topics.env))
    try:
        assert await publisher.publish(topics.session_completed, [(b"a-key", b"a message", [])], 60) == [True]
    finally:
        await publisher.stop()


async def test_a_stop_does_not_wait_for_brokers_that_went_away_in_a_rebalance(own_kafka: Kafka, topics: Topics) -> None:
    """For its partitions the client waits longer than for records: as long as it takes."""
    async with Intaking(topics) as intake:
        coordinator, are_gone = intake.client._coordinator, asyncio.Event()
        join = coordinator._do_rejoin_group

        async def join_when_they_are_gone(subscription: object) -> object:
            await are_gone.wait()
            return await join(subscription)

        coordinator._do_rejoin_group = join_when_they_are_gone
        coordinator.request_rejoin()
        subscription = intake.client._subscription
        await wait_until(lambda: subscription.reassignment_in_progress, 60, "its partitions are taken from it")
        await own_kafka.stop()
        are_gone.set()
        try:
            await wait_until(lambda: subscription._assignment_waiters, 60, "intake waits for partitions")

            intake.stopping.set()

            await asyncio.wait_for(intake.running, 120)
        finally:
            await own_kafka.start()


async def test_a_stop_does_not_wait_for_brokers_that_went_away_before_a_commit(
    own_kafka: Kafka, topics: Topics
) -> None:
    """What was not committed comes again, and is known."""
    async with Intaking(topics, before_storing=own_kafka.stop) as intake:
        try:
            await publish_one(topics)
            await wait_until(lambda: intake.taken, 60, "the record is stored")
            await wait_until(lambda: intake.client._coordinator.coordinator_id is None, 60, "its commit fails")

            intake.stopping.set()

            await asyncio.wait_for(intake.running, 120)
        finally:
            await own_kafka.start()


async def test_intake_goes_on_after_a_refused_heartbeat(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client never beats again after one, so a right that is given back is of no use to it."""
    beat, refused = GroupCoordinator._do_heartbeat, asyncio.Event()

    async def refuse_once(coordinator: GroupCoordinator) -> object:
        if refused.is_set():
            return await beat(coordinator)
        refused.set()
        raise GroupAuthorizationFailedError(coordinator.group_id)

    monkeypatch.setattr(GroupCoordinator, "_do_heartbeat", refuse_once)
    async with Intaking(topics) as intake:
        first = intake.client
        await asyncio.wait_for(refused.wait(), 60)
        await wait_until(lambda: intake.client not in (None, first), 120, "the group is joined anew")
        await publish_one(topics)

        await wait_until(lambda: intake.taken, 60, "the record is taken")


# --- what is left behind -------------------------------------------------------------------------------


async def test_a_publisher_that_gave_up_sends_nothing_any_more(own_kafka: Kafka, topics: Topics) -> None:
    """An idempotent client tries again for ever: what it was told to stop must not come beside the resend."""
    before = asyncio.all_tasks()
    publisher = Publisher(load_settings(topics.env))
    message = (b"a-key", b"a message", [])
    assert await publisher.publish(topics.scoring_events, [message], 60) == [True]
    await own_kafka.stop()
    try:
        assert await publisher.publish(topics.scoring_events, [message], 1) == [False]

        await wait_until(lambda: asyncio.all_tasks() <= before, 60, "nobody tries it any more")
    finally:
        await own_kafka.start()


async def test_a_reader_that_ends_while_its_fetch_fails_leaves_nothing_behind(topics: Topics) -> None:
    """The library stops half way then, and would ask for metadata for as long as the process lives."""
    before = asyncio.all_tasks()
    tail = Tail(connection_options(load_settings(topics.env)), topics.scoring_events)
    await tail.start()
    reader: Any = tail._reader
    has_failed, send = asyncio.Event(), reader._client.send

    async def fail(node: int, request: object, **how: Any) -> object:
        if not isinstance(request, FetchRequest):
            return await send(node, request, **how)
        reader._fetcher._retry_backoff = 3600
        has_failed.set()
        raise KafkaConnectionError

    reader._client.send = fail
    await asyncio.wait_for(has_failed.wait(), 60)

    await tail.stop()

    await wait_until(lambda: asyncio.all_tasks() <= before, 60, "it has ended")

"""The behaviour of the Kafka library on which `kafka/` relies: brokers go away, or would create topics."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from structlog.testing import capture_logs

from fakes import Room
from infrastructure import Kafka, Topics, wait_until
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.errors import StartRefused
from tarsy_scoring.kafka import consumer as consuming
from tarsy_scoring.kafka import security
from tarsy_scoring.kafka.connect import BrokerAway, connected
from tarsy_scoring.kafka.consumer import Consumer, Record
from tarsy_scoring.kafka.publisher import Publisher
from tarsy_scoring.kafka.topics import Tail, read_topic
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.queue.intake import Intake
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring_lab.broker import EmbeddedKafka, kafka_lacks

pytestmark = pytest.mark.xdist_group("infrastructure")


async def test_an_outage_is_seen_and_so_is_its_end(
    own_kafka: Kafka, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle consumer knows that its brokers answer: they answer each fetch, even without records."""
    diagnoses = 0
    real = consuming.check_brokers

    async def check_brokers(options: Any) -> None:
        nonlocal diagnoses
        diagnoses += 1
        await real(options)

    monkeypatch.setattr(consuming, "check_brokers", check_brokers)
    monkeypatch.setattr(consuming, "WATCH_S", 3600.0)  # the test calls the watch itself
    consumer, now_s = Consumer(load_settings(topics.env), [topics.session_completed]), 0.0
    await consumer.start()

    async def is_served() -> bool:
        nonlocal now_s
        now_s += consuming.QUIET_S
        await consumer.watch_once(now_s)
        return consumer.is_served

    async def is_served_unasked() -> bool:
        before = diagnoses
        return await is_served() and diagnoses == before

    async def is_cut_off() -> bool:
        return not await is_served()

    try:
        for _ in range(3):
            await wait_until(is_served_unasked, 30, "an answer without records counts")
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
    assert "Unable connect" in away[0]["reason"]


class StoringInMemory:
    """A stand-in for the inbox that accepts everything and keeps the records in `taken`."""

    def __init__(self, topics: Topics, before_storing: Callable[[], Awaitable[None]]) -> None:
        self.taken: list[Record] = []
        self.database = Database("postgresql://not-used/x", "public", pool_size=1)
        self._before_storing = before_storing
        self.intake = Intake(load_settings(topics.env), cast(Any, self), cast(Any, Room()), Metrics())
        cast(Any, self.intake).store = self.store

    async def store(self, records: Sequence[Record]) -> None:
        await self._before_storing()
        self.taken += records


async def test_a_stop_does_not_wait_for_brokers_that_went_away_before_a_commit(
    own_kafka: Kafka, topics: Topics
) -> None:
    """A commit has no time limit. Uncommitted records arrive again and are recognised as repeats."""
    storing, stopping = StoringInMemory(topics, own_kafka.stop), asyncio.Event()
    running = asyncio.create_task(storing.intake.run(stopping))
    publisher = Publisher(load_settings(topics.env))
    try:
        assert await publisher.publish(topics.session_completed, [(b"a-key", b"a message", [])], 60) == [True]
        await publisher.stop()
        await wait_until(lambda: storing.taken or running.done(), 120, "the record is stored")

        stopping.set()

        await asyncio.wait_for(running, 120)
    finally:
        await own_kafka.start()


async def test_a_resend_waits_for_earlier_messages(own_kafka: Kafka, topics: Topics) -> None:
    """An idempotent producer retries until the broker is back; the order holds even for repeats."""
    before = asyncio.all_tasks()
    publisher, topic = Publisher(load_settings(topics.env)), topics.scoring_events
    first, second = (b"a-key", b"first", []), (b"a-key", b"second", [])
    assert await publisher.publish(topic, [(b"a-key", b"zero", [])], 60) == [True]
    await own_kafka.stop()
    try:
        assert await publisher.publish(topic, [first], 1) == [False]
        with pytest.raises(BrokerAway, match="Unable connect"):
            await publisher.publish(topic, [first, second], 1)
    finally:
        await own_kafka.start()

    assert await publisher.publish(topic, [first, second], 60) == [True, True]
    read = [record.value async for record in read_topic(load_settings(topics.env), topic)]
    await publisher.stop()

    assert read[-2:] == [b"first", b"second"]
    assert list(dict.fromkeys(read)) == [b"zero", b"first", b"second"]
    await wait_until(lambda: asyncio.all_tasks() <= before, 60, "nothing is left behind")


class CreatingKafka(EmbeddedKafka):
    """With Kafka's default: it creates a topic that a client asks for by name, with one partition."""

    def _settings(self) -> dict[str, str]:
        return super()._settings() | {"auto.create.topics.enable": "true"}


@pytest.mark.skipif(kafka_lacks() is not None, reason="needs Apache Kafka")
async def test_no_reader_lets_the_broker_create_a_topic() -> None:
    async with CreatingKafka() as broker:
        settings = load_settings({"SCORING_KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap_servers})
        options = security.connection_options(settings)
        with pytest.raises(BrokerAway):
            await Tail(options, "followed").start()
        with pytest.raises(StartRefused):
            [record async for record in read_topic(settings, "read")]
        async with connected(AIOKafkaAdminClient(**options), options, "test") as admin:
            assert await admin.list_topics() == []

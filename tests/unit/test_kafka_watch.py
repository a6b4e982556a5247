"""Whether brokers answer us: what an idle consumer knows, what it asks, and whom it tells."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError
from structlog.testing import capture_logs

from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.kafka import clients as kafka
from tarsy_scoring.kafka import diagnose
from tarsy_scoring.kafka.clients import LOOK_EVERY_S, QUIET_S, BrokerAway, BrokerRefuses, Consumer, Publisher
from tarsy_scoring.kafka.diagnose import Obstacle
from tarsy_scoring.queue.intake import Intake
from tarsy_scoring.telemetry.metrics import Metrics

AWAY = Obstacle("nobody answers", is_refusal=False)
ONE_AWAY = Obstacle("one does not answer", is_refusal=False, is_everywhere=False)
ONE_REFUSES = Obstacle("one refuses", is_refusal=True, is_everywhere=False)


def kafka_settings(servers: str = "127.0.0.1:1") -> Settings:
    return load_settings({"SCORING_KAFKA_BOOTSTRAP_SERVERS": servers})


class Library:
    """Stands where `AIOKafkaConsumer` stands, with one partition; nothing comes. `answers` counts the brokers'."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.answers = 1
        self._client = SimpleNamespace(_sync_task=None)
        self._fetcher = SimpleNamespace(_fetch_task=None)
        self._coordinator = SimpleNamespace(_coordination_task=None, _heartbeat_task=None, _commit_refresh_task=None)

    async def start(self) -> None:
        """Let in at once."""

    async def stop(self) -> None:
        """Nobody was joined."""

    async def getmany(self, **_: Any) -> dict[Any, Any]:
        return {}

    def assignment(self) -> set[str]:
        return {"partition"}

    def last_poll_timestamp(self, _: Any) -> int:
        return self.answers


class Looks:
    """Stands where `find_obstacle` stands; counts."""

    def __init__(self) -> None:
        self.count = 0
        self.finds: Obstacle | None = None

    async def __call__(self, _: Any) -> Obstacle | None:
        self.count += 1
        return self.finds


@pytest.fixture
def library() -> Library:
    return Library()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    looks = Looks()
    monkeypatch.setattr(kafka, "find_obstacle", looks)
    return looks


@pytest.fixture
async def consumer(library: Library, looks: Looks) -> Consumer:
    """One that has heard its brokers at 0 s."""
    consumer = Consumer(kafka_settings(), [])
    consumer._consumer = cast(Any, library)
    await consumer.watch_once(0)
    return consumer


async def test_brokers_that_answer_are_not_asked(consumer: Consumer, library: Library, looks: Looks) -> None:
    """An answer without records is an answer; a login more of each idle worker would be for nothing."""
    looks.finds = AWAY
    for now_s in range(1, 1000):
        library.answers += 1
        await consumer.watch_once(now_s)

    assert (looks.count, consumer.is_served) == (0, True)


async def test_silence_is_looked_into(consumer: Consumer, library: Library, looks: Looks) -> None:
    """Not at once, then as often as it lasts; loud each time, and over with the first answer."""
    looks.finds = AWAY
    with capture_logs() as lines:
        await consumer.watch_once(QUIET_S - 1)
        assert (looks.count, consumer.is_served) == (0, True)
        await consumer.watch_once(QUIET_S)
        assert (looks.count, consumer.is_served) == (1, False)
        await consumer.watch_once(2 * QUIET_S - 1)
        assert looks.count == 1
        await consumer.watch_once(2 * QUIET_S)
        assert (looks.count, consumer.is_served) == (2, False)
        library.answers += 1
        await consumer.watch_once(2 * QUIET_S + 1)

    assert consumer.is_served
    assert [(line["event"], line["what"]) for line in lines] == [("kafka.away", "intake")] * 2


async def test_a_member_without_partitions_looks_rarely(consumer: Consumer, looks: Looks) -> None:
    """It gets no answers for as long as it has none, and its brokers shall not pay for that."""
    with capture_logs() as lines:
        for now_s in range(1, 601):
            await consumer.watch_once(now_s)

    assert looks.count == 1 + (600 - QUIET_S) // LOOK_EVERY_S
    assert consumer.is_served
    assert lines == []


@pytest.mark.parametrize(
    ("finds", "is_served", "told"),
    [
        pytest.param(None, True, [], id="nothing"),
        pytest.param(ONE_AWAY, True, [], id="one-broker-of-several-is-away"),
        pytest.param(ONE_REFUSES, False, ["kafka.refused"], id="one-refuses"),
        pytest.param(AWAY, False, ["kafka.away"], id="all-are-away"),
    ],
)
async def test_what_a_look_finds_decides(
    consumer: Consumer, looks: Looks, finds: Obstacle | None, is_served: bool, told: list[str]
) -> None:
    """A broker less is the cluster's own matter; a refusal is somebody's, also where others still let us in."""
    looks.finds = finds
    with capture_logs() as lines:
        await consumer.watch_once(QUIET_S)

    assert consumer.is_served == is_served
    assert [line["event"] for line in lines] == told


async def test_intake_does_not_wait_for_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that hold a connection open for seconds hold up nobody; the end of the consumer ends the look."""
    is_looking, has_ended = asyncio.Event(), asyncio.Event()

    async def look_for_ever(_: Any) -> None:
        is_looking.set()
        try:
            await asyncio.Event().wait()
        finally:
            has_ended.set()

    monkeypatch.setattr(kafka, "AIOKafkaConsumer", Library)
    monkeypatch.setattr(kafka, "find_obstacle", look_for_ever)
    monkeypatch.setattr(kafka, "WATCH_S", 0)
    monkeypatch.setattr(kafka, "QUIET_S", 0)
    consumer = Consumer(kafka_settings(), [])
    async with asyncio.timeout(30):
        await consumer.start()
        await is_looking.wait()

        assert await consumer.take(0, 1) == []

        await consumer.stop()
    assert has_ended.is_set()
    assert not consumer.is_served


async def test_a_look_that_dies_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that would never notice an outage ends instead, and is started anew."""

    async def die(_: Any) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(kafka, "AIOKafkaConsumer", Library)
    monkeypatch.setattr(kafka, "find_obstacle", die)
    monkeypatch.setattr(kafka, "WATCH_S", 0)
    monkeypatch.setattr(kafka, "QUIET_S", 0)
    consumer = Consumer(kafka_settings(), [])
    await consumer.start()

    assert consumer._watching is not None
    await asyncio.wait({consumer._watching}, timeout=30)

    with pytest.raises(RuntimeError, match="planted"):
        await consumer.take(0, 1)
    await consumer.stop()


# --- a client that fails ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "task"),
    [
        pytest.param("_client", "_sync_task", id="learning-of-brokers"),
        pytest.param("_fetcher", "_fetch_task", id="fetching"),
        pytest.param("_coordinator", "_coordination_task", id="membership"),
        pytest.param("_coordinator", "_heartbeat_task", id="heartbeat"),
        pytest.param("_coordinator", "_commit_refresh_task", id="committed-offsets"),
    ],
)
async def test_a_client_of_which_a_task_failed_is_replaced(
    part: str, task: str, monkeypatch: pytest.MonkeyPatch, looks: Looks
) -> None:
    """It would stay a member of the group that takes nothing, and some of them do not even say so."""
    clients: list[Library] = []

    def new_client(*_: Any, **__: Any) -> Library:
        clients.append(Library())
        return clients[-1]

    async def fail() -> None:
        raise KafkaError("planted")

    monkeypatch.setattr(kafka, "AIOKafkaConsumer", new_client)
    consumer = Consumer(kafka_settings(), [])
    await consumer.start()
    failed = asyncio.create_task(fail())
    await asyncio.wait({failed})
    setattr(getattr(clients[0], part), task, failed)

    for _ in range(2):
        assert await consumer.take(0, 1) == []

    assert len(clients) == 2
    assert consumer._consumer is clients[1]
    await consumer.stop()


async def test_a_group_that_refuses_the_new_client_is_waited_for(monkeypatch: pytest.MonkeyPatch, looks: Looks) -> None:
    """At the start it is told to somebody; later judging goes on, and a right that was taken may be given back."""
    answers: list[KafkaError | None] = [KafkaError("planted"), None]

    async def start_client(*_: Any) -> None:
        if (refusal := answers.pop(0)) is not None:
            raise refusal

    monkeypatch.setattr(kafka, "AIOKafkaConsumer", Library)
    monkeypatch.setattr(kafka, "start_client", start_client)
    consumer = Consumer(kafka_settings(), [])

    with pytest.raises(BrokerAway, match="cannot join the group"):
        await consumer.take(0, 1)
    assert await consumer.take(0, 1) == []
    await consumer.stop()


async def test_brokers_that_go_away_while_it_joins_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, looks: Looks
) -> None:
    """The library tells it like a topic that is not there."""
    looks.finds = AWAY
    answers: list[KafkaError | None] = [UnknownTopicOrPartitionError(), None]

    async def start(_: Library) -> None:
        if (failure := answers.pop(0)) is not None:
            raise failure

    monkeypatch.setattr(Library, "start", start)
    monkeypatch.setattr(kafka, "AIOKafkaConsumer", Library)
    monkeypatch.setattr(kafka, "RETRY_S", 0.0)
    consumer = Consumer(kafka_settings(), [])

    await consumer.start()

    assert (answers, looks.count) == ([], 1)
    await consumer.stop()


# --- what is exported ----------------------------------------------------------------------------------


class Served:
    """Stands where `Consumer` stands, and says when it was asked for records."""

    def __init__(self) -> None:
        self.is_served = True
        self.is_taking = asyncio.Event()

    async def start(self) -> None:
        """Joined at once."""

    async def take(self, _wait_s: float, _limit: int) -> list[Any]:
        self.is_taking.set()
        await asyncio.Event().wait()
        return []

    async def stop(self) -> None:
        """Left."""


async def test_the_metric_follows_the_consumer_from_the_start_to_the_end_of_intake() -> None:
    """0 until it was let in, true also while a pass waits for something else, and gone while a worker drains."""
    metrics, consumer = Metrics(), Served()

    def is_up() -> float | None:
        return metrics.registry.get_sample_value("tarsy_scoring_kafka_up", {"role": "intake"})

    before = is_up()
    metrics.begin("intake", "relay")
    begun = is_up()
    intake = Intake(kafka_settings(), cast(Any, None), cast(Any, None), metrics)
    intake._consumer, intake._room, intake._next_count = cast(Any, consumer), 10, float("inf")
    running = asyncio.create_task(intake.run(asyncio.Event()))
    await asyncio.wait_for(consumer.is_taking.wait(), 30)
    joined = is_up()
    consumer.is_served = False
    cut_off = is_up()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert [before, begun, joined, cut_off, is_up()] == [None, 0, 1, 0, None]


# --- publishing ----------------------------------------------------------------------------------------


async def test_a_publisher_says_what_is_wrong_where_its_time_is_over_before_the_client_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Brokers that take connections and never answer use up all the time there is."""
    monkeypatch.setattr(diagnose, "KNOCK_TIMEOUT_S", 0.2)
    is_over = asyncio.Event()

    async def say_nothing(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await is_over.wait()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    with pytest.raises(BrokerAway, match=rf"within 0.2 s: .*{place}: no answer in time; is it running"):
        await Publisher(kafka_settings(place)).start(0.2)

    is_over.set()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize(
    ("say_every_s", "said"),
    [
        pytest.param(3600.0, ["kafka.away", "kafka.refused", "kafka.away", "kafka.away"], id="news"),
        pytest.param(0.0, ["kafka.away"] * 3 + ["kafka.refused"] * 2 + ["kafka.away"] * 3, id="and-now-and-then"),
    ],
)
async def test_an_outage_is_said_once_and_not_at_each_try(
    say_every_s: float, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it begins, when it becomes another one, and seldom while it lasts; the next one is news again."""
    away, refused = BrokerAway("nobody answers"), BrokerRefuses("the login is wrong")
    tries: list[BrokerAway | None] = [away, away, away, refused, refused, away, None, away, away, None]

    async def start_client(*_: Any) -> None:
        if (obstacle := tries.pop(0)) is not None:
            raise obstacle

    monkeypatch.setattr(kafka, "AIOKafkaProducer", Library)
    monkeypatch.setattr(kafka, "start_client", start_client)
    monkeypatch.setattr(kafka, "SAY_EVERY_S", say_every_s)
    for wait in ("RETRY_S", "REFUSED_RETRY_S"):
        monkeypatch.setattr(kafka, wait, 0.0)
    publisher = Publisher(kafka_settings())

    with capture_logs() as lines:
        for _ in range(2):
            await publisher.start(30)
            publisher._producer = None  # it failed, and is made anew

    assert [line["event"] for line in lines] == said
    assert tries == []

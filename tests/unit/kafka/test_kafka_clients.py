"""Consumer and publisher over a fake library: how they react to its answers, and when they replace it."""

import asyncio
import gzip
from typing import Any

import pytest
from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.errors import GroupAuthorizationFailedError, KafkaError, TopicAuthorizationFailedError
from structlog.testing import capture_logs

from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.kafka import connect
from tarsy_scoring.kafka import consumer as consuming
from tarsy_scoring.kafka import publisher as publishing
from tarsy_scoring.kafka.connect import BrokerAway
from tarsy_scoring.kafka.consumer import QUIET_S, Consumer
from tarsy_scoring.kafka.partitions import TAKE_BYTES
from tarsy_scoring.kafka.publisher import Publisher

AWAY = BrokerAway("no answer")
RECORD = (b"key", b"value", [])
PARTITION = TopicPartition("topic", 0)


def kafka_settings(servers: str = "127.0.0.1:1") -> Settings:
    return load_settings({"SCORING_KAFKA_BOOTSTRAP_SERVERS": servers})


class Library:
    """Replaces `AIOKafkaConsumer`: one partition with `records`; `answers` counts the brokers' answers."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.answers = 1
        self.partitions = {PARTITION}
        self.errors: list[Exception] = []
        self.records: list[ConsumerRecord[bytes, bytes]] = []
        self.stop_error: BaseException | None = None
        self.has_stopped = False

    async def start(self) -> None:
        if self.errors:
            raise self.errors.pop(0)

    async def stop(self) -> None:
        self.has_stopped = True
        if self.stop_error is not None:
            raise self.stop_error

    async def getmany(self, *_: Any, max_records: int) -> dict[Any, Any]:
        if self.errors:
            raise self.errors[0]
        found, self.records = self.records[:max_records], self.records[max_records:]
        return {PARTITION: found} if found else {}

    def assignment(self) -> set[TopicPartition]:
        return self.partitions

    async def position(self, _: Any) -> int:
        return 7

    def highwater(self, _: Any) -> None:
        """Unknown to this fake."""

    last_stable_offset = highwater

    def last_poll_timestamp(self, _: Any) -> int:
        return self.answers


class Diagnosis:
    """Replaces `check_brokers` and counts its calls."""

    def __init__(self) -> None:
        self.count = 0
        self.finds: BrokerAway | None = None

    async def __call__(self, _: Any) -> None:
        self.count += 1
        if self.finds is not None:
            raise self.finds


@pytest.fixture
def diagnosis(monkeypatch: pytest.MonkeyPatch) -> Diagnosis:
    found = Diagnosis()
    for module in (consuming, publishing, connect):
        monkeypatch.setattr(module, "check_brokers", found)
    monkeypatch.setattr(connect, "RETRY_S", 0.0)
    return found


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Library]:
    """The fake clients, in the order in which the consumer built them."""
    libraries: list[Library] = []

    def build(*_: Any, **__: Any) -> Library:
        libraries.append(Library())
        return libraries[-1]

    monkeypatch.setattr(consuming, "AIOKafkaConsumer", build)
    monkeypatch.setattr(consuming, "WATCH_S", 3600.0)  # tests call the watch with a clock of their own
    return libraries


@pytest.fixture
async def consumer(built: list[Library], diagnosis: Diagnosis) -> Any:
    """A started consumer whose brokers answered at 0 s."""
    consumer = Consumer(kafka_settings(), [])
    await consumer.start()
    await consumer.watch_once(0)
    yield consumer
    await consumer.stop()


# --- the watch -----------------------------------------------------------------------------------------


async def test_brokers_that_answer_are_not_diagnosed(
    consumer: Consumer, built: list[Library], diagnosis: Diagnosis
) -> None:
    diagnosis.finds = AWAY
    for now_s in range(1, 1000):
        built[0].answers += 1
        await consumer.watch_once(now_s)

    assert (diagnosis.count, consumer.is_served) == (0, True)


async def test_silence_is_diagnosed(consumer: Consumer, built: list[Library], diagnosis: Diagnosis) -> None:
    """After `QUIET_S` without an answer and every `QUIET_S` of an outage, which the first answer ends."""
    diagnosis.finds = AWAY
    expected = [(QUIET_S - 1, 0, True), (QUIET_S, 1, False), (2 * QUIET_S - 1, 1, False), (2 * QUIET_S, 2, False)]
    with capture_logs() as lines:
        for now_s, count, is_served in expected:
            await consumer.watch_once(now_s)
            assert (diagnosis.count, consumer.is_served) == (count, is_served)
        built[0].answers += 1
        await consumer.watch_once(2 * QUIET_S + 1)

    assert consumer.is_served
    assert [(line["event"], line["what"]) for line in lines] == [("kafka.away", "intake")] * 2


# --- a client that fails -------------------------------------------------------------------------------


async def test_a_client_that_cannot_go_on_is_replaced(consumer: Consumer, built: list[Library]) -> None:
    """A member whose heartbeat was refused reports it at each call, and never sends another heartbeat."""
    built[0].errors = [GroupAuthorizationFailedError("planted")]

    with pytest.raises(BrokerAway, match="cannot fetch"):
        await consumer.take(0, 1)
    assert await consumer.take(0, 1) == []

    assert (len(built), built[0].has_stopped) == (2, True)


@pytest.mark.parametrize("error", [TopicAuthorizationFailedError("planted"), gzip.BadGzipFile("planted")])
async def test_an_error_about_one_partition_replaces_nothing(
    consumer: Consumer, built: list[Library], error: Exception
) -> None:
    """A new client would meet the same error and rebalance the group each time. The partition waits instead."""
    built[0].errors = [error]
    with capture_logs() as lines:
        for _ in range(3):
            assert await consumer.take(0, 1) == []
        await consumer.watch_once(QUIET_S)
        assert await consumer.take(0, 1) == []

    assert [(line["event"], line["offset"]) for line in lines] == [("kafka.partition_unreadable", 7)]
    assert (len(built), consumer.count_stopped(PARTITION.topic)["unreadable"]) == (1, 1)


@pytest.mark.usefixtures("diagnosis")
async def test_a_stopped_topic_is_not_asked_and_its_client_not_stuck(built: list[Library]) -> None:
    consumer = Consumer(kafka_settings(), [], is_stopped=lambda topic: topic == PARTITION.topic)
    await consumer.start()
    await consumer.watch_once(0)
    built[0].errors = [TopicAuthorizationFailedError("planted")]
    for n in range(1, 4):
        assert await consumer.take(0, 1) == []
        await consumer.watch_once(n * QUIET_S)
    await consumer.stop()

    assert len(built) == 1


async def test_a_take_is_bounded_in_bytes(consumer: Consumer, built: list[Library]) -> None:
    """A take ends behind the record that reaches the bound, and the next take continues there."""
    sizes = [1, TAKE_BYTES - 2, 10 * TAKE_BYTES, TAKE_BYTES, 1, 1]
    built[0].records = [
        ConsumerRecord("topic", 0, n, 1, 0, None, b"x" * size, None, 0, size, ()) for n, size in enumerate(sizes)
    ]

    takes = [[len(record.value or b"") for record in await consumer.take(0, 500)] for _ in range(3)]

    assert takes == [sizes[:3], sizes[3:4], sizes[4:]]


async def test_a_client_without_answers_from_brokers_that_answer_is_replaced(
    consumer: Consumer, built: list[Library]
) -> None:
    """A background task of the library may die without a report."""
    await consumer.take(0, 1)
    await consumer.watch_once(QUIET_S)
    with capture_logs() as lines:
        await consumer.take(0, 1)

    assert [line["event"] for line in lines] == ["kafka.client_failed"]
    assert len(built) == 2


async def test_a_group_that_refuses_the_new_client_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, built: list[Library], diagnosis: Diagnosis
) -> None:
    """At the start a refusal ends the worker. Later the worker goes on judging: a permission may come back."""
    answers: list[KafkaError | None] = [KafkaError("planted"), None]

    async def start_client(*_: Any) -> None:
        if (refusal := answers.pop(0)) is not None:
            raise refusal

    monkeypatch.setattr(consuming, "start_client", start_client)
    consumer = Consumer(kafka_settings(), [])

    with pytest.raises(BrokerAway, match="cannot join the group"):
        await consumer.take(0, 1)
    assert await consumer.take(0, 1) == []
    await consumer.stop()


# --- publishing ----------------------------------------------------------------------------------------


class Producer:
    """Replaces `AIOKafkaProducer`; `answers` holds the answer to each message, None for no answer yet."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.answers: list[Exception | bool | None] = []
        self.open: list[asyncio.Future[object]] = []
        self.is_flushed = asyncio.Event()
        self.is_flushed.set()

    async def start(self) -> None:
        """Connects at once."""

    async def send(self, *_: Any, **__: Any) -> asyncio.Future[object]:
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, Exception):
            future.set_exception(answer)
        elif answer:
            future.set_result(None)
        else:
            self.open.append(future)
        return future

    async def stop(self) -> None:
        await self.is_flushed.wait()


@pytest.fixture
def producers(monkeypatch: pytest.MonkeyPatch, diagnosis: Diagnosis) -> list[Producer]:
    built: list[Producer] = []

    def build(*_: Any, **__: Any) -> Producer:
        built.append(Producer())
        return built[-1]

    monkeypatch.setattr(publishing, "AIOKafkaProducer", build)
    monkeypatch.setattr(publishing, "STOP_TIMEOUT_S", 0)
    return built


async def test_an_error_replaces_the_producer(producers: list[Producer]) -> None:
    publisher = Publisher(kafka_settings())
    await publisher.start(30)
    producers[0].answers = [True, KafkaError("planted")]

    assert await publisher.publish("t", [RECORD, RECORD], 30) == [True, False]
    assert await publisher.publish("t", [RECORD], 30) == [True]
    assert len(producers) == 2


async def test_nothing_is_sent_before_earlier_messages_are_answered(
    producers: list[Producer], diagnosis: Diagnosis
) -> None:
    """A resend must not overtake earlier messages."""
    publisher = Publisher(kafka_settings())
    await publisher.start(30)
    producers[0].answers, diagnosis.finds = [None], AWAY

    assert await publisher.publish("t", [RECORD], 0.01) == [False]
    with pytest.raises(BrokerAway, match="no answer"):
        await publisher.publish("t", [RECORD], 0.01)
    [earlier] = producers[0].open
    resend = asyncio.create_task(publisher.publish("t", [RECORD], 30))
    await asyncio.sleep(0)
    assert not resend.done()
    earlier.set_result(None)

    assert await resend == [True]
    assert len(producers) == 1


async def test_at_most_one_abandoned_producer_is_left_open(producers: list[Producer]) -> None:
    """The brokers accept the login, so the producer has failed; a topic without a leader looks the same."""
    publisher = Publisher(kafka_settings())
    for _ in range(2):
        await publisher.start(30)
        producers[-1].answers = [None]
        producers[-1].is_flushed.clear()
        assert await publisher.publish("t", [RECORD], 0.01) == [False]
        with pytest.raises(BrokerAway, match="did not answer earlier messages"):
            await publisher.start(0.01)

    with pytest.raises(BrokerAway, match="did not answer earlier messages"):
        await publisher.start(0.01)
    assert len(producers) == 2
    for producer in producers:
        producer.is_flushed.set()

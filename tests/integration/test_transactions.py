"""Events of open and aborted transactions: on the input topics, and where a topic is read outside of a group."""

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from structlog.testing import capture_logs

from builders import Scoring
from infrastructure import Kafka, Topics, wait_until
from taking_in import PATIENCE_S, event, running_intake, send_events, wait_for_stored
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.kafka import consumer as consuming
from tarsy_scoring.kafka import topics as reading
from tarsy_scoring.kafka.security import connection_options
from tarsy_scoring.kafka.topics import Tail, read_topic
from tarsy_scoring.telemetry.metrics import Metrics

pytestmark = pytest.mark.xdist_group("infrastructure")
LAG = "tarsy_scoring_consumer_lag_records"


async def begin(topics: Topics, topic: str, name: str) -> AIOKafkaProducer:
    """A transaction with the event of this session on partition 0."""
    producer = AIOKafkaProducer(bootstrap_servers=topics.bootstrap_servers, transactional_id=f"{topic}-{name}")
    await producer.start()
    await producer.begin_transaction()
    await producer.send_and_wait(topic, event(name), partition=0)
    return producer


async def wait_for_end(topics: Topics, topic: str, offset: int) -> None:
    """Wait until partition 0 ends there: brokers write the marker of an ended transaction after they have answered."""
    partition, reader = TopicPartition(topic, 0), AIOKafkaConsumer(bootstrap_servers=topics.bootstrap_servers)

    async def has_end() -> bool:
        return bool((await reader.end_offsets([partition]))[partition] == offset)

    await reader.start()
    await wait_until(has_end, PATIENCE_S, f"{topic} ends at {offset}")
    await reader.stop()


async def read(topics: Topics, topic: str) -> set[bytes | None]:
    return {record.value async for record in read_topic(load_settings(topics.env), topic)}


async def test_only_events_of_committed_transactions_are_read(
    kafka: Kafka, topics: Topics, scoring: Scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events behind an open transaction wait: they count as lag, and the log names the transaction."""
    if kafka.name == "tansu":
        pytest.skip("Tansu has no transactions")
    monkeypatch.setattr(reading, "SILENCE_S", 5.0)
    monkeypatch.setattr(consuming, "OPEN_S", 0.0)
    metrics, inputs, producers = Metrics(), (topics.session_completed, topics.rescore_requested), []
    tail = Tail(connection_options(load_settings(topics.env)), topics.session_completed)
    for topic in inputs:
        producers += [await begin(topics, topic, f"{name}-{topic}") for name in ("kept", "aborted")]
        await producers[-2].commit_transaction()
        await producers[-1].abort_transaction()
        await wait_for_end(topics, topic, 4)
        producers.append(await begin(topics, topic, f"open-{topic}"))
    await send_events(topics, 0, ["behind"])
    await send_events(topics, 1, ["beside"])
    before, stored = {event(f"kept-{inputs[0]}"), event("beside")}, ["beside", *(f"kept-{topic}" for topic in inputs)]

    with capture_logs() as lines:

        def named() -> set[tuple[str, int]]:
            return {(e["topic"], e["offset"]) for e in lines if e["event"] == "kafka.transaction_open"}

        async with running_intake(topics, scoring, metrics):
            await wait_for_stored(scoring, stored)
            await wait_until(lambda: metrics.registry.get_sample_value(LAG) == 3, PATIENCE_S, "three events wait")
            await wait_until(lambda: named() == {(t, 4) for t in inputs}, PATIENCE_S, "both transactions are named")
            assert await read(topics, inputs[0]) == before
            await tail.start()
            assert {record.value for _ in range(4) for record in await tail.take(1)} == before
            await tail.stop()
            await producers[2].commit_transaction()
            await producers[5].abort_transaction()
            await wait_for_stored(scoring, [*stored, f"open-{inputs[0]}", "behind"])
            await wait_until(lambda: metrics.registry.get_sample_value(LAG) == 0, PATIENCE_S, "no event waits")
    assert await read(topics, inputs[0]) == {*before, event(f"open-{inputs[0]}"), event("behind")}
    assert await read(topics, inputs[1]) == {event(f"kept-{inputs[1]}")}, "the last record was aborted"
    for producer in producers:
        await producer.stop()

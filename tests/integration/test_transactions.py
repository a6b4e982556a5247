"""Events of open and aborted transactions: on the input topics, and where a topic is read outside of a group."""

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
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


async def read(topics: Topics, topic: str) -> list[bytes | None]:
    return [record.value async for record in read_topic(load_settings(topics.env), topic)]


async def follow(topics: Topics, topic: str, number: int) -> list[bytes | None]:
    """The first values that a tail gives; one more second, so that further ones show."""
    tail = Tail(connection_options(load_settings(topics.env)), topic)
    await tail.start()
    found = []
    while len(found) < number:
        found += await tail.take(1)
    found += await tail.take(1)
    await tail.stop()
    return [record.value for record in found]


def named(lines: list[Any]) -> set[tuple[str, int]]:
    """Topic and offset of the open transactions in the log."""
    return {(line["topic"], line["offset"]) for line in lines if line["event"] == "kafka.transaction_open"}


async def test_only_events_of_committed_transactions_are_read(
    kafka: Kafka, topics: Topics, scoring: Scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events behind an open transaction wait: they count as lag, and the log names the transaction."""
    if kafka.name == "tansu":
        pytest.skip("Tansu has no transactions")
    monkeypatch.setattr(reading, "SILENCE_S", 5.0)
    monkeypatch.setattr(consuming, "OPEN_S", 0.0)
    metrics, opened, stored = Metrics(), [], ["beside"]
    inputs = [topics.session_completed, topics.rescore_requested]
    for n, topic in enumerate(inputs):
        kept, aborted = await begin(topics, topic, f"kept-{n}"), await begin(topics, topic, f"aborted-{n}")
        await kept.commit_transaction()
        await aborted.abort_transaction()
        opened.append(await begin(topics, topic, f"open-{n}"))
        stored.append(f"kept-{n}")
        await asyncio.gather(kept.stop(), aborted.stop())
    await send_events(topics, 0, ["behind"])
    await send_events(topics, 1, ["beside"])

    with capture_logs() as lines:
        async with running_intake(topics, scoring, metrics):
            await wait_for_stored(scoring, stored)
            await wait_until(lambda: metrics.registry.get_sample_value(LAG) == 3, PATIENCE_S, "three events wait")
            await wait_until(lambda: {t for t, _ in named(lines)} == {*inputs}, PATIENCE_S, "both topics are named")
            before = [event("kept-0"), event("beside")]
            assert sorted(await read(topics, inputs[0])) == sorted(await follow(topics, inputs[0], 2)) == sorted(before)
            await opened[0].commit_transaction()
            await opened[1].abort_transaction()
            await wait_for_stored(scoring, [*stored, "open-0", "behind"])
            await wait_until(lambda: metrics.registry.get_sample_value(LAG) == 0, PATIENCE_S, "no event waits")

    assert named(lines) == {(topic, 4) for topic in inputs}
    assert sorted(await read(topics, inputs[0])) == sorted([*before, event("open-0"), event("behind")])
    assert await read(topics, inputs[1]) == [event("kept-1")], "the last record was aborted"
    await asyncio.gather(*(producer.stop() for producer in opened))

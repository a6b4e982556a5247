"""Batches that the Kafka library cannot read: a codec that it lacks, and bytes that were damaged on disk."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaProducer

from builders import Scoring
from fakes import Room
from infrastructure import Topics, wait_until
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.queue.intake import Intake
from tarsy_scoring.telemetry.metrics import Metrics

pytestmark = pytest.mark.xdist_group("infrastructure")
PATIENCE_S = 60.0


def event(name: str) -> bytes:
    return json.dumps({"session_id": name, "event_id": f"event-{name}"}).encode()


async def send(topics: Topics, partition: int, values: Sequence[bytes], **options: Any) -> None:
    """Send values to a partition of the topic of completed sessions, in one batch."""
    producer = AIOKafkaProducer(bootstrap_servers=topics.bootstrap_servers, linger_ms=50, **options)
    await producer.start()
    try:
        topic = topics.session_completed
        await asyncio.gather(*[await producer.send(topic, value, partition=partition) for value in values])
    finally:
        await producer.stop()


@contextlib.asynccontextmanager
async def running_intake(topics: Topics, scoring: Scoring, metrics: Metrics) -> AsyncIterator[None]:
    stopping = asyncio.Event()
    intake = Intake(load_settings(topics.env), scoring.inbox, cast(Any, Room()), metrics)
    running = asyncio.create_task(intake.run(stopping))
    try:
        yield
        assert not running.done(), running.exception()
    finally:
        stopping.set()
        await running


async def all_stored(scoring: Scoring, names: Sequence[str]) -> None:
    async def missing() -> bool:
        rows = await scoring.rows("SELECT session_id FROM scoring_requests")
        return {row["session_id"] for row in rows} == set(names)

    await wait_until(missing, PATIENCE_S, f"{len(names)} events are stored")


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_every_codec_of_kafka_is_read(topics: Topics, scoring: Scoring, codec: str) -> None:
    names = [f"{codec}-{n}" for n in range(100)]
    await send(topics, 0, [event(name) for name in names], compression_type=codec)

    async with running_intake(topics, scoring, Metrics()):
        await all_stored(scoring, names)

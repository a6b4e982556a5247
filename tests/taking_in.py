"""Helpers for tests of intake on a real broker."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from builders import Scoring
from fakes import Room
from infrastructure import Topics, wait_until
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.kafka.connect import Headers
from tarsy_scoring.kafka.consumer import Record
from tarsy_scoring.kafka.topics import read_topic
from tarsy_scoring.queue.intake import Intake
from tarsy_scoring.telemetry.metrics import Metrics

PATIENCE_S = 60.0


def event(name: str) -> bytes:
    return json.dumps({"session_id": name, "event_id": f"event-{name}"}).encode()


async def send(
    topics: Topics, topic: str, partition: int, values: Sequence[bytes | None], headers: Headers = (), **options: Any
) -> None:
    """Send values to a partition, small ones in one batch."""
    producer = AIOKafkaProducer(**{"bootstrap_servers": topics.bootstrap_servers, "linger_ms": 100} | options)
    await producer.start()
    try:
        how = {"key": b"a-key", "partition": partition, "headers": list(headers)}
        await asyncio.gather(*[await producer.send(topic, value, **how) for value in values])
    finally:
        await producer.stop()


async def send_events(topics: Topics, partition: int, names: Sequence[str], **options: Any) -> None:
    """Send the events of these sessions to a partition, in one batch."""
    await send(topics, topics.session_completed, partition, [event(name) for name in names], **options)


async def create_topic(topics: Topics, name: str, config: dict[str, str]) -> str:
    """Create one more topic, of one partition; returns its name."""
    topic = f"{name}-{topics.session_completed}"
    admin = AIOKafkaAdminClient(bootstrap_servers=topics.bootstrap_servers)
    await admin.start()
    await admin.create_topics([NewTopic(topic, 1, 1, topic_configs=config)])
    await admin.close()
    return topic


async def committed(topics: Topics, partition: int, topic: str | None = None) -> int | None:
    """The group's offset of a partition, by default of `session-completed`; None: none was committed."""
    options: dict[str, Any] = {"bootstrap_servers": topics.bootstrap_servers, "group_id": topics.group}
    reader = AIOKafkaConsumer(enable_auto_commit=False, **options)
    await reader.start()
    try:
        return await reader.committed(TopicPartition(topic or topics.session_completed, partition))
    finally:
        await reader.stop()


@contextlib.asynccontextmanager
async def running_intake(
    topics: Topics,
    scoring: Scoring,
    metrics: Metrics | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    **env: str,
) -> AsyncIterator[Intake]:
    stopping = asyncio.Event()
    room, settings = cast(Any, Room()), load_settings(topics.env | env)
    intake = Intake(settings, scoring.inbox, room, metrics or Metrics(), monotonic=monotonic)
    running = asyncio.create_task(intake.run(stopping))
    try:
        yield intake
        assert not running.done(), running.exception()
    finally:
        stopping.set()
        await running


async def wait_for_stored(scoring: Scoring, names: Sequence[str]) -> None:
    """Wait until these sessions, and no others, have requests."""

    async def are_stored() -> bool:
        rows = await scoring.rows("SELECT session_id FROM scoring_requests")
        return {row["session_id"] for row in rows} == set(names)

    await wait_until(are_stored, PATIENCE_S, f"exactly {len(names)} events are stored")


async def dead_letters(topics: Topics) -> list[tuple[Record, dict[str, str]]]:
    """The dead letters with their headers."""
    letters = [record async for record in read_topic(load_settings(topics.env), topics.dead_letters)]
    return [(letter, {name: value.decode() for name, value in letter.headers}) for letter in letters]

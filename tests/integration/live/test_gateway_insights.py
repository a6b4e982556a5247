"""The channel of insights on a real broker: its topic is read, followed, and may be missing."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
from aiokafka import AIOKafkaProducer
from pydantic_core import to_json
from structlog.testing import capture_logs

from infrastructure import Kafka
from insights_messages import drift, key_of, now_us, windows
from live import FakeSocket, connected_to, event, of_type, records, until
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.kafka.topics import ensure_topics
from tarsy_scoring.live import signals
from tarsy_scoring.live.gateway import Gateway
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.telemetry.metrics import Metrics


@pytest.fixture
def settings(kafka: Kafka) -> Settings:
    """A topic name of its own; the topic is not created yet."""
    return load_settings(
        {
            "SCORING_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "SCORING_TOPIC_SCORING_INSIGHTS": f"scoring-insights-{uuid.uuid4().hex[:8]}",
            "SCORING_CREATE_TOPICS": "true",
        }
    )


@asynccontextmanager
async def following(settings: Settings) -> AsyncIterator[Gateway]:
    """The gateway of a process that follows the topic and never asks its database."""
    gateway, stopping = Gateway(settings, cast(Database, None), Metrics()), asyncio.Event()
    gateway.begin_at(0)
    running = asyncio.create_task(gateway.insights.run(stopping))
    try:
        yield gateway
    finally:
        stopping.set()
        await asyncio.wait_for(running, 30)


async def write(settings: Settings, *messages: tuple[bytes | None, bytes | None]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=settings.require_kafka()) as producer:
        for key, value in messages:
            await producer.send_and_wait(settings.topic_scoring_insights, value, key=key)


def chains(socket: FakeSocket) -> list[str]:
    return [m["chain_id"] for m in of_type(socket.messages, "scoring.windows")]


async def test_a_client_gets_stored_insights_at_once_and_new_ones_live(settings: Settings) -> None:
    """
    Stored are the newest message per chain and the findings; foreign records and removed chains are left out.

    Each process reads the topic itself, so the clients of two processes get the same.
    """
    await ensure_topics(settings, [settings.topic_scoring_insights])
    now = now_us()
    messages = [
        windows("a", now - 2),
        windows("b", now),
        windows("gone", now),
        windows("a", now - 1),
        drift(now, chain_id=None),
    ]
    await write(
        settings,
        *((key_of(m), to_json(m)) for m in messages),
        *((b"gone", None), (b"a", b"\xff\x00 hostile"), (None, b"foreign"), (b"x", to_json(windows("a", now)))),
    )
    async with following(settings) as first, following(settings) as second:
        for gateway in (first, second):
            await until(lambda g=gateway: len(g.insights.snapshot().texts) == 3, "the topic to be read")
        async with connected_to(first, "insights") as socket, connected_to(second, "insights") as other:
            for one in (socket, other):
                assert sorted(chains(one)) == ["a", "b"]
                assert [m["timestamp_us"] for m in one.messages if m.get("chain_id") == "a"] == [now - 1]
                assert len(of_type(one.messages, "scoring.drift_detected")) == 1
            await write(settings, (b"c", to_json(windows("c", now))))
            for one in (socket, other):
                await until(lambda o=one: chains(o)[-1] == "c", "what comes")


async def test_a_missing_topic_may_be_created_later(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then the channel is confirmed and silent, and other channels go on."""
    monkeypatch.setattr(signals, "RETRY_S", 0.1)
    with capture_logs() as logs:
        async with following(settings) as gateway, connected_to(gateway, "insights", "sessions") as socket:
            await until(lambda: any(line["event"] == "gateway.insights_away" for line in logs), "the first look")
            gateway.take_records(records(event(1)))
            assert gateway.deliver() == 1
            await until(lambda: socket.positions == [1], "an event of another channel")
            assert len(of_type(socket.messages, "subscription.confirmed")) == 2
            await ensure_topics(settings, [settings.topic_scoring_insights])
            await write(settings, (b"a", to_json(windows("a", now_us()))))
            await until(lambda: chains(socket) == ["a"], "the topic that was made")
    assert len([line for line in logs if line["event"] == "gateway.insights_away"]) == 1

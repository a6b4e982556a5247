"""Brokers that go away after the start: the client goes on trying and tells nobody, so the consumer finds out."""

import pytest
from structlog.testing import capture_logs

from infrastructure import Kafka, Topics, wait_until
from tarsy_scoring import kafka as kafka_module
from tarsy_scoring.configuration import load_settings
from tarsy_scoring.kafka import Consumer


async def test_an_outage_is_seen_and_so_is_its_end(
    kafka: Kafka, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing was announced for long; until then brokers that answer with nothing are not asked."""
    if not kafka.restartable:
        pytest.skip("this broker cannot be stopped here")
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
            await kafka.stop()
            try:
                await wait_until(is_cut_off, 30, "the outage is seen")
            finally:
                await kafka.start()
            await wait_until(is_served, 30, "its end is seen")
    finally:
        await consumer.stop()

    away = [line for line in lines if line["event"] == "kafka.away"]
    assert away
    assert "connection refused" in away[0]["reason"]

"""Batches that the Kafka library cannot read: a codec that it lacks, and bytes that were damaged on disk."""

import pytest
from structlog.testing import capture_logs

from builders import Scoring
from damage import damage
from infrastructure import Kafka, Topics, wait_until
from taking_in import PATIENCE_S, committed, dead_letters, running_intake, send_events, wait_for_stored
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.kafka import consumer as consuming
from tarsy_scoring.kafka.topics import read_topic
from tarsy_scoring.telemetry.metrics import Metrics

pytestmark = pytest.mark.xdist_group("infrastructure")
GAUGE = "tarsy_scoring_intake_stopped_partitions"


# --- codecs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_every_codec_of_kafka_is_read(topics: Topics, scoring: Scoring, codec: str) -> None:
    names = [f"{codec}-{n}" for n in range(100)]
    await send_events(topics, 0, names, compression_type=codec)

    async with running_intake(topics, scoring):
        await wait_for_stored(scoring, names)


async def test_a_codec_that_the_library_lacks_stops_its_partition_alone(
    topics: Topics, scoring: Scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other partitions lose nothing; the partition keeps its offset, and goes on once the codec is there."""
    metrics = Metrics()
    before, packed, behind = ["before-0", "before-1"], ["packed-0", "packed-1"], ["behind"]
    plain = [f"plain-{n}" for n in range(85)]
    await send_events(topics, 1, before)
    await send_events(topics, 1, packed, compression_type="zstd")
    await send_events(topics, 1, behind)
    monkeypatch.setattr(consuming, "UNREADABLE_RETRY_S", 0.2)
    labels = {"topic": topics.session_completed, "reason": "unreadable"}

    with capture_logs() as lines:
        async with running_intake(topics, scoring, metrics):
            with monkeypatch.context() as without_codec:
                without_codec.setattr("aiokafka.codec.has_zstd", lambda: False)
                for name in plain:
                    await send_events(topics, 0, [name], linger_ms=0)
                await wait_for_stored(scoring, [*before, *plain])
                await wait_until(lambda: metrics.registry.get_sample_value(GAUGE, labels) == 1, 30, "it is measured")
                assert await committed(topics, 1) in (None, 2)
            await wait_for_stored(scoring, [*before, *plain, *packed, *behind])
            await wait_until(lambda: metrics.registry.get_sample_value(GAUGE, labels) == 0, 30, "it is over")

    assert [await committed(topics, n) for n in (0, 1)] == [85, 5]
    told = {(line["topic"], line["partition"]) for line in lines if line["event"] == "kafka.partition_unreadable"}
    assert told == {(topics.session_completed, 1)}
    assert await dead_letters(topics) == []


# --- damaged bytes -------------------------------------------------------------------------------------


LENGTH_AT, CONTENT_AT = 10, 70  # where a batch states its length, and where its content begins


@pytest.mark.parametrize("at", [CONTENT_AT, LENGTH_AT], ids=["content", "length"])
async def test_a_damaged_batch_stops_its_partition_alone(
    own_kafka: Kafka, topics: Topics, scoring: Scoring, at: int
) -> None:
    """Batches in front of it are stored; a topic is listed up to it."""
    metrics = Metrics()
    for k in range(3):
        await send_events(topics, 3, [f"batch-{k}-{n}" for n in range(5)])
    damage(own_kafka, topics, 3, 5, at)
    labels, first = {"topic": topics.session_completed, "reason": "unreadable"}, [f"batch-0-{n}" for n in range(5)]

    async with running_intake(topics, scoring, metrics):
        await wait_until(lambda: metrics.registry.get_sample_value(GAUGE, labels) == 1, PATIENCE_S, "it is measured")
        await send_events(topics, 4, ["neighbour"])
        await wait_for_stored(scoring, [*first, "neighbour"])

    assert await committed(topics, 3) == 5
    assert await dead_letters(topics) == []
    read = [r async for r in read_topic(load_settings(topics.env), topics.session_completed)]
    assert [r.offset for r in read if r.partition == 4] == [0]

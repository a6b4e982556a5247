"""Batches that the Kafka library cannot read: a codec that it lacks, and bytes that were damaged on disk."""

import asyncio
import functools
from dataclasses import replace
from typing import Any

import pytest
from aiokafka import TopicPartition
from structlog.testing import capture_logs

from builders import Scoring
from damage import damage, segments
from infrastructure import Kafka, Topics, wait_until
from taking_in import (
    PATIENCE_S,
    committed,
    create_topic,
    dead_letters,
    event,
    running_intake,
    send_events,
    wait_for_stored,
)
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.kafka import batches
from tarsy_scoring.kafka import consumer as consuming
from tarsy_scoring.kafka.batches import Batch, find_batch
from tarsy_scoring.kafka.security import connection_options
from tarsy_scoring.kafka.topics import Tail, read_topic
from tarsy_scoring.signals import consumer
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
                assert [await committed(topics, n) for n in (0, 1)] == [85, 2]
            await wait_for_stored(scoring, [*before, *plain, *packed, *behind])
            await wait_until(lambda: metrics.registry.get_sample_value(GAUGE, labels) == 0, 30, "it is over")

    told = [(line["event"], line["topic"], line["partition"]) for line in lines if "partition_" in line["event"]]
    place = (topics.session_completed, 1)
    assert told == [("kafka.partition_unreadable", *place), ("kafka.partition_readable", *place)]
    assert await dead_letters(topics) == []


async def test_insights_go_on_behind_a_batch_that_cannot_be_read(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "RETRY_S", 0.5)
    events, seen = replace(topics, session_completed=topics.scoring_events), list[bytes | None]()

    async def is_read(name: str) -> bool:
        await send_events(events, 2, [name])
        return event(name) in seen

    consuming = asyncio.create_task(consumer.consume(load_settings(topics.env), seen.append))
    try:
        await wait_until(lambda: is_read("before"), PATIENCE_S, "Faust reads the topic")
        await send_events(events, 2, ["packed"], compression_type="zstd")
        monkeypatch.setattr("aiokafka.codec.has_zstd", lambda: False)
        await wait_until(lambda: is_read("behind"), PATIENCE_S, "a later event is read")
    finally:
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)


# --- damaged bytes -------------------------------------------------------------------------------------


async def test_a_damaged_batch_is_a_dead_letter_and_its_neighbours_are_stored(
    own_kafka: Kafka, topics: Topics, scoring: Scoring
) -> None:
    batches = [[f"batch-{k}-{n}" for n in range(5)] for k in range(5)]
    for names in batches:
        await send_events(topics, 3, names)
    for offset in (5, 10, 20):
        damage(own_kafka, topics, 3, offset)

    async with running_intake(topics, scoring):
        await wait_for_stored(scoring, batches[0] + batches[3])
        await send_events(topics, 3, ["new"])
        await wait_for_stored(scoring, [*batches[0], *batches[3], "new"])
        await wait_until(functools.partial(committed_is, topics, 3, 26), PATIENCE_S, "its offset is committed")

    letters = await dead_letters(topics)
    assert sorted((int(h["scoring-original-offset"]), h["scoring-original-last-offset"]) for _, h in letters) == [
        (5, "9"),
        (10, "14"),
        (20, "24"),
    ]
    for letter, headers in letters:
        assert (letter.key, letter.value, headers["scoring-error"]) == (None, b"", "damaged_batch")
        assert headers["scoring-original-topic"] == topics.session_completed
        assert headers["scoring-original-partition"] == "3"
        assert (
            f"{headers['scoring-original-offset']} to {headers['scoring-original-last-offset']}"
            in (headers["scoring-error-message"])
        )


async def committed_is(topics: Topics, partition: int, offset: int) -> bool:
    return await committed(topics, partition) == offset


# Where a batch states its length and its last offset, and where its content begins.
LENGTH_AT, LAST_OFFSET_AT, CONTENT_AT = 11, 26, 70
SEGMENT_PER_BATCH = {"segment.ms": "1"}


@pytest.mark.parametrize(
    ("offset", "at", "config", "found"),
    [
        pytest.param(5, CONTENT_AT, {}, Batch(10, is_damaged=True), id="content"),
        pytest.param(10, CONTENT_AT, {}, Batch(15, is_damaged=True), id="content of the last batch"),
        pytest.param(
            5, CONTENT_AT, SEGMENT_PER_BATCH, Batch(10, is_damaged=True), id="content at the end of a segment"
        ),
        pytest.param(5, LAST_OFFSET_AT, {}, None, id="last offset"),
        pytest.param(5, LAST_OFFSET_AT, SEGMENT_PER_BATCH, None, id="last offset, end of a segment"),
        pytest.param(10, LAST_OFFSET_AT, {}, None, id="last offset of the last batch"),
        pytest.param(5, LENGTH_AT, {}, None, id="length"),
    ],
)
async def test_the_end_of_a_damaged_batch_is_proven_or_unknown(
    own_kafka: Kafka, topics: Topics, monkeypatch: pytest.MonkeyPatch, offset: int, at: int, config: Any, found: Any
) -> None:
    """An end that is too far would skip good events."""
    topics = replace(topics, session_completed=await create_topic(topics, "configured", config))
    options = connection_options(load_settings(topics.env))
    for k in range(3):
        await send_events(topics, 0, [f"batch-{k}-{n}" for n in range(5)])
    place = TopicPartition(topics.session_completed, 0)
    assert await find_batch(options, place, offset) == Batch(offset + 5, is_damaged=False)
    assert len(segments(own_kafka, topics, 0)) == (3 if config else 1)

    damage(own_kafka, topics, 0, offset, at)

    assert await find_batch(options, place, offset) == found
    monkeypatch.setattr(batches, "FETCH_BYTES", 1)
    assert await find_batch(options, place, offset) == found


async def test_a_batch_whose_end_is_unknown_stops_its_partition_alone(
    own_kafka: Kafka, topics: Topics, scoring: Scoring
) -> None:
    """Its length is damaged, so the library reports a record that is too large, and moves on by one offset."""
    metrics = Metrics()
    for k in range(3):
        await send_events(topics, 3, [f"batch-{k}-{n}" for n in range(5)])
    damage(own_kafka, topics, 3, 5, LENGTH_AT - 1)
    labels, first = {"topic": topics.session_completed, "reason": "unreadable"}, [f"batch-0-{n}" for n in range(5)]

    async with running_intake(topics, scoring, metrics):
        await wait_until(lambda: metrics.registry.get_sample_value(GAUGE, labels) == 1, PATIENCE_S, "it is measured")
        await send_events(topics, 4, ["neighbour"])
        await wait_for_stored(scoring, [*first, "neighbour"])

    assert await committed(topics, 3) == 5
    assert await dead_letters(topics) == []


@pytest.mark.parametrize("offset", [0, 5], ids=["the first batch", "a later batch"])
async def test_a_batch_with_a_damaged_offset_costs_no_batch_behind_it(
    own_kafka: Kafka, topics: Topics, scoring: Scoring, offset: int
) -> None:
    """No checksum covers the offset, and the library drops the batch behind one that seems to be far ahead."""
    metrics = Metrics()
    for k in range(3):
        await send_events(topics, 3, [f"batch-{k}-{n}" for n in range(5)])
    damage(own_kafka, topics, 3, offset, at=2)
    labels = {"topic": topics.session_completed, "reason": "unreadable"}
    before = [f"batch-0-{n}" for n in range(offset)]

    async with running_intake(topics, scoring, metrics):
        await wait_until(lambda: metrics.registry.get_sample_value(GAUGE, labels) == 1, PATIENCE_S, "it is measured")
        await send_events(topics, 4, ["neighbour"])
        await wait_for_stored(scoring, [*before, "neighbour"])

    assert await committed(topics, 3) == (offset or None)
    assert await dead_letters(topics) == []


async def test_a_topic_is_read_past_a_damaged_batch(own_kafka: Kafka, topics: Topics) -> None:
    """Dead letters beside a damaged batch can be listed and replayed."""
    for k in range(3):
        await send_events(topics, 3, [f"batch-{k}-{n}" for n in range(5)])
    await send_events(topics, 4, ["neighbour"])
    damage(own_kafka, topics, 3, 5)

    with capture_logs() as lines:
        read = [r async for r in read_topic(load_settings(topics.env), topics.session_completed)]

    assert [r.offset for r in read if r.partition == 3] == [*range(5), *range(10, 15)]
    assert [r.offset for r in read if r.partition == 4] == [0]
    assert [(line["event"], line["offset"], line["end"]) for line in lines] == [("kafka.batch_skipped", 5, 10)]


async def test_a_tail_skips_a_batch_that_cannot_be_read(own_kafka: Kafka, topics: Topics) -> None:
    for k in range(3):
        await send_events(topics, 3, [f"batch-{k}-{n}" for n in range(5)])
    await send_events(topics, 4, ["neighbour"])
    damage(own_kafka, topics, 3, 5)
    tail, seen = Tail(connection_options(load_settings(topics.env)), topics.session_completed), set[int]()

    async def has_read_all() -> bool:
        seen.update(record.offset for record in await tail.take(0.1) if record.partition == 3)
        return seen == {*range(5), *range(10, 15)}

    await tail.start()
    try:
        with capture_logs() as lines:
            await wait_until(has_read_all, PATIENCE_S, "all but the damaged batch are read")
    finally:
        await tail.stop()

    assert [(line["event"], line["offset"], line["end"]) for line in lines] == [("kafka.batch_skipped", 5, 10)]

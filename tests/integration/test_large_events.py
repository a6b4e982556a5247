"""The relay on a topic that refuses some events as too large: their neighbours are published once, in order."""

import asyncio
import uuid
from collections import Counter, defaultdict
from typing import Any

import pytest
import structlog
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from pydantic_core import from_json

from builders import Scoring, rescore
from infrastructure import Kafka, wait_until
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.events import ScoringCompleted
from tarsy_scoring.kafka.topics import read_topic
from tarsy_scoring.outbox.outbox import NewEvent, emit
from tarsy_scoring.outbox.relay import Relay
from tarsy_scoring.queue.backlog import unpublished_events
from tarsy_scoring.telemetry.metrics import Metrics

LARGE = "session-7"
SESSIONS = 12
EVENTS = 2 * SESSIONS * 7
PHASES = ("gathering_context", "analyzing_methodology", "storing")
COMPLETED: dict[str, Any] = {
    "total_score": 67,
    "outcome": "pass",
    "criteria": "investigation",
    "criteria_hash": "0" * 64,
    "judge_fingerprint": "1" * 64,
    "failure_tags": [],
    "flags": ["context_shortened"],
    "usage": {"input_tokens": 1000},
    "score_triggered_by": "auto",
    "alert_type": None,
    "labels": {"guidance": "v2"},
}


async def topic_that_allows(kafka: Kafka, max_bytes: int) -> Settings:
    """Settings whose `scoring-events` is a new topic of two partitions with this `max.message.bytes`."""
    if kafka.name == "tansu":
        pytest.skip("Tansu has no limit per topic")
    topic = f"scoring-events-{uuid.uuid4().hex[:8]}"
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, 2, 1, topic_configs={"max.message.bytes": str(max_bytes)})])
    finally:
        await admin.close()
    return load_settings(
        {"SCORING_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers, "SCORING_TOPIC_SCORING_EVENTS": topic}
    )


async def finish(scoring: Scoring, ends: dict[str, dict[str, Any]]) -> None:
    """Two scores for each session, one after the other; `ends` adds fields to the ends of the first ones."""
    for is_first in (True, False):
        await scoring.accept(*(rescore(f"session-{n}") for n in range(SESSIONS)))
        claimed = await scoring.claim()
        new = [NewEvent(c.score_id, "scoring.progress", {"phase": phase}) for phase in PHASES for c in claimed]
        for c in claimed:
            fields = COMPLETED | (ends.get(c.session_id, {}) if is_first else {})
            new.append(NewEvent(c.score_id, "scoring.completed", fields))
        await scoring.database.once(lambda c, new=new: emit(scoring.database, c, new))
        await scoring.rows(
            "UPDATE session_scores SET status = 'completed', completed_at = now(), lease_owner = NULL, "
            "lease_token = NULL, lease_expires_at = NULL, total_score = 67, score_analysis = 'Well reasoned.'"
        )


async def relay_all(scoring: Scoring, settings: Settings, metrics: Metrics) -> list[dict[str, Any]]:
    """Run a relay until no event is unpublished; gives what it published, in order within each session."""
    stopping = asyncio.Event()
    running = asyncio.create_task(Relay(settings, scoring.database, metrics).run(stopping))

    async def is_empty() -> bool:
        return await unpublished_events(scoring.database) == (0, 0.0)

    try:
        await wait_until(is_empty, 120, "every event is marked")
    finally:
        stopping.set()
        await running
    return [from_json(r.value or b"") async for r in read_topic(settings, settings.topic_scoring_events)]


def by_session(events: list[dict[str, Any]]) -> dict[str, list[int]]:
    found = defaultdict(list)
    for event in events:
        found[event["session_id"]].append(event["position"])
    return found


async def test_an_event_larger_than_the_topic_allows_is_published_without_its_labels(
    scoring: Scoring, kafka: Kafka
) -> None:
    """Nothing waits behind it and nothing is repeated for it; its session keeps its order."""
    settings, metrics = await topic_that_allows(kafka, 200_000), Metrics()
    await finish(scoring, {LARGE: {"labels": {f"label-{n}": "x" * 1000 for n in range(240)}}})

    events = await relay_all(scoring, settings, metrics)

    stored = await scoring.rows("SELECT event_id, position, payload FROM scoring_events ORDER BY position")
    assert sorted(e["event_id"] for e in events) == sorted(str(r["event_id"]) for r in stored), "each once"
    assert all(positions == sorted(positions) for positions in by_session(events).values())
    [large] = [e for e in events if e.get("left_out")]
    [whole] = [r["payload"] for r in stored if str(r["event_id"]) == large["event_id"]]
    assert large["labels"] == {}
    assert set(large["left_out"]) <= {"labels", "failure_tags", "error_message", "interaction"}
    left = set(large["left_out"])
    assert {k: v for k, v in large.items() if k not in {"position", "left_out", *left}} == {
        k: v for k, v in whole.items() if k not in {"position", *left}
    }
    assert ScoringCompleted.model_validate(large).left_out == large["left_out"]
    others = [e["labels"] for e in events if e["type"] == "scoring.completed" and e is not large]
    assert others == [{"guidance": "v2"}] * (2 * SESSIONS - 1)


@pytest.mark.parametrize(
    ("max_bytes", "cut"),
    [
        pytest.param(2000, {"small": 6}, id="small-events-fit"),
        pytest.param(500, {"nothing": EVENTS}, id="nothing-fits"),
    ],
)
async def test_a_topic_that_allows_hardly_anything_does_not_stop_the_relay(
    scoring: Scoring, kafka: Kafka, max_bytes: int, cut: dict[str, int]
) -> None:
    """It refuses whole batches, too. An event that does not fit at all is passed over, loudly."""
    settings, metrics = await topic_that_allows(kafka, max_bytes), Metrics()
    labels, tags = {"labels": {"note": "x" * 3000}}, {"failure_tags": ["x" * 100] * 30}
    await finish(scoring, {f"session-{n}": labels if n < 4 else tags for n in range(6)})

    with structlog.testing.capture_logs() as logs:
        events = await relay_all(scoring, settings, metrics)

    logged = Counter(e["published"] for e in logs if e["event"] == "relay.event_cut")
    assert logged == cut == {how: metrics.events_cut.labels(how)._value.get() for how in cut}
    assert len({e["event_id"] for e in events}) == EVENTS - cut.get("nothing", 0)
    for positions in by_session(events).values():
        last_word = list(dict.fromkeys(reversed(positions)))  # the batches of the first pass may be repeated
        assert last_word == sorted(last_word, reverse=True)
    cut_small = [e for e in events if e.get("left_out")]
    assert [ScoringCompleted.model_validate(e).total_score for e in cut_small] == [67] * cut.get("small", 0)

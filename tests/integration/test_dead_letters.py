"""Dead letters on a real broker: too large ones, a topic that is away, and the bodies that PostgreSQL keeps."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from builders import Scoring
from fakes import Room
from infrastructure import Topics, wait_until
from taking_in import PATIENCE_S, committed, create_topic, dead_letters, event, running_intake, send, wait_for_stored
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.dead_letters import dead_letters as letters_module
from tarsy_scoring.dead_letters.dead_letters import write_dead_letter
from tarsy_scoring.errors import InvalidMessage
from tarsy_scoring.kafka.connect import BrokerAway
from tarsy_scoring.kafka.consumer import Record
from tarsy_scoring.kafka.publisher import TooLarge
from tarsy_scoring.queue import intake as intake_module
from tarsy_scoring.queue.intake import Intake
from tarsy_scoring.telemetry.metrics import Metrics

pytestmark = pytest.mark.xdist_group("infrastructure")


async def test_dead_letters_that_do_not_fit_into_their_topic_keep_their_bodies(
    topics: Topics, scoring: Scoring
) -> None:
    small = await create_topic(topics, "small", {"max.message.bytes": "50000"})
    topics = replace(topics, dead_letters=small)
    large = [b"x" * 60_000, b"y" * 60_000]
    headers = [("a header of a producer\0", b"\xff")]
    await send(topics, topics.session_completed, 0, [*large, event("behind")], headers)

    async with running_intake(topics, scoring):
        await wait_for_stored(scoring, ["behind"])
        await wait_until(lambda: offset_is(topics, 3), PATIENCE_S, "its offset is committed")

    found = await dead_letters(topics)
    bodies = {row["body_id"]: row["value"] for row in await scoring.rows("SELECT * FROM dead_letter_bodies")}
    assert sorted(bodies.values()) == large
    letters = [(letter.key, letter.value, headers["scoring-error"]) for letter, headers in found]
    assert letters == [(b"a-key", b"", "not_json")] * 2, "a reader finds them by key"
    assert {headers["scoring-body-id"] for _, headers in found} == {str(body_id) for body_id in bodies}


async def offset_is(topics: Topics, offset: int) -> bool:
    return await committed(topics, 0) == offset


class TopicAnswers:
    """Replaces the publisher: gives or raises these answers, and acknowledges from then on."""

    def __init__(self, *answers: bool | Exception) -> None:
        self._answers = list(answers)

    async def publish(self, _topic: str, messages: Sequence[Any], _timeout_s: float) -> list[bool]:
        answer = self._answers.pop(0) if self._answers else True
        if isinstance(answer, Exception):
            raise answer
        return [answer for _ in messages]


async def test_a_dead_letter_topic_that_is_away_repeats_no_request(
    scoring: Scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_module, "RETRY_S", 0)
    settings = load_settings({"SCORING_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"})
    intake = Intake(settings, scoring.inbox, cast(Any, Room()), Metrics())
    cast(Any, intake)._publisher = TopicAnswers(BrokerAway("planted"), False, BrokerAway("planted"))
    values = [event("one"), b"not json", event("two"), b"not json either"]

    await intake.store(
        [Record(settings.topic_session_completed, 0, n, 1, None, value, ()) for n, value in enumerate(values)]
    )

    rows = await scoring.rows("SELECT session_id, arrivals FROM scoring_requests ORDER BY session_id")
    assert [(row["session_id"], row["arrivals"]) for row in rows] == [("one", 1), ("two", 1)]


async def test_the_oldest_bodies_make_room_for_new_ones(scoring: Scoring, monkeypatch: pytest.MonkeyPatch) -> None:
    """One key makes room among its own. The original records are still named by topic, partition and offset."""
    monkeypatch.setattr(letters_module, "MOST_BODY_BYTES", 5_500)
    monkeypatch.setattr(letters_module, "MOST_BODY_BYTES_OF_KEY", 2_500)
    for n, key in enumerate(("a", "b", "c", "hot", "hot", "hot", "hot")):
        record = Record("session-completed", 0, n, 1, key.encode(), b"%d" % n * 1_000, ())
        publisher = cast(Any, TopicAnswers(TooLarge("planted")))
        error = InvalidMessage("not_json", "planted")
        await write_dead_letter(publisher, "letters", scoring.database, record, error, datetime.now(UTC))

    rows = await scoring.rows("SELECT value FROM dead_letter_bodies ORDER BY created_at")
    assert [row["value"][:1] for row in rows] == [b"1", b"2", b"5", b"6"]


async def test_a_topic_with_too_many_invalid_messages_pauses_alone(
    topics: Topics, scoring: Scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Behind each pause it continues with one take. Nothing is lost, and valid messages in between are stored.
    Tombstones do not count, and are no dead letters.
    """
    monkeypatch.setattr(intake_module, "TAKE_LIMIT", 10)
    metrics, passed, now_s = Metrics(), {"source": "session-completed", "disposition": "tombstone"}, 0.0
    await send(topics, topics.session_completed, 0, [event("first"), *[None] * 20, *[b"invalid"] * 9])
    await send(topics, topics.session_completed, 0, [b"invalid", event("between"), *[b"invalid"] * 8, event("last")])

    def stopped() -> float | None:
        labels = {"topic": topics.session_completed, "reason": "dead_letters"}
        return metrics.registry.get_sample_value("tarsy_scoring_intake_stopped_partitions", labels)

    def pauses() -> list[float]:
        return [line["pause_s"] for line in lines if line["event"] == "intake.topic_stopped"]

    with capture_logs() as lines:
        limits = {"SCORING_DEAD_LETTER_MAX_STREAK": "3"}
        async with running_intake(topics, scoring, metrics, lambda: now_s, **limits) as intake:
            await wait_until(lambda: pauses() == [30] and stopped() == 6, PATIENCE_S, "its six partitions stop")
            await send(topics, topics.rescore_requested, 0, [event("other")])
            await wait_until(lambda: requests_of(scoring, "other"), PATIENCE_S, "the other topic goes on")
            assert await committed(topics, 0) == 30
            assert intake.stopped_topics()[topics.session_completed] is not None
            now_s += 30
            await wait_until(lambda: pauses() == [30, 60] and stopped() == 6, PATIENCE_S, "one take later they stop")
            assert await committed(topics, 0) == 40
            now_s += 60
            await wait_for_stored(scoring, ["first", "between", "last", "other"])
            await wait_until(lambda: stopped() == 0, PATIENCE_S, "it is read again")

    assert metrics.registry.get_sample_value("tarsy_scoring_requests_total", passed) == 20
    assert len(await dead_letters(topics)) == 18


async def requests_of(scoring: Scoring, session_id: str) -> bool:
    return bool(await scoring.rows("SELECT 1 FROM scoring_requests WHERE session_id = $1", session_id))

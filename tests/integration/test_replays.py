"""Replays of dead letters: which headers count, where a replay goes, and what it may not bring back."""

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaProducer
from click.testing import CliRunner, Result

from builders import Scoring, session_completed
from fakes import Room
from infrastructure import Topics, wait_until
from taking_in import PATIENCE_S, dead_letters, event, running_intake, send
from tarsy_scoring.cli import cli
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.dead_letters.dead_letters import count_open, read_dead_letter, replay, write_dead_letter
from tarsy_scoring.errors import InvalidMessage
from tarsy_scoring.kafka.consumer import Record
from tarsy_scoring.kafka.topics import read_topic
from tarsy_scoring.queue.intake import Intake
from tarsy_scoring.retention.erasure import erase
from tarsy_scoring.telemetry.metrics import Metrics

pytestmark = pytest.mark.xdist_group("infrastructure")

TOPIC = "session-completed"
NOW_S = 1_800_000_000.0


def origin(topic: str, offset: int = 7) -> list[tuple[str, bytes]]:
    """Headers that say where a message came from."""
    said = {"topic": topic, "partition": 0, "offset": offset, "timestamp": round(NOW_S * 1000)}
    return [(f"scoring-original-{name}", str(value).encode()) for name, value in said.items()]


async def command(topics: Topics, scoring: Scoring, *arguments: str) -> Result:
    env = topics.env | {"SCORING_DATABASE_URL": scoring.url}
    return await asyncio.to_thread(CliRunner().invoke, cli, ["dead-letters", *arguments], env=env)


async def values_of(topics: Topics, topic: str) -> list[bytes | None]:
    return [record.value async for record in read_topic(load_settings(topics.env), topic)]


async def wait_for_letters(topics: Topics, count: int) -> list[tuple[Record, dict[str, str]]]:
    async def are_there() -> list[tuple[Record, dict[str, str]]]:
        letters = await dead_letters(topics)
        return letters if len(letters) >= count else []

    letters: list[tuple[Record, dict[str, str]]] = await wait_until(are_there, PATIENCE_S, f"{count} dead letters")
    return letters


def origins(letters: Sequence[tuple[Record, dict[str, str]]]) -> list[tuple[str, str]]:
    return sorted((headers["scoring-original-topic"], headers["scoring-original-offset"]) for _, headers in letters)


# --- on a broker ---------------------------------------------------------------------------------------


async def test_a_forged_origin_leads_a_replay_to_no_other_topic(topics: Topics, scoring: Scoring) -> None:
    """A replay goes to the topic that the record stood in, and keeps that position when it fails again."""
    inbox = topics.session_completed
    for name in (topics.rescore_requested, topics.scoring_events, "no-such-topic"):
        await send(topics, inbox, 0, [b'{"type": "scoring.rescore_requested", "session_id": "s"}'], origin(name))

    async with running_intake(topics, scoring):
        letters = await wait_for_letters(topics, 3)
        replayed = await command(topics, scoring, "replay", "--all")
        again = await wait_for_letters(topics, 6)

    assert (replayed.exit_code, replayed.stdout.strip()) == (0, "replayed: 3")
    assert origins(letters) == [(inbox, str(n)) for n in range(3)]
    assert origins(again) == sorted(origins(letters) * 2)
    assert len(await values_of(topics, inbox)) == 6
    assert await values_of(topics, topics.rescore_requested) == []
    assert await values_of(topics, topics.scoring_events) == []


async def test_all_sends_a_message_again_only_after_it_failed_again(topics: Topics, scoring: Scoring) -> None:
    """Each message is listed and sent once, however many letters it has; its line says whether it is open."""

    async def listed() -> list[tuple[int, str]]:
        lines = (await command(topics, scoring, "list", "--json")).stdout.splitlines()
        return [(len(one["places"]), one["state"]) for one in map(json.loads, lines)]

    await send(topics, topics.session_completed, 0, [b"one", b"two"])
    async with running_intake(topics, scoring):
        await wait_for_letters(topics, 2)
    assert await listed() == [(1, "open")] * 2

    first = await command(topics, scoring, "replay", "--all")
    second = await command(topics, scoring, "replay", "--all", "--json")
    assert (first.stdout.strip(), first.stderr) == ("replayed: 2", "")
    assert second.exit_code == 0
    assert json.loads(second.stdout) == {"replayed": 0, "replayed_before": 2, "not_replayed": []}
    assert second.stderr.strip() == "replayed before: 2; name their places to send them again"
    assert await listed() == [(1, "replayed")] * 2

    async with running_intake(topics, scoring):
        await wait_for_letters(topics, 4)

        async def have_failed() -> bool:
            return await listed() == [(2, "open")] * 2

        await wait_until(have_failed, PATIENCE_S, "both failures are noted")
    assert (await command(topics, scoring, "replay", "--all")).stdout.strip() == "replayed: 2"
    assert len(await values_of(topics, topics.session_completed)) == 6


async def test_a_letter_that_cannot_be_replayed_stops_no_other(topics: Topics, scoring: Scoring) -> None:
    """Each says why, and the end of the command says how many of how many were sent."""
    letters = topics.dead_letters
    own = origin(topics.session_completed)
    await send(topics, letters, 0, [event("forged")], origin(topics.scoring_events))
    await send(topics, letters, 0, [event("lost")])
    await send(topics, letters, 0, [b""], [*own, ("scoring-body-id", b"\x1b[2J no id")])
    await send(topics, letters, 0, [event("genuine")], own)

    replayed = await command(topics, scoring, "replay", "--all")

    assert (replayed.exit_code, replayed.stdout.strip()) == (1, "replayed: 1 of 4")
    reasons = replayed.stderr.splitlines()
    assert len(reasons) == 3, replayed.stderr
    for reason, said in zip(reasons, (topics.scoring_events, "does not say", "does not have"), strict=True):
        assert said in reason
    assert "\x1b" not in replayed.stderr
    assert await values_of(topics, topics.session_completed) == [event("genuine")]
    assert await values_of(topics, topics.scoring_events) == []


@pytest.mark.parametrize("arguments", [["list"], ["list", "--json"], ["show", "0:0"], ["show", "0:0", "--json"]])
async def test_a_hostile_letter_controls_no_terminal(topics: Topics, scoring: Scoring, arguments: list[str]) -> None:
    """Neither does it make the command fail, nor does it look like another letter."""
    hostile = "\x1b]0;title\x07\x9b2J\u202e\n0:9  forged"
    headers = [(f"scoring-{name}", hostile.encode()) for name in ("error", "error-message", "failed-at", "body-id")]
    producer = AIOKafkaProducer(bootstrap_servers=topics.bootstrap_servers)
    await producer.start()
    await producer.send_and_wait(
        topics.dead_letters, hostile.encode(), key=hostile.encode(), headers=[*headers, *origin(hostile)], partition=0
    )
    await producer.stop()

    shown = await command(topics, scoring, *arguments)

    assert (shown.exit_code, shown.stderr) == (0, "")
    assert not {*shown.stdout} & {*"\x1b\x07\x9b\u202e"}
    lines = shown.stdout.splitlines()
    at_start = [line for line in lines if line.startswith("0:9")]
    assert at_start == (["0:9  forged"] if arguments == ["show", "0:0"] else []), "only the message has lines"


async def test_a_letter_about_an_erased_session_is_not_replayed(topics: Topics, scoring: Scoring) -> None:
    """Whether its id is in the key, in valid JSON, in other spellings, or in a stored body."""
    bodies = {
        b"gone-1": b"not json",
        b"k1": event("gone-1"),
        b"k2": b'{"session_id" :\n "gone\\u002d1", "status": 1}',
        b"k3": '{"session_id": "gone-1"'.encode("utf-16"),
        b"k4": json.dumps({"message": json.dumps({"session_id": "gone-1"})}).encode(),
        b"other": event("gone-10"),
    }
    await scoring.accept(session_completed("gone-1"))
    await erase(scoring.database, scoring.leases, "gone-1", by="ada", relay_wait_s=0)
    producer = AIOKafkaProducer(bootstrap_servers=topics.bootstrap_servers)
    await producer.start()
    for key, value in bodies.items():
        await producer.send_and_wait(
            topics.dead_letters, value, key=key, headers=origin(topics.session_completed), partition=0
        )
    await producer.stop()

    replayed = await command(topics, scoring, "replay", "--all")

    assert (replayed.exit_code, replayed.stdout.strip()) == (1, "replayed: 1 of 6")
    assert replayed.stderr.count("was erased") == 5
    assert "gone-1" not in replayed.stderr
    assert await values_of(topics, topics.session_completed) == [event("gone-10")]


# --- on the database alone -----------------------------------------------------------------------------


class Sent:
    """A publisher that keeps what it acknowledges."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    async def publish(self, topic: str, messages: Sequence[Any], _timeout_s: float) -> list[bool]:
        self.messages += [(topic, *message) for message in messages]
        return [True for _ in messages]


def intake_on(scoring: Scoring, tmp_path: Path, **env: str) -> Intake:
    """Takes in events of the last minute."""
    config = tmp_path / "config.yaml"
    config.write_text("max_event_age_s: 60\n", encoding="utf-8")
    variables = {"SCORING_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1", "SCORING_CONFIG": str(config)} | env
    return Intake(load_settings(variables), scoring.inbox, cast(Any, Room()), Metrics(), clock=lambda: NOW_S)


def record(value: bytes, offset: int, headers: Any = (), *, age_s: float = 0) -> Record:
    return Record(TOPIC, 0, offset, round((NOW_S - age_s) * 1000), None, value, tuple(headers))


async def test_forged_headers_do_not_lift_the_limit_of_invalid_messages(scoring: Scoring, tmp_path: Path) -> None:
    intake = intake_on(scoring, tmp_path, SCORING_DEAD_LETTER_MAX_STREAK="3")
    cast(Any, intake)._publisher = Sent()

    await intake.store([record(b"invalid", n, origin(TOPIC)) for n in range(6)])

    assert intake.stopped_topics()[TOPIC] is not None


async def test_a_replay_is_the_original_request_and_never_stale(scoring: Scoring, tmp_path: Path) -> None:
    """Sent twice, it is still one request; other content under its headers is not a replay."""
    value, sent = b'{"session_id": "one"}', Sent()
    original = record(value, 4, age_s=600)
    await write_dead_letter(
        cast(Any, sent), "letters", scoring.database, original, InvalidMessage("not_storable", "x"), datetime.now(UTC)
    )
    [(_, key, content, headers)] = sent.messages
    letter = read_dead_letter(Record("letters", 0, 0, 1, key, content, tuple(headers)))
    for _ in range(2):
        await replay(cast(Any, sent), scoring.database, letter, topics=(TOPIC,), is_erased=lambda _: False)
    replays = [record(v, 8 + n, h, age_s=600) for n, (_, _, v, h) in enumerate(sent.messages[1:])]
    other = record(b'{"session_id": "two"}', 10, replays[0].headers, age_s=600)
    intake = intake_on(scoring, tmp_path)

    await intake.store([*replays, other])

    rows = await scoring.rows("SELECT session_id, disposition, arrivals FROM scoring_requests ORDER BY session_id")
    assert [(r["session_id"], r["disposition"], r["arrivals"]) for r in rows] == [
        ("one", "accepted", 2),
        ("two", "stale", 1),
    ]
    assert await count_open(scoring.database) == 0
    expected = Intake.decode(intake, original, replayed_from=letter.origin).request_id
    assert expected in await scoring.dispositions()

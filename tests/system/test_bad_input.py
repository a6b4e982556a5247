"""Invalid messages, sessions and answers: each has exactly one documented outcome."""

from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from infrastructure import wait_until
from processes import LARGEST_MESSAGE, PATIENCE_S, Service, assert_whole


async def wait_for_dead_letters(service: Service, count: int) -> list[Any]:
    """Wait until `count` messages are dead letters; returns all dead letters."""

    async def all_dead_lettered() -> list[Any]:
        letters = await service.dead_letters()
        return letters if len(letters) >= count else []

    letters: list[Any] = await wait_until(all_dead_lettered, PATIENCE_S, f"{count} messages are dead letters")
    return letters


async def test_a_message_of_ten_megabytes_is_stored_and_referenced(service: Service) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=service.topics.bootstrap_servers)
    topic = f"large-{service.topics.session_completed}"
    await admin.start()
    limits = {"max.message.bytes": str(LARGEST_MESSAGE)}
    await admin.create_topics([NewTopic(topic, 1, 1, topic_configs=limits)])
    await admin.close()
    env = {"SCORING_TOPIC_SESSION_COMPLETED": topic}
    service.worker(**env)
    value = b"x" * (10 * 2**20)
    service.add_session("session-1")
    after = b'{"session_id": "session-1", "event_id": "after"}'
    await service.send(topic, [(b"large", value), (b"small", b"not json"), (b"session-1", after)])
    await service.all_end(1)
    small, letter = sorted(await wait_for_dead_letters(service, 2), key=lambda found: found.value, reverse=True)
    headers = {name: text.decode() for name, text in letter.headers}
    assert (letter.value, headers["scoring-error"]) == (b"", "not_json")
    kept = await service.rows(
        "SELECT key, value FROM dead_letter_bodies WHERE body_id = $1", headers["scoring-body-id"]
    )
    assert [(r["key"], r["value"]) for r in kept] == [(b"large", value)]
    shown = await service.run("dead-letters", "show", f"{letter.partition}:{letter.offset}", "--json", **env)
    assert shown.status == 0
    assert shown.document["value"].startswith("xxx")
    assert str(len(value)) in shown.document["value"]
    replayed = await service.run("dead-letters", "replay", "--all", **env)  # one that is too large stops no other
    assert (replayed.status, replayed.stdout.strip()) == (1, "replayed: 1 of 2")
    assert (
        f"dead letter {letter.partition}:{letter.offset}: 1 messages for topic {topic} were refused" in replayed.stderr
    )
    assert small.value == b"not json"
    await assert_whole(service, ["after"])


async def test_dead_letters_are_listed_shown_and_replayed(service: Service) -> None:
    """A replay that still cannot be understood becomes a dead letter with its first origin again."""
    worker = service.worker()
    await service.send(service.topics.session_completed, [(b"k", b"not json")])
    await worker.says("intake.dead_letter")
    listed = await service.run("dead-letters", "list", "--json")
    letter = listed.document
    assert (listed.status, letter["error"], letter["key"], letter["bytes"]) == (0, "not_json", "k", 8)
    assert letter["original_topic"] == service.topics.session_completed
    (record,) = await service.dead_letters()
    headers = {name: value.decode() for name, value in record.headers}
    assert (record.key, record.value, headers["scoring-error"]) == (b"k", b"not json", "not_json")
    assert headers["scoring-error-message"]
    assert int(headers["scoring-original-timestamp"]) > 0
    assert headers["scoring-failed-at"].endswith("Z")
    shown = await service.run("dead-letters", "show", letter["place"])
    assert shown.status == 0
    assert "value: not json" in shown.stdout
    replayed = await service.run("dead-letters", "replay", letter["place"])
    assert (replayed.status, replayed.stdout.strip()) == (0, "replayed: 1")
    await wait_until(lambda: len(worker.lines("intake.dead_letter")) == 2, 60, "it is buried again")
    again = (await service.run("dead-letters", "list", "--json")).document
    assert len(again["places"]) == 2
    place = ("original_topic", "original_partition", "original_offset")
    assert [again[name] for name in place] == [letter[name] for name in place]
    assert (await service.run("dead-letters", "show", "0:999")).status == 2
    missing = await service.run("dead-letters", "list", SCORING_TOPIC_DEAD_LETTERS="nobody-made-it")
    assert missing.status == 1
    assert "there is no topic nobody-made-it" in missing.stderr


async def test_a_replay_keeps_the_request_id(service: Service) -> None:
    """Without an event id the place of the original message, which the dead letter carries, gives the id."""
    service.worker()
    service.add_session("session-1")
    value = b'{"session_id": "session-1"}'
    await service.send(service.topics.session_completed, [(b"session-1", value)])
    await service.all_end(1)
    (request,) = await service.rows("SELECT * FROM scoring_requests")
    (record,) = [r for r in await service.records(service.topics.session_completed) if r.value == value]
    headers = {
        "scoring-error": "not_storable",
        "scoring-original-topic": record.topic,
        "scoring-original-partition": str(record.partition),
        "scoring-original-offset": str(record.offset),
        "scoring-original-timestamp": str(record.timestamp),
    }
    await service.send(service.topics.dead_letters, [(record.key, record.value)], headers=headers)
    assert (await service.run("dead-letters", "replay", "--all")).stdout.strip() == "replayed: 1"

    async def arrived_again() -> bool:
        return int(await service.value("SELECT sum(arrivals) FROM scoring_requests")) == 2

    await wait_until(arrived_again, 60, "the replay has arrived")
    assert [r["request_id"] for r in await service.rows("SELECT * FROM scoring_requests")] == [request["request_id"]]
    assert await service.count("true") == 1


async def test_intake_pauses_over_max_pending_and_resumes(service: Service) -> None:
    intake = service.worker("--only", "intake,relay", SCORING_MAX_PENDING="10")
    events = await service.announce(*service.add_sessions(40))
    await intake.says("intake.paused")
    stored = await service.count("true")
    assert 10 < stored < 40
    assert 'tarsy_scoring_intake_paused{bound="pending"} 1.0\n' in (await intake.get("/metrics"))[1]
    service.worker("--only", "judge")
    await intake.says("intake.resumed")
    await service.all_end(40)
    await assert_whole(service, events)


async def test_scores_of_a_paused_chain_do_not_stop_the_requests_of_other_chains(service: Service) -> None:
    """The intake runs alone, so it reads the pause itself."""
    assert (await service.run("pause", "--chain", "billing")).status == 0
    intake = service.worker("--only", "intake,relay", SCORING_MAX_PENDING="50")
    service.worker("--only", "judge")
    await service.announce(*service.add_sessions(60, "held"), chain_id="billing")
    await service.scores_reach(60, "chain_id = 'billing'")
    await service.announce(*service.add_sessions(30, "other"), chain_id="kubernetes")
    await service.scores_reach(30, "chain_id = 'kubernetes' AND status = 'completed'")
    assert intake.lines("intake.paused") == []

    assert (await service.run("resume", "--chain", "billing")).status == 0
    await service.all_end(90)


async def test_times_that_cannot_be_stop_nobody(service: Service) -> None:
    """In a session file, an event, a reference and a record's timestamp; and beside them a row that nobody can read."""
    worker = service.worker()
    service.add_session("zero", completed_at="0001-01-01T00:00:00+08:00", started_at="0001-01-01T00:00:00Z")
    service.add_sessions(2)
    await service.announce("zero", "session-0000", completed_at="0001-01-01T00:00:00Z")
    await service.all_end(2)
    reference = {"text": "The disk was full.", "provided_at": "9999-12-31T23:59:59-08:00"}
    await service.ask_again("zero", "again", reference=reference)
    await service.all_end(3)
    await service.announce("session-0001", labels={"team": "a"})
    await service.all_end(4)

    await service.rows("""UPDATE sessions SET labels = ('{"n": ' || repeat('7', 5000) || '}')::jsonb
        WHERE session_id = 'session-0001'""")
    await service.ask_again("session-0001", "unreadable")
    await service.ask_again("session-0000", "beside-it")
    await service.all_end(6)

    failed = await service.rows("SELECT session_id, error_message FROM session_scores WHERE status <> 'completed'")
    assert [r["session_id"] for r in failed] == ["session-0001"]
    assert "cannot be read" in failed[0]["error_message"]
    ended = await service.rows("SELECT session_id FROM sessions WHERE completed_at IS NOT NULL")
    assert "zero" not in {r["session_id"] for r in ended}
    assert "completed_at of a session" in {line["of"] for line in worker.lines("time.ignored")}

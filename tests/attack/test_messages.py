"""Attacks by producers on Kafka: messages that cannot be read, and dead letters with forged origins."""

import json
import re
from contextlib import suppress
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from holding import MOST_MEMORY_KIB, Attack, peak_memory_kib
from target import TEXTS, Target

from infrastructure import wait_until
from processes import LARGEST_MESSAGE, PATIENCE_S, Process

pytestmark = pytest.mark.asyncio(loop_scope="session")

NEIGHBOURS = 12
FLOODED, FLOOD = "flooded", 50
ORIGIN = [f"scoring-original-{name}" for name in ("topic", "partition", "offset", "timestamp")]
LARGE = [(b"large", b'{"session_id": "' + b"a" * (15 * 2**20)), (b"nested", b'{"session_id": ' * 100_000)]


async def send_hostile_messages(target: Target, topic: str) -> None:
    for case in TEXTS["messages"].values():
        headers = dict(case.get("headers", {}))
        if "origin" in case:
            headers |= dict(zip(ORIGIN, [target.fill(case["origin"]), "0", "1", "1700000000000"], strict=True))
        key, value = case.get("key", "k").encode("latin-1"), target.fill(case["value"]).encode("latin-1")
        await target.service.send(topic, [(key, value)], headers)


async def list_topics(target: Target, *, with_large_messages: bool = False) -> set[str]:
    """Names of all topics. Args: with_large_messages: let the broker take more than intake reads."""
    admin = AIOKafkaAdminClient(bootstrap_servers=target.service.topics.bootstrap_servers)
    await admin.start()
    try:
        if with_large_messages:
            limit = {"max.message.bytes": str(LARGEST_MESSAGE)}
            inputs = target.service.topics.session_completed
            await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, inputs, configs=limit)])
        return set(await admin.list_topics())
    finally:
        await admin.close()


def event_id_of(value: bytes) -> Any:
    with suppress(ValueError, AttributeError):
        return json.loads(value).get("event_id")


async def test_producers_reach_neither_other_topics_nor_terminals(
    target: Target, worker: Process, attack: Attack
) -> None:
    """Hostile messages become dead letters, their neighbours are scored, and a replay goes to the inputs alone."""
    service, topics = target.service, target.service.topics
    before = await list_topics(target, with_large_messages=True)
    neighbours = service.add_sessions(NEIGHBOURS, "beside-messages")
    await service.announce(*neighbours[: NEIGHBOURS // 2])
    await send_hostile_messages(target, topics.session_completed)
    await service.send(topics.session_completed, LARGE)
    await service.announce(*neighbours[NEIGHBOURS // 2 :])
    expected = len(TEXTS["messages"]) + len(LARGE)

    async def buried() -> Any:
        letters = await service.dead_letters()
        return letters if len(letters) >= expected else None

    with attack("messages") as holds:
        await service.scores_reach(NEIGHBOURS, "session_id LIKE 'beside-messages-%' AND status = 'completed'")
        letters = await wait_until(buried, PATIENCE_S, "all are dead letters")
        holds("each message is one dead letter", len(letters) == expected, len(letters))
        place = next(f"{letter.partition}:{letter.offset}" for letter in letters if b"PWNED" in (letter.key or b""))
        await send_hostile_messages(target, topics.dead_letters)
        for command in (["list"], ["list", "--json"], ["show", place], ["replay", "--all"]):
            ended = await service.run("dead-letters", *command)
            said = ended.stdout + ended.stderr
            controls = {c for c in said if not (c.isprintable() or c == "\n")}
            holds(f"{command}: harmless to a terminal", ended.status in (0, 1) and said and not controls, controls)
            holds(f"{command}: no traceback", "Traceback" not in said, said[-300:])
        holds("letters were replayed", re.search("replayed: [1-9]", ended.stdout), ended.stdout)

        await target.published()
        # The records first: other scores of this installation still emit events.
        values = [record.value for record in await service.records(topics.scoring_events)]
        ours = {str(row["event_id"]) for row in await service.rows("SELECT event_id FROM scoring_events")}
        foreign = [value for value in values if event_id_of(value) not in ours]
        holds("no foreign record among the scoring events", not foreign, foreign)
        named = {target.fill(case["origin"]) for case in TEXTS["messages"].values() if "origin" in case}
        new = (await list_topics(target) - before) & named  # other installations may use the same brokers
        holds("no new topic", not new, new)
        # One letter stood in the dead letters, whose writers may name an input. The other was a session's event.
        rescores = await service.records(topics.rescore_requested)
        holds("no event becomes a re-score", len(rescores) <= 1, rescores)

        service.add_session("after-messages")
        await service.announce("after-messages")
        await service.score_becomes("after-messages", "completed")
        holds("intake goes on", worker.status is None)


async def test_one_session_fills_neither_memory_nor_pages(target: Target, worker: Process, attack: Attack) -> None:
    """50 events with 0.9 MB of labels, and 40 references that are dear to clean, all for one session."""
    service, topics = target.service, target.service.topics
    await list_topics(target, with_large_messages=True)
    service.add_sessions(NEIGHBOURS, "beside-flood")
    service.add_session(FLOODED)
    labels = [{f"{number}-{label:04}": "v" * 900 for label in range(1_000)} for number in range(FLOOD)]
    events = [{"session_id": FLOODED, "event_id": f"e{n}", "labels": labels[n]} for n in range(FLOOD)]
    await service.send(topics.session_completed, [(b"k", json.dumps(event).encode()) for event in events])
    texts = [f"{number} " + "the password is " * 1_200 for number in range(40)]
    asked = [{"session_id": FLOODED, "reference": {"text": text}} for text in texts]
    await service.send(topics.rescore_requested, [(b"k", json.dumps(request).encode()) for request in asked])
    await service.announce(*(f"beside-flood-{number:04}" for number in range(NEIGHBOURS)))

    with attack("one session") as holds:
        # Intake has not read all references by then, and needs not.
        await service.scores_reach(NEIGHBOURS, "session_id LIKE 'beside-flood-%' AND status = 'completed'")
        await service.score_becomes(FLOODED, "completed")
        holds("the worker answers", (await worker.get("/healthz"))[0] == 200)
        labels_bytes = await service.value(f"SELECT length(labels::text) FROM sessions WHERE session_id = '{FLOODED}'")
        holds("labels of the session", labels_bytes <= 60_000, labels_bytes)
        references = await service.value(f"SELECT count(*) FROM session_references WHERE session_id = '{FLOODED}'")
        holds("references of the session", references <= 20, references)
        for path in ("/", f"/sessions/{FLOODED}", f"/api/v1/scoring/sessions?q={FLOODED}"):
            answer = await target.read(path)
            holds(f"{path}: small", answer.status == 200 and len(answer.text) < 500_000, len(answer.text))
        for process in (worker, target.guarded):
            peak_kib = peak_memory_kib(process)
            holds(f"memory of {process.name}", peak_kib < MOST_MEMORY_KIB, f"{peak_kib} KiB")

"""Rolling figures through kills, a takeover and a crashed broker: in the end they equal a count by hand."""

import asyncio
import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from infrastructure import Kafka, wait_until
from processes import Process, Service
from rolling import CHAINS, STORE, random_score, windows_by_hand
from tarsy_scoring.outbox.outbox import EMIT

SCORES, BATCH = 300, 25
# A refresh every minute replaces lost marks; twice that for a busy machine.
SETTLED_WITHIN_S = 120


class Scores:
    """Ends scores: the row and its event in one transaction, from where the relay publishes it."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._chance = random.Random(20261121)

    async def end(self, number: int) -> None:
        for _ in range(number // BATCH):
            now = datetime.now(UTC)
            scores = [
                random_score(self._chance, now - timedelta(hours=2) * self._chance.random()) for _ in range(BATCH)
            ]
            await self._service.rows(STORE, json.dumps(scores))
            types = ["scoring.failed" if s["error_kind"] else "scoring.completed" for s in scores]
            events = [
                {"score_id": s["score_id"], "type": t, "extra": _extra(s)} for s, t in zip(scores, types, strict=True)
            ]
            await self._service.rows(EMIT.replace("{schema}.", ""), json.dumps(events))


def _extra(score: dict[str, Any]) -> dict[str, Any]:
    """The fields that the event of this score has beyond those of all events."""
    if score["error_kind"]:
        return {"status": score["status"], "error_kind": score["error_kind"], "error_message": "-"}
    empty = dict.fromkeys(("outcome", "judge_fingerprint", "alert_type"))
    shared = {"total_score": score["total_score"], "failure_tags": score["failure_tags"], "usage": score["usage"] or {}}
    return (
        empty | shared | {"criteria": "c", "criteria_hash": "h", "flags": [], "labels": {}, "score_triggered_by": "a"}
    )


@pytest.mark.slow
@pytest.mark.xdist_group("infrastructure")
async def test_figures_are_right_whatever_happens(service: Service, kafka: Kafka) -> None:
    if kafka.name == "tansu":
        pytest.skip("Faust's assignments need Apache Kafka")
    topic = f"insights-of-{service.topics.group}"
    service.worker("--only", "relay")
    scores = Scores(service)

    async def start() -> Process:
        process = service.command("insights", SCORING_CREATE_TOPICS="true", SCORING_TOPIC_SCORING_INSIGHTS=topic)
        await process.ready()
        return process

    async def newest() -> dict[Any, Any]:
        found = [json.loads(record.value) for record in await service.records(topic)]
        return {m["chain_id"]: m["windows"] for m in sorted(found, key=lambda m: m["timestamp_us"])}

    async def are_right() -> bool:
        seen = await newest()
        rows = [dict(r) for r in await service.rows("SELECT * FROM session_scores")]
        for row in rows:
            row |= {name: json.loads(row[name] or "null") for name in ("failure_tags", "usage")}
        ends = {chain: {name: w["end"] for name, w in windows.items()} for chain, windows in seen.items()}
        return set(seen) == set(CHAINS) and seen == {c: windows_by_hand(rows, c, ends[c]) for c in CHAINS}

    first = await start()
    async with asyncio.TaskGroup() as together:
        together.create_task(scores.end(SCORES // 3))
        await wait_until(newest, 60, "the first figures")
        standby = await start()
        await first.kill()
    await wait_until(are_right, SETTLED_WITHIN_S, "the standby has taken over")
    async with asyncio.TaskGroup() as together:
        together.create_task(scores.end(SCORES // 3))
        if kafka.survives_restart:
            await kafka.kill()
            await kafka.start()
    await wait_until(are_right, SETTLED_WITHIN_S, "the broker is back")
    await scores.end(SCORES // 3)
    await wait_until(are_right, SETTLED_WITHIN_S, "events are consumed again")

    assert await standby.stop() == 0
    assert not [p.name for p in service.processes if "Traceback" in p.log]

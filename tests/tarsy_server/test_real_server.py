"""
Beside upstream's own server: its sessions are announced, scored and written back, and it shows the scores.

Every other test uses a stand-in for TARSy's database. Here the tables, the sessions and every answer are TARSy's own.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import tool_server
import yaml
from upstream import ALERT_TYPE, CHAIN, FAILS, Tarsy

from builders import connected
from infrastructure import wait_until
from processes import PATIENCE_S, Process, Service
from tarsy_grants import READER, WRITER
from tarsy_scoring.tarsy.reviews import CATCH_UP_S
from tarsy_scoring_lab.scripted_judge import MODEL, Fault

SESSIONS = 5


def start(service: Service, tarsy: Tarsy) -> tuple[Process, Process]:
    """Start bridge and worker with the variables of `docs/bridge.md`."""
    service.env |= {"SCORING_TIMELINE_DATABASE_URL": tarsy.urls[READER]}
    writes_back = {"SCORING_WRITE_BACK_DATABASE_URL": tarsy.urls[WRITER]}
    bridge = service.command("bridge")
    return bridge, service.worker(SCORING_TIMELINE_SOURCE="tarsy-db", **writes_back)


@asynccontextmanager
async def dashboard(tarsy: Tarsy) -> AsyncIterator[list[dict[str, Any]]]:
    """What a page of TARSy's list hears over its WebSocket."""
    heard: list[dict[str, Any]] = []
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{tarsy.base_url}/api/v1/ws") as socket,
        asyncio.TaskGroup() as tasks,
    ):

        async def listen() -> None:
            async for message in socket:
                heard.append(json.loads(message.data))

        listening = tasks.create_task(listen())
        await socket.send_json({"action": "subscribe", "channel": "sessions"})
        await wait_until(lambda: any(m["type"] == "subscription.confirmed" for m in heard), PATIENCE_S, "it listens")
        yield heard
        listening.cancel()


async def shown_scores(tarsy: Tarsy) -> dict[str, int | None]:
    """The number beside each session in TARSy's list."""
    return {s["id"]: s["latest_score"] for s in (await tarsy.get("sessions", page_size="100"))["sessions"]}


async def test_the_server_shows_the_scores_of_its_sessions(tarsy: Tarsy, service: Service) -> None:
    """Each ended session is announced once; the completed ones are scored, and TARSy reads total and id as ours."""
    bridge, worker = start(service, tarsy)
    await asyncio.gather(bridge.ready(), worker.ready())
    async with dashboard(tarsy) as heard:
        completed = [await tarsy.alert(f"checkout-{n} restarts") for n in range(SESSIONS)]
        failed = await tarsy.alert(f"checkout restarts; {FAILS}")
        for session_id in completed:
            await tarsy.ends(session_id, "completed")
        await tarsy.ends(failed, "failed")
        scores = {session_id: await service.score_becomes(session_id, "completed") for session_id in completed}
        totals = {session_id: score["total_score"] for session_id, score in scores.items()} | {failed: None}

        async def all_are_shown() -> bool:
            return await shown_scores(tarsy) == totals

        await wait_until(all_are_shown, PATIENCE_S, f"TARSy's list shows {totals}")
        await wait_until(
            lambda: {m["session_id"] for m in heard if m["type"] == "session.score_updated"} == set(completed),
            *(PATIENCE_S, "an open page of TARSy hears of each score"),
        )

    announced = [json.loads(r.value) for r in await service.records(service.topics.session_completed)]
    assert sorted(e["session_id"] for e in announced) == sorted(totals)
    assert {(e["alert_type"], e["chain_id"]) for e in announced} == {(ALERT_TYPE, CHAIN)}
    statuses = {e["session_id"]: e["status"] for e in announced}
    assert statuses == dict.fromkeys(completed, "completed") | {failed: "failed"}
    [event_id] = [e["event_id"] for e in announced if e["session_id"] == failed]
    assert await service.disposition(event_id) == "status_not_scored"

    for session_id, score in scores.items():
        shown = await tarsy.get(f"sessions/{session_id}/score")
        assert (shown["score_id"], shown["total_score"]) == (str(score["score_id"]), score["total_score"])
        assert shown["score_triggered_by"] == "tarsy-scoring:auto"
        assert (shown["score_analysis"], shown["prompt_hash"]) == (score["score_analysis"], score["criteria_hash"])
        stages = (await tarsy.get(f"sessions/{session_id}"))["stages"]
        assert [(s["stage_type"], s["status"]) for s in stages][-1] == ("scoring", "completed")
        assert shown["stage_id"] == stages[-1]["id"]
    listed = await tarsy.get("sessions", scoring_status="scored", page_size="100")
    assert {s["id"] for s in listed["sessions"]} == set(completed)

    async with connected(tarsy.urls["tarsy"]) as connection:
        ours = "SELECT count(*) FROM events WHERE payload->>'stage_type' = 'scoring'"
        assert await connection.fetchval(ours) == 0, "TARSy deletes no row that is written after a session's events"
    assert [await process.stop() for process in (worker, bridge)] == [0, 0]


async def test_the_judge_reads_what_the_agents_of_the_server_did(tarsy: Tarsy, service: Service) -> None:
    """Alert, call and result of a tool, conclusion and the tokens of the agent arrive from TARSy's own tables."""
    bridge, worker = start(service, tarsy)
    session_id = await tarsy.alert("checkout-7 restarts; planted-in-the-alert")
    await tarsy.ends(session_id, "completed")
    await bridge.ready()
    score = await service.score_becomes(session_id, "completed")
    assert [await process.stop() for process in (worker, bridge)] == [0, 0]

    asked = json.dumps(list(service.judge.requests))
    wanted = ("planted-in-the-alert", str(tool_server.TOOL["name"]), tool_server.RESULT, "compared the pods")
    assert [text for text in wanted if text not in asked] == []
    metrics, shown = json.loads(score["interaction"]), await tarsy.get(f"sessions/{session_id}")
    assert (metrics["total_commands"], metrics["error_count"]) == (1, 0)
    assert metrics["agent_tokens"] == {"input": shown["input_tokens"], "output": shown["output_tokens"]}


async def test_a_review_given_in_the_server_is_a_label(tarsy: Tarsy, service: Service) -> None:
    """Long before the next pass is due: TARSy notifies. A changed review replaces it, a reopened one withdraws it."""
    bridge, worker = start(service, tarsy)
    session_id = await tarsy.alert("checkout-1 restarts")
    await tarsy.ends(session_id, "completed")
    await bridge.ready()
    await service.score_becomes(session_id, "completed")
    feedback = {"investigation_feedback": "it was the disk"}
    steps = (
        ("complete", {"quality_rating": "inaccurate", **feedback}, [("wrong", "alice", "it was the disk")]),
        ("update_feedback", {"quality_rating": "accurate"}, [("correct", "alice", "it was the disk")]),
        ("reopen", {}, []),
    )
    for action, given, wanted in steps:
        await tarsy.review(session_id, action, **given)

        async def is_followed(wanted: list[tuple[str, ...]] = wanted) -> bool:
            async with connected(service.database_url) as connection:
                rows = await connection.fetch("SELECT outcome, labelled_by, reason FROM score_labels")
            return list(map(tuple, rows)) == wanted

        await wait_until(is_followed, CATCH_UP_S / 2, f"the label follows {action}")
    assert [await process.stop() for process in (worker, bridge)] == [0, 0]


@pytest.mark.parametrize("tarsy", ["remembers"], indirect=True)
async def test_a_lesson_reaches_the_next_investigation(tarsy: Tarsy, service: Service) -> None:
    """With its own scoring off: the session shows what was learned, and its search gives it to the next one's agent."""
    provider = {"base_url": service.judge.base_url, "model": MODEL}
    memory = {"embedding_provider": "main", "model": "words", "dimensions": 768}
    config = service.folder / "config.yaml"
    config.write_text(yaml.safe_dump({"providers": {"main": provider}, "defaults": {"memory": memory}}))
    service.env["SCORING_CONFIG"] = str(config)
    lesson = {"content": "checkout-7 restarts: redis full", "category": "semantic", "valence": "neutral"}
    reply = {"create": [lesson], "reinforce": [], "deprecate": []}
    service.judge.script(Fault(kind="reply", turn="memory", times=1, content=json.dumps(reply)))
    bridge, worker = start(service, tarsy)
    await asyncio.gather(bridge.ready(), worker.ready())
    bookmark = "SELECT 1 FROM write_back_bookmark WHERE follower = 'memory'"
    await wait_until(lambda: service.rows(bookmark), PATIENCE_S, "lessons are looked for")
    first = await tarsy.alert("checkout-7 restarts")
    await tarsy.ends(first, "completed")
    score = await service.score_becomes(first, "completed")

    [shown] = await wait_until(
        lambda: tarsy.get(f"sessions/{first}/memories"), PATIENCE_S, "TARSy shows what was learned from the session"
    )
    second = await tarsy.alert("checkout-7 restarts")
    await tarsy.ends(second, "completed")

    assert {name: shown[name] for name in lesson} == lesson
    assert (shown["chain_id"], shown["alert_type"], shown["confidence"]) == (CHAIN, ALERT_TYPE, 0.7)
    assert [m["id"] for m in await tarsy.get(f"sessions/{second}/injected-memories")] == [shown["id"]]
    kinds = await service.rows("SELECT kind FROM judge_turns WHERE score_id = $1 ORDER BY ordinal", score["score_id"])
    assert kinds[-1]["kind"] == "memory"
    assert [await process.stop() for process in (worker, bridge)] == [0, 0]

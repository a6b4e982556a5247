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
import tool_server
from upstream import ALERT_TYPE, CHAIN, FAILS, Tarsy

from builders import connected
from infrastructure import wait_until
from processes import PATIENCE_S, Process, Service
from tarsy_grants import READER, WRITER

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

"""What waits for the service's own limits and database is not booked as the time of an attempt."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attempting import a_timeline, open_service, watched
from fakes import ANALYSIS, MISSING_TOOLS, FakeJudge, FakeSessions
from infrastructure import wait_until
from tarsy_scoring.judge.ask.client import create_clients
from tarsy_scoring.limits.fleet import Limits
from tarsy_scoring.postgres import database as database_module
from tarsy_scoring.postgres.database import Connection, DatabaseAway
from tarsy_scoring.scoring.worker import Worker
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring_lab.scripted_judge import ScriptedJudge

ONE_AT_A_TIME = """
providers:
  main: {{base_url: "{base_url}", api_key_env: null, model: judge-1, max_concurrency: 1}}
"""
SLOTS, SCORES, ATTEMPT_S, TURN_S = 16, 24, 6.0, 0.25


async def test_more_slots_than_a_provider_takes_calls(database_url: str, judge: ScriptedJudge, tmp_path: Path) -> None:
    """Scores wait in their slots for longer than an attempt may take; all complete, with one analysis each."""
    judge.latency_s = TURN_S
    config = tmp_path / "config.yaml"
    config.write_text(ONE_AT_A_TIME.format(base_url=judge.base_url), "utf-8")
    environ = {"SCORING_SLOTS": str(SLOTS), "SCORING_ATTEMPT_TIMEOUT_S": str(ATTEMPT_S), "SCORING_MAX_ATTEMPTS": "1"}
    async with open_service(database_url, SCORING_CONFIG=str(config), **environ) as service:
        sessions = {f"s{n}": replace(a_timeline(), session_id=f"s{n}") for n in range(SCORES)}
        for session_id in sessions:
            await service.request(session_id)
        clients = create_clients(service.settings, {})
        source = watched(FakeSessions(**sessions))
        worker = Worker(
            settings=service.settings,
            leases=service.leases,
            scorer=service.scorer(clients, source=source),
            source=source,
            metrics=Metrics(),
            limits=Limits(service.database, service.settings),
        )
        stopping = asyncio.Event()
        running = asyncio.create_task(worker.run(stopping))
        rows = "SELECT status, count(*)::int, max(spent_s) AS spent_s FROM session_scores GROUP BY status"

        async def all_have_ended() -> dict[str, int] | None:
            found = {r["status"]: r["count"] for r in await service.database.fetch(rows)}
            return None if found.keys() & {"pending", "in_progress"} else found

        ended = await wait_until(all_have_ended, 60, "all scores have ended")
        stopping.set()
        await running
        [row] = await service.database.fetch(rows)
        analyses = await service.database.fetch("SELECT count(*)::int AS n FROM judge_turns WHERE kind = 'analysis'")
        for client in clients.values():
            await client.close()

    assert ended == {"completed": SCORES}
    assert (judge.calls, analyses[0]["n"]) == (2 * SCORES, SCORES)
    assert SCORES * 2 * TURN_S > ATTEMPT_S > row["spent_s"]


async def test_a_database_that_is_away_in_mid_attempt(
    database_url: str, monkeypatch: pytest.MonkeyPatch, let_pass: Callable[[float], None]
) -> None:
    """It is away for longer than attempt and deadline allow, before the second question; the score completes."""
    async with open_service(database_url) as service:
        await service.request()
        claimed = await service.claim()
        once, tries = service.database.once, 0

        async def away_for_hours(work: Callable[[Connection], Awaitable[Any]]) -> Any:
            nonlocal tries
            if judge.kinds == ["analysis"] and tries < 3:
                tries += 1
                let_pass(4000)
                raise DatabaseAway("away")
            return await once(work)

        judge = FakeJudge(ANALYSIS, MISSING_TOOLS)
        monkeypatch.setattr(database_module, "RETRY_MIN_S", 0.01)
        monkeypatch.setattr(service.database, "once", away_for_hours)
        finished = await service.attempt(claimed, judge)
        [row] = await service.database.fetch("SELECT status, flags, spent_s FROM session_scores")

    assert tries == 3
    assert (finished.outcome, row["status"], row["flags"]) == ("completed", "completed", [])
    assert row["spent_s"] < service.settings.attempt_timeout_s

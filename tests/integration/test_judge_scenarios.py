"""Every way an endpoint may answer, played by the scripted judge, and how each ends the attempt."""

import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tarsy_scoring.config.load import load_settings
from tarsy_scoring.events import SOURCE_COMPLETED
from tarsy_scoring.judge.ask.client import JudgeClient
from tarsy_scoring.limits.fleet import Limits
from tarsy_scoring.queue.admission import Request
from tarsy_scoring.scoring.attempt import Finished, Scorer
from tarsy_scoring.scoring.watched_source import WatchedSource
from tarsy_scoring.timeline.files import SessionFiles
from tarsy_scoring.wiring import Parts, open_parts
from tarsy_scoring_lab.scripted_judge import Fault, ScriptedJudge

SESSION = "demo-oom-checkout"
CONFIG = Path(__file__).with_suffix(".yaml").read_text("utf-8")
MAKE_DUE = "UPDATE session_scores SET next_attempt_at = now()"
Row = dict[str, Any]


@dataclass
class Service:
    """The parts of one worker, driven attempt by attempt; waits of the client are recorded, not slept."""

    parts: Parts
    scorer: Scorer
    judge: ScriptedJudge
    slept_s: list[float] = field(default_factory=list)

    async def attempt(self, chain: str, *faults: Fault) -> tuple[Finished, Row]:
        self.judge.script(*faults)
        request = Request(uuid.uuid4(), SESSION, SOURCE_COMPLETED, session_status="completed", chain_id=chain)
        await self.parts.inbox.accept([request])
        (claimed,) = await self.parts.leases.claim_due(uuid.uuid4(), 1, 60)
        finished = await self.scorer.attempt(claimed)
        row = await self.parts.reader.newest_score(SESSION)
        return finished, row


@pytest.fixture
async def service(database_url: str, judge: ScriptedJudge, tmp_path: Path) -> AsyncIterator[Service]:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.format(base_url=judge.base_url), "utf-8")
    env = {"SCORING_CONFIG": str(config), "SCORING_EVENTS_CHOOSE_CHAINS": "true"}
    settings = load_settings({"SCORING_DATABASE_URL": database_url} | env)
    slept_s: list[float] = []

    async def sleep(seconds: float) -> None:
        slept_s.append(seconds)

    client = JudgeClient("main", settings.config.providers["main"], None, sleep=sleep)
    source = SessionFiles(Path(str(files("tarsy_scoring_lab") / "examples")))
    async with open_parts(settings) as parts:
        limits = Limits(parts.database, settings)
        scorer = Scorer(
            settings=settings,
            leases=parts.leases,
            store=parts.store,
            source=WatchedSource(source, parts.metrics),
            registry=parts.registry,
            clients={"main": client},
            metrics=parts.metrics,
            limits=limits,
        )
        yield Service(parts, scorer, judge, slept_s)
    await client.close()


SCENARIOS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


def scenarios(name: str) -> dict[str, Any]:
    """The arguments of a parametrised test, one set per scenario."""
    return {"argvalues": SCENARIOS[name].values(), "ids": SCENARIOS[name].keys()}


def faults_of(orders: list[Row]) -> list[Fault]:
    in_3_s = format_datetime(datetime.now(UTC) + timedelta(seconds=3), usegmt=True)
    return [Fault(**json.loads(json.dumps(order).replace("{in 3 s}", in_3_s))) for order in orders]


@pytest.mark.parametrize(("chain", "faults", "flags"), **scenarios("completed"))
async def test_recoverable_faults_end_in_a_score(
    service: Service, chain: str, faults: list[Row], flags: list[str]
) -> None:
    finished, row = await service.attempt(chain, *faults_of(faults))

    assert (finished.outcome, row["error_message"]) == ("completed", None)
    assert row["total_score"] is not None
    assert sorted(row["flags"]) == flags
    assert row["judge_fingerprint"]


async def test_reasoning_inside_an_answer_enters_no_result(service: Service) -> None:
    """It is neither analysis nor tool, and no draft is the total; the stored turn keeps it."""
    thought = "<think>\n1. **Check the record**: see E99\n\n55\n</think>\n\n"
    first, second = "The logs show it (E2).\n\n67", "1. **heap-profiler**: would show the leak"
    replies = {"analysis": thought + first, "missing_tools": thought + second}
    finished, row = await service.attempt("free", *(Fault("reply", turn=t, content=c) for t, c in replies.items()))

    assert (finished.outcome, row["total_score"], row["score_analysis"]) == ("completed", 67, "The logs show it (E2).")
    turns = await service.parts.store.stored_turns(row["score_id"])
    assert [stored.turn.reply for stored in turns] == list(replies.values())
    tools = "SELECT array_agg(tool_name) FROM {schema}.score_missing_tools"
    database = service.parts.database
    assert await database.once(lambda c: c.fetchval(database.sql(tools))) == ["heap-profiler"]


@pytest.mark.parametrize(("chain", "faults", "kind"), **scenarios("failed"))
async def test_permanent_faults_fail_the_score_without_a_total(
    service: Service, chain: str, faults: list[Row], kind: str
) -> None:
    finished, row = await service.attempt(chain, *faults_of(faults))

    assert (finished.outcome, row["status"], row["error_kind"], row["total_score"]) == ("failed", "failed", kind, None)
    assert row["error_message"]


@pytest.mark.parametrize(("faults", "waiting_for", "burned"), **scenarios("put_back"))
async def test_temporary_faults_put_the_score_back(
    service: Service, faults: list[Row], waiting_for: str, burned: int
) -> None:
    began = datetime.now(UTC)
    finished, row = await service.attempt("free", *faults_of(faults))

    assert finished.outcome == "put_back"
    assert (row["status"], row["waiting_reason"], row["attempts_burned"]) == ("pending", waiting_for, burned)
    assert row["next_attempt_at"] > began + timedelta(seconds=1)


async def test_a_wrong_key_stops_the_next_score_before_it_calls(service: Service) -> None:
    """The circuit opens at once for the whole fleet, so no call is made with that key."""
    await service.attempt("free", Fault(kind="status", status=401))
    calls = service.judge.calls
    await service.parts.database.once(lambda c: c.execute(MAKE_DUE))

    (claimed,) = await service.parts.leases.claim_due(uuid.uuid4(), 1, 60)
    finished = await service.scorer.attempt(claimed)

    assert (finished.outcome, finished.fields["waiting_for"]) == ("put_back", "key")
    assert service.judge.calls == calls

"""Second opinions of a worker with two providers, each with a scripted judge, on a real database."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from fakes import FakeJudge
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.events import SOURCE_COMPLETED
from tarsy_scoring.judge.ask.client import JudgeClient
from tarsy_scoring.judge.verdict import Question, Turn
from tarsy_scoring.queue.admission import Request
from tarsy_scoring.scoring.attempt import Scorer
from tarsy_scoring.scoring.watched_source import WatchedSource
from tarsy_scoring.timeline.files import SessionFiles
from tarsy_scoring.wiring import Parts, open_parts
from tarsy_scoring_lab.scripted_judge import Fault, ScriptedJudge

SESSION = "demo-oom-checkout"
CONFIG = Path(__file__).with_suffix(".yaml").read_text("utf-8")


def says(total: int, outcome: str, **fault: Any) -> Fault:
    return Fault(
        kind="reply", turn="analysis", content=f"It looks at E1 only.\n\nOutcome: {outcome}\n\n{total}", **fault
    )


@dataclass
class Judged:
    """A worker's parts and the judges of its providers."""

    parts: Parts
    scorer: Scorer
    main: ScriptedJudge
    spare: ScriptedJudge

    async def score(self, chain: str = "asked", **fields: Any) -> dict[str, Any]:
        """Score the session once and return the score's document."""
        source = fields.pop("source", SOURCE_COMPLETED)
        request = Request(uuid.uuid4(), SESSION, source, session_status="completed", chain_id=chain, **fields)
        await self.parts.inbox.accept([request])
        (claimed,) = await self.parts.leases.claim_due(uuid.uuid4(), 1, 60)
        assert (await self.scorer.attempt(claimed)).outcome == "completed"
        document = await self.parts.reader.score(claimed.score_id)
        assert document is not None
        return document


@pytest.fixture
async def judged(database_url: str, judge: ScriptedJudge, tmp_path: Path) -> AsyncIterator[Judged]:
    async with ScriptedJudge() as spare:
        config = tmp_path / "config.yaml"
        config.write_text(CONFIG.format(main=judge.base_url, spare=spare.base_url), "utf-8")
        env = {"SCORING_CONFIG": str(config), "SCORING_EVENTS_CHOOSE_CHAINS": "true"}
        settings = load_settings({"SCORING_DATABASE_URL": database_url} | env)

        async def sleep(seconds: float) -> None:
            """Retries follow at once."""

        clients = {n: JudgeClient(n, p, None, sleep=sleep) for n, p in settings.config.providers.items()}
        source = SessionFiles(Path(str(files("tarsy_scoring_lab") / "examples")))
        async with open_parts(settings) as parts:
            scorer = Scorer(
                settings=settings,
                leases=parts.leases,
                store=parts.store,
                source=WatchedSource(source, parts.metrics),
                registry=parts.registry,
                clients=clients,
                metrics=parts.metrics,
                limits=parts.limits,
            )
            yield Judged(parts, scorer, judge, spare)
        for client in clients.values():
            await client.close()


async def test_a_total_near_an_edge_is_confirmed(judged: Judged) -> None:
    """The turn is stored with its cost; the total, the analysis and the fingerprint are those of the first judge."""
    judged.main.script(says(58, "partial"))
    judged.spare.script(says(55, "partial"))

    score = await judged.score()

    assert score["second_opinion"] == {
        "provider": "spare", "total_score": 55, "outcome": "partial", "agrees": True, "reason": None,
    }  # fmt: skip
    assert (score["total_score"], score["judge_outcome"]) == (58, "partial")
    assert [(t["kind"], t["provider"]) for t in score["turns"]] == [
        ("analysis", "main"), ("missing_tools", "main"), ("second_opinion", "spare"),
    ]  # fmt: skip
    assert score["usage"]["cost_usd"] == score["turns"][2]["cost_usd"] > 0
    assert "second_opinion_disagrees" not in score["flags"]


async def test_a_disagreement_is_flagged_and_the_first_total_counts(judged: Judged) -> None:
    judged.main.script(says(62, "correct"))
    judged.spare.script(says(30, "wrong"))

    score = await judged.score()

    assert (score["total_score"], score["judge_outcome"]) == (62, "correct")
    assert (score["second_opinion"]["total_score"], score["second_opinion"]["agrees"]) == (30, False)
    assert "second_opinion_disagrees" in score["flags"]


@pytest.mark.parametrize(
    ("chain", "total", "purpose"),
    [("asked", 80, "production"), ("alone", 58, "production"), ("never", 58, "production"), ("asked", 58, "anchor")],
    ids=["far-from-an-edge", "no-other-provider", "not-wanted", "measures-the-judge"],
)
async def test_no_second_judge_is_asked(judged: Judged, chain: str, total: int, purpose: str) -> None:
    judged.main.script(says(total, "correct" if total >= 60 else "partial"))

    score = await judged.score(chain, purpose=purpose)

    assert (score["second_opinion"], judged.spare.calls) == (None, 0)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        pytest.param(Fault(kind="status"), "judge_unavailable", id="down"),
        pytest.param(Fault(kind="status", status=401), "key", id="wrong-key"),
        pytest.param(Fault(kind="no_score"), "no_score_in_answer", id="no-total"),
    ],
)
async def test_a_second_judge_that_gives_no_total_never_costs_the_score(
    judged: Judged, fault: Fault, reason: str
) -> None:
    judged.main.script(says(58, "partial"))
    judged.spare.script(fault)

    score = await judged.score()

    assert (score["status"], score["total_score"], score["flags"]) == ("completed", 58, [])
    assert score["second_opinion"] == {
        "provider": "spare", "total_score": None, "outcome": None, "agrees": None, "reason": reason,
    }  # fmt: skip


@pytest.mark.parametrize(("chain", "reason"), [("poor", "budget"), ("asked", "pause")])
async def test_a_second_judge_that_must_not_be_called_is_not_waited_for(
    judged: Judged, chain: str, reason: str
) -> None:
    judged.main.script(says(58, "partial"))
    if reason == "pause":
        await judged.parts.limits.pause(None, "spare", by="alice", reason="prices")
        await judged.parts.limits.refresh()

    score = await judged.score(chain)

    assert (score["total_score"], score["second_opinion"]["reason"]) == (58, reason)
    assert judged.spare.calls == 0


class Busy(FakeJudge):
    """A judge without a free slot."""

    async def ask(self, question: Question, **_: Any) -> Turn:
        await asyncio.Event().wait()
        raise AssertionError


async def test_waiting_for_a_second_judge_ends_with_the_time_of_the_attempt(
    judged: Judged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also time that otherwise does not count, such as waiting for a free slot. Every paid turn is stored."""
    judged.main.script(says(58, "partial"))
    judged.scorer.clients = {**judged.scorer.clients, "spare": Busy()}
    monkeypatch.setattr(Scorer, "_left_s", lambda *_: 0.0)

    score = await judged.score()

    assert (score["total_score"], score["second_opinion"]["reason"]) == (58, "attempt_timed_out")
    assert [t["kind"] for t in score["turns"]] == ["analysis", "missing_tools"]

"""The layers without a model, in a worker's attempt: stored, published, and never in the judge's way."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attempting import Service, a_timeline, open_service
from fakes import ANALYSIS, MISSING_TOOLS, FakeJudge
from tarsy_scoring.errors import JudgeRejectedRequest
from tarsy_scoring.timeline.model import Event, Evidence, Timeline, ToolCall

YAML = Path(__file__).with_suffix(".yaml").read_text("utf-8")
# Two calls, the second of which failed.
CALLS = (
    Event("e1", 1, "llm_tool_call", "completed", "3 pods", ToolCall("kubectl", "get_pods", "{}", False)),
    Event("e2", 2, "llm_tool_call", "failed", "no such pod", ToolCall("kubectl", "logs", '{"pod": "x"}', True)),
)


@pytest.fixture
async def service(database_url: str, tmp_path: Path) -> AsyncIterator[Service]:
    config = tmp_path / "scoring.yaml"
    config.write_text(YAML, encoding="utf-8")
    async with open_service(database_url, SCORING_CONFIG=str(config)) as opened:
        yield opened


def with_calls(*events: Event, **changes: Any) -> Timeline:
    plain = a_timeline()
    stage = plain.stages[0]
    execution = replace(stage.executions[0], events=events)
    return replace(plain, stages=(replace(stage, executions=(execution,)),), **changes)


async def scored(
    service: Service, judge: FakeJudge, timeline: Timeline, chain_id: str = "k", **settings: Any
) -> dict[str, Any]:
    await service.request(chain_id=chain_id)
    claimed = await service.claim()
    await service.attempt(claimed, judge, replace(timeline, chain_id=chain_id), **settings)
    return await service.score(claimed.score_id)


async def test_metrics_gates_and_judge_are_stored_side_by_side(service: Service) -> None:
    """Each layer is reported separately; gates and total decide the outcome together."""
    score = await scored(service, FakeJudge(ANALYSIS, MISSING_TOOLS), with_calls(*CALLS))

    assert score["total_score"] == 62
    interaction = score["interaction"]
    assert (interaction["total_commands"], interaction["error_count"], interaction["error_rate"]) == (2, 1, 0.5)
    assert interaction["by_tool"]["kubectl.logs"]["error_count"] == 1
    assert [(g["gate_type"], g["passed"]) for g in score["gates"]] == [
        ("tool_called", True),
        ("max_tool_calls", False),
        ("final_analysis_contains", True),
    ]
    assert (score["gates_passed"], score["gates_total"]) == (2, 3)
    assert score["outcome"] == "fail"
    assert "few calls" in score["outcome_reason"]
    assert (score["pass_threshold"], score["judge_passed"]) == (60, True)
    assert score["layers"] == {"interaction": None, "gates": "fail", "judge": "pass"}
    # gates 2/3, total 0.62, interaction the mean of 1 - 0.5, 1 of 2 and 2 of 2
    assert score["composite_score"] == pytest.approx(100 * (0.5 * 2 / 3 + 0.3 * 0.62 + 0.2 * (0.5 + 0.5 + 1) / 3))
    events = await service.events(score["score_id"])
    phases = [e["phase"] for e in events if "phase" in e]
    assert phases.index("evaluating_gates") == phases.index("analyzing_methodology") - 1
    last = events[-1]
    assert (last["outcome"], last["gates_passed"], last["gates_total"]) == ("fail", 2, 3)
    assert last["composite_score"] == score["composite_score"]
    assert (last["interaction"]["total_commands"], "by_tool" in last["interaction"]) == (2, False)


async def test_a_chain_without_gates_and_threshold_decides_nothing(service: Service) -> None:
    """There is no outcome and no phase of gates; interaction metrics are stored all the same."""
    score = await scored(service, FakeJudge(ANALYSIS, MISSING_TOOLS), with_calls(*CALLS), "plain")

    assert (score["outcome"], score["outcome_reason"], score["composite_score"]) == (None, None, None)
    assert (score["pass_threshold"], score["judge_passed"]) == (None, None)
    assert score["layers"] == {"interaction": None, "gates": None, "judge": None}
    assert (score["gates"], score["gates_passed"], score["gates_total"]) == ([], 0, 0)
    assert score["interaction"]["total_commands"] == 2
    assert all(e.get("phase") != "evaluating_gates" for e in await service.events(score["score_id"]))


async def test_without_a_judge_gates_decide_alone(service: Service) -> None:
    """There is no total and no fingerprint, and still an outcome."""
    score = await scored(service, FakeJudge(), with_calls(*CALLS), "judgeless")

    assert (score["status"], score["total_score"], score["judge_fingerprint"]) == ("completed", None, None)
    assert score["outcome"] == "fail"
    assert score["turns"] == []


async def test_a_threshold_without_a_judge_decides_nothing(service: Service) -> None:
    """There is no total to compare with it."""
    score = await scored(service, FakeJudge(), with_calls(*CALLS), "unjudged")

    assert (score["status"], score["outcome"], score["judge_passed"]) == ("completed", None, None)


async def test_metrics_and_gates_survive_a_judge_that_fails(service: Service) -> None:
    """A failed score keeps the results of the layers that need no judge."""
    score = await scored(service, FakeJudge(JudgeRejectedRequest("400")), with_calls(*CALLS))

    assert (score["status"], score["total_score"], score["outcome"]) == ("failed", None, None)
    assert score["interaction"]["error_count"] == 1
    assert (score["gates_passed"], score["gates_total"]) == (2, 3)


LACKING = Evidence({"events": 3}, {"events": 2}, ("event e3",))


async def test_missing_evidence_passes_no_gate(service: Service) -> None:
    """Gates are not evaluated on incomplete evidence; metrics are stored with it."""
    score = await scored(service, FakeJudge(), a_timeline(evidence=LACKING), max_attempts=1)

    assert score["error_kind"] == "evidence_incomplete"
    assert (score["gates"], score["gates_passed"], score["gates_total"]) == ([], None, None)
    assert score["interaction"]["total_commands"] == 0
    assert score["interaction"]["error_rate"] is None

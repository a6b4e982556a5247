"""Which evidence counts as missing, and when too much is missing for a score."""

from dataclasses import replace

import pytest
from sessions import call, event, execution, of_events, stage, timeline

from tarsy_scoring.errors import EvidenceIncomplete, NothingToJudge
from tarsy_scoring.timeline.evidence import check_evidence, take_stock
from tarsy_scoring.timeline.model import Evidence, Stage, Timeline

THINKING = event("llm_thinking", "hm")

# name: stages, keyword arguments of take_stock, what is missing, its share of what is declared
CASES: dict[str, tuple[list[Stage], dict[str, object], tuple[str, ...], float]] = {
    "all there": ([stage(execution(THINKING, call("x", number=2)))], {}, (), 0),
    "agents": (
        [stage(execution(THINKING), expected_agent_count=3)],
        {},
        ("stage 1 (diagnosis): declares 3 agents, 1 could be read",),
        2 / 5,
    ),
    "sub-agents are not declared": (
        [stage(execution(THINKING), execution(THINKING, name="sub", parent_execution_id="execution-investigator"),
               expected_agent_count=1)],
        {},
        (),
        0,
    ),
    "agents that were never started": (
        [stage(execution(THINKING), expected_agent_count=3, status="cancelled")],
        {},
        (),
        0,
    ),
    "parent": (
        [stage(execution(THINKING, name="sub", parent_execution_id="gone"))],
        {},
        ("stage 1 (diagnosis), sub: its parent execution gone could not be read",),
        1 / 4,
    ),
    "event being written": (
        [stage(execution(replace(THINKING, status="streaming")))],
        {},
        ("stage 1 (diagnosis), investigator: llm_thinking event-llm_thinking-1 was not written to its end",),
        1 / 3,
    ),
    "step that broke": ([stage(execution(replace(THINKING, status="failed", content="")))], {}, (), 0),
    "call that failed": ([stage(execution(call("no such pod", is_error=True, status="failed")))], {}, (), 0),
    "result": (
        [stage(execution(call("")))],
        {"unread_results": frozenset({"event-llm_tool_call-1"})},
        ("stage 1 (diagnosis), investigator: result of kubectl.get_pods (event-llm_tool_call-1) could not be read",),
        1 / 4,
    ),
    "calls without events": (
        [stage(execution(call("x")))],
        {"declared_calls": {"execution-investigator": 3}},
        ("stage 1 (diagnosis), investigator: 2 recorded tool calls have no event",),
        4 / 8,
    ),
    "loss": ([], {"losses": [("stages", "stages[0] could not be read")]}, ("stages[0] could not be read",), 1),
    "no final analysis": ([stage(execution(THINKING), status="failed")], {}, (), 0),
    "empty final analysis": (
        [stage(execution(event("final_analysis", " ")))],
        {},
        ("final analysis: written, but empty",),
        1 / 4,
    ),
    "hidden stages": (
        [stage(execution(replace(THINKING, status="streaming")), stage_type="chat", expected_agent_count=5)],
        {},
        (),
        0,
    ),
}  # fmt: skip


def test_missing_is_declared_or_read_with_an_error() -> None:
    """An agent's omission is never missing evidence; each missing item is named."""
    for name, (stages, known, missing, share) in CASES.items():
        evidence = take_stock(stages, None, **known)  # type: ignore[arg-type]
        assert evidence.missing == missing, name
        assert evidence.missing_share == pytest.approx(share), name


def test_both_counts_have_every_kind() -> None:
    evidence = take_stock([stage(execution(THINKING, call("x")))], "because of that")

    counted = {"stages": 1, "executions": 1, "events": 2, "results": 1, "final_analysis": 1}
    assert evidence.expected == evidence.read == counted


@pytest.mark.parametrize("may_change", [True, False], ids=["source may change", "source is final"])
def test_more_missing_than_tolerated_is_not_judged(may_change: bool) -> None:
    """The error names the missing items, and whether reading again can help."""
    evidence = Evidence({"events": 10}, {"events": 8}, ("event 3", "event 4"))
    session = of_events(THINKING, evidence=evidence)

    check_evidence(session, 0.2, may_change=may_change)
    with pytest.raises(EvidenceIncomplete, match="event 3; event 4") as caught:
        check_evidence(session, 0.19, may_change=may_change)

    assert caught.value.missing == ["event 3", "event 4"]
    assert caught.value.permanent is not may_change


@pytest.mark.parametrize(
    ("session", "why"),
    [
        pytest.param(timeline(), "no stage that the judge sees has an event", id="no stage"),
        pytest.param(timeline(stage(execution())), "no stage that the judge sees has an event", id="no event"),
        pytest.param(timeline(stage(execution(THINKING), stage_type="chat")), r".*chat \(1\)", id="chats alone"),
        pytest.param(timeline(stage(execution(THINKING), stage_type="x")), r".*x \(1\)", id="hidden events alone"),
    ],
)
def test_a_session_without_an_investigation_is_nothing_to_judge(session: Timeline, why: str) -> None:
    with pytest.raises(NothingToJudge, match=f"has nothing to judge: {why}"):
        check_evidence(session, 1.0, may_change=True)


def test_a_session_whose_events_are_all_missing_is_incomplete() -> None:
    """Whatever share may be missing: the source declares that there is something to judge."""
    stages = (stage(expected_agent_count=2),)

    with pytest.raises(EvidenceIncomplete, match="declares 2 agents") as caught:
        check_evidence(timeline(*stages, evidence=take_stock(stages, None)), 1.0, may_change=True)

    assert caught.value.missing

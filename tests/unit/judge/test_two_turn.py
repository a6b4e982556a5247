"""The conversation with the judge: what is asked, in which order, and what becomes of every kind of answer."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from scripted import CONTEXT, CUT, TOOL_CALLS, ScriptedJudge, answer
from tables import table
from tarsy_scoring.errors import (
    AnswerCut,
    ContentFiltered,
    EmptyAnswer,
    JudgeUnavailable,
    LeaseLost,
    NoScoreInAnswer,
    RateLimited,
    Refused,
    ScoringError,
)
from tarsy_scoring.judge.assess import Plan, assess
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.judge.strategies.two_turn import REPAIR_PROMPT
from tarsy_scoring.judge.verdict import MissingTool, Turn, Verdict

CRITERIA = load_criteria().get("investigation-methodology")

BREAKDOWN = "Logical Flow: 15/25\nConsistency: 17/25\nTool Relevance: 15/25\nSynthesis Quality: 20/25"
ANALYSIS = f"However, it failed to look at the logs (E17).\n\n{BREAKDOWN}"
TOOLS = "1. **read-file**: the script was never seen"

SCORED = answer(f"{ANALYSIS}\n\n67")
NAMED = answer(TOOLS)


async def judge(
    judge: ScriptedJudge, *, max_reminders: int = 2, is_final: Callable[[Exception], bool] = lambda error: True
) -> Verdict:
    return await assess(CONTEXT, CRITERIA, judge, Plan(max_reminders=max_reminders), is_final=is_final)


async def test_two_turns_make_a_verdict() -> None:
    """The total with its analysis and breakdown, then the missing tools."""
    scripted = ScriptedJudge(SCORED, NAMED)

    verdict = await judge(scripted)

    assert scripted.kinds == ["analysis", "missing_tools"]
    assert verdict.total_score == 67
    assert verdict.score_analysis == ANALYSIS
    assert verdict.score_breakdown == {
        "logical_flow": 15,
        "consistency": 17,
        "tool_relevance": 15,
        "synthesis_quality": 20,
    }
    assert verdict.missing_tools_analysis == TOOLS
    assert verdict.missing_tools == [MissingTool("read-file", "the script was never seen")]
    assert verdict.flags == set()
    assert verdict.total_turn == SCORED


async def test_the_conversation_only_grows() -> None:
    """Every request begins with the whole of the one before, so the provider's prompt cache serves it."""
    scripted = ScriptedJudge(
        answer(f"{ANALYSIS}\n\nno total"), answer("hmm"), answer("70"), answer(f"{BREAKDOWN}\n67"), NAMED
    )

    await judge(scripted)

    assert scripted.kinds == ["analysis", "reminder", "reminder", "repair", "missing_tools"]
    for earlier, later in pairwise(scripted.conversations):
        assert later[: len(earlier)] == earlier
        assert [m.role for m in later[len(earlier) :]] == ["assistant", "user"]
    assert [m.content for m in scripted.conversations[-1] if m.role == "assistant"] == [
        f"{ANALYSIS}\n\nno total",
        "hmm",
        "70",
        f"{BREAKDOWN}\n67",
    ]
    assert [m.content for m in scripted.conversations[-1][2:] if m.role == "user"] == [
        CRITERIA.reminder_prompt,
        CRITERIA.reminder_prompt,
        REPAIR_PROMPT,
        CRITERIA.follow_up_prompt,
    ]


async def test_a_reminded_total_keeps_the_analysis_of_the_first_full_reply() -> None:
    """The reminder asks for the total alone; the analysis and its breakdown are already there."""
    scripted = ScriptedJudge(answer(f"{ANALYSIS}\n\nOverall adequate."), answer("67"), NAMED)

    verdict = await judge(scripted)

    assert verdict.total_score == 67
    assert verdict.score_analysis == f"{ANALYSIS}\n\nOverall adequate."
    assert verdict.score_breakdown is not None
    assert verdict.total_turn is not None
    assert verdict.total_turn.kind == "reminder"


@table
async def test_without_a_total_there_is_no_score_after_the_reminders(max_reminders: int) -> None:
    """Exactly so many reminders are paid for, then it is said that there is no score."""
    scripted = ScriptedJudge(*[answer("Adequate.")] * (max_reminders + 1))

    with pytest.raises(NoScoreInAnswer, match=f"after {max_reminders} reminders"):
        await judge(scripted, max_reminders=max_reminders)

    assert scripted.kinds == ["analysis", *["reminder"] * max_reminders]


async def test_an_answer_of_tool_calls_alone_is_reminded() -> None:
    scripted = ScriptedJudge(TOOL_CALLS, SCORED, NAMED)

    verdict = await judge(scripted)

    assert scripted.kinds == ["analysis", "reminder", "missing_tools"]
    assert (verdict.total_score, verdict.score_analysis) == (67, ANALYSIS)
    assert all(m.content.strip() for m in scripted.conversations[-1])


async def test_a_cut_answer_is_asked_once_more_with_a_larger_limit() -> None:
    """The same conversation again; the cut text is no part of it, and its last line no score."""
    scripted = ScriptedJudge(answer(f"{ANALYSIS}\n\n66", finish_reason="length"), SCORED, NAMED)

    verdict = await judge(scripted)

    assert scripted.kinds == ["analysis", "analysis", "missing_tools"]
    assert scripted.factors == [1, 2, 1]
    assert scripted.conversations[0] == scripted.conversations[1]
    assert f"{ANALYSIS}\n\n66" not in [m.content for m in scripted.conversations[-1]]
    assert verdict.total_score == 67


@pytest.mark.parametrize(
    ("script", "error"),
    [
        pytest.param([CUT, CUT], AnswerCut, id="cut_twice"),
        pytest.param([replace(CUT, reply="")] * 2, AnswerCut, id="thinking_used_the_limit_twice"),
        pytest.param([answer(f"{ANALYSIS}\n67", finish_reason="length")] * 2, AnswerCut, id="cut_after_a_number"),
        pytest.param([answer("hmm"), CUT, CUT], AnswerCut, id="reminder_cut_twice"),
        pytest.param([answer(refusal="I cannot")], Refused, id="refusal"),
        pytest.param([answer("67", refusal="I cannot")], Refused, id="refusal_beside_a_number"),
        pytest.param([answer("67", finish_reason="refusal")], Refused, id="refusal_as_finish_reason"),
        pytest.param([answer(refusal="I", finish_reason="length")], Refused, id="refusal_that_is_cut"),
        pytest.param([answer("67", finish_reason="content_filter")], ContentFiltered, id="filtered"),
        pytest.param([CUT, answer(refusal="I cannot")], Refused, id="refusal_after_a_cut"),
        pytest.param([answer()], EmptyAnswer, id="empty"),
        pytest.param([answer(" \n")], EmptyAnswer, id="blank"),
        pytest.param([answer("hmm"), answer()], EmptyAnswer, id="empty_reminder"),
        pytest.param([TOOL_CALLS] * 3, NoScoreInAnswer, id="tool_calls_for_ever"),
        pytest.param([JudgeUnavailable("away")], JudgeUnavailable, id="unavailable"),
        pytest.param([RateLimited("wait", 60)], RateLimited, id="rate_limited"),
        pytest.param([LeaseLost("gone")], LeaseLost, id="lease_lost"),
    ],
)
async def test_a_failure_is_never_a_number(script: list[Turn | ScoringError], error: type[ScoringError]) -> None:
    """Each way to fail is its own error, with no turn more than it takes to know."""
    scripted = ScriptedJudge(*script)
    with pytest.raises(error):
        await judge(scripted)
    assert scripted.script == []


async def test_a_breakdown_that_does_not_add_up_is_repaired() -> None:
    """One turn to restate both; the total of the last valid answer counts, the first analysis stays."""
    repaired = BREAKDOWN.replace("20/25", "18/25")
    scripted = ScriptedJudge(answer(f"{ANALYSIS}\n\n70"), answer(f"{repaired}\n\n65"), NAMED)

    verdict = await judge(scripted)

    assert scripted.kinds == ["analysis", "repair", "missing_tools"]
    assert verdict.total_score == 65
    assert verdict.score_breakdown is not None
    assert sum(verdict.score_breakdown.values()) == 65
    assert verdict.score_analysis == ANALYSIS
    assert verdict.total_turn is not None
    assert verdict.total_turn.kind == "repair"
    assert verdict.flags == set()


@pytest.mark.parametrize(
    ("repair", "total"),
    [
        pytest.param(answer(f"{BREAKDOWN}\n\n72"), 72, id="still_wrong"),
        pytest.param(answer("71"), 71, id="another_total_alone"),
        pytest.param(answer("I stand by it."), 70, id="no_total"),
        pytest.param(TOOL_CALLS, 70, id="tool_calls"),
        pytest.param(answer(refusal="no"), 70, id="refused"),
        pytest.param(JudgeUnavailable("away"), 70, id="unavailable_for_good"),
    ],
)
async def test_what_cannot_be_repaired_is_flagged_and_never_clamped(repair: Turn | ScoringError, total: int) -> None:
    """The score is the judge's last valid total; the flag says that its parts say otherwise."""
    scripted = ScriptedJudge(answer(f"{ANALYSIS}\n\n70"), repair, NAMED)

    verdict = await judge(scripted)

    assert scripted.kinds == ["analysis", "repair", "missing_tools"]
    assert verdict.total_score == total
    assert verdict.flags == {"breakdown_mismatch"}


async def test_a_total_that_fits_the_breakdown_after_all_repairs_it() -> None:
    """The judge may keep its parts and correct the sum alone."""
    verdict = await judge(ScriptedJudge(answer(f"{ANALYSIS}\n\n70"), answer("Total: 67"), NAMED))
    assert (verdict.total_score, verdict.flags) == (67, set())


async def test_half_points_may_be_rounded_into_the_total() -> None:
    """A total is a whole number; 67.5 points are no contradiction to 68."""
    scripted = ScriptedJudge(answer(f"{ANALYSIS.replace('20/25', '20.5/25')}\n\n68"), NAMED)
    assert (await judge(scripted)).flags == set()
    assert scripted.kinds == ["analysis", "missing_tools"]


async def test_an_analysis_without_a_breakdown_needs_no_repair() -> None:
    """The breakdown is stored if the analysis states it; it is not asked for again."""
    scripted = ScriptedJudge(answer("Weak.\n\nLogical Flow: 15/25\n\n67"), NAMED)
    verdict = await judge(scripted)
    assert scripted.kinds == ["analysis", "missing_tools"]
    assert verdict.score_breakdown is None


async def test_a_repair_that_may_succeed_later_is_raised() -> None:
    """While attempts are left, the score waits for a better moment; the stored turns are not paid for again."""
    scripted = ScriptedJudge(answer(f"{ANALYSIS}\n\n70"), JudgeUnavailable("away"))
    with pytest.raises(JudgeUnavailable):
        await judge(scripted, is_final=lambda error: False)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param([answer(refusal="no")], id="refused"),
        pytest.param([answer(finish_reason="content_filter")], id="filtered"),
        pytest.param([answer()], id="empty"),
        pytest.param([TOOL_CALLS], id="tool_calls"),
        pytest.param([CUT, CUT], id="cut_twice"),
        pytest.param([JudgeUnavailable("away")], id="unavailable_for_good"),
        pytest.param([RateLimited("wait", 60)], id="rate_limited_for_good"),
    ],
)
async def test_missing_tools_that_fail_for_good_cost_a_flag_and_not_the_score(
    script: list[Turn | ScoringError],
) -> None:
    """A valid total is never thrown away for the report behind it."""
    verdict = await judge(ScriptedJudge(SCORED, *script))
    assert verdict.total_score == 67
    assert verdict.flags == {"missing_tools_unavailable"}
    assert verdict.missing_tools_analysis is None
    assert verdict.missing_tools == []


async def test_missing_tools_that_may_succeed_later_are_raised() -> None:
    """The caller decides what is the last word; until then the error is its own."""
    seen: list[Exception] = []

    def is_final(error: Exception) -> bool:
        seen.append(error)
        return False

    error = JudgeUnavailable("away")
    with pytest.raises(JudgeUnavailable):
        await judge(ScriptedJudge(SCORED, error), is_final=is_final)
    assert seen == [error]


@pytest.mark.parametrize("script", [[SCORED], [answer(f"{ANALYSIS}\n\n70")]], ids=["missing_tools", "repair"])
async def test_a_lost_lease_is_never_a_flag(script: list[Turn]) -> None:
    with pytest.raises(LeaseLost):
        await judge(ScriptedJudge(*script, LeaseLost("gone")))


async def test_none_missing_is_a_report_without_rows() -> None:
    """ "None" is an answer and no failure."""
    verdict = await judge(ScriptedJudge(SCORED, answer("No critical missing tools identified.\n")))
    assert verdict.missing_tools_analysis == "No critical missing tools identified."
    assert verdict.missing_tools == []
    assert verdict.flags == set()

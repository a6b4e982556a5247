"""The strategy `two_turn`: its questions in order, and how each kind of answer is read."""

from collections.abc import Callable

import pytest

from scripted import CONTEXT, CUT, TOOL_CALLS, ScriptedJudge, answer
from tarsy_scoring.config.chains import ChainSettings
from tarsy_scoring.errors import JudgeUnavailable, LeaseLost
from tarsy_scoring.judge.assess import assess
from tarsy_scoring.judge.criteria import load_criteria
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
    return await assess(CONTEXT, CRITERIA, judge, ChainSettings(max_reminders=max_reminders), is_final=is_final)


async def test_two_turns_make_a_verdict() -> None:
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


async def test_a_reminded_total_keeps_the_analysis_of_the_first_full_reply() -> None:
    scripted = ScriptedJudge(answer(f"{ANALYSIS}\n\nOverall adequate."), answer("67"), NAMED)

    verdict = await judge(scripted)

    assert verdict.total_score == 67
    assert verdict.score_analysis == f"{ANALYSIS}\n\nOverall adequate."
    assert verdict.score_breakdown is not None
    assert verdict.total_turn is not None
    assert verdict.total_turn.kind == "reminder"


async def test_a_breakdown_that_does_not_add_up_is_repaired() -> None:
    """One turn restates both; the last valid total counts, and the first analysis stays."""
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


async def test_a_breakdown_that_stays_wrong_is_flagged_and_never_clamped() -> None:
    for repair, total in (f"{BREAKDOWN}\n\n72", 72), ("71", 71), ("I stand by it.", 70):
        scripted = ScriptedJudge(answer(f"{ANALYSIS}\n\n70"), answer(repair), NAMED)

        verdict = await judge(scripted)

        assert scripted.kinds == ["analysis", "repair", "missing_tools"]
        assert (verdict.total_score, verdict.flags) == (total, {"breakdown_mismatch"})


async def test_half_points_may_be_rounded_into_the_total() -> None:
    verdict = await judge(ScriptedJudge(answer(f"{ANALYSIS.replace('20/25', '20.5/25')}\n\n68"), NAMED))
    assert verdict.flags == set()


async def test_an_analysis_without_a_breakdown_needs_no_repair() -> None:
    scripted = ScriptedJudge(answer("Weak.\n\nLogical Flow: 15/25\n\n67"), NAMED)
    verdict = await judge(scripted)
    assert scripted.kinds == ["analysis", "missing_tools"]
    assert verdict.score_breakdown is None


async def test_missing_tools_that_fail_for_good_cost_a_flag_and_not_the_score() -> None:
    for script in ([answer(refusal="no")], [TOOL_CALLS], [CUT, CUT], [JudgeUnavailable("away")]):
        verdict = await judge(ScriptedJudge(SCORED, *script))
        assert (verdict.total_score, verdict.flags) == (67, {"missing_tools_unavailable"})
        assert (verdict.missing_tools_analysis, verdict.missing_tools) == (None, [])


@pytest.mark.parametrize("script", [[SCORED], [answer(f"{ANALYSIS}\n\n70")]], ids=["missing_tools", "repair"])
async def test_a_lost_lease_is_never_a_flag(script: list[Turn]) -> None:
    with pytest.raises(LeaseLost):
        await judge(ScriptedJudge(*script, LeaseLost("gone")))

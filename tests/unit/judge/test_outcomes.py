"""The outcome that a judge states, and the repair of a total that its outcome does not allow."""

from typing import Any

import pytest

from scripted import CONTEXT, CUT, TOOL_CALLS, ScriptedJudge, ScriptStep, answer, answer_json, structured_reply
from tables import table
from tarsy_scoring.config.chains import ChainSettings
from tarsy_scoring.errors import JudgeUnavailable, WaitFor
from tarsy_scoring.judge.assess import assess
from tarsy_scoring.judge.criteria import Criteria, load_criteria
from tarsy_scoring.judge.read.extraction import extract_outcome
from tarsy_scoring.judge.strategies import structured, two_turn
from tarsy_scoring.judge.verdict import Turn, Verdict

BANDS = {"correct": (60, 100), "partial": (35, 59), "wrong": (0, 34)}
IN_TEXT = load_criteria().get("investigation")
_DEFINITION = {
    "name": "outcome-as-json",
    "strategy": "structured",
    "system_prompt": "Judge.",
    "prompt": "{{ALERT_DATA}} {{SESSION_CONVERSATION}} {{OUTPUT_SCHEMA}}",
    "bands": BANDS,
}
_CATEGORIES = [{"id": "logical_flow", "max_points": 50}, {"id": "consistency", "max_points": 50}]
AS_JSON = Criteria.model_validate(_DEFINITION)
WITH_BREAKDOWN = Criteria.model_validate(_DEFINITION | {"categories": _CATEGORIES})
ANALYSIS = "The cause was seen in the log (E17), but not verified."
TOOLS = answer("No critical missing tools identified.")


def in_text(total: int, outcome: str | None) -> Turn:
    stated = f"Outcome: {outcome}\n\n" if outcome else ""
    return answer(f"{ANALYSIS}\n\n{stated}{total}")


def as_json(total: int, outcome: str, **changes: Any) -> Turn:
    return answer_json(structured_reply(total_score=total, outcome=outcome, **changes))


def fits(total: int, outcome: str | None) -> bool:
    return outcome is None or BANDS[outcome][0] <= total <= BANDS[outcome][1]


async def judge(scripted: ScriptedJudge, criteria: Criteria, *, is_final: bool = True, reminders: int = 2) -> Verdict:
    return await assess(
        CONTEXT, criteria, scripted, ChainSettings(max_reminders=reminders), is_final=lambda _: is_final
    )


@table
def test_an_outcome_in_a_quotation_states_none(quotation: str) -> None:
    assert extract_outcome(f"**Outcome: wrong**\n17\n\nThe session ends with:\n{quotation}", BANDS) == "wrong"
    assert extract_outcome(f"Fine.\n\n{quotation}", BANDS) is None


# --- every outcome with every total --------------------------------------------------------------------


@table
async def test_all_and_only_contradictions_in_text_are_repaired_once(outcome: str) -> None:
    """
    One repair turn for each total outside the band of its outcome and none for any other.

    The judge repeats its contradiction: the score is flagged, and the total stays as it was.
    """
    for total in range(101):
        said = in_text(total, outcome)
        repairs = [] if fits(total, outcome) else [said]
        scripted = ScriptedJudge(said, *repairs, TOOLS)

        verdict = await judge(scripted, IN_TEXT)

        assert scripted.kinds == ["analysis", *["repair"] * len(repairs), "missing_tools"]
        assert (verdict.total_score, verdict.judge_outcome, verdict.samples) == (total, outcome, [total])
        assert verdict.flags == ({"outcome_score_mismatch"} if repairs else set())


# --- no outcome ----------------------------------------------------------------------------------------

NO_OUTCOME = in_text(78, None)


@table
async def test_the_reminder_asks_for_an_outcome(replies: list[str], total: int, outcome: str | None) -> None:
    """After the last reminder the total stands, flagged; a reminder that fails costs no score."""
    for first in (NO_OUTCOME, answer(f"{ANALYSIS}\n\nOutcome: 正确\n\n78")):
        scripted = ScriptedJudge(first, *map(answer, replies), TOOLS)

        verdict = await judge(scripted, IN_TEXT)

        assert scripted.kinds == ["analysis", *["reminder"] * len(replies), "missing_tools"]
        assert (verdict.total_score, verdict.judge_outcome) == (total, outcome)
        assert verdict.flags == (set() if outcome else {"outcome_missing"})
        assert verdict.score_analysis.startswith(ANALYSIS)
        assert "Outcome: partial (35-59)" in scripted.conversations[1][-1].content


async def test_a_total_without_an_outcome_survives_a_reminder_that_fails() -> None:
    for name, failed in FAILED_REPAIRS.items():
        verdict = await judge(ScriptedJudge(NO_OUTCOME, *failed, TOOLS), IN_TEXT, reminders=1)
        assert (verdict.total_score, verdict.judge_outcome, verdict.flags) == (78, None, {"outcome_missing"}), name
    assert (await judge(ScriptedJudge(NO_OUTCOME, TOOLS), IN_TEXT, reminders=0)).flags == {"outcome_missing"}
    with pytest.raises(JudgeUnavailable):
        await judge(ScriptedJudge(NO_OUTCOME, JudgeUnavailable("away")), IN_TEXT, is_final=False)


# --- the repair ----------------------------------------------------------------------------------------


@table
async def test_the_last_valid_statement_counts(restated: str, total: int, outcome: str, is_flagged: bool) -> None:
    """A restated total or outcome replaces the earlier one; the code never chooses for the judge."""
    scripted = ScriptedJudge(in_text(50, "correct"), answer(restated), TOOLS)

    verdict = await judge(scripted, IN_TEXT)

    assert (verdict.total_score, verdict.judge_outcome) == (total, outcome)
    assert verdict.flags == ({"outcome_score_mismatch"} if is_flagged else set())
    assert verdict.score_analysis.startswith(ANALYSIS)
    is_restated = restated.endswith(str(total))
    assert verdict.total_turn.kind == ("repair" if is_restated else "analysis")


JSON_REPAIRS: dict[str, tuple[Turn, int, str, bool]] = {
    "another total": (as_json(62, "correct"), 62, "correct", False),
    "another outcome": (as_json(50, "partial"), 50, "partial", False),
    "still wrong": (as_json(20, "correct"), 20, "correct", True),
    "not all of it": (answer('{"total_score": 62}'), 50, "correct", True),
    "no such outcome": (as_json(62, "brilliant"), 50, "correct", True),
    "no JSON": (answer("62"), 50, "correct", True),
    "another analysis": (as_json(50, "partial", score_reasoning="New."), 50, "partial", False),
}


async def test_the_last_valid_json_counts() -> None:
    """Numbers come from the last answer that fits as a whole; reasons, tools and approaches from the first."""
    for name, (repair, total, outcome, is_flagged) in JSON_REPAIRS.items():
        verdict = await judge(ScriptedJudge(as_json(50, "correct"), repair), AS_JSON)

        assert (verdict.total_score, verdict.judge_outcome) == (total, outcome), name
        assert verdict.flags == ({"outcome_score_mismatch"} if is_flagged else set()), name
        assert verdict.total_turn.kind == ("analysis" if (total, outcome) == (50, "correct") else "repair"), name
        assert verdict.score_analysis == structured_reply()["score_reasoning"]
        assert len(verdict.missing_tools) == len(verdict.alternative_approaches) == 1


FAILED_REPAIRS: dict[str, list[ScriptStep]] = {
    "refused": [answer(refusal="no")],
    "filtered": [answer(finish_reason="content_filter")],
    "empty": [answer()],
    "tool_calls": [TOOL_CALLS],
    "cut_twice": [CUT, CUT],
    "unavailable_for_good": [JudgeUnavailable("away")],
    "rate_limited_for_good": [WaitFor("wait", 60, "rate_limit")],
}


async def test_a_repair_that_fails_for_good_costs_a_flag_only() -> None:
    """The verdict keeps the total and everything else that the judge gave before."""
    for name, failed in FAILED_REPAIRS.items():
        scripted = ScriptedJudge(in_text(50, "correct"), *failed, TOOLS)

        verdict = await judge(scripted, IN_TEXT)

        assert scripted.script == [], name
        assert (verdict.total_score, verdict.judge_outcome) == (50, "correct")
        assert verdict.total_turn.kind == "analysis"
        assert verdict.flags == {"outcome_score_mismatch"}


async def test_a_repair_that_may_succeed_later_is_raised() -> None:
    for error in (JudgeUnavailable("away"), WaitFor("wait", 60, "rate_limit")):
        with pytest.raises(type(error)):
            await judge(ScriptedJudge(as_json(50, "correct"), error), AS_JSON, is_final=False)


@pytest.mark.parametrize("strategy", ["two_turn", "structured"])
async def test_the_repair_prompt_states_the_ranges_and_no_solution(strategy: str) -> None:
    """The prompt suggests neither a total nor an outcome: the judge decides."""
    if strategy == "two_turn":
        scripted, criteria = ScriptedJudge(in_text(50, "correct"), in_text(62, "correct"), TOOLS), IN_TEXT
        asked = two_turn.repair_prompt(BANDS)
        assert all(f"{name} ({low}-{high})" in asked for name, (low, high) in BANDS.items())
    else:
        scripted, criteria = ScriptedJudge(as_json(50, "correct"), as_json(62, "correct")), AS_JSON
        asked = structured.repair_prompt(BANDS)

    await judge(scripted, criteria)

    assert scripted.conversations[1][-1].content == asked == criteria.added_by_code["repair_prompt"]
    assert "50" not in asked


# --- where an outcome is stated ------------------------------------------------------------------------


@table
async def test_an_outcome_counts_whichever_answer_states_it(replies: list[str], total: int, outcome: str) -> None:
    turns = [answer(reply, has_tool_calls=not reply) for reply in replies]

    verdict = await judge(ScriptedJudge(*turns, TOOLS), IN_TEXT)

    assert (verdict.total_score, verdict.judge_outcome, verdict.flags) == (total, outcome, set())


async def test_criteria_without_bands_know_no_outcome() -> None:
    criteria = load_criteria().get("investigation-methodology")
    verdict = await judge(ScriptedJudge(in_text(50, "correct"), TOOLS), criteria)
    assert (verdict.judge_outcome, verdict.flags) == (None, set())


@table
def test_an_outcome_may_be_decorated(line: str) -> None:
    assert extract_outcome(f"Analysis.\n\n{line}\n\n50", BANDS) == "partial"


@table
def test_a_line_without_exactly_one_outcome_states_none(line: str) -> None:
    assert extract_outcome(f"Analysis.\n\n{line}\n\n50", BANDS) is None


@table
def test_lines_that_state_several_outcomes_state_none(lines: list[str], outcome: str | None) -> None:
    assert extract_outcome("\n\n".join(lines), BANDS) == outcome

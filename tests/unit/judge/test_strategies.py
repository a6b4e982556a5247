"""Laws of every strategy: a valid answer is a verdict, and a failure is never a number."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripted import (
    CONTEXT,
    CUT,
    TOOL_CALLS,
    ScriptedJudge,
    ScriptStep,
    answer,
    answer_json,
    rubric_reply,
    structured_reply,
)
from tarsy_scoring.config.chains import ChainSettings
from tarsy_scoring.errors import (
    AttemptError,
    ContentFiltered,
    JudgeUnavailable,
    LeaseLost,
    Refused,
    ScoringError,
    Unscorable,
    WaitFor,
)
from tarsy_scoring.judge.assess import assess
from tarsy_scoring.judge.criteria import Criteria, load_criteria
from tarsy_scoring.judge.verdict import Turn, TurnKind, Verdict


@dataclass(frozen=True)
class Case:
    """
    A strategy, with answers and what it makes of them.

    Args:
        whole: A valid answer, of this total.
        beside: An answer with text but without a total, out of the requested form.
        after: What is asked once there is a total, with the answers.
        never: Kind of the error of a judge that never gives a total.
    """

    criteria: Criteria
    whole: Turn
    total: int
    beside: Turn
    never: str
    after: tuple[Turn, ...] = ()

    @property
    def kinds_after(self) -> list[TurnKind]:
        return ["missing_tools"] * len(self.after)


_CRITERIA = load_criteria()
CASES = {
    "two_turn": Case(
        _CRITERIA.get("investigation-methodology"),
        answer("However, it failed to look at the logs (E17).\n\n67"),
        67,
        answer("However, it failed to look at all 67 logs."),
        "no_score_in_answer",
        (answer("1. **read-file**: the script was never seen"),),
    ),
    "structured": Case(
        _CRITERIA.get("investigation-structured"),
        answer_json(structured_reply()),
        67,
        answer_json({"total_score": 67}),
        "invalid_structured_answer",
    ),
    "rubric": Case(
        _CRITERIA.get("cli-tool-use"),
        answer_json(rubric_reply()),
        65,
        answer_json({"weighted_score": 0.65}),
        "invalid_structured_answer",
    ),
}


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


async def judge(
    of: Case, scripted: ScriptedJudge, *, max_reminders: int = 2, is_final: Callable[[Exception], bool] = lambda _: True
) -> Verdict:
    return await assess(CONTEXT, of.criteria, scripted, ChainSettings(max_reminders=max_reminders), is_final=is_final)


async def test_a_valid_answer_is_a_verdict(case: Case) -> None:
    scripted = ScriptedJudge(case.whole, *case.after)

    verdict = await judge(case, scripted)

    assert scripted.kinds == ["analysis", *case.kinds_after]
    assert verdict.total_score == case.total
    assert verdict.samples == [case.total]
    assert verdict.total_turn == case.whole
    assert verdict.score_analysis
    assert verdict.flags == set()
    assert scripted.conversations[0] == case.criteria.open_conversation(CONTEXT)
    wants_json = case.criteria.strategy != "two_turn"
    assert all((wanted is not None) == wants_json for wanted in scripted.formats)


async def test_an_answer_out_of_form_gets_a_reminder(case: Case) -> None:
    scripted = ScriptedJudge(case.beside, case.whole, *case.after)

    verdict = await judge(case, scripted)

    assert scripted.kinds == ["analysis", "reminder", *case.kinds_after]
    assert (verdict.total_score, verdict.total_turn.kind) == (case.total, "reminder")


async def test_an_answer_of_tool_calls_alone_gets_a_reminder(case: Case) -> None:
    """Tool calls in place of text are an answer out of form; every message sent has content."""
    scripted = ScriptedJudge(TOOL_CALLS, case.whole, *case.after)

    verdict = await judge(case, scripted)

    assert scripted.kinds == ["analysis", "reminder", *case.kinds_after]
    assert verdict.total_score == case.total
    assert all(m.content.strip() for m in scripted.conversations[-1])


async def test_a_cut_answer_is_asked_once_more_with_twice_the_limit(case: Case) -> None:
    cut = replace(case.whole, finish_reason="length")
    scripted = ScriptedJudge(cut, case.whole, *case.after)

    verdict = await judge(case, scripted)

    assert scripted.kinds == ["analysis", "analysis", *case.kinds_after]
    assert scripted.factors == [1, 2, *([1] * len(case.after))]
    assert scripted.conversations[0] == scripted.conversations[1]
    assert scripted.formats[0] == scripted.formats[1]
    assert verdict.total_score == case.total


async def test_a_judge_without_a_total_fails_after_exactly_the_reminders(case: Case) -> None:
    """No more than `max_reminders` are paid for; then the strategy's own error names the setting to raise."""
    for max_reminders, beside in [(0, case.beside), (1, TOOL_CALLS), (5, case.beside)]:
        scripted = ScriptedJudge(*[beside] * (max_reminders + 1))

        with pytest.raises(Unscorable, match=rf"after {max_reminders} reminders.*raise max_reminders"):
            await judge(case, scripted, max_reminders=max_reminders)

        assert scripted.kinds == ["analysis", *["reminder"] * max_reminders]
        assert scripted.script == []


def failing(whole: Turn) -> dict[str, tuple[list[ScriptStep], type[ScoringError], str | None]]:
    """Each way to fail, beside or in place of a valid answer, with the error and its kind."""
    cut, refused = replace(whole, finish_reason="length"), answer(refusal="I cannot")
    return {
        "refusal": ([refused], Refused, "refused"),
        "refusal_beside_a_whole_answer": ([replace(whole, refusal="I cannot")], Refused, "refused"),
        "refusal_as_finish_reason": ([replace(whole, finish_reason="refusal")], Refused, "refused"),
        "refusal_that_is_cut": ([replace(cut, refusal="I cannot")], Refused, "refused"),
        "content_filter": ([answer(finish_reason="content_filter")], ContentFiltered, "content_filtered"),
        "content_filter_on_a_whole_answer": (
            [replace(whole, finish_reason="content_filter")],
            ContentFiltered,
            "content_filtered",
        ),
        "cut_twice": ([CUT, CUT], Unscorable, "answer_cut"),
        "cut_twice_behind_a_whole_answer": ([cut, cut], Unscorable, "answer_cut"),
        "thinking_used_the_limit_twice": ([replace(CUT, reply="")] * 2, Unscorable, "answer_cut"),
        "refusal_after_a_cut": ([CUT, refused], Refused, "refused"),
        "empty": ([answer()], Unscorable, "empty_answer"),
        "blank": ([answer(" \n\t")], Unscorable, "empty_answer"),
        "unavailable": ([JudgeUnavailable("away")], JudgeUnavailable, "judge_unavailable"),
        "rate_limited": ([WaitFor("wait", 60, "rate_limit")], WaitFor, "judge_unavailable"),
        "lease_lost": ([LeaseLost("gone")], LeaseLost, None),
    }


async def test_a_failure_is_never_a_number(case: Case) -> None:
    """Each way to fail has its own error, at once and in a reminder, without any further question."""
    for way, (script, error, kind) in failing(case.whole).items():
        for before in ([], [case.beside]):
            scripted = ScriptedJudge(*before, *script)

            with pytest.raises(error) as raised:
                await judge(case, scripted)

            assert getattr(raised.value, "error_kind", None) == kind, way
            assert scripted.script == [], way


async def test_an_error_quotes_nothing_from_the_session(case: Case) -> None:
    """Messages are stored and published, so they never hold an answer, a refusal or a prompt."""
    ways = failing(replace(case.whole, reply=f"SECRET {case.whole.reply}"))
    del ways["lease_lost"]
    for way, (script, _, _) in ways.items():
        turns = [replace(s, refusal=s.refusal and "SECRET") if isinstance(s, Turn) else s for s in script]

        with pytest.raises(AttemptError) as raised:
            await judge(case, ScriptedJudge(*turns))

        assert "SECRET" not in str(raised.value), way
    beside = answer_json({"total_score": "SECRET", "scores": {"SECRET": "SECRET"}, "score_reasoning": ["SECRET"]})
    with pytest.raises(Unscorable, check=lambda error: error.error_kind == case.never) as raised:
        await judge(case, ScriptedJudge(*[beside] * 3))
    assert "SECRET" not in str(raised.value)


async def test_the_conversation_only_grows(case: Case) -> None:
    """Every request begins with the whole of the one before; a cut answer is asked for again unchanged."""
    scripted = ScriptedJudge(case.beside, CUT, TOOL_CALLS, CUT, case.whole, *case.after)

    await judge(case, scripted)

    assert scripted.kinds == ["analysis", *["reminder"] * 4, *case.kinds_after]
    for earlier, later in pairwise(scripted.conversations):
        assert later[: len(earlier)] == earlier
        assert [m.role for m in later[len(earlier) :]] in ([], ["assistant", "user"])
    assert CUT.reply not in [m.content for m in scripted.conversations[-1]]


async def test_a_new_attempt_repeats_the_calls_of_an_earlier_one(case: Case) -> None:
    """The same replies lead to the same calls."""
    script = [case.beside, CUT, TOOL_CALLS, case.whole, *case.after]
    whole = ScriptedJudge(*script)
    await judge(case, whole)
    for answered in range(4):
        broken = ScriptedJudge(*script[:answered], JudgeUnavailable("away"))
        with pytest.raises(JudgeUnavailable):
            await judge(case, broken, is_final=lambda _: False)

        assert whole.conversations[: answered + 1] == broken.conversations
        assert whole.kinds[: answered + 1] == broken.kinds


# --- a total is never made up --------------------------------------------------------------------------

without_digits = st.text(st.characters(exclude_categories=["Nd", "Nl", "No", "Cs"]), max_size=200).filter(str.strip)


@pytest.mark.parametrize("name", CASES)
@given(reply=without_digits)
async def test_words_without_a_number_are_never_a_total(name: str, reply: str) -> None:
    case = CASES[name]
    with pytest.raises(Unscorable, check=lambda error: error.error_kind == case.never):
        await judge(case, ScriptedJudge(answer(reply)), max_reminders=0)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-200, 200) | st.floats(-2, 200) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(total=json_values)
async def test_a_structured_total_is_the_whole_number_that_was_sent(total: Any) -> None:
    """Of all values that JSON has, only the whole numbers 0-100 are totals, also where they are written as 78.0."""
    case = CASES["structured"]
    reply = structured_reply(total_score=total, score_breakdown=dict.fromkeys(structured_reply()["score_breakdown"], 0))
    is_total = type(total) in (int, float) and 0 <= total <= 100 and total == int(total)
    # Numbers that contradict each other are asked about once more.
    scripted = ScriptedJudge(answer_json(reply), TOOL_CALLS)

    if is_total:
        assert (await judge(case, scripted, max_reminders=0)).total_score == total
    else:
        with pytest.raises(Unscorable, match="sent no JSON"):
            await judge(case, scripted, max_reminders=0)


@given(value=json_values, item=st.sampled_from(sorted(rubric_reply()["scores"])))
async def test_a_rubric_total_rests_on_values_that_were_sent(value: Any, item: str) -> None:
    """One value that is no number from 0 to 1 leaves no total, whatever the others and the stated sum are."""
    case = CASES["rubric"]
    reply = rubric_reply(scores=rubric_reply()["scores"] | {item: value})
    is_value = type(value) in (int, float) and 0 <= value <= 1
    scripted = ScriptedJudge(answer(json.dumps(reply)))

    if is_value:
        verdict = await judge(case, scripted, max_reminders=0)
        assert verdict.rubric is not None
        assert verdict.rubric.scores[item] == value
    else:
        with pytest.raises(Unscorable, match="sent no JSON"):
            await judge(case, scripted, max_reminders=0)

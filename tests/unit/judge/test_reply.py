"""How a completion becomes a turn: its end, its text, its tokens, and the reasoning that is cut from its answer."""

import time
from typing import Any

from scripted import CONTEXT, ScriptedJudge, answer, answer_json, structured_reply
from tables import table
from tarsy_scoring.config.chains import ChainSettings
from tarsy_scoring.judge.ask.reply import read_turn, usage_of
from tarsy_scoring.judge.assess import assess
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.judge.read.reasoning import without_reasoning
from tarsy_scoring.judge.verdict import Turn, Verdict

LIMIT = 100


def read(content: Any = "67", finish_reason: Any = "stop", usage: Any = None) -> Turn | None:
    body = {"choices": [{"message": {"content": content}, "finish_reason": finish_reason}], "usage": usage}
    return read_turn(body, "analysis", "main", "m", usage_of(usage), None, 1, LIMIT)


@table
def test_the_end_of_an_answer_has_one_spelling(finish_reason: Any, expected: str | None) -> None:
    turn = read(finish_reason=finish_reason)
    assert (turn and turn.finish_reason) == expected


@table
def test_an_answer_that_reached_the_limit_was_cut(usage: Any, is_cut: bool) -> None:
    """Whatever reason the endpoint gives. Reasoning counts against the limit of some endpoints, and not of others."""
    for reason in ("stop", "end_turn", None):
        turn = read(finish_reason=reason, usage=usage)
        assert turn is not None
        assert turn.finish_reason == ("length" if is_cut else reason)


@table
def test_all_tokens_that_are_paid_are_counted(reported: Any, expected: list[int | None]) -> None:
    usage = usage_of(reported)
    assert [usage.read, usage.cached, usage.written] == expected


@table
def test_a_text_may_come_in_other_shapes(content: Any, reply: str) -> None:
    turn = read(content)
    assert turn is not None
    assert turn.reply == reply


# --- reasoning -----------------------------------------------------------------------------------------

REASONING = "1. **Check the record**: E99 {x\n\n55\n"
ANSWER = "No critical missing tools identified."


@table
def test_reasoning_before_the_answer_is_cut(opening: str, closing: str) -> None:
    for between, wrapped in (("", "{}"), ("\n\n", "{}"), ("\n", "<answer>\n{}\n</answer>"), (" ", "{}<|return|>")):
        assert without_reasoning(f"{opening}{REASONING}{closing}{between}{wrapped.format(ANSWER)}") == ANSWER
    assert not opening or without_reasoning(opening + REASONING) == ""


@table
def test_what_only_looks_like_reasoning_stays(reply: str) -> None:
    assert without_reasoning(reply) == reply


@table
def test_reasoning_is_cut_in_linear_time(unit: str) -> None:
    for before in ("", "<think>", "analysisA", "\n```\n"):
        started = time.thread_time()
        without_reasoning(before + unit * (200_000 // len(unit)))
        assert time.thread_time() - started < 2, (before, unit)


async def judge(criteria: str, *script: Turn) -> Verdict:
    scripted = ScriptedJudge(*script)
    verdict = await assess(CONTEXT, load_criteria().get(criteria), scripted, ChainSettings(), is_final=lambda _: True)
    assert not any("Check the record" in m.content for asked in scripted.conversations for m in asked), (
        "reasoning is not sent back"
    )
    return verdict


@table
async def test_no_reasoning_enters_a_verdict(opening: str, closing: str) -> None:
    """Neither draft totals, tools and citations, nor objects and braces; the turn keeps the whole text."""
    thought = f"{opening}{REASONING}{closing}\n"
    first = answer(f"{thought}The logs show it (E17).\n\nOutcome: correct\n\n78")
    verdict = await judge("investigation", first, answer(f"{thought}1. **heap-profiler**: why"))

    assert (verdict.total_score, verdict.judge_outcome, verdict.flags) == (78, "correct", set())
    assert verdict.score_analysis == "The logs show it (E17).\n\nOutcome: correct"
    assert [tool.tool_name for tool in verdict.missing_tools] == ["heap-profiler"]
    assert verdict.total_turn.reply == first.reply

    verdict = await judge("investigation-structured", answer(thought + answer_json(structured_reply()).reply))
    assert verdict.total_score == 67

"""
The strategy `two_turn`: a free evaluation that ends in its total, then the missing tools.

Everything happens in one conversation that only grows, so that the provider's prompt cache serves the
evidence to every turn after the first.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tarsy_scoring.errors import (
    AnswerCut,
    ContentFiltered,
    EmptyAnswer,
    NoScoreInAnswer,
    Refused,
    RetryLater,
    Unscorable,
    WaitFor,
)
from tarsy_scoring.judge.extraction import (
    analysis_of,
    category_title,
    extract_breakdown,
    extract_missing_tools,
    extract_total,
)
from tarsy_scoring.judge.verdict import Ask, IsFinal, Message, Turn, TurnKind, Verdict

if TYPE_CHECKING:  # criteria.py hashes the texts below
    from tarsy_scoring.judge.criteria import Criteria, JudgeContext

REPAIR_PROMPT = """\
The points of your categories do not add up to your total. Do not write the analysis again. Decide which of them you \
mean, then restate both so that they agree: the breakdown, one line per category in the form you used before, and on \
the last line the total alone."""

_NO_TEXT = "(no text)"  # an assistant message without content is refused by many endpoints
_ENLARGED = 2  # times the reply limit, for the one repetition of a cut answer


def output_schema(max_points: Mapping[str, int]) -> str:
    """
    What the answer must look like: the text for `{{OUTPUT_SCHEMA}}`.

    Args:
        max_points: Highest points by category id; empty where the criteria have no categories.
    """
    steps = ["Write your analysis in plain text, at least 200 words."]
    total = "Write the total alone on the last line: one whole number from 0 to 100"
    if max_points:
        lines = "\n".join(f"   {category_title(id_)}: X/{points}" for id_, points in max_points.items())
        steps[0] += " Explain the deductions of each category."
        steps.append(f"Write the breakdown, one line per category, with whole numbers in place of X:\n{lines}")
        total += ", the sum of the categories"
    steps.append(f"{total}. Write nothing else on that line and nothing after it.")
    return "Answer in this order:\n\n" + "\n\n".join(f"{n}. {step}" for n, step in enumerate(steps, 1))


async def judge_in_two_turns(
    context: "JudgeContext", criteria: "Criteria", ask: Ask, *, max_reminders: int, is_final: IsFinal
) -> Verdict:
    """
    Ask for the total, remind or have it repaired where needed, then ask for the missing tools.

    The same replies lead to the same calls, so an attempt that replays stored turns goes the same way.
    Once there is a total, an optional turn (repair, missing tools) that fails for good costs a flag and not
    the score.

    Raises:
        NoScoreInAnswer, Refused, ContentFiltered, AnswerCut, EmptyAnswer: There is no score.
        RetryLater, WaitFor, Unscorable: As `ask` raises them.
    """
    conversation = _Conversation(ask, criteria.open_conversation(context))
    verdict = await _obtain_total(conversation, criteria, max_reminders)
    await _settle_breakdown(conversation, criteria, verdict, is_final)
    await _identify_missing_tools(conversation, criteria, verdict, is_final)
    return verdict


class _Conversation:
    """
    The messages so far. They grow only by answers that are usable and by what was asked for them.

    A turn that fails leaves them as they were, so whatever is asked next has a prefix that was sent before.
    """

    def __init__(self, ask: Ask, opening: list[Message]) -> None:
        self._ask = ask
        self._messages = opening

    async def say(self, kind: TurnKind, prompt: str | None = None) -> Turn:
        """
        Ask with `prompt` as the next message; None where the opening asks already.

        Returns:
            A whole answer: with text, or with tool calls alone.

        Raises:
            Refused, ContentFiltered, AnswerCut, EmptyAnswer: The answer is not one.
        """
        messages = [*self._messages, Message("user", prompt)] if prompt else self._messages
        turn = await self._ask(kind, list(messages))
        if _is_cut(turn):
            turn = await self._ask(kind, list(messages), reply_limit_factor=_ENLARGED)
        _require_answer(turn)
        self._messages = [*messages, Message("assistant", turn.reply if turn.reply.strip() else _NO_TEXT)]
        return turn


def _is_cut(turn: Turn) -> bool:
    return turn.finish_reason == "length" and not turn.refusal


def _require_answer(turn: Turn) -> None:
    who = f"the judge {turn.model_requested!r} at {turn.provider!r}"
    if turn.refusal or turn.finish_reason == "refusal":
        raise Refused(f"{who} refused to answer; another provider for this chain may accept")
    if turn.finish_reason == "content_filter":
        raise ContentFiltered(f"the filter of {turn.provider!r} withheld the answer; another provider may not")
    if turn.finish_reason == "length":
        raise AnswerCut(
            f"{who} hit the reply limit twice, the second time at {_ENLARGED} times max_reply_tokens; raise it"
        )
    if not turn.reply.strip() and not turn.has_tool_calls:
        raise EmptyAnswer(f"{who} answered nothing")


async def _obtain_total(conversation: _Conversation, criteria: "Criteria", max_reminders: int) -> Verdict:
    """The analysis of the first full reply, and the total of the first reply that holds one."""
    turn = await conversation.say("analysis")
    analysis = analysis_of(turn.reply)
    for _ in range(max_reminders):
        if extract_total(turn.reply) is not None:
            break
        turn = await conversation.say("reminder", criteria.reminder_prompt)
        analysis = analysis or analysis_of(turn.reply)
    total = extract_total(turn.reply)
    if total is None:
        raise NoScoreInAnswer(
            f"the judge {turn.model_requested!r} at {turn.provider!r} gave no total on the last line, "
            f"after {max_reminders} reminders; raise max_reminders or use a model that keeps to the form"
        )
    breakdown = extract_breakdown(turn.reply, criteria.max_points) or extract_breakdown(analysis, criteria.max_points)
    return Verdict(total_score=total, score_analysis=analysis, score_breakdown=breakdown, total_turn=turn)


async def _settle_breakdown(
    conversation: _Conversation, criteria: "Criteria", verdict: Verdict, is_final: IsFinal
) -> None:
    """One turn to make breakdown and total agree; the last valid answer counts, and nothing is ever clamped."""
    if _adds_up(verdict):
        return
    try:
        turn = await conversation.say("repair", REPAIR_PROMPT)
    except (RetryLater, WaitFor, Unscorable) as error:
        if not is_final(error):
            raise
    else:
        if (total := extract_total(turn.reply)) is not None:
            verdict.total_score, verdict.total_turn = total, turn
            verdict.score_breakdown = extract_breakdown(turn.reply, criteria.max_points) or verdict.score_breakdown
    if not _adds_up(verdict):
        verdict.flags.add("breakdown_mismatch")


def _adds_up(verdict: Verdict) -> bool:
    """Half points may be rounded into the total; whole points must match it."""
    stated = verdict.score_breakdown
    return stated is None or abs(sum(stated.values()) - verdict.total_score) <= 0.5


async def _identify_missing_tools(
    conversation: _Conversation, criteria: "Criteria", verdict: Verdict, is_final: IsFinal
) -> None:
    try:
        turn = await conversation.say("missing_tools", criteria.follow_up_prompt)
        if not turn.reply.strip():
            raise EmptyAnswer(f"the judge {turn.model_requested!r} called tools in place of naming missing ones")
    except (RetryLater, WaitFor, Unscorable) as error:
        if not is_final(error):
            raise
        verdict.flags.add("missing_tools_unavailable")
    else:
        verdict.missing_tools_analysis = turn.reply.strip()
        verdict.missing_tools = extract_missing_tools(turn.reply)

"""
The strategy `two_turn`: a free evaluation that ends in its total, then the missing tools.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from tarsy_scoring.errors import EmptyAnswer, NoScoreInAnswer, RetryLater, Unscorable, WaitFor
from tarsy_scoring.judge.conversation import Conversation
from tarsy_scoring.judge.extraction import (
    analysis_of,
    category_title,
    extract_breakdown,
    extract_missing_tools,
    extract_outcome,
    extract_total,
)
from tarsy_scoring.judge.verdict import IsFinal, TurnKind, Verdict

if TYPE_CHECKING:  # criteria.py hashes the texts below
    from tarsy_scoring.judge.criteria import Criteria

Bands = Mapping[str, tuple[int, int]]

REPAIR_PROMPT = """\
The points of your categories do not add up to your total. Do not write the analysis again. Decide which of them you \
mean, then restate both so that they agree: the breakdown, one line per category in the form you used before, and on \
the last line the total alone."""

BAND_REPAIR_PROMPT = """\
What you stated does not agree: your outcome, your total and, where you gave one, your breakdown must fit together, \
and each outcome allows only its own range of totals:

{bands}

Do not write the analysis again. Decide what you mean, then restate all of it so that it agrees: the line with the \
outcome, the breakdown in the form you used before if you gave one, and on the last line the total alone."""


def repair_prompt(bands: Bands) -> str:
    """What asks for numbers that agree, once per reading."""
    return BAND_REPAIR_PROMPT.format(bands=_band_lines(bands, "")) if bands else REPAIR_PROMPT


def _band_lines(bands: Bands, indent: str) -> str:
    return "\n".join(f"{indent}Outcome: {name} ({low}-{high})" for name, (low, high) in bands.items())


def output_schema(max_points: Mapping[str, int], bands: Bands) -> str:
    """
    What the answer must look like: the text for `{{OUTPUT_SCHEMA}}`.

    Args:
        max_points: Highest points by category id; empty where the criteria have no categories.
        bands: Lowest and highest total by outcome; empty where the criteria know no outcomes.
    """
    steps = ["Write your analysis in plain text, at least 200 words."]
    total = "Write the total alone on the last line: one whole number from 0 to 100"
    if max_points:
        lines = "\n".join(f"   {category_title(id_)}: X/{points}" for id_, points in max_points.items())
        steps[0] += " Explain the deductions of each category."
    if bands:
        lines_of_bands = _band_lines(bands, "   ")
        steps.append(
            "Write the outcome on a line of its own, one of these without its range; the total must lie in the range:\n"
            f"{lines_of_bands}"
        )
    if max_points:
        steps.append(f"Write the breakdown, one line per category, with whole numbers in place of X:\n{lines}")
        total += ", the sum of the categories"
    steps.append(f"{total}. Write nothing else on that line and nothing after it.")
    return "Answer in this order:\n\n" + "\n\n".join(f"{n}. {step}" for n, step in enumerate(steps, 1))


async def evaluate(
    conversation: Conversation, criteria: "Criteria", kind: TurnKind, *, max_reminders: int, is_final: IsFinal
) -> Verdict:
    """
    Ask for the total, remind or have it repaired where needed.

    The same replies lead to the same calls, so an attempt that replays stored turns goes the same way. Once
    there is a total, a repair that fails for good costs a flag and not the score.

    Raises:
        NoScoreInAnswer, Refused, ContentFiltered, AnswerCut, EmptyAnswer: There is no score.
        RetryLater, WaitFor, Unscorable: As `ask` raises them.
    """
    verdict = await _obtain_total(conversation, criteria, kind, max_reminders)
    if contradictions(verdict, criteria.bands):
        await _repair(conversation, criteria, verdict, is_final)
        verdict.flags |= contradictions(verdict, criteria.bands)
    return verdict


async def follow_up(conversation: Conversation, criteria: "Criteria", verdict: Verdict, is_final: IsFinal) -> None:
    """
    Ask for the missing tools in the conversation that gave the verdict.

    A turn that fails for good costs a flag and not the score.

    Raises:
        RetryLater, WaitFor: Another attempt may succeed.
    """
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


def contradictions(verdict: Verdict, bands: Bands) -> set[str]:
    """
    Flags for numbers that do not agree.

    Half points of the breakdown may be rounded into the total, whole points must match it. An outcome that was
    not stated contradicts nothing.
    """
    flags = set()
    stated = verdict.score_breakdown
    if stated is not None and abs(sum(stated.values()) - verdict.total_score) > 0.5:
        flags.add("breakdown_mismatch")
    if verdict.judge_outcome is not None and verdict.judge_outcome in bands:
        low, high = bands[verdict.judge_outcome]
        if not low <= verdict.total_score <= high:
            flags.add("outcome_score_mismatch")
    return flags


async def _obtain_total(
    conversation: Conversation, criteria: "Criteria", kind: TurnKind, max_reminders: int
) -> Verdict:
    """The analysis of the first full reply, and the total of the first reply that holds one."""
    turn = await conversation.say(kind)
    analysis, replies = analysis_of(turn.reply), [turn.reply]
    for _ in range(max_reminders):
        if extract_total(turn.reply) is not None:
            break
        turn = await conversation.say("reminder", criteria.reminder_prompt)
        analysis = analysis or analysis_of(turn.reply)
        replies.append(turn.reply)
    total = extract_total(turn.reply)
    if total is None:
        raise NoScoreInAnswer(
            f"the judge {turn.model_requested!r} at {turn.provider!r} gave no total on the last line, "
            f"after {max_reminders} reminders; raise max_reminders or use a model that keeps to the form"
        )
    stated_in = (analysis, turn.reply) if len(replies) > 1 else (turn.reply,)  # which holds the analysis
    return Verdict(
        total_score=total,
        score_analysis=analysis,
        total_turn=turn,
        score_breakdown=_last(extract_breakdown(r, criteria.max_points) for r in stated_in),
        judge_outcome=_last(extract_outcome(r, criteria.bands) for r in replies),
    )


_Found = TypeVar("_Found")


def _last(found: Iterable[_Found | None]) -> _Found | None:
    """What was stated last counts."""
    stated = [f for f in found if f is not None]
    return stated[-1] if stated else None


async def _repair(conversation: Conversation, criteria: "Criteria", verdict: Verdict, is_final: IsFinal) -> None:
    """One turn to make the numbers agree; the last valid answer counts, and nothing is ever clamped."""
    try:
        turn = await conversation.say("repair", repair_prompt(criteria.bands))
    except (RetryLater, WaitFor, Unscorable) as error:
        if not is_final(error):
            raise
        return
    if (total := extract_total(turn.reply)) is not None:
        verdict.total_score, verdict.total_turn = total, turn
        verdict.score_breakdown = extract_breakdown(turn.reply, criteria.max_points) or verdict.score_breakdown
        verdict.judge_outcome = extract_outcome(turn.reply, criteria.bands) or verdict.judge_outcome

"""
The strategy `two_turn`: a free-text evaluation whose last line is the total, then the missing tools.
"""

from collections.abc import Mapping

from tarsy_scoring.errors import Unscorable
from tarsy_scoring.judge.conversation import Conversation
from tarsy_scoring.judge.definition import Bands, Definition
from tarsy_scoring.judge.read import extraction
from tarsy_scoring.judge.strategies.contradictions import repair
from tarsy_scoring.judge.strategies.strategy import Strategy
from tarsy_scoring.judge.verdict import Turn, TurnKind, Verdict


class TwoTurn(Strategy):
    """The first question asks for an evaluation and a total, the second for the missing tools."""

    name = "two_turn"

    def check(self, definition: Definition) -> None:
        """
        Check that the file has a follow-up prompt, a reminder prompt and no rubric.

        Raises:
            ValueError: A prompt is missing in the file, or the file has a rubric.
        """
        if not (definition.follow_up_prompt and definition.reminder_prompt):
            raise ValueError("the strategy two_turn needs follow_up_prompt and reminder_prompt")
        super().check(definition)

    def added_prompts(self, definition: Definition) -> Mapping[str, str]:
        """The form that an answer must have, and the request for a repair."""
        return {
            "output_schema": output_schema(definition.max_points, definition.bands),
            "repair_prompt": repair_prompt(definition.bands),
        }

    async def evaluate(self, conversation: Conversation, definition: Definition, kind: TurnKind) -> Verdict:
        """
        Ask for total and outcome, remind the judge where one is missing, and once ask to repair contradictory
        numbers.

        Once there is a total, what fails for good costs a flag and not the score.

        Raises:
            Unscorable: There is no score.
            RetryLater, WaitFor, Unscorable: As `Conversation.say` raises them.
        """
        verdict = await _obtain_total(conversation, definition, kind)

        def take(turn: Turn) -> None:
            if extraction.extract_total(turn.answer) is not None:
                _take(verdict, turn, definition)

        await repair(conversation, verdict, definition.bands, repair_prompt(definition.bands), take)
        if definition.bands and verdict.judge_outcome is None:
            verdict.flags.add("outcome_missing")
        return verdict

    def follow_up_prompt(self, definition: Definition) -> str | None:
        """The question about missing tools."""
        return definition.follow_up_prompt

    async def follow_up(self, conversation: Conversation, definition: Definition, verdict: Verdict) -> None:
        """
        Ask for the missing tools in the conversation that gave the verdict.

        A turn that fails for good costs a flag and not the score.

        Raises:
            RetryLater, WaitFor: Another attempt may succeed.
        """
        turn = await conversation.say_optional("missing_tools", definition.follow_up_prompt or "")
        if turn is None or not turn.answer.strip():  # a judge may call tools instead of naming missing ones
            verdict.flags.add("missing_tools_unavailable")
        else:
            verdict.missing_tools_analysis = turn.answer.strip()
            verdict.missing_tools = extraction.extract_missing_tools(turn.answer)


REPAIR_PROMPT = """\
The points of your categories do not add up to your total. Do not write the analysis again. Decide which of them you \
mean, then restate both so that they agree: the breakdown, one line per category in the form you used before, and on \
the last line the total alone."""

BAND_REPAIR_PROMPT = """\
What you stated is incomplete or does not agree: your outcome, your total and, where you gave one, your breakdown must \
fit together, and each outcome allows only its own range of totals:

{bands}

Do not write the analysis again. Decide what you mean, then restate all of it so that it agrees: the line with the \
outcome in English, the breakdown in the form you used before if you gave one, and on the last line the total alone."""


def repair_prompt(bands: Bands) -> str:
    """The request for numbers that agree, sent once per sample; under bands also the reminder of an outcome."""
    lines = "\n".join(f"Outcome: {name} ({low}-{high})" for name, (low, high) in bands.items())
    return BAND_REPAIR_PROMPT.format(bands=lines) if bands else REPAIR_PROMPT


def output_schema(max_points: Mapping[str, int], bands: Bands) -> str:
    """
    How an answer must look: the text for `{{OUTPUT_SCHEMA}}`.

    Args:
        max_points: Highest points by category id; empty for criteria without categories.
        bands: Lowest and highest total by outcome; empty for criteria without outcomes.
    """
    steps = ["Write your analysis in plain text, at least 200 words."]
    total = "Write the total alone on the last line: one whole number from 0 to 100"
    if max_points:
        lines = "\n".join(
            f"   {extraction.category_title(id_)}: X/{points}" for id_, points in max_points.items()
        )
        steps[0] += " Explain the deductions of each category."
    if bands:  # a range behind each line would be copied into the answer
        forms = "\n".join(f"   Outcome: {name}" for name in bands)
        ranges = ", ".join(f"{name} {low}-{high}" for name, (low, high) in bands.items())
        steps.append(
            f"Write the outcome on a line of its own, in one of these forms:\n{forms}\n"
            f"   The total must lie in the range of the outcome: {ranges}."
        )
    if max_points:
        steps.append(
            f"Write the breakdown, one line per category, with whole numbers in place of X:\n{lines}"
        )
        total += ", the sum of the categories"
    steps.append(f"{total}. Write nothing else on that line and nothing after it.")
    order = "\n\n".join(f"{n}. {step}" for n, step in enumerate(steps, 1))
    language = "Keep its forms, terms and digits (0-9) in English, whatever the language of the session"
    return f"Answer in this order. {language}:\n\n{order}"


async def _obtain_total(conversation: Conversation, definition: Definition, kind: TurnKind) -> Verdict:
    """
    Ask, and remind the judge of a missing total or, under bands, outcome, as long as reminders are left.

    The first reply with any text beside the total gives the analysis. Once there is a total, a reminder that
    fails for good costs the outcome and not the score.

    Raises:
        Unscorable: No reply contains a total.
        RetryLater, WaitFor, Unscorable: As `Conversation.say` raises them.
    """
    first = await conversation.say(kind)
    verdict = Verdict(_NO_TOTAL, "", first)
    _take(verdict, first, definition)
    for _ in range(conversation.max_reminders):
        has_total = verdict.total_score != _NO_TOTAL
        has_outcome = verdict.judge_outcome is not None or not definition.bands
        if has_total and has_outcome:
            break
        prompt = (definition.reminder_prompt if has_outcome else None) or repair_prompt(definition.bands)
        ask = conversation.say_optional if has_total else conversation.say
        if (turn := await ask("reminder", prompt)) is None:
            break
        _take(verdict, turn, definition)
    if verdict.total_score == _NO_TOTAL:
        raise Unscorable(
            f"{verdict.total_turn.judge} gave no total on the last line, "
            f"after {conversation.max_reminders} reminders; "
            "raise max_reminders or use a model that keeps to the form",
            "no_score_in_answer",
        )
    return verdict


_NO_TOTAL = -1


def _take(verdict: Verdict, turn: Turn, definition: Definition) -> None:
    """Take what a reply states of total, breakdown and outcome, and the analysis where there is none yet."""
    if (total := extraction.extract_total(turn.answer)) is not None:
        verdict.total_score, verdict.total_turn = total, turn
    verdict.score_analysis = verdict.score_analysis or extraction.analysis_of(turn.answer)
    verdict.score_breakdown = (
        extraction.extract_breakdown(turn.answer, definition.max_points) or verdict.score_breakdown
    )
    verdict.judge_outcome = extraction.extract_outcome(turn.answer, definition.bands) or verdict.judge_outcome

"""Finds numbers in a verdict that do not agree, and asks the judge once to repair them."""

from collections.abc import Callable

from tarsy_scoring.judge.conversation import Conversation
from tarsy_scoring.judge.definition import Bands
from tarsy_scoring.judge.verdict import Turn, Verdict


async def repair(
    conversation: Conversation, verdict: Verdict, bands: Bands, prompt: str, take: Callable[[Turn], None]
) -> None:
    """
    Ask once for a repair where numbers do not agree, and flag those that still do not agree afterwards.

    A repair that fails for good costs a flag and not the score. No number is ever clamped.

    Args:
        take: Takes the reply's numbers into the verdict, unless the reply is not valid.

    Raises:
        RetryLater, WaitFor: Another attempt may succeed.
    """
    if not contradictions(verdict, bands):
        return
    turn = await conversation.say_optional("repair", prompt)
    if turn is not None:
        take(turn)
    verdict.flags |= contradictions(verdict, bands)


def contradictions(verdict: Verdict, bands: Bands) -> set[str]:
    """
    Flags for numbers in a verdict that do not agree; empty where all agree.

    A total may round half points in the breakdown; whole points must match it. A missing outcome contradicts
    nothing.
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

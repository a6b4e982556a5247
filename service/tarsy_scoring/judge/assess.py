"""The order of judgement: which strategy answers for the criteria."""

from tarsy_scoring.errors import UnknownCriteria
from tarsy_scoring.judge.criteria import Criteria, JudgeContext
from tarsy_scoring.judge.two_turn import judge_in_two_turns
from tarsy_scoring.judge.verdict import Ask, IsFinal, Verdict


async def assess(
    context: JudgeContext, criteria: Criteria, ask: Ask, *, max_reminders: int, is_final: IsFinal
) -> Verdict:
    """
    Judge one session under the criteria.

    Keeps nothing: what makes an attempt durable is `ask`, and a cancel leaves the turns it stored.

    Args:
        max_reminders: Reminders when an answer holds no total, >= 0.
        is_final: Whether an error of an optional turn is the last word; else it is raised.

    Raises:
        UnknownCriteria: This version cannot execute their strategy.
        RetryLater, WaitFor, Unscorable: There is no score; see `errors`.
        LeaseLost: The score belongs to another worker now.
    """
    if criteria.strategy == "two_turn":
        return await judge_in_two_turns(context, criteria, ask, max_reminders=max_reminders, is_final=is_final)
    raise UnknownCriteria(
        f"the criteria {criteria.name!r} use the strategy {criteria.strategy}, which is not available in this version; "
        "use criteria of the strategy two_turn"
    )

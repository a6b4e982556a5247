"""
Judges one session: a first sample, further samples, a sample with suspicious text masked, then the follow-up.
"""

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from tarsy_scoring.config.chains import ChainSettings
from tarsy_scoring.errors import AttemptError
from tarsy_scoring.judge.conversation import Conversation
from tarsy_scoring.judge.criteria import Criteria
from tarsy_scoring.judge.doubt import TAMPERING_POINTS
from tarsy_scoring.judge.read.failure_tags import find_failure_tags
from tarsy_scoring.judge.read.grounding import check_citations, is_ungrounded
from tarsy_scoring.judge.strategies import STRATEGIES
from tarsy_scoring.judge.verdict import Ask, IsFinal, TurnKind, Verdict
from tarsy_scoring.timeline.render.context import FittedContext


@dataclass(frozen=True, slots=True)
class _Reading:
    """One sample: the conversation, the verdict read from it, and the context that was judged."""

    conversation: Conversation
    verdict: Verdict
    context: FittedContext


async def assess(
    context: FittedContext,
    criteria: Criteria,
    ask: Ask,
    chain: ChainSettings,
    *,
    is_final: IsFinal,
    masked: Callable[[], Awaitable[FittedContext]] | None = None,
) -> Verdict:
    """
    Judge one session under the criteria.

    The first sample is complete before the others start, so that the provider's prompt cache is warm. The
    sample with the (lower) median total counts, with analysis and conversation. If the session
    contains text that tries to influence the judge, one more sample is taken with this text masked. A
    difference of `TAMPERING_POINTS` or more means that the text had an effect, and the masked sample counts.

    Stores nothing itself: `ask` does, and a cancellation leaves the turns that it stored.

    Args:
        chain: How many samples are taken, and how often a sample may be reminded.
        is_final: Whether an error in an optional turn (repair, further samples, missing tools) is final.
            Other errors are raised.
        masked: Builds the same context with suspicious text masked; None where there is no such text.

    Raises:
        RetryLater, WaitFor, Unscorable: There is no score; see `errors`. Also raised when only the masked
            sample fails, because the other samples cannot be trusted.
        LeaseLost: The score belongs to another worker now.
    """
    strategy = STRATEGIES[criteria.strategy]

    async def read(of: FittedContext, kind: TurnKind) -> _Reading:
        opening, reply_format = criteria.open_conversation(of), strategy.reply_format(criteria)
        conversation = Conversation(
            ask, opening, reply_format, max_reminders=chain.max_reminders, is_final=is_final
        )
        return _Reading(conversation, await strategy.evaluate(conversation, criteria, kind), of)

    readings = [await read(context, "analysis")]
    readings += await _succeeded([read(context, "sample") for _ in range(chain.samples - 1)], is_final)
    chosen = _of_median(readings)
    samples = [r.verdict.total_score for r in readings]
    flags = set()
    if masked is not None:
        unsteered = await read(await masked(), "masked")
        if abs(unsteered.verdict.total_score - chosen.verdict.total_score) >= TAMPERING_POINTS:
            chosen = unsteered
            flags.add("tampering_suspected")
    verdict = chosen.verdict
    verdict.samples, verdict.flags = samples, verdict.flags | flags
    await strategy.follow_up(chosen.conversation, criteria, verdict)
    verdict.failure_tags = find_failure_tags(verdict.score_analysis, criteria.failure_vocabulary)
    verdict.grounding = check_citations(verdict.score_analysis, chosen.context)
    if is_ungrounded(verdict.grounding):
        verdict.flags.add("ungrounded")
    return verdict


async def _succeeded(samples: Sequence[Awaitable[_Reading]], is_final: IsFinal) -> list[_Reading]:
    """Leave out samples that fail for good; raise another error only after all others have stored their turns."""
    readings = []
    for found in await asyncio.gather(*samples, return_exceptions=True):
        if not isinstance(found, BaseException):
            readings.append(found)
        elif not isinstance(found, AttemptError) or not is_final(found):
            raise found
    return readings


def _of_median(readings: Sequence[_Reading]) -> _Reading:
    """The first sample with the (lower) median total."""
    median = statistics.median_low([r.verdict.total_score for r in readings])
    return next(r for r in readings if r.verdict.total_score == median)

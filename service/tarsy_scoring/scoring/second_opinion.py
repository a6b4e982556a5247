"""
A second judgement by another provider in the chain, where the first one is in doubt.

The first total counts. The second judgement costs at most one answer with reminders and
repair: no further samples and no question about missing tools.
"""

from dataclasses import replace

from tarsy_scoring.config.chains import ChainSettings
from tarsy_scoring.errors import RetryLater, Unscorable, WaitFor
from tarsy_scoring.judge.conversation import Conversation
from tarsy_scoring.judge.criteria import Criteria
from tarsy_scoring.judge.doubt import agree, needs_second_opinion
from tarsy_scoring.judge.strategies import STRATEGIES
from tarsy_scoring.judge.verdict import Question, SecondOpinion, Turn, Verdict
from tarsy_scoring.scoring.providers import Judgement, Judges, Render, in_fitting_context
from tarsy_scoring.timeline.model import Timeline
from tarsy_scoring.timeline.render.context import FittedContext

DISAGREES = "second_opinion_disagrees"


async def add_second_opinion(
    judgement: Judgement,
    timeline: Timeline,
    nonce: str,
    chain: ChainSettings,
    criteria: Criteria,
    judges: Judges,
) -> None:
    """
    Ask the next provider where the chain wants it and the verdict is in doubt, and add that judgement to the
    verdict.

    A provider that cannot be asked now, or gives no score, costs the second opinion and never the score. It
    is not waited for and not asked by a later attempt; nor is one that has just failed to give the first
    judgement.

    Raises:
        LeaseLost: Another worker holds the score, or it was cancelled.
    """
    verdict = judgement.verdict
    provider = chain.next_provider(verdict.total_turn.provider)
    if not chain.second_opinion or provider is None or not needs_second_opinion(verdict, criteria.bands):
        return
    try:
        if provider in judgement.failures:
            raise judgement.failures[provider]
        second = await _judge(provider, timeline, nonce, chain, criteria, judges)
    except (WaitFor, RetryLater, Unscorable) as error:
        reason = error.waiting_for if isinstance(error, WaitFor) else error.error_kind
        verdict.second_opinion = SecondOpinion(provider, reason=reason)
        return
    agrees = agree(verdict, second, criteria.bands)
    verdict.second_opinion = SecondOpinion(provider, second.total_score, second.judge_outcome, agrees)
    if not agrees:
        verdict.flags.add(DISAGREES)


async def _judge(
    provider: str, timeline: Timeline, nonce: str, chain: ChainSettings, criteria: Criteria, judges: Judges
) -> Verdict:
    """
    Judge once with one provider. All turns have the kind `second_opinion`, reminders and repairs
    included.

    Suspicious text is masked: a single judgement has no other one that would show an effect.
    """
    strategy = STRATEGIES[criteria.strategy]

    async def evaluate(context: FittedContext, render: Render) -> Verdict:
        if context.injections:
            context = await render(mask_injections=True)
        ask = judges.ask_of(provider, context)

        async def ask_second(question: Question) -> Turn:
            return await ask(replace(question, kind="second_opinion"))

        opening, reply_format = criteria.open_conversation(context), strategy.reply_format(criteria)
        conversation = Conversation(ask_second, opening, reply_format, max_reminders=chain.max_reminders)
        return await strategy.evaluate(conversation, criteria, "second_opinion")

    return await in_fitting_context(provider, timeline, nonce, criteria, judges, evaluate)

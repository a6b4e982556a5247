"""
What the judge would be asked about a session, and what the calls would cost, without a call.

Imports neither a logger nor anything that reads replies: an author of prompts waits for the start of each dry
run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tarsy_scoring.config.chains import ChainSettings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.evaluation.agent_cost import USD_DIGITS
from tarsy_scoring.judge.ask.prices import Prices
from tarsy_scoring.judge.criteria import Criteria, CriteriaRegistry
from tarsy_scoring.judge.strategies import STRATEGIES
from tarsy_scoring.judge.verdict import Message
from tarsy_scoring.scoring.providers import context_budget
from tarsy_scoring.timeline.clean.masking import masking_of
from tarsy_scoring.timeline.evidence import check_evidence
from tarsy_scoring.timeline.model import Timeline
from tarsy_scoring.timeline.render.context import build_context, estimate_tokens
from tarsy_scoring.timeline.render.fence import new_nonce


@dataclass(frozen=True, slots=True)
class DryRun:
    """
    The first turn as the judge would receive it, and the planned calls.

    Args:
        tokens: Estimated tokens in the first turn.
        calls: Most calls that the plan makes; reminders and repairs are not counted.
        cost_usd: Cost for these calls with full-length answers and nothing cached; None where a price is
            unknown.
    """

    messages: Sequence[Message]
    tokens: int
    calls: int
    cost_usd: float | None
    coverage: dict[str, Any]
    flags: list[str]


def dry_run(
    settings: Settings, registry: CriteriaRegistry, timeline: Timeline, chain_id: str | None
) -> DryRun:
    """
    Build the masked prompt for the first turn and the chain's first provider, and add up the planned calls.

    The plan counts one call per sample, one with suspicious text masked if the session contains such text, one
    follow-up if the strategy asks one, and a second opinion if another provider may be asked. A chain without
    a judge has no calls.

    Raises:
        Unscorable, RetryLater: The session cannot be judged; the error says why.
    """
    chain = settings.chain(chain_id or timeline.chain_id)
    return plan_judgement(settings, registry.of_chain(chain), chain, timeline, new_nonce())


def plan_judgement(
    settings: Settings, criteria: Criteria, chain: ChainSettings, timeline: Timeline, nonce: str
) -> DryRun:
    """As `dry_run`, for criteria and a chain that need not be in the settings, with a given nonce."""
    provider = settings.config.providers[chain.providers[0]]
    check_evidence(timeline, settings.config.evidence.max_missing_share, may_change=False)
    budget = context_budget(provider, criteria)
    masking = masking_of(settings.config.masking_patterns)
    context = build_context(timeline, nonce, budget, masking=masking)
    messages = criteria.open_conversation(context)
    tokens = _tokens(messages)
    planned: list[int] = []  # input tokens per call
    if chain.judge.enabled:
        planned += [tokens] * chain.samples
        if context.injections:
            masked = build_context(timeline, nonce, budget, mask_injections=True, masking=masking)
            planned.append(_tokens(criteria.open_conversation(masked)))
        if follow_up := STRATEGIES[criteria.strategy].follow_up_prompt(criteria):
            planned.append(max(planned) + provider.max_reply_tokens + estimate_tokens(follow_up))
    asked = [provider] * len(planned)
    second = chain.next_provider(chain.providers[0])
    if planned and chain.second_opinion and second is not None and criteria.bands:
        planned.append(tokens)
        asked.append(settings.config.providers[second])
    # Call by call: a token's price may rise with the prompt's length.
    costs = [Prices(p).cost_usd(read, 0, p.max_reply_tokens) for p, read in zip(asked, planned, strict=True)]
    return DryRun(messages, tokens, len(planned), _sum(costs), context.coverage, sorted(context.flags))


def _sum(costs: Sequence[float | None]) -> float | None:
    """The sum in USD; None if a cost is unknown."""
    known = [cost for cost in costs if cost is not None]
    return round(sum(known), USD_DIGITS) if len(known) == len(costs) else None


def _tokens(messages: Sequence[Message]) -> int:
    return sum(estimate_tokens(m.content) for m in messages)

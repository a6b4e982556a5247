"""
Work on one session without Kafka and without a database, for pipelines and for prompt authors.

`score_offline` scores it; timeline rules, context, judge and document are as in a worker. `dry_run` shows
what the judge would be asked, and what the calls would cost, without a call. Nothing is stored.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tarsy_scoring.config.chains import ChainSettings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import AttemptError
from tarsy_scoring.evaluation.agent_cost import USD_DIGITS
from tarsy_scoring.gates.run import run_gates
from tarsy_scoring.judge.ask.prices import Prices
from tarsy_scoring.judge.clock import AttemptClock
from tarsy_scoring.judge.criteria import Criteria, CriteriaRegistry
from tarsy_scoring.judge.strategies import STRATEGIES
from tarsy_scoring.judge.verdict import Ask, Message, Question, Turn
from tarsy_scoring.scores.document import document, unstored_row
from tarsy_scoring.scores.shapes import Turn as TurnPart
from tarsy_scoring.scoring.columns import Findings, completed_columns
from tarsy_scoring.scoring.providers import Case, add_second_opinion, context_budget, judge
from tarsy_scoring.timeline.clean.masking import masking_of
from tarsy_scoring.timeline.evidence import check_evidence
from tarsy_scoring.timeline.model import Timeline, sum_if_known
from tarsy_scoring.timeline.render.context import FittedContext, build_context, estimate_tokens
from tarsy_scoring.timeline.render.fence import new_nonce

if TYPE_CHECKING:  # a dry run asks nothing, and the judge's library takes half a second to import
    from tarsy_scoring.judge.ask.client import JudgeClient


async def score_offline(
    settings: Settings,
    registry: CriteriaRegistry,
    clients: Mapping[str, "JudgeClient"],
    timeline: Timeline,
    chain_id: str | None,
    *,
    with_judge: bool,
    reference: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """
    Score one session and return the document; where there is no score, `error_kind` says why.

    Args:
        reference: What the document carries from the reference in `timeline`.

    Raises:
        UnknownCriteria: The chain's criteria do not exist.
    """
    chain_id = chain_id or timeline.chain_id
    chain = settings.chain(chain_id)
    criteria = registry.of_chain(chain)
    started = datetime.now(UTC)
    turns: list[Turn] = []
    ended: dict[str, Any] = {"status": "completed"}
    found, verdict = Findings(timeline=timeline), None
    masking = masking_of(settings.config.masking_patterns)
    await found.measure(timeline, chain, masking)
    try:
        check_evidence(timeline, settings.config.evidence.max_missing_share, may_change=False)
        limit_s, gates = settings.attempt_timeout_s, settings.config.gates
        found.gates = await run_gates(chain.gates, timeline, gates, deadline_s=limit_s, masking=masking)
        if with_judge and chain.judge:
            asking = _recording(clients, AttemptClock(limit_s), turns)
            providers = settings.config.providers
            case = Case(timeline, new_nonce(), chain, criteria, providers, asking, masking=masking)
            # There is no later attempt, so every error in an optional turn is final.
            judgement = await judge(case, lambda _error: True)
            await add_second_opinion(judgement, case)
            found.context, verdict = judgement.context, judgement.verdict
        first = [turn for turn in turns if turn.kind != "second_opinion"]
        ended |= completed_columns(found, verdict, first, criteria, settings, chain_id)
        ended["reference"] = reference if found.has_reference else None
        if verdict is not None:
            ended["missing_tools"] = [asdict(tool) for tool in verdict.missing_tools]
            ended["alternative_approaches"] = [asdict(one) for one in verdict.alternative_approaches]
    except AttemptError as error:
        status = getattr(error, "status", "failed")
        ended = {"status": status, "error_kind": error.error_kind, "error_message": str(error)}
    row = {
        **unstored_row(timeline.session_id, chain_id, criteria.name, criteria.criteria_hash, started),
        "purpose": "shadow" if registry.tried else "production",
        **found.columns(turns),
        **ended,
        "prompt_hashes": criteria.content["prompt_hashes"],
        "turns": [{name: getattr(turn, name) for name in TurnPart.model_fields} for turn in turns],
    }
    return document(row, lambda _name, _chain: criteria.criteria_hash)


def _recording(
    clients: Mapping[str, "JudgeClient"], clock: AttemptClock, turns: list[Turn]
) -> Callable[[str, FittedContext], Ask]:
    """For `Judges.ask_of`: asks a provider and appends the turn."""

    def ask_of(provider: str, _context: FittedContext) -> Ask:
        async def ask(question: Question) -> Turn:
            turn = await clients[provider].ask(question, clock=clock)
            turns.append(turn)
            return turn

        return ask

    return ask_of


# --- dry run -------------------------------------------------------------------------------------------


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

    The plan counts one call per sample, one with suspicious text masked if the session contains such text,
    one follow-up if the strategy asks one, and a second opinion if another provider may be asked. A chain
    without a judge has no calls.

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
    if chain.judge:
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
    cost_usd = sum_if_known((0.0, *costs))
    rounded = None if cost_usd is None else round(cost_usd, USD_DIGITS)
    return DryRun(messages, tokens, len(planned), rounded, context.coverage, sorted(context.flags))


def _tokens(messages: Sequence[Message]) -> int:
    return sum(m.tokens for m in messages)

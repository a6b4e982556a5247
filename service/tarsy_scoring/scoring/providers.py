"""
One judgement: the chain's providers are asked in their order, each with a context that fits the window.

Where the verdict is in doubt, another provider may judge as well; the first total counts. The worker, which
stores every turn, and scoring without a database share this module.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import structlog

from tarsy_scoring import errors
from tarsy_scoring.config.chains import ChainSettings, ProviderSettings
from tarsy_scoring.judge.assess import assess
from tarsy_scoring.judge.conversation import Conversation
from tarsy_scoring.judge.criteria import Criteria
from tarsy_scoring.judge.doubt import agree, needs_second_opinion
from tarsy_scoring.judge.strategies import STRATEGIES
from tarsy_scoring.judge.verdict import Ask, IsFinal, Question, SecondOpinion, Turn, Verdict
from tarsy_scoring.timeline.clean.masking import SHIPPED, Masking
from tarsy_scoring.timeline.computing import compute_on
from tarsy_scoring.timeline.model import Timeline
from tarsy_scoring.timeline.render.context import FittedContext, build_context

log = structlog.get_logger()
T = TypeVar("T")

OVERFLOW_TRIES = 6
# An endpoint that reports far fewer input tokens than were sent has cut the input. Estimates are within a
# factor of 2.
TRUNCATED_SHARE, TRUNCATED_FROM_TOKENS = 1 / 3, 2_000

# A provider whose tokenizer counts more than the estimate refuses the prompt. Each refusal takes off a
# quarter.
OVERFLOW_STEP = 0.75
# Room for repeated reminders and the message envelope, which no prompt counts.
OVERHEAD_TOKENS = 600

_DATES = re.compile(r"(?:-(?:\d{4}-\d\d-\d\d|\d{8}|latest))+$")

# Errors after which the chain's next provider is asked.
_TRY_NEXT = (
    errors.WaitFor,
    errors.JudgeUnavailable,
    errors.Refused,
    errors.ContentFiltered,
    errors.JudgeRejectedRequest,
    errors.ContextTooLong,
)


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, and the context that the judge was shown."""

    verdict: Verdict
    context: FittedContext


@dataclass(frozen=True, slots=True)
class Case:
    """
    A session to judge, the providers that may judge it, and how to ask them.

    Args:
        ask_of: Makes the `Ask` for a provider and a context.
        token_factor: A provider's real tokens per estimated one, as learned, >= 1.
        masking: Rules about secrets.
    """

    timeline: Timeline
    nonce: str
    chain: ChainSettings
    criteria: Criteria
    providers: Mapping[str, ProviderSettings]
    ask_of: Callable[[str, FittedContext], Ask]
    token_factor: Callable[[str], float] = lambda _provider: 1.0
    masking: Masking = SHIPPED


async def judge(case: Case, is_final: IsFinal) -> Judgement:
    """
    Judge with the chain's first provider that gives a score, in the order of `providers_of`.

    The next provider is asked where one is unreachable or must not be called now, refuses, filters, rejects
    the request, or has too small a window. It continues with the turns that are already stored.

    Raises:
        RetryLater, WaitFor, Unscorable: No provider gave a score; see `most_hopeful` for which error is
            raised.
        LeaseLost: Another worker holds the score, or it was cancelled.
    """
    failures: list[errors.ScoringError] = []
    for provider in providers_of(case):
        try:
            return await _judge_at(provider, case, is_final)
        except errors.AttemptError as error:
            failures.append(error)
            if not isinstance(error, _TRY_NEXT):
                break
            if len(case.chain.providers) > 1:
                log.warning("judge.provider_failed", provider=provider, reason=str(error))
    raise most_hopeful(failures)


async def _judge_at(provider: str, case: Case, is_final: IsFinal) -> Judgement:
    async def assess_in(context: FittedContext, mask: Mask) -> Judgement:
        ask, masked = case.ask_of(provider, context), mask if context.injections else None
        verdict = await assess(context, case.criteria, ask, case.chain, is_final=is_final, masked=masked)
        return Judgement(verdict, context)

    return await in_fitting_context(provider, case, assess_in)


Mask = Callable[[], Awaitable[FittedContext]]
"""Renders the context again at the same size, with suspicious text masked."""


async def in_fitting_context(
    provider: str, case: Case, work: Callable[[FittedContext, Mask], Awaitable[T]]
) -> T:
    """
    Do `work` in a context that fits one provider, with ever smaller contexts while it refuses them as too
    long.

    Raises:
        ContextTooLong: The provider refuses every context.
        RetryLater, WaitFor, Unscorable, LeaseLost: As `work` raises them.
    """
    settings = case.providers[provider]
    budget = context_budget(settings, case.criteria, case.token_factor(provider))
    for _ in range(OVERFLOW_TRIES):
        context = await _render(case, budget)
        try:
            return await work(context, partial(_render, case, budget, mask_injections=True))
        except errors.PromptTooLong as error:
            budget = smaller_budget(budget, context.tokens, error, settings, case.criteria)
            log.warning("attempt.context_too_long", provider=provider, next_budget_tokens=budget)
    raise errors.ContextTooLong(
        f"the judge at {provider!r} refuses even {context.tokens} estimated tokens as too long; "
        "set context_window_tokens to what the model really has"
    )


async def _render(case: Case, budget_tokens: int, *, mask_injections: bool = False) -> FittedContext:
    what, masking = (case.timeline, case.nonce, budget_tokens), case.masking
    build = partial(build_context, *what, mask_injections=mask_injections, masking=masking)
    return await compute_on(case.timeline, build)


# --- second opinions ---------------------------------------------------------------------------------


async def add_second_opinion(judgement: Judgement, case: Case) -> None:
    """
    Ask the next provider where the chain wants it and the verdict is in doubt, and add that judgement to the
    verdict.

    A provider that cannot be asked now, or gives no score, costs the second opinion and never the score. It
    is not waited for and not asked by a later attempt.

    Raises:
        LeaseLost: Another worker holds the score, or it was cancelled.
    """
    verdict, chain, bands = judgement.verdict, case.chain, case.criteria.bands
    provider = chain.next_provider(verdict.total_turn.provider)
    if not chain.second_opinion or provider is None or not needs_second_opinion(verdict, bands):
        return
    try:
        second = await _judge_second(provider, case)
    except errors.AttemptError as error:
        reason = error.word
        verdict.second_opinion = SecondOpinion(provider, reason=reason)
        return
    agrees = agree(verdict, second, bands)
    verdict.second_opinion = SecondOpinion(provider, second.total_score, second.judge_outcome, agrees)
    if not agrees:
        verdict.flags.add("second_opinion_disagrees")


async def _judge_second(provider: str, case: Case) -> Verdict:
    """
    Judge once with one provider. All turns have the kind `second_opinion`, reminders and repairs
    included.

    Suspicious text is masked: a single judgement has no other one that would show an effect.
    """
    criteria, strategy = case.criteria, STRATEGIES[case.criteria.strategy]

    async def evaluate(context: FittedContext, mask: Mask) -> Verdict:
        if context.injections:
            context = await mask()
        ask = case.ask_of(provider, context)

        async def ask_second(question: Question) -> Turn:
            return await ask(replace(question, kind="second_opinion"))

        opening, reply_format = criteria.open_conversation(context), strategy.reply_format(criteria)
        reminders = case.chain.max_reminders
        conversation = Conversation(ask_second, opening, reply_format, max_reminders=reminders)
        return await strategy.evaluate(conversation, criteria, "second_opinion")

    return await in_fitting_context(provider, case, evaluate)


# --- decisions -----------------------------------------------------------------------------------------


def context_budget(
    provider: ProviderSettings, criteria: Criteria, factor: float = 1.0, window_tokens: int | None = None
) -> int:
    """
    Room for alert and conversation, in estimated tokens.

    That is the window less the prompts, two answers and some overhead. The second turn reads the first
    answer, and an answer that was cut is asked for again at greater length.

    Args:
        factor: Real tokens per estimated token.
        window_tokens: The window that the endpoint reported, where it is smaller than the configured one.
    """
    window = min(provider.context_window_tokens, window_tokens or provider.context_window_tokens)
    room = (window - 2 * provider.max_reply_tokens) / factor
    return max(0, int(room) - criteria.prompt_tokens - OVERHEAD_TOKENS)


def smaller_budget(
    budget: int,
    context_tokens: int,
    error: errors.PromptTooLong,
    provider: ProviderSettings,
    criteria: Criteria,
) -> int:
    """The budget after a refusal: what the endpoint's numbers leave, at least a quarter less than before."""
    step = int(min(budget, context_tokens) * OVERFLOW_STEP)
    if error.window_tokens is None and error.prompt_tokens is None:
        return step
    factor = max(1.0, (error.prompt_tokens or 0) / (context_tokens + criteria.opening_tokens))
    left = context_budget(provider, criteria, factor, error.window_tokens)
    return min(step, left) if left > 0 else step  # the reserve for answers may be larger than the answers


def most_hopeful(failures: Sequence[errors.ScoringError]) -> errors.ScoringError:
    """The error to raise if no provider gave a score: the shortest wait, else a retry, else the first."""
    waits = [f for f in failures if isinstance(f, errors.WaitFor)]
    if waits:
        return min(waits, key=lambda w: w.due_s)
    return next((f for f in failures if isinstance(f, errors.RetryLater)), failures[0])


def plain_model(name: str) -> str:
    """A model's name without vendor, tag and date: `openai/GPT-4.1-2025-04-14` becomes `gpt-4.1`."""
    return _DATES.sub("", re.split("[:@]", name.strip().lower().rpartition("/")[2])[0])


def providers_of(case: Case) -> list[str]:
    """The chain's providers in their order, those whose model was an agent in the session last."""
    agents = case.timeline.agent_models
    return sorted(case.chain.providers, key=lambda p: is_self_judged([case.providers[p].model], agents))


def is_self_judged(judges: Iterable[str | None], agents: Iterable[str]) -> bool:
    """Whether a judging model was also an agent in the session; vendor, tag and date are ignored."""
    return not {plain_model(j) for j in judges if j}.isdisjoint(plain_model(a) for a in agents)


def flags_of(turns: Sequence[Turn], context: FittedContext, criteria: Criteria) -> set[str]:
    """
    Flags for what an endpoint did without saying so: it cut the input, or changed the model between turns.

    Args:
        turns: All turns for the score, in the order asked.
        context: As shown to the provider asked last; earlier providers may have had a smaller
            one.
    """
    flags = set()
    estimate = context.tokens + criteria.opening_tokens
    read = [t.input_tokens for t in turns if t.input_tokens is not None and t.provider == turns[-1].provider]
    if estimate >= TRUNCATED_FROM_TOKENS and any(r < TRUNCATED_SHARE * estimate for r in read):
        flags.add("input_truncated_by_provider")
    if _has_model_changed(turns):
        flags.add("model_changed")
    return flags


def _has_model_changed(turns: Sequence[Turn]) -> bool:
    """Whether a provider served several models."""
    served = {(t.provider, t.model_served) for t in turns if t.model_served}
    return len(served) > len({provider for provider, _ in served})

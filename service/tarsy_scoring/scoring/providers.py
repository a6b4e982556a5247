"""
One judgement: the chain's providers in their order, each with a context that fits its window.

Shared by the worker, which makes every turn durable, and by scoring without a database.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from tarsy_scoring.config.settings import ChainSettings, ProviderSettings
from tarsy_scoring.errors import (
    ContentFiltered,
    ContextTooLong,
    JudgeRejectedRequest,
    JudgeUnavailable,
    PromptTooLong,
    Refused,
    RetryLater,
    ScoringError,
    Unscorable,
    WaitFor,
)
from tarsy_scoring.judge.assess import Plan, assess
from tarsy_scoring.judge.criteria import Criteria
from tarsy_scoring.judge.verdict import Ask, IsFinal, Turn, Verdict
from tarsy_scoring.timeline.context import FittedContext, build_context
from tarsy_scoring.timeline.model import Timeline

log = structlog.get_logger()

# Rendering holds the event loop, on which heartbeats run; beyond this it goes to a thread.
INLINE_RENDER_CHARACTERS = 300_000
# A provider whose tokenizer counts more than we estimate says so; each refusal takes a quarter off.
OVERFLOW_STEP, OVERFLOW_TRIES = 0.75, 6
# Room for what no prompt counts: reminders said twice, the message envelope.
OVERHEAD_TOKENS = 600
# An endpoint that reads much less than was sent has cut it silently. Estimates are nowhere near three times off.
TRUNCATED_SHARE, TRUNCATED_FROM_TOKENS = 1 / 3, 2_000

_DATES = re.compile(r"(?:-(?:\d{4}-\d\d-\d\d|\d{8}|latest))+$")

# What the next provider of a chain may do better.
_ANOTHER_MAY = (WaitFor, JudgeUnavailable, Refused, ContentFiltered, JudgeRejectedRequest, ContextTooLong)


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, and what it was made of."""

    verdict: Verdict
    context: FittedContext


@dataclass(frozen=True, slots=True)
class Judges:
    """
    Who may be asked, and how.

    Args:
        ask_of: Gives the `Ask` for a provider and a context.
        token_factor: Real tokens per estimated one, by provider, as far as learned; >= 1.
    """

    providers: Mapping[str, ProviderSettings]
    ask_of: Callable[[str, FittedContext], Ask]
    token_factor: Callable[[str], float] = lambda _provider: 1.0


async def judge(
    timeline: Timeline, nonce: str, chain: ChainSettings, criteria: Criteria, judges: Judges, is_final: IsFinal
) -> Judgement:
    """
    Judge with the first provider of the chain that can.

    The next one is asked where a provider cannot be reached or must not be asked now, refuses, filters,
    rejects the request or has too small a window; it goes on with the turns that are stored already.

    Raises:
        RetryLater, WaitFor, Unscorable: No provider gave a score; of several reasons the most hopeful one.
        LeaseLost: The score belongs to another worker now.
    """
    failures: list[ScoringError] = []
    for provider in chain.providers:
        try:
            return await _judge_at(provider, timeline, nonce, chain, criteria, judges, is_final)
        except (RetryLater, WaitFor, Unscorable) as error:
            failures.append(error)
            if not isinstance(error, _ANOTHER_MAY):
                break
            if len(chain.providers) > 1:
                log.warning("judge.provider_failed", provider=provider, reason=str(error))
    raise most_hopeful(failures)


async def _judge_at(
    provider: str,
    timeline: Timeline,
    nonce: str,
    chain: ChainSettings,
    criteria: Criteria,
    judges: Judges,
    is_final: IsFinal,
) -> Judgement:
    """Judge with one provider; where it says that the context is too long, with a smaller one."""
    settings = judges.providers[provider]
    plan = Plan(chain.samples, chain.max_reminders)
    budget = context_budget(settings, criteria, judges.token_factor(provider))
    for _ in range(OVERFLOW_TRIES):
        context = await _render(timeline, nonce, budget)
        masked = partial(_render, timeline, nonce, budget, mask_injections=True) if context.injections else None
        try:
            ask = judges.ask_of(provider, context)
            return Judgement(await assess(context, criteria, ask, plan, is_final=is_final, masked=masked), context)
        except PromptTooLong as error:
            budget = smaller_budget(budget, context.tokens, error, settings, criteria)
            log.warning("attempt.context_too_long", provider=provider, next_budget_tokens=budget)
    raise ContextTooLong(
        f"the judge at {provider!r} refuses even {context.tokens} estimated tokens as too long; "
        "set context_window_tokens to what the model really has"
    )


async def _render(
    timeline: Timeline, nonce: str, budget_tokens: int, *, mask_injections: bool = False
) -> FittedContext:
    """The context, in a thread where the session is large."""
    build = partial(build_context, timeline, nonce, budget_tokens, mask_injections=mask_injections)
    size = sum(len(e.content) for s in timeline.shown_stages for x in s.executions for e in x.events)
    return await asyncio.to_thread(build) if size > INLINE_RENDER_CHARACTERS else build()


# --- decisions -----------------------------------------------------------------------------------------


def context_budget(
    provider: ProviderSettings, criteria: Criteria, factor: float = 1.0, window_tokens: int | None = None
) -> int:
    """
    Room for alert and conversation in estimated tokens.

    The window less the prompts, the first answer (which is part of what the second turn reads), a cut
    answer's larger repetition, and some overhead.

    Args:
        factor: Real tokens per estimated one.
        window_tokens: What the endpoint says it has, where that is not what is configured.
    """
    window = min(provider.context_window_tokens, window_tokens or provider.context_window_tokens)
    room = (window - 2 * provider.max_reply_tokens) / factor
    return max(0, int(room) - criteria.prompt_tokens - OVERHEAD_TOKENS)


def smaller_budget(
    budget: int, context_tokens: int, error: PromptTooLong, provider: ProviderSettings, criteria: Criteria
) -> int:
    """What to try after a refusal: what the endpoint's own numbers leave, and at least a quarter less."""
    step = int(min(budget, context_tokens) * OVERFLOW_STEP)
    if error.window_tokens is None and error.prompt_tokens is None:
        return step
    factor = max(1.0, (error.prompt_tokens or 0) / (context_tokens + criteria.opening_tokens))
    left = context_budget(provider, criteria, factor, error.window_tokens)
    return min(step, left) if left > 0 else step  # what we reserve for answers may be more than it really needs


def most_hopeful(failures: Sequence[ScoringError]) -> ScoringError:
    """Of why each provider gave no score: the shortest wait, else what may pass, else the first."""
    waits = [f for f in failures if isinstance(f, WaitFor)]
    if waits:
        return min(waits, key=lambda w: w.due_s)
    return next((f for f in failures if isinstance(f, RetryLater)), failures[0])


def plain_model(name: str) -> str:
    """A model without vendor, tag and date: `openai/GPT-4.1-2025-04-14` and `gpt-4.1` are one to us."""
    return _DATES.sub("", re.split("[:@]", name.strip().lower().rpartition("/")[2])[0])


def is_self_judged(judges: Iterable[str | None], agents: Iterable[str]) -> bool:
    """Whether one of the judging models worked on the session itself, however the two are spelt."""
    return not {plain_model(j) for j in judges if j}.isdisjoint(plain_model(a) for a in agents)


def flags_of(turns: Sequence[Turn], context: FittedContext, criteria: Criteria) -> set[str]:
    """
    What the endpoint did beside answering: it cut the input silently, or changed the model under way.

    Args:
        turns: All turns of the score, in the order in which they were asked.
        context: What the provider that was asked last was shown; others may have had to do with less.
    """
    flags = set()
    estimate = context.tokens + criteria.opening_tokens
    read = [t.input_tokens for t in turns if t.input_tokens is not None and t.provider == turns[-1].provider]
    if estimate >= TRUNCATED_FROM_TOKENS and any(r < TRUNCATED_SHARE * estimate for r in read):
        flags.add("input_truncated_by_provider")
    served: dict[str, set[str]] = {}
    for turn in turns:
        if turn.model_served:
            served.setdefault(turn.provider, set()).add(turn.model_served)
    if any(len(models) > 1 for models in served.values()):
        flags.add("model_changed")
    return flags

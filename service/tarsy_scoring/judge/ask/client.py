"""
Asks a judge's model: fits questions to its window, asks for permits, and retries transient errors.

`endpoint.py` makes the single calls.
"""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import httpx2
import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from tarsy_scoring.config.chains import MemorySettings, ProviderSettings
from tarsy_scoring.config.secrets import WatchedSecret, read_api_key
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import AttemptTimedOut, JudgeRejectedRequest, PromptTooLong, ScoringError, WaitFor
from tarsy_scoring.judge.ask.endpoint import Endpoint, FittedQuestion
from tarsy_scoring.judge.ask.errors import LONGEST_WAIT_S, TransientError
from tarsy_scoring.judge.clock import AttemptClock
from tarsy_scoring.judge.verdict import Question, Turn
from tarsy_scoring.telemetry.otel import OFF, Tracing
from tarsy_scoring.timeline.render.context import estimate_tokens

RETRY_WAITS_S = (1.0, 2.0, 4.0)
JITTER = 0.2  # our own waits vary up and down, a wait that the provider asked for only up
# The reply limit shrinks to the rest of the window, but not below this share of `max_reply_tokens` or these
# tokens.
LEAST_REPLY_SHARE, LEAST_REPLY_TOKENS = 1 / 4, 256
TRIAL = "Reply with the word OK."
REJECTED_DUE_S = 30.0

_log = structlog.get_logger()


class Permits(Protocol):
    """Grants permits for single calls and books their outcomes, under the fleet's limits."""

    async def admit(self, provider: str, tokens: int, most_usd: float | None) -> Any:
        """
        Grant one call, and reserve tokens and money for it; returns the permit for `settle`.

        Args:
            tokens: Estimated input plus the reply limit.
            most_usd: The highest possible cost; None where prices are unknown.

        Raises:
            WaitFor: The call is not allowed now.
        """
        ...

    async def settle(self, permit: Any, **result: Any) -> None:
        """
        Book an admitted call's outcome; keywords as in `limits.rules.Result`.

        Takes no attempt time: the answer has arrived and is paid for. Never
        called for a call that was cancelled, or that ended too early to say anything about the provider.
        """
        ...


class JudgeClient:
    """
    Asks one provider. One per provider and process; safe for concurrent use in one event loop.

    Args:
        api_key: None for an endpoint without keys.
        slots: Simultaneous calls where the provider's `max_concurrency` is null, >= 1.
        sleep: Waits between calls; tests replace it.
        tracing: Receives a span per question.
        transport: Replaces the network in tests.

    Raises:
        ConfigurationError: Key, headers, proxy or CA file cannot be used.
    """

    def __init__(
        self,
        provider: str,
        settings: ProviderSettings,
        api_key: str | WatchedSecret | None,
        *,
        slots: int = 16,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        tracing: Tracing = OFF,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.provider = provider
        self.settings = settings
        self.endpoint = Endpoint(provider, settings, api_key, transport)
        self.prices = self.endpoint.prices
        self._calls = asyncio.Semaphore(settings.max_concurrency or slots)
        self._sleep = sleep
        self._tracing = tracing

    async def close(self) -> None:
        """Close all connections; safe to call twice."""
        await self.endpoint.close()

    async def ask(
        self,
        question: Question,
        *,
        clock: AttemptClock,
        permits: Permits | None = None,
        token_factor: float = 1.0,
    ) -> Turn:
        """
        Call the model, and call it again after transient errors (after 1 s, 2 s, 4 s, or the wait that is
        asked for).

        Prompt and reply limit together stay within `context_window_tokens`; the reply limit shrinks where
        necessary. A call that used all of `timeout_s` is not repeated, so that another provider gets a
        turn. After a rejection a trial is called, the same request with hardly any text, and then the
        request again: a rejection is about the request only if another one is answered. A cancellation
        closes the connection and frees the slot; the provider may bill what the model wrote until then.

        Args:
            clock: The attempt's. Calls and the pauses between them count; waiting for a free slot or a
                permit does not.
            permits: Asked for a permit before each single call; settled with the outcome. None: no trial.
            token_factor: Real tokens per estimated one, >= 1.

        Returns:
            The answer. Refusals and cut answers are returned too; `Conversation` reacts to them.

        Raises:
            JudgeUnavailable: Unreachable, 408, 409, 424, 5xx, or no chat completion, 4 times; or no answer
                within `timeout_s`, once.
            AttemptTimedOut: The attempt's time was up.
            WaitFor: 429 four times, or a wait longer than 30 s or than the attempt has left; without
                retries where the key is rejected or the quota used up; also raised by `permits` (a short
                pause is slept through instead).
            PromptTooLong: Without retries, whatever the status; also before a call, where the window leaves
                no room for a reply.
            ContentFiltered: The provider refused the prompt.
            JudgeRejectedRequest: Any other 3xx or 4xx.
        """
        fitted = self._fit(question, token_factor)

        with self._tracing.chat(self.provider, self.settings, question.kind) as tell:
            try:
                turn: Turn = await self._retrying(clock)(self._call, fitted, permits, clock)
                tell(turn)
                return turn
            except TimeoutError:
                failure: ScoringError = AttemptTimedOut(
                    f"{self.endpoint.who} had not answered when the attempt's time was up"
                )
            except TransientError as transient:
                failure = transient.error
            raise failure  # outside `except`, so that the provider's free text does not become its cause

    async def embed(self, texts: Sequence[str], by: MemorySettings, permits: Permits) -> list[Any]:
        """
        Embed texts with a model of this provider; once, without retries.

        Pauses, rates and an open circuit hold as for a question. The outcome changes no circuit and no
        budget: prices are those of the judge's model.

        Raises:
            EmbeddingsAway: See `Endpoint.embed`.
            WaitFor: Raised by `permits`.
        """
        permit = await permits.admit(self.provider, sum(map(estimate_tokens, texts)), 0.0)
        await permits.settle(permit, is_refused=True, cost_usd=0.0)
        return await self.endpoint.embed(texts, by)

    def _retrying(self, clock: AttemptClock) -> AsyncRetrying:
        def is_over(state: RetryCallState) -> bool:
            longest_s = min(LONGEST_WAIT_S, clock.left_s)
            return state.attempt_number > len(RETRY_WAITS_S) or state.upcoming_sleep > longest_s

        return AsyncRetrying(
            retry=retry_if_exception_type(TransientError),
            wait=_wait_s,
            stop=is_over,
            sleep=self._sleep,
            before_sleep=self._log_retry,
            reraise=True,
        )

    def _fit(self, question: Question, token_factor: float) -> FittedQuestion:
        """
        Fit the reply limit into the window that the prompt leaves.

        Raises:
            PromptTooLong: The prompt leaves too few tokens for a reply.
        """
        most, window = self.settings.max_reply_tokens, self.settings.context_window_tokens
        estimated = sum(message.tokens for message in question.messages)
        tokens = math.ceil(estimated * token_factor)
        reply_limit = min(most * question.reply_limit_factor, window - tokens)
        least = min(most, max(int(most * LEAST_REPLY_SHARE), LEAST_REPLY_TOKENS))
        if reply_limit < (least if question.reply_limit_factor == 1 else most + 1):
            raise PromptTooLong(
                f"{self.endpoint.who} was not asked: of its {window} tokens (context_window_tokens) a prompt of about "
                f"{tokens} leaves too few for a reply; shorter answers, or a larger window, would help",
                window,
                tokens,
            )
        return FittedQuestion(question, estimated, tokens, reply_limit)

    async def _call(self, fitted: FittedQuestion, permits: Permits | None, clock: AttemptClock) -> Turn:
        # The permit is taken last: no reservation must be held while the call waits for a free slot.
        await clock.untimed(self._calls.acquire())
        try:
            try:
                return await self._call_once(fitted, permits, clock)
            except JudgeRejectedRequest:
                if permits is None:
                    raise
            try:
                await self._call_once(_trial_of(fitted), permits, clock, is_trial=True)
            except JudgeRejectedRequest as error:
                reason = f"{error}; it rejects a trial as well"
                raise WaitFor(reason, REJECTED_DUE_S, "rejected") from error
            return await self._call_once(fitted, permits, clock)  # the endpoint may have recovered in between
        finally:
            self._calls.release()

    async def _call_once(
        self, fitted: FittedQuestion, permits: Permits | None, clock: AttemptClock, *, is_trial: bool = False
    ) -> Turn:
        """Call until the endpoint neither refuses a parameter, which is not sent again, nor an old key."""
        while True:
            request = self.endpoint.prepare(fitted)
            permit = await clock.untimed(self._admit(permits, fitted)) if permits else None
            ends_at = asyncio.get_running_loop().time() + clock.left_s
            outcome = await self.endpoint.call(fitted, request, ends_at)
            is_rejected = isinstance(outcome.result, JudgeRejectedRequest)
            if permits and outcome.account is not None:
                found = {"opens": "rejected"} if is_rejected and is_trial else {"is_rejected": is_rejected}
                settled = {**outcome.account, **found, "is_trial": is_trial}
                await clock.untimed(permits.settle(permit, **settled))
            if isinstance(outcome.result, Turn):
                return outcome.result
            if outcome.result is not None:
                raise outcome.result

    async def _admit(self, permits: Permits, fitted: FittedQuestion) -> Any:
        """Obtain a permit; a pause that ends soon enough is slept through."""
        most_usd = None
        if self.prices.are_known:
            # Estimates are right within a factor of 2, and the model reads at most its window.
            most_read = min(2 * fitted.tokens, self.settings.context_window_tokens)
            most_usd = self.prices.cost_usd(most_read, 0, fitted.reply_limit)
        while True:
            try:
                return await permits.admit(self.provider, fitted.tokens + fitted.reply_limit, most_usd)
            except WaitFor as limit:
                if limit.waiting_for != "rate_limit" or limit.due_s > LONGEST_WAIT_S:
                    raise
                await self._sleep(limit.due_s)

    def _log_retry(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        _log.warning(
            "judge.call_retried",
            provider=self.provider,
            attempt=state.attempt_number,
            wait_s=round(state.upcoming_sleep, 3),
            reason=str(error),
        )


def _trial_of(fitted: FittedQuestion) -> FittedQuestion:
    """The same request with hardly any text."""
    question = fitted.question
    messages = [replace(message, content=TRIAL) for message in question.messages]
    tokens = sum(message.tokens for message in messages)
    question = replace(question, messages=messages, reply_format=None)
    return replace(fitted, question=question, estimated=tokens, tokens=tokens)


def create_clients(
    settings: Settings, environ: Mapping[str, str] | None = None, tracing: Tracing = OFF
) -> dict[str, JudgeClient]:
    """
    Create one client per configured provider, by name.

    Raises:
        ConfigurationError: A provider's key is missing, or its configuration cannot be used.
    """
    return {
        name: JudgeClient(
            name, provider, read_api_key(settings, name, environ), slots=settings.slots, tracing=tracing
        )
        for name, provider in settings.config.providers.items()
    }


def _wait_s(state: RetryCallState) -> float:
    """The wait before the next call, with jitter: as the provider asked, or else our own."""
    error = state.outcome.exception() if state.outcome else None
    asked = error.after_s if isinstance(error, TransientError) else None
    spread = random.random()  # noqa: S311  # jitter needs no secure source
    if asked is None:
        base = RETRY_WAITS_S[min(state.attempt_number, len(RETRY_WAITS_S)) - 1]
        return base * (1 + JITTER * (2 * spread - 1))
    # Never earlier than asked, and not above the limit through jitter alone.
    return asked if asked > LONGEST_WAIT_S else min(LONGEST_WAIT_S, asked * (1 + JITTER * spread))

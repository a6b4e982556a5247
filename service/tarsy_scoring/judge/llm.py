"""
The judge's model behind an OpenAI-compatible endpoint: one call, its retries, and what each error means.

The only importer of `openai`. Its own retries are off: two layers would multiply calls and hide their cost.
"""

import asyncio
import contextlib
import math
import random
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import aiohttp
import httpx2  # what openai is built on; for its limits and responses
import openai
import structlog
from pydantic_core import to_json
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from tarsy_scoring.errors import (
    AttemptTimedOut,
    ConfigurationError,
    ContentFiltered,
    ContextTooLong,
    JudgeRejectedRequest,
    JudgeUnavailable,
    KeyRejected,
    QuotaExhausted,
    RateLimited,
    ScoringError,
)
from tarsy_scoring.judge.answers import Usage, read_turn
from tarsy_scoring.judge.faults import LONGEST_RATE_LIMIT_DUE_S, LONGEST_WAIT_S, Fault
from tarsy_scoring.judge.prices import Prices
from tarsy_scoring.judge.verdict import Message, ReplyFormat, Turn, TurnKind
from tarsy_scoring.settings import ProviderSettings, Settings
from tarsy_scoring.timeline.context import estimate_tokens

RETRY_WAITS_S = (1.0, 2.0, 4.0)
JITTER = 0.2  # of a wait of ours, up and down; of one the provider asked for, only up
SHORTEST_RATE_LIMIT_DUE_S = 10.0  # a provider that says "now" and answers 429 again must not make the queue spin
KEY_DUE_S = 60.0
QUOTA_DUE_S = 300.0
CONNECT_TIMEOUT_S = 10.0
SILENCE_S = 30.0  # from here on it counts as a failure that the attempt's time cut a call off; sooner it says nothing
# A reply limit shrinks to what the window leaves, down to this share of `max_reply_tokens` or this many tokens.
LEAST_REPLY_SHARE, LEAST_REPLY_TOKENS = 1 / 4, 256
# How an endpoint is asked for JSON, from the strictest to none: then the words of the prompt have to do.
JSON_LADDER = ("json_schema", "json_object", "text")
KEEPALIVE_S = 4.0  # less than the 5 s after which uvicorn, under many such endpoints, closes idle connections

_log = structlog.get_logger()


class PromptTooLong(ContextTooLong):
    """
    The endpoint says that the prompt does not fit into the model's window, or we know that before we send it.

    Args:
        window_tokens: Size of the window, where the endpoint reports it.
        prompt_tokens: Size of the prompt in the model's tokens, where the endpoint reports it.
    """

    def __init__(self, message: str, window_tokens: int | None, prompt_tokens: int | None) -> None:
        super().__init__(message)
        self.window_tokens = window_tokens
        self.prompt_tokens = prompt_tokens


class _TransientError(Exception):
    """Worth another call: `error` is what it becomes when it stays, `after_s` what the provider asked to wait."""

    def __init__(self, error: ScoringError, after_s: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.after_s = after_s


class Gate(Protocol):
    """Leave to make a call, and the account of what became of it: limits and money of the whole fleet."""

    async def admit(self, provider: str, tokens: int, most_usd: float | None) -> Any:
        """
        Args:
            tokens: Estimated input, and the reply limit.
            most_usd: What the call costs at most; None where prices are unknown.

        Raises:
            WaitFor: Not now.
        """
        ...

    async def settle(self, permit: Any, **result: Any) -> None:
        """
        What became of an admitted call: see `permits.Result`.

        Waited for as long as it takes, also beyond the deadline: the answer is there and is paid for. Never
        called for a call that was cancelled, or cut off too soon to say anything.
        """
        ...


class JudgeClient:
    """
    Calls one provider's model. One per provider and process; safe for concurrent use in one event loop.

    Args:
        api_key: None for an endpoint without keys.
        slots: Calls at once where the provider's `max_concurrency` is null, >= 1.
        sleep: Waits between calls; tests replace it.

    Raises:
        ConfigurationError: Key, headers, proxy or CA file cannot be used.
    """

    def __init__(
        self,
        provider: str,
        settings: ProviderSettings,
        api_key: str | None,
        *,
        slots: int = 16,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.provider = provider
        self.settings = settings
        self._who = f"the judge {settings.model!r} at {provider!r}"
        self._key = api_key
        self._sleep = sleep
        self._estimates: WeakKeyDictionary[Message, int] = WeakKeyDictionary()
        concurrency = settings.max_concurrency or slots
        self._calls = asyncio.Semaphore(concurrency)
        # What this endpoint turned out not to take. It begins with `max_tokens`: OpenAI's newer models refuse that
        # loudly, while servers that do not know `max_completion_tokens` ignore it and write without a limit.
        self._limit_parameter = "max_tokens"
        self._takes_temperature = True
        self._json_rung = 0
        self.prices = Prices(settings)
        _require_header_text(f"providers.{provider}: the key", api_key or "")
        for header, value in settings.extra_headers.items():
            _require_header_text(f"providers.{provider}.extra_headers.{header}", value)
        self._http = openai.DefaultAioHttpClient(
            limits=httpx2.Limits(
                max_connections=concurrency, max_keepalive_connections=concurrency, keepalive_expiry=KEEPALIVE_S
            ),
            timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),  # the deadline of a call is ours
            proxy=_proxy(provider, settings),
            verify=_tls(provider, settings),
            follow_redirects=False,  # session data goes where the operator said and nowhere else
        )
        client = openai.AsyncOpenAI(
            api_key=api_key or "none",
            base_url=settings.base_url,
            default_headers=settings.extra_headers,
            http_client=self._http,
        )
        self._headers = httpx2.Headers(client.auth_headers if api_key is not None else {})
        for header, given in client.default_headers.items():  # those of the operator come last, and win
            if isinstance(given, str):
                self._headers[header] = given
        self._url = str(client.base_url).rstrip("/") + "/chat/completions"

    async def close(self) -> None:
        """Give connections back; safe to call twice."""
        await self._http.aclose()

    async def ask(
        self,
        messages: Sequence[Message],
        kind: TurnKind,
        *,
        deadline_s: float,
        reply_limit_factor: int = 1,
        reply_format: ReplyFormat | None = None,
        gate: Gate | None = None,
        token_factor: float = 1.0,
    ) -> Turn:
        """
        Call the model, again after transient errors (1 s, 2 s, 4 s, or what the provider asks for).

        Nothing is sent that is over the window: the prompt and the reply limit together are within
        `context_window_tokens`, for which the reply limit shrinks where it has to. A call that took the whole of
        `timeout_s` is not made again: another provider should have its turn. A cancel closes the connection and
        frees the slot; what the model wrote until then may be billed.

        Args:
            deadline_s: What is left of the attempt. It covers waiting for a free call, calls and pauses.
            reply_limit_factor: The configured `max_reply_tokens` times this. Where it is more than 1 (an answer was
                cut), a limit that is no larger than the configured one is of no use.
            reply_format: JSON to ask for, as strictly as the endpoint can.
            gate: Asked before each single call, and told what became of it.
            token_factor: Real tokens of the model per estimated one, >= 1.

        Returns:
            The answer, whatever it says; a refusal or a cut answer is for the strategy to judge.

        Raises:
            JudgeUnavailable: Unreachable, 408, 409, 5xx, or no chat completion, 4 times; or no answer within
                `timeout_s`, once.
            AttemptTimedOut: The deadline passed.
            RateLimited: 429 four times, or a wait of more than 30 s or than the deadline leaves.
            KeyRejected, QuotaExhausted: At once; somebody has to act.
            PromptTooLong: Never transient, whatever the status; also before anything is sent, where the window
                leaves no room for a reply.
            ContentFiltered: The provider refused the prompt.
            JudgeRejectedRequest: Any other 3xx or 4xx.
            WaitFor: As the gate says; a pause of ours that is short enough is slept through.
        """
        now = asyncio.get_running_loop().time
        ends_at = now() + deadline_s
        question = self._question(messages, kind, reply_format, reply_limit_factor, token_factor)

        def is_over(state: RetryCallState) -> bool:
            return state.attempt_number > len(RETRY_WAITS_S) or state.upcoming_sleep > min(
                LONGEST_WAIT_S, ends_at - now()
            )

        retrying = AsyncRetrying(
            retry=retry_if_exception_type(_TransientError),
            wait=_wait_s,
            stop=is_over,
            sleep=self._sleep,
            before_sleep=self._log_retry,
            reraise=True,
        )
        try:
            return await retrying(self._call, question, gate, ends_at)
        except TimeoutError:
            failure: ScoringError = self._timed_out()
        except _TransientError as transient:
            failure = transient.error
        raise failure  # outside of `except`, so that no provider's free text hangs on it as a cause

    def _question(
        self,
        messages: Sequence[Message],
        kind: TurnKind,
        reply_format: ReplyFormat | None,
        reply_limit_factor: int,
        token_factor: float,
    ) -> "_Question":
        """Raises: PromptTooLong: The window leaves no room for a reply."""
        most, window = self.settings.max_reply_tokens, self.settings.context_window_tokens
        estimated = sum(self._estimate(message) for message in messages)
        tokens = math.ceil(estimated * token_factor)
        reply_limit = min(most * reply_limit_factor, window - tokens)
        least = min(most, max(int(most * LEAST_REPLY_SHARE), LEAST_REPLY_TOKENS))
        if reply_limit < (least if reply_limit_factor == 1 else most + 1):
            raise PromptTooLong(
                f"{self._who} was not asked: of its {window} tokens (context_window_tokens) a prompt of about {tokens} "
                f"leaves too few for a reply; shorter answers, or a larger window, would help",
                window,
                tokens,
            )
        return _Question(messages, kind, reply_format, estimated, tokens, reply_limit)

    def _estimate(self, message: Message) -> int:
        """Tokens of a message, looked for once for all turns that carry it."""
        if (known := self._estimates.get(message)) is None:
            known = self._estimates[message] = estimate_tokens(message.content)
        return known

    async def _call(self, question: "_Question", gate: Gate | None, ends_at: float) -> Turn:
        async with self._slot(ends_at):
            while True:
                parameters = self._parameters(question)
                body = _body(parameters, question.messages)
                async with asyncio.timeout_at(ends_at):
                    permit = await self._admit(gate, len(body), question, ends_at) if gate else None
                outcome = await self._exchange(body, question, ends_at)
                if gate and outcome.told is not None:  # not under the deadline: see `Gate.settle`
                    await gate.settle(permit, **outcome.told)
                if outcome.turn is not None:
                    return outcome.turn
                # Each parameter can be given up once, so this ends.
                if not (outcome.fault and self._adapt(parameters, outcome.fault)):
                    assert outcome.error is not None
                    raise outcome.error

    @contextlib.asynccontextmanager
    async def _slot(self, ends_at: float) -> AsyncIterator[None]:
        async with asyncio.timeout_at(ends_at):
            await self._calls.acquire()
        try:
            yield
        finally:
            self._calls.release()

    async def _exchange(self, body: bytes, question: "_Question", ends_at: float) -> "_Outcome":
        """One call, and what came of it."""
        started = time.perf_counter()
        own_end = asyncio.get_running_loop().time() + self.settings.timeout_s
        limit = asyncio.timeout_at(min(ends_at, own_end))
        try:
            async with limit:
                # `chat.completions.create` would make and check models of request and answer: 0.85 ms of CPU per call
                # with a prompt of 100 KB, where this takes 0.3. What they hold is ours to encode and to understand.
                response = await self._http.post(self._url, content=body, headers=self._headers)
        except (httpx2.HTTPError, aiohttp.ClientError, OSError) as error:  # also what `limit` raises
            if limit.expired():
                return self._silence(time.perf_counter() - started, is_attempt_over=ends_at < own_end)
            reason = f"could not be reached, or broke off ({type(error.__cause__ or error).__name__})"
            return _Outcome(_no_answer(), error=self._unavailable(reason))
        latency_ms = round((time.perf_counter() - started) * 1000)
        payload = _json_of(response)
        usage = Usage.of(payload)
        billed = {"tokens": usage.total, "cost_usd": self.prices.cost_usd(*usage)}
        needed = usage.total or question.tokens + question.reply_limit
        fault = Fault(response.status_code, response.headers, payload, response.text, needed)
        if not (response.is_success and isinstance(payload, dict) and not payload.get("error")):
            if usage.total is None and not fault.may_be_billed():
                billed = {"tokens": 0, "cost_usd": 0.0}
            return _Outcome(fault.account() | billed, error=self._failure(fault), fault=fault)
        turn = read_turn(payload, self.provider, self.settings.model, question.kind, latency_ms, billed["cost_usd"])
        if turn is None:
            return _Outcome(
                _no_answer() | billed, error=self._unavailable("answered something that is no chat completion")
            )
        learned = {"estimated_tokens": question.estimated, "read_tokens": usage.read}
        return _Outcome({**billed, **learned, "blocked_s": fault.retry_after_s()}, turn=turn)

    def _silence(self, waited_s: float, *, is_attempt_over: bool) -> "_Outcome":
        """The endpoint did not answer in time; a silence too short for that is not told."""
        if is_attempt_over:
            return _Outcome(_no_answer() if waited_s >= SILENCE_S else None, error=self._timed_out())
        reason = f"gave no answer within {self.settings.timeout_s:g} s"
        return _Outcome(_no_answer(), error=JudgeUnavailable(f"{self._who} {reason}"))

    async def _admit(self, gate: Gate, size_bytes: int, question: "_Question", ends_at: float) -> Any:
        # No token is shorter than a byte, and none is read beyond the window: more it cannot cost.
        most_read = min(size_bytes, self.settings.context_window_tokens)
        most_usd = self.prices.cost_usd(most_read, 0, question.reply_limit)
        while True:
            try:
                return await gate.admit(self.provider, question.tokens + question.reply_limit, most_usd)
            except RateLimited as limit:
                if limit.due_s > min(LONGEST_WAIT_S, ends_at - asyncio.get_running_loop().time()):
                    raise
                await self._sleep(limit.due_s)

    def _parameters(self, question: "_Question") -> dict[str, Any]:
        reply_format = question.reply_format
        parameters: dict[str, Any] = {"model": self.settings.model, self._limit_parameter: question.reply_limit}
        if self.settings.temperature is not None and self._takes_temperature:
            parameters["temperature"] = self.settings.temperature
        if reply_format is not None and (rung := JSON_LADDER[self._json_rung]) != "text":
            parameters["response_format"] = {"type": rung}
            if rung == "json_schema":
                schema = {"name": reply_format.name, "strict": True, "schema": reply_format.schema}
                parameters["response_format"]["json_schema"] = schema
        return parameters

    def _adapt(self, parameters: dict[str, Any], fault: Fault) -> bool:
        """Give up a parameter that the endpoint names as unsupported, for all calls to come; whether there was one."""
        refused = fault.unsupported_parameter(parameters.keys() & {"temperature", "max_tokens", "response_format"})
        if refused == "temperature":
            self._takes_temperature = False
        elif refused == "max_tokens":
            self._limit_parameter = "max_completion_tokens"
        elif refused == "response_format":
            # Concurrent first calls may all be refused the same rung: one step for all of them.
            self._json_rung = JSON_LADDER.index(parameters["response_format"]["type"]) + 1
        else:
            return False
        _log.info("judge.parameter_unsupported", provider=self.provider, parameter=refused)
        return True

    def _failure(self, fault: Fault) -> Exception:
        after_s = fault.retry_after_s()
        said = f"{self._who} answered {fault.describe(self._key)}"
        match fault.meaning:
            case "too_long":
                window, prompt = fault.token_sizes()
                sizes = f" (window {window}, prompt {prompt} tokens)" if window or prompt else ""
                return PromptTooLong(f"{self._who} says that the prompt is too long{sizes}", window, prompt)
            case "quota":
                return QuotaExhausted(f"{said}: the quota is used up; pay or raise it at the provider", QUOTA_DUE_S)
            case "key":
                return KeyRejected(f"{said}: the key is rejected; check the key of the provider", KEY_DUE_S)
            case "filtered":
                return ContentFiltered(f"{said}: its filter refuses the prompt; another provider may not")
            case "pause":
                due_s = min(max(after_s or 0, SHORTEST_RATE_LIMIT_DUE_S), LONGEST_RATE_LIMIT_DUE_S)
                return _TransientError(RateLimited(f"{said}: it asks for a pause", due_s), after_s)
            case "unavailable":
                return self._unavailable(f"answered {fault.describe(self._key)} and no chat completion", after_s)
            case "rejected":
                return JudgeRejectedRequest(f"{said}: check base_url, model and parameters of the provider")

    def _unavailable(self, reason: str, after_s: float | None = None) -> _TransientError:
        return _TransientError(JudgeUnavailable(f"{self._who} {reason}"), after_s)

    def _timed_out(self) -> AttemptTimedOut:
        return AttemptTimedOut(f"{self._who} had not answered when the attempt's time was up")

    def _log_retry(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        _log.warning(
            "judge.call_retried",
            provider=self.provider,
            attempt=state.attempt_number,
            wait_s=round(state.upcoming_sleep, 3),
            reason=str(error),
        )


def create_clients(settings: Settings, environ: Mapping[str, str] | None = None) -> dict[str, JudgeClient]:
    """
    A client per configured provider, by name.

    Raises:
        ConfigurationError: A provider's key is missing, or it cannot be used as configured.
    """
    return {
        name: JudgeClient(name, provider, settings.api_key(name, environ), slots=settings.slots)
        for name, provider in settings.config.providers.items()
    }


def _wait_s(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = error.after_s if isinstance(error, _TransientError) else None
    spread = random.random()  # noqa: S311  # spreads load, guards nothing
    if asked is None:
        base = RETRY_WAITS_S[min(state.attempt_number, len(RETRY_WAITS_S)) - 1]
        return base * (1 + JITTER * (2 * spread - 1))
    # Never earlier than asked, and not beyond the limit by jitter alone.
    return asked if asked > LONGEST_WAIT_S else min(LONGEST_WAIT_S, asked * (1 + JITTER * spread))


def _body(parameters: dict[str, Any], messages: Sequence[Message]) -> bytes:
    return to_json({**parameters, "messages": [{"role": m.role, "content": m.content} for m in messages]})


# --- one call ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Question:
    """What is asked; `estimated` are its tokens as we count them, `tokens` as the model probably does."""

    messages: Sequence[Message]
    kind: TurnKind
    reply_format: ReplyFormat | None
    estimated: int
    tokens: int
    reply_limit: int


@dataclass(frozen=True, slots=True)
class _Outcome:
    """
    What became of a call: a turn or an error.

    Args:
        told: To the gate, as `permits.Result` has it; None: nothing can be said.
        fault: Where the endpoint answered with an error.
    """

    told: dict[str, Any] | None
    turn: Turn | None = None
    error: Exception | None = None
    fault: Fault | None = None


def _no_answer() -> dict[str, Any]:
    """It may be billed all the same, so tokens and cost stay unknown."""
    return {"failed": True, "reason": "no answer"}


def _json_of(response: httpx2.Response) -> object:
    try:
        return response.json()
    except (ValueError, RecursionError):  # not JSON, not text, or nested to death
        return None


# --- how to connect ------------------------------------------------------------------------------------


def _require_header_text(what: str, value: str) -> None:
    if not (value.isascii() and value.isprintable()):
        raise ConfigurationError(f"{what} holds a character that cannot stand in a header (a line break, perhaps)")


def _proxy(provider: str, settings: ProviderSettings) -> httpx2.Proxy | None:
    if settings.proxy is None:
        return None
    try:
        proxy = httpx2.Proxy(settings.proxy)
    except (ValueError, httpx2.InvalidURL):
        proxy = None
    if proxy is None or proxy.url.scheme not in ("http", "https"):
        raise ConfigurationError(f"providers.{provider}.proxy: expected http://host:port or https://host:port")
    return proxy


def _tls(provider: str, settings: ProviderSettings) -> ssl.SSLContext | bool:
    if settings.ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or "it holds no certificate"
        raise ConfigurationError(f"providers.{provider}.ca_file: cannot use {settings.ca_file}: {reason}") from None

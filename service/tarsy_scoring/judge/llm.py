"""
The judge's model behind an OpenAI-compatible endpoint: one call, its retries, and what each error means.

The only importer of `openai`. Its own retries are off: two layers would multiply calls and hide their cost.
"""

import asyncio
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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
from tarsy_scoring.judge.faults import Fault, as_count, as_mapping
from tarsy_scoring.judge.prices import Prices
from tarsy_scoring.judge.verdict import Message, ReplyFormat, Turn, TurnKind
from tarsy_scoring.settings import ProviderSettings, Settings

RETRY_WAITS_S = (1.0, 2.0, 4.0)
JITTER = 0.2  # of a wait of ours, up and down; of one the provider asked for, only up
LONGEST_WAIT_S = 30.0  # a longer one gives the score back in place of a sleeping worker
SHORTEST_RATE_LIMIT_DUE_S = 10.0  # a provider that says "now" and answers 429 again must not make the queue spin
LONGEST_RATE_LIMIT_DUE_S = 3600.0  # a header with nonsense in it must not park a score for ever
KEY_DUE_S = 60.0
QUOTA_DUE_S = 300.0
CONNECT_TIMEOUT_S = 10.0
BYTES_PER_TOKEN = 3  # for limits per minute, which only have to be about right; money is reserved by bytes
# How an endpoint is asked for JSON, from the strictest to none: then the words of the prompt have to do.
JSON_LADDER = ("json_schema", "json_object", "text")
KEEPALIVE_S = 4.0  # less than the 5 s after which uvicorn, under many such endpoints, closes idle connections

_log = structlog.get_logger()


class PromptTooLong(ContextTooLong):
    """
    The endpoint says that the prompt does not fit into the model's window.

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
            tokens: Estimate of input, and the reply limit.
            most_usd: What the call costs at most; None where prices are unknown.

        Raises:
            WaitFor: Not now.
        """
        ...

    async def settle(self, permit: Any, **result: Any) -> None:
        """What became of an admitted call: see `limits.Result`. A call that is cancelled is never settled."""
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
    ) -> Turn:
        """
        Call the model, again after transient errors (1 s, 2 s, 4 s, or what the provider asks for).

        A cancel closes the connection and frees the slot; what the model wrote until then may be billed.

        Args:
            deadline_s: What is left of the attempt. It covers waiting for a free call, calls and pauses.
            reply_limit_factor: The configured `max_reply_tokens` times this.
            reply_format: JSON to ask for, as strictly as the endpoint can.
            gate: Asked before each single call, and told what became of it.

        Returns:
            The answer, whatever it says; a refusal or a cut answer is for the strategy to judge.

        Raises:
            JudgeUnavailable: Unreachable, no answer within `timeout_s`, 408, 409, 5xx, or no chat completion; 4 times.
            AttemptTimedOut: The deadline passed.
            RateLimited: 429 four times, or a wait of more than 30 s or than the deadline leaves.
            KeyRejected, QuotaExhausted: At once; somebody has to act.
            PromptTooLong: Never transient, whatever the status.
            ContentFiltered: The provider refused the prompt.
            JudgeRejectedRequest: Any other 3xx or 4xx.
            WaitFor: As the gate says; a pause of ours that is short enough is slept through.
        """
        now = asyncio.get_running_loop().time
        ends_at = now() + deadline_s

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
        reply_limit = self.settings.max_reply_tokens * reply_limit_factor
        try:
            async with asyncio.timeout_at(ends_at):
                return await retrying(self._call, messages, kind, reply_limit, reply_format, gate, ends_at)
        except TimeoutError:
            failure: ScoringError = AttemptTimedOut(f"{self._who} had not answered when the attempt's time was up")
        except _TransientError as transient:
            failure = transient.error
        raise failure  # outside of `except`, so that no provider's free text hangs on it as a cause

    async def _call(
        self,
        messages: Sequence[Message],
        kind: TurnKind,
        reply_limit: int,
        reply_format: ReplyFormat | None,
        gate: Gate | None,
        ends_at: float,
    ) -> Turn:
        async with self._calls:
            while True:
                parameters = self._parameters(reply_limit, reply_format)
                body = _body(parameters, messages)
                permit = await self._admit(gate, len(body), reply_limit, ends_at) if gate else None
                answer = await self._exchange(body, kind)
                if gate:
                    await gate.settle(permit, **_account_of(answer))
                if isinstance(answer, _Answer):
                    return answer.turn
                # Each parameter can be given up once, so this ends.
                if not (isinstance(answer, _Refusal) and self._adapt(parameters, answer.fault)):
                    raise answer.error

    async def _exchange(self, body: bytes, kind: TurnKind) -> "_Answer | _Refusal | _NoAnswer":
        """One call, and what came of it."""
        started = time.perf_counter()
        try:
            response = await self._post(body)
        except _TransientError as error:
            return _NoAnswer(error)
        latency_ms = round((time.perf_counter() - started) * 1000)
        payload = _json_of(response)
        if response.is_success and isinstance(payload, dict) and not payload.get("error"):
            turn = self._turn(payload, kind, latency_ms)
            if turn is None:
                return _NoAnswer(self._unavailable("answered something that is no chat completion"))
            return _Answer(turn, Fault(response.status_code, response.headers, None, "").retry_after_s())
        fault = Fault(response.status_code, response.headers, payload, response.text)
        return _Refusal(self._failure(fault), fault)

    async def _admit(self, gate: Gate, size_bytes: int, reply_limit: int, ends_at: float) -> Any:
        # No token is shorter than a byte, and none is read beyond the window: more it cannot cost.
        most_read = min(size_bytes, self.settings.context_window_tokens)
        most_usd = self.prices.cost_usd(most_read, 0, reply_limit)
        estimate = min(most_read, size_bytes // BYTES_PER_TOKEN) + reply_limit
        while True:
            try:
                return await gate.admit(self.provider, estimate, most_usd)
            except RateLimited as limit:
                if limit.due_s > min(LONGEST_WAIT_S, ends_at - asyncio.get_running_loop().time()):
                    raise
                await self._sleep(limit.due_s)

    def _parameters(self, reply_limit: int, reply_format: ReplyFormat | None) -> dict[str, Any]:
        parameters: dict[str, Any] = {"model": self.settings.model, self._limit_parameter: reply_limit}
        if self.settings.temperature is not None and self._takes_temperature:
            parameters["temperature"] = self.settings.temperature
        if reply_format is not None and (rung := JSON_LADDER[self._json_rung]) != "text":
            parameters["response_format"] = {"type": rung}
            if rung == "json_schema":
                schema = {"name": reply_format.name, "strict": True, "schema": reply_format.schema}
                parameters["response_format"]["json_schema"] = schema
        return parameters

    async def _post(self, body: bytes) -> httpx2.Response:
        """
        The response whatever its status.

        `chat.completions.create` would make and check models of request and answer: 0.85 ms of CPU per call with
        a prompt of 100 KB, where this takes 0.3. What they hold is ours to encode and to understand anyway.
        """
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                return await self._http.post(self._url, content=body, headers=self._headers)
        except TimeoutError:
            reason = f"gave no answer within {self.settings.timeout_s:g} s"
        except (httpx2.HTTPError, aiohttp.ClientError, OSError) as error:
            reason = f"could not be reached, or broke off ({type(error.__cause__ or error).__name__})"
        raise self._unavailable(reason)

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
        status, after_s = fault.status, fault.retry_after_s()
        said = f"{self._who} answered {fault.describe(self._key)}"
        if fault.says_prompt_is_too_long():
            window, prompt = fault.token_sizes()
            sizes = f" (window {window}, prompt {prompt} tokens)" if window or prompt else ""
            return PromptTooLong(f"{self._who} says that the prompt is too long{sizes}", window, prompt)
        if fault.says_quota_is_used_up():
            return QuotaExhausted(f"{said}: the quota is used up; pay or raise it at the provider", QUOTA_DUE_S)
        if status in (401, 403):
            return KeyRejected(f"{said}: the key is rejected; check the key of the provider", KEY_DUE_S)
        if "content_filter" in fault.words:
            return ContentFiltered(f"{said}: its filter refuses the prompt; another provider may not")
        if fault.is_transient() and (status == httpx2.codes.TOO_MANY_REQUESTS or (after_s or 0) > LONGEST_WAIT_S):
            due_s = min(max(after_s or 0, SHORTEST_RATE_LIMIT_DUE_S), LONGEST_RATE_LIMIT_DUE_S)
            return _TransientError(RateLimited(f"{said}: it asks for a pause", due_s), after_s)
        if fault.is_transient():
            return self._unavailable(f"answered {fault.describe(self._key)} and no chat completion", after_s)
        return JudgeRejectedRequest(f"{said}: check base_url, model and parameters of the provider")

    def _unavailable(self, reason: str, after_s: float | None = None) -> _TransientError:
        return _TransientError(JudgeUnavailable(f"{self._who} {reason}"), after_s)

    def _turn(self, payload: dict[str, Any], kind: TurnKind, latency_ms: int) -> Turn | None:
        """The answer in the first choice; None where there is none."""
        choices = payload.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or not isinstance(message, dict) or choice.get("finish_reason") == "error":
            return None
        usage = as_mapping(payload.get("usage"))
        read, written = as_count(usage.get("prompt_tokens")), as_count(usage.get("completion_tokens"))
        cached = as_count(as_mapping(usage.get("prompt_tokens_details")).get("cached_tokens"))
        return Turn(
            kind=kind,
            reply=_text_of(message.get("content")),
            provider=self.provider,
            model_requested=self.settings.model,
            model_served=_storable(payload.get("model")),
            input_tokens=read,
            cached_input_tokens=cached,
            output_tokens=written,
            cost_usd=self.prices.cost_usd(read, cached, written),
            latency_ms=latency_ms,
            finish_reason=_storable(choice.get("finish_reason")),
            refusal=_storable(message.get("refusal")),
            has_tool_calls=bool(message.get("tool_calls") or message.get("function_call")),
        )

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


# --- what became of a call -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Answer:
    """The turn, and how long no other call should be made: the endpoint tells that its limit is used up."""

    turn: Turn
    pause_s: float | None


@dataclass(frozen=True, slots=True)
class _NoAnswer:
    """The call broke off, or brought something that is no chat completion."""

    error: Exception


@dataclass(frozen=True, slots=True)
class _Refusal:
    """The endpoint answered with an error."""

    error: Exception
    fault: Fault


def _account_of(answer: _Answer | _Refusal | _NoAnswer) -> dict[str, Any]:
    """What the gate is told; see `limits.Result`. A call that broke off may be billed, one that was refused is not."""
    if isinstance(answer, _Answer):
        turn = answer.turn
        known = turn.input_tokens is not None and turn.output_tokens is not None
        tokens = (turn.input_tokens or 0) + (turn.output_tokens or 0) if known else None
        return {"tokens": tokens, "cost_usd": turn.cost_usd, "blocked_s": answer.pause_s}
    if isinstance(answer, _NoAnswer):
        return {"failed": True, "reason": "no answer"}
    error = answer.error.error if isinstance(answer.error, _TransientError) else answer.error
    told: dict[str, Any] = {"tokens": 0, "cost_usd": 0.0, "reason": f"HTTP {answer.fault.status}"}
    if isinstance(error, KeyRejected):
        told["opens"] = "key"
    elif isinstance(error, QuotaExhausted):
        told["opens"] = "quota"
    elif isinstance(error, RateLimited):
        told["blocked_s"] = min(answer.fault.retry_after_s() or 1.0, LONGEST_RATE_LIMIT_DUE_S)
    elif isinstance(error, JudgeUnavailable):
        told["failed"] = True
    return told


# --- what an answer holds ------------------------------------------------------------------------------


def _json_of(response: httpx2.Response) -> object:
    try:
        return response.json()
    except (ValueError, RecursionError):  # not JSON, not text, or nested to death
        return None


def _text_of(content: object) -> str:
    """The text; some servers answer in parts."""
    if isinstance(content, list):
        content = "".join(part["text"] for part in map(as_mapping, content) if isinstance(part.get("text"), str))
    return _storable(content) or ""


def _storable(value: object) -> str | None:
    """Text without what PostgreSQL refuses: NUL and halves of surrogate pairs."""
    if not isinstance(value, str):
        return None
    return value.replace("\0", "").encode("utf-8", "replace").decode("utf-8")


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

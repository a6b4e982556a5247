"""
One call to an OpenAI-compatible endpoint: what is sent, what came of it, and what each error means.

The only importer of `openai`. Its own retries are off: two layers would multiply calls and hide their cost.
"""

import asyncio
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import httpx2  # what openai is built on; for its limits and responses
import openai
import structlog
from pydantic_core import to_json

from tarsy_scoring.config.settings import ProviderSettings
from tarsy_scoring.errors import (
    ConfigurationError,
    ContentFiltered,
    JudgeRejectedRequest,
    JudgeUnavailable,
    KeyRejected,
    PromptTooLong,
    QuotaExhausted,
    RateLimited,
    ScoringError,
)
from tarsy_scoring.judge.prices import Prices
from tarsy_scoring.judge.provider_errors import LONGEST_RATE_LIMIT_DUE_S, Fault
from tarsy_scoring.judge.response import Usage, read_turn
from tarsy_scoring.judge.verdict import Message, ReplyFormat, Turn, TurnKind

SHORTEST_RATE_LIMIT_DUE_S = 10.0  # a provider that says "now" and answers 429 again must not make the queue spin
KEY_DUE_S = 60.0
QUOTA_DUE_S = 300.0
CONNECT_TIMEOUT_S = 10.0
SILENCE_S = 30.0  # from here on it counts as a failure that the attempt's time cut a call off; sooner it says nothing
# How an endpoint is asked for JSON, from the strictest to none: then the words of the prompt have to do.
JSON_LADDER = ("json_schema", "json_object", "text")
KEEPALIVE_S = 4.0  # less than the 5 s after which uvicorn, under many such endpoints, closes idle connections

_log = structlog.get_logger()


class TransientError(Exception):
    """Worth another call: `error` is what it becomes when it stays, `after_s` what the provider asked to wait."""

    def __init__(self, error: ScoringError, after_s: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.after_s = after_s


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked; `estimated` are its tokens as we count them, `tokens` as the model probably does."""

    messages: Sequence[Message]
    kind: TurnKind
    reply_format: ReplyFormat | None
    estimated: int
    tokens: int
    reply_limit: int


@dataclass(frozen=True, slots=True)
class Request:
    """A question in the parameters that the endpoint takes, as far as is known."""

    question: Question
    parameters: dict[str, Any]
    body: bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    What became of a call.

    Args:
        told: To the gate, as `permits.Result` has it; None: nothing can be said.
        result: The turn, or the error. None: a parameter was refused and given up, so that the question can be
            asked again at once.
    """

    told: dict[str, Any] | None
    result: Turn | Exception | None


class Endpoint:
    """
    Where the model of one provider is called. Safe for concurrent use in one event loop.

    Learns which parameters it does not take, for all calls to come.

    Args:
        api_key: None for an endpoint without keys.
        connections: At once, at most.

    Raises:
        ConfigurationError: Key, headers, proxy or CA file cannot be used.
    """

    def __init__(self, provider: str, settings: ProviderSettings, api_key: str | None, connections: int) -> None:
        self.who = f"the judge {settings.model!r} at {provider!r}"
        self.prices = Prices(settings)
        self._provider = provider
        self._settings = settings
        self._key = api_key
        # It begins with `max_tokens`: OpenAI's newer models refuse that loudly, while servers that do not know
        # `max_completion_tokens` ignore it and write without a limit.
        self._limit_parameter = "max_tokens"
        self._takes_temperature = True
        self._json_rung = 0
        _require_header_text(f"providers.{provider}: the key", api_key or "")
        for header, value in settings.extra_headers.items():
            _require_header_text(f"providers.{provider}.extra_headers.{header}", value)
        self._http = openai.DefaultAioHttpClient(
            limits=httpx2.Limits(
                max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=KEEPALIVE_S
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

    # --- what is sent ----------------------------------------------------------------------------------

    def request(self, question: Question) -> Request:
        """The question as it can be sent now. After an outcome without a result it has to be made anew."""
        parameters = self._parameters(question)
        messages = [{"role": m.role, "content": m.content} for m in question.messages]
        return Request(question, parameters, to_json({**parameters, "messages": messages}))

    def _parameters(self, question: Question) -> dict[str, Any]:
        reply_format = question.reply_format
        parameters: dict[str, Any] = {"model": self._settings.model, self._limit_parameter: question.reply_limit}
        if self._settings.temperature is not None and self._takes_temperature:
            parameters["temperature"] = self._settings.temperature
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
        _log.info("judge.parameter_unsupported", provider=self._provider, parameter=refused)
        return True

    # --- what came of it -------------------------------------------------------------------------------

    async def call(self, request: Request, ends_at: float) -> Outcome:
        """
        One call, for at most `timeout_s`. A cancel closes the connection.

        Args:
            ends_at: End of the attempt, by the clock of the event loop; the result is then a `TimeoutError`.
        """
        started = time.perf_counter()
        own_end = asyncio.get_running_loop().time() + self._settings.timeout_s
        limit = asyncio.timeout_at(min(ends_at, own_end))
        try:
            async with limit:
                # `chat.completions.create` would make and check models of request and answer: 0.85 ms of CPU per call
                # with a prompt of 100 KB, where this takes 0.3. What they hold is ours to encode and to understand.
                response = await self._http.post(self._url, content=request.body, headers=self._headers)
        except (httpx2.HTTPError, aiohttp.ClientError, OSError) as error:  # also what `limit` raises
            if limit.expired():
                return self._silence(time.perf_counter() - started, is_attempt_over=ends_at < own_end)
            reason = f"could not be reached, or broke off ({type(error.__cause__ or error).__name__})"
            return Outcome(_no_answer(), self._unavailable(reason))
        return self._read(response, request, latency_ms=round((time.perf_counter() - started) * 1000))

    def _silence(self, waited_s: float, *, is_attempt_over: bool) -> Outcome:
        """The endpoint did not answer in time; a silence too short for that is not told."""
        if is_attempt_over:
            return Outcome(_no_answer() if waited_s >= SILENCE_S else None, TimeoutError())
        reason = f"gave no answer within {self._settings.timeout_s:g} s"
        return Outcome(_no_answer(), JudgeUnavailable(f"{self.who} {reason}"))

    def _read(self, response: httpx2.Response, request: Request, latency_ms: int) -> Outcome:
        question, payload = request.question, _json_of(response)
        usage = Usage.of(payload)
        billed = {"tokens": usage.total, "cost_usd": self.prices.cost_usd(*usage)}
        needed = usage.total or question.tokens + question.reply_limit
        fault = Fault(response.status_code, response.headers, payload, response.text, needed)
        if not (response.is_success and isinstance(payload, dict) and not payload.get("error")):
            if usage.total is None and not fault.may_be_billed():
                billed = {"tokens": 0, "cost_usd": 0.0}
            is_given_up = self._adapt(request.parameters, fault)
            return Outcome(fault.account() | billed, None if is_given_up else self._failure(fault))
        model, cost_usd = self._settings.model, billed["cost_usd"]
        turn = read_turn(payload, self._provider, model, question.kind, latency_ms, cost_usd)
        if turn is None:
            return Outcome(_no_answer() | billed, self._unavailable("answered something that is no chat completion"))
        learned = {"estimated_tokens": question.estimated, "read_tokens": usage.read}
        return Outcome({**billed, **learned, "blocked_s": fault.retry_after_s()}, turn)

    def _failure(self, fault: Fault) -> Exception:
        after_s = fault.retry_after_s()
        said = f"{self.who} answered {fault.describe(self._key)}"
        match fault.meaning:
            case "too_long":
                window, prompt = fault.token_sizes()
                sizes = f" (window {window}, prompt {prompt} tokens)" if window or prompt else ""
                return PromptTooLong(f"{self.who} says that the prompt is too long{sizes}", window, prompt)
            case "quota":
                return QuotaExhausted(f"{said}: the quota is used up; pay or raise it at the provider", QUOTA_DUE_S)
            case "key":
                return KeyRejected(f"{said}: the key is rejected; check the key of the provider", KEY_DUE_S)
            case "filtered":
                return ContentFiltered(f"{said}: its filter refuses the prompt; another provider may not")
            case "pause":
                due_s = min(max(after_s or 0, SHORTEST_RATE_LIMIT_DUE_S), LONGEST_RATE_LIMIT_DUE_S)
                return TransientError(RateLimited(f"{said}: it asks for a pause", due_s), after_s)
            case "unavailable":
                return self._unavailable(f"answered {fault.describe(self._key)} and no chat completion", after_s)
            case "rejected":
                return JudgeRejectedRequest(f"{said}: check base_url, model and parameters of the provider")

    def _unavailable(self, reason: str, after_s: float | None = None) -> TransientError:
        return TransientError(JudgeUnavailable(f"{self.who} {reason}"), after_s)


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

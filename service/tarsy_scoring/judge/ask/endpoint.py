"""
One call to an OpenAI-compatible endpoint: the request, its outcome, and the meaning of each error.

It never calls twice: a second layer of retries would multiply calls and hide their cost.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp
import structlog
from pydantic_core import from_json, to_json

from tarsy_scoring.config.settings import ProviderSettings
from tarsy_scoring.config.watched_secret import WatchedSecret, current
from tarsy_scoring.errors import (
    ContentFiltered,
    JudgeRejectedRequest,
    JudgeUnavailable,
    KeyRejected,
    PromptTooLong,
    QuotaExhausted,
    RateLimited,
    ScoringError,
)
from tarsy_scoring.judge.ask.connection import Connection, Reply, UnreadableReply
from tarsy_scoring.judge.ask.errors import LONGEST_RATE_LIMIT_DUE_S, ErrorResponse
from tarsy_scoring.judge.ask.prices import Prices
from tarsy_scoring.judge.ask.response import Usage, join_chunks, read_turn, unusable_counts
from tarsy_scoring.judge.verdict import Message, Question, Turn

SHORTEST_RATE_LIMIT_DUE_S = 10.0  # a provider that sends 429 with a wait of zero must not make the queue spin
# A score whose key was rejected, or whose quota is used up, is due again after this time.
KEY_DUE_S = 60.0
QUOTA_DUE_S = 300.0
# An attempt that ends during a call counts as a failure of the provider only if the call has waited this
# long.
SILENCE_S = 30.0
# Ways to ask an endpoint for JSON, strictest first. With `text` the words of the prompt must suffice.
JSON_LADDER = ("json_schema", "json_object", "text")
# A chunk of a stream takes up to 512 bytes for one token, 64 times as many as a token of a whole reply.
CHUNK_TOKENS = 64
_ADAPTABLE = {"temperature", "max_tokens", "response_format"}

_log = structlog.get_logger()


class TransientError(Exception):
    """Another call may succeed. `error` is raised when the retries are used up, `after_s` is the wait asked
    for.
    """

    def __init__(self, error: ScoringError, after_s: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.after_s = after_s


@dataclass(frozen=True, slots=True)
class FittedQuestion:
    """
    A question that fits the window.

    Args:
        estimated: Our estimate of its tokens.
        tokens: The estimate times the model's factor.
    """

    question: Question
    estimated: int
    tokens: int
    reply_limit: int


@dataclass(slots=True)
class PreparedCall:
    """
    A question as the body of a request, with the parameters that the endpoint is known to accept.

    Args:
        has_system: Whether a message has the role `system`.
    """

    fitted: FittedQuestion
    parameters: dict[str, Any]
    body: bytes
    has_system: bool = False

    def take_body(self) -> bytes:
        """
        The body, for the one who sends it. It is kept here no longer: some 100 KB for each call under way.
        """
        body, self.body = self.body, b""
        return body


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    The outcome of a call.

    Args:
        account: Keywords of `limits.rules.Result` for `Permits.settle`; None where the call says nothing
            about the provider.
        result: The turn or the error. None: the endpoint refused a parameter, which is dropped from now on,
            or a key, in whose place the file has another one now, so the question can be asked again at once.
    """

    account: dict[str, Any] | None
    result: Turn | Exception | None


class Endpoint:
    """
    The HTTP endpoint of one provider. Safe for concurrent use in one event loop.

    Remembers which parameters the endpoint refused and omits them from later calls. `connection` may be
    replaced by another one with the same methods.

    Args:
        api_key: None for an endpoint without keys.
        connections: Upper limit of simultaneous connections.

    Raises:
        ConfigurationError: Key, headers, proxy or CA file cannot be used.
    """

    def __init__(
        self, provider: str, settings: ProviderSettings, api_key: str | WatchedSecret | None, connections: int
    ) -> None:
        self.who = f"the judge {settings.model!r} at {provider!r}"
        self.prices = Prices(settings)
        self._provider = provider
        self.settings = settings
        self._api_key = api_key
        # `max_tokens` first: OpenAI's newer models refuse it with an error, while servers that do not know
        # `max_completion_tokens` ignore it and write without a limit.
        self._limit_parameter = "max_tokens"
        self._takes_temperature = True
        self._takes_system = True
        self._streams = False
        self._json_rung = 0
        self._has_warned_of_usage = False
        self.connection = Connection(provider, settings, api_key, connections)

    @property
    def key(self) -> str | None:
        """The key as it is now; None for an endpoint without keys."""
        return current(self._api_key)

    async def close(self) -> None:
        """Close all connections; safe to call twice."""
        await self.connection.close()

    # --- the request ----------------------------------------------------------------------------------

    def prepare(self, fitted: FittedQuestion) -> PreparedCall:
        """Build the request for a question. Build it again after an outcome without a result."""
        reply_format = fitted.question.reply_format
        parameters: dict[str, Any] = {"model": self.settings.model, self._limit_parameter: fitted.reply_limit}
        if self.settings.temperature is not None and self._takes_temperature:
            parameters["temperature"] = self.settings.temperature
        if reply_format is not None and (rung := JSON_LADDER[self._json_rung]) != "text":
            parameters["response_format"] = {"type": rung}
            if rung == "json_schema":
                schema = {"name": reply_format.name, "strict": True, "schema": reply_format.schema}
                parameters["response_format"]["json_schema"] = schema
        if self._streams:
            parameters |= {"stream": True, "stream_options": {"include_usage": True}}
        asked = fitted.question.messages if self._takes_system else _without_system(fitted.question.messages)
        messages = [{"role": m.role, "content": m.content} for m in asked]
        has_system = any(m.role == "system" for m in asked)
        return PreparedCall(fitted, parameters, to_json({**parameters, "messages": messages}), has_system)

    def _adapt(self, prepared: PreparedCall, error: ErrorResponse) -> bool:
        """
        Leave out of later calls what the error calls unsupported; False where it names nothing of the call.
        """
        parameters = prepared.parameters
        parts = {"system role": prepared.has_system, "whole reply": "stream" not in parameters}
        refused = error.unsupported_parameter(
            parameters.keys() & _ADAPTABLE | {p for p, sent in parts.items() if sent}
        )
        if refused == "system role":
            self._takes_system = False
        elif refused == "whole reply":
            self._streams = True
        elif refused == "temperature":
            self._takes_temperature = False
        elif refused == "max_tokens":
            self._limit_parameter = "max_completion_tokens"
        elif refused == "response_format":
            # Concurrent first calls may all be refused the same rung; together they take one step.
            self._json_rung = JSON_LADDER.index(parameters["response_format"]["type"]) + 1
        else:
            return False
        _log.info("judge.parameter_unsupported", provider=self._provider, parameter=refused)
        return True

    # --- the outcome -------------------------------------------------------------------------------

    async def call(self, prepared: PreparedCall, ends_at: float) -> Outcome:
        """
        Call once, for at most `timeout_s`. A cancellation closes the connection.

        Args:
            ends_at: End of the attempt by the clock of the event loop. Without an answer by then, the result
                is a `TimeoutError`.
        """
        started = time.perf_counter()
        own_end = asyncio.get_running_loop().time() + self.settings.timeout_s
        limit = asyncio.timeout_at(min(ends_at, own_end))
        key = self.key
        try:
            async with limit:
                most_tokens = prepared.fitted.reply_limit * (
                    CHUNK_TOKENS if "stream" in prepared.parameters else 1
                )
                reply = await self.connection.post(prepared.take_body(), most_tokens)
        except UnreadableReply as error:
            return Outcome(_no_answer(), self._unavailable(str(error)))
        except (aiohttp.ClientError, OSError) as error:  # the timeout of `limit` is an OSError
            if limit.expired():
                return self._timed_out(time.perf_counter() - started, is_attempt_over=ends_at < own_end)
            reason = f"could not be reached, or broke off ({type(error.__cause__ or error).__name__})"
            return Outcome(_no_answer(), self._unavailable(reason))
        if reply.status == HTTPStatus.UNAUTHORIZED and self._has_newer_key(key):
            return Outcome({"tokens": 0, "cost_usd": 0.0}, None)
        return self._read(reply, prepared, latency_ms=round((time.perf_counter() - started) * 1000))

    def _has_newer_key(self, used: str | None) -> bool:
        """Read the file of the key again, and say whether it holds another key than the one used."""
        return isinstance(self._api_key, WatchedSecret) and self._api_key.read_again() != used

    def _timed_out(self, waited_s: float, *, is_attempt_over: bool) -> Outcome:
        """The outcome of a call without an answer in time; a short wait is not held against the provider."""
        if is_attempt_over:
            return Outcome(_no_answer() if waited_s >= SILENCE_S else None, TimeoutError())
        reason = f"gave no answer within {self.settings.timeout_s:g} s"
        return Outcome(_no_answer(), JudgeUnavailable(f"{self.who} {reason}"))

    def _read(self, reply: Reply, prepared: PreparedCall, latency_ms: int) -> Outcome:
        fitted, payload = prepared.fitted, _payload_of(reply.content)
        usage = Usage.of(payload)
        self._warn_of_unusable_counts(payload)
        billed = {"tokens": usage.total, "cost_usd": self.prices.cost_usd(*usage)}
        needed = usage.total or fitted.tokens + fitted.reply_limit
        text = "" if reply.is_success else reply.content.decode("utf-8", "replace")
        error = ErrorResponse(reply.status, reply.headers, payload, text, needed)
        if not (reply.is_success and isinstance(payload, dict) and not payload.get("error")):
            if usage.total is None and not error.may_be_billed():
                billed = {"tokens": 0, "cost_usd": 0.0}
            is_dropped = self._adapt(prepared, error)
            return Outcome(error.account() | billed, None if is_dropped else self._failure(error))
        model, cost_usd = self.settings.model, billed["cost_usd"]
        turn = read_turn(payload, self._provider, model, fitted.question.kind, latency_ms, cost_usd)
        if turn is None:
            return Outcome(
                _no_answer() | billed, self._unavailable("answered something that is no chat completion")
            )
        learned = {"estimated_tokens": fitted.estimated, "read_tokens": usage.read}
        return Outcome({**billed, **learned, "blocked_s": error.retry_after_s()}, turn)

    def _warn_of_unusable_counts(self, payload: object) -> None:
        """Warn once of token counts that cannot be true."""
        if not self._has_warned_of_usage and (counts := unusable_counts(payload)):
            self._has_warned_of_usage = True
            effect = "these counts and costs stay unknown; check what the endpoint reports as usage"
            _log.warning("judge.usage_unusable", provider=self._provider, counts=counts, effect=effect)

    def _failure(self, error: ErrorResponse) -> Exception:
        after_s = error.retry_after_s()
        said = f"{self.who} answered {error.describe(self.key)}"
        match error.meaning:
            case "too_long":
                window, prompt = error.token_sizes()
                sizes = f" (window {window}, prompt {prompt} tokens)" if window or prompt else ""
                return PromptTooLong(f"{self.who} reports that the prompt is too long{sizes}", window, prompt)
            case "quota":
                return QuotaExhausted(
                    f"{said}: the quota is used up; pay or raise it at the provider", QUOTA_DUE_S
                )
            case "key":
                return KeyRejected(f"{said}: the key is rejected; check the key of the provider", KEY_DUE_S)
            case "filtered":
                return ContentFiltered(f"{said}: its filter refuses the prompt; another provider may not")
            case "pause":
                due_s = min(max(after_s or 0, SHORTEST_RATE_LIMIT_DUE_S), LONGEST_RATE_LIMIT_DUE_S)
                return TransientError(RateLimited(f"{said}: the provider asks us to wait", due_s), after_s)
            case "unavailable":
                return self._unavailable(
                    f"answered {error.describe(self.key)} and no chat completion", after_s
                )
            case "rejected":
                return JudgeRejectedRequest(f"{said}: {_hint(error)}")

    def _unavailable(self, reason: str, after_s: float | None = None) -> TransientError:
        return TransientError(JudgeUnavailable(f"{self.who} {reason}"), after_s)


def _no_answer() -> dict[str, Any]:
    """The account of a call without an answer. The provider may bill it, so tokens and cost stay unknown."""
    return {"failed": True, "reason": "no answer"}


def _hint(error: ErrorResponse) -> str:
    """What would help after a rejected request."""
    if limit := error.reply_limit():
        return f"the reply limit is too large; lower max_reply_tokens to {limit}"
    if error.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return (
            "the request has too many bytes for it or for a proxy in between; raise the size of bodies there"
        )
    return "check base_url, model and parameters of the provider"


def _without_system(messages: Sequence[Message]) -> list[Message]:
    """
    The messages with the system's text at the beginning of the first of the user, for models without that
    role.
    """
    system = "\n\n".join(m.content for m in messages if m.role == "system")
    others = [m for m in messages if m.role != "system"]
    return [Message("user", f"{system}\n\n{others[0].content}"), *others[1:]]


def _payload_of(content: bytes) -> object:
    """The JSON of a body, or that of the completion that it has in chunks; None where it is neither."""
    payload = _json_of(content)
    if payload is None and content.lstrip().startswith((b"data:", b"event:", b":")):
        sent = [line[5:].strip() for line in content.splitlines() if line.startswith(b"data:")]
        payload = join_chunks(_json_of(chunk) for chunk in sent if chunk != b"[DONE]")
    return payload


def _json_of(content: bytes) -> object:
    for read in (from_json, json.loads):  # the second one is slower, and takes halves of surrogate pairs
        try:
            return read(content)
        except (ValueError, RecursionError):  # not JSON, not text, or nested too deeply
            continue
    return None

"""
One call to an OpenAI-compatible endpoint: the request, its outcome, and what the endpoint refuses.

It never calls twice: a second layer of retries would multiply calls and hide their cost.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

import httpx2
import structlog
from openai import APIConnectionError, APIError, APIStatusError, AsyncOpenAI, omit
from pydantic_core import to_json

from tarsy_scoring import __version__
from tarsy_scoring.config.chains import MemorySettings, ProviderSettings
from tarsy_scoring.config.secrets import WatchedSecret, current
from tarsy_scoring.errors import JudgeUnavailable, ScoringError
from tarsy_scoring.judge.ask import errors
from tarsy_scoring.judge.ask.prices import Prices
from tarsy_scoring.judge.ask.reply import ENDS, ReplyUsage, read_turn, usage_of
from tarsy_scoring.judge.ask.transport import (
    CONNECT_TIMEOUT_S,
    REPLY_BYTES_MORE,
    REPLY_BYTES_PER_TOKEN,
    BoundedTransport,
    UnreadableReply,
    connector,
    require_header_text,
)
from tarsy_scoring.judge.verdict import Message, Question, Turn

# An attempt that ends during a call counts as the provider's failure only if the call has waited this long.
SILENCE_S = 30.0
# Ways to ask an endpoint for JSON, strictest first. With `text` the words of the prompt must suffice.
JSON_LADDER = ("json_schema", "json_object", "text")
_ADAPTABLE = {"temperature", "max_tokens", "response_format"}
# Without an answer the provider may bill the call, so tokens and cost stay unknown.
_NO_ANSWER: Mapping[str, Any] = {"failed": True, "reason": "no answer"}
_NOTHING_BILLED: Mapping[str, Any] = {"tokens": 0, "cost_usd": 0.0}
_NO_COMPLETION = "answered something that is no chat completion"

_log = structlog.get_logger()


class EmbeddingsAway(ScoringError):
    """The endpoint gives no embeddings now."""


@dataclass(frozen=True, slots=True)
class FittedQuestion:
    """
    A question that fits the window.

    Args:
        estimated: Our estimate in tokens.
        tokens: The estimate times the model's factor.
    """

    question: Question
    estimated: int
    tokens: int
    reply_limit: int


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """
    What a call led to.

    Args:
        account: Keywords for `limits.rules.Result` and `Permits.settle`; None where the call says nothing
            about the provider.
        result: The turn or the error. None: the endpoint refused a parameter, or gave no text in a form of
            JSON, which is dropped from now on, or it refused a key that the file has replaced, so the
            question can be asked again at once.
    """

    account: Mapping[str, Any] | None
    result: Turn | Exception | None


class Endpoint:
    """
    One provider's HTTP endpoint. Safe for concurrent use in one event loop.

    Remembers which parameters the endpoint refused and omits them from later calls.

    Args:
        api_key: Read again when the key file changes; None for an endpoint without keys.
        transport: Replaces the network in tests.

    Raises:
        ConfigurationError: Key, headers, proxy or CA file cannot be used.
    """

    def __init__(
        self,
        provider: str,
        settings: ProviderSettings,
        api_key: str | WatchedSecret | None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.who = f"the judge {settings.model!r} at {provider!r}"
        self.prices = Prices(settings)
        self.settings = settings
        self._provider = provider
        self._api_key = api_key
        self._left_out = set[str]()
        self._json_rung = JSON_LADDER.index(settings.reply_format)
        require_header_text(f"providers.{provider}: the key", current(api_key) or "")
        for header, value in settings.extra_headers.items():
            require_header_text(f"providers.{provider}.extra_headers.{header}", value)
        has_own = any(header.lower() == "authorization" for header in settings.extra_headers)
        self._headers = {} if api_key or has_own else {"Authorization": omit}
        # A cut answer is asked for again with twice the limit.
        most_bytes = REPLY_BYTES_MORE + REPLY_BYTES_PER_TOKEN * settings.max_reply_tokens
        connect = (lambda: transport) if transport else connector(provider, settings)
        self._client = AsyncOpenAI(
            api_key=self._current_key,
            base_url=settings.base_url,
            default_headers={"User-Agent": f"tarsy-scoring/{__version__}", **settings.extra_headers},
            max_retries=0,
            timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),
            http_client=httpx2.AsyncClient(
                # Session data must not leave for a host that the operator did not configure.
                transport=BoundedTransport(connect, most_bytes),
                follow_redirects=False,
            ),
        )

    async def _current_key(self) -> str:
        return current(self._api_key) or ""

    async def close(self) -> None:
        """Close all connections; safe to call twice."""
        await self._client.close()

    # --- the request ----------------------------------------------------------------------------------

    def prepare(self, fitted: FittedQuestion) -> dict[str, Any]:
        """
        Build the request body, with the parameters that the endpoint is known to accept.

        Build it again after an outcome without a result.
        """
        reply_format = fitted.question.reply_format
        # `max_tokens` first: OpenAI's newer models refuse it with an error, while servers that do not know
        # `max_completion_tokens` ignore it and write without a limit.
        limit = "max_completion_tokens" if "max_tokens" in self._left_out else "max_tokens"
        request: dict[str, Any] = {"model": self.settings.model, limit: fitted.reply_limit}
        if self.settings.temperature is not None and "temperature" not in self._left_out:
            request["temperature"] = self.settings.temperature
        if reply_format is not None and (rung := JSON_LADDER[self._json_rung]) != "text":
            request["response_format"] = {"type": rung}
            if rung == "json_schema":
                schema = {"name": reply_format.name, "strict": True, "schema": reply_format.schema}
                request["response_format"]["json_schema"] = schema
        asked = fitted.question.messages
        if "system role" in self._left_out:
            asked = _without_system(asked)
        return request | {"messages": [{"role": m.role, "content": m.content} for m in asked]}

    def _adapt(self, request: dict[str, Any], error: errors.ErrorReply) -> bool:
        """
        Omit from later calls what the error calls unsupported; False where it names no part that was sent.
        """
        sent = request.keys() & _ADAPTABLE
        has_system = any(message["role"] == "system" for message in request["messages"])
        refused = error.unsupported_parameter(sent | {"system role"} if has_system else sent)
        if refused:
            self._leave_out(refused, request)
        return refused is not None

    def _leave_out(self, part: str, request: dict[str, Any]) -> None:
        if part == "response_format":
            # Concurrent first calls may all be refused the same rung; together they take one step.
            self._json_rung = JSON_LADDER.index(request["response_format"]["type"]) + 1
        self._left_out.add(part)
        _log.info("judge.parameter_unsupported", provider=self._provider, parameter=part)

    # --- the outcome -------------------------------------------------------------------------------

    async def call(self, fitted: FittedQuestion, request: dict[str, Any], ends_at: float) -> CallOutcome:
        """
        Call once, for at most `timeout_s`. A cancellation closes the connection.

        Args:
            request: The body, see `prepare`.
            ends_at: When the attempt ends, by the event loop's clock. Without an answer by then, the result
                is a `TimeoutError`.
        """
        loop = asyncio.get_running_loop()
        started, key = loop.time(), current(self._api_key)
        own_end = started + self.settings.timeout_s
        try:
            async with asyncio.timeout_at(min(ends_at, own_end)):
                # Not `chat.completions.create`: it copies the request part by part and builds models from the
                # answer, which takes as much CPU as the rest of the call.
                response = await self._client.post(
                    "/chat/completions",
                    cast_to=httpx2.Response,
                    content=to_json(request),
                    options={"headers": self._headers},
                )
            answer = errors.as_mapping(response.json())
        except TimeoutError:
            if ends_at < own_end:  # a short wait is not held against the provider
                has_waited = loop.time() - started >= SILENCE_S
                return CallOutcome(_NO_ANSWER if has_waited else None, TimeoutError())
            reason = f"gave no answer within {self.settings.timeout_s:g} s"
            return CallOutcome(_NO_ANSWER, JudgeUnavailable(f"{self.who} {reason}"))
        except UnreadableReply as error:
            return self._unavailable(str(error))
        except APIStatusError as error:
            return self._refused(fitted, request, key, error.response, error.body)
        except APIConnectionError as error:
            return self._unavailable(
                f"could not be reached, or broke off ({type(_cause_of(error)).__name__})"
            )
        except (ValueError, RecursionError):  # not JSON, not text, or nested too deeply
            return self._unavailable(_NO_COMPLETION)
        if reported := errors.error_in(answer):
            return self._refused(fitted, request, key, response, reported, answer.get("usage"))
        return self._answered(
            fitted, request, answer, response.headers, round((loop.time() - started) * 1000)
        )

    async def embed(self, texts: Sequence[str], by: MemorySettings) -> list[Any]:
        """
        Embed texts in one call; gives a vector for each, unchecked.

        Raises:
            EmbeddingsAway: There was no answer in time, or none with vectors.
        """
        request = to_json({"model": by.model, "input": list(texts), "dimensions": by.dimensions})
        options: Any = {"headers": self._headers}
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                response = await self._client.post(
                    "/embeddings", cast_to=httpx2.Response, content=request, options=options
                )
            return [one["embedding"] for one in errors.as_mapping(response.json())["data"]]
        except (TimeoutError, UnreadableReply, APIError, ValueError, TypeError, KeyError) as error:
            reason = getattr(error, "status_code", type(error).__name__)
        raise EmbeddingsAway(f"{self._provider!r} gave no vectors by the model {by.model!r} ({reason})")

    def _refused(
        self,
        fitted: FittedQuestion,
        request: dict[str, Any],
        key: str | None,
        response: httpx2.Response,
        reported: object,
        usage: object = None,
    ) -> CallOutcome:
        secret = self._api_key
        is_key_refused = response.status_code == HTTPStatus.UNAUTHORIZED
        if is_key_refused and isinstance(secret, WatchedSecret) and secret.read_again() != key:
            return CallOutcome(_NOTHING_BILLED, None)
        error = errors.ErrorReply(
            response.status_code, response.headers, reported, fitted.tokens + fitted.reply_limit
        )
        used = usage_of(usage or errors.as_mapping(reported).get("usage"))
        is_billed = used.total is not None or error.may_be_billed()
        account, failure = error.reaction(self.who, key)
        billed = self._billed(used) if is_billed else _NOTHING_BILLED
        return CallOutcome({**account, **billed}, None if self._adapt(request, error) else failure)

    def _answered(
        self,
        fitted: FittedQuestion,
        request: dict[str, Any],
        answer: Mapping[str, Any],
        headers: httpx2.Headers,
        latency_ms: int,
    ) -> CallOutcome:
        usage = usage_of(answer.get("usage"))
        billed = self._billed(usage)
        asked = fitted.question.kind, self._provider, self.settings.model
        turn = read_turn(answer, *asked, usage, billed["cost_usd"], latency_ms, fitted.reply_limit)
        if turn is None:
            return self._unavailable(_NO_COMPLETION, billed)
        learned = {"estimated_tokens": fitted.estimated, "read_tokens": usage.read}
        asked_s = errors.wait_asked_s(headers, usage.total or fitted.tokens + fitted.reply_limit)
        blocked_s = asked_s and min(asked_s, errors.LONGEST_WAIT_AFTER_ANSWER_S)
        account = {**billed, **learned, "blocked_s": blocked_s}
        is_whole = not turn.refusal and turn.finish_reason not in ENDS
        if "response_format" in request and is_whole and not turn.answer.strip():
            # The form of JSON made the answer land in the reasoning or in a tool call.
            self._leave_out("response_format", request)
            return CallOutcome(account, None)
        return CallOutcome(account, turn)

    def _billed(self, usage: ReplyUsage) -> Mapping[str, Any]:
        return {"tokens": usage.total, "cost_usd": self.prices.cost_usd(*usage[:3])}

    def _unavailable(self, reason: str, billed: Mapping[str, Any] = MappingProxyType({})) -> CallOutcome:
        return CallOutcome(
            {**_NO_ANSWER, **billed}, errors.TransientError(JudgeUnavailable(f"{self.who} {reason}"))
        )


def _without_system(messages: Sequence[Message]) -> list[Message]:
    """
    The messages with the system's text before the user's first one, for models without that role.
    """
    system = "\n\n".join(m.content for m in messages if m.role == "system")
    others = [m for m in messages if m.role != "system"]
    return [Message("user", f"{system}\n\n{others[0].content}"), *others[1:]]


def _cause_of(error: BaseException) -> BaseException:
    """The first error in a chain, such as `ConnectionRefusedError` below two from HTTP libraries."""
    while below := error.__cause__ or error.__context__:
        error = below
    return error

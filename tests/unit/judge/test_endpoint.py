"""One call to an endpoint: the form of JSON it is asked for, and the most that the call may cost."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tarsy_scoring.config.chains import ProviderSettings
from tarsy_scoring.errors import JudgeRejectedRequest
from tarsy_scoring.judge.ask import endpoint as endpoint_module
from tarsy_scoring.judge.ask.client import JudgeClient
from tarsy_scoring.judge.ask.endpoint import CallOutcome, Endpoint, FittedQuestion
from tarsy_scoring.judge.clock import AttemptClock
from tarsy_scoring.judge.verdict import Message, Question, ReplyFormat, Turn
from tarsy_scoring.timeline.render.context import estimate_tokens

FORMAT = ReplyFormat("verdict", {"type": "object"})
QUESTION = FittedQuestion(
    Question("analysis", [Message("user", "Why?")], FORMAT), estimated=2, tokens=2, reply_limit=100
)
ANSWER = {"choices": [{"message": {"content": "67"}, "finish_reason": "stop"}]}
REFUSAL = {"error": {"message": "this response_format is not supported", "param": "response_format"}}
NO_SYSTEM = {"error": {"message": "System role not supported", "type": "BadRequestError", "code": 400}}


class Server:
    """Replaces the network: accepts the given forms of JSON, and records the requests."""

    def __init__(self) -> None:
        self.takes: tuple[str, ...] = ("text",)
        self.takes_system = True
        self.says: dict[str, Any] = ANSWER
        self.requests: list[dict[str, Any]] = []

    def answer(self, asked: httpx2.Request) -> httpx2.Response:
        request = json.loads(asked.content)
        self.requests.append(request)
        if not self.takes_system and request["messages"][0]["role"] == "system":
            return httpx2.Response(400, json=NO_SYSTEM)
        is_taken = form_of(request) in self.takes
        return httpx2.Response(200, json=self.says) if is_taken else httpx2.Response(400, json=REFUSAL)

    @property
    def asked(self) -> list[str]:
        return [form_of(request) for request in self.requests]


def form_of(request: dict[str, Any]) -> str:
    form: str = request.get("response_format", {"type": "text"})["type"]
    return form


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def endpoint(server: Server) -> AsyncIterator[Endpoint]:
    endpoint = Endpoint("main", ProviderSettings(model="m"), None, httpx2.MockTransport(server.answer))
    yield endpoint
    await endpoint.close()


async def call(endpoint: Endpoint, request: dict[str, Any] | None = None) -> CallOutcome:
    return await endpoint.call(QUESTION, request or endpoint.prepare(QUESTION), float("inf"))


async def test_a_reply_format_is_sent_as_a_strict_schema(endpoint: Endpoint) -> None:
    assert endpoint.prepare(QUESTION)["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "verdict", "strict": True, "schema": {"type": "object"}},
    }


async def test_strictest_form_of_json_that_the_endpoint_accepts_is_used(endpoint: Endpoint, server: Server) -> None:
    outcomes = [await call(endpoint) for _ in range(4)]

    assert server.asked == ["json_schema", "json_object", "text", "text"]
    assert [outcome.result is None for outcome in outcomes] == [True, True, False, False]
    assert isinstance(outcomes[-1].result, Turn)
    refused = {"reason": "HTTP 400, param response_format", "is_refused": True, "tokens": 0, "cost_usd": 0.0}
    assert outcomes[0].account == refused, "a refused form costs nothing"


async def test_calls_that_are_refused_together_step_down_once(endpoint: Endpoint, server: Server) -> None:
    server.takes = ("json_object",)
    together = [endpoint.prepare(QUESTION) for _ in range(3)]

    assert [(await call(endpoint, request)).result for request in together] == [None] * 3
    outcome = await call(endpoint)

    assert server.asked == ["json_schema"] * 3 + ["json_object"]
    assert isinstance(outcome.result, Turn)


# Answers without text, and how often they are asked for.
NO_TEXT: dict[str, tuple[dict[str, Any], str, int]] = {
    "JSON in the reasoning": ({"content": "", "reasoning_content": "{}"}, "stop", 2),
    "JSON in a tool call": ({"content": None, "tool_calls": [{"function": {"arguments": "{}"}}]}, "tool_calls", 2),
    "JSON in reasoning inside the text": ({"content": "<think>{}</think>"}, "stop", 2),
    "cut": ({"content": ""}, "MAX_TOKENS", 1),
    "filtered": ({"content": ""}, "SAFETY", 1),
    "refused": ({"content": "", "refusal": "No."}, "stop", 1),
}


async def test_a_form_of_json_that_leaves_no_text_is_given_up(server: Server) -> None:
    """From the first form that the provider's settings name on; what such a call cost is counted."""
    server.takes = endpoint_module.JSON_LADDER
    for name, (message, reason, calls) in NO_TEXT.items():
        server.requests.clear()
        usage = {"prompt_tokens": 1, "completion_tokens": 2}
        server.says = {"choices": [{"message": message, "finish_reason": reason}], "usage": usage}
        provider = ProviderSettings(model="m", reply_format="json_object")
        endpoint = Endpoint("main", provider, None, httpx2.MockTransport(server.answer))
        outcomes = [await call(endpoint) for _ in range(calls)]
        await endpoint.close()
        assert server.asked == ["json_object", "text"][:calls], name
        assert [outcome.result is None for outcome in outcomes] == [True, False][-calls:], name
        assert [outcome.account and outcome.account["tokens"] for outcome in outcomes] == [3] * calls, name


async def test_an_endpoint_that_refuses_even_plain_text_is_not_asked_again(endpoint: Endpoint, server: Server) -> None:
    server.takes = ()

    outcomes = [await call(endpoint) for _ in range(3)]

    assert [outcome.result is None for outcome in outcomes] == [True, True, False]
    assert isinstance(outcomes[-1].result, JudgeRejectedRequest)


async def test_rules_come_first_where_the_system_role_is_refused(endpoint: Endpoint, server: Server) -> None:
    server.takes_system = False
    messages = [Message("system", "R"), Message("user", "E"), Message("assistant", "A"), Message("user", "Q")]
    question = FittedQuestion(Question("analysis", messages), estimated=2, tokens=2, reply_limit=100)

    outcomes = [await endpoint.call(question, endpoint.prepare(question), float("inf")) for _ in range(2)]

    assert outcomes[0].result is None
    assert isinstance(outcomes[1].result, Turn)
    sent = [(m["role"], m["content"]) for m in server.requests[1]["messages"]]
    assert sent == [("user", "R\n\nE"), ("assistant", "A"), ("user", "Q")]


class RecordingPermits:
    """Permits every call, and records the most that it may cost."""

    def __init__(self) -> None:
        self.most_usd: float | None = None

    async def admit(self, provider: str, tokens: int, most_usd: float | None) -> None:
        self.most_usd = most_usd

    async def settle(self, permit: Any, **result: Any) -> None:
        """Does nothing: the result is not recorded."""


@pytest.mark.parametrize(
    ("text", "most_read"),
    [
        pytest.param("word " * 100, 2 * estimate_tokens("word " * 100), id="twice-the-estimate"),
        pytest.param("word " * 2600, 4_000, id="the-window"),
    ],
)
async def test_the_most_that_a_call_may_cost(server: Server, text: str, most_read: int) -> None:
    """An estimate of tokens alone could be too low for a budget."""
    prices = {"input": 1.0, "output": 0.0}
    provider = ProviderSettings.model_validate(
        {"model": "m", "context_window_tokens": 4_000, "max_reply_tokens": 500, "prices_usd_per_million_tokens": prices}
    )
    network, permits = httpx2.MockTransport(server.answer), RecordingPermits()
    client = JudgeClient("main", provider, None, transport=network)

    await client.ask(Question("analysis", [Message("user", text)]), clock=AttemptClock(5), permits=permits)
    await client.close()

    assert permits.most_usd == pytest.approx(most_read / 1e6)

"""One call to an endpoint: the form of JSON it is asked for, and the most that the call may cost."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tarsy_scoring.config.settings import ProviderSettings
from tarsy_scoring.errors import JudgeRejectedRequest
from tarsy_scoring.judge.ask.client import JudgeClient
from tarsy_scoring.judge.ask.connection import Reply
from tarsy_scoring.judge.ask.endpoint import Endpoint, FittedQuestion, Outcome
from tarsy_scoring.judge.ask.response import join_chunks
from tarsy_scoring.judge.clock import AttemptClock
from tarsy_scoring.judge.verdict import Message, Question, ReplyFormat, Turn

FORMAT = ReplyFormat("verdict", {"type": "object"})
QUESTION = FittedQuestion(
    Question("analysis", [Message("user", "Why?")], FORMAT), estimated=2, tokens=2, reply_limit=100
)
ANSWER = {"choices": [{"message": {"content": "67"}, "finish_reason": "stop"}]}
REFUSAL = {"error": {"message": "this response_format is not supported", "param": "response_format"}}


class Server:
    """Replaces the connection: accepts the given forms of JSON, and records which forms it was asked for."""

    def __init__(self, *takes: str) -> None:
        self.takes = takes
        self.asked: list[str] = []
        self.read_bytes = 0

    async def post(self, content: bytes, _reply_tokens: int) -> Reply:
        form = json.loads(content).get("response_format", {"type": "text"})["type"]
        self.asked.append(form)
        self.read_bytes = len(content)
        status, said = (200, ANSWER) if form in self.takes else (400, REFUSAL)
        return Reply(status, {}, json.dumps(said).encode())

    async def close(self) -> None:
        """Does nothing: no connection was opened."""


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint("main", ProviderSettings(model="m"), None, 1)
    real = endpoint.connection
    yield endpoint
    await real.close()


def connect(endpoint: Endpoint, *takes: str) -> Server:
    server = Server(*takes)
    endpoint.connection = server  # type: ignore[assignment]
    return server


async def call(endpoint: Endpoint) -> Outcome:
    return await endpoint.call(endpoint.prepare(QUESTION), float("inf"))


async def test_a_reply_format_is_sent_as_a_strict_schema(endpoint: Endpoint) -> None:
    assert endpoint.prepare(QUESTION).parameters == {
        "model": "m",
        "max_tokens": 100,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "verdict", "strict": True, "schema": {"type": "object"}},
        },
    }


async def test_strictest_form_of_json_that_the_endpoint_accepts_is_used(endpoint: Endpoint) -> None:
    server = connect(endpoint, "text")

    outcomes = [await call(endpoint) for _ in range(4)]

    assert server.asked == ["json_schema", "json_object", "text", "text"]
    assert [outcome.result is None for outcome in outcomes] == [True, True, False, False]
    assert isinstance(outcomes[-1].result, Turn)


async def test_a_refused_form_is_settled_without_cost(endpoint: Endpoint) -> None:
    connect(endpoint, "json_object")

    outcome = await call(endpoint)

    assert outcome.account == {"reason": "HTTP 400", "is_refused": True, "tokens": 0, "cost_usd": 0.0}


async def test_calls_that_are_refused_together_step_down_once(endpoint: Endpoint) -> None:
    server = connect(endpoint, "json_object")
    together = [endpoint.prepare(QUESTION) for _ in range(3)]

    assert [(await endpoint.call(request, float("inf"))).result for request in together] == [None] * 3
    outcome = await call(endpoint)

    assert server.asked == ["json_schema"] * 3 + ["json_object"]
    assert isinstance(outcome.result, Turn)


async def test_an_endpoint_that_refuses_even_plain_text_is_not_asked_again(endpoint: Endpoint) -> None:
    connect(endpoint)

    outcomes = [await call(endpoint) for _ in range(3)]

    assert [outcome.result is None for outcome in outcomes] == [True, True, False]
    assert isinstance(outcomes[-1].result, JudgeRejectedRequest)


NO_SYSTEM = {"error": {"message": "System role not supported", "type": "BadRequestError", "code": 400}}


class Answers:
    """Replaces the connection: sends these bodies in their order, and records the requests and their limits."""

    def __init__(self, *bodies: tuple[int, str]) -> None:
        self.bodies = list(bodies)
        self.requests: list[dict[str, Any]] = []
        self.most_tokens: list[int] = []

    async def post(self, content: bytes, reply_tokens: int) -> Reply:
        self.requests.append(json.loads(content))
        self.most_tokens.append(reply_tokens)
        status, body = self.bodies.pop(0)
        return Reply(status, {}, body.encode())


async def test_rules_come_first_where_the_system_role_is_refused(endpoint: Endpoint) -> None:
    endpoint.connection = server = Answers((400, json.dumps(NO_SYSTEM)), (200, json.dumps(ANSWER)))  # type: ignore[assignment]
    messages = [
        Message(role, text) for role, text in (("system", "R"), ("user", "E"), ("assistant", "A"), ("user", "Q"))
    ]  # type: ignore[arg-type]
    question = FittedQuestion(Question("analysis", messages), estimated=2, tokens=2, reply_limit=100)

    assert (await endpoint.call(endpoint.prepare(question), float("inf"))).result is None
    assert isinstance((await endpoint.call(endpoint.prepare(question), float("inf"))).result, Turn)

    sent = [(m["role"], m["content"]) for m in server.requests[1]["messages"]]
    assert sent == [("user", "R\n\nE"), ("assistant", "A"), ("user", "Q")]


async def test_a_stream_may_have_more_bytes(endpoint: Endpoint) -> None:
    only_streams = {"error": {"message": "This model only support stream mode"}}
    chunk = {"choices": [{"delta": {"content": "67"}, "finish_reason": "stop"}]}
    endpoint.connection = server = Answers((400, json.dumps(only_streams)), (200, f"data: {json.dumps(chunk)}"))  # type: ignore[assignment]

    await call(endpoint)
    outcome = await call(endpoint)

    assert isinstance(outcome.result, Turn)
    assert outcome.result.reply == "67"
    assert server.most_tokens == [100, 6_400]


def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"model": "m-1", "choices": [{"delta": delta, "finish_reason": finish_reason}]}


def test_chunks_are_one_completion() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2}
    thinking = chunk({"role": "assistant", "content": None, "reasoning_content": "hm"})

    joined = join_chunks(
        [thinking, chunk({"content": "6"}), chunk({"content": "7"}, "stop"), {"choices": [], "usage": usage}]
    )

    message = {"content": "67", "refusal": None, "tool_calls": False}
    assert joined == {"model": "m-1", "usage": usage, "choices": [{"message": message, "finish_reason": "stop"}]}


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([chunk({"content": "6"})], id="cut-off"),
        pytest.param([], id="none"),
        pytest.param([None, 7, {"choices": 7}, {"choices": [None]}], id="odd"),
    ],
)
def test_chunks_without_an_end_are_no_answer(chunks: list[object]) -> None:
    assert join_chunks(chunks)["choices"] == []


def test_an_error_among_the_chunks_counts() -> None:
    error = {"error": {"code": 502, "message": "Network connection lost."}}
    assert join_chunks([chunk({"content": "6"}), error, chunk({}, "stop")]) == error


class RecordingPermits:
    """Permits every call, and records the most that it may cost."""

    def __init__(self) -> None:
        self.most_usd: float | None = None

    async def admit(self, provider: str, tokens: int, most_usd: float | None) -> None:
        self.most_usd = most_usd

    async def settle(self, permit: Any, **result: Any) -> None:
        """Does nothing: the result is not recorded."""


@pytest.mark.parametrize(
    ("text", "is_over_window"),
    [pytest.param("word " * 100, False, id="a-token-per-byte"), pytest.param("word " * 2000, True, id="the-window")],
)
async def test_the_most_that_a_call_may_cost_is_a_token_per_byte(text: str, is_over_window: bool) -> None:
    """At most the window is counted; an estimate of tokens could be too low for a budget."""
    prices = {"input": 1.0, "output": 0.0}
    provider = ProviderSettings.model_validate(
        {"model": "m", "context_window_tokens": 4_000, "max_reply_tokens": 500, "prices_usd_per_million_tokens": prices}
    )
    client, permits = JudgeClient("main", provider, None), RecordingPermits()
    real, server = client.endpoint.connection, connect(client.endpoint, "text")

    await client.ask(Question("analysis", [Message("user", text)]), clock=AttemptClock(5), permits=permits)
    await real.close()

    assert (server.read_bytes > 4_000) is is_over_window
    assert permits.most_usd == pytest.approx((4_000 if is_over_window else server.read_bytes) / 1e6)

"""Prompt and reply limit never exceed the judge's window, for all strategies, reminders and replies."""

import asyncio
import contextlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scripted import rubric_reply, structured_reply
from tables import table
from tarsy_scoring.config.chains import ChainSettings, ProviderSettings
from tarsy_scoring.errors import PromptTooLong, ScoringError
from tarsy_scoring.judge.ask.client import JudgeClient
from tarsy_scoring.judge.clock import AttemptClock
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.judge.verdict import Ask, Message, Question
from tarsy_scoring.scoring.providers import Case, Judgement, judge
from tarsy_scoring.timeline.model import Event, Execution, Stage, Timeline, ToolCall
from tarsy_scoring.timeline.render.context import FittedContext, estimate_tokens

REGISTRY = load_criteria()
TWO_TURN = "investigation-methodology"
WORDS = "evidence shows a pod that ran out of memory; "


def words(tokens: float) -> str:
    """A text of about this many estimated tokens."""
    return WORDS * max(1, round(tokens / estimate_tokens(WORDS * 100) * 100))


@dataclass(frozen=True)
class Reply:
    """One answer of the judge: `size` of the limit it was given, or, with `is_cut`, up to the limit."""

    size: float
    form: str
    is_cut: bool = False

    def text(self, limit: int) -> str:
        filler = words(self.size * limit)
        match self.form:
            case "two_turn":
                return f"{filler}\n\n67"
            case "contradiction":
                return f"{filler}\n\nLogical Flow: 1/25\nConsistency: 1/25\nTool Relevance: 1/25\n" + (
                    "Synthesis Quality: 1/25\n\n67"
                )
            case "structured":
                return json.dumps(structured_reply(score_reasoning=filler))
            case "rubric":
                return json.dumps(rubric_reply(issues=[filler]))
        return filler


class Endpoint:
    """Replaces the network: records each request and answers from a script, whose last answer repeats."""

    def __init__(self, *script: Reply) -> None:
        self.script = list(script)
        self.requests: list[dict[str, Any]] = []

    def answer(self, asked: httpx2.Request) -> httpx2.Response:
        request = json.loads(asked.content)
        self.requests.append(request)
        reply = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        answer = {
            "message": {"content": reply.text(request["max_tokens"])},
            "finish_reason": "length" if reply.is_cut else "stop",
        }
        return httpx2.Response(200, json={"model": "m", "choices": [answer]})

    def prompts(self) -> list[int]:
        """Estimated prompt tokens of each request."""
        return [sum(estimate_tokens(m["content"]) for m in r["messages"]) for r in self.requests]


Connect = Callable[[ProviderSettings, Endpoint], JudgeClient]


@pytest.fixture(scope="module")
def connect() -> Iterator[Connect]:
    """One client for all tests, since creating it takes far longer than a call."""
    answering: list[Endpoint] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        return answering[-1].answer(request)

    client = JudgeClient("main", ProviderSettings(model="m"), None, transport=httpx2.MockTransport(answer))

    def connect(provider: ProviderSettings, endpoint: Endpoint) -> JudgeClient:
        client.settings = client.endpoint.settings = provider
        answering.append(endpoint)
        return client

    yield connect
    asyncio.run(client.close())


def a_session(log_tokens: int) -> Timeline:
    """A session whose log has about this many estimated tokens."""
    events = (
        Event("e1", 1, "llm_tool_call", "completed", words(log_tokens), ToolCall("kubectl", "get_logs", "{}")),
        Event("e2", 2, "llm_response", "completed", "It runs out of memory."),
    )
    stage = Stage(
        "s1", "diagnosis", 1, "investigation", "completed", (Execution("x1", "agent", 1, "completed", events),)
    )
    return Timeline("one", "completed", "k", "Restarts", "a pod restarts", "out of memory", None, (stage,))


SESSION = a_session(60_000)


async def judged(
    client: JudgeClient, criteria: str = TWO_TURN, *, factor: float = 1.0, max_reminders: int = 2
) -> Judgement:
    def ask_of(_provider: str, _context: FittedContext) -> Ask:
        return partial(client.ask, clock=AttemptClock(60), token_factor=factor)

    chain = ChainSettings(providers=("main",), max_reminders=max_reminders)
    session = SESSION, "0123456789abcdef", chain, REGISTRY.get(criteria)
    case = Case(*session, {"main": client.settings}, ask_of, lambda _provider: factor)
    return await judge(case, lambda _error: True)


# --- the law -------------------------------------------------------------------------------------------

STRATEGIES = {
    "two_turn": TWO_TURN,
    "contradiction": TWO_TURN,
    "structured": "investigation-structured",
    "rubric": "cli-tool-use",
}


@st.composite
def scripts(draw: st.DrawFn) -> tuple[str, list[Reply]]:
    """A strategy with replies to it: of any size, in its form or in none, cut or whole."""
    form = draw(st.sampled_from(sorted(STRATEGIES)))
    reply = st.builds(Reply, st.floats(0, 1.3), st.sampled_from([form, form, "words"]), st.booleans())
    return form, draw(st.lists(reply, min_size=1, max_size=8))


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    script=scripts(),
    window=st.integers(14_000, 32_000),
    most=st.integers(256, 6_000),
    factor=st.sampled_from([1.0, 1.25, 1.6]),
)
def test_prompt_and_reply_limit_fit_the_window(
    connect: Connect, script: tuple[str, list[Reply]], window: int, most: int, factor: float
) -> None:
    form, replies = script
    provider = ProviderSettings(model="m", context_window_tokens=window, max_reply_tokens=min(most, window // 2))
    endpoint = Endpoint(*replies)

    with contextlib.suppress(ScoringError):
        asyncio.run(judged(connect(provider, endpoint), STRATEGIES[form], factor=factor))

    for prompt, request in zip(endpoint.prompts(), endpoint.requests, strict=True):
        assert math.ceil(prompt * factor) + request["max_tokens"] <= window
        assert min(provider.max_reply_tokens, 256) <= request["max_tokens"] <= 2 * provider.max_reply_tokens


# --- a full window -------------------------------------------------------------------------------------

TIGHT = ProviderSettings(model="m", context_window_tokens=24_000, max_reply_tokens=4_000)


async def test_missing_tools_get_what_an_enlarged_answer_leaves(connect: Connect) -> None:
    """The repeated answer exceeds the normal limit, so the follow-up has less than a whole limit left."""
    endpoint = Endpoint(Reply(1, "two_turn", is_cut=True), Reply(0.75, "two_turn"), Reply(0.1, "words"))

    judgement = await judged(connect(TIGHT, endpoint))

    assert judgement.verdict.flags == set()
    assert [r["max_tokens"] for r in endpoint.requests[:2]] == [4_000, 8_000]
    assert 1_000 <= endpoint.requests[2]["max_tokens"] < 4_000


async def test_missing_tools_without_room_cost_a_flag(connect: Connect) -> None:
    """The repeated answer filled the window: the score is completed, and no further request is sent."""
    endpoint = Endpoint(Reply(1, "two_turn", is_cut=True), Reply(1, "two_turn"))

    judgement = await judged(connect(TIGHT, endpoint))

    assert (judgement.verdict.total_score, judgement.verdict.flags) == (67, {"missing_tools_unavailable"})
    assert len(endpoint.requests) == 2


async def test_reminders_go_on_in_a_full_window(connect: Connect) -> None:
    """Where replies fill the window, only the last one is kept, and the evidence."""
    endpoint = Endpoint(*[Reply(1, "words")] * 3, Reply(0.01, "two_turn"), Reply(0.01, "words"))

    judgement = await judged(connect(TIGHT, endpoint), max_reminders=3)

    assert judgement.verdict.total_score == 67
    openings = [r["messages"][:2] for r in endpoint.requests]
    assert openings == [openings[0]] * 5
    assert [len(r["messages"]) for r in endpoint.requests] == [2, 4, 4, 4, 6]


# --- one call ------------------------------------------------------------------------------------------


@table
async def test_a_reply_limit_shrinks_to_what_is_left(
    prompt: int, token_factor: float, reply_limit_factor: int, limit: int | None, *, connect: Connect
) -> None:
    """A request needs room for a quarter of `max_reply_tokens`, or for more than a cut answer had."""
    endpoint = Endpoint(Reply(0.1, "words"))
    client = connect(ProviderSettings(model="m", context_window_tokens=10_000, max_reply_tokens=2_000), endpoint)
    question = Question("analysis", exactly(prompt), reply_limit_factor=reply_limit_factor)
    asking = client.ask(question, clock=AttemptClock(60), token_factor=token_factor)

    if limit is None:
        with pytest.raises(PromptTooLong, match="was not asked") as raised:
            await asking
        assert (raised.value.window_tokens, raised.value.prompt_tokens) == (10_000, math.ceil(prompt * token_factor))
    else:
        await asking

    assert [r["max_tokens"] for r in endpoint.requests] == ([limit] if limit else [])


@pytest.mark.parametrize(("left", "is_asked"), [(256, True), (255, False)])
async def test_no_reply_is_asked_for_in_fewer_than_256_tokens(connect: Connect, left: int, is_asked: bool) -> None:
    endpoint = Endpoint(Reply(0.1, "words"))
    client = connect(ProviderSettings(model="m", context_window_tokens=10_000, max_reply_tokens=400), endpoint)

    try:
        await client.ask(Question("analysis", exactly(10_000 - left)), clock=AttemptClock(60))
    except PromptTooLong:
        assert not is_asked

    assert len(endpoint.requests) == is_asked


def exactly(tokens: int) -> list[Message]:
    """Messages of exactly this many estimated tokens."""
    unit = next(n for n in range(1, 200) if estimate_tokens("x" * n) > 1) - 1
    text = "x" * (unit * tokens)
    while estimate_tokens(text) > tokens:
        text = text[: -unit * (estimate_tokens(text) - tokens)]
    while estimate_tokens(text) < tokens:
        text += "x"
    assert estimate_tokens(text) == tokens
    return [Message("user", text)]

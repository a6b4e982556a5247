"""
Error bodies and reply shapes of real endpoints, and how the client reacts to each.

`tests/endpoints` has a file per endpoint, and its README explains the fields. A server on loopback sends the replies;
no endpoint is asked.
"""

import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from tarsy_scoring.config.chains import ProviderSettings
from tarsy_scoring.errors import (
    AttemptError,
    ContentFiltered,
    JudgeRejectedRequest,
    PromptTooLong,
    Refused,
    Unscorable,
    WaitFor,
)
from tarsy_scoring.judge.ask import endpoint as endpoint_module
from tarsy_scoring.judge.ask.client import JITTER, RETRY_WAITS_S, JudgeClient
from tarsy_scoring.judge.clock import AttemptClock
from tarsy_scoring.judge.conversation import Conversation
from tarsy_scoring.judge.verdict import Message, ReplyFormat, Turn

ROOT = Path(__file__).parents[2]
OPENING = [Message("system", "Judge."), Message("user", "Why?")]
FORMAT = ReplyFormat("verdict", {"type": "object"})
ANSWER = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "67"}, "finish_reason": "stop"}]}

# The error with which a reaction ends, if it does not end with an answer.
ERRORS: dict[str, tuple[type[AttemptError], str]] = {
    "shrink": (PromptTooLong, "context_too_long"),
    "wait": (WaitFor, "rate_limit"),
    "wait for the key": (WaitFor, "key"),
    "wait for the quota": (WaitFor, "quota"),
    "filtered": (ContentFiltered, "content_filtered"),
    "refused": (Refused, "refused"),
    "rejected": (JudgeRejectedRequest, "judge_rejected_request"),
    "empty": (Unscorable, "empty_answer"),
}
Reaction = Literal[
    "answered",
    "adapt",
    "retry",
    "shrink",
    "wait",
    "wait for the key",
    "wait for the quota",
    "filtered",
    "refused",
    "rejected",
    "empty",
]


class Case(BaseModel):
    """One reply of an endpoint, and the reaction to it; tests/endpoints/README.md explains the fields."""

    model_config = ConfigDict(extra="forbid")

    name: str
    source: Annotated[str, Field(min_length=1)]
    status: int = 200
    headers: dict[str, str] = {}
    body: Any = None
    text: str | None = None
    only_for: Literal["max_completion_tokens", "developer"] | None = None
    asked_for: Literal["json_schema", "json_object"] = "json_schema"
    reaction: Reaction
    window: int | None = None
    prompt: int | None = None
    sends: dict[str, Any] = {}
    after_s: float | None = None
    due_s: float | None = None
    says: str = ""
    reply: str = "67"


class Table(BaseModel):
    """The cases of one endpoint."""

    model_config = ConfigDict(extra="forbid")

    endpoint: str
    cases: list[Case]


TABLES = [
    Table.model_validate(yaml.safe_load(f.read_text("utf-8")))
    for f in sorted((ROOT / "tests/endpoints").glob("*.yaml"))
]
CASES = [pytest.param(case, id=f"{table.endpoint}: {case.name}") for table in TABLES for case in table.cases]


class Server:
    """Sends the reply of a case, and an answer to the requests that the reply is not meant for."""

    def __init__(self) -> None:
        self.url = ""
        self.case = Case(name="", source="none", reaction="answered")
        self.requests: list[dict[str, Any]] = []
        self.waits: list[float] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.requests.append(asked)
        case = self.case
        if case.only_for is not None and case.only_for not in {*asked, *(m["role"] for m in asked["messages"])}:
            return web.json_response(ANSWER)
        if case.reaction in ("adapt", "retry") and len(self.requests) > 1:
            return web.json_response(ANSWER)
        text = json.dumps(case.body) if case.text is None else case.text
        headers = {"content-type": "application/json"} | case.headers
        return web.Response(body=text.encode(), status=case.status, headers=headers)

    async def sleep(self, seconds: float) -> None:
        """Replaces `asyncio.sleep`: records the wait and returns at once."""
        self.waits.append(seconds)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.05)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield server
    await runner.cleanup()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[JudgeClient]:
    settings = ProviderSettings(base_url=server.url, model="judge-1", temperature=0.5, max_reply_tokens=1_000)
    client = JudgeClient("main", settings, "sk-planted-judge-key", sleep=server.sleep)
    yield client
    await client.close()


async def converse(client: JudgeClient) -> Turn:
    return await Conversation(partial(client.ask, clock=AttemptClock(60)), OPENING, FORMAT).say("analysis")


@pytest.mark.parametrize("case", CASES)
async def test_each_reply_gets_the_reaction_that_an_operator_wants(
    server: Server, client: JudgeClient, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.case = case
    ladder = endpoint_module.JSON_LADDER
    monkeypatch.setattr(endpoint_module, "JSON_LADDER", ladder[ladder.index(case.asked_for) :])

    if case.reaction in ERRORS:
        kind, word = ERRORS[case.reaction]
        with pytest.raises(kind, check=lambda error: error.word == word) as raised:
            await converse(client)
        error = raised.value
        assert case.says in str(error)
        if isinstance(error, PromptTooLong):
            assert (error.window_tokens, error.prompt_tokens) == (case.window, case.prompt)
        if isinstance(error, WaitFor) and case.reaction == "wait":
            assert error.due_s == pytest.approx(case.due_s)
        else:  # without any text, other forms of JSON are tried
            assert len(server.requests) == (3 if case.reaction == "empty" else 1)
        return

    turn = await converse(client)

    assert turn.reply == case.reply
    assert len(server.requests) == (1 if case.reaction == "answered" else 2)
    assert len(server.waits) == (case.reaction == "retry")
    if case.reaction == "retry":
        asked = RETRY_WAITS_S[0] * (1 - JITTER) if case.after_s is None else case.after_s
        assert asked <= server.waits[0] <= (case.after_s or RETRY_WAITS_S[0]) * (1 + JITTER)
    sent = _as_named(server.requests[-1])
    assert {name: sent.get(name) for name in case.sends} == case.sends


def _as_named(request: dict[str, Any]) -> dict[str, Any]:
    """The request with its roles and the type of its response format, as the cases name them."""
    roles = [m["role"] for m in request["messages"]]
    return {**request, "roles": roles, "response_format": request.get("response_format", {}).get("type")}


def test_each_case_has_its_own_name() -> None:
    assert len({case.id for case in CASES}) == len(CASES)


def test_the_page_of_endpoints_counts_the_cases() -> None:
    page = (ROOT / "docs/endpoints.md").read_text("utf-8").split("## What was checked")[1]
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("|")]
    assert rows[2:] == [[table.endpoint, str(len(table.cases))] for table in TABLES]

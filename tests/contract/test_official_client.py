"""Calls of the judge are those of the official client, except for the headers that describe the client itself."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from multidict import CIMultiDict
from openai import AsyncOpenAI

from tarsy_scoring import __version__
from tarsy_scoring.config.settings import ProviderSettings
from tarsy_scoring.judge.ask.client import JudgeClient
from tarsy_scoring.judge.clock import AttemptClock
from tarsy_scoring.judge.verdict import Message, Question

KEY = "sk-planted-judge-key"
MESSAGES = [{"role": "system", "content": "Judge."}, {"role": "user", "content": "Ein Text mit “Anführung” ☃"}]
ANSWER = {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "67"}}]}
# Headers that describe the client or the connection.
OWN = {"User-Agent", "Accept-Encoding", "Content-Length", "Connection"}


class Endpoint:
    """Answers each call, and records paths, headers and bodies."""

    def __init__(self) -> None:
        self.base = ""
        self.calls: list[tuple[str, CIMultiDict[str], Any]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.calls.append((request.raw_path, CIMultiDict(request.headers), json.loads(await request.read())))
        return web.json_response(ANSWER | {"id": "1", "object": "chat.completion", "created": 1, "model": "m"})


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    app = web.Application()
    app.router.add_post("/{path:.*}", endpoint.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.05)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    endpoint.base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield endpoint
    await runner.cleanup()


def _shown(headers: CIMultiDict[str]) -> dict[str, str]:
    own = {name.lower() for name in OWN}
    described = {n.lower(): v for n, v in headers.items()}
    return {n: v for n, v in described.items() if n not in own and not n.startswith("x-stainless-")}


@pytest.mark.parametrize("path", ["", "/v1", "/v1/", "/openai/deployments/judge-eu"])
@pytest.mark.parametrize(
    ("extra", "variables"),
    [
        ({}, {}),
        ({"X-Team": "sre", "authorization": "Basic abc", "accept": "*/*"}, {}),
        ({"OpenAI-Project": "own"}, {"OPENAI_ORG_ID": "org-1", "OPENAI_PROJECT_ID": "proj-1"}),
    ],
    ids=["plain", "own_headers", "organization_and_project"],
)
async def test_a_call_is_that_of_the_official_client(
    endpoint: Endpoint, path: str, extra: dict[str, str], variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings = ProviderSettings(
        base_url=endpoint.base + path, model="judge-1", temperature=0.5, max_reply_tokens=512, extra_headers=extra
    )
    client = JudgeClient("main", settings, KEY)
    question = Question("analysis", [Message(m["role"], m["content"]) for m in MESSAGES])
    await client.ask(question, clock=AttemptClock(30))
    await client.close()
    async with AsyncOpenAI(
        api_key=KEY, base_url=endpoint.base + path, default_headers=extra, max_retries=0
    ) as official:
        await official.chat.completions.create(
            model="judge-1",
            messages=MESSAGES,  # type: ignore[arg-type]
            max_tokens=512,
            temperature=0.5,
        )

    ours, theirs = endpoint.calls
    assert ours[0] == theirs[0] == f"{path.rstrip('/')}/chat/completions"
    assert _shown(ours[1]) == _shown(theirs[1])
    assert ours[2] == theirs[2]
    assert ours[1]["User-Agent"] == f"tarsy-scoring/{__version__}"

"""The Python client and the documented examples, with the API as a server on a real database."""

import asyncio
import contextlib
import hashlib
import re
import shutil
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from api_site import Api, Sessions, open_api
from builders import HASHES, completion, policy, step
from integration.test_api_app import serving
from tarsy_scoring.client import (
    AsyncClient,
    Client,
    Conflict,
    ListedSession,
    NotFound,
    RequestRefused,
    Score,
    Unauthorised,
)
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import SessionNotFound, SessionNotTerminal
from tarsy_scoring.judge.verdict import MissingTool
from tarsy_scoring.timeline.model import FoundSession

DOCS = Path(__file__).parents[2] / "docs"
ENDED = datetime.now(UTC) - timedelta(hours=1)  # examples ask for the last week
SESSION = "7d1c6c9e"  # the session of the examples
SOURCE = {
    name.replace("-", "_"): FoundSession(name, "kubernetes", "completed", ENDED)
    for name in (SESSION, "session-1", "session-2", "session-3")
}

KNOWN = policy(hashes={**HASHES, "investigation-outcome": "hash-outcome"})  # the criteria of an example


@dataclass(frozen=True)
class Site:
    """A served API, and the database behind it."""

    url: str
    api: Api

    async def judge(self, total_score: int = 67) -> None:
        """End every pending score with this total, as a worker would."""
        for claimed in await self.api.scoring.claim():
            tools = [MissingTool("read-file", "The script was not seen.")]
            await self.api.scoring.store.record(step(claimed, ordinal=0))
            await self.api.scoring.store.end(completion(claimed, total_score=total_score, missing_tools=tools))


@contextlib.asynccontextmanager
async def served(database_url: str, **settings: Any) -> AsyncIterator[Site]:
    source = Sessions(**SOURCE, running=SessionNotTerminal("it runs"), unknown=SessionNotFound("unknown"))
    async with (
        open_api(database_url, source, KNOWN, settings=Settings(**settings)) as api,
        serving(api.app) as (url, _stopping),
    ):
        yield Site(url, api)


@pytest.fixture
async def site(database_url: str) -> AsyncIterator[Site]:
    """An API on loopback, which admits every program of this machine."""
    async with served(database_url) as opened:
        yield opened


async def test_a_score_is_requested_awaited_and_read(site: Site) -> None:
    async def judged_while_waiting(seconds: float) -> None:
        assert seconds == 1.0
        await site.judge()

    async with AsyncClient(site.url, sleep=judged_while_waiting) as client:
        requested = await client.request_score(SESSION, reason="asked by a test")
        assert (requested.status, requested.is_open, requested.total_score) == ("pending", True, None)
        ended = await client.wait_for_score(SESSION, timeout_s=60)

        assert (ended.score_id, ended.status, ended.total_score) == (requested.score_id, "completed", 67)
        assert ended.missing_tools[0].tool_name == "read-file"
        assert await client.score(SESSION) == await client.get_score(ended.score_id) == ended
        assert (await client.request_score(SESSION)).score_id == ended.score_id

        again = await client.request_score(SESSION, force=True, reference="The disk was full.", idempotency_key="a")
        repeated = await client.request_score(SESSION, force=True, reference="The disk was full.", idempotency_key="a")
        assert again.score_id == repeated.score_id != ended.score_id
        with pytest.raises(Conflict):
            await client.request_score(SESSION, force=True)
        assert (await client.cancel(again.score_id)).status == "cancelled"
        assert [s.score_id async for s in client.history(SESSION)] == [again.score_id, ended.score_id]


async def test_refusals_are_errors_by_reaction(site: Site) -> None:
    async with AsyncClient(site.url) as client:
        with pytest.raises(RequestRefused) as not_ended:
            await client.request_score("running")
        assert not_ended.value.status == 400
        with pytest.raises(NotFound) as unknown:
            await client.request_score("unknown")
        assert unknown.value.request_id
        assert unknown.value.type == "urn:tarsy-scoring:problem:unknown-session"
        with pytest.raises(NotFound):
            await client.get_score(uuid.uuid4())
        with pytest.raises(RequestRefused, match="max_score"):
            _ = [each async for each in client.sessions(max_score=101)]


async def test_a_token_says_who_asks_and_what_is_allowed(database_url: str, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.yaml"
    hashes = {scope: hashlib.sha256(f"token-to-{scope}".encode()).hexdigest() for scope in ("read", "score")}
    tokens.write_text("".join(f"- {{name: {s}, scope: {s}, sha256: {h}}}\n" for s, h in hashes.items()), "utf-8")
    async with served(database_url, api_tokens_file=tokens) as site:
        for token in (None, "another", "token-to-read"):
            async with AsyncClient(site.url, token=token) as client:
                with pytest.raises(Unauthorised):
                    await client.request_score(SESSION)
        async with AsyncClient(site.url, token="token-to-score") as client:
            assert (await client.request_score(SESSION)).status == "pending"
        async with AsyncClient(site.url, token="token-to-read") as client:
            assert (await client.score(SESSION)).status == "pending"


async def test_many_scores_are_read_by_the_blocking_client(site: Site) -> None:
    def request_all() -> None:
        with Client(site.url) as client:
            for number in (1, 2, 3):
                client.request_score(f"session-{number}")

    def read() -> tuple[list[ListedSession], list[ListedSession], list[Score]]:
        with Client(site.url) as client:
            every = list(client.sessions(chain="kubernetes", since=ENDED - timedelta(days=1)))
            none = list(client.sessions(min_score=68))
            return every, none, [exported.score for exported in client.export(latest=True, begins_with="session-")]

    await asyncio.to_thread(request_all)
    await site.judge()
    every, none, exported = await asyncio.to_thread(read)

    assert {s.session_id: s.score and s.score.total_score for s in every} == dict.fromkeys(
        ["session-1", "session-2", "session-3"], 67
    )
    assert none == []
    assert {score.session_id for score in exported} == {s.session_id for s in every}
    assert {score.total_score for score in exported} == {67}


async def test_pages_of_a_list_follow_each_other(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tarsy_scoring.client.parameters.PAGE", 1)
    async with AsyncClient(site.url) as client:
        for number in (1, 2, 3):
            await client.request_score(f"session-{number}")

        found = [session.session_id async for session in client.sessions()]

    assert sorted(found) == ["session-1", "session-2", "session-3"]


# --- the examples of the documentation -----------------------------------------------------------------


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", range(len(blocks("client.md", "python"))))
async def test_the_examples_of_the_client_run(site: Site, number: int) -> None:
    example = blocks("client.md", "python")[number].replace("https://scoring.example", site.url)
    example = example.replace("timeout_s=600", "timeout_s=60")
    await site.api.ask(SESSION)
    await site.judge(total_score=40)
    printed: list[str] = []
    names = {"TOKEN": "any", "print": lambda *words: printed.append(" ".join(map(str, words)))}

    await asyncio.to_thread(exec, compile(example, "client.md", "exec"), names)

    expected = [["completed 40 None []"], ["{'7d1c6c9e': 40}"], ["7d1c6c9e None 40", "0 passed"], []]
    assert printed == expected[number]


def curl_examples() -> list[str]:
    """The commands of docs/api.md that call the API without a token, each on one line."""
    text = "\n".join(blocks("api.md", "sh")).replace("\\\n", " ")
    return [line for line in text.splitlines() if line.startswith("curl") and "$api" in line]


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="needs curl and jq")
async def test_the_examples_with_curl_run(site: Site, tmp_path: Path) -> None:
    """Each is answered with a success, and prints something unless it writes a file."""
    examples = curl_examples()
    assert len(examples) >= 10
    score_id = str((await site.api.ask("session-1")).json()["score_id"])
    for example in examples:
        await site.judge(total_score=40)
        variables = f"set -o pipefail; api={site.url}/api/v1/scoring; SCORE_ID={score_id}\n"
        command = variables + example.replace("curl -s ", "curl -s --fail-with-body ")
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        printed, _ = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0, (example, printed.decode())
        if "scores.jsonl" not in example:
            assert printed.strip(), example
    assert (tmp_path / "scores.jsonl").exists()

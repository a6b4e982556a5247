"""An installation to upgrade: an empty database, and a judge that counts how often each question comes."""

import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from infrastructure import Topics
from processes import Service
from tarsy_scoring_lab.scripted_judge import ScriptedJudge

JUDGE_S = 0.15
SLOTS = 6  # few, so that the open scores last for the upgrade and leave time to the pages
SESSION = re.compile(rb"(?:live-[a-z]+|stored)-\d+")


class CountingJudge(ScriptedJudge):
    """`questions` counts the calls by session and by the number of answers that the conversation already holds."""

    def __init__(self) -> None:
        super().__init__(latency_s=JUDGE_S)
        self.questions: Counter[tuple[str, int]] = Counter()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        session = SESSION.search(body)
        assert session is not None, "each question names its session"
        answers = sum(message["role"] == "assistant" for message in json.loads(body)["messages"])
        self.questions[session[0].decode(), answers] += 1
        return await super()._complete(request)


@pytest.fixture
async def judge() -> AsyncIterator[CountingJudge]:
    async with CountingJudge() as judge:
        yield judge


@pytest.fixture
async def service(
    tmp_path: Path, empty_database_url: str, topics: Topics, judge: CountingJudge
) -> AsyncIterator[Service]:
    """An installation without tables, whose processes end with the test."""
    running = Service(tmp_path, empty_database_url, topics, judge)
    running.env["SCORING_SLOTS"] = str(SLOTS)
    try:
        yield running
    finally:
        await running.close()

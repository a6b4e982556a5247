"""The pages across sessions on a real database: they show scores, and filters narrow them."""

from collections.abc import AsyncIterator

import pytest

from api_site import Api, open_api
from attempting import a_timeline
from builders import completion
from fakes import FakeSessions
from tarsy_scoring.judge.verdict import MissingTool

AS_BROWSER = {"Accept": "text/html,*/*;q=0.8", "X-Forwarded-User": "alice"}
PAGES = ("/trends", "/distribution", "/missing-tools", "/failure-tags")


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with open_api(database_url, FakeSessions(**{"session-1": a_timeline(session_id="session-1")})) as api:
        yield api


async def look(api: Api, path: str, status: int = 200) -> str:
    answer = await api.client.get(path, headers=AS_BROWSER)
    assert answer.status_code == status, answer.text
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "style=" not in answer.text
    return answer.text


async def test_an_empty_database_says_so(api: Api) -> None:
    for path in PAGES:
        html = await look(api, path)
        assert "in this period" in html
        assert "<polygon" not in html
        assert f'href="{path}" aria-current="page"' in html


async def test_a_score_is_on_every_page_and_left_out_by_filters(api: Api) -> None:
    claimed = await api.scoring.claimed("session-1", chain_id="kubernetes")
    judge = {"judge_fingerprint": "f" * 64, "criteria": "investigation-methodology"}
    tags = {"failure_tags": ["wrong_conclusion"], "score_breakdown": {"logical_flow": 11}}
    tools = (MissingTool("<b>read_logs</b>", "they were guessed"),)
    await api.scoring.store.end(completion(claimed, missing_tools=tools, total_score=42, **judge, **tags))
    for path, shown in {
        "/trends": '<td class="number">42.0</td>',
        "/distribution": '11 <span class="quiet">of 25</span>',
        "/missing-tools": "&lt;b&gt;read_logs&lt;/b&gt;",
        "/failure-tags": "Wrong conclusion",
    }.items():
        assert shown in await look(api, path)
        assert shown in await look(api, f"{path}?chain=kubernetes&criteria=investigation-methodology")
        for query in ("chain=databases", "criteria=investigation-outcome", "since=&until=2020-01-01"):
            narrowed = await look(api, f"{path}?{query}")
            assert shown not in narrowed
            assert "in this period" in narrowed

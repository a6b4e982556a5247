"""Access to labels, the review list, trust cards and missing tools, and their stored authors."""

import hashlib
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from api_site import Api
from builders import open_scoring, policy
from stored import store_score
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.web.app import create_app
from tarsy_scoring.web.context import AppContext
from tarsy_scoring.web.edge.access import Access

SCORE = uuid.UUID(int=7)
API = "/api/v1/scoring"
# Requests that change something, by path.
CHANGES = {
    f"{API}/scores/{SCORE}/labels": {"agrees": True},
    f"{API}/missing-tools/states": {"tool": "node_cpu", "state": "planned"},
    f"{API}/missing-tools/merges": {"name": "node_cpu"},
}
FORMS = {
    f"/scores/{SCORE}/labels": {"said": "agrees"},
    "/missing-tools/states": {"tool": "node_cpu", "state": "planned"},
    "/missing-tools/merges": {"name": "node_cpu"},
}
COUNT_CHANGES = """
SELECT (SELECT count(*) FROM score_labels) + (SELECT count(*) FROM tool_states) + (SELECT count(*) FROM tool_merges)
"""
READS, SCORES = {"Authorization": "Bearer reads"}, {"Authorization": "Bearer scores"}


@pytest.fixture
async def api(database_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    """An API with the tokens `reads` and `scores`, and a score that names a missing tool."""
    tokens = tmp_path / "tokens.json"
    entries = (("reads", "read"), ("scores", "score"))
    digests = [{"name": t, "sha256": hashlib.sha256(t.encode()).hexdigest(), "scope": s} for t, s in entries]
    tokens.write_text(json.dumps(digests), encoding="utf-8")
    settings = Settings(api_tokens_file=tokens, api_rate_per_minute=1_000_000)
    async with open_scoring(database_url, policy()) as scoring:
        parts = scoring.inbox, scoring.leases, scoring.reader, scoring.analytics
        site = AppContext(settings, load_criteria(), *parts, Metrics(), None)
        transport = httpx.ASGITransport(create_app(site, access=Access(settings)), raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            await store_score(scoring, "s1", 40, score_id=str(SCORE), missing_tools=("node_cpu",))
            yield Api(client, scoring)


async def test_a_caller_that_may_only_read_changes_nothing(api: Api) -> None:
    for path in ("/missing-tools?since=", f"/scores/{SCORE}"):
        shown = await api.client.get(path, headers=READS | {"Accept": "text/html"})
        offered = await api.client.get(path, headers=SCORES | {"Accept": "text/html"})
        assert ('method="post"' in shown.text, 'method="post"' in offered.text) == (False, True), path
    for path, body in CHANGES.items():
        assert (await api.client.post(path, json=body, headers=READS)).status_code == 403, path
    for path, form in FORMS.items():
        assert (await api.client.post(path, data=form)).status_code == 401, path
        assert (await api.client.post(path, data=form, headers=READS)).status_code == 403, path
        foreign = await api.client.post(path, data=form, headers=SCORES | {"Origin": "https://evil.example"})
        assert (foreign.status_code, "Another site" in foreign.text) == (403, True), path
    assert await api.scoring.value(COUNT_CHANGES) == 0
    own = SCORES | {"Origin": "http://127.0.0.1", "Sec-Fetch-Site": "same-origin"}
    for path, form in FORMS.items():
        assert (await api.client.post(path, data=form, headers=own)).status_code == 303, path


async def test_the_author_is_stored(api: Api) -> None:
    for path, body in CHANGES.items():
        assert (await api.client.post(path, json=body, headers=SCORES)).status_code == 201, path
    for statement in (
        "SELECT labelled_by FROM score_labels",
        "SELECT said_by FROM tool_states",
        "SELECT decided_by FROM tool_merges",
    ):
        assert await api.scoring.value(statement) == "scores"

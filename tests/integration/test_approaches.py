"""Better approaches over many sessions: grouped, and on the page."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic_core import from_json, to_json

from api_site import Api, open_api
from builders import Scoring
from stored import NOON, store_score
from tarsy_scoring.analytics import approaches
from tarsy_scoring.analytics.daily import Selection
from tarsy_scoring.cli import cli
from tarsy_scoring.judge.read.extraction import tool_of_step

AS_BROWSER = {"Accept": "text/html"}
LOGS = ("kubernetes.pods_log: the container before its restart", "kubernetes.events_list: around the restart")


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with open_api(database_url) as opened:
        yield opened


async def store_approach(
    scoring: Scoring, session_id: str, total: int | None, name: str, steps: Sequence[str] = LOGS, **more: Any
) -> None:
    """Store a score that names one better approach."""
    described = more.pop("description", "Read before concluding.")
    score_id = await store_score(scoring, session_id, total, **more)
    await scoring.rows("INSERT INTO score_alternative_approaches VALUES ($1, 1, $2, $3)", score_id, name, described)
    for ordinal, step in enumerate(steps, start=1):
        await scoring.rows(
            "INSERT INTO score_alternative_approach_steps VALUES ($1, 1, $2, $3, $4)",
            *(score_id, ordinal, step, tool_of_step(step)),
        )


async def asked(api: Api, chain: str | None = None, limit: int = 50) -> Any:
    found = await approaches.read_approaches(api.scoring.analytics.database, Selection(chain), limit)
    return from_json(to_json(found))


async def command(scoring: Scoring, *arguments: str) -> str:
    env = {"SCORING_DATABASE_URL": scoring.url}
    done = await asyncio.to_thread(CliRunner().invoke, cli, ["report", "approaches", *arguments], env=env)
    assert done.exit_code == 0, done.output
    return done.output


async def test_approaches_of_similar_names_and_steps_are_one(api: Api) -> None:
    """Its sessions are those that went another way, the lowest total first; the latest score of each counts."""
    scoring = api.scoring
    await store_approach(scoring, "a", 40, "Logs first")
    await store_approach(
        scoring, "b", 20, "Read the logs first", description="Newer words.", at=NOON + timedelta(hours=1)
    )
    await store_approach(scoring, "c", None, "logs  FIRST", session={"chain_id": "network"})
    await store_approach(scoring, "d", 70, "Logs first", ["prometheus.query_range: the memory of a day"])
    await store_approach(scoring, "e", 90, "Ask the service mesh", ["istio.routes: of the service"])
    await store_approach(scoring, "f", 10, "Logs first", at=NOON - timedelta(hours=1))
    await store_score(scoring, "f", 95)

    found = await asked(api)
    first, *others = found
    assert first["name"] == "Logs first"
    assert (first["sessions"], first["chains"], first["mean_total"]) == (3, 2, 30)
    assert (first["description"], first["steps"]) == ("Newer words.", list(LOGS))
    poorer = [(one["session_id"], one["total_score"]) for one in first["took_poorer_path"]]
    assert poorer == [("b", 20), ("a", 40), ("c", None)]
    assert [(one["name"], one["sessions"]) for one in others] == [("Ask the service mesh", 1), ("Logs first", 1)]
    assert [one["sessions"] for one in await asked(api, chain="network")] == [1]
    assert await asked(api, limit=1) == [first]

    reported = json.loads(await command(scoring, "--json"))
    assert reported["approaches"] == found
    text = await command(scoring)
    assert '3 sessions, mean total 30.0: "Logs first"' in text.splitlines()
    assert "  sessions that went another way: b (20), a (40), c (no total)" in text.splitlines()
    assert await command(scoring, "--chain", "unknown") == "no score names a better approach\n"


async def test_the_page_quotes_hostile_texts_of_the_newest_approaches(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approaches, "MOST_READ", 2)
    hostile = "<script>alert(1)</script>\u202e" + "x" * 5000
    for n in range(3):
        await store_approach(
            api.scoring, f"s-{n}", 50, hostile, [hostile, "a: b"], description=hostile, at=NOON + timedelta(minutes=n)
        )
    page = await api.client.get("/approaches?since=", headers=AS_BROWSER)

    assert page.status_code == 200, page.text
    assert "<script>alert" not in page.text
    assert "&lt;script&gt;alert" in page.text
    assert "\u202e" not in page.text
    assert "x" * 700 not in page.text
    assert [f'href="/sessions/s-{n}"' in page.text for n in range(3)] == [False, True, True]
    assert "\u202e" not in await command(api.scoring)
    assert (
        "No judge named a better approach"
        in (await api.client.get("/approaches?chain=unknown", headers=AS_BROWSER)).text
    )
    assert 'href="/approaches"' in (await api.client.get("/missing-tools?since=", headers=AS_BROWSER)).text
    assert (await api.client.get("/approaches?since=never", headers=AS_BROWSER)).status_code == 422

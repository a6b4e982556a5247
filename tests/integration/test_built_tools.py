"""Scores that asked for a tool which was built after they were made: marked, and left out of reports on demand."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from click import Command
from click.testing import CliRunner, Result

from api_site import Api, open_api
from stored import NOON, store_score
from tarsy_scoring.commands.export import export
from tarsy_scoring.studies.commands.compare import compare

DAY = timedelta(days=1)
BUILT = NOON + 2 * DAY
AS_BROWSER = {"Accept": "text/html", "X-Forwarded-User": "alice"}
MARK = "tool built since"
Run = Callable[..., Awaitable[Result]]


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    """Two sessions asked for a tool before it was built; one did after that, and one asked for another tool."""
    async with open_api(database_url) as api:
        await store_score(api.scoring, "early", 20, missing_tools=("Tail Logs",), session=labelled("v1"))
        await store_score(api.scoring, "merged", 30, missing_tools=("live_feed", "x"), session=labelled("v1"))
        await store_score(api.scoring, "late", 60, at=BUILT + DAY, missing_tools=("tail_logs",), session=labelled("v2"))
        await store_score(api.scoring, "other", 80, missing_tools=("x",), session=labelled("v1"))
        await decide(api, "states", tool="tail_logs", state="built", since=BUILT.isoformat())
        await decide(api, "merges", name="live_feed", tool="tail-logs")
        yield api


def labelled(value: str) -> dict[str, Any]:
    return {"labels": {"guidance": value}}


async def decide(api: Api, path: str, **body: str) -> None:
    answer = await api.client.post(f"/api/v1/scoring/missing-tools/{path}", json=body)
    assert answer.status_code < 300, answer.text


@pytest.fixture
def run(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command on the database."""
    monkeypatch.setenv("SCORING_DATABASE_URL", database_url)
    return lambda command, *arguments: asyncio.to_thread(CliRunner().invoke, command, list(arguments))


async def analysed(api: Api, path: str) -> Any:
    return (await api.get(f"analytics/{path}", exclude="tool_built")).json()


async def exported(api: Api, **query: str) -> set[str]:
    lines = (await api.get("export", **query)).text.splitlines()
    return {json.loads(line)["score"]["session_id"] for line in lines}


async def test_they_are_left_out_of_analytics(api: Api) -> None:
    """By every name of the tool, and as if these scores did not exist; rollups or not."""
    trends, bands = await analysed(api, "trends"), (await analysed(api, "distribution"))["bands"]

    assert [(p["minimum"], p["maximum"], p["count"]) for p in trends["points"]] == [(80, 80, 1), (60, 60, 1)]
    assert [(c["average"], c["count"]) for c in trends["chains"]] == [(70, 2)]
    assert [b["count"] for b in bands] == [0, 1, 1]
    assert (await analysed(api, "failure-tags"))["scores"] == 2
    assert (await api.get("analytics/trends")).json()["chains"][0]["count"] == 4


async def test_they_are_left_out_of_exports(api: Api, run: Run) -> None:
    assert await exported(api, exclude="tool_built") == {"late", "other"}
    assert await exported(api) == {"early", "merged", "late", "other"}
    lines = (await run(export, "--exclude", "tool_built")).output.splitlines()
    assert {json.loads(line)["score"]["session_id"] for line in lines} == {"late", "other"}


async def test_exports_leave_out_suspected_injections(api: Api, run: Run) -> None:
    """Alone and together with built tools; other flags stay."""
    await store_score(api.scoring, "steered", 90, flags=["coverage_low", "injection_suspected"])
    await store_score(api.scoring, "narrow", 90, flags=["coverage_low"])

    assert await exported(api, exclude="injection_suspected") == {"early", "merged", "late", "other", "narrow"}
    both = await run(export, "--exclude", "injection_suspected", "--exclude", "tool_built")
    assert {json.loads(line)["score"]["session_id"] for line in both.output.splitlines()} == {"late", "other", "narrow"}
    assert (await api.get("export", exclude="everything")).status_code == 422


async def test_they_are_left_out_of_comparisons(api: Api, run: Run) -> None:
    found = json.loads((await run(compare, "--label", "guidance", "--exclude", "tool_built", "--json")).output)

    assert (found["exclude"], found["sessions"]) == ("tool_built", [1, 1])
    refused = await run(compare, "--criteria", "a", "b", "s", "--exclude", "tool_built")
    assert (refused.exit_code, "--exclude goes with --label" in refused.stderr) == (2, True)


async def test_pages_mark_them_and_leave_them_out(api: Api) -> None:
    listed = (await api.client.get("/", headers=AS_BROWSER)).text
    rows = {
        row.partition('href="/sessions/')[2].partition('"')[0]: MARK in row
        for row in listed.split("<tr>")
        if "/sessions/" in row
    }
    assert rows == {"early": True, "merged": True, "late": False, "other": False}
    assert MARK in (await api.client.get("/sessions/merged", headers=AS_BROWSER)).text
    assert MARK not in (await api.client.get("/sessions/late", headers=AS_BROWSER)).text
    for path, shown in (("/trends", ">70.0<"), ("/distribution", "2 scores")):
        text = (await api.client.get(f"{path}?since=&exclude=tool_built", headers=AS_BROWSER)).text
        assert shown in text
        assert "Without scores that asked for a tool" in text


@pytest.mark.parametrize(
    ("path", "body"),
    [("states", {"tool": "tail_logs", "state": "planned"}), ("states", {"tool": "tail_logs", "state": "built"})],
    ids=["planned again", "built at an unchanged day"],
)
async def test_the_last_decision_counts(api: Api, path: str, body: dict[str, str]) -> None:
    await decide(api, path, **body)

    left = 2 if body["state"] == "built" else 4
    assert len(await exported(api, exclude="tool_built")) == left


async def test_a_name_that_was_split_off_asks_for_another_tool(api: Api) -> None:
    await decide(api, "merges", name="live_feed")

    assert await exported(api, exclude="tool_built") == {"merged", "late", "other"}


async def test_what_a_tampered_score_asks_for_does_not_count(api: Api) -> None:
    await store_score(api.scoring, "bad", 9, missing_tools=("tail_logs",), flags=["tampering_suspected"])

    assert await exported(api, exclude="tool_built") == {"bad", "late", "other"}


async def test_another_word_is_refused(api: Api) -> None:
    assert (await api.get("analytics/trends", exclude="everything")).status_code == 422


def test_commands_document_the_choice() -> None:
    for command in (export, compare):
        assert isinstance(command, Command)
        assert "tool_built" in CliRunner().invoke(command, ["--help"]).output

"""The ledger on real rows: merged names, states of tools, and what new scores say of a tool."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner, Result

from api_site import Api, open_api
from attempting import a_timeline, open_service
from builders import Scoring
from fakes import ANALYSIS, MISSING_TOOLS, FakeJudge
from stored import store_score
from tarsy_scoring.analytics.analytics import Selection
from tarsy_scoring.commands.tools import tools
from tarsy_scoring.missing_tools import decisions, demand
from tarsy_scoring.missing_tools.ledger import LedgerEntry, read_ledger
from tarsy_scoring.missing_tools.report import make_report, markdown
from tarsy_scoring.retention.erasure import erase
from tarsy_scoring.retention.pruning import Keep, Pruner
from tarsy_scoring.scoring.score_columns import tool_names, tools_hash_of
from tarsy_scoring.timeline.model import AvailableTool

TODAY = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
LEDGER = "/api/v1/scoring/missing-tools"
AS_BROWSER = {"Accept": "text/html", "X-Forwarded-User": "alice"}


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with open_api(database_url) as api:
        yield api


async def keep_list(scoring: Scoring, tools_hash: str, *names: str) -> None:
    await scoring.store.keep_tools(tools_hash, names)


async def sessions(
    scoring: Scoring, count: int, asked: int, *, days_ago: int, tools_hash: str | None, name: str = "node_pressure"
) -> None:
    """Store `count` scored sessions, the first `asked` of which name the tool as missing."""
    for n in range(count):
        await store_score(
            scoring,
            f"session-{uuid.uuid4()}",
            40,
            at=TODAY - timedelta(days=days_ago),
            missing_tools=(name,) if n < asked else (),
            tools_hash=tools_hash,
        )


async def ledger(api: Api, **selection: Any) -> dict[str, LedgerEntry]:
    found = await read_ledger(api.scoring.database, Selection(**selection))
    return {entry.tool_name: entry for entry in found.entries}


async def set_state(api: Api, status: int = 201, **said: Any) -> Any:
    answer = await api.client.post(f"{LEDGER}/states", json=said, headers={"X-Forwarded-User": "ada"})
    assert answer.status_code == status, answer.text
    return answer.json()


async def merge(api: Api, status: int = 201, **merge: Any) -> Any:
    answer = await api.client.post(f"{LEDGER}/merges", json=merge, headers={"X-Forwarded-User": "ada"})
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_what_a_tampered_score_requests_does_not_count(api: Api) -> None:
    await store_score(api.scoring, "s1", 40, missing_tools=("read_file",))
    await store_score(api.scoring, "s2", 40, missing_tools=("read_file", "buy_acme"), flags=["tampering_suspected"])

    assert {name: tool.sessions for name, tool in (await ledger(api)).items()} == {"read_file": 1}


# --- names ---------------------------------------------------------------------------------------------


async def test_a_name_can_be_merged_and_separated_by_hand(api: Api) -> None:
    await store_score(api.scoring, "s1", 40, missing_tools=("tail_logs", "live_logs"))
    await store_score(api.scoring, "s2", 40, missing_tools=("live-logs",))

    merged = await merge(api, name="tail_logs", tool="Live Logs")
    joined = await ledger(api)
    await merge(api, name="Tail Logs")
    apart = await ledger(api)

    assert (merged["tool"], merged["decided_by"], merged["is_automatic"]) == ("live-logs", "ada", False)
    assert {name: tool.sessions for name, tool in joined.items()} == {"live-logs": 2}
    assert {name: tool.sessions for name, tool in apart.items()} == {"live-logs": 2, "Tail Logs": 1}
    assert await api.scoring.value("SELECT count(*) FROM tool_merges") == 2


async def test_a_separated_name_is_not_merged_automatically(api: Api) -> None:
    await store_score(api.scoring, "s1", 40, missing_tools=("query_metric", "query_metrics"))
    await store_score(api.scoring, "s2", 40, missing_tools=("query_metrics",))
    [merged] = (await ledger(api)).values()
    [automatic] = merged.merges

    await merge(api, name="query_metric")
    await store_score(api.scoring, "s3", 40, missing_tools=("query_metric",))
    await store_score(api.scoring, "s4", 40, missing_tools=("query_metric",))

    assert (automatic.name, automatic.is_automatic, automatic.decided_at) == ("query_metric", True, None)
    assert {name: tool.sessions for name, tool in (await ledger(api)).items()} == {
        "query_metric": 3,
        "query_metrics": 2,
    }


async def test_merging_a_tool_into_its_own_name_makes_the_merge_manual(api: Api) -> None:
    """The more frequent name stays the tool, whichever direction was given."""
    await store_score(api.scoring, "s1", 40, missing_tools=("fetch_logs", "get_logs"))
    await store_score(api.scoring, "s2", 40, missing_tools=("fetch_logs",))

    merged = await merge(api, name="fetch_logs", tool="get_logs")

    [tool] = (await ledger(api)).values()
    assert (merged["name"], merged["tool"], merged["is_automatic"]) == ("get_logs", "fetch_logs", False)
    assert [(m.name, m.decided_by) for m in tool.merges] == [("get_logs", "ada")]


async def test_merging_a_tool_takes_its_merged_names_along(api: Api) -> None:
    await store_score(api.scoring, "s1", 40, missing_tools=("fetch_logs", "get_logs"))
    await store_score(api.scoring, "s2", 40, missing_tools=("fetch_logs", "loki_query"))

    await merge(api, name="fetch_logs", tool="loki_query")
    joined = await ledger(api)
    await merge(api, name="fetch_logs")
    apart = await ledger(api)

    assert {name: tool.sessions for name, tool in joined.items()} == {"loki_query": 2}
    assert [(m.name, m.tool) for m in joined["loki_query"].merges] == [
        ("fetch_logs", "loki_query"),
        ("get_logs", "fetch_logs"),
    ]
    assert {name: {s.name for s in tool.spellings} for name, tool in apart.items()} == {
        "fetch_logs": {"fetch_logs", "get_logs"},
        "loki_query": {"loki_query"},
    }


async def test_a_name_too_rare_to_be_listed_can_be_decided_about(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand, "MOST_SPELLINGS", 1)
    await store_score(api.scoring, "s1", 40, missing_tools=("query_metric", "query_metrics", "node_cpu"))
    await store_score(api.scoring, "s2", 40, missing_tools=("query_metric",))

    alone = await set_state(api, tool="node_cpu", state="planned")
    alike = await set_state(api, tool="query_metrics", state="planned")

    assert (alone["tool"], alike["tool"]) == ("node_cpu", "query_metric")
    await set_state(api, 404, tool="nobody_asked", state="planned")


async def test_deciding_about_a_tool_fixes_its_automatic_merges(api: Api) -> None:
    """A merged name stays with the tool even when it becomes the more frequent one."""
    await store_score(api.scoring, "s1", 40, missing_tools=("query_metric",))
    await store_score(api.scoring, "s2", 40, missing_tools=("query_metric",))
    await store_score(api.scoring, "s3", 40, missing_tools=("query_metrics",))

    await set_state(api, tool="query_metrics", state="planned")
    for n in range(4, 8):
        await store_score(api.scoring, f"s{n}", 40, missing_tools=("query_metrics",))

    [tool] = (await ledger(api)).values()
    [merge] = tool.merges
    assert (tool.tool_name, tool.state, tool.sessions) == ("query_metric", "planned", 7)
    assert (merge.name, merge.is_automatic, merge.decided_by) == ("query_metrics", True, "automatic")
    assert merge.decided_at is not None


async def test_an_automatic_merge_does_not_override_a_person(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await store_score(api.scoring, "s1", 40, missing_tools=("query_metric", "query_metrics", "node_cpu"))
    await store_score(api.scoring, "s2", 40, missing_tools=("query_metric",))
    find = decisions._find

    async def find_slowly(*arguments: Any) -> Any:
        found = await find(*arguments)
        monkeypatch.undo()
        await merge(api, name="query_metrics", tool="node_cpu")
        return found

    monkeypatch.setattr(decisions, "_find", find_slowly)
    await set_state(api, tool="query_metric", state="planned")

    assert {name: {s.name for s in tool.spellings} for name, tool in (await ledger(api)).items()} == {
        "query_metric": {"query_metric"},
        "node_cpu": {"node_cpu", "query_metrics"},
    }


# --- states --------------------------------------------------------------------------------------------


async def test_the_last_state_counts(api: Api) -> None:
    await store_score(api.scoring, "s1", 40, missing_tools=("node_pressure",))

    await set_state(api, tool="Node Pressure", state="planned", note="next month")
    said = await set_state(api, tool="node_pressure", state="open")

    [tool] = (await ledger(api)).values()
    assert tool.state == "open"
    assert (said["said_by"], said["note"]) == ("ada", None)
    assert await api.scoring.value("SELECT count(*) FROM tool_states") == 2


async def test_a_tool_with_a_state_stays_in_the_ledger(api: Api) -> None:
    await store_score(api.scoring, "s1", 40, missing_tools=("node_pressure",))
    await set_state(api, tool="node_pressure", state="planned")

    [tool] = (await ledger(api, since=TODAY + timedelta(days=1))).values()

    assert (tool.tool_name, tool.sessions, tool.state) == ("node_pressure", 0, "planned")


async def test_a_planned_tool_is_listed_beyond_the_limit(api: Api) -> None:
    for n, names in enumerate((("one", "two", "three"), ("one", "two"), ("one",))):
        await store_score(api.scoring, f"s{n}", 40, missing_tools=names)
    await set_state(api, tool="three", state="planned")

    found = await read_ledger(api.scoring.database, Selection(), "sessions", 1)

    assert [(entry.tool_name, entry.sessions) for entry in found.entries] == [("one", 3), ("three", 1)]
    assert found.tools_left_out == 1


async def test_demand_is_measured_before_and_after_a_tool_appears(api: Api) -> None:
    """Scores whose set of tools is not stored do not count, nor do scores of more than a year ago."""
    await keep_list(api.scoring, "before", "getpods", "kubernetes.getpods")
    await keep_list(api.scoring, "after", "getpods", "kubernetes.nodepressure", "nodepressure")
    await sessions(api.scoring, 3, 3, days_ago=370, tools_hash="before")
    await sessions(api.scoring, 9, 9, days_ago=40, tools_hash="gone")
    await sessions(api.scoring, 30, 20, days_ago=40, tools_hash="before")
    await sessions(api.scoring, 24, 22, days_ago=5, tools_hash="after", name="Node-Pressure")

    [tool] = (await ledger(api)).values()

    assert tool.state == "still_missed"
    assert tool.demand is not None
    assert (tool.demand.sessions_without, tool.demand.asked_without) == (30, 20)
    assert (tool.demand.sessions_with, tool.demand.asked_with) == (24, 22)


async def test_a_built_tool_is_measured_since_the_given_day(api: Api) -> None:
    await keep_list(api.scoring, "after", "nodepressure")
    await sessions(api.scoring, 30, 20, days_ago=40, tools_hash=None)
    await sessions(api.scoring, 22, 0, days_ago=5, tools_hash="after")
    before = (await ledger(api))["node_pressure"]

    given = (TODAY - timedelta(days=10)).isoformat()
    said = await set_state(api, tool="node_pressure", state="built", since=given)
    measured = (await ledger(api))["node_pressure"].state
    noted = await set_state(api, tool="node_pressure", state="built", note="v4")
    set_aside = await set_state(api, tool="node_pressure", state="open")
    opened = (await ledger(api))["node_pressure"].state
    again = await set_state(api, tool="node_pressure", state="built")

    assert before.demand is None
    assert (measured, opened) == ("confirmed", "open")
    assert said["since"] == noted["since"] == again["since"] != set_aside["since"]
    assert (await ledger(api))["node_pressure"].state == "confirmed"


async def test_a_tool_of_another_server_is_not_the_one_missed(api: Api) -> None:
    await keep_list(api.scoring, "before", "getpods", "kubernetes.getpods")
    await keep_list(api.scoring, "after", "listevents", "kubernetes.listevents")
    for name in ("argocd.list_events", "list_events", "kubernetes.list_events"):
        await sessions(api.scoring, 2, 2, days_ago=40, tools_hash="before", name=name)
    await sessions(api.scoring, 2, 0, days_ago=5, tools_hash="after")

    found = await ledger(api)

    assert {name: tool.demand is not None for name, tool in found.items()} == {
        "argocd.list_events": False,
        "list_events": True,
        "kubernetes.list_events": True,
    }


async def test_an_attempt_keeps_the_tools_of_its_agents(database_url: str) -> None:
    offered = (AvailableTool("kubernetes", "get_pods"), AvailableTool("", "Node Pressure"), AvailableTool("x", "\0"))
    timeline = a_timeline(available_tools=offered)
    async with open_service(database_url) as service:
        for again in (False, True):
            await service.request(force=again)
            judge = FakeJudge(ANALYSIS, MISSING_TOOLS)
            await service.attempt(await service.claim(), judge, timeline)
        scores = await service.database.once(lambda c: c.fetch("SELECT status, tools_hash FROM session_scores"))
        [kept] = await service.database.once(lambda c: c.fetch("SELECT tools_hash, names FROM tool_lists"))

    assert kept["names"] == ["getpods", "kubernetes.getpods", "nodepressure"]
    assert kept["names"] == tool_names(timeline)
    assert kept["tools_hash"] == tools_hash_of(kept["names"])
    assert [(row["status"], row["tools_hash"]) for row in scores] == [("completed", kept["tools_hash"])] * 2


async def test_a_session_counts_once_by_its_latest_score(api: Api) -> None:
    day = timedelta(days=1)
    await store_score(api.scoring, "s1", 40, missing_tools=("node_cpu",), at=TODAY - day)
    await store_score(api.scoring, "s1", 30, missing_tools=("node_pressure",), at=TODAY)
    await store_score(api.scoring, "s1", 20, missing_tools=("node_disk",), at=TODAY + day, purpose="anchor")
    await store_score(api.scoring, "s1", status="failed", missing_tools=("node_disk",), at=TODAY + day)

    for selection in (Selection(), Selection(chain="kubernetes")):
        found = await read_ledger(api.scoring.database, selection)
        assert [(t.tool_name, t.sessions, t.points_lost) for t in found.entries] == [("node_pressure", 1, 70)]


async def test_demand_is_measured_over_scores_before_the_selection(api: Api) -> None:
    await keep_list(api.scoring, "before", "getpods")
    await keep_list(api.scoring, "after", "nodepressure")
    await sessions(api.scoring, 30, 20, days_ago=40, tools_hash="before", name="node_pressures")
    await sessions(api.scoring, 24, 1, days_ago=5, tools_hash="after")

    [tool] = (await ledger(api, since=TODAY - timedelta(days=10))).values()

    assert (tool.sessions, [s.name for s in tool.spellings]) == (1, ["node_pressure"])
    assert [(m.name, m.is_automatic) for m in tool.merges] == [("node_pressures", True)]
    assert tool.demand is not None
    assert (tool.demand.asked_without, tool.demand.asked_with) == (20, 1)


async def test_a_set_of_tools_is_removed_with_its_last_score(api: Api) -> None:
    for name in ("of-one", "of-both", "of-none", "new"):
        await keep_list(api.scoring, name, "getpods")
    await api.scoring.rows("UPDATE tool_lists SET first_used_at = now() - interval '90 days' WHERE tools_hash <> 'new'")
    await store_score(api.scoring, "s1", 40, at=TODAY, tools_hash="of-one")
    await store_score(api.scoring, "s1", 40, at=TODAY, tools_hash="of-both")
    await store_score(api.scoring, "s2", 40, at=TODAY, tools_hash="of-both")

    await erase(api.scoring.database, api.scoring.leases, "s1", by="ada")
    after_erasing = {row["tools_hash"] for row in await api.scoring.rows("SELECT tools_hash FROM tool_lists")}
    removed = await Pruner(api.scoring.database, Keep(scores_days=30)).run()

    assert after_erasing == {"of-both", "of-none", "new"}
    assert removed["tool_lists"] == 1
    left = await api.scoring.rows("SELECT tools_hash FROM tool_lists ORDER BY 1")
    assert [row["tools_hash"] for row in left] == ["new", "of-both"]


# --- over HTTP and on the page -------------------------------------------------------------------------


async def test_invalid_states_and_merges_are_refused(api: Api) -> None:
    await store_score(api.scoring, "s1", 40, missing_tools=("node_pressure",))
    tomorrow: dict[str, Any] = {"tool": "node_pressure", "state": "built", "since": "2199-01-01T00:00:00Z"}

    await set_state(api, 404, tool="nobody_asked", state="planned")
    await set_state(api, 422, tool="node_pressure", state="confirmed")
    await set_state(api, 422, **tomorrow)
    await merge(api, 404, name="node_pressure", tool="nobody_asked")
    await merge(api, 404, name="nobody_asked")
    await merge(api, 422, name="")

    stored = "SELECT (SELECT count(*) FROM tool_states) + (SELECT count(*) FROM tool_merges)"
    assert await api.scoring.value(stored) == 0


async def test_the_page_has_names_states_and_forms(api: Api) -> None:
    hostile = '<b>"x"</b>'
    await store_score(api.scoring, "s1", 40, missing_tools=(hostile, "query_metric", "query_metrics"), at=TODAY)

    page = (await api.client.get("/missing-tools", headers=AS_BROWSER)).text
    said = await api.client.post(
        "/missing-tools/states", data={"tool": hostile, "state": "planned", "note": ""}, headers=AS_BROWSER
    )
    apart = await api.client.post("/missing-tools/merges", data={"name": "query_metrics"}, headers=AS_BROWSER)
    refused = await api.client.post("/missing-tools/states", data={"tool": hostile}, headers=AS_BROWSER)
    after = (await api.client.get("/missing-tools", headers=AS_BROWSER)).text

    assert "<b>" not in page.replace("<b>0", "")
    assert "merged by its spelling" in page
    assert [said.status_code, apart.status_code, refused.status_code] == [303, 303, 422]
    assert '<span class="chip ">planned</span>' in after
    assert "alice set planned since" in after
    assert "separated by alice" in after


async def test_the_form_of_a_state_takes_a_day(api: Api) -> None:
    await store_score(api.scoring, "s1", 40, missing_tools=("node_cpu",), at=TODAY)
    for since, status in (("2026-01-05", 303), ("2026-01-05T10:00:00Z", 303), ("2199-01-05", 422), ("soon", 422)):
        form = {"tool": "node_cpu", "state": "built", "since": since, "note": ""}
        answer = await api.client.post("/missing-tools/states", data=form, headers=AS_BROWSER)
        assert answer.status_code == status

    stored = [row["since"] for row in await api.scoring.rows("SELECT since FROM tool_states ORDER BY state_id")]
    assert stored == [datetime(2026, 1, 5, tzinfo=UTC), datetime(2026, 1, 5, 10, tzinfo=UTC)]


# --- at the command line -------------------------------------------------------------------------------


@pytest.fixture
def tools_command(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Awaitable[Result]]:
    """Runs `tools` on the database as ada."""
    monkeypatch.setenv("SCORING_DATABASE_URL", database_url)
    monkeypatch.setenv("USER", "ada")
    return lambda *arguments: asyncio.to_thread(CliRunner().invoke, tools, list(arguments))


async def test_merges_and_states_at_the_command_line(api: Api, tools_command: Callable[..., Awaitable[Result]]) -> None:
    await store_score(api.scoring, "s1", 40, missing_tools=("tail\u202e_logs", "live_logs"))
    await store_score(api.scoring, "s2", 40, missing_tools=("live_logs",))

    joined = await tools_command("merge", "tail_logs", "Live-Logs")
    said = await tools_command("state", "live_logs", "built", "--since", "2026-01-05", "--note", "v4", "--json")
    listed = json.loads((await tools_command("list", "--json")).output)
    shown = await tools_command("list")
    apart = await tools_command("split", "tail_logs", "--json")

    assert joined.output == "tail_logs is the same tool as live_logs\n"
    assert {k: json.loads(said.output)[k] for k in ("tool", "state", "said_by", "note")} == {
        "tool": "live_logs",
        "state": "built",
        "said_by": "ada",
        "note": "v4",
    }
    assert [(e["tool_name"], e["sessions"], e["state"]) for e in listed["entries"]] == [("live_logs", 2, "built")]
    assert shown.output == "live_logs: 2 sessions, 120 points lost, built (also tail_logs)\n"
    assert json.loads(apart.output)["tool"] == "tail_logs"
    assert set(await ledger(api)) == {"live_logs", "tail_logs"}


async def test_refusals_at_the_command_line(api: Api, tools_command: Callable[..., Awaitable[Result]]) -> None:
    await store_score(api.scoring, "s1", 40, missing_tools=("node_cpu",))
    for arguments, status, words in (
        ("state nobody_asked planned", 1, "names a missing tool of"),
        ("merge node_cpu Node-CPU", 1, "spellings of one name"),
        ("state node_cpu confirmed", 2, "open"),
        ("state node_cpu built --since 2199-01-01", 2, "in the future"),
    ):
        ended = await tools_command(*arguments.split())
        assert (ended.exit_code, words in ended.stderr) == (status, True)


async def test_the_report_cites_the_lowest_scores(api: Api) -> None:
    ids = [
        await store_score(api.scoring, f"s{n}", 10 * n, missing_tools=("node_pressure", "Node Pressure"), at=TODAY)
        for n in range(5)
    ]

    report = await make_report(api.scoring.database, Selection(), "sessions", 50)

    [tool] = report.tools
    assert [reason.score_id for reason in tool.reasons] == ids[:3]
    assert f"- because (score {ids[0]}, total 0)" in markdown(report)
    assert (tool.entry.sessions, tool.entry.points_lost) == (5, 400)

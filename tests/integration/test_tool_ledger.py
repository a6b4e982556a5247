"""The ledger on real rows: merged names and states of tools."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api_site import Api, open_api
from stored import store_score
from tarsy_scoring.analytics.daily import Selection
from tarsy_scoring.missing_tools.ledger import WantedTool, read_ledger
from tarsy_scoring.missing_tools.report import make_report, markdown

TODAY = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
LEDGER = "/api/v1/scoring/missing-tools"
AS_BROWSER = {"Accept": "text/html", "X-Forwarded-User": "alice"}


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with open_api(database_url) as api:
        yield api


async def ledger(api: Api, **selection: Any) -> dict[str, WantedTool]:
    found = await read_ledger(api.scoring.database, Selection(**selection))
    return {tool.tool_name: tool for tool in found.tools}


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

    assert (merged["tool"], merged["decided_by"]) == ("live-logs", "ada")
    assert {name: tool.sessions for name, tool in joined.items()} == {"live-logs": 2}
    assert {name: tool.sessions for name, tool in apart.items()} == {"live-logs": 2, "Tail Logs": 1}
    assert await api.scoring.value("SELECT count(*) FROM tool_merges") == 2


async def test_a_name_can_be_merged_into_a_tool_that_agents_call(api: Api) -> None:
    """Which no judge missed; the ledger then says that it exists."""
    await store_score(api.scoring, "s1", 40, missing_tools=("read_file",))
    await merge(api, 404, name="read_file", tool="kubernetes.pods_exec")
    await store_score(api.scoring, "s2", 40, interaction={"by_tool": {"kubernetes.pods_exec": {}}})

    await merge(api, name="read_file", tool="kubernetes.pods_exec")

    [(name, tool)] = (await ledger(api)).items()
    assert (name, tool.sessions, tool.exists) == ("kubernetes.pods_exec", 1, True)


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

    found = await read_ledger(api.scoring.database, Selection(), 1)

    assert [(tool.tool_name, tool.sessions) for tool in found.tools] == [("one", 3), ("three", 1)]
    assert found.tools_left_out == 1


async def test_a_session_counts_once_by_its_latest_score(api: Api) -> None:
    day = timedelta(days=1)
    await store_score(api.scoring, "s1", 40, missing_tools=("node_cpu",), at=TODAY - day)
    await store_score(api.scoring, "s1", 30, missing_tools=("node_pressure",), at=TODAY)
    await store_score(api.scoring, "s1", 20, missing_tools=("node_disk",), at=TODAY + day, purpose="anchor")
    await store_score(api.scoring, "s1", status="failed", missing_tools=("node_disk",), at=TODAY + day)

    for selection in (Selection(), Selection(chain="kubernetes")):
        found = await read_ledger(api.scoring.database, selection)
        assert [(t.tool_name, t.sessions) for t in found.tools] == [("node_pressure", 1)]


# --- over HTTP and on the page -------------------------------------------------------------------------


async def test_invalid_states_and_merges_are_refused(api: Api) -> None:
    await store_score(api.scoring, "s1", 40, missing_tools=("node_pressure",))

    await set_state(api, 404, tool="nobody_asked", state="planned")
    await set_state(api, 422, tool="node_pressure", state="confirmed")
    await merge(api, 404, name="node_pressure", tool="nobody_asked")
    await merge(api, 404, name="nobody_asked")
    await merge(api, 422, name="node_pressure", tool="Node-Pressure")
    await merge(api, 422, name="")

    stored = "SELECT (SELECT count(*) FROM tool_states) + (SELECT count(*) FROM tool_merges)"
    assert await api.scoring.value(stored) == 0


async def test_the_page_lists_a_tool_that_one_session_alone_names_apart(api: Api) -> None:
    for session, names in (("s1", ("node_cpu", "paint")), ("s2", ("node_cpu",))):
        await store_score(api.scoring, session, 40, missing_tools=names, at=TODAY)

    page = (await api.client.get("/missing-tools", headers=AS_BROWSER)).text

    assert page.count("Named by one session") == 1
    assert page.index("node_cpu") < page.index("Named by one session") < page.index("paint")


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
    assert [said.status_code, apart.status_code, refused.status_code] == [303, 303, 422]
    assert '<span class="chip ">planned</span>' in after
    assert "alice set planned since" in after
    assert "separated by alice" in after


async def test_the_form_of_a_state_takes_a_day(api: Api) -> None:
    await store_score(api.scoring, "s1", 40, missing_tools=("node_cpu",), at=TODAY)
    for since, status in (("2026-01-05", 303), ("2026-01-05T10:00:00Z", 303), ("soon", 422)):
        form = {"tool": "node_cpu", "state": "built", "since": since, "note": ""}
        answer = await api.client.post("/missing-tools/states", data=form, headers=AS_BROWSER)
        assert answer.status_code == status

    stored = [row["since"] for row in await api.scoring.rows("SELECT since FROM tool_states ORDER BY state_id")]
    assert stored == [datetime(2026, 1, 5, tzinfo=UTC), datetime(2026, 1, 5, 10, tzinfo=UTC)]


async def test_the_report_cites_the_lowest_scores(api: Api) -> None:
    ids = [
        await store_score(api.scoring, f"s{n}", 10 * n, missing_tools=("node_pressure", "Node Pressure"), at=TODAY)
        for n in range(5)
    ]

    report = await make_report(api.scoring.database, Selection(), 50)

    [tool], [reasons] = report.ledger.tools, report.reasons
    assert [reason.score_id for reason in reasons] == ids[:1]
    assert f"- because (score {ids[0]}, total 0)" in markdown(report)
    assert tool.sessions == 5

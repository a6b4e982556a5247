"""Lists, exports and analytics over HTTP on a real database: content, order and refusals."""

import csv
import io
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic_core import from_json

from api_site import Api, open_api
from builders import DEFAULT_CRITERIA, OTHER_CRITERIA, Scoring, connected, open_scoring
from infrastructure import Postgres, fresh_database, run_apart
from stored import NOON, store_score, store_session
from tarsy_scoring.scores import export
from tarsy_scoring.scores.shapes import ScoreDocument
from tarsy_scoring.web.documents import ProblemDocument
from tarsy_scoring.web.edge.semaphore import BoundedSemaphore

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
HOSTILE = "<script>alert(1)</script>'; DROP TABLE sessions; --%_\\ \u202e=1+1"


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with open_api(database_url) as opened:
        yield opened


@pytest.fixture(scope="module")
def filled_url(postgres: Postgres, _migrated_template: str) -> Iterator[str]:
    """A database with some sessions and scores; read by many tests, changed by none."""

    async def fill(url: str) -> None:
        async with open_scoring(url) as scoring:
            await store_sessions(scoring)

    with fresh_database(postgres, _migrated_template) as url:
        run_apart(fill(url))
        yield url


@pytest.fixture
async def filled(filled_url: str) -> AsyncIterator[Api]:
    async with open_api(filled_url) as opened:
        yield opened


async def store_sessions(scoring: Scoring) -> None:
    """Four sessions: scored twice; scored; scored, then failed; not scored."""
    older = {"flags": ["self_judged"], "outcome": "pass", "criteria": OTHER_CRITERIA, "at": NOON - DAY}
    labels = {"guidance": "v2", "empty": ""}
    await store_score(scoring, "a", 99, session={"ended": NOON, "alert_type": "DiskFull", "labels": labels}, **older)
    await store_score(scoring, "a", 20, flags=["ungrounded"], outcome="fail", at=NOON)
    await store_score(
        *(scoring, "b", 40),
        session={"chain_id": "billing", "labels": {"guidance": "v2", "build": "7=8"}},
        at=NOON + MINUTE,
        criteria=OTHER_CRITERIA,
    )
    await store_score(scoring, "c", 60, at=NOON + 2 * MINUTE)
    await store_score(scoring, "c", status="failed", at=NOON + 3 * MINUTE)
    await store_session(scoring, "d", ended=NOON + 4 * MINUTE)


async def page(api: Api, **query: Any) -> dict[str, Any]:
    answer = await api.get("sessions", **query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def ids(api: Api, **query: Any) -> list[str]:
    return [s["session_id"] for s in (await page(api, **query))["sessions"]]


async def all_pages(api: Api, **query: Any) -> list[str]:
    """The sessions of all pages, in their order."""
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        one = await page(api, **query, **cursor)
        assert len(one["sessions"]) <= query["limit"]
        found += [s["session_id"] for s in one["sessions"]]
        assert len(found) <= 100, "the pages have no end"
        if one["next_cursor"] is None:
            return found
        cursor = {"cursor": one["next_cursor"]}


async def analysed(api: Api, path: str, **query: Any) -> Any:
    answer = await api.get(f"analytics/{path}", **query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def exported(api: Api, **query: Any) -> list[dict[str, Any]]:
    answer = await api.get("export", **query)
    assert answer.status_code == 200, answer.text
    return [from_json(line)["score"] for line in answer.text.splitlines()]


# --- sessions ------------------------------------------------------------------------------------------


async def test_a_session_shows_its_latest_completed_score(api: Api) -> None:
    await store_score(api.scoring, total_score=30, at=NOON)
    score_id = await store_score(
        api.scoring, total_score=67, at=NOON + MINUTE, outcome="pass", flags=["ungrounded"], failure_tags=["late"]
    )
    await store_score(api.scoring, total_score=99, at=NOON + 2 * MINUTE, purpose="shadow")
    [session] = (await page(api))["sessions"]

    document = (await api.get(f"scores/{score_id}")).json()
    assert session["score"] == {name: document[name] for name in session["score"]}
    assert (session["score"]["total_score"], session["score"]["is_current_criteria"]) == (67, True)
    assert (session["status"], session["latest_attempt"]) == ("completed", None)
    assert (session["chain_id"], session["alert_type"], session["labels"]) == ("kubernetes", "PodCrashLoop", {})
    assert datetime.fromisoformat(session["ended_at"]) == NOON


# Events of a score, the last of which is no progress.
EVENTS = """
INSERT INTO scoring_events (score_id, session_id, sequence, type, payload)
SELECT $1, $2, n, type, jsonb_build_object('phase', phase)
FROM (VALUES (1, 'scoring.progress', 'queued'), (2, 'scoring.progress', 'sampling'), (3, 'scoring.started', NULL))
  AS e(n, type, phase)
"""


async def test_a_newer_score_gives_the_status_and_the_older_one_the_total(api: Api) -> None:
    for status in ("pending", "in_progress", "failed", "timed_out", "cancelled"):
        await store_score(api.scoring, status, total_score=67)
        newer = await store_score(*(api.scoring, status), status=status, at=NOON + MINUTE, error_kind="refused")
        await api.scoring.rows(EVENTS, newer, status)
        [session] = (await page(api, q=status))["sessions"]
        assert (session["status"], session["score"]["total_score"]) == (status, 67)
        latest = session["latest_attempt"]
        assert (latest["score_id"], latest["status"]) == (str(newer), status)
        stage = "sampling" if status == "in_progress" else None
        assert (latest["error_kind"], latest["current_stage"]) == ("refused", stage)


async def test_a_pending_score_names_what_it_waits_for(api: Api) -> None:
    later = datetime.now(UTC) + DAY
    wait = {"waiting_reason": "budget", "waiting_for_text": "little money"}
    await store_score(api.scoring, status="pending", next_attempt_at=later.isoformat(), **wait)
    [session] = (await page(api))["sessions"]

    latest = session["latest_attempt"]
    assert (session["score"], latest["waiting_for"], latest["waiting_for_text"]) == (None, "budget", "little money")


FOUND_BY: list[tuple[dict[str, Any], set[str]]] = [
    ({"chain": "billing"}, {"b"}),
    ({"status": "failed"}, {"c"}),
    ({"status": "not_scored"}, {"d"}),
    ({"status": "completed"}, {"a", "b"}),
    ({"min_score": 40}, {"b", "c"}),
    ({"max_score": 40}, {"a", "b"}),
    ({"min_score": 40, "max_score": 40}, {"b"}),
    ({"criteria": OTHER_CRITERIA}, {"b"}),
    ({"alert_type": "DiskFull"}, {"a"}),
    ({"label": "guidance=v2"}, {"a", "b"}),
    ({"label": ["guidance=v2", "build=7=8"]}, {"b"}),
    ({"label": "empty="}, {"a"}),
    ({"flag": "ungrounded"}, {"a"}),
    ({"outcome": "fail"}, {"a"}),
    ({"since": (NOON + MINUTE).isoformat()}, {"b", "c", "d"}),
    ({"until": (NOON + MINUTE).isoformat()}, {"a"}),
    ({"since": "2026-03-10t14:02:00.000+02:00"}, {"c", "d"}),
    ({"q": "A"}, {"a"}),
    ({"q": "disk"}, {"a"}),
    ({"q": "%"}, set()),
    ({"chain": HOSTILE}, set()),
    ({"q": HOSTILE}, set()),
    ({"label": "guidance=v2", "min_score": 30}, {"b"}),
    ({"chain": "billing", "max_score": 20}, set()),
]


async def test_filters(filled: Api) -> None:
    for query, expected in FOUND_BY:
        for sort in ("newest", "score_asc", "score_desc"):
            shown = expected if sort == "newest" else expected - {"d"}  # it has no total
            assert set(await ids(filled, **query, sort=sort)) == shown, query


async def several(api: Api) -> None:
    """Sessions with equal ends, equal totals, no total, or no score."""
    totals = [50, 80, None, 50, 10, 100, 50, None, 0, 80]
    for number, total in enumerate(totals):
        await store_score(api.scoring, f"s{number}", total, at=NOON + number // 3 * MINUTE)
    for number in (10, 11, 12):
        await store_session(api.scoring, f"s{number}", ended=NOON - MINUTE)
    await store_score(api.scoring, "s13", status="failed", at=NOON + DAY)


ORDERS = {
    "newest": ["s13", "s9", "s8", "s7", "s6", "s5", "s4", "s3", "s2", "s1", "s0", "s12", "s11", "s10"],
    "score_desc": ["s5", "s9", "s1", "s6", "s3", "s0", "s4", "s8"],
    "score_asc": ["s8", "s4", "s0", "s3", "s6", "s1", "s9", "s5"],
}


async def test_all_pages_together_are_the_whole_list(api: Api) -> None:
    await several(api)

    for sort, expected in ORDERS.items():
        for limit in (1, 3, 14, 200):
            assert await all_pages(api, sort=sort, limit=limit) == expected, (sort, limit)


async def test_pages_are_stable_while_sessions_arrive(api: Api) -> None:
    await several(api)
    first = {sort: (await page(api, sort=sort, limit=4))["next_cursor"] for sort in ORDERS}
    for session_id, total in (("s99", 100), ("s00", 0)):
        await store_score(api.scoring, session_id, total, at=NOON + 2 * DAY)

    for sort, cursor in first.items():
        rest = [s["session_id"] for s in (await page(api, sort=sort, limit=200, cursor=cursor))["sessions"]]
        assert [s for s in rest if s not in ("s99", "s00")] == ORDERS[sort][4:], sort
        assert len(rest) == len(set(rest))
        assert sort != "newest" or rest == ORDERS[sort][4:]


async def test_an_end_in_the_future_is_ordered_by_first_sight(api: Api) -> None:
    await store_session(api.scoring, "ahead", ended=datetime(2199, 1, 1, tzinfo=UTC), first_seen_at=NOON)
    await store_session(api.scoring, "without-an-end", ended=None, first_seen_at=NOON + MINUTE)
    await store_session(api.scoring, "newer", ended=NOON + 2 * MINUTE)

    assert await ids(api) == ["newer", "without-an-end", "ahead"]


async def test_a_cursor_of_another_list_is_refused(api: Api) -> None:
    await several(api)
    cursor = (await page(api, limit=1))["next_cursor"]

    for query in ({"sort": "score_asc"}, {"chain": "kubernetes"}):
        answer = await api.get("sessions", cursor=cursor, **query)
        problem = ProblemDocument.model_validate_json(answer.text)
        assert (answer.status_code, problem.errors and problem.errors[0].loc) == (422, ["query", "cursor"])
    assert len(await ids(api, cursor=cursor, limit=3)) == 3


# The forms of the pages use the same models: `unit/pages/test_page_forms` and
# `test_api_schema` cover their other errors.
MALFORMED: list[tuple[str, dict[str, Any]]] = [
    ("sessions", {"cursor": "nonsense"}),
    ("sessions", {"label": ["guidance=v1", "guidance=v2"]}),
    ("sessions", {"label": [f"l{n}=x" for n in range(11)]}),
    ("sessions", {"since": "2026-03-10"}),
    ("sessions", {"since": "2026-03-10T12:00:00"}),
    ("sessions", {"since": "2026-02-30T12:00:00Z"}),
    ("sessions", {"since": "2026-03-10T12:00:00 02:00"}),
    ("sessions", {"min_socre": 50}),
    ("export", {"status": "not_scored"}),
    ("export", {"status": "failed", "latest": True}),
    ("export", {"limit": 3}),
    ("analytics/trends", {"since": "2026-03-11T12:00:00Z", "until": "2026-03-10T12:00:00Z"}),
    ("analytics/failure-tags", {"tag": "late"}),
]


async def test_malformed_queries_are_refused(filled: Api) -> None:
    for path, query in MALFORMED:
        answer = await filled.get(path, **query)
        assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json"), (path, query)
        assert ProblemDocument.model_validate_json(answer.text).errors
        assert not answer.json()["detail"].startswith("?"), (path, query)
        assert not [v for v in query.values() if isinstance(v, str) and len(v) > 10 and v in answer.text]


# --- export --------------------------------------------------------------------------------------------


async def test_an_export_has_score_documents(api: Api) -> None:
    first = await store_score(api.scoring, "s1", 20, missing_tools=("node_cpu", "disk_io"))
    second = await store_score(api.scoring, "s1", 60, at=NOON + MINUTE)
    await store_score(api.scoring, "s1", status="failed", at=NOON + 2 * MINUTE)
    await store_score(api.scoring, "s2", 80, purpose="shadow")
    documents = await exported(api)

    assert [d["score_id"] for d in documents] == [str(second), str(first)]
    for document in documents:
        ScoreDocument.model_validate(document)
        assert document == from_json((await api.get(f"scores/{document['score_id']}")).content)


async def test_exports_follow_the_filters(api: Api) -> None:
    session = {"chain_id": "billing", "labels": {"guidance": "v2"}}
    await store_score(api.scoring, "s0", 90, at=NOON - DAY, session=session)
    await store_score(api.scoring, "s1", 20, at=NOON)
    await store_score(api.scoring, "s1", 60, at=NOON + MINUTE)
    await store_score(api.scoring, "s2", status="failed", at=NOON + MINUTE)
    await store_score(api.scoring, "s2", 80, at=NOON + MINUTE, purpose="shadow")

    cases: list[tuple[dict[str, Any], list[int | None]]] = [
        ({"latest": True}, [60, 90]),
        ({"latest": True, "max_score": 30}, []),
        ({"status": "failed"}, [None]),
        ({"purpose": "shadow"}, [80]),
        ({"until": (NOON + MINUTE).isoformat()}, [20, 90]),
    ]
    for query, expected in cases:
        assert [d["total_score"] for d in await exported(api, **query)] == expected, query


async def test_an_export_continues_over_batches(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "EXPORT_BATCH", 3)
    for number in range(9):
        await store_score(api.scoring, f"s{number}", number, at=NOON + number // 4 * MINUTE)
    answer = await api.get("export", format="csv")

    assert sorted(d["total_score"] for d in await exported(api)) == list(range(9))
    assert answer.headers["content-type"].startswith("text/csv; charset=utf-8")
    assert answer.headers["content-disposition"].startswith('attachment; filename="scores-')
    rows = csv.DictReader(io.StringIO(answer.text, newline=""))
    assert sorted(row["total_score"] for row in rows) == [str(number) for number in range(9)]


async def test_concurrent_exports_are_limited(api: Api) -> None:
    for places, status in ((0, 503), (1, 200), (1, 200)):
        api.app.state.context.exports = BoundedSemaphore(places)
        answer = await api.get("export")
        assert answer.status_code == status
        assert ("retry-after" in answer.headers) == (status == 503)


async def test_without_a_database_every_list_and_export_is_503(api: Api) -> None:
    scoring = api.scoring
    await scoring.analytics.database.close()
    for path in ("sessions", "export", "export?format=csv", "analytics/trends", "analytics/missing-tools"):
        answer = await api.client.get(f"/api/v1/scoring/{path}")
        assert (answer.status_code, "retry-after" in answer.headers) == (503, True), path
    await scoring.analytics.database.open()


# --- analytics -----------------------------------------------------------------------------------------


async def test_trends_per_day_and_fingerprint(api: Api) -> None:
    late = datetime(2026, 3, 10, 23, 59, 30, tzinfo=UTC)
    await store_score(api.scoring, "s1", 40, at=NOON)
    await store_score(api.scoring, "s2", 61, at=late)
    await store_score(api.scoring, "s3", 80, at=late + MINUTE)
    await store_score(api.scoring, "s4", 90, at=NOON, judge_fingerprint="judge-2")
    await store_score(api.scoring, "s5", 99, at=NOON, flags=["outcome_score_mismatch"])
    await store_score(api.scoring, "s6", 1, at=NOON + 9 * DAY, flags=["tampering_suspected", "ungrounded"])
    await store_score(api.scoring, "s7", 70, at=NOON, purpose="consistency")
    await store_score(api.scoring, "s8", 5, at=NOON)
    await store_score(api.scoring, "s8", 55, at=NOON + 3 * DAY, flags=["ungrounded"])
    await store_score(api.scoring, "s9", None, at=NOON)
    found = await analysed(api, "trends")

    rows = [
        [p[n] for n in ("day", "judge_fingerprint", "average", "minimum", "maximum", "count")] for p in found["points"]
    ]
    assert rows == [
        ["2026-03-10", "judge-1", 50.5, 40, 61, 2],
        ["2026-03-10", "judge-2", 90, 90, 90, 1],
        ["2026-03-11", "judge-1", 80, 80, 80, 1],
        ["2026-03-13", "judge-1", 55, 55, 55, 1],
    ]
    assert found["left_out"] == 2


async def test_trends_by_the_day_on_which_sessions_ended(api: Api) -> None:
    for number in range(3):
        await store_score(api.scoring, f"s{number}", 50, at=NOON + 30 * DAY, session={"ended": NOON + number * DAY})
    since = (NOON + DAY).isoformat()

    assert [(p["day"], p["count"]) for p in (await analysed(api, "trends"))["points"]] == [("2026-04-09", 3)]
    days = [p["day"] for p in (await analysed(api, "trends", day_of="ended"))["points"]]
    assert days == ["2026-03-10", "2026-03-11", "2026-03-12"]
    assert [p["day"] for p in (await analysed(api, "trends", day_of="ended", since=since))["points"]] == days[1:]


async def test_averages_of_every_chain(api: Api) -> None:
    """Totals without doubtful ones; outcomes of gates and thresholds, costs and durations of all; averages over what is known."""
    agents = {"agent_tokens": {"input": 100, "output": 10}, "agent_cost_usd": 0.5, "duration_s": 30.0}
    billing: dict[str, Any] = {"session": {"chain_id": "billing"}}
    decided: dict[str, Any] = {"outcome": "pass", "pass_threshold": 50, "usage": {"cost_usd": 0.3}}
    await store_score(
        api.scoring, "s1", 40, **decided | {"outcome": "fail", "usage": {"cost_usd": 0.1}}, interaction=agents
    )
    await store_score(api.scoring, "s2", 60, **decided, at=NOON + 40 * DAY)
    await store_score(
        api.scoring, "s3", 99, outcome="fail", flags=["outcome_score_mismatch"], interaction={"duration_s": 90.0}
    )
    await store_score(api.scoring, "b1", 70, criteria=OTHER_CRITERIA, judge_fingerprint="judge-2", **billing)

    found = await analysed(api, "trends")

    own, other = found["chains"]
    assert (own["chain_id"], other["chain_id"], found["chains_left_out"]) == ("kubernetes", "billing", 0)
    assert [own[n] for n in ("scores", "count", "average", "left_out", "passed", "passed_share", "judges")] == [
        3, 2, 50, 1, 1, 0.5, 1,
    ]  # fmt: skip
    assert own["judging_usd"] == {"sum": 0.4, "average": 0.2, "count": 2}
    assert own["input_tokens"] == {"sum": 100, "average": 100, "count": 1}
    assert (own["agent_usd"]["average"], own["duration_s"]) == (0.5, {"sum": 120, "average": 60, "count": 2})
    assert (other["criteria"], other["passed_share"], other["judging_usd"]["sum"]) == ([OTHER_CRITERIA], None, None)


async def test_days_are_utc_whatever_the_databases_time_zone(database_url: str) -> None:
    async with connected(database_url) as connection:
        name = await connection.fetchval("SELECT current_database()")
        await connection.execute(f"ALTER DATABASE {name} SET timezone TO 'Pacific/Kiritimati'")
    async with open_api(database_url) as api:
        await store_score(api.scoring, "s1", 40, at=NOON)

        assert [p["day"] for p in (await analysed(api, "trends"))["points"]] == ["2026-03-10"]
        assert await ids(api, since=NOON.isoformat(), until=(NOON + MINUTE).isoformat()) == ["s1"]


async def test_analytics_filters(api: Api) -> None:
    common: dict[str, Any] = {"failure_tags": ["late"], "missing_tools": ("node_cpu",)}
    await store_score(api.scoring, "s1", 40, session={"chain_id": "billing"}, **common)
    await store_score(api.scoring, "s2", 50, at=NOON + MINUTE, criteria=OTHER_CRITERIA, **common)
    await store_score(api.scoring, "s3", 60, at=NOON - DAY, criteria=OTHER_CRITERIA, **common)
    await store_score(api.scoring, "s3", 70, at=NOON + MINUTE, **common)

    cases: list[tuple[dict[str, Any], int]] = [
        ({"chain": "billing"}, 1),
        ({"criteria": OTHER_CRITERIA}, 1),
        ({"since": (NOON + MINUTE).isoformat()}, 2),
        ({"until": (NOON + MINUTE).isoformat()}, 1),
        ({"chain": "billing", "criteria": OTHER_CRITERIA}, 0),
    ]
    for query, count in cases:
        assert sum(p["count"] for p in (await analysed(api, "trends", **query))["points"]) == count
        groups = (await analysed(api, "distribution", **query))["criteria"]
        assert sum(b["count"] for one in groups for b in one["bands"]) == count
        assert sum(t["sessions"] for t in (await analysed(api, "missing-tools", **query))["tools"]) == count
        assert (await analysed(api, "failure-tags", **query))["scores"] == count


async def test_distribution_over_bands_for_each_criteria(api: Api) -> None:
    """Criteria without bands of their own have the default ones."""
    for number, total in enumerate([0, 49, 50, 74, 75, 100]):
        await store_score(api.scoring, f"s{number}", total, score_breakdown={"logical_flow": number, "tools": 2.5})
    await store_score(api.scoring, "s7", 60, score_breakdown=None)
    await store_score(api.scoring, "s8", None, score_breakdown={"logical_flow": 99})
    await store_score(api.scoring, "s9", 60, criteria=OTHER_CRITERIA, rubric={"scores": {"efficiency": 0.5}})
    found = await analysed(api, "distribution")

    other, default = found["criteria"]
    assert (other["criteria"], default["criteria"]) == (OTHER_CRITERIA, DEFAULT_CRITERIA)
    assert [(b["band"], b["count"]) for b in other["bands"]] == [("0-49", 0), ("50-74", 1), ("75-100", 0)]
    assert [(b["band"], b["low"], b["high"], b["count"]) for b in default["bands"]] == [
        ("wrong", 0, 34, 1),
        ("partial", 35, 59, 2),
        ("correct", 60, 100, 4),
    ]
    assert (default["between_bands"], found["without_total"]) == (0, 1)

    def stated(of: dict[str, Any]) -> list[tuple[str, float, int]]:
        return [(c["category"], c["average"], c["count"]) for c in of["categories"]]

    assert stated(other) == [("efficiency", 0.5, 1)]
    assert stated(default) == [("logical_flow", 2.5, 6), ("tools", 2.5, 6)]
    assert stated(default["bands"][1]) == [("logical_flow", 1.5, 2), ("tools", 2.5, 2)]


async def test_missing_tools_by_sessions(api: Api) -> None:
    used = {"by_tool": {"loki.search_logs": {}, "kubernetes.get_pods": {}}}
    billing = {"chain_id": "billing"}
    await store_score(api.scoring, "s1", 90, missing_tools=("search_logs", "Search-Logs", "node_cpu"), interaction=used)
    await store_score(api.scoring, "s2", 80, missing_tools=("search logs",), session=billing)
    await store_score(api.scoring, "s3", None, missing_tools=("search_logs",), interaction={"by_tool": None})
    await store_score(api.scoring, "s4", 10, missing_tools=("node_cpu", "disk_io"), at=NOON)
    await store_score(api.scoring, "s5", 10, missing_tools=("withdrawn",), at=NOON)
    await store_score(api.scoring, "s5", 95, missing_tools=("disk_io",), at=NOON + MINUTE)
    found = await analysed(api, "missing-tools")

    logs, disk, cpu = found["tools"]
    assert (logs["tool_name"], logs["sessions"], logs["chains"]) == ("search_logs", 3, 2)
    assert [(s["name"], s["sessions"]) for s in logs["spellings"]] == [
        ("search_logs", 2),
        ("Search-Logs", 1),
        ("search logs", 1),
    ]
    assert [(c["chain_id"], c["sessions"]) for c in logs["by_chain"]] == [("kubernetes", 2), ("billing", 1)]
    assert (disk["tool_name"], disk["sessions"]) == ("disk_io", 2)
    assert (cpu["tool_name"], cpu["sessions"]) == ("node_cpu", 2)
    assert [t["exists"] for t in found["tools"]] == [True, False, False]

    first = await analysed(api, "missing-tools", limit=1)
    assert [t["tool_name"] for t in first["tools"]] == ["search_logs"]
    assert first["tools_left_out"] == 2


async def test_failure_tags_as_shares(api: Api) -> None:
    await store_score(api.scoring, "s1", 40, failure_tags=["late", "late", "wrong_conclusion"])
    await store_score(api.scoring, "s2", 40, failure_tags=["late"], session={"chain_id": None})
    await store_score(api.scoring, "s3", 40)
    await store_score(api.scoring, "s4", 40, failure_tags=["withdrawn"])
    await store_score(api.scoring, "s4", 40, at=NOON + MINUTE)
    found = await analysed(api, "failure-tags")

    assert found["scores"] == 4
    assert [(t["tag"], t["count"], t["share"], t["chains"]) for t in found["tags"]] == [
        ("late", 2, 0.5, 2),
        ("wrong_conclusion", 1, 0.25, 1),
    ]
    by_chain = {c["chain_id"]: (c["count"], c["share"]) for c in found["tags"][0]["by_chain"]}
    assert by_chain == {None: (1, 1.0), "kubernetes": (1, pytest.approx(1 / 3))}

"""Lists, exports and analytics over 100,000 scores: each finds its rows by an index and answers quickly."""

import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from builders import connected
from full_database import Plan, filled_database, indexes, nodes_of, scanned
from infrastructure import Postgres
from tarsy_scoring.analytics import analytics, chain_averages, week
from tarsy_scoring.analytics.daily import Selection, split
from tarsy_scoring.missing_tools import demand
from tarsy_scoring.missing_tools.ledger import read_ledger
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.scores import export, session_list
from tarsy_scoring.scores.bands import DEFAULT_BANDS
from tarsy_scoring.scores.reader import Reader
from tarsy_scoring.scores.session_list import Filters
from tarsy_scoring.studies import anchors, findings
from tarsy_scoring.web.queries import ExportQuery

BIG = {"sessions", "session_scores", "score_missing_tools"}
NOW = datetime.now(UTC)

FILL = Path(__file__).with_suffix(".sql").read_text("utf-8")


@pytest.fixture(scope="module")
def full_database_url(postgres: Postgres, _migrated_template: str) -> Iterator[str]:
    """A migrated database with many rows and fresh statistics; tests only read it."""
    with filled_database(postgres, _migrated_template, FILL) as url:
        yield url


@pytest.fixture
async def connection(full_database_url: str) -> AsyncIterator[asyncpg.Connection]:
    async with connected(full_database_url) as opened:
        await opened.set_type_codec("jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
        yield opened


@pytest.fixture
async def reader(full_database_url: str) -> AsyncIterator[Reader]:
    database = Database(full_database_url, "public", pool_size=2)
    await database.open()
    yield Reader(database, lambda _name, _chain: None)
    await database.close()


async def plan_of(connection: asyncpg.Connection, statement: str, *arguments: Any) -> Plan:
    """The nodes of the plan for the statement with these arguments."""
    async with connection.transaction():
        await connection.execute(session_list.CUSTOM_PLAN)
        [[plan]] = await connection.fetch(
            f"EXPLAIN (FORMAT JSON) {statement.replace('{schema}', 'public')}", *arguments
        )
    return nodes_of(plan)


def assert_found_by(nodes: Plan, index: str, case: object = None) -> None:
    """Assert that no large table is read whole and that this index is used (or the other, after a `|`)."""
    shown = [{k: v for k, v in n.items() if k in {"Node Type", "Relation Name", "Index Name"}} for n in nodes]
    assert scanned(nodes) & BIG == set(), (case, shown)
    assert set(index.split("|")) & indexes(nodes), (case, shown)


# PostgreSQL 18 may skip through the few criteria of the second.
BY_TIME = "session_scores_by_time|session_scores_of_criteria"
BY_ORDER = {
    "newest": "sessions_recent",
    "score_desc": "session_scores_by_total",
    "score_asc": "session_scores_by_total",
}
# Selective filters, and the index that must find their rows in any order.
SELECTIVE = {
    "chain": (Filters(chain="chain-77"), "sessions_of_chain"),
    "unknown-chain": (Filters(chain="unknown"), "sessions_of_chain"),
    "criteria": (Filters(criteria="cli-tool-use"), "session_scores_of_criteria"),
    "label": (Filters(labels={"build": "77"}), "sessions_labels"),
    "two-labels": (Filters(labels={"build": "77", "guidance": "v1"}), "sessions_labels"),
    "flag": (Filters(flag="tampering_suspected"), "session_scores_flags"),
    "unused-flag": (Filters(flag="self_judged"), "session_scores_flags"),
    "session-prefix": (Filters(prefix="SESSION-1234"), "sessions_by_prefix"),
    "alert-prefix": (Filters(prefix="alertrare"), "sessions_by_alert_prefix"),
    "since": (Filters(since=NOW - timedelta(minutes=90)), "sessions_recent"),
}


STATUSES = {
    "pending": "session_scores_due",
    "in_progress": "session_scores_running",
    "failed": "session_scores_failed",
    "timed_out": "session_scores_failed",
    "cancelled": "session_scores_cancelled",
    "nothing_to_judge": "session_scores_cancelled",
}


async def test_a_selective_list_uses_its_index(connection: asyncpg.Connection) -> None:
    """In any order; open scores and failed ones by their small partial indexes."""
    for order, statement in session_list.SESSIONS.items():
        for name, (filters, index) in SELECTIVE.items():
            assert_found_by(await plan_of(connection, statement, *filters.arguments, None, None, 51), index, name)
        nodes = await plan_of(connection, statement, *Filters(min_score=97).arguments, None, None, 51)
        assert_found_by(nodes, "session_scores_by_total", order)
        if order == "newest":
            for status, index in STATUSES.items():
                nodes = await plan_of(connection, statement, *Filters(status=status).arguments, None, None, 51)
                assert_found_by([n for n in nodes if n.get("Index Name") != "session_scores_one_open"], index, status)


async def test_a_list_is_read_in_its_order(connection: asyncpg.Connection) -> None:
    """The first page and a late one sort only the rows of the page."""
    for order, statement in session_list.SESSIONS.items():
        far = NOW - timedelta(days=30) if order == "newest" else 40
        for place in ((None, None), (far, "session-5")):
            nodes = await plan_of(connection, statement, *Filters().arguments, *place, 51)
            assert_found_by(nodes, BY_ORDER[order], order)
            assert "Sort" not in {n["Node Type"] for n in nodes}


EXPORTS = [
    (Filters(), "session_scores_recent"),
    (Filters(chain="chain-77"), "session_scores_judged"),
    (Filters(criteria="cli-tool-use"), "session_scores_of_criteria"),
    (Filters(min_score=97), "session_scores_by_total"),
    (Filters(labels={"build": "77"}), "sessions_labels"),
    (Filters(flag="tampering_suspected"), "session_scores_flags"),
    (Filters(until=NOW - timedelta(days=55, hours=12)), BY_TIME),
]


@pytest.mark.parametrize("only_latest", [False, True], ids=["all", "latest"])
async def test_an_export_finds_its_scores(connection: asyncpg.Connection, only_latest: bool) -> None:
    """At its beginning, and in the middle, where reading in order may be faster."""
    middle = (NOW - timedelta(days=20), "00000000-0000-0000-0000-000000000000")
    for filters, index in EXPORTS:
        chosen = [*filters.arguments]
        chosen[1] = "completed"
        for place, wanted in (((None, None), index), (middle, f"{index}|session_scores_recent")):
            nodes = await plan_of(connection, export.EXPORT, *chosen, "production", only_latest, False, [], *place, 100)
            assert_found_by(nodes, wanted, filters)


ANALYTICS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "trends": (analytics.TRENDS, (False,)),
    "trends-by-end": (analytics.TRENDS, (True,)),
    "by-total": (analytics.BY_TOTAL, ()),
    "scores-of-chains": (analytics.SCORES_OF_CHAINS, ()),
    "failure-tags": (analytics.FAILURE_TAGS, ()),
    "demand": (demand.DEMAND, (1000,)),
    "chains": (chain_averages.CHAINS, (False,)),
    "chains-by-end": (chain_averages.CHAINS, (True,)),
    "week": (week.WEEKS, (NOW.date(),)),
    "moved": (week.MOVED, (NOW.date(), 3)),
}
SELECTIONS = [
    (Selection(chain="chain-77"), "session_scores_judged"),
    (Selection(criteria="cli-tool-use"), "session_scores_of_criteria"),
    (Selection(since=NOW - timedelta(minutes=30)), BY_TIME),
    (Selection(until=NOW - timedelta(days=55, hours=12)), BY_TIME),
]


async def test_analytics_read_scores_of_dirty_days_alone(connection: asyncpg.Connection) -> None:
    for name, (statement, arguments) in ANALYTICS.items():
        for chain in ("chain-77", None):
            for dirty in ([], [NOW.date() - timedelta(days=1)]):
                of = (*split(None, None, dirty).arguments, chain, None, False)
                nodes = await plan_of(connection, statement, *of, *arguments)
                assert_found_by(nodes, f"{BY_TIME}|sessions_recent|session_scores_judged", (name, chain))


async def test_called_tools_find_their_scores(connection: asyncpg.Connection) -> None:
    for selection, index in SELECTIONS:
        nodes = await plan_of(connection, demand.CALLED, *selection.arguments, 5000)
        assert_found_by(nodes, index, ("called", selection))


DRIFT: dict[str, tuple[str, tuple[Any, ...], str]] = {
    "scores": (findings.SCORES, ("chain-77", "investigation-methodology", [], 3000), "session_scores_judged"),
    "scores-of-a-third": (
        findings.SCORES,
        ("kubernetes", "investigation-methodology", [], 3000),
        "session_scores_judged|session_scores_of_criteria",
    ),
    "judges": (anchors.NEWEST_JUDGES, ([], [], "investigation-methodology"), "session_scores_judged"),
    "anchors": (anchors.STANDING, (["kubernetes"], ["judge-1"], 3600.0, []), "session_scores_of_session"),
    "judgements": (anchors.JUDGEMENTS, ([],), "session_scores_of_session|session_scores_latest"),
}


async def test_drift_finds_its_scores(connection: asyncpg.Connection) -> None:
    """The newest scores of a chain, and those of its few anchors."""
    for name, (statement, arguments, index) in DRIFT.items():
        assert_found_by(await plan_of(connection, statement, *arguments), index, name)


async def test_analytics_over_everything(reader: Reader) -> None:
    """Each over all scores of 1,000 chains; the numbers equal those of the generated rows."""
    database = reader.database
    points, left_out = await analytics.trends(database, Selection())
    found = await analytics.distribution(database, Selection(), lambda _: DEFAULT_BANDS)
    totals = sum(band.count for one in found.criteria for band in one.bands)
    tools = await read_ledger(database, Selection(), limit=50)
    tags = await analytics.failure_tags(database, Selection())

    sessions = 80_000
    assert found.without_total + totals == tags.scores == sessions
    assert left_out + sum(p.count for p in points) == totals
    assert [t.tag for t in tags.tags] == ["wrong_conclusion", "late"]
    assert (tags.tags[0].chains > 900, len(tags.tags[0].by_chain)) == (True, analytics.MOST_CHAINS)
    by_name = {t.tool_name: t for t in tools.tools}
    merged = by_name.get("get_pod_logs") or by_name["Get Pod Logs"]
    assert {s.name for s in merged.spellings} == {"get_pod_logs", "Get Pod Logs"}
    assert (by_name["get_pods"].exists, by_name["node_cpu_usage"].exists) == (True, False)
    assert tools.spellings_left_out > 0


async def test_an_export_holds_one_batch_at_a_time(reader: Reader) -> None:
    """However slow its reader is, it holds no connection meanwhile, and each score comes once."""
    seen: list[Any] = []
    async for batch in export.export_scores(reader, ExportQuery(since=NOW - timedelta(hours=20)).chosen):
        assert len(batch) <= export.EXPORT_BATCH
        busy = await reader.database.once(
            lambda c: c.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                "AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%'"
            )
        )
        assert busy == 0
        seen += [s.document["score_id"] for s in batch]

    assert len(seen) > 10 * export.EXPORT_BATCH
    assert len(seen) == len(set(seen))

"""Rolling figures on a real database: equal to a count by hand, and published when they change."""

import asyncio
import json
import random
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import to_json

from builders import Scoring, connected
from full_database import filled_database
from infrastructure import Postgres, Topics, wait_until
from rolling import CHAINS, STORE, STORED, ended_score, failed_score, random_score, windows_by_hand
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.kafka.connect import BrokerAway
from tarsy_scoring.kafka.topics import ensure_topics, read_topic
from tarsy_scoring.signals import figures, publisher
from tarsy_scoring.signals.figures import read_figures, windows_at
from tarsy_scoring.signals.publisher import RollingSignals
from tarsy_scoring.telemetry.metrics import Metrics

NOON = datetime(2026, 3, 10, 12, 2, tzinfo=UTC)
ENDS = {"1h": "2026-03-10T12:05:00Z", "24h": "2026-03-10T13:00:00Z"}
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
DEFAULTS = Settings()
ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = json.loads((ROOT / "schemas/examples/scoring-failed.json").read_text("utf-8"))


async def store(scoring: Scoring, *scores: dict[str, Any]) -> None:
    await scoring.rows(STORE, scores)


# --- figures -------------------------------------------------------------------------------------------


async def test_figures_are_those_counted_by_hand(scoring: Scoring) -> None:
    """For every chain and any mix of ended scores; a chain alone gives the same as among all."""
    chance = random.Random(20261122)
    scores = [random_score(chance, NOON - chance.choice((HOUR, 30 * HOUR)) * chance.random()) for _ in range(600)]
    edges = (NOON.replace(minute=5) - HOUR, NOON.replace(minute=5), NOON.replace(hour=13, minute=0) - 24 * HOUR)
    await store(scoring, *scores, *(ended_score(at) for at in edges))
    rows = await scoring.rows(STORED)

    everything = await read_figures(scoring.database, DEFAULTS, NOON, (), with_others=True)

    assert len(rows) == 603
    assert everything == {chain or "": windows_by_hand(rows, chain, ENDS) for chain in CHAINS}
    for chain in everything:
        assert await read_figures(scoring.database, DEFAULTS, NOON, [chain]) == {chain: everything[chain]}


async def test_a_chain_without_scores_counts_nothing(scoring: Scoring) -> None:
    """Requested by name it has empty windows; among all chains it is left out."""
    await store(scoring, ended_score(NOON - 30 * HOUR), ended_score(NOON, purpose="anchor"))

    assert await read_figures(scoring.database, DEFAULTS, NOON, (), with_others=True) == {}
    found = await read_figures(scoring.database, DEFAULTS, NOON, ["kubernetes"])

    assert found == {"kubernetes": windows_by_hand([], "kubernetes", ENDS)}


async def test_each_chain_has_its_threshold(scoring: Scoring) -> None:
    """The chain's own, else the default one; a total at the threshold is not under it."""
    config = {"defaults": {"pass_threshold": 60}, "chains": {"network": {"pass_threshold": 70.5}}}
    settings = Settings.model_validate({"config": config})
    totals = ((None, 60), (None, 59), ("network", 70), ("network", 71))
    await store(scoring, *(ended_score(NOON, chain_id=chain, total_score=total) for chain, total in totals))

    found = await read_figures(scoring.database, settings, NOON, (), with_others=True)

    assert {c: (w["1h"]["threshold"], w["1h"]["under_threshold"]) for c, w in found.items()} == {
        "": (60, 1),
        "network": (70.5, 1),
    }


FILL = """
INSERT INTO sessions (session_id, chain_id) SELECT 'session-' || n, 'chain-' || n % 20 FROM generate_series(1, 40000) n;
INSERT INTO session_scores (session_id, request_id, chain_id, priority, score_triggered_by, criteria, criteria_hash,
  status, completed_at, total_score, error_kind, usage, score_analysis)
SELECT 'session-' || n, md5('request-' || n)::uuid, CASE WHEN n % 20 > 0 THEN 'chain-' || n % 20 END, 1, 'auto', 'c',
  'h', status, timestamptz '2026-03-10T12:00Z' - make_interval(mins => n),
  CASE WHEN status = 'completed' THEN n % 101 END,
  CASE WHEN status <> 'completed' THEN 'kind-' || n % 3 END, '{"cost_usd": 0.1}', repeat('analysis ', 60)
FROM generate_series(1, 40000) n, LATERAL (SELECT CASE WHEN n % 19 = 0 THEN 'failed' WHEN n % 997 = 0 THEN 'cancelled'
  ELSE 'completed' END AS status) s;
"""


@pytest.fixture(scope="module")
def full_database_url(postgres: Postgres, _migrated_template: str) -> Iterator[str]:
    """A database with the scores of a month, one a minute."""
    with filled_database(postgres, _migrated_template, FILL) as url:
        yield url


@pytest.mark.parametrize("cache", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize(
    ("statement", "of_chains"),
    [
        pytest.param(figures.FIGURES_OF_CHAINS, ", ARRAY['chain-7', '']", id="some"),
        pytest.param(figures.FIGURES_OF_ALL, "", id="all"),
    ],
)
async def test_figures_are_read_by_index(full_database_url: str, statement: str, of_chains: str, cache: str) -> None:
    """Completed, failed and cancelled scores are all found without reading every score."""
    _, day = windows_at(NOON)
    times = ", ".join(f"'{at.isoformat()}'" for at in (day.start, day.end, NOON - HOUR, NOON))
    async with connected(full_database_url) as connection:
        await connection.execute(f"SET plan_cache_mode = {cache}")
        await connection.execute(f"PREPARE it AS {statement.format(schema='public')}")
        arguments = f"{times}, ARRAY['chain-1'], ARRAY[60]::float8[], 50{of_chains}"
        [[plan]] = await connection.fetch(f"EXPLAIN (FORMAT JSON) EXECUTE it({arguments})")

    nodes = list(_nodes(json.loads(plan)[0]["Plan"]))
    assert "session_scores" not in {n["Relation Name"] for n in nodes if n["Node Type"] == "Seq Scan"}, plan
    indexes = {n.get("Index Name") for n in nodes}
    assert {"session_scores_failed", "session_scores_cancelled"} <= indexes, plan
    # A day has few scores of many chains: the planner may read them by time and filter by chain.
    assert {"session_scores_judged", "session_scores_by_time"} & indexes, plan


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


# --- publishing ----------------------------------------------------------------------------------------


@pytest.fixture
async def settings(topics: Topics) -> Settings:
    """A topic of its own for insights."""
    insights = topics.scoring_events.replace("events", "insights")
    given = {"SCORING_TOPIC_SCORING_INSIGHTS": insights, "SCORING_CREATE_TOPICS": "true"}
    settings = load_settings(topics.env | given)
    await ensure_topics(settings, (), [insights])
    return settings


def event(chain: str | None, ended_at: datetime) -> bytes:
    """The event of a score that failed."""
    fields = {**EXAMPLE, "purpose": "production", "chain_id": chain, "timestamp": ended_at, "completed_at": ended_at}
    return to_json(fields)


async def messages(settings: Settings) -> list[dict[str, Any]]:
    records = [r async for r in read_topic(settings, settings.topic_scoring_insights)]
    found = [json.loads(r.value or b"") for r in records]
    assert [(m["chain_id"] or "").encode() for m in found] == [r.key for r in records]
    return sorted(found, key=lambda m: m["timestamp_us"])


async def test_only_changed_figures_are_published(scoring: Scoring, settings: Settings) -> None:
    """An event marks its chain, a refresh all chains; figures that the topic has are not sent again."""
    signals = RollingSignals(settings, scoring.database, Metrics())
    now = datetime.now(UTC)
    await store(scoring, ended_score(now), failed_score(now, chain_id=None), ended_score(now, chain_id="quiet"))

    assert await signals.publish_changed(now, refresh=False) == 0, "nothing is marked"
    for chain in ("kubernetes", None, "erased"):
        signals.take_event(event(chain, now))
    assert await signals.publish_changed(now, refresh=False) == 2, "a chain without scores has no message yet"
    signals.take_event(event("kubernetes", now))
    assert await signals.publish_changed(now, refresh=False) == 0, "the same figures"
    assert await signals.publish_changed(now, refresh=True) == 1, "`quiet` was not marked"

    found = await messages(settings)
    ends = {name: found[0]["windows"][name]["end"] for name in ENDS}
    rows = await scoring.rows(STORED)
    assert {m["chain_id"]: m["windows"] for m in found} == {
        chain: windows_by_hand(rows, chain, ends) for chain in ("kubernetes", None, "quiet")
    }


async def test_windows_are_published_until_they_are_empty(scoring: Scoring, settings: Settings) -> None:
    """A quiet chain is published at each hop, a last time with empty windows, and then no more."""
    signals = RollingSignals(settings, scoring.database, Metrics())
    await store(scoring, ended_score(NOON))
    sent = [
        await signals.publish_changed(NOON + after, refresh=True)
        for after in (0 * MINUTE, MINUTE, 3 * MINUTE, HOUR, 23 * HOUR, 24 * HOUR, 25 * HOUR)
    ]

    assert sent == [1, 0, 1, 1, 1, 1, 0]
    assert [(m["windows"]["1h"]["scores"], m["windows"]["24h"]["scores"]) for m in await messages(settings)] == [
        *((1, 1), (1, 1), (0, 1), (0, 1), (0, 0))
    ]


async def test_a_chain_named_like_the_key_of_a_finding_is_not_published(scoring: Scoring, settings: Settings) -> None:
    """The topic keeps one message per key, and findings of drift are in it too."""
    name = "drift:12345678-1234-1234-1234-123456789012"
    await store(scoring, ended_score(NOON, chain_id=name))

    assert await RollingSignals(settings, scoring.database, Metrics()).publish_changed(NOON, refresh=True) == 0


async def test_a_chain_stays_marked_until_it_is_published(
    scoring: Scoring, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "PUBLISH_TIMEOUT_S", 0.2)
    now = datetime.now(UTC)
    await store(scoring, ended_score(now))
    away = settings.model_copy(update={"kafka_bootstrap_servers": "127.0.0.1:1"})
    signals = RollingSignals(away, scoring.database, Metrics())
    signals.take_event(event("kubernetes", now))
    for _ in range(2):
        with pytest.raises(BrokerAway):
            await signals.publish_changed(now, refresh=False)


async def test_one_process_leads_and_another_takes_over(scoring: Scoring, settings: Settings) -> None:
    """A standby is ready; when the leader ends, it publishes every chain once."""
    await store(scoring, ended_score(datetime.now(UTC)))
    stops = [asyncio.Event(), asyncio.Event()]
    first, second = (RollingSignals(settings, scoring.database, Metrics()) for _ in stops)
    async with asyncio.TaskGroup() as group:
        leading = group.create_task(first.run(stops[0]))

        async def published(number: int) -> bool:
            return len(await messages(settings)) >= number

        await wait_until(lambda: published(1), 60, "the first message")
        group.create_task(second.run(stops[1]))
        await wait_until(lambda: second.lacking is None, 60, "the second stands by")
        assert len(await messages(settings)) == 1
        stops[0].set()
        await leading
        await wait_until(lambda: published(2), 60, "the second message")
        stops[1].set()


async def test_a_broken_connection_ends_the_lead_and_not_the_process(
    scoring: Scoring, settings: Settings, postgres: Postgres
) -> None:
    """A lost connection loses the lock: the process stops publishing and tries to lead again."""
    await store(scoring, ended_score(datetime.now(UTC)))
    signals, stopping = RollingSignals(settings, scoring.database, Metrics()), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(signals.run(stopping))
        await wait_until(lambda: signals.lacking is None, 60, "it leads")
        async with connected(scoring.url) as other:
            await other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"
                " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            )
        await wait_until(lambda: signals.lacking is not None, 60, "it has lost the lock")
        await wait_until(lambda: signals.lacking is None, 60, "it leads again")
        stopping.set()


async def test_read_access_is_enough(scoring: Scoring) -> None:
    role = f"insights_{uuid.uuid4().hex[:12]}"
    _, day = windows_at(NOON)
    async with connected(scoring.url) as owner:
        await owner.execute(f"CREATE ROLE {role}; GRANT SELECT ON session_scores TO {role}; SET ROLE {role}")
        try:
            sql = figures.FIGURES_OF_ALL.format(schema="public")
            assert await owner.fetch(sql, day.start, day.end, NOON - HOUR, NOON, [], [], 50.0) == []
        finally:
            await owner.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")

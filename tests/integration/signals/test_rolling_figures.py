"""Rolling figures on a real database: equal to a count by hand, and published when they change."""

import asyncio
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from builders import Scoring, connected
from full_database import filled_database
from infrastructure import Postgres, Topics, wait_until
from rolling import CHAINS, STORE, STORED, ended_score, failed_score, random_score, windows_by_hand
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.kafka.connect import BrokerAway
from tarsy_scoring.kafka.topics import ensure_topics, read_topic
from tarsy_scoring.signals import publisher
from tarsy_scoring.signals.figures import FIGURES, read_figures, windows_at
from tarsy_scoring.signals.publisher import RollingSignals
from tarsy_scoring.telemetry.metrics import Metrics

NOON = datetime(2026, 3, 10, 12, 2, tzinfo=UTC)
ENDS = {"1h": "2026-03-10T12:05:00Z", "24h": "2026-03-10T13:00:00Z"}
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
DEFAULTS = Settings()
ROOT = Path(__file__).resolve().parents[3]
COMPLETED = (ROOT / "schemas/examples/scoring-completed.json").read_bytes()


async def store(scoring: Scoring, *scores: dict[str, Any]) -> None:
    await scoring.rows(STORE, scores)


# --- figures -------------------------------------------------------------------------------------------


async def test_figures_are_those_counted_by_hand(scoring: Scoring) -> None:
    """For every chain and any mix of ended scores."""
    chance = random.Random(20261122)
    scores = [random_score(chance, NOON - chance.choice((HOUR, 30 * HOUR)) * chance.random()) for _ in range(600)]
    edges = (NOON.replace(minute=5) - HOUR, NOON.replace(minute=5), NOON.replace(hour=13, minute=0) - 24 * HOUR)
    await store(scoring, *scores, *(ended_score(at) for at in edges))
    rows = await scoring.rows(STORED)

    everything = await read_figures(scoring.database, DEFAULTS, NOON, ())

    assert len(rows) == 603
    assert everything == {chain or "": windows_by_hand(rows, chain, ENDS) for chain in CHAINS}


async def test_each_chain_has_its_threshold(scoring: Scoring) -> None:
    """The chain's own, else the default one; a total at the threshold is not under it."""
    config = {"defaults": {"pass_threshold": 60}, "chains": {"network": {"pass_threshold": 70.5}}}
    settings = Settings.model_validate({"config": config})
    totals = ((None, 60), (None, 59), ("network", 70), ("network", 71))
    await store(scoring, *(ended_score(NOON, chain_id=chain, total_score=total) for chain, total in totals))

    found = await read_figures(scoring.database, settings, NOON, ())

    assert {c: (w["1h"]["threshold"], w["1h"]["under_threshold"]) for c, w in found.items()} == {
        "": (60, 1),
        "network": (70.5, 1),
    }


FILL = Path(__file__).with_suffix(".sql").read_text("utf-8")


@pytest.fixture(scope="module")
def full_database_url(postgres: Postgres, _migrated_template: str) -> Iterator[str]:
    """A database with the scores of a month, one a minute."""
    with filled_database(postgres, _migrated_template, FILL) as url:
        yield url


@pytest.mark.parametrize("cache", ["force_custom_plan", "force_generic_plan"])
async def test_figures_are_read_by_index(full_database_url: str, cache: str) -> None:
    """Completed, failed and cancelled scores are all found without reading every score."""
    times = ", ".join(f"'{at.isoformat()}'" for at in (*windows_at(NOON)["24h"], NOON - HOUR, NOON))
    async with connected(full_database_url) as connection:
        await connection.execute(f"SET plan_cache_mode = {cache}")
        await connection.execute(f"PREPARE it AS {FIGURES.format(schema='public')}")
        arguments = f"{times}, ARRAY['chain-1'], ARRAY[60]::float8[], ARRAY['c'], 50, 'c'"
        [[plan]] = await connection.fetch(f"EXPLAIN (FORMAT JSON) EXECUTE it({arguments})")

    nodes = list(_nodes(json.loads(plan)[0]["Plan"]))
    assert "session_scores" not in {n["Relation Name"] for n in nodes if n["Node Type"] == "Seq Scan"}, plan
    indexes = {n.get("Index Name") for n in nodes}
    assert {"session_scores_failed", "session_scores_cancelled"} <= indexes, plan
    assert "session_scores_by_time" in indexes, plan


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


async def messages(settings: Settings) -> list[dict[str, Any]]:
    records = [r async for r in read_topic(settings, settings.topic_scoring_insights)]
    found = [json.loads(r.value or b"") for r in records]
    assert [(m["chain_id"] or "").encode() for m in found] == [r.key for r in records]
    return sorted(found, key=lambda m: m["timestamp_us"])


async def test_only_changed_figures_are_published(scoring: Scoring, settings: Settings) -> None:
    signals = RollingSignals(settings, scoring.database, Metrics())
    now = datetime.now(UTC)
    await store(scoring, ended_score(now), failed_score(now, chain_id=None))

    assert await signals.publish_changed(now) == 2
    await store(scoring, ended_score(now, chain_id="other"))
    assert await signals.publish_changed(now) == 1, "the figures of the others are the same"

    found = await messages(settings)
    ends = {name: found[0]["windows"][name]["end"] for name in ENDS}
    rows = await scoring.rows(STORED)
    assert {m["chain_id"]: m["windows"] for m in found} == {
        chain: windows_by_hand(rows, chain, ends) for chain in ("kubernetes", None, "other")
    }


async def test_windows_are_published_until_they_are_empty(scoring: Scoring, settings: Settings) -> None:
    """A quiet chain is published at each hop, a last time with empty windows, and then no more."""
    signals = RollingSignals(settings, scoring.database, Metrics())
    await store(scoring, ended_score(NOON))
    sent = [
        await signals.publish_changed(NOON + after)
        for after in (0 * MINUTE, MINUTE, 3 * MINUTE, HOUR, 23 * HOUR, 24 * HOUR, 25 * HOUR)
    ]

    assert sent == [1, 0, 1, 1, 1, 1, 0]
    assert [(m["windows"]["1h"]["scores"], m["windows"]["24h"]["scores"]) for m in await messages(settings)] == [
        *((1, 1), (1, 1), (0, 1), (0, 1), (0, 0))
    ]


async def test_the_end_of_a_score_is_published_before_the_next_minute(scoring: Scoring, settings: Settings) -> None:
    signals, stopping = RollingSignals(settings, scoring.database, Metrics()), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(signals.run(stopping))
        await wait_until(lambda: signals.lacking is None, 60, "it leads")
        await store(scoring, ended_score(datetime.now(UTC)))
        signals.take_event(COMPLETED)

        async def is_published() -> bool:
            return bool(await messages(settings))

        await wait_until(is_published, 30, "the message")
        stopping.set()


async def test_what_was_not_published_is_published_later(
    scoring: Scoring, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "PUBLISH_TIMEOUT_S", 0.2)
    now = datetime.now(UTC)
    await store(scoring, ended_score(now))
    signals = RollingSignals(
        settings.model_copy(update={"kafka_bootstrap_servers": "127.0.0.1:1"}), scoring.database, Metrics()
    )
    for _ in range(2):
        with pytest.raises(BrokerAway):
            await signals.publish_changed(now)


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

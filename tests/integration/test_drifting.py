"""Drift detection on a real database and a real broker: the event names the change that the test planted."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic_core import from_json

from builders import DEFAULT_CRITERIA, METHODOLOGY, Scoring
from drift_rows import look, plant_judgements, plant_scores, totals
from infrastructure import Topics
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.kafka.connect import BrokerAway
from tarsy_scoring.kafka.consumer import Record
from tarsy_scoring.kafka.examine import read_topics
from tarsy_scoring.kafka.security import connection_options
from tarsy_scoring.kafka.topics import read_topic
from tarsy_scoring.retention.pruning import Pruner
from tarsy_scoring.studies import anchors, findings
from tarsy_scoring.studies import drift_loop as loop_module
from tarsy_scoring.studies.drift_loop import DriftLoop
from tarsy_scoring.telemetry.metrics import Metrics

OLD, NEW = "judge-old", "judge-new"
DAY = timedelta(days=1)
ANCHORS = 40


@pytest.fixture
def settings(topics: Topics) -> Settings:
    insights = topics.scoring_events.replace("events", "insights")
    return load_settings(topics.env | {"SCORING_TOPIC_SCORING_INSIGHTS": insights, "SCORING_CREATE_TOPICS": "true"})


def now() -> datetime:
    return datetime.now(UTC)


async def plant_change(scoring: Scoring, *, judge: int, agents: int, after: int = 320) -> None:
    """Store a chain whose judge was replaced, with these differences in points by judge and by agents."""
    begin = now() - timedelta(hours=400 + after)
    before = await plant_scores(scoring, OLD, totals(60, 400, seed=2), begin=begin)
    chosen = before[:ANCHORS]
    assert await anchors.add(scoring.database, chosen, by="ada") == sorted(chosen)
    base = dict(zip(chosen, totals(60, ANCHORS, seed=3), strict=True))
    await plant_judgements(scoring, OLD, base)
    moved = totals(judge, ANCHORS, spread=2, seed=4) if judge > 0 else [0] * ANCHORS
    await plant_judgements(scoring, NEW, {i: min(100, n + m) for (i, n), m in zip(base.items(), moved, strict=True)})
    await plant_scores(scoring, NEW, totals(60 + judge + agents, after, seed=5), begin=begin + timedelta(hours=400))


async def published(settings: Settings) -> list[Record]:
    return [r async for r in read_topic(settings, settings.topic_scoring_insights)]


def drift_loop(scoring: Scoring, settings: Settings) -> DriftLoop:
    return DriftLoop(settings, scoring.inbox, Metrics())


async def run(loop: DriftLoop) -> None:
    assert await loop.run_once(now())
    await loop.close()


async def test_the_event_names_what_was_planted(scoring: Scoring, settings: Settings) -> None:
    judge, agents, cause = 12, -24, "both"
    await plant_change(scoring, judge=judge, agents=agents)
    loop = drift_loop(scoring, settings)

    await run(loop)
    await run(loop)

    [topic] = await read_topics(connection_options(settings), [settings.topic_scoring_insights])
    assert (topic.config or {})["cleanup.policy"] == "compact"
    [record] = await published(settings)
    event: dict[str, Any] = from_json(record.value or b"")
    assert record.key == f"drift:{event['event_id']}".encode()
    assert (event["type"], event["cause"], event["is_clear"]) == ("scoring.drift_detected", cause, True)
    assert (event["chain_id"], event["old_fingerprint"], event["new_fingerprint"]) == ("kubernetes", OLD, NEW)
    assert event["interval"][0] < event["size_points"] < event["interval"][1]
    assert event["interval"][0] < judge + agents < event["interval"][1]
    assert event["timestamp_us"] == round(datetime.fromisoformat(event["timestamp"]).timestamp() * 1_000_000)


async def found_by(scoring: Scoring) -> list[findings.Finding]:
    return await findings.read_findings(scoring.database, None, None, None, 100)


async def test_other_criteria_are_no_drift(scoring: Scoring, settings: Settings) -> None:
    """Totals of the new default criteria are not compared with those of the former one; no finding is no event."""
    began = now() - timedelta(days=60)
    before, since = totals(50, 350), totals(25, 350, seed=2)
    await plant_scores(scoring, OLD, before, begin=began, criteria=METHODOLOGY)
    await plant_scores(scoring, NEW, since, begin=began + timedelta(days=20), criteria=DEFAULT_CRITERIA)

    await run(drift_loop(scoring, settings))

    assert [f.cause for f in await found_by(scoring)] in ([], ["none"])
    assert await findings.unpublished(scoring.database, 10) == []


async def test_two_workers_make_one_event(scoring: Scoring, settings: Settings) -> None:
    await plant_change(scoring, judge=10, agents=0)
    loops = [drift_loop(scoring, settings) for _ in range(2)]

    assert True in await asyncio.gather(*(loop.run_once(now()) for loop in loops))

    for loop in loops:
        await loop.close()
    assert len(await published(settings)) == 1
    assert len(await found_by(scoring)) == 1


async def tenure_of(scoring: Scoring) -> Any:
    return await findings.read_tenure(scoring.database, "kubernetes", DEFAULT_CRITERIA)


async def test_concurrent_looks_store_one_finding(scoring: Scoring) -> None:
    """It has the time of the look, and not that of the database."""
    await plant_change(scoring, judge=10, agents=0)
    looked_at = now() - DAY / 2

    made = await asyncio.gather(*(look(scoring, looked_at) for _ in range(3)))

    assert sorted(map(str, made)) == ["sessions", "watch", "watch"]
    [finding] = await found_by(scoring)
    assert finding.found_at == looked_at


async def test_nothing_is_looked_at_while_anchors_are_under_way(scoring: Scoring) -> None:
    await plant_change(scoring, judge=10, agents=0)
    [late, *_] = await plant_scores(scoring, OLD, [60], begin=now() - 60 * DAY)
    await anchors.add(scoring.database, [late], by="ada")

    assert await look(scoring, now()) is None

    await anchors.remove(scoring.database, [late], by="ada")
    assert await look(scoring, now()) == "sessions"


async def test_a_change_under_one_judge_is_attributed_to_agents_once(scoring: Scoring, settings: Settings) -> None:
    begin = now() - timedelta(hours=700)
    await plant_scores(scoring, OLD, totals(70, 350, seed=2), begin=begin)
    await plant_scores(scoring, OLD, totals(55, 100, seed=3), begin=begin + timedelta(hours=350))
    loop = drift_loop(scoring, settings)

    await run(loop)
    for day in (0, 1, 2):
        assert await loop.run_once(now() + day * DAY)
    await loop.close()

    [record] = await published(settings)
    event = from_json(record.value or b"")
    assert (event["cause"], event["old_fingerprint"], event["new_fingerprint"]) == ("agents", None, OLD)
    assert event["size_points"] == pytest.approx(-15, abs=4)
    turned = datetime.fromisoformat(event["began_at"]) - begin
    assert turned == pytest.approx(timedelta(hours=350), abs=timedelta(hours=20))
    assert len(await found_by(scoring)) == 1


async def test_a_session_scored_again_is_no_new_session(scoring: Scoring) -> None:
    await plant_change(scoring, judge=10, agents=0)
    before = await tenure_of(scoring)
    old = await scoring.rows("SELECT session_id FROM session_scores WHERE judge_fingerprint = $1", OLD)
    again = {r["session_id"]: 90 for r in old}
    await plant_judgements(scoring, NEW, again, purpose="production")

    after = await tenure_of(scoring)

    assert (len(after.before), len(after.scores)) == (len(before.before), len(before.scores))


async def test_scores_without_a_fingerprint_do_not_count(scoring: Scoring) -> None:
    for judge, mean in ((OLD, 60), (NEW, 40)):
        await plant_scores(scoring, judge, totals(mean, 100), begin=now() - 30 * DAY)
    await scoring.rows("UPDATE session_scores SET judge_fingerprint = NULL WHERE judge_fingerprint = $1", NEW)

    assert len((await tenure_of(scoring)).scores) == 100


async def test_without_a_broker_findings_are_kept_and_events_follow(
    scoring: Scoring, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await plant_change(scoring, judge=10, agents=0)
    monkeypatch.setattr(loop_module, "PUBLISH_TIMEOUT_S", 0.2)
    away = drift_loop(scoring, settings.model_copy(update={"kafka_bootstrap_servers": "127.0.0.1:9"}))
    with pytest.raises(BrokerAway):
        await away.run_once(now())
    monkeypatch.undo()
    [kept] = await findings.unpublished(scoring.database, 10)

    await run(drift_loop(scoring, settings))

    [record] = await published(settings)
    assert from_json(record.value or b"")["event_id"] == str(kept.event_id)
    assert await findings.unpublished(scoring.database, 10) == []


async def test_pruning_keeps_anchors_and_their_judgements(scoring: Scoring) -> None:
    year_ago = now() - 365 * DAY
    kept, let_go = await plant_scores(scoring, OLD, [60, 70], begin=year_ago)
    await plant_judgements(scoring, OLD, {kept: 61, let_go: 71}, [year_ago, year_ago])
    await scoring.rows("UPDATE session_scores SET created_at = $1", year_ago)
    await anchors.add(scoring.database, [kept, let_go], by="ada")
    await anchors.remove(scoring.database, [let_go], by="ada")
    pruner = Pruner(scoring.database, {"scores": 180, "records": 180})

    await pruner.run()

    assert [r["session_id"] for r in await scoring.rows("SELECT session_id FROM sessions")] == [kept]
    [judgement] = await anchors.judgements(scoring.database)
    assert (judgement.session_id, judgement.total) == (kept, 61)


async def test_old_findings_are_pruned_once_published(scoring: Scoring) -> None:
    await plant_change(scoring, judge=10, agents=0)
    await look(scoring, now())
    await scoring.rows("UPDATE drift_findings SET found_at = found_at - interval '365 days'")
    pruner = Pruner(scoring.database, {"records": 180})
    [news] = await findings.unpublished(scoring.database, 10)
    await findings.mark_published(scoring.database, [news.event_id])
    assert (await pruner.run())["findings"] == 0

    await look(scoring, now() + DAY)
    await scoring.rows("UPDATE drift_findings SET published_at = NULL")
    assert (await pruner.run())["findings"] == 0
    await findings.mark_published(scoring.database, [news.event_id])
    assert (await pruner.run())["findings"] == 1

"""Rolling figures through kills, a second instance and a broker that goes away: in the end they are what SQL says."""

import asyncio
import contextlib
import json
import random
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest

from infrastructure import Kafka, wait_until
from processes import Process, Service
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.kafka.topics import read_places
from tarsy_scoring.queue.outbox import EMIT
from tarsy_scoring.signals.windows import EndedScore

SCORES = 1_500
BATCH = 25
SPREAD = timedelta(hours=11)
CHAINS = ("kubernetes", "network", "storage", "größer", "quiet", None)

STORE = """
WITH told AS (
  SELECT * FROM jsonb_to_recordset($1::jsonb) AS t(score_id uuid, session_id text, request_id uuid, chain_id text,
    purpose text, status text, completed_at timestamptz, total_score int, failure_tags jsonb, usage jsonb,
    error_kind text)
), known AS (
  INSERT INTO sessions (session_id, chain_id, labels, status) SELECT session_id, chain_id, '{}', 'completed' FROM told
  RETURNING session_id
)
INSERT INTO session_scores (score_id, session_id, request_id, chain_id, purpose, status, priority, score_triggered_by,
  completed_at, total_score, failure_tags, usage, error_kind, attempt)
SELECT t.score_id, session_id, t.request_id, t.chain_id, t.purpose, t.status, 1, 'auto', t.completed_at, t.total_score,
  t.failure_tags, t.usage, t.error_kind, 1
FROM told t JOIN known USING (session_id)
"""

AGAIN = "UPDATE scoring_events SET published_at = NULL WHERE position % 7 = $1"

ROWS = """
SELECT coalesce(chain_id, '') AS chain, score_id::text,
       (extract(epoch FROM completed_at) * 1000000)::bigint AS at_us, total_score, error_kind, failure_tags,
       round((usage ->> 'cost_usd')::numeric * 1000000000)::bigint AS cost
FROM session_scores WHERE purpose = 'production'
"""

FIGURES = """
SELECT w.number, count(*) FILTER (WHERE completed) AS scores, count(s.total_score) AS scored,
       sum(s.total_score)::float8 / nullif(count(s.total_score), 0) AS mean,
       count(*) FILTER (WHERE s.total_score < 50) AS under_threshold,
       (count(*) FILTER (WHERE s.total_score < 50))::float8 / nullif(count(s.total_score), 0) AS share,
       sum((s.usage ->> 'cost_usd')::numeric) FILTER (WHERE completed)::float8 AS cost_usd,
       (SELECT coalesce(jsonb_object_agg(k, n), '{}') FROM (
          SELECT f.error_kind AS k, count(*) AS n FROM session_scores f
          WHERE f.chain_id IS NOT DISTINCT FROM w.chain_id AND f.purpose = 'production' AND f.status <> 'completed'
            AND f.completed_at >= w.start AND f.completed_at < w.end_at GROUP BY 1) x) AS failures,
       (SELECT coalesce(jsonb_object_agg(k, n), '{}') FROM (
          SELECT t.k, count(*) AS n FROM session_scores f, jsonb_array_elements_text(f.failure_tags) t(k)
          WHERE f.chain_id IS NOT DISTINCT FROM w.chain_id AND f.purpose = 'production' AND f.status = 'completed'
            AND f.completed_at >= w.start AND f.completed_at < w.end_at GROUP BY 1) x) AS failure_tags
FROM unnest($1::int[], $2::text[], $3::timestamptz[], $4::timestamptz[]) AS w(number, chain_id, start, end_at)
LEFT JOIN LATERAL (
  SELECT total_score, usage, status = 'completed' AS completed FROM session_scores
  WHERE chain_id IS NOT DISTINCT FROM w.chain_id AND purpose = 'production'
    AND completed_at >= w.start AND completed_at < w.end_at
) s ON true
GROUP BY w.number, w.chain_id, w.start, w.end_at
"""


class Scorers:
    """Scores that end: rows and their events in one transaction, which the relay sends, some of them twice."""

    def __init__(self, service: Service, chance: random.Random) -> None:
        self._service = service
        self._chance = chance
        self._begin = datetime.now(UTC) - SPREAD
        self._done = 0

    async def work(self, until: int) -> None:
        """End scores up to this number."""
        while self._done < until:
            await self._end([self._score(n) for n in range(self._done, self._done + BATCH)])
            self._done += BATCH
            if self._chance.random() < 0.3:
                await self._service.rows(AGAIN, self._chance.randrange(7))

    def _score(self, number: int) -> dict[str, Any]:
        at = self._begin + SPREAD * (number / SCORES)
        if self._chance.random() < 0.05:
            at -= timedelta(minutes=self._chance.randrange(200))
        chain = self._chance.choice(CHAINS)
        if chain == "quiet" and number > SCORES // 3:
            chain = "storage"
        is_completed = self._chance.random() < 0.85
        uuid_of = "00000000-0000-4000-{}000-{:012d}".format
        return {
            "score_id": uuid_of(8, number),
            "session_id": f"session-{number}",
            "request_id": uuid_of(9, number),
            "chain_id": chain,
            "purpose": "shadow" if self._chance.random() < 0.05 else "production",
            "status": "completed" if is_completed else self._chance.choice(("failed", "timed_out", "cancelled")),
            "completed_at": at.isoformat(),
            "total_score": self._chance.choice((None, *range(101))) if is_completed else None,
            "failure_tags": self._chance.sample(["loop", "no_evidence", "wrong"], self._chance.randrange(3)),
            "usage": {"cost_usd": self._chance.choice((None, 0.1, 0.000123, round(self._chance.random(), 9)))},
            "error_kind": None if is_completed else self._chance.choice(("refused", "worker_lost")),
        }

    async def _end(self, scores: list[dict[str, Any]]) -> None:
        ends = [(s["score_id"], "scoring.completed" if s["error_kind"] is None else "scoring.failed") for s in scores]
        extra = [json.dumps(_said_of(s)) for s in scores]
        await self._service.rows(STORE, json.dumps(scores))
        await self._service.rows(
            EMIT.replace("{schema}.", ""), [i for i, _ in ends], [t for _, t in ends], extra, [None] * len(ends)
        )


def _said_of(score: dict[str, Any]) -> dict[str, Any]:
    """What the event of a score adds to what all events have."""
    if score["error_kind"] is not None:
        return {"status": score["status"], "error_kind": score["error_kind"], "error_message": "in words"}
    told = {"criteria": "c", "criteria_hash": "h", "judge_fingerprint": None, "flags": [], "outcome": None}
    shared = {name: score[name] for name in ("total_score", "failure_tags", "usage")}
    return told | shared | {"score_triggered_by": "auto", "alert_type": None, "labels": {}}


class Insights:
    """What the processes under test have published, and what they keep."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.env = {
            "SCORING_CREATE_TOPICS": "true",
            "SCORING_TOPIC_SCORING_INSIGHTS": f"insights-of-{service.topics.group}",
        }

    def start(self) -> Process:
        return self._service.command("insights", **self.env)

    async def until(self, process: Process, holds: Callable[[Process], Awaitable[bool]], what: str) -> Process:
        """Wait for that; gives the process, or its successor where it ended with 1, as whoever supervises it does."""

        async def holds_now() -> bool:
            nonlocal process
            if process.status == 1:
                assert "\ntarsy-scoring: " in process.log, process.log
                process = self.start()
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):  # it ends just now, or is very busy
                return await holds(process)
            return False

        await wait_until(holds_now, 120, f"{process.name}: {what}")
        return process

    async def ready(self, process: Process) -> Process:
        return await self.until(process, Process.is_ready, "it is ready")

    async def keeps(self, process: Process, rows: int) -> Process:
        async def enough(process: Process) -> bool:
            return await rows_of(process) >= rows

        return await self.until(process, enough, f"it keeps {rows} scores")

    async def stop(self, process: Process) -> None:
        """Stop it, where it did not end a moment before, as it does where it cannot go on."""
        if await process.stop() != 0:
            assert process.status == 1, process.log
            assert "\ntarsy-scoring: " in process.log, process.log

    async def rows(self) -> dict[tuple[str, str], EndedScore]:
        """The table as its changelog has it, whatever was written twice."""
        records = await self._service.records(f"{self._service.topics.group}-insights-scores-changelog")
        newest = {r.key: r.value for r in records}
        kept = {tuple(key.decode().split("\0")): EndedScore.decode(v) for key, v in newest.items() if v is not None}
        return {(chain, score_id): row for (chain, score_id), row in kept.items()}

    async def whereabouts(self, expected: Mapping[tuple[str, str], EndedScore]) -> str:
        """How far the scores came that are not in the table, and what the group has committed."""
        group = f"{self._service.topics.group}-insights"
        inner, topic = f"{group}-by-chain", self._service.topics.scoring_events
        missing = {score_id for _, score_id in set(expected) - set(await self.rows())}
        ends = [r for r in await self._service.records(topic) if b'"completed_at"' in r.value]
        lost = [(r.partition, r.offset) for r in ends if json.loads(r.value)["score_id"] in missing]
        passed_on = [r for r in await self._service.records(inner) if r.value.split(b"\0")[0].decode() in missing]
        places = await read_places(load_settings(self._service.env), group, [topic, inner])
        return (
            f"{len(missing)} missing; {len(lost)} of them on {topic}: {sorted(lost)[:20]}; {len(passed_on)} passed on: "
            f"{sorted((r.partition, r.offset) for r in passed_on)[:20]}; {places}"
        )

    async def windows(self) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Each window as it was last published, and the last message of each chain."""
        windows, last = {}, {}
        for record in await self._service.records(self.env["SCORING_TOPIC_SCORING_INSIGHTS"]):
            message = json.loads(record.value)
            assert record.key == (message["chain_id"] or "").encode()
            last[message["chain_id"]] = message
            for window in message["windows"].values():
                windows[message["chain_id"], window["start"], window["end"]] = window
        return windows, last


async def rows_of(process: Process) -> int:
    """How many scores a process keeps."""
    found = re.search(r"^tarsy_scoring_insights_rows (\S+)$", (await process.get("/metrics"))[1], re.MULTILINE)
    return int(float(found[1])) if found else 0


async def sql_rows(service: Service) -> dict[tuple[str, str], EndedScore]:
    return {
        (r["chain"], r["score_id"]): EndedScore(
            r["at_us"],
            r["total_score"],
            r["error_kind"],
            tuple(json.loads(r["failure_tags"])) if r["error_kind"] is None else (),
            r["cost"] if r["error_kind"] is None else None,
        )
        for r in await service.rows(ROWS)
    }


async def sql_windows(service: Service, wanted: list[tuple[str | None, str, str]]) -> dict[Any, Any]:
    chains, starts, ends = zip(*wanted, strict=True)
    times = [[datetime.fromisoformat(t) for t in column] for column in (starts, ends)]
    figures: dict[Any, Any] = {}
    for row in await service.rows(FIGURES, list(range(len(wanted))), list(chains), *times):
        start, end = wanted[row["number"]][1:]
        figures[wanted[row["number"]]] = {
            "start": start,
            "end": end,
            "scores": row["scores"],
            "scored": row["scored"],
            "mean": row["mean"],
            "under_threshold": row["under_threshold"],
            "threshold": 50,
            "share_under_threshold": row["share"],
            "failures": json.loads(row["failures"]),
            "failure_tags": json.loads(row["failure_tags"]),
            "cost_usd": row["cost_usd"],
        }
    return figures


@pytest.fixture
async def relayed(service: Service, kafka: Kafka) -> Service:
    """An installation whose events are relayed. Faust needs more of a broker than Tansu has."""
    if kafka.name == "tansu":
        pytest.skip("Tansu has not what Faust's assignments need: needs Apache Kafka")
    service.worker("--only", "relay")
    return service


@pytest.mark.slow
async def test_figures_are_what_sql_says_whatever_happens(relayed: Service, own_kafka: Kafka) -> None:
    """Two kills, an instance that joins and leaves, a broker that dies: each window last published is right."""
    scorers, insights = Scorers(relayed, random.Random(20261121)), Insights(relayed)
    first = await insights.ready(insights.start())
    async with asyncio.TaskGroup() as together:
        together.create_task(scorers.work(500))
        first = await insights.keeps(first, 50)
        await first.kill()
    second = await insights.keeps(insights.start(), 300)
    third = insights.start()
    async with asyncio.TaskGroup() as together:
        together.create_task(scorers.work(1_000))
        third = await insights.ready(third)
        await insights.stop(third)
    second = await insights.keeps(second, 800)
    async with asyncio.TaskGroup() as together:
        together.create_task(scorers.work(SCORES))
        if own_kafka.survives_restart:
            await own_kafka.kill()
            await own_kafka.start()
    second = await insights.keeps(second, 1_100)
    await second.kill()
    last = await insights.ready(insights.start())

    expected = await sql_rows(relayed)
    with contextlib.suppress(AssertionError):
        last = await insights.keeps(last, len(expected))
    assert await insights.rows() == expected, await insights.whereabouts(expected)

    async def right(_: Process) -> bool:
        windows, newest = await insights.windows()
        return set(newest) == set(CHAINS) and windows == await sql_windows(relayed, list(windows))

    last = await insights.until(last, right, "the figures are what SQL says")
    await insights.stop(last)
    assert not [p.name for p in relayed.processes if "Traceback" in p.log]
    await assert_all_right(relayed, insights, expected)


async def assert_all_right(service: Service, insights: Insights, rows: dict[tuple[str, str], EndedScore]) -> None:
    """Every window as it was last published is what SQL says, and the last message of a chain has its newest ones."""
    windows, newest = await insights.windows()
    assert len(windows) > 300
    assert windows == await sql_windows(service, list(windows))
    by_chain: dict[Any, int] = defaultdict(int)
    for (chain, _), row in rows.items():
        by_chain[chain or None] = max(by_chain[chain or None], row.at_us // 1_000_000)
    assert set(newest) == set(CHAINS)
    for chain, message in newest.items():
        for name, hop_s in (("1h", 300), ("24h", 3600)):
            end = datetime.fromtimestamp((by_chain[chain] // hop_s + 1) * hop_s, UTC)
            assert message["windows"][name]["end"] == end.strftime("%Y-%m-%dT%H:%M:%SZ"), chain

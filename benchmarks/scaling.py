"""
A fleet of workers on one machine: claims, locks, the relay and the size of tables at a rate of sessions per minute.

PostgreSQL and the broker are real, and so is everything that the workers do with them. The judge only waits, and
sessions have no text (`benchmarks.scaling_workers`). Sessions are announced at an even rate, whether or not the fleet
keeps up. A retention of one minute runs beside it, so that tables must stop growing.

    python -m benchmarks.scaling [--workers 100] [--rate 10000] [--seconds 600] [--json FILE]
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import structlog
import uvloop

from benchmarks.meter import Meter, Window
from benchmarks.programs import ProgramFailed, program, require_running
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import StartRefused
from tarsy_scoring.kafka.connect import Headers
from tarsy_scoring.kafka.consumer import Record
from tarsy_scoring.kafka.publisher import Publisher
from tarsy_scoring.kafka.security import connection_options
from tarsy_scoring.kafka.topics import Tail
from tarsy_scoring.postgres import migrate
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.queue.backlog import unpublished_events
from tarsy_scoring.retention.pruning import Keep, Pruner
from tarsy_scoring_lab.postgres import EmbeddedPostgres
from tarsy_scoring_lab.stack import Stack

CONNECTIONS = 4  # of one worker, besides the one that listens
TICK_S = 0.1
WATCH_S = 0.5
WARM_UP_LIMIT_S = 300.0
WARM_UP_SCORES, WARM_UP_S = 8, 20.0  # scores of each worker, all announced within this time
STALL_S = 60.0
DRAIN_LIMIT_S = 600.0
STOP_S = 120.0
SUSTAINED = 0.97  # of the asked rate, in the last two thirds of the run
TABLES = ("sessions", "session_scores", "scoring_requests", "judge_turns", "scoring_events", "score_deltas")

_SCORE = re.compile(rb'"score_id":"([^"]+)"')
_POSITION = re.compile(rb'"position":(\d+)')
_COMPLETED = b'"type":"scoring.completed"'

SIZES = """
SELECT relname AS name, pg_table_size(oid) AS heap, pg_indexes_size(oid) AS indexes FROM pg_class
WHERE relname = ANY($1::text[]) AND relkind = 'r' AND relnamespace = 'public'::regnamespace
"""
LOOK = """
SELECT pg_database_size(current_database()) AS database_bytes, pg_current_wal_lsn() - '0/0' AS wal,
  d.deadlocks, d.xact_commit + d.xact_rollback AS transactions, (SELECT position FROM relay_position) AS position,
  (SELECT count(*) FROM session_scores WHERE status = 'pending') AS pending,
  (SELECT count(*) FROM session_scores WHERE status = 'in_progress') AS in_progress,
  (SELECT count(*) FROM score_deltas) AS deltas
FROM pg_stat_database d WHERE datname = current_database()
"""
WAITS = """
SELECT coalesce(wait_event_type || ': ' || wait_event, 'CPU') AS why, count(*) AS backends FROM pg_stat_activity
WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid() GROUP BY 1
"""
LOCKS = """
SELECT count(*) AS waiting, coalesce(max(extract(epoch FROM clock_timestamp() - waitstart)), 0)::float8 AS longest_s
FROM pg_locks WHERE NOT granted
"""


@dataclass(frozen=True, slots=True)
class Asked:
    """
    The size of a run.

    Args:
        rate: Sessions per minute.
        intakes, relays: How many of the workers also take in requests, and how many also relay.
        judge_s: Seconds of each of the two turns of a score.
        keep_s: Seconds for which everything is kept.
    """

    workers: int
    rate: float
    seconds: float
    intakes: int
    relays: int
    judge_s: float
    keep_s: int


class SecondsForDays(Database):
    """A database in which a day of retention lasts one second."""

    def sql(self, statement: str) -> str:
        """See `Database.sql`."""
        return super().sql(statement).replace("make_interval(days => $1::int)", "make_interval(secs => $1::int)")


@dataclass
class Ledger:
    """
    What was announced, and what the topic of scoring events says about it.

    Args:
        sent: Announced sessions with the time of the monotonic clock.
        completed: By session, the score that completed first.
        times: When each completion arrived, and how long after its announcement.
        twice: Sessions with a second completed score.
        positions: Marks the positions of events that arrived.
        repeated: Events that arrived more than once.
    """

    sent: dict[str, float] = field(default_factory=dict)
    completed: dict[str, bytes] = field(default_factory=dict)
    times: list[tuple[float, float]] = field(default_factory=list)
    twice: set[str] = field(default_factory=set)
    positions: bytearray = field(default_factory=bytearray)
    repeated: int = 0

    def take(self, records: Sequence[Record]) -> None:
        """Note records of the topic of scoring events."""
        now = time.monotonic()
        for record in records:
            value = record.value or b""
            if (found := _POSITION.search(value)) is not None:
                self._mark(int(found[1]))
            if _COMPLETED not in value:
                continue
            session_id, score = (record.key or b"").decode(), _SCORE.search(value)
            assert score is not None
            first = self.completed.setdefault(session_id, score[1])
            if first != score[1]:
                self.twice.add(session_id)
            elif session_id in self.sent:
                self.times.append((now, now - self.sent[session_id]))

    def _mark(self, position: int) -> None:
        if position >= len(self.positions):
            self.positions.extend(bytes(position + 100_000 - len(self.positions)))
        self.repeated += self.positions[position]
        self.positions[position] = 1

    @property
    def missing(self) -> int:
        """Announced sessions without a completed score."""
        return len(self.sent.keys() - self.completed.keys())

    @property
    def missing_events(self) -> int:
        """Positions below the last one whose event has not arrived."""
        last = self.positions.rfind(1)
        return max(0, last) - self.positions.count(1)


@dataclass
class Watch:
    """What the sessions of PostgreSQL waited for, at each of many looks."""

    looks: int = 0
    waits: Counter[str] = field(default_factory=Counter)
    looks_with_locks: int = 0
    most_waiting: int = 0
    longest_s: float = 0.0

    async def run(self, connection: asyncpg.Connection) -> None:
        """Look until cancelled."""
        while True:
            for row in await connection.fetch(WAITS):
                self.waits[row["why"]] += row["backends"]
            locks = await connection.fetchrow(LOCKS)
            assert locks is not None
            self.looks += 1
            self.looks_with_locks += locks["waiting"] > 0
            self.most_waiting = max(self.most_waiting, locks["waiting"])
            self.longest_s = max(self.longest_s, locks["longest_s"])
            await asyncio.sleep(WATCH_S)


class Fleet:
    """One run on servers that have started."""

    def __init__(self, asked: Asked, settings: Settings, stack: Stack, started: contextlib.AsyncExitStack) -> None:
        self._asked = asked
        self._settings = settings
        self._stack = stack
        self._started = started
        self._ledger = Ledger()
        self._watch = Watch()
        self._samples: list[dict[str, Any]] = []
        self._pruned = 0
        self._require_running: Callable[[], None] = lambda: None  # raises when a worker has ended
        self._connection: asyncpg.Connection
        self._database: Database
        self._publisher: Publisher
        self._meter: Meter

    async def measure(self, env: dict[str, str], folder: Path) -> dict[str, Any]:
        """
        Warm up, announce sessions for the asked time, wait for the last score, and stop the workers.

        Raises:
            ProgramFailed: A worker ended early.
            TimeoutError: The workers did not finish the warm-up.
        """
        asked, start = self._asked, self._started.enter_async_context
        self._connection = await self._connect()
        self._database = await self._open_database()
        self._publisher = Publisher(self._settings)
        self._started.push_async_callback(self._publisher.stop)
        await self._follow_events()
        log_file = folder / "workers.log"
        words = [str(folder), *map(str, (asked.workers, asked.intakes, asked.relays, asked.judge_s))]
        fleet = await start(program("-m", "benchmarks.scaling_workers", *words, env=env, log_file=log_file))
        self._require_running = lambda: require_running(fleet, log_file)
        await self._warm_up()
        pids = {"measured": fleet.pid, "driver": os.getpid()}
        self._meter = Meter(pids | {"postgresql": self._stack.postgres.pid, "broker": self._stack.kafka.pid})
        beside = [asyncio.create_task(self._prune()), asyncio.create_task(self._watch.run(await self._connect()))]
        began, since = time.monotonic(), time.time()
        await self._sample(began)
        announcing = asyncio.create_task(self._announce("session", asked.rate / 60, asked.seconds))
        for task in (announcing, *beside):
            self._started.callback(task.cancel)  # before the workers end, if the run is broken off
        every_s = min(10.0, asked.seconds / 6)
        while not announcing.done():
            await asyncio.wait([announcing], timeout=every_s)
            await self._sample(began)
            print(self._progress(), file=sys.stderr, flush=True)
        await announcing
        announced = time.monotonic()
        memory = _memory(fleet.pid)
        await self._wait_for_the_last(began)
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        fleet.terminate()
        with contextlib.suppress(TimeoutError):  # the figures of the others count even so
            async with asyncio.timeout(STOP_S):
                await fleet.wait()
        return self._result(began, announced, since, _figures(folder)) | {"memory": memory}

    async def _connect(self) -> asyncpg.Connection:
        connection = await asyncpg.connect(self._settings.require_database())
        self._started.push_async_callback(connection.close)
        return connection

    async def _open_database(self) -> Database:
        database = SecondsForDays(self._settings.require_database(), self._settings.database_schema, pool_size=4)
        await database.open()
        self._started.push_async_callback(database.close)
        return database

    async def _follow_events(self) -> None:
        stopping = asyncio.Event()
        tail = Tail(connection_options(self._settings), self._settings.topic_scoring_events)
        following = asyncio.create_task(tail.follow(self._ledger.take, stopping, gather_s=0.05))

        async def stop() -> None:
            stopping.set()
            await following

        self._started.push_async_callback(stop)

    async def _warm_up(self) -> None:
        """Score some sessions with each worker, evenly: a new connection plans each statement five times."""
        scores = WARM_UP_SCORES * self._asked.workers
        async with asyncio.timeout(WARM_UP_LIMIT_S):
            await self._announce("warm", scores / WARM_UP_S, WARM_UP_S)
            while self._ledger.missing:
                self._require_running()
                await asyncio.sleep(0.2)
        self._ledger.sent.clear()
        self._ledger.times.clear()

    async def _announce(self, prefix: str, per_s: float, seconds: float) -> None:
        """Announce sessions at a rate; after a delay it catches up."""
        began, sent = time.monotonic(), 0
        while (passed := time.monotonic() - began) < seconds:
            due = int(passed * per_s)
            await self._send([f"{prefix}-{n}" for n in range(sent, due)])
            sent = due
            self._require_running()
            await asyncio.sleep(TICK_S)

    async def _send(self, names: Sequence[str]) -> None:
        now, messages = time.monotonic(), list[tuple[bytes, bytes, Headers]]()
        for name in names:
            self._ledger.sent[name] = now
            event = {"session_id": name, "chain_id": "kubernetes", "alert_type": "PodCrashLoop"}
            messages.append((name.encode(), json.dumps(event).encode(), ()))
        if messages and not all(await self._publisher.publish(self._settings.topic_session_completed, messages, 60.0)):
            raise ProgramFailed("the broker did not take the requests")

    async def _prune(self) -> None:
        keep = Keep(*[self._asked.keep_s] * 3, records_days=2 * self._asked.keep_s, answers_days=self._asked.keep_s)
        pruner = Pruner(self._database, keep)
        while True:
            self._pruned += sum((await pruner.run()).values())
            await asyncio.sleep(1.0)

    async def _sample(self, began: float) -> None:
        row, sizes = await self._connection.fetchrow(LOOK), await self._connection.fetch(SIZES, TABLES)
        assert row is not None
        waiting = await unpublished_events(self._database)
        self._meter.sample()
        self._samples.append(
            {name: int(value) for name, value in row.items()}
            | {
                "s": round(time.monotonic() - began, 1),
                "sent": len(self._ledger.sent),
                "completed": len(self._ledger.times),
                "outbox": waiting.events,
                "outbox_oldest_s": round(waiting.oldest_s, 2),
                "tables": {r["name"]: {"heap": r["heap"], "indexes": r["indexes"]} for r in sizes},
            }
        )

    def _progress(self) -> str:
        now, before = self._samples[-1], self._samples[-2]
        rate = (now["completed"] - before["completed"]) / max(now["s"] - before["s"], 0.1)
        return (
            f"{now['s']:6.0f} s  {rate:6.1f} scores/s  sent {now['sent']}  completed {now['completed']}  "
            f"pending {now['pending']}  running {now['in_progress']}  outbox {now['outbox']}  "
            f"{now['database_bytes'] / 2**20:.0f} MB"
        )

    async def _wait_for_the_last(self, began: float) -> None:
        """Wait until every announced session has a score, or no score completes for `STALL_S`; within a limit."""
        seen, since = -1, time.monotonic()
        moved_at = since
        while self._ledger.missing and (now := time.monotonic()) - since < DRAIN_LIMIT_S:
            if now - moved_at > STALL_S + 2 * self._asked.judge_s:
                break
            if len(self._ledger.times) != seen:
                seen, moved_at = len(self._ledger.times), time.monotonic()
            self._require_running()
            await asyncio.sleep(0.5)
        await self._sample(began)

    def _result(
        self, began: float, announced: float, since: float, figures: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        asked, ledger, first = self._asked, self._ledger, self._samples[0]
        last = [s for s in self._samples if s["s"] <= announced - began + 1][-1]
        steady_since = began + (announced - began) / 3
        steady = sum(steady_since <= at < announced for at, _ in ledger.times) / (announced - steady_since)
        # With the last scores: work on scores that are not completed yet would count for the others.
        end, until, scores = self._samples[-1], self._meter.times[-1], self._samples[-1]["completed"]
        claims = [took for f in figures for at, took in f["claim_latencies_s"] if at >= since]
        cpu = {n.replace("measured", "workers"): self._meter.used_s(n, since, until) for n in self._meter.pids}
        passed = announced - began
        window = Window(since + passed / 3, since + passed, round(steady * passed * 2 / 3))
        return {
            "asked": asdict(asked),
            "scores_per_s": round(steady, 1),
            "is_sustained": steady >= SUSTAINED * asked.rate / 60,
            "announced": len(ledger.sent),
            "completed": len(ledger.completed.keys() & ledger.sent.keys()),
            "most_in_the_outbox": max(s["outbox"] for s in self._samples),
            "duplicates": len(ledger.twice),
            "missing_scores": ledger.missing,
            "missing_events": ledger.missing_events,
            "events_delivered_twice": ledger.repeated,
            "events_per_s": round((last["position"] - first["position"]) / last["s"]),
            "claim_latency_s": shares(claims),
            "beyond_the_judge_s": shares([took - 2 * asked.judge_s for _, took in ledger.times]),
            "transactions_per_score": round((end["transactions"] - first["transactions"]) / scores, 1),
            "wal_bytes_per_score": round((end["wal"] - first["wal"]) / scores),
            "cpu_ms_per_score": {name: round(1000 * used / scores, 2) for name, used in cpu.items()},
            "steady_cpu_ms_per_score": {
                name.replace("measured", "workers"): round(
                    1000 * self._meter.used_s(name, window.since, window.until) / max(1, window.scores), 2
                )
                for name in self._meter.pids
            },
            "cores": {name: round(used / (until - since), 2) for name, used in cpu.items()},
            "bystanders_share": round(self._meter.bystanders_share(since, until), 3),
            "locks": {
                "deadlocks": end["deadlocks"] - first["deadlocks"],
                "looks": self._watch.looks,
                "looks_with_a_waiter": self._watch.looks_with_locks,
                "most_waiting": self._watch.most_waiting,
                "longest_s": round(self._watch.longest_s, 3),
            },
            "active_backends": {
                why: round(n / self._watch.looks, 2) for why, n in self._watch.waits.most_common(8) if self._watch.looks
            },
            "rows_pruned": self._pruned,
            "samples": self._samples,
        }


def shares(values: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and greatest of some values; empty for less than two."""
    if len(values) < 2:
        return {}
    cuts = statistics.quantiles(values, n=100)
    return {"p50": round(cuts[49], 3), "p99": round(cuts[98], 3), "max": round(max(values), 3)}


def _figures(folder: Path) -> list[dict[str, Any]]:
    """What each worker left in the folder at its end."""
    return [json.loads(file.read_text()) for file in folder.glob("worker-*.json")]


def _memory(pid: int) -> dict[str, float]:
    """Proportional share of memory of the workers in MB: of all, and of the middle one."""
    found = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.Error):
            found.append(child.memory_full_info().pss / 2**20)
    return {"workers_mb": round(sum(found)), "worker_mb": round(statistics.median(found), 1)} if found else {}


def table(seen: dict[str, Any]) -> str:
    """The figures of a run as text."""
    lines = [
        f"{name:<26} {value}"
        for name, value in seen.items()
        if name not in ("samples", "asked") and not isinstance(value, dict)
    ]
    for name, value in seen.items():
        if isinstance(value, dict) and name != "asked":
            lines.append(f"{name:<26} " + "  ".join(f"{k} {v}" for k, v in value.items()))
    names = [*TABLES]
    lines += ["", f"{'s':>6} {'done':>7} {'pending':>8} {'running':>8} {'outbox':>7} {'deltas':>7}  MB with indexes:"]
    lines[-1] += "".join(f" {n[-16:]:>16}" for n in names)
    for s in seen["samples"]:
        row = f"{s['s']:6.0f} {s['completed']:7} {s['pending']:8} {s['in_progress']:8} {s['outbox']:7} {s['deltas']:7}"
        sizes = [(s["tables"][n]["heap"] + s["tables"][n]["indexes"]) / 2**20 for n in names]
        lines.append(f"{row:<66}" + "".join(f" {mb:16.1f}" for mb in sizes))
    return "\n".join(lines)


async def measure(asked: Asked) -> dict[str, Any]:
    """Start the servers, run the fleet, and remove everything that was created, also after SIGTERM."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with contextlib.AsyncExitStack() as started:
        folder = Path(started.enter_context(tempfile.TemporaryDirectory(prefix="tarsy-scoring-scaling-")))
        (folder / "sessions").mkdir()
        stack = Stack()
        stack.postgres = EmbeddedPostgres(max_connections=50 + (CONNECTIONS + 2) * asked.workers)
        await started.enter_async_context(stack)
        env = stack.env | {
            "SCORING_DATABASE_CONNECTIONS": str(CONNECTIONS),
            "SCORING_TIMELINE_SOURCE": "files",
            "SCORING_TIMELINE_DIR": str(folder / "sessions"),
            "SCORING_METRICS_PORT": "0",
            "SCORING_LOG_LEVEL": "warning",
            "SCORING_LOG_FORMAT": "json",
            "SCORING_SLOTS": "64",
        }
        await asyncio.to_thread(migrate.migrate, env["SCORING_DATABASE_URL"])
        fleet = Fleet(asked, load_settings(env), stack, started)
        return {"broker": stack.broker} | await fleet.measure(env, folder)


def main() -> int:
    """Run the measurement; exit status 1: the rate was not sustained, or a score is missing or was made twice."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--rate", type=float, default=10_000, help="sessions per minute")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--intakes", type=int, default=6, help="workers that also take in requests")
    parser.add_argument("--relays", type=int, default=2, help="workers that also relay")
    parser.add_argument("--judge-seconds", type=float, default=3.0, help="of each of the two turns")
    parser.add_argument("--keep-seconds", type=int, default=60, help="retention of everything")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    given = parser.parse_args()
    asked = Asked(
        given.workers,
        given.rate,
        given.seconds,
        given.intakes,
        given.relays,
        given.judge_seconds,
        given.keep_seconds,
    )
    try:
        seen = uvloop.run(measure(asked))
    except (ProgramFailed, StartRefused, TimeoutError) as error:
        sys.stderr.write(f"benchmarks: {str(error) or 'the workers did not finish the warm-up'}\n")
        return 1
    except asyncio.CancelledError:
        return 130
    print(table(seen))
    if given.json:
        given.json.write_text(json.dumps(seen, indent=2) + "\n", encoding="utf-8")
    is_exact = not (seen["duplicates"] or seen["missing_scores"] or seen["missing_events"])
    return 0 if seen["is_sustained"] and is_exact else 1


if __name__ == "__main__":
    sys.exit(main())

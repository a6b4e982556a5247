"""
The relay at its limit: events are stored as fast as it publishes them, on a real PostgreSQL and a real broker.

With `--snapshot` another connection keeps a REPEATABLE READ transaction open from the beginning, as `pg_dump`
does. Everything runs on this machine, also the broker. Memory tables would hide what a snapshot costs, so the
rate is printed for each part of the run.

    python -m benchmarks.relay [--seconds 60] [--snapshot] [--parts 6]
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import time
from typing import Any

import asyncpg
import structlog
import uvloop

from benchmarks.live_load import COMPLETED, FILL, servers
from benchmarks.meter import metered
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.outbox import outbox
from tarsy_scoring.outbox.relay import Relay
from tarsy_scoring.postgres import migrate
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring_lab.stack import Stack

BATCH = 500  # events per transaction: five of each of 100 scores
AHEAD = 4000  # events that wait for the relay at most
TARGET_RATE = 6000.0

FIGURES = """
SELECT p.position, pg_current_wal_lsn() - '0/0' AS wal, t.n_tup_ins AS inserts, t.n_tup_upd AS updates,
       t.n_tup_hot_upd AS hot_updates, pg_total_relation_size('scoring_events') AS bytes
FROM relay_position p, pg_stat_user_tables t WHERE t.relname = 'scoring_events'
"""


class Emitter:
    """Stores events whenever fewer than `AHEAD` wait."""

    def __init__(self, database: Database, score_ids: list[Any]) -> None:
        self._database = database
        self._events = [outbox.NewEvent(i, "scoring.completed", COMPLETED) for i in score_ids for _ in range(5)][:BATCH]
        self.emitted = 0

    async def run(self, relay: "CountingRelay") -> None:
        """Emit until cancelled."""
        while True:
            if self.emitted - relay.published >= AHEAD:
                await asyncio.sleep(0.005)
                continue
            await self._database.once(lambda c: outbox.emit(self._database, c, self._events))
            self.emitted += BATCH


class CountingRelay(Relay):
    """A relay that counts what it published."""

    published = 0

    async def run_once(self) -> int:
        number = await super().run_once()
        self.published += number
        return number


async def measure(seconds: int, parts: int, *, has_snapshot: bool) -> dict[str, Any]:
    """Run the relay for so many seconds, and return what it did in each part and what it cost."""
    async with contextlib.AsyncExitStack() as started:
        stack = await started.enter_async_context(Stack())
        env = stack.env | {"SCORING_LOG_LEVEL": "error"}
        await asyncio.to_thread(migrate.migrate, env["SCORING_DATABASE_URL"])
        settings = load_settings(env)
        database = Database(settings.require_database(), settings.database_schema, pool_size=4)
        await database.open()
        started.push_async_callback(database.close)
        await database.once(lambda c: c.execute(FILL))
        score_ids = [r["score_id"] for r in await database.fetch("SELECT score_id FROM session_scores")]
        relay, stopping = CountingRelay(settings, database, Metrics()), asyncio.Event()
        emitter = Emitter(database, score_ids)
        other = await asyncpg.connect(env["SCORING_DATABASE_URL"])
        started.push_async_callback(other.close)
        dump = await asyncpg.connect(env["SCORING_DATABASE_URL"])
        started.push_async_callback(dump.close)
        relaying, emitting = asyncio.create_task(relay.run(stopping)), asyncio.create_task(emitter.run(relay))
        await asyncio.sleep(5)  # caches, plans and connections
        if has_snapshot:
            await dump.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM scoring_events")
        pids = {"measured": os.getpid()} | servers()
        rates, times = [], list[float]()
        async with metered(pids) as meter:
            first, since = await other.fetchrow(FIGURES), time.time()
            assert first is not None
            for _ in range(parts):
                before, part_since = relay.published, time.time()
                await asyncio.sleep(seconds / parts)
                times.append(time.time())
                rates.append(round((relay.published - before) / (times[-1] - part_since)))
            until = times[-1]
            await asyncio.sleep(1.5)  # statistics of tables are a second late
            last = await other.fetchrow(FIGURES)
        assert last is not None
        emitting.cancel()
        stopping.set()
        await asyncio.gather(emitting, return_exceptions=True)
        await relaying
        events = last["position"] - first["position"]
        change = {name: float(last[name] - first[name]) / events for name in dict(first) if name != "position"}
        starts = [since, *times[:-1]]
        [postgres] = [name for name in meter.pids if name.startswith("postgres")]
        return {
            "broker": stack.broker,
            "events": events,
            "events_per_s": round(sum(rates) / len(rates)),
            "events_per_s_by_part": rates,
            "postgres_us_per_event_by_part": [
                round(meter.used_s(postgres, a, b) / (rate * (b - a)) * 1e6)
                for a, b, rate in zip(starts, times, rates, strict=True)
            ],
            "per_event": {name: round(value, 2) for name, value in change.items()},
            "cpu_us_per_event": {
                name.rpartition("-")[0] or name: round(
                    meter.used_s(name, since, until) / (sum(rates) / len(rates) * (until - since)) * 1e6
                )
                for name in meter.pids
            },
            "others_share": round(meter.bystanders_share(since, until), 3),
        }


def main() -> int:
    """Run the measurement; exit status 1: slower than `TARGET_RATE`."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.relay", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--parts", type=int, default=6, help="the rate is printed for each part of the run")
    parser.add_argument("--snapshot", action="store_true", help="keep a snapshot open meanwhile")
    asked = parser.parse_args()
    seen = uvloop.run(measure(asked.seconds, asked.parts, has_snapshot=asked.snapshot))
    print(json.dumps(seen, indent=2))
    return 0 if seen["events_per_s"] >= TARGET_RATE else 1


if __name__ == "__main__":
    raise SystemExit(main())

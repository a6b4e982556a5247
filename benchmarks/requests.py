"""
Latency of requests for scores while a worker is busy: `python -m benchmarks.requests`.

A worker scores sessions from files, with a judge that takes 200 ms per turn, and has more of them than it can
score meanwhile. PostgreSQL, broker, judge, worker and API are processes on this machine. Requests are sent
on a fixed beat over a few connections. Each latency is measured from the beat on, so it includes waiting for
a connection.
"""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import asdict
from pathlib import Path

import aiohttp
import asyncpg
import structlog
from pydantic_core import to_json

from benchmarks.api import Latencies, load
from benchmarks.programs import START_S, ProgramFailed, first_line, judge, program, require_running
from benchmarks.scenarios import Bench, Scenario
from benchmarks.sessions import session_name, write_sessions
from tarsy_scoring.errors import StartRefused
from tarsy_scoring.postgres import migrate
from tarsy_scoring_lab.stack import Stack

PER_S, CONNECTIONS, FOR_S, WARM_UP_S = 50, 8, 20.0, 3.0
LATENCY_S, SLOTS = 0.2, 50
BUSY_PER_S = 200  # more sessions than a worker can score in a second
TARGETS_MS = 15.0, 60.0  # p50 and p99
WAITING = "SELECT count(*) FROM session_scores WHERE status = 'pending'"
COMPLETED = "SELECT count(*) FROM session_scores WHERE status = 'completed'"


async def request_scores(address: str, first: int, per_s: int, for_s: float, connections: int) -> Latencies:
    """Request scores of the sessions from number `first` on, each one once."""

    def send(client: aiohttp.ClientSession, n: int) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return client.post(f"{address}/api/v1/scoring/sessions/{session_name(first + n)}/score")

    return await load(send, per_s, for_s, connections)


async def measure(per_s: int, for_s: float, connections: int) -> tuple[Latencies, float]:
    """
    Start everything, and measure once the worker is at work.

    Returns:
        Latencies, and the scores per second that the worker completed meanwhile.

    Raises:
        ProgramFailed, StartRefused, TimeoutError: A program did not start, or the worker became idle.
    """
    busy = int(BUSY_PER_S * (for_s + WARM_UP_S))
    warm_up = int(per_s * WARM_UP_S)
    async with AsyncExitStack() as started:
        folder = Path(started.enter_context(tempfile.TemporaryDirectory(prefix="tarsy-scoring-bench-")))
        sessions = folder / "sessions"
        sessions.mkdir()
        await asyncio.to_thread(write_sessions, sessions, busy + warm_up + int(per_s * for_s))
        stack = await started.enter_async_context(Stack())
        await asyncio.to_thread(migrate.migrate, stack.env["SCORING_DATABASE_URL"])
        bench = Bench(stack, folder, sessions)
        asked = await started.enter_async_context(judge(LATENCY_S, folder))
        scenario = Scenario("requests", "service", LATENCY_S, SLOTS, busy)
        env = await bench.environment(scenario, asked) | {"SCORING_API_PORT": "0", "SCORING_LOG_LEVEL": "warning"}
        env["SCORING_API_RATE_PER_MINUTE"] = "100000"
        await bench.announce(env, busy)
        connection = await asyncpg.connect(env["SCORING_DATABASE_URL"], timeout=10)
        started.push_async_callback(connection.close)
        worker_log, api_log = folder / "worker.log", folder / "api.log"
        worker = await started.enter_async_context(
            program("-m", "tarsy_scoring", "worker", env=env, log_file=worker_log)
        )
        async with asyncio.timeout(START_S):
            while not await connection.fetchval(COMPLETED):
                require_running(worker, worker_log)
                await asyncio.sleep(0.2)
        api = await started.enter_async_context(program("-m", "tarsy_scoring", "api", env=env, log_file=api_log))
        line = await first_line(api, api_log)
        address = line.split()[-1]
        await request_scores(address, busy, per_s, WARM_UP_S, connections)
        before, began = await connection.fetchval(COMPLETED), time.monotonic()
        found = await request_scores(address, busy + warm_up, per_s, for_s, connections)
        rate = (await connection.fetchval(COMPLETED) - before) / (time.monotonic() - began)
        if not await connection.fetchval(WAITING):
            raise ProgramFailed("the worker became idle: there were too few sessions")
        return found, rate


def main() -> int:
    """Exit status 0: no request failed, and p50 and p99 are within the targets; 1: not so, or no start."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.requests", description=__doc__)
    parser.add_argument("--per-second", type=int, default=PER_S)
    parser.add_argument("--seconds", type=float, default=FOR_S)
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    try:
        found, rate = asyncio.run(measure(asked.per_second, asked.seconds, asked.connections))
    except (ProgramFailed, StartRefused, TimeoutError) as error:
        sys.stderr.write(f"benchmarks: {str(error) or 'a program did not start in time'}\n")
        return 1
    if asked.json:
        sys.stdout.write(to_json(asdict(found) | {"scores_per_s": round(rate, 1)}).decode() + "\n")
    else:
        sys.stdout.write(
            f"POST score, {asked.per_second} a second, {asked.connections} connections, beside {rate:.0f} scores/s: "
            f"p50 {found.p50_ms:.1f} ms (target {TARGETS_MS[0]:.0f}), p99 {found.p99_ms:.1f} ms "
            f"(target {TARGETS_MS[1]:.0f}), most {found.max_ms:.1f} ms; {found.requests} requests, "
            f"failed: {found.failed or 'none'}\n"
        )
    return 0 if not found.failed and found.p50_ms <= TARGETS_MS[0] and found.p99_ms <= TARGETS_MS[1] else 1


if __name__ == "__main__":
    sys.exit(main())

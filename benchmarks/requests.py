"""
Latency of requests for scores while a worker is busy: `python -m benchmarks.requests`.

A worker scores sessions from files, with a judge that takes 200 ms per turn, and has more of them than it can
score meanwhile. PostgreSQL, broker, judge, worker, API and a bare one (`benchmarks.bare_api`, which stores a row) are
processes on this machine. Requests are sent on a fixed beat over a few connections, to the two APIs in turns. Each
latency is measured from the beat on, so it includes waiting for a connection.
"""

import argparse
import asyncio
import itertools
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import asdict
from pathlib import Path

import aiohttp
import asyncpg
import structlog
from pydantic_core import to_json

from benchmarks.bare_api import CREATE
from benchmarks.http_load import PAIRS, WARM_UP_S, Latencies, Served, described, in_turns, load, servers
from benchmarks.programs import START_S, ProgramFailed, judge, program, require_running
from benchmarks.scenarios import Bench, Scenario
from benchmarks.sessions import session_name, write_sessions
from tarsy_scoring.errors import StartRefused
from tarsy_scoring.postgres import migrate
from tarsy_scoring.telemetry.health import calm_garbage_collector
from tarsy_scoring_lab.stack import Stack

PER_S, CONNECTIONS, FOR_S = 50, 8, 20.0
LATENCY_S, SLOTS = 0.2, 50
BUSY_PER_S = 150  # more sessions than a worker can score in a second
TARGETS_MS = 15.0, 60.0  # p50 and p99
WAITING = "SELECT count(*) FROM session_scores WHERE status = 'pending'"
COMPLETED = "SELECT count(*) FROM session_scores WHERE status = 'completed'"


async def request_scores(address: str, numbers: Iterator[int], per_s: int, for_s: float, connections: int) -> Latencies:
    """Request scores of the sessions with the next numbers."""

    def send(client: aiohttp.ClientSession, _: int) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return client.post(f"{address}/api/v1/scoring/sessions/{session_name(next(numbers))}/score")

    return await load(send, per_s, for_s, connections)


async def measure(per_s: int, for_s: float, connections: int) -> tuple[dict[str, Served], float]:
    """
    Start everything, and measure the service and the bare API in turns once the worker is at work.

    Returns:
        What was measured, and the scores per second that the worker completed meanwhile.

    Raises:
        ProgramFailed, StartRefused, TimeoutError: A program did not start, or the worker became idle.
    """
    busy = int(BUSY_PER_S * 2 * (for_s + WARM_UP_S))
    asked = int(per_s * (for_s + WARM_UP_S)) + PAIRS
    async with AsyncExitStack() as started:
        folder = Path(started.enter_context(tempfile.TemporaryDirectory(prefix="tarsy-scoring-bench-")))
        sessions = folder / "sessions"
        sessions.mkdir()
        await asyncio.to_thread(write_sessions, sessions, busy + asked)
        stack = await started.enter_async_context(Stack())
        await asyncio.to_thread(migrate.migrate, stack.env["SCORING_DATABASE_URL"])
        bench = Bench(stack, folder, sessions)
        asker = await started.enter_async_context(judge(LATENCY_S, folder))
        scenario = Scenario("requests", "service", LATENCY_S, SLOTS, busy)
        env = await bench.environment(scenario, asker) | {"SCORING_LOG_LEVEL": "warning"}
        env["SCORING_API_RATE_PER_MINUTE"] = "100000"
        await bench.announce(env, busy)
        connection = await asyncpg.connect(env["SCORING_DATABASE_URL"], timeout=10)
        started.push_async_callback(connection.close)
        await connection.execute(CREATE)
        worker_log = folder / "worker.log"
        worker = await started.enter_async_context(
            program("-m", "tarsy_scoring", "worker", env=env, log_file=worker_log)
        )
        async with asyncio.timeout(START_S):
            while not await connection.fetchval(COMPLETED):
                require_running(worker, worker_log)
                await asyncio.sleep(0.2)
        apis = await started.enter_async_context(servers(env, folder))
        numbers = {address: itertools.count(busy) for address, _ in apis.values()}  # each session once for each API
        pids = {"database": stack.postgres.pid, "broker": stack.kafka.pid, "worker": worker.pid, "judge": asker.pid}
        before, began = await connection.fetchval(COMPLETED), time.monotonic()
        found = await in_turns(
            apis,
            lambda at, s: request_scores(at, numbers[at], per_s, s, connections),
            for_s,
            pids | {"load": os.getpid()},
        )
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
    calm_garbage_collector()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    try:
        found, rate = asyncio.run(measure(asked.per_second, asked.seconds, asked.connections))
    except (ProgramFailed, StartRefused, TimeoutError) as error:
        sys.stderr.write(f"benchmarks: {str(error) or 'a program did not start in time'}\n")
        return 1
    service, bare = found["service"].latencies, found["bare"].latencies
    if asked.json:
        served = {name: asdict(one) for name, one in found.items()}
        sys.stdout.write(to_json(served | {"scores_per_s": round(rate, 1)}).decode() + "\n")
    else:
        sys.stdout.write(
            f"POST score, {asked.per_second} a second, {asked.connections} connections, beside {rate:.0f} scores/s, "
            f"medians of {PAIRS} pairs: p50 {service.p50_ms:.1f} ms (target {TARGETS_MS[0]:.0f}), p99 "
            f"{service.p99_ms:.1f} ms (target {TARGETS_MS[1]:.0f}), {service.p99_ms / bare.p99_ms:.2f} of the bare "
            "API\n"
        )
        for name, one in found.items():
            sys.stdout.write(described(name, one))
    is_met = service.p50_ms <= TARGETS_MS[0] and service.p99_ms <= TARGETS_MS[1]
    return 0 if not service.failed and is_met else 1


if __name__ == "__main__":
    sys.exit(main())

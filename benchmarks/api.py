"""
Latency of reading scores over HTTP with many scores stored: `python -m benchmarks.api`.

PostgreSQL, the API and a bare one (`benchmarks.bare_api`) are processes of their own. Requests are sent on a fixed
beat, whether or not earlier ones were answered, to the two APIs in turns. Each latency is measured from the beat on,
so that it includes waiting in line, and waiting for a core while other programs use both.
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from pathlib import Path

import aiohttp
import asyncpg
from pydantic_core import to_json

from benchmarks.http_load import PAIRS, Latencies, Served, described, in_turns, load, servers
from benchmarks.programs import ProgramFailed
from benchmarks.stored import stored
from tarsy_scoring.postgres import migrate
from tarsy_scoring.telemetry.health import calm_garbage_collector
from tarsy_scoring_lab.postgres import EmbeddedPostgres

SCORES, PER_S, FOR_S = 100_000, 200, 20.0
TARGET_P99_MS = 5.0

# Three of four sessions have one score, the others two; one score in ten has failed. A score has the size of
# a judge's answers: an analysis of 4 KB, five missing tools, two turns.
FILL = """
INSERT INTO sessions (session_id, chain_id, alert_type, status)
SELECT 'session-' || n, 'chain-' || n % 20, 'PodCrashLooping', 'completed' FROM generate_series(1, {sessions}) n;
INSERT INTO session_scores (score_id, session_id, request_id, priority, score_triggered_by, criteria, criteria_hash,
  status, created_at, started_at, completed_at, total_score, score_analysis, missing_tools_analysis, score_breakdown,
  interaction, usage, judge_fingerprint, samples, chain_id, coverage, evidence)
SELECT md5('score-' || n)::uuid, 'session-' || 1 + n % {sessions}, md5('request-' || n)::uuid, 1, 'auto',
  'investigation-methodology', 'h', s.status, now() - make_interval(secs => {scores} - n),
  now() - make_interval(secs => {scores} - n), now() - make_interval(secs => {scores} - n),
  CASE s.status WHEN 'completed' THEN n % 101 END, repeat('The agent looked at ' || n || ' logs. ', 150),
  repeat('It lacked a tool. ', 60), '{{"logical_flow": 18, "consistency": 17, "tool_relevance": 16}}',
  (SELECT jsonb_build_object('total_commands', 40, 'by_tool', jsonb_object_agg('kubectl.tool-' || k,
     jsonb_build_object('total_commands', 4, 'error_rate', 0.25))) FROM generate_series(1, 10) k),
  '{{"input_tokens": 14200, "output_tokens": 1450, "cost_usd": 0.031}}', md5('judge'), '[{{"total_score": 67}}]',
  'chain-' || n % 20, '{{"shown_share": 1.0, "cut_entries": []}}', '{{"expected": {{}}, "read": {{}}, "missing": []}}'
FROM generate_series(1, {scores}) n,
  LATERAL (SELECT CASE WHEN n % 10 = 0 THEN 'failed' ELSE 'completed' END AS status) s;
INSERT INTO score_missing_tools SELECT md5('score-' || n)::uuid, k, 'tool-' || n % 500, repeat('because ', 20)
FROM generate_series(1, {scores}) n, generate_series(1, 5) k;
INSERT INTO judge_turns (score_id, ordinal, kind, reply, provider, model_requested, latency_ms, attempt, criteria_hash,
  context_hash, nonce, input_tokens, output_tokens, cost_usd)
SELECT md5('score-' || n)::uuid, k, 'analysis', repeat('reply ', 600), 'main', 'm', 900, 1, 'h', 'c', 'n', 7100, 700,
  0.015
FROM generate_series(1, {scores}) n, generate_series(1, 2) k;
"""


async def fill(url: str, scores: int) -> None:
    """Store `scores` scores in a migrated database, and refresh its statistics."""
    connection = await asyncpg.connect(url, command_timeout=600)
    try:
        await connection.execute(FILL.format(scores=scores, sessions=max(1, scores * 4 // 5)))
        await connection.execute("VACUUM ANALYZE")
    finally:
        await connection.close()


async def read_scores(address: str, sessions: int, per_s: int, for_s: float) -> Latencies:
    """Read scores of sessions drawn at random."""
    dice = random.Random(7)

    def send(client: aiohttp.ClientSession, _: int) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return client.get(f"{address}/api/v1/scoring/sessions/session-{1 + dice.randrange(sessions)}/score")

    return await load(send, per_s, for_s)


async def measure(scores: int, per_s: int, for_s: float) -> dict[str, Served]:
    """Start PostgreSQL, fill it, and measure. Raises: see `measure_over`."""
    async with EmbeddedPostgres() as postgres:
        await asyncio.to_thread(migrate.migrate, postgres.url)
        await fill(postgres.url, scores)
        return await measure_over(postgres, max(1, scores * 4 // 5), per_s, for_s)


async def measure_stored(directory: Path, per_s: int, for_s: float) -> dict[str, Served]:
    """Measure over a directory that `benchmarks.stored` has filled. Raises: see `measure_over`."""
    async with stored(directory) as (postgres, what):
        return await measure_over(postgres, what.sessions, per_s, for_s)


async def measure_over(postgres: EmbeddedPostgres, sessions: int, per_s: int, for_s: float) -> dict[str, Served]:
    """
    Measure the service and the bare API in turns.

    Raises:
        ProgramFailed, TimeoutError: One of them did not start.
    """
    env = {"SCORING_DATABASE_URL": postgres.url}
    pids = {"database": postgres.pid, "load": os.getpid()}
    with tempfile.TemporaryDirectory(prefix="tarsy-scoring-bench-") as folder:
        async with servers(env, Path(folder)) as started:
            return await in_turns(started, lambda at, s: read_scores(at, sessions, per_s, s), for_s, pids)


def print_found(found: Mapping[str, Served], scores: str, per_s: int) -> None:
    """For people."""
    service, bare = (found[name].latencies.p99_ms for name in ("service", "bare"))
    sys.stdout.write(
        f"GET score, {scores} stored, {per_s} a second, medians of {PAIRS} pairs: p99 {service:.1f} ms "
        f"(target {TARGET_P99_MS:.0f}), {service / bare:.2f} of the bare API\n"
    )
    for name, served in found.items():
        sys.stdout.write(described(name, served))


def main() -> int:
    """Exit status 0: no request failed, and p99 is within the target; 1: not so, or the API did not start."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.api", description=__doc__)
    parser.add_argument("--scores", type=int, default=SCORES)
    parser.add_argument("--per-second", type=int, default=PER_S)
    parser.add_argument("--seconds", type=float, default=FOR_S)
    parser.add_argument("--stored", type=Path, help="a directory that benchmarks.stored has filled")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    calm_garbage_collector()  # a pass over this program delays requests by up to 26 ms
    try:
        if asked.stored:
            found = asyncio.run(measure_stored(asked.stored, asked.per_second, asked.seconds))
        else:
            found = asyncio.run(measure(asked.scores, asked.per_second, asked.seconds))
    except (ProgramFailed, TimeoutError) as error:
        sys.stderr.write(f"benchmarks: {str(error) or 'the API did not start in time'}\n")
        return 1
    if asked.json:
        sys.stdout.write(to_json({name: asdict(served) for name, served in found.items()}).decode() + "\n")
    else:
        print_found(found, f"scores of {asked.stored}" if asked.stored else f"{asked.scores:,}", asked.per_second)
    service = found["service"].latencies
    return 0 if not service.failed and service.p99_ms <= TARGET_P99_MS else 1


if __name__ == "__main__":
    sys.exit(main())

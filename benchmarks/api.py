"""
Latency of reading scores over HTTP with many scores stored: `python -m benchmarks.api`.

PostgreSQL and the API are processes of their own. Requests are sent on a fixed beat, whether or not earlier
ones were answered. Each latency is measured from the beat on, so that it includes waiting in line.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp
import asyncpg
from pydantic_core import to_json

from benchmarks.programs import ProgramFailed, first_line, program
from benchmarks.stored import stored
from tarsy_scoring.postgres import migrate
from tarsy_scoring_lab.postgres import EmbeddedPostgres

SCORES, PER_S, FOR_S, WARM_UP_S = 100_000, 200, 20.0, 3.0
TARGET_P99_MS = 20.0

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


@dataclass(frozen=True, slots=True)
class Latencies:
    """
    Latencies of the requests that were answered, in ms.

    Args:
        requests: All requests that were sent.
        failed: Number of the others by status or type of error.
        answer_bytes: Size of the largest answer.
    """

    requests: int
    failed: dict[str, int]
    answer_bytes: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


def summarize(latencies_s: list[float], failed: Mapping[str, int], answer_bytes: int) -> Latencies:
    """Percentiles by nearest rank, upwards: each is a latency that was measured."""
    ordered = sorted(latencies_s)

    def at(share: float) -> float:
        return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)

    count = len(ordered) + sum(failed.values())
    return Latencies(count, dict(failed), answer_bytes, at(0.5), at(0.95), at(0.99), at(1.0))


async def fill(url: str, scores: int) -> None:
    """Store `scores` scores in a migrated database, and refresh its statistics."""
    connection = await asyncpg.connect(url, command_timeout=600)
    try:
        await connection.execute(FILL.format(scores=scores, sessions=max(1, scores * 4 // 5)))
        await connection.execute("VACUUM ANALYZE")
    finally:
        await connection.close()


async def load(
    send: Callable[[aiohttp.ClientSession, int], AbstractAsyncContextManager[aiohttp.ClientResponse]],
    per_s: int,
    for_s: float,
    connections: int = 0,
) -> Latencies:
    """
    Send `per_s` requests a second for `for_s` seconds.

    Args:
        send: Sends a request with this number, from 0.
        connections: At most so many at once; 0: any number.
    """
    latencies: list[float] = []
    failed: Counter[str] = Counter()  # by status, or by type of error
    answer_bytes = 0
    timeout, connector = aiohttp.ClientTimeout(total=30), aiohttp.TCPConnector(limit=connections)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as client:

        async def one(number: int, at: float) -> None:
            nonlocal answer_bytes
            try:
                async with send(client, number) as answer:
                    body = await answer.read()
                    answer.raise_for_status()
            except aiohttp.ClientResponseError as error:
                failed[str(error.status)] += 1
                return
            except (aiohttp.ClientError, TimeoutError) as error:
                failed[type(error).__name__] += 1
                return
            answer_bytes = max(answer_bytes, len(body))
            latencies.append(time.monotonic() - at)

        start = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for n in range(int(per_s * for_s)):
                beat = start + n / per_s
                await asyncio.sleep(max(0.0, beat - time.monotonic()))
                group.create_task(one(n, beat))
    return summarize(latencies or [float("inf")], failed, answer_bytes)


async def read_scores(address: str, sessions: int, per_s: int, for_s: float) -> Latencies:
    """Read scores of sessions drawn at random."""
    dice = random.Random(7)

    def send(client: aiohttp.ClientSession, _: int) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return client.get(f"{address}/api/v1/scoring/sessions/session-{1 + dice.randrange(sessions)}/score")

    return await load(send, per_s, for_s)


async def measure(scores: int, per_s: int, for_s: float) -> Latencies:
    """Start PostgreSQL, fill it, and measure. Raises: ProgramFailed, TimeoutError: the API did not start."""
    async with EmbeddedPostgres() as postgres:
        await asyncio.to_thread(migrate.migrate, postgres.url)
        await fill(postgres.url, scores)
        return await measure_over(postgres.url, max(1, scores * 4 // 5), per_s, for_s)


async def measure_stored(directory: Path, per_s: int, for_s: float) -> Latencies:
    """Measure over a directory that `benchmarks.stored` has filled. Raises: see `measure`."""
    async with stored(directory) as (postgres, what):
        return await measure_over(postgres.url, what.sessions, per_s, for_s)


async def measure_over(url: str, sessions: int, per_s: int, for_s: float) -> Latencies:
    """
    Start the API, and measure after `WARM_UP_S` of the same requests.

    Raises:
        ProgramFailed, TimeoutError: The API did not start.
    """
    env = {"SCORING_DATABASE_URL": url, "SCORING_API_PORT": "0", "SCORING_LOG_LEVEL": "warning"}
    with tempfile.TemporaryDirectory(prefix="tarsy-scoring-bench-") as place:
        log_file = Path(place) / "api.log"
        async with program("-m", "tarsy_scoring", "api", env=env, log_file=log_file) as process:
            line = await first_line(process, log_file)
            address = line.split()[-1]
            await read_scores(address, sessions, per_s, WARM_UP_S)
            return await read_scores(address, sessions, per_s, for_s)


def print_found(found: Latencies, scores: str, per_s: int) -> None:
    """One line for people."""
    sys.stdout.write(
        f"GET score, {scores} stored, {per_s} a second: p50 {found.p50_ms:.1f} ms, p95 {found.p95_ms:.1f} ms, "
        f"p99 {found.p99_ms:.1f} ms (target {TARGET_P99_MS:.0f}), most {found.max_ms:.1f} ms; "
        f"{found.requests} requests of up to {found.answer_bytes / 1000:.1f} KB, failed: {found.failed or 'none'}\n"
    )


def main() -> int:
    """Exit status 0: no request failed, and p99 is within the target; 1: not so, or the API did not start."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.api", description=__doc__)
    parser.add_argument("--scores", type=int, default=SCORES)
    parser.add_argument("--per-second", type=int, default=PER_S)
    parser.add_argument("--seconds", type=float, default=FOR_S)
    parser.add_argument("--stored", type=Path, help="a directory that benchmarks.stored has filled")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    try:
        if asked.stored:
            found = asyncio.run(measure_stored(asked.stored, asked.per_second, asked.seconds))
        else:
            found = asyncio.run(measure(asked.scores, asked.per_second, asked.seconds))
    except (ProgramFailed, TimeoutError) as error:
        sys.stderr.write(f"benchmarks: {str(error) or 'the API did not start in time'}\n")
        return 1
    if asked.json:
        sys.stdout.write(to_json(asdict(found)).decode() + "\n")
    else:
        print_found(found, f"scores of {asked.stored}" if asked.stored else f"{asked.scores:,}", asked.per_second)
    return 0 if not found.failed and found.p99_ms <= TARGET_P99_MS else 1


if __name__ == "__main__":
    sys.exit(main())

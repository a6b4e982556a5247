"""
Latency of the pages about quality over time with many scores stored: `python -m benchmarks.quality`.

PostgreSQL and the API are processes of their own. Each page is requested once after a start of the API
(cold), then repeatedly, one request after the other, as a browsing user would.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp
import asyncpg
from pydantic_core import to_json

from benchmarks.programs import ProgramFailed, first_line, program
from tarsy_scoring.postgres import migrate
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.records.rollup_keeping import RollupKeeper
from tarsy_scoring_lab.postgres import EmbeddedPostgres

SCORES, CHAINS, TIMES = 100_000, 1_000, 30
COUNTED = ("sessions", "session_scores", "score_missing_tools")
TARGET_MS = 200.0
SETTLED_S = 5.0
API = "/api/v1/scoring"

# A year of scores; one session in four was scored twice. Three judges follow each other, under two criteria.
# A score names up to three missing tools, in three spellings; a few tools are named most. Agents had one of
# 40 sets of tools, which contain more of the missing tools from month to month. All picks of the review queue
# are labelled, ten a day of each judge. The queue of the day before has not been drawn yet.
FILL = """
INSERT INTO sessions (session_id, chain_id, alert_type, status, completed_at)
SELECT 'session-' || n, 'chain-' || n % {chains}, 'Alert-' || n % 40, 'completed',
  now() - make_interval(secs => ({sessions} - n) * 31536000.0 / {sessions})
FROM generate_series(1, {sessions}) n;
INSERT INTO scoring_criteria (criteria_hash, name, content)
SELECT 'hash-' || k, 'criteria-' || k,
  '{{"name": "c", "bands": {{"low": [0, 49], "middle": [50, 74], "high": [75, 100]}}}}'
FROM generate_series(0, 1) k;
INSERT INTO session_scores (score_id, session_id, request_id, priority, score_triggered_by, criteria, criteria_hash,
  status, created_at, started_at, completed_at, total_score, score_analysis, missing_tools_analysis, score_breakdown,
  interaction, usage, judge_fingerprint, samples, spread, flags, chain_id, tools_hash)
SELECT md5('score-' || n)::uuid, 'session-' || 1 + n % {sessions}, md5('request-' || n)::uuid, 1, 'auto',
  CASE n % 2 WHEN 0 THEN 'investigation-methodology' ELSE 'criteria-1' END, 'hash-' || n % 2, s.status, at, at, at,
  CASE s.status WHEN 'completed' THEN (n * 37) % 101 END, repeat('The agent looked at ' || n || ' logs. ', 150),
  repeat('It lacked a tool. ', 60), '{{"logical_flow": 18, "consistency": 17, "tool_relevance": 16}}',
  (SELECT jsonb_build_object('total_commands', 40, 'by_tool', jsonb_object_agg('kubectl.tool-' || k,
     jsonb_build_object('total_commands', 4, 'error_rate', 0.25))) FROM generate_series(1, 10) k),
  '{{"input_tokens": 14200, "output_tokens": 1450, "cost_usd": 0.031}}', 'judge-' || n * 3 / ({scores} + 1), '[]',
  n % 12, CASE WHEN n % 17 = 0 THEN '["breakdown_mismatch"]'::jsonb ELSE '[]' END,
  'chain-' || (1 + n % {sessions}) % {chains}, 'tools-' || (n % 10) * 4 + n * 4 / ({scores} + 1)
FROM generate_series(1, {scores}) n,
  LATERAL (SELECT CASE WHEN n % 10 = 0 THEN 'failed' ELSE 'completed' END AS status,
                  now() - make_interval(secs => ({scores} - n) * 31536000.0 / {scores}) AS at) s;
INSERT INTO score_missing_tools
SELECT md5('score-' || n)::uuid, k,
  (ARRAY['get', 'Get', 'fetch'])[1 + n % 3] || (ARRAY['_', ' ', '-'])[1 + n % 3] || 'thing_' || w.tool,
  repeat('because ', 60)
FROM generate_series(1, {scores}) n, generate_series(1, 3) k,
  LATERAL (SELECT ((n * 7919::bigint + k * 104729) % 20) * ((n * 31 + k * 17) % 20) AS tool) w
WHERE n % 10 <> 0 AND n % 4 >= k;
INSERT INTO tool_lists (tools_hash, names)
SELECT 'tools-' || k, ARRAY(SELECT 'tool' || g FROM generate_series(1, 40) g)
  || ARRAY(SELECT unnest(ARRAY['getthing' || g, 'kubernetes.getthing' || g]) FROM generate_series(1, k) g)
FROM generate_series(0, 39) k;
INSERT INTO tool_states (tool, tool_key, state, since, said_by)
SELECT 'get_thing_' || g, 'getthing' || g, (ARRAY['open', 'planned', 'built'])[1 + g % 3],
  now() - make_interval(days => g * 5), 'ada' FROM generate_series(1, 60) g;
INSERT INTO tool_merges (name, name_key, tool, decided_by)
SELECT 'get_thing_' || g, 'getthing' || g, 'get_thing_' || g - 1, 'ada' FROM generate_series(101, 141, 2) g;
INSERT INTO review_days (day)
SELECT (now() AT TIME ZONE 'UTC')::date - g FROM generate_series(2, 360) g;
INSERT INTO review_picks (score_id, day, place, is_random, inclusion_probability, reasons)
SELECT score_id, day, place, place % 2 = 0, 0.05 + place / 20.0,
  CASE WHEN place % 2 = 0 THEN '[]'::jsonb ELSE '["band edge"]' END
FROM (SELECT s.score_id, (s.completed_at AT TIME ZONE 'UTC')::date AS day, row_number() OVER (
        PARTITION BY (s.completed_at AT TIME ZONE 'UTC')::date, s.criteria_hash, s.judge_fingerprint
        ORDER BY s.score_id) AS place FROM session_scores s WHERE s.status = 'completed') r
WHERE place <= 10 AND day IN (SELECT day FROM review_days);
INSERT INTO score_labels (score_id, session_id, labelled_by, labelled_at, outcome, number, reason)
SELECT p.score_id, s.session_id, 'person-' || w, s.completed_at, NULL,
  least(100, greatest(0, s.total_score + (hashtext(p.score_id::text || w) % 15))), repeat('why ', 20)
FROM review_picks p JOIN session_scores s USING (score_id), generate_series(1, 2) w;
INSERT INTO anchor_sessions (session_id, added_by)
SELECT session_id, 'ada' FROM sessions WHERE chain_id = 'chain-7' ORDER BY session_id LIMIT 40;
INSERT INTO session_scores (session_id, request_id, priority, score_triggered_by, criteria, criteria_hash, status,
  purpose, completed_at, total_score, judge_fingerprint, chain_id)
SELECT session_id, gen_random_uuid(), 2, 'ada', 'investigation-methodology', 'hash-0', 'completed', 'anchor', now(),
  50 + 5 * k, 'judge-' || k, 'chain-7'
FROM anchor_sessions, generate_series(0, 2) k;
INSERT INTO drift_findings (look, chain_id, criteria, criteria_hash, old_fingerprint, new_fingerprint, cause, is_clear,
  judge, whole, agents, began_at, anchors, anchors_missing, compared_before, compared_after, meaning, is_event,
  found_at)
SELECT 'sessions', 'chain-' || 7 + k % 10, 'investigation-methodology', 'hash-0', 'judge-1', 'judge-2', 'both', true,
  part, part, part, now() - make_interval(days => k), 40, 0, 300, 300, '["Both changed."]', true,
  now() - make_interval(days => k)
FROM generate_series(1, 300) k,
  LATERAL (SELECT '{{"value": 6.4, "low": 3.1, "high": 9.7, "n": 40, "standard_error": 1.4, "method": "t"}}'::jsonb
           AS part) p;
"""


def filling(scores: int, chains: int) -> str:
    """Statements that put a year of scores into a migrated database."""
    return FILL.format(scores=scores, sessions=max(1, scores * 4 // 5), chains=chains)


async def fill(url: str, scores: int = SCORES, chains: int = CHAINS) -> None:
    """Run the statements of `filling`, count the rollups, and refresh the statistics of the database."""
    connection = await asyncpg.connect(url, command_timeout=3600)
    database = Database(url, "public", pool_size=3)
    try:
        # All at once is faster than score by score in triggers.
        for table in COUNTED:
            await connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        await connection.execute(filling(scores, chains))
        for table in COUNTED:
            await connection.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")
        await connection.execute("ANALYZE")
        await database.open()
        await RollupKeeper(database).rebuild()
        await connection.execute("VACUUM ANALYZE")
    finally:
        await database.close()
        await connection.close()


@dataclass(frozen=True, slots=True)
class Page:
    """Latency of a page in ms: of the first request after a start of the API, and of repeated ones."""

    path: str
    cold_ms: float
    p50_ms: float
    p99_ms: float
    answer_bytes: int


async def ask(client: aiohttp.ClientSession, address: str, path: str) -> tuple[float, int]:
    """
    Request a page as a browser does; returns its latency in ms and its size in bytes.

    Raises:
        ProgramFailed: The answer is not 200.
    """
    began = time.monotonic()
    async with client.get(address + path, headers={"Accept": "text/html, application/json"}) as answer:
        body = await answer.read()
        if answer.status != 200:
            raise ProgramFailed(f"GET {path} was answered with {answer.status}")
    return 1000 * (time.monotonic() - began), len(body)


async def measure_page(address: str, path: str, times: int) -> Page:
    """Measure a page, one request at a time; the first one, `SETTLED_S` after the start, is the cold one."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as client:
        await asyncio.sleep(SETTLED_S)
        cold_ms, size = await ask(client, address, path)
        ordered = sorted([(await ask(client, address, path))[0] for _ in range(times)])
    return Page(
        path,
        round(cold_ms, 1),
        round(ordered[len(ordered) // 2], 1),
        round(ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], 1),
        size,
    )


async def measure(scores: int, chains: int, times: int) -> list[Page]:
    """
    Measure every page, each with an API that was just started.

    Raises:
        ProgramFailed: The API did not start, or refused a page.
    """
    found = []
    with tempfile.TemporaryDirectory(prefix="tarsy-scoring-bench-") as place:
        async with EmbeddedPostgres() as postgres:
            await asyncio.to_thread(migrate.migrate, postgres.url)
            await fill(postgres.url, scores, chains)
            log_file = Path(place) / "api.log"
            for path in await paths(postgres.url):
                env = {"SCORING_DATABASE_URL": postgres.url, "SCORING_API_PORT": "0", "SCORING_LOG_LEVEL": "warning"}
                env["SCORING_API_RATE_PER_MINUTE"] = "100000"
                async with program("-m", "tarsy_scoring", "api", env=env, log_file=log_file) as process:
                    line = await first_line(process, log_file)
                    found.append(await measure_page(line.split()[-1], path, times))
    return found


async def paths(url: str) -> list[str]:
    """Addresses of the pages and of their data in the API; a page of a score shows one with labels."""
    connection = await asyncpg.connect(url)
    try:
        score_id = await connection.fetchval("SELECT score_id FROM score_labels ORDER BY label_id DESC LIMIT 1")
    finally:
        await connection.close()
    return [
        "/missing-tools",
        "/missing-tools?since=&until=",
        "/missing-tools?chain=chain-7",
        f"{API}/missing-tools",
        "/drift",
        "/drift?chain=chain-7",
        "/trends?chain=chain-7",
        "/trends",
        "/trends?since=",
        "/distribution",
        "/distribution?since=",
        "/failure-tags",
        "/review",
        f"/scores/{score_id}",
        f"{API}/review",
        f"{API}/trust",
        f"{API}/scores/{score_id}/labels",
    ]


def main() -> int:
    """
    Measure and print the latencies.

    Returns:
        Exit status 0: every page is within the target, cold and by its median; 1: one is not, or was not
        measured.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__)
    parser.add_argument("--scores", type=int, default=SCORES)
    parser.add_argument("--chains", type=int, default=CHAINS)
    parser.add_argument("--times", type=int, default=TIMES)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    try:
        found = asyncio.run(measure(asked.scores, asked.chains, asked.times))
    except (ProgramFailed, TimeoutError) as error:
        sys.stderr.write(f"benchmarks: {str(error) or 'the API did not start in time'}\n")
        return 1
    if asked.json:
        sys.stdout.write(to_json([asdict(page) for page in found]).decode() + "\n")
    else:
        sys.stdout.write(f"{asked.scores:,} scores of {asked.chains:,} chains (target {TARGET_MS:.0f} ms)\n")
        sys.stdout.write(f"{'page':62} {'cold':>7} {'p50':>7} {'p99':>7} {'KB':>6}\n")
        for page in found:
            times = f"{page.cold_ms:7.0f} {page.p50_ms:7.0f} {page.p99_ms:7.0f}"
            sys.stdout.write(f"{page.path:62} {times} {page.answer_bytes / 1000:6.0f}\n")
    pages = [page for page in found if not page.path.startswith(API)]
    return 0 if all(max(page.cold_ms, page.p50_ms) <= TARGET_MS for page in pages) else 1


if __name__ == "__main__":
    sys.exit(main())

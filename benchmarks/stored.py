"""
Many stored scores, in a directory that later measurements open again: `python -m benchmarks.stored DIRECTORY`.

Fills an embedded PostgreSQL with a year of scores and all that belongs to them, without secondary indexes, and
then runs `recount`. `benchmarks.quality DIRECTORY` and `benchmarks.run --stored DIRECTORY`
measure over it.
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import asyncpg

from benchmarks.programs import program
from tarsy_scoring.postgres import migrate
from tarsy_scoring_lab.postgres import EmbeddedPostgres

SCORES, CHAINS = 1_000_000, 50
TEXT_CHARS = 4000  # of an analysis and of a reply
AT_ONCE = 20_000  # scores of one transaction
CONNECTIONS = 2
TEXTS = 400
EVENTS = 7  # of one score
MARK = "filled.json"
FILLED_TABLES = (
    "sessions",
    "session_scores",
    "score_missing_tools",
    "judge_turns",
    "scoring_requests",
    "scoring_events",
)
WITHOUT_TRIGGERS = "SET session_replication_role = replica; SET synchronous_commit = off"
# For the time of filling alone: later measurements run with the defaults of PostgreSQL.
SERVER = ("max_wal_size = '8GB'", "checkpoint_timeout = '30min'", "autovacuum = off", "shared_buffers = '1GB'")

# Scores `first` to `last`. One score in ten has failed; each fifth one is a second score of the session before.
SLICE = """
CREATE TEMP TABLE slice ON COMMIT DROP AS
SELECT n, md5('score-' || n)::uuid AS score_id, md5('request-' || n)::uuid AS request_id,
  'session-' || n - n / 5 AS session_id, 'chain-' || (n - n / 5) % {chains} AS chain_id, (n - n / 5) AS session,
  '{now}'::timestamptz - make_interval(secs => ({scores} - n) * 31536000.0 / {scores}) AS at,
  (SELECT text FROM benchmark.texts t WHERE t.n = s.n % {texts}) AS text
FROM generate_series({first}, {last}) AS s(n);
INSERT INTO sessions (session_id, chain_id, alert_type, status, completed_at, first_seen_at)
SELECT session_id, chain_id, 'Alert-' || n % 40, 'completed', at, at FROM slice WHERE n % 5 <> 0;
INSERT INTO session_scores (score_id, session_id, request_id, priority, score_triggered_by, criteria, criteria_hash,
  status, created_at, started_at, completed_at, total_score, score_analysis, missing_tools_analysis, score_breakdown,
  interaction, usage, judge_fingerprint, samples, flags, failure_tags, chain_id)
SELECT score_id, session_id, request_id, 1, 'auto',
  CASE n % 2 WHEN 0 THEN 'investigation-methodology' ELSE 'criteria-1' END, 'hash-' || n % 2,
  CASE WHEN n % 10 = 0 THEN 'failed' ELSE 'completed' END, at, at, at,
  CASE WHEN n % 10 <> 0 THEN (n * 37) % 101 END, text, left(text, {chars} / 4),
  '{{"logical_flow": 18, "consistency": 17, "tool_relevance": 16}}', i.interaction,
  '{{"input_tokens": 14200, "output_tokens": 1450, "cost_usd": 0.031}}', 'judge-' || n * 3::bigint / ({scores} + 1),
  '[]', CASE WHEN n % 17 = 0 THEN '["breakdown_mismatch"]'::jsonb ELSE '[]' END,
  CASE WHEN n % 10 <> 0 AND n % 3 = 0 THEN jsonb_build_array('tag-' || n % 7) ELSE '[]' END,
  chain_id
FROM slice, (SELECT jsonb_build_object('total_commands', 40, 'by_tool', jsonb_object_agg('kubectl.tool-' || k,
     jsonb_build_object('total_commands', 4, 'error_rate', 0.25))) FROM generate_series(1, 10) k) i(interaction);
INSERT INTO score_missing_tools
SELECT score_id, k,
  (ARRAY['get', 'Get', 'fetch'])[1 + n % 3] || (ARRAY['_', ' ', '-'])[1 + n % 3] || 'thing_' || w.tool, left(text, 120)
FROM slice, generate_series(1, 3) k,
  LATERAL (SELECT ((n * 7919::bigint + k * 104729) % 20) * ((n * 31::bigint + k * 17) % 20) AS tool) w
WHERE n % 10 <> 0 AND n % 4 >= k;
INSERT INTO judge_turns (score_id, ordinal, kind, reply, provider, model_requested, latency_ms, attempt, criteria_hash,
  context_hash, nonce, input_tokens, output_tokens, cost_usd, created_at)
SELECT score_id, k, (ARRAY['analysis', 'missing_tools'])[k], left(text, {chars} / k), 'main', 'm', 900, 1, 'h', 'c',
  'n', 7100, 700, 0.015, at
FROM slice, generate_series(1, 2) k;
INSERT INTO scoring_requests (request_id, event_id, session_id, source, disposition, score_id, received_at, chain_id,
  requested_by, force, priority)
SELECT request_id, 'event-' || n, session_id, 'event', 'accepted', score_id, at, chain_id, 'auto', false, 1 FROM slice;
INSERT INTO scoring_events (score_id, session_id, sequence, position, type, payload, created_at)
SELECT score_id, session_id, k, (n - 1::bigint) * {events} + k, 'scoring.progress',
  jsonb_build_object('type', 'scoring.progress', 'event_id', request_id, 'sequence', k, 'purpose', 'production',
    'score_id', score_id, 'session_id', session_id, 'request_id', request_id, 'chain_id', chain_id, 'attempt', 1,
    'timestamp', at, 'current_stage', 'analyzing_methodology'), at
FROM slice, generate_series(1, {events}) k;
"""

# Criteria, and what people and drift detection have said about the scores.
DECISIONS = """
INSERT INTO scoring_criteria (criteria_hash, name, content)
SELECT 'hash-' || k, 'criteria-' || k,
  '{{"name": "c", "bands": {{"low": [0, 49], "middle": [50, 74], "high": [75, 100]}}}}'
FROM generate_series(0, 1) k;
INSERT INTO tool_states (tool, tool_key, state, since, said_by)
SELECT 'get_thing_' || g, 'getthing' || g, (ARRAY['open', 'planned', 'built'])[1 + g % 3],
  now() - make_interval(days => g * 5), 'ada' FROM generate_series(1, 60) g;
INSERT INTO tool_merges (name, name_key, tool, decided_by)
SELECT 'get_thing_' || g, 'getthing' || g, 'get_thing_' || g - 1, 'ada' FROM generate_series(101, 141, 2) g;
INSERT INTO score_labels (score_id, session_id, labelled_by, labelled_at, outcome, number, reason)
SELECT s.score_id, s.session_id, 'person-' || w, s.completed_at, NULL,
  least(100, greatest(0, s.total_score + (hashtext(s.score_id::text || w) % 15))), repeat('why ', 20)
FROM (SELECT *, row_number() OVER (PARTITION BY (completed_at AT TIME ZONE 'UTC')::date ORDER BY score_id) AS place
      FROM session_scores WHERE status = 'completed') s, generate_series(1, 2) w
WHERE place <= 10;
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
  LATERAL (SELECT '{{"value": 6.4, "low": 3.1, "high": 9.7, "n": 40, "reason": null}}'::jsonb
           AS part) p;
"""

# No index of a primary key or of a constraint.
SECONDARY = """
SELECT indexrelid::regclass::text AS name, pg_get_indexdef(indexrelid) AS definition
FROM pg_index i WHERE indrelid = ANY($1::text[]::regclass[]) AND NOT indisprimary
  AND NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = i.indexrelid)
"""

POSITIONS = """
UPDATE relay_position SET position = {last},
  forgotten = coalesce((SELECT min(position) - 1 FROM scoring_events), {last});
UPDATE relay_floor SET published = {last}, entry = (SELECT coalesce(max(entry), 0) FROM scoring_events)
"""


@asynccontextmanager
async def stored(directory: Path) -> AsyncIterator[EmbeddedPostgres]:
    """Run the PostgreSQL of a filled directory. Raises: FileNotFoundError: it was not filled to the end."""
    (directory / MARK).stat()
    async with EmbeddedPostgres(directory) as postgres:
        yield postgres


async def fill(directory: Path, scores: int) -> None:
    """Fill an empty directory."""
    async with EmbeddedPostgres(directory) as postgres:
        await asyncio.to_thread(migrate.migrate, postgres.url)
        connection = await asyncpg.connect(postgres.url)
        for setting in SERVER:
            await connection.execute(f"ALTER SYSTEM SET {setting}")
        await connection.close()
        await postgres.restart()
        connection = await asyncpg.connect(postgres.url, command_timeout=7200)
        await connection.execute(WITHOUT_TRIGGERS + "; SET maintenance_work_mem = '1GB'")
        indexes = await connection.fetch(SECONDARY, FILLED_TABLES)
        for index in indexes:
            await connection.execute(f"DROP INDEX {index['name']}")
        await connection.execute("CREATE SCHEMA benchmark; CREATE TABLE benchmark.texts (n int PRIMARY KEY, text text)")
        await connection.executemany("INSERT INTO benchmark.texts VALUES ($1, $2)", list(_texts()))
        await _fill_slices(postgres.url, scores)
        await connection.execute("DROP SCHEMA benchmark CASCADE")
        for index in indexes:
            await connection.execute(index["definition"])
            _say(f"built {index['name']}")
        await connection.execute("ANALYZE")
        await connection.execute(DECISIONS.format())
        await connection.execute(POSITIONS.format(last=scores * EVENTS))
        await connection.execute("ANALYZE")
        _say("decisions")
        env = {"SCORING_DATABASE_URL": postgres.url}
        async with program("-m", "tarsy_scoring", "recount", env=env, log_file=directory / "recount.log") as p:
            if await p.wait():
                sys.exit((directory / "recount.log").read_text())
        _say("recount")
        await connection.execute("VACUUM ANALYZE")
        await connection.execute("ALTER SYSTEM RESET ALL")
        await connection.execute("CHECKPOINT")
        await connection.close()
    (directory / MARK).touch()
    _say("done")


async def _fill_slices(url: str, scores: int) -> None:
    now = datetime.now(UTC).isoformat()
    firsts = iter(range(1, scores + 1, AT_ONCE))

    async def work() -> None:
        connection = await asyncpg.connect(url, command_timeout=600)
        await connection.execute(WITHOUT_TRIGGERS)
        for first in firsts:
            values = {"first": first, "last": min(first + AT_ONCE - 1, scores), "scores": scores, "now": now}
            values |= {"chains": CHAINS, "texts": TEXTS, "chars": TEXT_CHARS, "events": EVENTS}
            await connection.execute(SLICE.format(**values))
            if (first - 1) % (10 * AT_ONCE) == 0:
                _say(f"{first:,} scores")
        await connection.close()

    await asyncio.gather(*(work() for _ in range(CONNECTIONS)))


def _texts() -> Iterator[tuple[int, str]]:
    """Texts of drawn words, which PostgreSQL compresses about as much as prose."""
    draw = random.Random(7)
    words = ["".join(draw.choices("etaoinshrdlucmfwypvbgk", k=draw.randint(2, 10))) for _ in range(1500)]
    for n in range(TEXTS):
        yield n, " ".join(draw.choices(words, k=TEXT_CHARS // 3))[:TEXT_CHARS]


_BEGAN_S = time.monotonic()


def _say(what: str) -> None:
    sys.stdout.write(f"{time.monotonic() - _BEGAN_S:7.0f} s  {what}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stored", description=__doc__)
    parser.add_argument("directory", type=Path, help="an account that is not root must be able to reach it")
    parser.add_argument("--scores", type=int, default=SCORES)
    asked = parser.parse_args()
    asyncio.run(fill(asked.directory, asked.scores))


if __name__ == "__main__":
    main()

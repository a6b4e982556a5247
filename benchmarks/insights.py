"""
Time to read rolling figures over a day of scores: `python -m benchmarks.insights`.

Fills an embedded PostgreSQL with scores of the last 24 h and reads the figures of one chain and of all
chains, each several times. Prints the medians.
"""

import argparse
import asyncio
import json
import statistics
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.postgres.migrate import migrate
from tarsy_scoring.signals.figures import read_figures
from tarsy_scoring_lab.postgres import EmbeddedPostgres

TIMES = 15

FILL = """
INSERT INTO sessions (session_id) SELECT 'session-' || n FROM generate_series(1, $1) n
"""
FILL_SCORES = """
INSERT INTO session_scores (session_id, request_id, chain_id, priority, score_triggered_by, criteria, criteria_hash,
  status, completed_at, total_score, error_kind, failure_tags, usage, score_analysis)
SELECT 'session-' || n, gen_random_uuid(), 'chain-' || n % $2, 1, 'auto', 'c', 'h', status,
  now() - make_interval(secs => 86400.0 * n / $1), CASE WHEN status = 'completed' THEN n % 101 END,
  CASE WHEN status = 'failed' THEN 'no_score_in_answer' END, '["loop"]', '{"cost_usd": 0.0123}',
  repeat('analysis ', 200)
FROM generate_series(1, $1) n, LATERAL (SELECT CASE WHEN n % 20 = 0 THEN 'failed' ELSE 'completed' END AS status) s
"""


@dataclass
class Measured:
    """Medians in milliseconds."""

    scores: int
    chains: int
    one_chain_ms: float
    all_chains_ms: float


async def measure(scores: int, chains: int) -> Measured:
    """Fill an embedded PostgreSQL with `scores` over `chains`, and measure."""
    async with EmbeddedPostgres() as postgres:
        await asyncio.to_thread(migrate, postgres.url)
        database = Database(postgres.url, "public", pool_size=1)
        await database.open()
        try:
            await database.once(lambda c: c.execute(FILL, scores))
            await database.once(lambda c: c.execute(FILL_SCORES, scores, chains))
            await database.once(lambda c: c.execute("ANALYZE"))
            one = await _median_ms(database, ["chain-1"], with_others=False)
            every = await _median_ms(database, [], with_others=True)
        finally:
            await database.close()
    return Measured(scores, chains, one, every)


async def _median_ms(database: Database, chains: list[str], *, with_others: bool) -> float:
    took_ms = []
    for _ in range(TIMES):
        began_s = time.perf_counter()
        await read_figures(database, Settings(), datetime.now(UTC), chains, with_others=with_others)
        took_ms.append(1000 * (time.perf_counter() - began_s))
    return round(statistics.median(took_ms), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", type=int, default=100_000)
    parser.add_argument("--chains", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    arguments = parser.parse_args()
    measured = asdict(asyncio.run(measure(arguments.scores, arguments.chains)))
    print(json.dumps(measured) if arguments.json else "\n".join(f"{k:22} {v:>12}" for k, v in measured.items()))


if __name__ == "__main__":
    main()

"""
Fill a migrated database with a quarter of simulated scores: `python -m benchmarks.quarter`.

SCORING_DATABASE_URL names the database. The scores are of 600 sessions of one chain. On day 35 a judge takes
over that is 8 points milder. On day 42 the guidance v2 and a tool arrive, with which the agents do better by
6 points. Both judges judged 40 anchors, and people labelled a quarter of the new judge's scores. The pages in
`docs/questions/` use these scores.
"""

import argparse
import asyncio
import hashlib
import os
from datetime import UTC, datetime, timedelta

from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.postgres.database import Database
from tarsy_scoring_lab.simulated import Missed, Plan, Simulation, store

CHAIN, CRITERIA = "kubernetes", "investigation"
NEW_TOOL = "get_previous_logs"
QUARTER = Plan(
    chain=CHAIN,
    prefix="session-",
    days=84,
    sessions=600,
    kinds={"PodOOMKilled": (58.0, 5), "HighLatency": (48.0, 3), "NodeNotReady": (64.0, 2)},
    judges=(hashlib.sha256(b"judge of spring").hexdigest(), hashlib.sha256(b"judge of summer").hexdigest()),
    judge_day=35,
    judge_points=8.0,
    changed_day=42,
    changed_points=6.0,
    labels={"guidance": "v1"},
    changed_labels={"guidance": "v2"},
    tools=("kubectl_get", "prometheus_query"),
    changed_tools=("kubectl_get", "prometheus_query", NEW_TOOL),
    missed=(
        Missed(
            *(0.22, 0.01, (NEW_TOOL, "Get Previous Logs")),
            (
                "The logs of the container that died were gone, and it guessed (E9).",
                "Only the restarted container could be read (E4).",
                "Why the process ended was never seen; its last lines would have said it.",
            ),
        ),
        Missed(
            *(0.11, 0.12, ("search_traces", "search-traces")),
            (
                "Which call was slow could not be seen; no traces were at hand.",
                "It timed services by hand, one after the other (E6, E8, E11).",
                "The latency was blamed on the database without a single trace.",
            ),
        ),
        Missed(
            *(0.05, 0.04, ("node_pressure",)),
            (
                "Whether the node was short of memory stayed open.",
                "The node's pressure was inferred from evictions (E7).",
            ),
        ),
    ),
    anchors=40,
    labelled_share=0.25,
)


async def fill(url: str, seed: int = 1) -> None:
    """
    Store the quarter that ends today in a database.

    Args:
        url: URL of a migrated database without sessions of these names.
    """
    criteria = load_criteria().get(CRITERIA)
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    database = Database(url, "public", pool_size=1)
    await database.open()
    try:
        chain = Simulation(seed, QUARTER, criteria, midnight - timedelta(days=QUARTER.days)).run()
        await store(database, criteria, [chain])
    finally:
        await database.close()


def main() -> None:
    """Fill the database of SCORING_DATABASE_URL."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    url = os.environ.get("SCORING_DATABASE_URL")
    if not url:
        parser.error("set SCORING_DATABASE_URL to a migrated database (`tarsy-scoring stack` prints one)")
    asyncio.run(fill(url, given.seed))


if __name__ == "__main__":
    main()

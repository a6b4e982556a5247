"""Counts waiting work: open scores by what holds them up, and events that no broker has acknowledged."""

from collections import Counter
from typing import Literal

from tarsy_scoring.limits.rules import Standings
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.queue.claims import ChainFilter

Bound = Literal["pending", "held"]
BOUNDS: tuple[Bound, ...] = ("pending", "held")

# Open scores by what holds their chain up. $1 and $2: chains with their own hold; $3: what holds all others.
# Each status has an index; `status IN` would read every score.
OPEN_SCORES = """
SELECT s.status, coalesce(CASE WHEN c.chain_id IS NULL THEN $3::text ELSE c.hold END, 'nothing') AS hold,
       count(*) AS scores, count(*) FILTER (WHERE is_due) AS due,
       coalesce(extract(epoch FROM now() - min(s.next_attempt_at) FILTER (WHERE is_due)), 0)::float8
         AS oldest_due_s
FROM (SELECT status, chain_id, next_attempt_at, priority < 2 AND next_attempt_at <= now() AS is_due
      FROM {schema}.session_scores WHERE status = 'pending'
      UNION ALL
      SELECT status, chain_id, next_attempt_at, false FROM {schema}.session_scores
        WHERE status = 'in_progress') s
LEFT JOIN unnest($1::text[], $2::text[]) AS c(chain_id, hold) ON c.chain_id = coalesce(s.chain_id, '')
GROUP BY 1, 2
"""

# Due scores without bulk ones, by whether their chain is held up for long, at most $1: to count a large queue
# exactly would cost a scan. $2: chains with their own standing; $3: those that are held up; $4: whether all
# others are.
DUE_SCORES = """
SELECT count(*) FILTER (WHERE NOT is_held) AS pending, count(*) FILTER (WHERE is_held) AS held FROM (
  SELECT CASE WHEN coalesce(chain_id, '') = ANY($2::text[]) THEN coalesce(chain_id, '') = ANY($3::text[])
              ELSE $4 END AS is_held
  FROM {schema}.session_scores WHERE status = 'pending' AND priority < 2 AND next_attempt_at <= now()
    LIMIT $1) due
"""

# Bounded, so that the count stays cheap while brokers are away for long.
UNPUBLISHED_EVENTS = """
SELECT count(*) AS events, coalesce(extract(epoch FROM now() - min(created_at)), 0)::float8 AS oldest_s
FROM ((SELECT created_at FROM {schema}.scoring_events
       WHERE position IS NULL AND entry > (SELECT entry FROM {schema}.relay_floor) ORDER BY entry LIMIT 10000)
      UNION ALL
      (SELECT created_at FROM {schema}.scoring_events
       WHERE published_at IS NULL AND position > (SELECT published FROM {schema}.relay_floor)
       ORDER BY position LIMIT 10000)) unpublished
"""

# A full rate limit is no lasting hold: it ends within a minute, and the chain is at work.
LASTING_HOLDS = ("pause", "budget", "circuit", "key", "quota", "rejected")
# An operator decided on these, so waiting under them is no sign of trouble.
INTENDED_HOLDS = ("pause", "budget")


async def open_scores(database: Database, standings: Standings) -> tuple[Counter[str], dict[str, int], float]:
    """
    Count open scores by status; due pending ones without bulk ones by what holds their chain up (`nothing` if
    nothing does); and the oldest one's age in seconds, without those under an intended hold.

    Args:
        standings: What holds chains up now.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    reasons = [s.reason for s in standings.by_chain.values()]
    rows = await database.rows(OPEN_SCORES, list(standings.by_chain), reasons, standings.others.reason)
    pending = [r for r in rows if r["status"] == "pending"]
    waits_s = (r["oldest_due_s"] for r in pending if r["hold"] not in INTENDED_HOLDS)
    counts = Counter[str]()
    for r in rows:
        counts[r["status"]] += r["scores"]
    return counts, {r["hold"]: r["due"] for r in pending}, max(waits_s, default=0.0)


async def due_scores(database: Database, standings: Standings, limit: int) -> dict[Bound, int]:
    """
    Count due scores without bulk ones: `held` if their chain is held up for long, else `pending`.

    Args:
        standings: What holds chains up now.
        limit: Where the count ends, for both kinds together.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    chains = ChainFilter.of(standings, lambda standing: standing.reason not in LASTING_HOLDS)
    [row] = await database.rows(DUE_SCORES, limit, *chains)
    return {bound: row[bound] for bound in BOUNDS}


async def unpublished_events(database: Database) -> tuple[int, float]:
    """
    Events that no broker has acknowledged (counted up to 20,000), and the oldest one's age in seconds.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    [row] = await database.fetch(UNPUBLISHED_EVENTS)
    return row["events"], row["oldest_s"]

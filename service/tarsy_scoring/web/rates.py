"""
The rate of requests of each caller: changes over all processes of the API, and reads in each process.

Changes are counted in the database, which each of them writes to anyway. A read must not cost a write, so
reads
are counted in memory, and a caller of several processes has as many buckets.
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable

from tarsy_scoring.limits.token_bucket import TokenBucket
from tarsy_scoring.postgres.database import Database, DatabaseAway
from tarsy_scoring.web.problems import Problem

COUNT_S = 2.0

# Take a token of a caller ($1) from a bucket that holds $2 tokens and fills within a minute. The row has the
# time at which the bucket is full again; no row comes back if it is empty. The millisecond allows for rounded
# intervals. A full bucket needs no row: some rows are deleted with each change, after the caller's own row
# was locked, and without waiting for a lock, so that two callers cannot wait for each other.
TAKE = """
WITH taken AS (
  INSERT INTO {schema}.caller_rates AS r (caller, full_at) VALUES ($1, now() + interval '1 minute' / $2::int)
  ON CONFLICT (caller) DO UPDATE SET full_at = greatest(r.full_at, now()) + interval '1 minute' / $2::int
  WHERE greatest(r.full_at, now()) + interval '1 minute' / $2::int <= now() + interval '1 minute 1 millisecond'
  RETURNING true
), forgotten AS (
  DELETE FROM {schema}.caller_rates WHERE caller IN (
    SELECT caller FROM {schema}.caller_rates
    WHERE (SELECT count(*) FROM taken) = 1 AND full_at < now() AND caller <> $1 LIMIT 2 FOR UPDATE SKIP LOCKED)
)
SELECT FROM taken
"""

# Seconds until the bucket of a caller has a token again.
WAIT_S = """
SELECT extract(epoch FROM full_at + interval '1 minute' / $2::int - now() - interval '1 minute')::float8 AS wait_s
FROM {schema}.caller_rates WHERE caller = $1
"""


class FleetRates:
    """One token bucket per caller over all processes of the API, counted by the database."""

    def __init__(self, database: Database, per_minute: int) -> None:
        self._database = database
        self._per_minute = per_minute

    async def count(self, identity: str) -> None:
        """
        Count a change of this caller. Counts nothing while the database is away, without which no change is
        made.

        Raises:
            Problem: 429, with the seconds to wait.
        """

        asked = identity, self._per_minute
        try:
            async with asyncio.timeout(COUNT_S):
                if await self._database.single(TAKE, *asked):
                    return
                waits = await self._database.single(WAIT_S, *asked)
        except (DatabaseAway, TimeoutError):
            return  # the route answers, in the form that its clients expect
        raise too_many_changes(self._per_minute, waits[0]["wait_s"] if waits else 0.0)


class Rates:
    """
    One token bucket per caller, which holds `per_minute` tokens and fills evenly.

    Memory is bounded: beyond `max_callers` the least recently active caller is forgotten and starts with a
    full bucket again.

    Args:
        monotonic: Clock, in s.
    """

    def __init__(self, per_minute: int, monotonic: Callable[[], float], max_callers: int = 10_000) -> None:
        self.per_minute = per_minute
        self._monotonic = monotonic
        self._max_callers = max_callers
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def take(self, identity: str) -> float:
        """Take a token of this caller. Returns 0.0, or the seconds until the next token if there is none."""
        now = self._monotonic()
        bucket = self._buckets.pop(identity, None) or TokenBucket(self.per_minute / 60, self.per_minute, now)
        self._buckets[identity] = bucket
        if len(self._buckets) > self._max_callers:
            self._buckets.popitem(last=False)
        return bucket.take(now)


def too_many_changes(per_minute: int, wait_s: float) -> Problem:
    """429 for a caller that has to wait for its next change."""
    return _too_many(
        f"{per_minute} changes per minute and caller",
        wait_s,
        ", or ask an operator to raise SCORING_API_RATE_PER_MINUTE",
    )


def too_many_reads(per_minute: int, wait_s: float) -> Problem:
    """429 for a caller that has to wait for its next read."""
    return _too_many(f"{per_minute} reads per minute and caller", wait_s)


def _too_many(limit: str, wait_s: float, advice: str = "") -> Problem:
    seconds = max(1, math.ceil(wait_s))
    return Problem(
        429,
        "Too many requests",
        f"the limit is {limit}: try again in {seconds} s{advice}",
        headers={"Retry-After": str(seconds)},
    )

"""
Which sessions to ask for, and about what that takes: selections out of what is stored, and their estimate.

An estimate rests on what earlier scores took and on nothing else. Where there is none it is unknown.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

import asyncpg

from tarsy_scoring.config.settings import ChainSettings
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.queue.admission import Policy
from tarsy_scoring.queue.latest import NEWEST_FIRST, is_completed, is_latest
from tarsy_scoring.timeline.model import FoundSession

# Sessions whose newest completed score is not under what their chain asks for now ($1 chains, $2 their hashes, $3 the
# hash of every other chain). One whose score under that is on its way already is not asked for twice.
OBSOLETE_SESSIONS = f"""
SELECT s.session_id
FROM {{schema}}.session_scores s
JOIN {{schema}}.sessions m USING (session_id)
LEFT JOIN unnest($1::text[], $2::text[]) AS c(chain_id, criteria_hash) ON c.chain_id = m.chain_id
CROSS JOIN LATERAL (SELECT coalesce(c.criteria_hash, $3) AS criteria_hash) wanted
WHERE {is_latest("s")}
  AND s.criteria_hash <> wanted.criteria_hash
  AND ($4::text IS NULL OR m.chain_id = $4) AND ($5::timestamptz IS NULL OR s.created_at >= $5)
  AND NOT EXISTS (SELECT FROM {{schema}}.session_scores o WHERE o.session_id = s.session_id
                  AND o.status IN ('pending', 'in_progress') AND o.purpose = 'production'
                  AND o.criteria_hash = wanted.criteria_hash)
ORDER BY s.session_id
"""

# Those of these sessions that have no production score; one that was cancelled is none.
NEVER_SCORED = """
SELECT i.session_id FROM unnest($1::text[]) AS i(session_id)
WHERE NOT EXISTS (SELECT FROM {schema}.session_scores s
                  WHERE s.session_id = i.session_id AND s.purpose = 'production' AND s.status <> 'cancelled')
"""

# What the newest score of a session took that says so, and the session's chain.
TAKEN_BY_SESSIONS = f"""
SELECT i.session_id, t.tokens, t.cost_usd,
       (SELECT m.chain_id FROM {{schema}}.sessions m WHERE m.session_id = i.session_id) AS chain_id
FROM unnest($1::text[]) AS i(session_id)
CROSS JOIN LATERAL (
  SELECT (array_agg(u.tokens ORDER BY {NEWEST_FIRST}) FILTER (WHERE u.tokens IS NOT NULL))[1] AS tokens,
         (array_agg(u.cost_usd ORDER BY {NEWEST_FIRST}) FILTER (WHERE u.cost_usd IS NOT NULL))[1] AS cost_usd
  FROM {{schema}}.session_scores s CROSS JOIN LATERAL (
    SELECT (s.usage ->> 'input_tokens')::float8 + (s.usage ->> 'output_tokens')::float8 AS tokens,
           (s.usage ->> 'cost_usd')::float8 AS cost_usd) u
  WHERE s.session_id = i.session_id AND {is_completed("s")}) t
"""

# What the newest 1,000 scores of each chain took on average. No chain is a chain of its own.
TAKEN_BY_CHAINS = """
SELECT c.chain_id, avg((s.usage ->> 'input_tokens')::float8 + (s.usage ->> 'output_tokens')::float8) AS tokens,
       avg((s.usage ->> 'cost_usd')::float8) AS cost_usd
FROM unnest($1::text[]) AS c(chain_id)
CROSS JOIN LATERAL (
  SELECT usage FROM {schema}.session_scores s
  WHERE s.chain_id IS NOT DISTINCT FROM c.chain_id AND s.status = 'completed' AND s.purpose = 'production'
  ORDER BY s.created_at DESC LIMIT 1000) s
GROUP BY c.chain_id
"""

_BATCH = 1000  # sessions looked up in one statement
_EARLIEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Taken:
    """What a score took, or scores took on average; None where it is not known."""

    tokens: float | None = None
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Amount:
    """
    About how much a selection takes.

    Args:
        about: Over the sessions for which there is something to go by; None where there is nothing.
        from_own_scores, from_chain_average, unknown: How many sessions rest on what; they add up to all.
    """

    about: float | None
    from_own_scores: int
    from_chain_average: int
    unknown: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """About what it takes to score a selection once; `chains` counts its sessions, None being no known chain."""

    sessions: int
    chains: Mapping[str | None, int]
    tokens: Amount
    cost_usd: Amount


async def obsolete_sessions(database: Database, policy: Policy, chain: str | None, since: datetime | None) -> list[str]:
    """
    Sessions whose newest completed score is not under the current hash of their chain's criteria.

    Args:
        since: Only where that score was made since then.

    Raises:
        ConfigurationError: A chain names criteria that nobody has: everything would look obsolete.
        DatabaseAway: See `Database.once`.
    """
    chains = policy.settings.config.chains
    hashes = [_hash(policy, f"chains.{name}", settings) for name, settings in chains.items()]
    default = _hash(policy, "defaults", policy.settings.config.defaults)
    arguments = (list(chains), hashes, default, chain, since)
    rows = await database.once(lambda c: c.fetch(database.sql(OBSOLETE_SESSIONS), *arguments))
    return [r["session_id"] for r in rows]


def _hash(policy: Policy, where: str, chain: ChainSettings) -> str:
    if (found := policy.hashes.get(chain.criteria)) is None:
        known = ", ".join(sorted(policy.hashes))
        raise ConfigurationError(f"{where}.criteria: no criteria are called {chain.criteria!r} (known: {known})")
    return found


async def never_scored(database: Database, listed: AsyncIterator[FoundSession]) -> list[FoundSession]:
    """
    Those of the listed sessions that have no production score, oldest first; what says no end comes first.

    Raises:
        DatabaseAway: See `Database.once`.
        TimelineUnavailable: From the listing.
    """
    found: list[FoundSession] = []
    async for batch in _batches(listed):
        rows = await _in_batches(database, NEVER_SCORED, list(batch))
        found += [batch[r["session_id"]] for r in rows]
    return sorted(found, key=lambda session: (session.completed_at or _EARLIEST, session.session_id))


async def _batches(listed: AsyncIterator[FoundSession]) -> AsyncIterator[dict[str, FoundSession]]:
    batch: dict[str, FoundSession] = {}
    async for session in listed:
        batch[session.session_id] = session
        if len(batch) == _BATCH:
            yield batch
            batch = {}
    yield batch


async def estimate_of(database: Database, sessions: Mapping[str, str | None]) -> Estimate:
    """
    About what it takes to score these sessions, each once.

    Args:
        sessions: With their chains; None: what is stored of the session.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    rows = await _in_batches(database, TAKEN_BY_SESSIONS, list(sessions))
    own = {r["session_id"]: Taken(r["tokens"], r["cost_usd"]) for r in rows}
    chains = {r["session_id"]: sessions[r["session_id"]] or r["chain_id"] for r in rows}
    lacking = {chains[s] for s, taken in own.items() if taken.tokens is None or taken.cost_usd is None}
    averages = await database.once(lambda c: c.fetch(database.sql(TAKEN_BY_CHAINS), list(lacking)))
    return add_up(chains, own, {r["chain_id"]: Taken(r["tokens"], r["cost_usd"]) for r in averages})


async def _in_batches(database: Database, statement: str, sessions: Sequence[str]) -> list[asyncpg.Record]:
    """Rows of a statement over sessions, a batch of them at a time."""

    def fetch(batch: list[str]) -> Callable[[Connection], Awaitable[list[asyncpg.Record]]]:
        return lambda connection: connection.fetch(database.sql(statement), batch)

    rows: list[asyncpg.Record] = []
    waiting = iter(sessions)
    while batch := list(islice(waiting, _BATCH)):
        rows += await database.once(fetch(batch))
    return rows


def add_up(
    chains: Mapping[str, str | None], own: Mapping[str, Taken], averages: Mapping[str | None, Taken]
) -> Estimate:
    """
    The estimate of a selection: what a session's own scores took, else its chain's average, else unknown.

    Args:
        chains: Of every session of the selection.
        own: By session.
        averages: By chain.
    """

    def amount(of: Callable[[Taken], float | None]) -> Amount:
        about, own_scores, averaged = 0.0, 0, 0
        for session, chain in chains.items():
            if (taken := of(own.get(session, Taken()))) is not None:
                own_scores += 1
            elif (taken := of(averages.get(chain, Taken()))) is not None:
                averaged += 1
            about += taken or 0
        known = own_scores + averaged
        return Amount(about if known else None, own_scores, averaged, len(chains) - known)

    return Estimate(len(chains), Counter(chains.values()), amount(lambda t: t.tokens), amount(lambda t: t.cost_usd))

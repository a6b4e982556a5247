"""
Select sessions for a rescore or a backfill, and estimate tokens and costs.

An estimate rests on earlier scores only. Without any it is unknown.
"""

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.queue.admission import Policy
from tarsy_scoring.scores.latest import is_latest
from tarsy_scoring.timeline.model import FoundSession

# Sessions whose latest completed score has other criteria than their chain now ($1: chains, $2: hashes, $3:
# the hash for all other chains; null: no judge). A session with an open score under these criteria is left
# out.
OBSOLETE_SESSIONS = f"""
SELECT s.session_id
FROM {{schema}}.session_scores s
JOIN {{schema}}.sessions m USING (session_id)
LEFT JOIN unnest($1::text[], $2::text[]) AS c(chain_id, criteria_hash) ON c.chain_id = m.chain_id
CROSS JOIN LATERAL (SELECT CASE WHEN c.chain_id IS NULL THEN $3 ELSE c.criteria_hash END
  AS criteria_hash) wanted
WHERE {is_latest("s")}
  AND s.criteria_hash <> wanted.criteria_hash
  AND ($4::text IS NULL OR m.chain_id = $4) AND ($5::timestamptz IS NULL OR s.created_at >= $5)
  AND NOT EXISTS (SELECT FROM {{schema}}.session_scores o WHERE o.session_id = s.session_id
                  AND o.status IN ('pending', 'in_progress') AND o.purpose = 'production'
                  AND o.criteria_hash = wanted.criteria_hash)
ORDER BY s.session_id
"""

# Those sessions that have no production score; a cancelled one does not count.
NEVER_SCORED = """
SELECT i.session_id FROM unnest($1::text[]) AS i(session_id)
WHERE NOT EXISTS (SELECT FROM {schema}.session_scores s
                  WHERE s.session_id = i.session_id AND s.purpose = 'production'
                    AND (s.status <> 'cancelled' OR s.error_kind = 'nothing_to_judge'))
"""

CHAINS_OF_SESSIONS = "SELECT session_id, chain_id FROM {schema}.sessions WHERE session_id = ANY($1::text[])"

# What the newest 1,000 scores used on average, by chain. Sessions without a chain count as one chain.
USAGE_OF_CHAINS = """
SELECT c.chain_id, avg((s.usage ->> 'input_tokens')::float8 + (s.usage ->> 'output_tokens')::float8)
  AS tokens,
       avg((s.usage ->> 'cost_usd')::float8) AS cost_usd
FROM unnest($1::text[]) AS c(chain_id)
CROSS JOIN LATERAL (
  SELECT usage FROM {schema}.session_scores s
  WHERE s.chain_id IS NOT DISTINCT FROM c.chain_id AND s.status = 'completed' AND s.purpose = 'production'
  ORDER BY s.created_at DESC LIMIT 1000) s
GROUP BY c.chain_id
"""

_EARLIEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Amount:
    """
    An estimated amount for a selection.

    Args:
        about: Sum over the sessions with an estimate; None if there is none.
        unknown: Sessions without an estimate: no score of their chain says what it used.
    """

    about: float | None
    unknown: int


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """
    Estimate for scoring each session of a selection `times` times; `chains` counts the sessions by chain,
    None for an unknown one.
    """

    sessions: int
    chains: Mapping[str | None, int]
    tokens: Amount
    cost_usd: Amount
    times: int = 1


async def obsolete_sessions(
    database: Database, policy: Policy, chain: str | None, since: datetime | None
) -> list[str]:
    """
    Sessions whose latest completed score is not under the current hash of their chain's criteria.

    A chain without a judge has none: no criteria judge the sessions.

    Args:
        since: Only if that score was created since then.

    Raises:
        ConfigurationError: A chain names criteria that do not exist, so all scores would look obsolete.
        DatabaseAway: See `Database.once`.
    """
    chains = policy.settings.config.chains
    hashes = [_hash(policy, f"chains.{name}", name) for name in chains]
    default = _hash(policy, "defaults", None)
    rows = await database.rows(OBSOLETE_SESSIONS, list(chains), hashes, default, chain, since)
    return [r["session_id"] for r in rows]


def _hash(policy: Policy, where: str, chain_id: str | None) -> str | None:
    """The current hash of a chain; None for a chain without a judge."""
    chain = policy.chain(chain_id)
    if not chain.judge:
        return None
    name, found = policy.resolve_criteria(chain_id, chain.criteria)
    if found is None:
        known = ", ".join(sorted(policy.hashes))
        raise ConfigurationError(f"{where}.criteria: no criteria are called {name!r} (known: {known})")
    return found


async def never_scored(database: Database, listed: AsyncIterator[FoundSession]) -> list[FoundSession]:
    """
    The listed sessions without a production score, oldest first; sessions without an end come before all
    others. Holds all listed sessions at once.

    Raises:
        DatabaseAway: See `Database.once`.
        TimelineUnavailable: From the listing.
    """
    sessions = {session.session_id: session async for session in listed}
    found = [sessions[r["session_id"]] for r in await database.fetch(NEVER_SCORED, list(sessions))]
    return sorted(found, key=lambda session: (session.completed_at or _EARLIEST, session.session_id))


async def estimate_of(database: Database, sessions: Mapping[str, str | None], times: int = 1) -> CostEstimate:
    """
    Estimate tokens and cost if each session is scored so many times, from the average of its chain.

    Args:
        sessions: Chains by session; None for the stored chain of the session.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    unnamed = [session for session, chain in sessions.items() if chain is None]
    stored = {r["session_id"]: r["chain_id"] for r in await database.fetch(CHAINS_OF_SESSIONS, unnamed)}
    chains = Counter(chain or stored.get(session) for session, chain in sessions.items())
    averages = await database.fetch(USAGE_OF_CHAINS, list(chains))

    def amount(of: str) -> Amount:
        known = {r["chain_id"]: r[of] for r in averages if r[of] is not None}
        about = sum(known[chain] * number * times for chain, number in chains.items() if chain in known)
        return Amount(about if known else None, sum(n for chain, n in chains.items() if chain not in known))

    return CostEstimate(len(sessions), chains, amount("tokens"), amount("cost_usd"), times)

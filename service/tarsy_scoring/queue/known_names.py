"""
Leaves scores to workers whose configuration has their criteria and their chain.

During a rollout workers differ in criteria and chains. Each judging worker announces the names that it knows.
The claim leaves out scores under criteria that the worker does not know. It also leaves out scores of a chain
that the worker does not name, if another worker names it or if it was named when the score was accepted: the
sessions of a chain reach only providers that are configured for it. A score fails if no worker has known its
names for a grace time.
"""

import asyncpg

from tarsy_scoring.events import SOURCE_COMPLETED
from tarsy_scoring.outbox import outbox
from tarsy_scoring.postgres.database import Connection
from tarsy_scoring.queue.claims import ClaimedScore, progress
from tarsy_scoring.queue.inbox import DEFER_JOINED, Inbox, production_sessions
from tarsy_scoring.queue.leases import ENDED, event_after
from tarsy_scoring.scores.reader import KNOWN

# In one order, so that workers do not deadlock.
ANNOUNCE = """
INSERT INTO {schema}.known_names (kind, name, seen_at)
SELECT kind, name, now() FROM unnest($1::text[], $2::text[]) AS t(kind, name) ORDER BY kind, name
ON CONFLICT (kind, name) DO UPDATE SET seen_at = excluded.seen_at
"""

# Puts a score back with the chain, if another worker names the chain. Criteria of another chain go with that
# chain.
LEAVE = """
UPDATE {schema}.session_scores SET
  chain_id = $3, criteria = $6, criteria_hash = CASE WHEN criteria = $6 THEN criteria_hash END,
  status = 'pending', next_attempt_at = now(), spent_s = spent_s + $4,
  lease_owner = NULL, lease_token = NULL, lease_expires_at = NULL
WHERE score_id = $1 AND lease_token = $2 AND EXISTS (
  SELECT FROM {schema}.known_names
  WHERE kind = 'chain' AND name = $3 AND seen_at > now() - make_interval(secs => $5))
RETURNING score_id
"""

# $1: criteria and $2: chains that a worker knows. Scores without criteria, or of a chain that was not named,
# are for every worker.
_HAS_UNKNOWN_CRITERIA = "(s.criteria IS NOT NULL AND s.criteria <> ALL ($1::text[]))"
_IS_UNKNOWN = f"({_HAS_UNKNOWN_CRITERIA} OR s.chain_is_named AND s.chain_id <> ALL ($2::text[]))"

# The limit keeps the transaction short.
UNKNOWN = f"""
SELECT s.score_id, s.session_id FROM {{schema}}.session_scores s
WHERE s.status = 'pending' AND s.next_attempt_at <= now() - make_interval(secs => $3) AND {_IS_UNKNOWN}
LIMIT 500
"""

# Checks state and names again under the row lock.
FAIL_UNKNOWN = f"""
WITH unknown AS (
  SELECT s.score_id, {_HAS_UNKNOWN_CRITERIA} AS has_unknown_criteria FROM {{schema}}.session_scores s
  WHERE s.score_id = ANY($3::uuid[]) AND s.status = 'pending' AND {_IS_UNKNOWN}
  ORDER BY s.score_id FOR UPDATE OF s SKIP LOCKED
)
UPDATE {{schema}}.session_scores s SET
  status = 'failed', completed_at = now(), waiting_reason = NULL, waiting_for_text = NULL,
  error_kind = CASE WHEN has_unknown_criteria THEN 'unknown_criteria' ELSE 'unknown_chain' END,
  error_message = CASE WHEN has_unknown_criteria
    THEN 'no worker knows the criteria "' || s.criteria || '": add them to the criteria_dirs of the workers, or '
      'ask for a score under other criteria'
    ELSE 'no worker names the chain "' || s.chain_id || '" in its configuration any more, and its sessions may go '
      'only to providers that are configured for it: name the chain again, or ask again for a score under defaults'
    END
FROM unknown u WHERE s.score_id = u.score_id
RETURNING {ENDED}
"""


async def announce(inbox: Inbox) -> None:
    """Record that this worker lives and knows the configured names. Raises: DatabaseAway."""
    policy = inbox.policy
    names = [("chain", name) for name in policy.chains] + [("criteria", name) for name in policy.hashes]
    await inbox.database.fetch(ANNOUNCE, [kind for kind, _ in names], [name for _, name in names])


async def leave_to_others(
    inbox: Inbox, claimed: ClaimedScore, chain_id: str, criteria: str | None, spent_s: float
) -> bool:
    """
    Put a score back for other workers, if one of them names the chain. Waits for the database.

    The chain is stored, so that this worker does not claim the score again.

    Args:
        chain_id: Chain of the session, which this worker does not name.
        criteria: Criteria of the score; None: those of this chain.

    Returns:
        Whether the score was put back.
    """

    async def work(connection: Connection) -> bool:
        row = (claimed.score_id, claimed.lease_token, chain_id, spent_s, inbox.policy.living_s, criteria)
        is_left = await connection.fetchval(inbox.database.sql(LEAVE), *row) is not None
        if is_left:
            await outbox.emit(inbox.database, connection, [progress(claimed, "waiting_retry")])
        return is_left

    is_left = await inbox.database.persist(work)
    if is_left:
        inbox.database.notify("scores", "events")
    return is_left


async def fail_unknown(inbox: Inbox, grace_s: float) -> list[asyncpg.Record]:
    """
    Fail due scores under criteria, or of a named chain, that no worker has announced for `grace_s`.

    Each score has a grace: it fails only after it has been due for as long. Returns `ENDED` of each.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    database = inbox.database

    async def work(connection: Connection) -> list[asyncpg.Record]:
        known = _by_kind(await connection.fetch(database.sql(KNOWN), grace_s))
        found = await connection.fetch(database.sql(UNKNOWN), *known, grace_s)
        if not found:
            return []
        # A session that another program keeps locked is left to the next pass.
        chains = await inbox.lock_sessions(connection, {r["session_id"] for r in found}, skip_locked=True)
        free = [r["score_id"] for r in found if r["session_id"] in chains]
        rows = await connection.fetch(database.sql(FAIL_UNKNOWN), *known, free)
        await outbox.emit(database, connection, [event_after(r) for r in rows])
        # An automatic request does not name the criteria of the score that it joined.
        misnamed = [r["score_id"] for r in rows if r["error_kind"] == "unknown_criteria"]
        await connection.execute(database.sql(DEFER_JOINED), misnamed, SOURCE_COMPLETED)
        await inbox.promote(connection, chains, production_sessions(rows))
        return rows

    lost = await database.once(work)
    if lost:
        database.notify("scores", "events")
    return lost


def _by_kind(rows: list[asyncpg.Record]) -> list[list[str]]:
    """The criteria and the chains in rows of `KNOWN`."""
    return [[r["name"] for r in rows if r["kind"] == kind] for kind in ("criteria", "chain")]

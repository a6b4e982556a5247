"""
The right to run a score: claim it under a lease, renew, put it back, take it back, cancel it.

Laws. A lease is renewed and returned by token; if no row matches, the lease is lost. Sessions are locked
before scores, and several scores in the order of their ids or without waiting. The database's clock decides
leases and due times. A transaction that ends a score also promotes the session's deferred request.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import asyncpg

from tarsy_scoring.audit import audit
from tarsy_scoring.errors import LeaseLost
from tarsy_scoring.outbox import outbox
from tarsy_scoring.outbox.outbox import NewEvent
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.queue import claims
from tarsy_scoring.queue.claims import ClaimedScore
from tarsy_scoring.queue.inbox import Inbox, production_sessions

BACKOFF_FIRST_S, BACKOFF_MOST_S, BACKOFF_JITTER = 10.0, 600.0, 0.2
# Idempotent: after a commit whose reply was lost it finds the attempt begun, and returns false.
BEGIN_ATTEMPT = """
UPDATE {schema}.session_scores s SET attempt = $3
FROM {schema}.session_scores before WHERE before.score_id = s.score_id
  AND s.score_id = $1 AND s.lease_token = $2
RETURNING before.attempt < $3
"""

# Renews the listed leases and never "all rows of this owner": a row that no task works on, because the reply
# to its claim was lost, must be allowed to lapse. A row that another transaction has locked is left to
# `RENEW_LOCKED`, so that it does not cost the others their leases. That lease counts as held as long as its
# token is
# stored: if it is being taken back, the next renewal finds out, and until then no write matches.
RENEW = """
WITH held AS (
  SELECT s.score_id, s.lease_token FROM {schema}.session_scores s
  JOIN unnest($1::uuid[], $2::uuid[]) AS h(score_id, token) ON s.score_id = h.score_id
    AND s.lease_token = h.token
), free AS (
  SELECT s.score_id FROM {schema}.session_scores s JOIN held USING (score_id, lease_token)
  FOR NO KEY UPDATE OF s SKIP LOCKED
), renewed AS (
  UPDATE {schema}.session_scores s SET lease_expires_at = now() + make_interval(secs => $3)
  FROM free WHERE s.score_id = free.score_id
)
SELECT lease_token, score_id NOT IN (SELECT score_id FROM free) AS is_locked FROM held
"""

# Waits for the rows, and so renews a lapsed lease before another worker, which skips locked rows, can take it
# back.
RENEW_LOCKED = """
UPDATE {schema}.session_scores s SET lease_expires_at = clock_timestamp() + make_interval(secs => $3)
FROM unnest($1::uuid[], $2::uuid[]) AS h(score_id, token)
WHERE s.score_id = h.score_id AND s.lease_token = h.token
"""

# The limit keeps the transaction short.
EXPIRED = """
SELECT score_id, session_id FROM {schema}.session_scores
WHERE status = 'in_progress' AND lease_expires_at < now() AND lease_token <> ALL ($1::uuid[])
LIMIT 500
"""

# Trace context of the request of a score `s`. A held score has that of the attempt.
TRACE = "(SELECT r.traceparent FROM {schema}.scoring_requests r WHERE r.request_id = s.request_id)"

# What callers and `event_after` read of a score `s` that lost the lease or ended.
ENDED = f"""s.score_id, s.session_id, s.chain_id, s.purpose, s.status, s.error_kind, s.error_message,
  {TRACE} AS traceparent"""

# When the last attempt of a score `s` began.
_STARTED = """(SELECT max(e.created_at) FROM {schema}.scoring_events e
               WHERE e.score_id = s.score_id AND e.type = 'scoring.started')"""

# Checks state and lease again under the row lock, so that a score renewed or finished meanwhile is not taken.
# Only a suspect fails, because it was the only one that the worker ran; the others were perhaps beside it. If
# one attempt is all that a score has, there is no second one in which to find out.
TAKE_BACK = f"""
WITH lost AS (
  SELECT score_id, attempts_burned + 1 AS burned, losses + 1 AS losses,
         losses >= least({claims.SUSPECT_LOSSES}, $2 - 1) AS is_to_blame,
         spent_s + greatest(0, extract(epoch FROM lease_expires_at - {_STARTED})) AS spent
  FROM {{schema}}.session_scores s
  WHERE score_id = ANY($1::uuid[]) AND status = 'in_progress' AND lease_expires_at < now()
  ORDER BY score_id FOR UPDATE SKIP LOCKED
), judged AS (
  SELECT *, CASE WHEN burned >= $2 AND is_to_blame THEN 'failed' WHEN spent >= $3 THEN 'timed_out'
    ELSE 'pending' END AS status
  FROM lost
)
UPDATE {{schema}}.session_scores s SET
  status = j.status, attempts_burned = j.burned, losses = j.losses, spent_s = j.spent,
  next_attempt_at = now() + make_interval(secs => (1 + {BACKOFF_JITTER} * (2 * random() - 1))
    * least({BACKOFF_MOST_S}, {BACKOFF_FIRST_S} * 2 ^ least(j.losses - 1, 10))),
  lease_owner = NULL, lease_token = NULL, lease_expires_at = NULL,
  waiting_reason = CASE j.status WHEN 'pending' THEN 'retry' END,
  completed_at = CASE j.status WHEN 'pending' THEN NULL ELSE now() END,
  waiting_for_text = CASE j.status WHEN 'pending' THEN
    'the worker that held it stopped answering (attempt ' || s.attempt || ')' END,
  error_kind = CASE j.status WHEN 'timed_out' THEN 'deadline_passed' WHEN 'failed' THEN 'worker_lost' END,
  error_message = CASE j.status
    WHEN 'timed_out' THEN 'its attempts took longer than the deadline allows; the last worker was lost'
    WHEN 'failed' THEN j.losses || ' workers stopped answering while they held it (the last at attempt ' || s.attempt
      || '); check their memory limit and the size of the session' END
FROM judged j WHERE s.score_id = j.score_id
RETURNING {ENDED}
"""

PUT_BACK = """
UPDATE {schema}.session_scores SET
  status = 'pending', next_attempt_at = now() + make_interval(secs => $3), waiting_reason = $4,
  attempts_burned = attempts_burned + $5, spent_s = spent_s + $6, waiting_for_text = $7,
  lease_owner = NULL, lease_token = NULL, lease_expires_at = NULL
WHERE score_id = $1 AND lease_token = $2 RETURNING score_id
"""

# Rows of this owner that none of its tasks runs: the reply to their claim was lost.
RELEASE_UNTRACKED = f"""
WITH untracked AS (
  SELECT score_id FROM {{schema}}.session_scores
  WHERE status = 'in_progress' AND lease_owner = $1 AND lease_token <> ALL ($2::uuid[])
  ORDER BY score_id FOR UPDATE SKIP LOCKED
)
UPDATE {{schema}}.session_scores s SET
  status = 'pending', next_attempt_at = now(),
  lease_owner = NULL, lease_token = NULL, lease_expires_at = NULL
FROM untracked u WHERE s.score_id = u.score_id RETURNING {ENDED}
"""

SESSION_OF_SCORE = "SELECT session_id FROM {schema}.session_scores WHERE score_id = $1"

CANCEL = f"""
UPDATE {{schema}}.session_scores s SET
  status = 'cancelled', completed_at = now(), error_kind = 'cancelled', error_message = $2,
  lease_owner = NULL, lease_token = NULL, lease_expires_at = NULL,
  waiting_reason = NULL, waiting_for_text = NULL
WHERE score_id = $1 AND status IN ('pending', 'in_progress')
RETURNING {ENDED}
"""


class Leases:
    """
    Transitions of open scores by claim, lease and cancellation.

    A cancel at any await leaves a transaction either committed or rolled back.
    """

    def __init__(self, database: Database, inbox: Inbox) -> None:
        self.database = database
        self.inbox = inbox

    async def claim_due(
        self,
        owner: UUID,
        limit: int,
        lease_s: float,
        chains: claims.ChainFilter = claims.EVERY_CHAIN,
        *,
        max_suspects: int = 1,
        suspect_losses: int = claims.SUSPECT_LOSSES,
    ) -> list[ClaimedScore]:
        """
        Claim up to `limit` due scores of these chains, most urgent first.

        Scores whose criteria or chain only other workers know are left to them.

        Args:
            max_suspects: Limit of suspects among them.
            suspect_losses: See `suspect_losses_of`.

        Raises:
            DatabaseAway: Not retried here. If the reply to a commit was lost, no task works on the claimed
                rows, so a retry must be a new claim. `release_untracked` frees them before their leases
                lapse.
        """

        async def work(connection: Connection) -> list[ClaimedScore]:
            policy = self.inbox.policy
            known = (list(policy.hashes), list(policy.chains), policy.living_s)
            arguments = (owner, limit, lease_s, *chains, max_suspects, suspect_losses, *known)
            # `fetch` prepares it; `execute` without arguments would let the server plan it each time, for 0.5
            # ms.
            await connection.fetch(self.database.sql(claims.MOVE_CLAIM_FLOOR))
            rows = await connection.fetch(self.database.sql(claims.CLAIM), *arguments)
            claimed = [ClaimedScore.of(row) for row in rows]
            attempts = [c for c in claimed if not c.is_lookup_only]
            await outbox.emit(
                self.database, connection, [e for c in attempts for e in claims.begun_events(c)]
            )
            return claimed

        claimed = await self.database.once(work)
        if any(not c.is_lookup_only for c in claimed):
            self.database.notify("events")
        return claimed

    async def begin_attempt(self, look: ClaimedScore) -> ClaimedScore:
        """
        Begin the attempt of a score that was claimed for a look and whose session is there. Waits for the
        database.

        A look emits no event and is not counted; from here on the attempt is like any other.

        Returns:
            The claimed score with the attempt number.

        Raises:
            LeaseLost: The lease is no longer held.
        """
        begun = replace(look, attempt=look.attempt + 1, is_lookup_only=False)

        async def work(connection: Connection) -> bool:
            row = (begun.score_id, begun.lease_token, begun.attempt)
            is_new = await connection.fetchval(self.database.sql(BEGIN_ATTEMPT), *row)
            if is_new:
                await outbox.emit(self.database, connection, claims.begun_events(begun))
            return is_new is not None

        if not await self.database.persist(work):
            raise LeaseLost(f"score {look.score_id}: the lease was lost before its attempt began")
        self.database.notify("events")
        return begun

    async def keep(self, held: Sequence[ClaimedScore], lease_s: float) -> tuple[set[UUID], set[UUID]]:
        """
        Renew leases; returns the tokens that are held, and among them those that were not renewed, because
        another transaction had locked the score.

        Raises:
            DatabaseAway: See `Database.once`.
        """
        ids, tokens = [c.score_id for c in held], [c.lease_token for c in held]
        rows = await self.database.rows(RENEW, ids, tokens, lease_s)
        return {r["lease_token"] for r in rows}, {r["lease_token"] for r in rows if r["is_locked"]}

    async def keep_locked(self, locked: Sequence[ClaimedScore], lease_s: float) -> None:
        """
        Renew leases of scores that other transactions have locked; waits for them.

        Raises:
            DatabaseAway: A lock was not granted in time, or see `Database.once`.
        """
        ids, tokens = [c.score_id for c in locked], [c.lease_token for c in locked]
        await self.database.once(lambda c: c.execute(self.database.sql(RENEW_LOCKED), ids, tokens, lease_s))

    async def release_untracked(self, owner: UUID, tokens: Collection[UUID]) -> None:
        """
        Put scores of this owner back that it holds under other tokens than these; burns nothing.

        Scores that another transaction has locked are passed over.

        Args:
            tokens: All that the owner knows, with no claim under way.

        Raises:
            DatabaseAway: See `Database.once`.
        """

        async def work(connection: Connection) -> None:
            rows = await connection.fetch(self.database.sql(RELEASE_UNTRACKED), owner, list(tokens))
            await outbox.emit(self.database, connection, [event_after(r) for r in rows])

        await self.database.once(work)

    async def take_back_expired(
        self,
        max_attempts: int,
        deadline_s: float,
        *,
        may_take: Callable[[], bool] = lambda: True,
        running: Collection[UUID] = (),
    ) -> list[asyncpg.Record]:
        """
        Take scores back whose leases have expired; burns one attempt of each.

        A score that has attempts and time left becomes pending, with backoff, so that scores that were lost
        together are not all claimed together again. The others end; for want of attempts only suspects do.

        Args:
            deadline_s: Time that all attempts of a score together may take.
            may_take: Asked when the transaction has begun: that time decides which leases have expired, and
                the call may have waited for a connection.
            running: Leases of the caller's own attempts. They are not taken back: it renews them again.

        Returns:
            `ENDED` of each score; it has an error where it ended.

        Raises:
            DatabaseAway: See `Database.once`.
        """

        async def work(connection: Connection) -> list[asyncpg.Record]:
            if not may_take():
                return []
            found = await connection.fetch(self.database.sql(EXPIRED), list(running))
            if not found:
                return []
            # A session that another program keeps locked must not delay the others; the next pass tries it
            # again.
            expired = {r["session_id"] for r in found}
            chains = await self.inbox.lock_sessions(connection, expired, skip_locked=True)
            ids = [r["score_id"] for r in found if r["session_id"] in chains]
            rows = await connection.fetch(self.database.sql(TAKE_BACK), ids, max_attempts, deadline_s)
            await outbox.emit(self.database, connection, [event_after(r) for r in rows])
            ended = production_sessions(r for r in rows if r["status"] != "pending")
            await self.inbox.promote(connection, chains, ended)
            return rows

        lost = await self.database.once(work)
        if lost:
            self.database.notify("events", "scores")  # a deferred request may have become a score
        return lost

    async def put_back(
        self,
        claimed: ClaimedScore,
        *,
        due_s: float,
        waiting_reason: str | None,
        burns: bool,
        spent_s: float,
        waiting_for_text: str | None = None,
    ) -> None:
        """
        Return a score to `pending`, due in `due_s` seconds. Waits for the database. A look emits no event.

        Args:
            burns: Whether this attempt counts towards the limit of attempts.
            waiting_for_text: What it waits for, in words.
            spent_s: Time that this attempt and the backoff took, counted towards the deadline.

        Raises:
            LeaseLost: The lease is no longer held.
        """

        async def work(connection: Connection) -> bool:
            row = (due_s, waiting_reason, int(burns), spent_s, waiting_for_text)
            lease = (claimed.score_id, claimed.lease_token)
            held = await connection.fetchval(self.database.sql(PUT_BACK), *lease, *row)
            if held is not None and not claimed.is_lookup_only:
                await outbox.emit(self.database, connection, [claims.progress(claimed, "waiting_retry")])
            return held is not None

        if not await self.database.persist(work):
            raise LeaseLost(f"score {claimed.score_id}: the lease was lost before it was put back")
        if due_s <= 0:
            self.database.notify("scores", "events")

    async def cancel(self, score_id: UUID, by: str) -> bool:
        """
        Cancel a pending or running score and record the caller; the worker notices at the next heartbeat.

        Returns:
            Whether the score was still open.

        Raises:
            DatabaseAway: The score may have been cancelled even so.
        """

        async def work(connection: Connection) -> bool:
            session_id = await connection.fetchval(self.database.sql(SESSION_OF_SCORE), score_id)
            if session_id is None:
                return False
            chains = await self.inbox.lock_sessions(connection, {session_id})
            message = f"cancelled by {by}"
            cancelled = await connection.fetchrow(self.database.sql(CANCEL), score_id, message)
            if cancelled is None:
                return False
            await outbox.emit(self.database, connection, [event_after(cancelled)])
            ids: dict[str, Any] = {"session_id": session_id, "score_id": score_id}
            await audit.record(self.database, connection, "cancel", by=by, **ids)
            await self.inbox.promote(connection, chains, production_sessions([cancelled]))
            return True

        cancelled = await self.database.once(work)
        self.database.notify("scores", "events")  # a deferred request may have become one
        return cancelled


def event_after(row: Any) -> NewEvent:
    """The event of a score (a row of `ENDED`) that lost the lease: it waits again, or has ended."""
    if row["status"] == "pending":
        return NewEvent(row["score_id"], "scoring.progress", {"phase": "waiting_retry"}, row["traceparent"])
    extra = {name: row[name] for name in ("status", "error_kind", "error_message")}
    return NewEvent(row["score_id"], "scoring.failed", extra, row["traceparent"])

"""
Requests on their way to becoming scores: stored once, decided under the lock of their session.

Laws. Accepting is idempotent: one request id, one effect, whatever is redelivered and in whatever
order. Who accepts a request or ends a score locks the row in `sessions` first, always in the order of
session ids: so nothing deadlocks, and a deferred request is promoted exactly once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID, uuid5

import asyncpg

from tarsy_scoring.errors import ScoringError, UnknownCriteria
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.queue import idempotency, outbox
from tarsy_scoring.queue.admission import (
    Decision,
    Disposition,
    NewScore,
    OpenScore,
    Policy,
    Priority,
    Request,
    SessionState,
    admit,
    promote,
)
from tarsy_scoring.queue.idempotency import KeptAnswer, Key
from tarsy_scoring.queue.latest import NEWEST_FIRST, is_completed
from tarsy_scoring.queue.on_demand import Answer, decide
from tarsy_scoring.queue.outbox import NewEvent

KNOWN_REQUESTS = "SELECT request_id FROM {schema}.scoring_requests WHERE request_id = ANY($1::uuid[])"

COUNT_ARRIVALS = """
UPDATE {schema}.scoring_requests r SET arrivals = r.arrivals + a.n
FROM unnest($1::uuid[], $2::int[]) AS a(request_id, n) WHERE r.request_id = a.request_id
"""

# Lock the sessions in order of their ids and remember what the events say of them; absent says nothing.
MEET_SESSIONS = """
INSERT INTO {schema}.sessions AS s (session_id, chain_id, alert_type, labels, status, completed_at)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::jsonb[], $5::text[], $6::timestamptz[])
  AS t(session_id, chain_id, alert_type, labels, status, completed_at)
ORDER BY session_id
ON CONFLICT (session_id) DO UPDATE SET
  chain_id = coalesce(excluded.chain_id, s.chain_id),
  alert_type = coalesce(excluded.alert_type, s.alert_type),
  labels = s.labels || excluded.labels,
  status = coalesce(excluded.status, s.status),
  completed_at = coalesce(excluded.completed_at, s.completed_at)
RETURNING session_id, chain_id
"""

LOCK_SESSION = "SELECT chain_id, status FROM {schema}.sessions WHERE session_id = $1 FOR UPDATE"

LOCK_SESSIONS = """
SELECT session_id, chain_id FROM {schema}.sessions WHERE session_id = ANY($1::text[]) ORDER BY session_id FOR UPDATE
"""

OPEN_SCORES = """
SELECT session_id, score_id, criteria, criteria_hash FROM {schema}.session_scores
WHERE session_id = ANY($1::text[]) AND status IN ('pending', 'in_progress') AND purpose = 'production'
"""

# The latest under each criteria, the latest of all last.
COMPLETED_SCORES = f"""
SELECT * FROM (
  SELECT DISTINCT ON (session_id, criteria_hash) session_id, criteria_hash, score_id, completed_at
  FROM {{schema}}.session_scores s
  WHERE session_id = ANY($1::text[]) AND {is_completed("s")}
  ORDER BY session_id, criteria_hash, {NEWEST_FIRST}
) latest ORDER BY completed_at, score_id DESC
"""

DEFERRED_REQUESTS = """
SELECT * FROM {schema}.scoring_requests WHERE session_id = ANY($1::text[]) AND disposition = 'deferred'
"""

ADD_SCORES = """
INSERT INTO {schema}.session_scores
  (score_id, session_id, request_id, chain_id, priority, score_triggered_by, criteria, criteria_hash, purpose)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::text[], $5::smallint[], $6::text[], $7::text[], $8::text[],
                     $9::text[])
"""

# Move pending scores ahead to the most urgent wish for each ($2); a running one has nothing left to wait for.
RAISE_PRIORITIES = """
WITH wanted AS (SELECT * FROM unnest($1::uuid[], $2::smallint[]) AS t(score_id, priority)),
held AS (
  SELECT s.score_id, wanted.priority FROM {schema}.session_scores s JOIN wanted USING (score_id)
  WHERE s.status = 'pending' AND s.priority > wanted.priority
  ORDER BY s.score_id FOR NO KEY UPDATE OF s
)
UPDATE {schema}.session_scores s SET priority = held.priority FROM held WHERE s.score_id = held.score_id
"""

SUPERSEDE = "UPDATE {schema}.scoring_requests SET disposition = 'superseded' WHERE request_id = ANY($1::uuid[])"

ADD_REQUESTS = """
INSERT INTO {schema}.scoring_requests
  (request_id, event_id, session_id, source, disposition, score_id, arrivals, chain_id,
   requested_by, force, criteria, reason, priority, traceparent)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::uuid[], $7::int[], $8::text[],
                     $9::text[], $10::bool[], $11::text[], $12::text[], $13::smallint[], $14::text[])
"""

ANSWER_REQUEST = "UPDATE {schema}.scoring_requests SET disposition = $2, score_id = $3 WHERE request_id = $1"

# Due work that somebody will have to do soon; counts no further than it has to.
COUNT_DUE = """
SELECT count(*) FROM (
  SELECT FROM {schema}.session_scores
  WHERE status = 'pending' AND priority < 2 AND next_attempt_at <= now() LIMIT $1) due
"""

SCORES_OF_REQUESTS = """
SELECT request_id, score_id FROM {schema}.scoring_requests WHERE request_id = ANY($1::uuid[]) AND score_id IS NOT NULL
"""

REQUESTS_BY_EVENT = """
SELECT * FROM {schema}.scoring_requests WHERE event_id = $1 ORDER BY received_at, request_id LIMIT $2
"""


@dataclass(slots=True)
class _Admitted:
    """What one batch of requests comes to."""

    new_scores: list[NewScore] = field(default_factory=list)
    decisions: dict[UUID, Decision] = field(default_factory=dict)
    superseded: list[UUID] = field(default_factory=list)
    wished: dict[UUID, Priority] = field(default_factory=dict)
    """The most urgent wish for each score that answers a request and was not made for it."""

    def add(self, request: Request, decision: Decision) -> None:
        self.decisions[request.request_id] = decision
        if decision.new_score is not None:
            self.new_scores.append(decision.new_score)
        if decision.disposition == "in_progress" and decision.score_id is not None:
            earlier = self.wished.get(decision.score_id, request.priority)
            self.wished[decision.score_id] = min(earlier, request.priority)
        if (older := decision.superseded) is not None:
            if older in self.decisions:
                self.decisions[older] = Decision("superseded")
            else:
                self.superseded.append(older)


@dataclass(frozen=True, slots=True)
class Order:
    """
    A judgement that is wanted for another purpose than to be the score of its session.

    Args:
        criteria: None: those of the session's chain, known at the latest at the first claim.
        number: Tells several of the same apart.
    """

    session_id: str
    purpose: Literal["consistency", "anchor", "shadow"]
    criteria: str | None = None
    number: int = 1

    def identity(self, run_id: UUID) -> UUID:
        """The request that this order is within a run."""
        return uuid5(run_id, "\x1f".join((self.session_id, self.purpose, self.criteria or "", str(self.number))))


@dataclass(frozen=True, slots=True)
class Unvouched:
    """
    A score would be made, and nobody vouches for its session.

    Args:
        is_known: Whether there is a row of it; what follows is what that says.
    """

    is_known: bool = False
    chain_id: str | None = None
    status: str | None = None


class NotStorable(ScoringError):
    """A request holds something that PostgreSQL will never take."""


class Inbox:
    """
    The requests of all sessions.

    Every write waits for a database that is away; a cancel at any await leaves a transaction either
    committed or rolled back.
    """

    def __init__(self, database: Database, policy: Policy) -> None:
        self.database = database
        self.policy = policy

    async def accept(self, requests: Sequence[Request]) -> dict[UUID, Disposition]:
        """
        Store requests and the pending scores they make, in one transaction.

        The same request again changes nothing but its `arrivals`. May be repeated after a lost reply. A pending
        score that answers a more urgent request takes that one's priority, without an event.

        Returns:
            What became of each request that was new; repeats are not in it.

        Raises:
            NotStorable: The database refuses one of them; nothing was stored.
        """
        arrivals: dict[UUID, int] = {}
        first: dict[UUID, Request] = {}
        for request in requests:
            arrivals[request.request_id] = arrivals.get(request.request_id, 0) + 1
            first.setdefault(request.request_id, request)

        async def work(connection: Connection) -> _Admitted:
            known = await self._known(connection, list(first))
            fresh = [r for r in first.values() if r.request_id not in known]
            states = await self._meet_sessions(connection, fresh)
            if fresh:  # somebody may have stored one of them while we waited for its session
                known |= await self._known(connection, [r.request_id for r in fresh])
                fresh = [r for r in fresh if r.request_id not in known]
            admitted = _admit_all(fresh, states, self.policy)
            await self._add(connection, admitted)
            await self._add_requests(connection, fresh, admitted, arrivals)
            repeats = {i: n for i, n in arrivals.items() if i in known}
            if repeats:
                await connection.execute(
                    self.database.sql(COUNT_ARRIVALS), sorted(repeats), [repeats[i] for i in sorted(repeats)]
                )
            return admitted

        try:
            admitted = await self.database.persist(work)
        except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as error:
            raise NotStorable(f"the database refuses what the request says: {type(error).__name__}") from error
        if admitted.new_scores:
            self.database.notify("scores")
            self.database.notify("events")
        return {i: d.disposition for i, d in admitted.decisions.items()}

    async def order(self, run_id: UUID, orders: Sequence[Order], *, requested_by: str) -> dict[Order, UUID]:
        """
        Store orders and their pending scores, in one transaction; nothing is decided about them.

        The same order of the same run is stored once, and the score it made is given again. The requests of a
        run can be looked up with its id as their event id.

        Args:
            run_id: Of the command that orders.

        Returns:
            The score of each order; none for an order whose session has been erased since.

        Raises:
            NotStorable: The database refuses one of them; nothing was stored.
        """
        requests = {
            order: Request(
                request_id=order.identity(run_id),
                session_id=order.session_id,
                source="cli",
                event_id=str(run_id),
                requested_by=requested_by,
                force=True,
                criteria=order.criteria,
                priority=Priority.PEOPLE,
                purpose=order.purpose,
            )
            for order in orders
        }
        await self.accept(list(requests.values()))
        ids = [r.request_id for r in requests.values()]
        rows = await self.database.persist(lambda c: c.fetch(self.database.sql(SCORES_OF_REQUESTS), ids))
        scores = {r["request_id"]: r["score_id"] for r in rows}
        return {order: scores[r.request_id] for order, r in requests.items() if r.request_id in scores}

    async def ask(
        self, request: Request, key: Key | None = None, *, is_vouched: bool
    ) -> Answer | KeptAnswer | Unvouched:
        """
        Answer somebody who waits for it: store the request with its pending score, or find the score that answers it.

        Nothing is deferred. Under a key the first answer is given again; a refusal stores nothing and keeps none.

        Args:
            is_vouched: The session is there and has ended, as the request says. A score that exists vouches for
                its session by itself.

        Returns:
            `Unvouched`, with nothing written, where a score would have to be made for a session that nobody
            vouches for.

        Raises:
            DatabaseAway: It may have been stored; asking again under the same key tells.
            UnknownCriteria: There are none of the name that it gives (any more: a kept answer stands all the same).
            KeyErased: What was asked under the key has been erased; nothing was stored.
            NotStorable: It holds what the database has no way to write; nothing was stored.
        """

        async def work(connection: Connection) -> Answer | KeptAnswer | Unvouched:
            if key is not None and (kept := await idempotency.recall(self.database, connection, key)) is not None:
                if kept.is_same_question:
                    await connection.execute(self.database.sql(COUNT_ARRIVALS), [kept.request_id], [1])
                return kept
            if request.criteria is not None and request.criteria not in self.policy.hashes:
                raise UnknownCriteria(f"there are no criteria {request.criteria!r}")
            unvouched = Unvouched()
            if is_vouched:
                states = await self._meet_sessions(connection, [request])
            else:
                row = await connection.fetchrow(self.database.sql(LOCK_SESSION), request.session_id)
                if row is None:
                    return unvouched
                unvouched = Unvouched(True, row["chain_id"], row["status"])
                states = await self._states(connection, {request.session_id: row["chain_id"]})
            answer = decide(request, states[request.session_id], self.policy)
            if answer.outcome == "new" and not is_vouched:
                return unvouched
            await self._store_answer(connection, request, key, answer, states[request.session_id])
            return answer

        try:
            answer = await self.database.once(work)
        except asyncpg.DataError as error:  # a constraint that is violated is our fault, and not the request's
            raise NotStorable(f"the database refuses what the request says: {type(error).__name__}") from error
        if isinstance(answer, Answer) and answer.outcome == "new":
            self.database.notify("scores")
            self.database.notify("events")
        return answer

    async def _store_answer(
        self, connection: Connection, request: Request, key: Key | None, answer: Answer, before: SessionState
    ) -> None:
        """Write what an answer comes to; nothing for a refusal."""
        if answer.decision is None:
            return
        admitted = _Admitted()
        admitted.add(request, answer.decision)
        await self._add(connection, admitted)
        await self._add_requests(connection, [request], admitted, {request.request_id: 1})
        if answer.outcome == "new":
            await idempotency.note_change(
                self.database,
                connection,
                "score" if before.latest_completed is None else "rescore",
                by=request.requested_by,
                session_id=request.session_id,
                score_id=answer.score_id,
                request_id=request.request_id,
            )
        if key is not None:
            await idempotency.keep(self.database, connection, key, answer.outcome, answer.score_id, request.request_id)

    async def _known(self, connection: Connection, ids: list[UUID]) -> set[UUID]:
        return {r["request_id"] for r in await connection.fetch(self.database.sql(KNOWN_REQUESTS), ids)}

    async def _meet_sessions(self, connection: Connection, requests: list[Request]) -> dict[str, SessionState]:
        """Lock the sessions of these requests and read what decides about them."""
        said: dict[str, dict[str, Any]] = {}
        for r in requests:
            row = said.setdefault(
                r.session_id, {"chain": None, "alert": None, "labels": {}, "status": None, "at": None}
            )
            row["chain"] = r.chain_id or row["chain"]
            row["alert"] = r.alert_type or row["alert"]
            row["labels"] |= r.labels
            row["status"] = r.session_status or row["status"]
            row["at"] = r.completed_at or row["at"]
        ids = sorted(said)
        columns = [[said[i][c] for i in ids] for c in ("chain", "alert", "labels", "status", "at")]
        rows = await connection.fetch(self.database.sql(MEET_SESSIONS), ids, *columns)
        # A batch decides its requests in order of arrival, and one request's chain must not speak for an
        # earlier one; but within a session they agree, so the newest word is taken for all.
        return await self._states(connection, {r["session_id"]: r["chain_id"] for r in rows})

    async def _states(self, connection: Connection, chains: Mapping[str, str | None]) -> dict[str, SessionState]:
        """The states of locked sessions."""
        ids = list(chains)
        states = {i: SessionState(chain_id=c) for i, c in chains.items()}
        for r in await connection.fetch(self.database.sql(OPEN_SCORES), ids):
            states[r["session_id"]].open = OpenScore(r["score_id"], r["criteria"], r["criteria_hash"])
        for r in await connection.fetch(self.database.sql(COMPLETED_SCORES), ids):
            states[r["session_id"]].completed[r["criteria_hash"]] = r["score_id"]
            states[r["session_id"]].latest_completed = r["score_id"]
        for r in await connection.fetch(self.database.sql(DEFERRED_REQUESTS), ids):
            states[r["session_id"]].deferred = r["request_id"]
        return states

    async def _add(self, connection: Connection, admitted: _Admitted) -> None:
        """Write new scores with their `queued` events, what is to be done sooner, and what they supersede."""
        new = admitted.new_scores
        if new:
            await connection.execute(
                self.database.sql(ADD_SCORES),
                [n.score_id for n in new],
                [n.request.session_id for n in new],
                [n.request.request_id for n in new],
                [n.chain_id for n in new],
                [int(n.request.priority) for n in new],
                [n.request.requested_by for n in new],
                [n.criteria for n in new],
                [n.criteria_hash for n in new],
                [n.request.purpose for n in new],
            )
            events = [NewEvent(n.score_id, "scoring.progress", {"phase": "queued"}, n.request.traceparent) for n in new]
            await outbox.emit(self.database, connection, events)
        if admitted.wished:
            scores, priorities = list(admitted.wished), [int(p) for p in admitted.wished.values()]
            await connection.execute(self.database.sql(RAISE_PRIORITIES), scores, priorities)
        if admitted.superseded:
            await connection.execute(self.database.sql(SUPERSEDE), admitted.superseded)

    async def _add_requests(
        self, connection: Connection, fresh: list[Request], admitted: _Admitted, arrivals: Mapping[UUID, int]
    ) -> None:
        if not fresh:
            return
        decided = [admitted.decisions[r.request_id] for r in fresh]
        await connection.execute(
            self.database.sql(ADD_REQUESTS),
            [r.request_id for r in fresh],
            [r.event_id for r in fresh],
            [r.session_id for r in fresh],
            [r.source for r in fresh],
            [d.disposition for d in decided],
            [d.score_id for d in decided],
            [arrivals[r.request_id] for r in fresh],
            [r.chain_id for r in fresh],
            [r.requested_by for r in fresh],
            [r.force for r in fresh],
            [r.criteria for r in fresh],
            [r.reason for r in fresh],
            [int(r.priority) for r in fresh],
            [r.traceparent for r in fresh],
        )

    async def count_due(self, limit: int) -> int:
        """Due pending scores that are not bulk, counted up to `limit`. Raises: DatabaseAway."""
        return int(await self.database.once(lambda c: c.fetchval(self.database.sql(COUNT_DUE), limit)))

    async def lock_sessions(self, connection: Connection, ids: set[str]) -> dict[str, str | None]:
        """Lock these sessions in order; returns the chain of each. Comes before any lock on their scores."""
        rows = await connection.fetch(self.database.sql(LOCK_SESSIONS), sorted(ids))
        return {r["session_id"]: r["chain_id"] for r in rows}

    async def promote(self, connection: Connection, chains: Mapping[str, str | None], ended: set[str]) -> None:
        """The one promotion: deferred requests of sessions whose score has ended become scores."""
        waiting = await connection.fetch(self.database.sql(DEFERRED_REQUESTS), sorted(ended)) if ended else []
        if not waiting:
            return
        states = await self._states(connection, {r["session_id"]: chains[r["session_id"]] for r in waiting})
        admitted = _Admitted()
        for row in waiting:
            request = _request_of(row)
            admitted.add(request, promote(request, states[request.session_id], self.policy))
        await self._add(connection, admitted)
        for request_id, decision in admitted.decisions.items():
            await self.answer(connection, request_id, decision.disposition, decision.score_id)

    async def answer(
        self, connection: Connection, request_id: UUID, disposition: Disposition, score_id: UUID | None
    ) -> None:
        """Say what became of a request after all, in the caller's transaction."""
        await connection.execute(self.database.sql(ANSWER_REQUEST), request_id, disposition, score_id)

    async def requests_of_event(self, event_id: str, limit: int = 1000) -> list[dict[str, Any]]:
        """What became of the requests with this event id, oldest first. Raises: DatabaseAway."""
        rows = await self.database.once(lambda c: c.fetch(self.database.sql(REQUESTS_BY_EVENT), event_id, limit))
        return [dict(r) for r in rows]


def _admit_all(requests: Sequence[Request], states: Mapping[str, SessionState], policy: Policy) -> _Admitted:
    """Decide about requests in order of arrival; a later one may supersede an earlier one of the same batch."""
    admitted = _Admitted()
    for request in requests:
        admitted.add(request, admit(request, states[request.session_id], policy))
    return admitted


def _request_of(row: asyncpg.Record) -> Request:
    return Request(
        request_id=row["request_id"],
        session_id=row["session_id"],
        source=row["source"],
        event_id=row["event_id"],
        chain_id=row["chain_id"],
        requested_by=row["requested_by"],
        force=row["force"],
        criteria=row["criteria"],
        reason=row["reason"],
        priority=Priority(row["priority"]),
        traceparent=row["traceparent"],
    )

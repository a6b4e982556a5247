"""
Store requests and the scores they make.

Laws. Accepting is idempotent: one request id has one effect, whatever is redelivered and in whatever order. A
transaction that accepts requests or ends scores first locks the rows in `sessions`, in the order of their
ids. So transactions do not deadlock, and a deferred request is promoted exactly once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from uuid import UUID, uuid5

import asyncpg

from tarsy_scoring.audit import audit
from tarsy_scoring.errors import ScoringError, UnknownCriteria
from tarsy_scoring.events import SOURCE_COMPLETED
from tarsy_scoring.outbox import outbox
from tarsy_scoring.outbox.outbox import NewEvent
from tarsy_scoring.postgres.database import Connection, Database, insert_of, together
from tarsy_scoring.queue import idempotency
from tarsy_scoring.queue.admission import (
    Decision,
    Disposition,
    Policy,
    Priority,
    Request,
    SessionState,
    admit,
    surviving_request,
)
from tarsy_scoring.queue.idempotency import KeptAnswer, Key
from tarsy_scoring.queue.on_demand import Answer, decide
from tarsy_scoring.queue.session_states import states_of
from tarsy_scoring.references import store as stored_references

# Like `EMIT`, PostgreSQL plans this and the locks of sessions once.
KNOWN_REQUESTS = """
SELECT request_id FROM {schema}.scoring_requests WHERE request_id = ANY((SELECT $1::uuid[])::uuid[])
"""

COUNT_ARRIVALS = """
UPDATE {schema}.scoring_requests r SET arrivals = r.arrivals + a.n
FROM unnest($1::uuid[], $2::int[]) AS a(request_id, n) WHERE r.request_id = a.request_id
"""

# Insert or lock the sessions in the order of their ids. A value that an event does not have changes nothing.
# The days on which a known session ended become dirty when that end moves.
UPSERT_SESSIONS = """
WITH moved AS (
  INSERT INTO {schema}.dirty_days (day)
  SELECT (d.at AT TIME ZONE 'UTC')::date
  FROM unnest($1::text[], $6::timestamptz[]) AS t(session_id, completed_at)
  JOIN {schema}.sessions m USING (session_id)
  CROSS JOIN LATERAL (VALUES (least(m.completed_at, m.first_seen_at)),
    (least(t.completed_at, m.first_seen_at))) d(at)
  WHERE t.completed_at IS NOT NULL
    AND least(t.completed_at, m.first_seen_at) <> least(m.completed_at, m.first_seen_at)
)
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
"""

LOCK_SESSION = "SELECT FROM {schema}.sessions WHERE session_id = $1 FOR UPDATE"

LOCK_SESSIONS = """
SELECT session_id, chain_id FROM {schema}.sessions WHERE session_id = ANY((SELECT $1::text[])::text[])
ORDER BY session_id FOR UPDATE
"""
LOCK_FREE_SESSIONS = f"{LOCK_SESSIONS} SKIP LOCKED"

DEFERRED_REQUESTS = """
SELECT r.*, m.status AS session_status FROM {schema}.scoring_requests r JOIN {schema}.sessions m
  USING (session_id)
WHERE session_id = ANY($1::text[]) AND disposition = 'deferred'
"""

# Defer the oldest automatic request that joined each of these scores, unless another one of the session is
# deferred.
DEFER_JOINED = """
UPDATE {schema}.scoring_requests SET disposition = 'deferred', score_id = NULL
WHERE request_id IN (
  SELECT DISTINCT ON (r.session_id) r.request_id FROM {schema}.scoring_requests r
  WHERE r.score_id = ANY($1::uuid[]) AND r.source = $2 AND r.disposition = 'in_progress'
    AND NOT EXISTS (SELECT FROM {schema}.scoring_requests d
                    WHERE d.session_id = r.session_id AND d.disposition = 'deferred')
  ORDER BY r.session_id, r.received_at, r.request_id)
"""

# Columns of a new score that the request and the decision hold under the same names.
FROM_REQUEST = ("session_id", "request_id", "priority", "purpose")
FROM_DECISION = ("score_id", "chain_id", "criteria", "criteria_hash", "reference_id")

ADD_SCORES = insert_of(
    "session_scores", (*FROM_REQUEST, *FROM_DECISION, "score_triggered_by", "chain_is_named")
)
_QUEUED = {"added": f"{ADD_SCORES} RETURNING *", "queued": outbox.EMIT_FOR_ADDED}

# New scores with their `queued` events.
ADD_QUEUED = together("SELECT FROM added", **_QUEUED)

# Raise pending scores to the most urgent priority that was requested ($2). A running score no longer waits.
RAISE_PRIORITIES = """
WITH wanted AS (SELECT * FROM unnest($1::uuid[], $2::smallint[]) AS t(score_id, priority)),
held AS (
  SELECT s.score_id, wanted.priority FROM {schema}.session_scores s JOIN wanted USING (score_id)
  WHERE s.status = 'pending' AND s.priority > wanted.priority
  ORDER BY s.score_id FOR NO KEY UPDATE OF s
)
UPDATE {schema}.session_scores s SET priority = held.priority FROM held WHERE s.score_id = held.score_id
"""

SUPERSEDE = (
    "UPDATE {schema}.scoring_requests SET disposition = 'superseded' WHERE request_id = ANY($1::uuid[])"
)

# Fields of a request that are stored under their own names.
REQUEST_COLUMNS = (
    "request_id",
    "event_id",
    "session_id",
    "source",
    "chain_id",
    "requested_by",
    "force",
    "criteria",
    "reason",
    "priority",
    "traceparent",
    "use_reference",
)

ADD_REQUESTS = insert_of("scoring_requests", (*REQUEST_COLUMNS, "disposition", "score_id", "arrivals"))

# Adds a score with a `queued` event, a request and a line in the audit record; returns the score.
ADD_ASKED = together(
    "SELECT s.*, s.next_attempt_at <= now() AS is_due FROM added s",
    **_QUEUED,
    request=ADD_REQUESTS,
    change=audit.RECORD,
)

# A request that an open score answers.
JOIN_SCORE = together("SELECT 1", raised=RAISE_PRIORITIES, request=ADD_REQUESTS)

SET_DISPOSITION = "UPDATE {schema}.scoring_requests SET disposition = $2, score_id = $3 WHERE request_id = $1"

SCORES_OF_REQUESTS = """
SELECT request_id, score_id FROM {schema}.scoring_requests WHERE request_id = ANY($1::uuid[])
  AND score_id IS NOT NULL
"""

REQUESTS_OF_SCORE = (
    "SELECT * FROM {schema}.scoring_requests WHERE score_id = $1 ORDER BY received_at, request_id"
)

REQUESTS_BY_EVENT = """
SELECT * FROM {schema}.scoring_requests WHERE event_id = $1 ORDER BY received_at, request_id LIMIT $2
"""


@dataclass(slots=True)
class _Decisions:
    """
    The decisions about one batch of requests, and what has to be written for them.

    Args:
        superseded: Stored deferred requests that requests of this batch replace.
        priorities: For each open score that answers a request, the most urgent priority requested.
    """

    by_request: dict[UUID, Decision] = field(default_factory=dict)
    accepted: list[tuple[Request, Decision]] = field(default_factory=list)
    superseded: list[UUID] = field(default_factory=list)
    priorities: dict[UUID, Priority] = field(default_factory=dict)

    def add(self, request: Request, decision: Decision) -> None:
        self.by_request[request.request_id] = decision
        if decision.disposition == "accepted":
            self.accepted.append((request, decision))
        if decision.disposition == "in_progress" and decision.score_id is not None:
            earlier = self.priorities.get(decision.score_id, request.priority)
            self.priorities[decision.score_id] = min(earlier, request.priority)
        if (older := decision.superseded) is not None:
            if older in self.by_request:
                self.by_request[older] = Decision("superseded")
            else:
                self.superseded.append(older)


@dataclass(frozen=True, slots=True)
class Order:
    """
    A score that a command orders beside the session's own score.

    Args:
        criteria: None for those of the session's chain, which the first claim learns at the latest.
        number: Distinguishes several orders that are otherwise equal.
    """

    session_id: str
    purpose: Literal["consistency", "anchor", "shadow"]
    criteria: str | None = None
    number: int = 1

    def identity(self, run_id: UUID) -> UUID:
        """Request id of this order within a run."""
        return uuid5(
            run_id, "\x1f".join((self.session_id, self.purpose, self.criteria or "", str(self.number)))
        )


@dataclass(frozen=True, slots=True)
class UnverifiedSession:
    """
    A score would have to be made, but it is not verified that the session exists and has ended.

    Args:
        is_known: Whether `sessions` has a row for it; the other fields come from that row.
    """

    is_known: bool = False
    chain_id: str | None = None
    status: str | None = None


class NotStorable(ScoringError):
    """A request holds a value that PostgreSQL cannot store."""


class Inbox:
    """
    Stored requests.

    A cancel at any await leaves a transaction either committed or rolled back.
    """

    def __init__(self, database: Database, policy: Policy) -> None:
        self.database = database
        self.policy = policy

    async def accept(self, requests: Sequence[Request]) -> dict[UUID, Disposition]:
        """
        Store requests and the pending scores they make, in one transaction. Waits for the database.

        A repeated request only increments `arrivals`, so the call may be repeated after a lost reply. A
        pending score that answers a more urgent request takes over that priority, without an event.

        Returns:
            The disposition of each new request, without repeated ones.

        Raises:
            NotStorable: The database refuses one of them; nothing was stored.
        """
        arrivals: dict[UUID, int] = {}
        first: dict[UUID, Request] = {}
        for request in requests:
            arrivals[request.request_id] = arrivals.get(request.request_id, 0) + 1
            first.setdefault(request.request_id, request)

        async def work(connection: Connection) -> _Decisions:
            known = await self._known(connection, list(first))
            fresh = [r for r in first.values() if r.request_id not in known]
            states = await self._lock_sessions_of(connection, fresh)
            if fresh:  # another transaction may have stored one of them while this one waited for the session
                known |= await self._known(connection, [r.request_id for r in fresh])
                fresh = [r for r in fresh if r.request_id not in known]
            decisions = _Decisions()
            for (
                request
            ) in fresh:  # in order of arrival: a later one may supersede an earlier one of the batch
                decisions.add(request, admit(request, states[request.session_id], self.policy))
            await self._add_references(connection, fresh)
            await self._add(connection, decisions)
            await self._add_requests(connection, fresh, decisions, arrivals)
            await self._count_repeats(connection, {i: n for i, n in arrivals.items() if i in known})
            return decisions

        try:
            decisions = await self.database.persist(work)
        except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as error:
            raise NotStorable(
                f"the database refuses what the request says: {type(error).__name__}"
            ) from error
        if decisions.accepted:
            self.database.notify("scores", len(decisions.accepted))
            self.database.notify("events")
        return {i: d.disposition for i, d in decisions.by_request.items()}

    async def order(self, run_id: UUID, orders: Sequence[Order], *, requested_by: str) -> dict[Order, UUID]:
        """
        Store orders and their pending scores, in one transaction. Waits for the database.

        Idempotent per run: a repeated order returns the score that it made before. The requests of a run have
        its id as their event id.

        Args:
            run_id: Id of the run of the command that orders.

        Returns:
            The score of each order, without orders whose session was erased since.

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

    async def request_score(
        self, request: Request, key: Key | None = None, *, is_verified: bool
    ) -> Answer | KeptAnswer | UnverifiedSession:
        """
        Handle an API request: store it with a pending score, or find the score that answers it.

        Nothing is deferred. Under an idempotency key the first answer is repeated. A refusal stores nothing.

        Args:
            is_verified: The caller has verified that the session exists and has ended. Not needed for a
                session that already has a score.

        Returns:
            `UnverifiedSession`, with nothing written, if a score would have to be made for an unverified
            session.

        Raises:
            DatabaseAway: The request may have been stored; repeating it under the same key is safe.
            UnknownCriteria: It names criteria that do not exist. A kept answer is returned even so.
            KeyErased: An earlier request under the key was erased; nothing was stored.
            NotStorable: The database refuses a value of it; nothing was stored.
        """

        async def work(connection: Connection) -> Answer | KeptAnswer | UnverifiedSession:
            if (
                key is not None
                and (kept := await idempotency.find_answer(self.database, connection, key)) is not None
            ):
                if kept.is_same_question:
                    await connection.execute(self.database.sql(COUNT_ARRIVALS), [kept.request_id], [1])
                return kept
            self._require_criteria(request)
            if is_verified:
                [state] = (await self._lock_sessions_of(connection, [request])).values()
            else:
                if await connection.fetchrow(self.database.sql(LOCK_SESSION), request.session_id) is None:
                    return UnverifiedSession()
                [state] = (await states_of(self.database, connection, [request.session_id])).values()
            answer = decide(request, state, self.policy)
            if answer.outcome == "new" and not is_verified:
                return UnverifiedSession(True, state.chain_id, state.status)
            return await self._store_answer(connection, request, key, answer, state)

        try:
            answer = await self.database.once(work)
        except asyncpg.DataError as error:  # not IntegrityConstraintViolationError: that would be a bug here
            raise NotStorable(
                f"the database refuses what the request says: {type(error).__name__}"
            ) from error
        if isinstance(answer, Answer) and answer.outcome == "new":
            self.database.notify("scores")
            self.database.notify("events")
        return answer

    def _require_criteria(self, request: Request) -> None:
        """Raises: UnknownCriteria: The request names criteria that do not exist."""
        if request.criteria is not None and request.criteria not in self.policy.hashes:
            raise UnknownCriteria(f"there are no criteria {request.criteria!r}")

    async def _store_answer(
        self, connection: Connection, request: Request, key: Key | None, answer: Answer, before: SessionState
    ) -> Answer:
        """
        Write the decision of an answer, nothing for a refusal; returns the answer with the row of a new
        score.
        """
        decision, sql = answer.decision, self.database.sql
        if decision is None:
            return answer
        asked = [_request_row(request, decision, 1)]
        await self._add_references(connection, [request])
        if decision.disposition == "accepted":
            change: audit.Change = "score" if before.latest_completed is None else "rescore"
            ids = request.session_id, answer.score_id, request.request_id
            recorded = audit.arguments_of(change, request.requested_by, *ids)
            row = await connection.fetchrow(
                sql(ADD_ASKED), *self._queued([(request, decision)]), asked, *recorded
            )
            assert row is not None
            answer = replace(answer, row=dict(row))
        elif decision.disposition == "in_progress":
            await connection.execute(sql(JOIN_SCORE), [answer.score_id], [int(request.priority)], asked)
        else:
            await connection.execute(sql(ADD_REQUESTS), asked)
        if key is not None:
            await idempotency.keep_answer(
                self.database, connection, key, answer.outcome, answer.score_id, request.request_id
            )
        return answer

    async def _known(self, connection: Connection, ids: list[UUID]) -> set[UUID]:
        return {r["request_id"] for r in await connection.fetch(self.database.sql(KNOWN_REQUESTS), ids)}

    async def _lock_sessions_of(
        self, connection: Connection, requests: list[Request]
    ) -> dict[str, SessionState]:
        """Insert or lock the sessions of these requests, store what the requests say, read their states."""
        by_session: dict[str, dict[str, Any]] = {}
        for r in requests:
            row = by_session.setdefault(
                r.session_id, {"chain": None, "alert": None, "labels": {}, "status": None, "at": None}
            )
            row["chain"] = r.chain_id or row["chain"]
            row["alert"] = r.alert_type or row["alert"]
            row["labels"] |= r.labels
            row["status"] = r.session_status or row["status"]
            row["at"] = r.completed_at or row["at"]
        ids = sorted(by_session)
        columns = [[by_session[i][c] for i in ids] for c in ("chain", "alert", "labels", "status", "at")]
        await connection.execute(self.database.sql(UPSERT_SESSIONS), ids, *columns)
        # Requests of one session name the same chain, so the newest value may also decide about earlier ones.
        return await states_of(self.database, connection, ids)

    def _queued(self, accepted: Sequence[tuple[Request, Decision]]) -> tuple[Any, ...]:
        """Arguments of `ADD_QUEUED`."""
        rows, events = [], []
        for request, decision in accepted:
            row = _picked(request, FROM_REQUEST) | _picked(decision, FROM_DECISION)
            is_named = decision.chain_id in self.policy.chains
            rows.append(row | {"score_triggered_by": request.requested_by, "chain_is_named": is_named})
            assert decision.score_id is not None
            phase = {"phase": "queued"}
            events.append(NewEvent(decision.score_id, "scoring.progress", phase, request.traceparent))
        return rows, *outbox.arguments_of(events)

    async def _add(self, connection: Connection, decisions: _Decisions) -> None:
        """Insert new scores with their `queued` events, raise priorities, mark superseded requests."""
        if decisions.accepted:
            await connection.execute(self.database.sql(ADD_QUEUED), *self._queued(decisions.accepted))
        if decisions.priorities:
            scores, priorities = list(decisions.priorities), [int(p) for p in decisions.priorities.values()]
            await connection.execute(self.database.sql(RAISE_PRIORITIES), scores, priorities)
        if decisions.superseded:
            await connection.execute(self.database.sql(SUPERSEDE), decisions.superseded)

    async def _add_requests(
        self,
        connection: Connection,
        fresh: list[Request],
        decisions: _Decisions,
        arrivals: Mapping[UUID, int],
    ) -> None:
        rows = [_request_row(r, decisions.by_request[r.request_id], arrivals[r.request_id]) for r in fresh]
        if rows:
            await connection.execute(self.database.sql(ADD_REQUESTS), rows)

    async def _add_references(self, connection: Connection, fresh: Sequence[Request]) -> None:
        given = [
            (r.session_id, r.request_id, r.requested_by, r.reference)
            for r in fresh
            if r.reference is not None
        ]
        if given:
            await stored_references.add(self.database, connection, given)

    async def lock_sessions(
        self, connection: Connection, ids: set[str], *, skip_locked: bool = False
    ) -> dict[str, str | None]:
        """
        Lock sessions in the order of their ids, before any lock on their scores.

        Args:
            skip_locked: Leave out sessions that another transaction has locked.

        Returns:
            The chains of the sessions that are locked now.
        """
        lock = LOCK_FREE_SESSIONS if skip_locked else LOCK_SESSIONS
        rows = await connection.fetch(self.database.sql(lock), sorted(ids))
        return {r["session_id"]: r["chain_id"] for r in rows}

    async def promote(
        self, connection: Connection, chains: Mapping[str, str | None], ended: set[str]
    ) -> bool:
        """
        Decide again about the deferred requests of sessions whose score has just ended.

        Returns:
            Whether one of them became a score.
        """
        waiting = await connection.fetch(self.database.sql(DEFERRED_REQUESTS), sorted(ended)) if ended else []
        if not waiting:
            return False
        states = await states_of(self.database, connection, [r["session_id"] for r in waiting])
        decisions = _Decisions()
        for row in waiting:
            request = replace(_stored(row), session_status=row["session_status"])
            states[request.session_id].chain_id = chains[request.session_id]
            states[request.session_id].deferred = None  # it is this request
            decisions.add(request, admit(request, states[request.session_id], self.policy))
        await self._add(connection, decisions)
        for request_id, decision in decisions.by_request.items():
            await self.set_disposition(connection, request_id, decision.disposition, decision.score_id)
        return bool(decisions.accepted)

    async def defer_joined(self, connection: Connection, score_ids: Sequence[UUID]) -> None:
        """
        Defer automatic requests that joined these scores, so that `promote` decides about them again.

        For scores that failed for a reason which their own request alone gave.
        """
        await connection.execute(self.database.sql(DEFER_JOINED), score_ids, SOURCE_COMPLETED)

    async def surviving_request(self, connection: Connection, score_id: UUID) -> Request | None:
        """See `surviving_request`. While the session stays locked, no other request can join the score."""
        return surviving_request(
            map(_stored, await connection.fetch(self.database.sql(REQUESTS_OF_SCORE), score_id))
        )

    async def _count_repeats(self, connection: Connection, repeats: Mapping[UUID, int]) -> None:
        if repeats:
            numbers = [repeats[i] for i in sorted(repeats)]
            await connection.execute(self.database.sql(COUNT_ARRIVALS), sorted(repeats), numbers)

    async def set_disposition(
        self, connection: Connection, request_id: UUID, disposition: Disposition, score_id: UUID | None
    ) -> None:
        """Replace the disposition of a stored request, in the caller's transaction."""
        await connection.execute(self.database.sql(SET_DISPOSITION), request_id, disposition, score_id)

    async def requests_of_event(self, event_id: str, limit: int = 1000) -> list[dict[str, Any]]:
        """Rows of the requests with this event id, oldest first. Raises: DatabaseAway."""
        rows = await self.database.once(
            lambda c: c.fetch(self.database.sql(REQUESTS_BY_EVENT), event_id, limit)
        )
        return [dict(r) for r in rows]


def production_sessions(rows: Iterable[asyncpg.Record]) -> set[str]:
    """Sessions of the production scores among these rows."""
    return {r["session_id"] for r in rows if r["purpose"] == "production"}


def _stored(row: asyncpg.Record) -> Request:
    return Request(**{name: row[name] for name in REQUEST_COLUMNS})


def _request_row(request: Request, decision: Decision, arrivals: int) -> dict[str, Any]:
    row = _picked(request, REQUEST_COLUMNS) | _picked(decision, ("disposition", "score_id"))
    return row | {"arrivals": arrivals}


def _picked(record: Request | Decision, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}

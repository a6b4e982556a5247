"""
Store requests and the scores they make.

Laws. Accepting is idempotent: one request id has one effect, whatever is redelivered and in whatever order. A
transaction that accepts requests or ends scores first locks the rows in `sessions`, in the order of their
ids. So transactions do not deadlock, and a deferred request is promoted exactly once.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, fields, replace
from typing import Any, Literal
from uuid import UUID, uuid5

import asyncpg

from tarsy_scoring.audit import audit
from tarsy_scoring.errors import ScoringError, UnknownCriteria
from tarsy_scoring.events import MAX_LABELS, SOURCE_COMPLETED, bounded_labels
from tarsy_scoring.outbox import outbox
from tarsy_scoring.outbox.outbox import NewEvent
from tarsy_scoring.postgres.database import Connection, Database, insert_of
from tarsy_scoring.queue import idempotency
from tarsy_scoring.queue.admission import (
    Answer,
    Decision,
    Disposition,
    Policy,
    Priority,
    Request,
    SessionState,
    admit,
    decide,
)
from tarsy_scoring.queue.idempotency import Key
from tarsy_scoring.queue.session_states import states_of
from tarsy_scoring.references import store as stored_references

# With SELECT the plan does not depend on the length of the array, so PostgreSQL plans this and the locks of
# sessions once, also in processes that leave the choice to it.
KNOWN_REQUESTS = """
SELECT request_id FROM {schema}.scoring_requests WHERE request_id = ANY((SELECT $1::uuid[])::uuid[])
"""

COUNT_ARRIVALS = """
UPDATE {schema}.scoring_requests r SET arrivals = r.arrivals + a.n
FROM unnest($1::uuid[], $2::int[]) AS a(request_id, n) WHERE r.request_id = a.request_id
"""


def merged_labels(merged: str, first: str) -> str:
    """
    SQL: the labels `merged`, cut to `MAX_LABELS`: those whose names are in `first`, then others in the order
    of `jsonb`.
    """
    return f"""(SELECT coalesce(jsonb_object_agg(l.key, l.value), '{{}}') FROM (
    SELECT * FROM jsonb_each({merged}) ORDER BY NOT {first} ? key, octet_length(key), key COLLATE "C"
    LIMIT {MAX_LABELS}) l)"""


# Insert or lock the sessions in the order of their ids. A value that an event does not have changes nothing.
# The days on which a known session ended become dirty when that end moves.
UPSERT_SESSIONS = f"""
WITH moved AS (
  INSERT INTO {{schema}}.dirty_days (day)
  SELECT (d.at AT TIME ZONE 'UTC')::date
  FROM unnest($1::text[], $6::timestamptz[]) AS t(session_id, completed_at)
  JOIN {{schema}}.sessions m USING (session_id)
  CROSS JOIN LATERAL (VALUES (least(m.completed_at, m.first_seen_at)),
    (least(t.completed_at, m.first_seen_at))) d(at)
  WHERE t.completed_at IS NOT NULL
    AND least(t.completed_at, m.first_seen_at) <> least(m.completed_at, m.first_seen_at)
)
INSERT INTO {{schema}}.sessions AS s (session_id, chain_id, alert_type, labels, status, completed_at)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::jsonb[], $5::text[], $6::timestamptz[])
  AS t(session_id, chain_id, alert_type, labels, status, completed_at)
ORDER BY session_id
ON CONFLICT (session_id) DO UPDATE SET
  chain_id = coalesce(excluded.chain_id, s.chain_id),
  alert_type = coalesce(excluded.alert_type, s.alert_type),
  labels = {merged_labels("s.labels || excluded.labels", "s.labels")},
  status = coalesce(excluded.status, s.status),
  completed_at = coalesce(excluded.completed_at, s.completed_at)
"""

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
# deferred, so that `promote` decides about it again. For scores that failed for a reason which their own
# request alone gave.
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

# Lock the open scores of sessions ($1), and other scores ($2), before priorities lock some of them.
LOCK_OPEN_SCORES = """
SELECT score_id FROM {schema}.session_scores
WHERE (session_id = ANY($1::text[]) AND status IN ('pending', 'in_progress') AND purpose = 'production')
  OR score_id = ANY($2::uuid[])
ORDER BY score_id FOR NO KEY UPDATE
"""

# Superseded requests with the open score that each had waited for.
SUPERSEDED = """
SELECT r.request_id, r.event_id, r.traceparent, s.score_id FROM {schema}.scoring_requests r
JOIN {schema}.session_scores s USING (session_id)
WHERE r.request_id = ANY($1::uuid[]) AND s.status IN ('pending', 'in_progress') AND s.purpose = 'production'
"""

# What a request says about the session, is decided with it, or is stored elsewhere.
_NOT_STORED = {"alert_type", "labels", "session_status", "completed_at", "is_stale", "purpose", "reference"}
# Fields of a request that are stored under their own names.
REQUEST_COLUMNS = tuple(f.name for f in fields(Request) if f.name not in _NOT_STORED)

ADD_REQUESTS = insert_of("scoring_requests", (*REQUEST_COLUMNS, "disposition", "score_id", "arrivals"))

SET_DISPOSITION = "UPDATE {schema}.scoring_requests SET disposition = $2, score_id = $3 WHERE request_id = $1"

SCORES_OF_REQUESTS = """
SELECT request_id, score_id FROM {schema}.scoring_requests WHERE request_id = ANY($1::uuid[])
  AND score_id IS NOT NULL
"""

# The most urgent request of a score that is not automatic ($2).
SURVIVING_REQUEST = """
SELECT * FROM {schema}.scoring_requests WHERE score_id = $1 AND source <> $2
ORDER BY priority, received_at, request_id LIMIT 1
"""

REQUESTS_BY_EVENT = """
SELECT r.*, (SELECT e.payload ->> 'superseded_by' FROM {schema}.scoring_events e
  WHERE r.disposition = 'superseded' AND e.session_id = r.session_id AND e.type = 'scoring.request_superseded'
    AND e.payload ->> 'request_id' = r.request_id::text LIMIT 1) AS superseded_by
FROM {schema}.scoring_requests r WHERE r.event_id = $1 ORDER BY received_at, r.request_id LIMIT $2
"""


@dataclass(slots=True)
class _Decisions:
    """
    The decisions about one batch of requests, and what has to be written for them.

    Args:
        superseded: Deferred requests, each with the request of this batch that replaces it.
        priorities: For each open score that answers a request, the most urgent priority requested.
    """

    by_request: dict[UUID, Decision] = field(default_factory=dict)
    accepted: list[tuple[Request, Decision]] = field(default_factory=list)
    superseded: dict[UUID, Request] = field(default_factory=dict)
    priorities: dict[UUID, Priority] = field(default_factory=dict)

    def add(self, request: Request, decision: Decision) -> None:
        self.by_request[request.request_id] = decision
        if decision.disposition == "accepted":
            self.accepted.append((request, decision))
        if decision.disposition == "in_progress" and decision.score_id is not None:
            earlier = self.priorities.get(decision.score_id, request.priority)
            self.priorities[decision.score_id] = min(earlier, request.priority)
        if (older := decision.superseded) is not None:
            self.superseded[older] = request
            if older in self.by_request:
                self.by_request[older] = Decision("superseded")


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


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as error:
        raise NotStorable(f"the database refuses what the request says: {type(error).__name__}") from error


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
        arrivals = Counter(request.request_id for request in requests)
        first: dict[UUID, Request] = {}
        for request in requests:
            first.setdefault(request.request_id, request)

        async def work(connection: Connection) -> _Decisions:
            known = await self._known(connection, list(first))
            fresh = [r for r in first.values() if r.request_id not in known]
            states = await self._lock_sessions_of(connection, fresh)
            if fresh:  # another transaction may have stored one of them while this one waited for the session
                known |= await self._known(connection, [r.request_id for r in fresh])
                fresh = [r for r in fresh if r.request_id not in known]
            decisions = _Decisions()
            for request in fresh:  # in order of arrival: a later one may supersede an earlier one
                decisions.add(request, admit(request, states[request.session_id], self.policy))
            await self._store(connection, fresh, decisions, arrivals)
            if repeats := {i: n for i, n in arrivals.items() if i in known}:
                numbers = [repeats[i] for i in sorted(repeats)]
                await connection.execute(self.database.sql(COUNT_ARRIVALS), sorted(repeats), numbers)
            return decisions

        with _refusals():
            decisions = await self.database.persist(work)
        if decisions.accepted:
            self.database.notify("scores", "events")
        elif decisions.superseded:
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
                request_id=uuid5(run_id, "\x1f".join(str(part or "") for part in astuple(order))),
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
    ) -> Answer | UnverifiedSession:
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
            ScoreUnderWay: An open score prevents the requested one.
            UnknownCriteria: It names criteria that do not exist. A kept answer is returned even so.
            KeyUsedOtherwise, KeyErased: See `idempotency.find_answer`; nothing was stored.
            NotStorable: The database refuses a value of it; nothing was stored.
        """

        async def work(connection: Connection) -> Answer | UnverifiedSession:
            kept = await idempotency.find_answer(self.database, connection, key) if key is not None else None
            if kept is not None:
                await connection.execute(self.database.sql(COUNT_ARRIVALS), [kept.request_id], [1])
                return kept
            if request.criteria not in (None, *self.policy.hashes):
                raise UnknownCriteria(f"there are no criteria {request.criteria!r}")
            if is_verified:
                [state] = (await self._lock_sessions_of(connection, [request])).values()
            elif await self.lock_sessions(connection, {request.session_id}):
                [state] = (await states_of(self.database, connection, [request.session_id])).values()
            else:
                return UnverifiedSession()
            decision = decide(request, state, self.policy)
            if decision.disposition == "accepted" and not is_verified:
                return UnverifiedSession(True, state.chain_id, state.status)
            return await self._store_answer(connection, request, key, decision, state)

        with _refusals():
            answer = await self.database.once(work)
        if isinstance(answer, Answer) and answer.disposition == "accepted":
            self.database.notify("scores", "events")
        return answer

    async def _store_answer(
        self,
        connection: Connection,
        request: Request,
        key: Key | None,
        decision: Decision,
        before: SessionState,
    ) -> Answer:
        decisions = _Decisions()
        decisions.add(request, decision)
        await self._store(connection, [request], decisions, {request.request_id: 1})
        assert decision.score_id is not None
        answer = Answer(decision.disposition, decision.score_id, request.request_id)
        if decision.disposition == "accepted":
            change: audit.Change = "score" if before.latest_completed() is None else "rescore"
            change = change if request.purpose == "production" else "order"
            ids: dict[str, Any] = {"score_id": answer.score_id, "request_id": request.request_id}
            by, session_id = request.requested_by, request.session_id
            await audit.record(self.database, connection, change, by=by, session_id=session_id, **ids)
        if key is not None:
            await idempotency.keep_answer(self.database, connection, key, answer)
        return answer

    async def _known(self, connection: Connection, ids: list[UUID]) -> set[UUID]:
        return {r["request_id"] for r in await connection.fetch(self.database.sql(KNOWN_REQUESTS), ids)}

    async def _lock_sessions_of(
        self, connection: Connection, requests: list[Request]
    ) -> dict[str, SessionState]:
        """Insert or lock the sessions of these requests, store what the requests say, read their states."""
        said: dict[str, tuple[Any, ...]] = {}
        for r in requests:
            chain, alert, labels, status, at = said.get(r.session_id, (None, None, {}, None, None))
            said[r.session_id] = (
                r.chain_id or chain,
                r.alert_type or alert,
                bounded_labels(labels | r.labels),
                r.session_status or status,
                r.completed_at or at,
            )
        ids = sorted(said)
        columns = [[said[i][n] for i in ids] for n in range(5)]
        await connection.execute(self.database.sql(UPSERT_SESSIONS), ids, *columns)
        # Requests of one session name the same chain, so the newest value may also decide about earlier ones.
        return await states_of(self.database, connection, ids)

    async def _store(
        self,
        connection: Connection,
        fresh: Sequence[Request],
        decisions: _Decisions,
        arrivals: Mapping[UUID, int],
    ) -> None:
        """Write new requests with their references, and the decisions about them."""
        given = [(r.session_id, r.request_id, r.requested_by, r.reference) for r in fresh if r.reference]
        await self._write(connection, decisions)
        await stored_references.add(self.database, connection, given)
        rows = []
        for r in fresh:
            decision = decisions.by_request[r.request_id]
            decided = {"disposition": decision.disposition, "score_id": decision.score_id}
            rows.append(_picked(r, REQUEST_COLUMNS) | decided | {"arrivals": arrivals[r.request_id]})
        if rows:
            await connection.execute(self.database.sql(ADD_REQUESTS), rows)
        if decisions.superseded:
            await self._tell_superseded(connection, decisions.superseded)

    async def _tell_superseded(self, connection: Connection, superseded: Mapping[UUID, Request]) -> None:
        """Emit an event for each stored request that another one replaced; `_write` has locked the scores."""
        rows = await connection.fetch(self.database.sql(SUPERSEDED), list(superseded))
        events = []
        for row in rows:
            fields = {"request_id": row["request_id"], "request_event_id": row["event_id"]}
            fields["superseded_by"] = superseded[row["request_id"]].request_id
            events.append(NewEvent(row["score_id"], "scoring.request_superseded", fields, row["traceparent"]))
        await outbox.emit(self.database, connection, events)

    async def _write(self, connection: Connection, decisions: _Decisions) -> None:
        """Insert new scores with their `queued` events, raise priorities, mark superseded requests."""
        scores, events = [], []
        for request, decision in decisions.accepted:
            assert decision.score_id is not None
            row = _picked(request, FROM_REQUEST) | _picked(decision, FROM_DECISION)
            is_named = decision.chain_id in self.policy.chains
            scores.append(row | {"score_triggered_by": request.requested_by, "chain_is_named": is_named})
            phase = {"phase": "queued"}
            events.append(NewEvent(decision.score_id, "scoring.progress", phase, request.traceparent))
        if scores:
            await connection.execute(self.database.sql(ADD_SCORES), scores)
            await outbox.emit(self.database, connection, events)
        if superseded := decisions.superseded:
            sessions = sorted({request.session_id for request in superseded.values()})
            await connection.execute(
                self.database.sql(LOCK_OPEN_SCORES), sessions, list(decisions.priorities)
            )
            await connection.execute(self.database.sql(SUPERSEDE), list(superseded))
        if decisions.priorities:
            ids, priorities = list(decisions.priorities), [int(p) for p in decisions.priorities.values()]
            await connection.execute(self.database.sql(RAISE_PRIORITIES), ids, priorities)

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
        await self._write(connection, decisions)
        for request_id, decision in decisions.by_request.items():
            await self.set_disposition(connection, request_id, decision.disposition, decision.score_id)
        return bool(decisions.accepted)

    async def surviving_request(self, connection: Connection, score_id: UUID) -> Request | None:
        """
        The request for which a score is judged although the chain declines automatic requests, if any.

        While the session stays locked, no other request can join the score.
        """
        row = await connection.fetchrow(self.database.sql(SURVIVING_REQUEST), score_id, SOURCE_COMPLETED)
        return None if row is None else _stored(row)

    async def set_disposition(
        self, connection: Connection, request_id: UUID, disposition: Disposition, score_id: UUID | None
    ) -> None:
        """Replace the disposition of a stored request, in the caller's transaction."""
        await connection.execute(self.database.sql(SET_DISPOSITION), request_id, disposition, score_id)

    async def requests_of_event(self, event_id: str, limit: int = 1000) -> list[dict[str, Any]]:
        """Rows of the requests with this event id, oldest first. Raises: DatabaseAway."""
        return [dict(r) for r in await self.database.fetch(REQUESTS_BY_EVENT, event_id, limit)]


def production_sessions(rows: Iterable[asyncpg.Record]) -> set[str]:
    """Sessions of the production scores among these rows."""
    return {r["session_id"] for r in rows if r["purpose"] == "production"}


def _stored(row: asyncpg.Record) -> Request:
    return Request(**{name: row[name] for name in REQUEST_COLUMNS})


def _picked(record: Request | Decision, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}

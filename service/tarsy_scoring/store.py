"""
The life of a score in PostgreSQL, from the claim to its end: lease, checkpoints, put back, finish.

Laws. Every write after the claim matches score id *and* lease token; where no row matches, the lease is
lost and nothing of that score is written. Sessions are locked before scores, scores in the order of
their ids. The database's clock decides leases and due times. What ends a score also promotes the
deferred request of its session, in the same transaction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from uuid import UUID

from tarsy_scoring import journal, outbox
from tarsy_scoring.admission import Disposition
from tarsy_scoring.database import Batcher, Connection, Database
from tarsy_scoring.errors import LeaseLost
from tarsy_scoring.inbox import Inbox
from tarsy_scoring.judge.extraction import tool_of_step
from tarsy_scoring.judge.verdict import AlternativeApproach, MissingTool, Turn
from tarsy_scoring.outbox import NewEvent

# --- claim and lease -----------------------------------------------------------------------------------

CLAIM = """
WITH due AS MATERIALIZED (
  SELECT score_id FROM {schema}.session_scores
  WHERE status = 'pending' AND next_attempt_at <= now()
    AND CASE WHEN coalesce(chain_id, '') = ANY($4::text[]) THEN coalesce(chain_id, '') <> ALL($5::text[])
             ELSE NOT $6 END
  ORDER BY priority, next_attempt_at LIMIT $2 FOR UPDATE SKIP LOCKED
), claimed AS (
  UPDATE {schema}.session_scores s SET
    status = 'in_progress', attempt = s.attempt + 1, attempt_started_at = now(),
    started_at = coalesce(s.started_at, now()), current_stage = 'gathering_context', waiting_reason = NULL,
    lease_owner = $1, lease_token = gen_random_uuid(), lease_expires_at = now() + make_interval(secs => $3)
  FROM due WHERE s.score_id = due.score_id
  RETURNING s.*
)
SELECT c.score_id, c.session_id, c.request_id, c.chain_id, c.purpose, c.attempt, c.attempts_burned, c.spent_s,
       c.criteria, c.criteria_hash, c.nonce, c.lease_token, c.score_triggered_by, c.priority,
       extract(epoch FROM now() - c.created_at)::float8 AS age_s,
       m.alert_type, m.labels, m.status AS session_status, coalesce(r.source, '') AS source
FROM claimed c
JOIN {schema}.sessions m USING (session_id)
LEFT JOIN {schema}.scoring_requests r ON r.request_id = c.request_id
"""

# Renew exactly these: a row that nobody tracks must be allowed to lapse, so never "all rows of this owner".
KEEP_LEASES = """
WITH held AS (
  SELECT s.score_id FROM {schema}.session_scores s
  JOIN unnest($1::uuid[], $2::uuid[]) AS h(score_id, token) ON s.score_id = h.score_id AND s.lease_token = h.token
  ORDER BY s.score_id FOR NO KEY UPDATE OF s
)
UPDATE {schema}.session_scores s SET lease_expires_at = now() + make_interval(secs => $3)
FROM held WHERE s.score_id = held.score_id
RETURNING s.lease_token
"""

# While PostgreSQL was down nobody could renew: after its start every living worker gets one lease time
# to do so, before what it holds counts as lost. Leases taken since the start are not affected.
EXPIRED = """
SELECT score_id, session_id FROM {schema}.session_scores
WHERE status = 'in_progress' AND lease_expires_at < now()
  AND pg_postmaster_start_time() + make_interval(secs => $1) < now()
LIMIT 500
"""

# What the turns of a score `s` took, as `columns.sum_usage` has it: a sum is null where a part of it is unknown.
PAID = """
(SELECT CASE WHEN count(*) > 0 THEN jsonb_build_object(
   'input_tokens', CASE WHEN count(*) = count(input_tokens) THEN sum(input_tokens) END,
   'cached_input_tokens', CASE WHEN count(*) = count(cached_input_tokens) THEN sum(cached_input_tokens) END,
   'output_tokens', CASE WHEN count(*) = count(output_tokens) THEN sum(output_tokens) END,
   'cost_usd', CASE WHEN count(*) = count(cost_usd) THEN sum(cost_usd) END) END
 FROM {schema}.judge_turns t WHERE t.score_id = s.score_id)
"""

# The second look at state and lease is what keeps a renewed or finished score from being taken.
TAKE_BACK = f"""
WITH lost AS (
  SELECT score_id, attempts_burned + 1 AS burned,
         spent_s + extract(epoch FROM lease_expires_at - attempt_started_at) AS spent
  FROM {{schema}}.session_scores
  WHERE score_id = ANY($1::uuid[]) AND status = 'in_progress' AND lease_expires_at < now()
  ORDER BY score_id FOR UPDATE SKIP LOCKED
), judged AS (
  SELECT *, CASE WHEN burned >= $2 THEN 'failed' WHEN spent >= $3 THEN 'timed_out' ELSE 'pending' END AS status
  FROM lost
)
UPDATE {{schema}}.session_scores s SET
  usage = CASE j.status WHEN 'pending' THEN s.usage ELSE {PAID} END,
  status = j.status, attempts_burned = j.burned, spent_s = j.spent, next_attempt_at = now(),
  lease_owner = NULL, lease_token = NULL, lease_expires_at = NULL, current_stage = NULL,
  waiting_reason = CASE j.status WHEN 'pending' THEN 'retry' END,
  completed_at = CASE j.status WHEN 'pending' THEN NULL ELSE now() END,
  error_kind = CASE j.status WHEN 'timed_out' THEN 'deadline_passed' ELSE 'worker_lost' END,
  error_message = CASE j.status
    WHEN 'timed_out' THEN 'its attempts took longer than the deadline allows; the last worker was lost'
    ELSE 'the worker that held it stopped answering (attempt ' || s.attempt || ')' END
FROM judged j WHERE s.score_id = j.score_id
RETURNING s.score_id, s.session_id, s.purpose, s.status, s.error_kind, s.error_message
"""

# --- checkpoint, put back, end -------------------------------------------------------------------------

# Gives the stage of before, for each step whose lease is held; a score's last step decides its stage.
RECORD_PHASES = """
WITH step AS (
  SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[]) WITH ORDINALITY AS t(score_id, token, phase, n)
), held AS (
  SELECT s.score_id, s.lease_token, s.current_stage, step.phase, step.n FROM {schema}.session_scores s
  JOIN step ON s.score_id = step.score_id AND s.lease_token = step.token
  ORDER BY s.score_id FOR NO KEY UPDATE OF s
), moved AS (
  UPDATE {schema}.session_scores s SET current_stage = last.phase
  FROM (SELECT DISTINCT ON (score_id) score_id, phase FROM held WHERE phase IS NOT NULL ORDER BY score_id, n DESC) last
  WHERE s.score_id = last.score_id
)
SELECT lease_token, current_stage FROM held
"""

TURN_COLUMNS = """score_id, ordinal, kind, reply, refusal, has_tool_calls, provider, model_requested, model_served,
  input_tokens, cached_input_tokens, output_tokens, cost_usd, latency_ms, finish_reason,
  attempt, criteria_hash, context_hash, nonce, asked_hash"""

ADD_TURNS = f"""
INSERT INTO {{schema}}.judge_turns ({TURN_COLUMNS})
SELECT {TURN_COLUMNS} FROM jsonb_populate_recordset(NULL::{{schema}}.judge_turns, $1::jsonb)
ON CONFLICT (score_id, ordinal) DO NOTHING
"""

TURNS = "SELECT * FROM {schema}.judge_turns WHERE score_id = $1 ORDER BY ordinal"

BIND = """
UPDATE {schema}.session_scores SET chain_id = $3, criteria = $4, criteria_hash = $5
WHERE score_id = $1 AND lease_token = $2 RETURNING score_id
"""

LEARN_SESSION = """
UPDATE {schema}.sessions SET chain_id = coalesce(chain_id, $2), alert_type = coalesce(alert_type, $3),
  labels = $4::jsonb || labels
WHERE session_id = $1
"""

KEEP_CRITERIA = """
INSERT INTO {schema}.scoring_criteria (criteria_hash, name, content) VALUES ($1, $2, $3)
ON CONFLICT (criteria_hash) DO NOTHING
"""

PUT_BACK = """
UPDATE {schema}.session_scores SET
  status = 'pending', next_attempt_at = now() + make_interval(secs => $3), waiting_reason = $4,
  attempts_burned = attempts_burned + $5, spent_s = spent_s + $6, error_kind = $7, error_message = $8,
  lease_owner = NULL, lease_token = NULL, lease_expires_at = NULL, current_stage = NULL
WHERE score_id = $1 AND lease_token = $2 RETURNING score_id
"""

# One statement for every way in which a holder ends a score; the columns travel as one JSON document.
END = """
WITH v AS (SELECT * FROM jsonb_populate_recordset(NULL::{schema}.session_scores, $1::jsonb)),
held AS (
  SELECT s.score_id, s.lease_token FROM {schema}.session_scores s
  JOIN v ON s.score_id = v.score_id AND s.lease_token = v.lease_token
  ORDER BY s.score_id FOR UPDATE OF s
)
UPDATE {schema}.session_scores s SET
  status = v.status, completed_at = now(), spent_s = s.spent_s + v.spent_s,
  attempts_burned = s.attempts_burned + v.attempts_burned,
  lease_owner = NULL, lease_token = NULL, lease_expires_at = NULL, current_stage = NULL, waiting_reason = NULL,
  total_score = v.total_score, score_analysis = v.score_analysis, score_breakdown = v.score_breakdown,
  missing_tools_analysis = v.missing_tools_analysis, judge_fingerprint = v.judge_fingerprint,
  samples = v.samples, spread = v.spread, failure_tags = v.failure_tags, flags = v.flags,
  judge_outcome = v.judge_outcome, rubric = v.rubric, grounding = v.grounding,
  interaction = v.interaction, diagnosis = v.diagnosis,
  gates = v.gates, gates_passed = v.gates_passed, gates_total = v.gates_total,
  outcome = v.outcome, outcome_reason = v.outcome_reason, composite_score = v.composite_score,
  coverage = v.coverage, evidence = v.evidence, usage = v.usage,
  error_kind = v.error_kind, error_message = v.error_message
FROM v JOIN held USING (score_id, lease_token) WHERE s.score_id = held.score_id
RETURNING held.lease_token, s.session_id, s.purpose
"""

ADD_MISSING_TOOLS = """
INSERT INTO {schema}.score_missing_tools (score_id, ordinal, tool_name, rationale)
SELECT * FROM unnest($1::uuid[], $2::int[], $3::text[], $4::text[])
"""

ADD_APPROACHES = """
WITH v AS (
  SELECT * FROM jsonb_to_recordset($1::jsonb) AS r(score_id uuid, ordinal int, name text, description text, steps jsonb)
), added AS (
  INSERT INTO {schema}.score_alternative_approaches (score_id, ordinal, name, description)
  SELECT score_id, ordinal, name, description FROM v
  RETURNING score_id, ordinal
)
INSERT INTO {schema}.score_alternative_approach_steps (score_id, approach_ordinal, ordinal, step, tool_name)
SELECT v.score_id, v.ordinal, s.n, s.step ->> 'step', s.step ->> 'tool_name'
FROM v JOIN added USING (score_id, ordinal) CROSS JOIN jsonb_array_elements(v.steps) WITH ORDINALITY AS s(step, n)
"""

SESSION_OF_SCORE = "SELECT session_id FROM {schema}.session_scores WHERE score_id = $1"

CANCEL = f"""
UPDATE {{schema}}.session_scores s SET
  usage = {PAID},
  status = 'cancelled', completed_at = now(), error_kind = 'cancelled', error_message = $2,
  lease_owner = NULL, lease_token = NULL, lease_expires_at = NULL, current_stage = NULL, waiting_reason = NULL
WHERE score_id = $1 AND status IN ('pending', 'in_progress')
RETURNING session_id, purpose
"""


@dataclass(frozen=True, slots=True)
class ChainFilter:
    """
    Chains whose scores may not be claimed now.

    Args:
        named: Chains that have an answer of their own, '' for scores without one; all others go by `others_blocked`.
        blocked: Those of them that must wait.
    """

    named: Sequence[str] = ()
    blocked: Sequence[str] = ()
    others_blocked: bool = False


EVERY_CHAIN = ChainFilter()
LONGEST_TOOL_NAME = 255  # characters; a judge may write more, an index cannot hold it


@dataclass(frozen=True, slots=True)
class ClaimedScore:
    """A score held under a lease. `age_s`: since it was accepted; `source`: of its request."""

    score_id: UUID
    session_id: str
    request_id: UUID
    chain_id: str | None
    purpose: str
    attempt: int
    attempts_burned: int
    spent_s: float
    criteria: str | None
    criteria_hash: str | None
    nonce: str
    lease_token: UUID
    score_triggered_by: str
    priority: int
    age_s: float
    alert_type: str | None
    labels: Mapping[str, str]
    session_status: str | None
    source: str


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """
    A turn with what it was asked under; only an equal question may use its answer.

    `asked_hash` is None for a turn of a version that did not keep it.
    """

    ordinal: int
    criteria_hash: str
    context_hash: str
    nonce: str
    asked_hash: str | None
    turn: Turn


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happened within an attempt: a phase was entered, turns returned, or both."""

    claimed: ClaimedScore
    phase: str | None = None
    turns: Sequence[StoredTurn] = ()


@dataclass(frozen=True, slots=True)
class Ending:
    """
    How a score ends: the columns of `session_scores` to set, its rows, and what its last event adds.

    `turns` returned last and were not recorded yet; they are stored, and `storing` announced, with the end.
    """

    claimed: ClaimedScore
    columns: Mapping[str, Any]
    event: NewEvent
    missing_tools: Sequence[MissingTool] = ()
    alternative_approaches: Sequence[AlternativeApproach] = ()
    turns: Sequence[StoredTurn] = ()
    disposition: Disposition | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """A score taken back from a worker that stopped answering, and its new status."""

    score_id: UUID
    session_id: str
    status: str


class Store:
    """
    Open scores. Writes of an attempt wait for a database that is away, with their data kept in memory.

    A cancel at any await leaves a transaction either committed or rolled back.
    """

    def __init__(self, database: Database, inbox: Inbox) -> None:
        self.database = database
        self.inbox = inbox
        self._steps = Batcher(self._record_all)
        self._endings = Batcher(self._end_all)

    # --- claim and lease -------------------------------------------------------------------------------

    async def claim_due(
        self, owner: UUID, limit: int, lease_s: float, chains: ChainFilter = EVERY_CHAIN
    ) -> list[ClaimedScore]:
        """
        Take up to `limit` due scores of these chains under a lease, most urgent first.

        Raises:
            DatabaseAway: Not waited for: if the reply to a commit is lost, the rows are held by nobody
                and lapse, so a retry must be a new claim.
        """

        async def work(connection: Connection) -> list[ClaimedScore]:
            filtered = (chains.named, chains.blocked, chains.others_blocked)
            rows = await connection.fetch(self.database.sql(CLAIM), owner, limit, lease_s, *filtered)
            events = []
            for r in rows:
                events.append(NewEvent(r["score_id"], "scoring.started", {}))
                events.append(NewEvent(r["score_id"], "scoring.progress", {"phase": "gathering_context"}))
            await outbox.emit(self.database, connection, events)
            return [ClaimedScore(**dict(r)) for r in rows]

        claimed = await self.database.once(work)
        if claimed:
            self.database.ring("events")
        return claimed

    async def keep_leases(self, held: Sequence[ClaimedScore], lease_s: float) -> set[UUID]:
        """Renew these leases; returns the tokens still held. Raises: DatabaseAway."""
        ids, tokens = [c.score_id for c in held], [c.lease_token for c in held]
        rows = await self.database.once(lambda c: c.fetch(self.database.sql(KEEP_LEASES), ids, tokens, lease_s))
        return {r["lease_token"] for r in rows}

    async def take_back_expired(self, lease_s: float, max_attempts: int, deadline_s: float) -> list[Lost]:
        """
        Take scores back from workers that stopped answering; burns an attempt each.

        Raises:
            DatabaseAway: Try again later.
        """

        async def work(connection: Connection) -> list[Lost]:
            found = await connection.fetch(self.database.sql(EXPIRED), lease_s)
            if not found:
                return []
            chains = await self.inbox.lock_sessions(connection, {r["session_id"] for r in found})
            ids = [r["score_id"] for r in found]
            rows = await connection.fetch(self.database.sql(TAKE_BACK), ids, max_attempts, deadline_s)
            events = []
            for r in rows:
                if r["status"] == "pending":
                    events.append(NewEvent(r["score_id"], "scoring.progress", {"phase": "waiting_retry"}))
                else:
                    extra = {"status": r["status"], "error_kind": r["error_kind"], "error_message": r["error_message"]}
                    events.append(NewEvent(r["score_id"], "scoring.failed", extra))
            await outbox.emit(self.database, connection, events)
            ended = {r["session_id"] for r in rows if r["status"] != "pending" and r["purpose"] == "production"}
            await self.inbox.promote(connection, chains, ended)
            return [Lost(r["score_id"], r["session_id"], r["status"]) for r in rows]

        lost = await self.database.once(work)
        if lost:
            self.database.ring("scores")
            self.database.ring("events")
        return lost

    # --- within an attempt -----------------------------------------------------------------------------

    async def record(self, step: Step) -> None:
        """
        Store a turn and announce a phase, as soon as it happened. Waits for the database.

        Raises:
            LeaseLost: The score is no longer ours; nothing was written.
        """
        if not await self._steps.submit(step):
            raise LeaseLost(f"score {step.claimed.score_id}: the lease was lost before a step could be stored")
        self.database.ring("events")

    async def _record_all(self, steps: Sequence[Step]) -> Sequence[bool]:
        async def work(connection: Connection) -> set[UUID]:
            rows = await connection.fetch(
                self.database.sql(RECORD_PHASES),
                [s.claimed.score_id for s in steps],
                [s.claimed.lease_token for s in steps],
                [s.phase for s in steps],
            )
            # By token: a batch may hold the steps of a lost lease beside those of the lease that followed it.
            stages = {r["lease_token"]: r["current_stage"] for r in rows}
            ours = [s for s in steps if s.claimed.lease_token in stages]
            turns = [_turn_row(s.claimed, turn) for s in ours for turn in s.turns]
            if turns:
                await connection.execute(self.database.sql(ADD_TURNS), turns)
            events = []
            for s in ours:
                if s.phase is not None and s.phase != stages[s.claimed.lease_token]:
                    stages[s.claimed.lease_token] = s.phase
                    events.append(NewEvent(s.claimed.score_id, "scoring.progress", {"phase": s.phase}))
            await outbox.emit(self.database, connection, events)
            return set(stages)

        held = await self.database.persist(work)
        return [s.claimed.lease_token in held for s in steps]

    async def stored_turns(self, score_id: UUID) -> list[StoredTurn]:
        """What earlier attempts already paid for, in order. Waits for the database."""
        rows = await self.database.persist(lambda c: c.fetch(self.database.sql(TURNS), score_id))
        return [
            StoredTurn(
                r["ordinal"],
                r["criteria_hash"],
                r["context_hash"],
                r["nonce"],
                r["asked_hash"],
                Turn(**{name: r[name] for name in Turn.__dataclass_fields__}),
            )
            for r in rows
        ]

    async def bind(
        self,
        claimed: ClaimedScore,
        *,
        chain_id: str | None,
        alert_type: str | None,
        labels: Mapping[str, str],
        criteria: str,
        criteria_hash: str | None,
    ) -> ClaimedScore:
        """
        Fix chain and criteria of a claimed score, and remember what the source says of the session.

        Raises:
            LeaseLost: The score is no longer ours.
        """

        async def work(connection: Connection) -> bool:
            await self.inbox.lock_sessions(connection, {claimed.session_id})
            await connection.execute(
                self.database.sql(LEARN_SESSION), claimed.session_id, chain_id, alert_type, dict(labels)
            )
            bound = await connection.fetchval(
                self.database.sql(BIND), claimed.score_id, claimed.lease_token, chain_id, criteria, criteria_hash
            )
            return bound is not None

        if not await self.database.persist(work):
            raise LeaseLost(f"score {claimed.score_id}: the lease was lost before its criteria were bound")
        return replace(
            claimed,
            chain_id=chain_id,
            alert_type=claimed.alert_type or alert_type,
            labels={**labels, **claimed.labels},
            criteria=criteria,
            criteria_hash=criteria_hash,
        )

    async def keep_criteria(self, criteria_hash: str, name: str, content: Mapping[str, Any]) -> None:
        """Keep a criteria under its hash for ever. Waits for the database."""
        await self.database.persist(
            lambda c: c.execute(self.database.sql(KEEP_CRITERIA), criteria_hash, name, dict(content))
        )

    # --- leaving an attempt ----------------------------------------------------------------------------

    async def put_back(
        self,
        claimed: ClaimedScore,
        *,
        due_s: float,
        waiting_reason: str | None,
        burns: bool,
        spent_s: float,
        error_kind: str | None = None,
        error_message: str | None = None,
    ) -> None:
        """
        Make the score pending again, due in `due_s` seconds. Waits for the database.

        Args:
            spent_s: What this attempt and its own backoff add to the deadline's account.

        Raises:
            LeaseLost: The score is no longer ours.
        """

        async def work(connection: Connection) -> bool:
            held = await connection.fetchval(
                self.database.sql(PUT_BACK),
                claimed.score_id,
                claimed.lease_token,
                due_s,
                waiting_reason,
                int(burns),
                spent_s,
                error_kind,
                error_message,
            )
            if held is not None:
                event = NewEvent(claimed.score_id, "scoring.progress", {"phase": "waiting_retry"})
                await outbox.emit(self.database, connection, [event])
            return held is not None

        if not await self.database.persist(work):
            raise LeaseLost(f"score {claimed.score_id}: the lease was lost before it was put back")
        self.database.ring("scores")
        self.database.ring("events")

    async def end(self, ending: Ending) -> None:
        """
        Finish a score: its columns, its rows and its last event, in one transaction. Waits for the database.

        Raises:
            LeaseLost: The score is no longer ours; nothing was written.
        """
        if not await self._endings.submit(ending):
            raise LeaseLost(f"score {ending.claimed.score_id}: the lease was lost before its end was stored")
        self.database.ring("events")

    async def _end_all(self, endings: Sequence[Ending]) -> Sequence[bool]:
        # By token, as in `_record_all`; of two endings under one lease the first counts.
        by_token = {e.claimed.lease_token: e for e in reversed(endings)}

        async def work(connection: Connection) -> set[UUID]:
            chains = await self.inbox.lock_sessions(connection, {e.claimed.session_id for e in endings})
            documents = [
                {**e.columns, "score_id": e.claimed.score_id, "lease_token": token} for token, e in by_token.items()
            ]
            rows = await connection.fetch(self.database.sql(END), documents)
            ended = {r["lease_token"] for r in rows}
            ours = [e for token, e in by_token.items() if token in ended]
            await self._add_missing_tools(connection, ours)
            await self._add_approaches(connection, ours)
            turns = [_turn_row(e.claimed, turn) for e in ours for turn in e.turns]
            if turns:
                await connection.execute(self.database.sql(ADD_TURNS), turns)
            for e in ours:
                if e.disposition is not None:
                    await self.inbox.answer(connection, e.claimed.request_id, e.disposition, e.claimed.score_id)
            events = []
            for e in ours:
                if e.turns:
                    events.append(NewEvent(e.claimed.score_id, "scoring.progress", {"phase": "storing"}))
                events.append(e.event)
            await outbox.emit(self.database, connection, events)
            production = {r["session_id"] for r in rows if r["purpose"] == "production"}
            await self.inbox.promote(connection, chains, production)
            return ended

        ended = await self.database.persist(work)
        return [e.claimed.lease_token in ended and by_token[e.claimed.lease_token] is e for e in endings]

    async def _add_missing_tools(self, connection: Connection, endings: Sequence[Ending]) -> None:
        rows = [(e.claimed.score_id, n, t) for e in endings for n, t in enumerate(e.missing_tools, start=1)]
        if rows:
            await connection.execute(
                self.database.sql(ADD_MISSING_TOOLS),
                [r[0] for r in rows],
                [r[1] for r in rows],
                [r[2].tool_name[:LONGEST_TOOL_NAME] for r in rows],
                [r[2].rationale for r in rows],
            )

    async def _add_approaches(self, connection: Connection, endings: Sequence[Ending]) -> None:
        rows = [
            {
                "score_id": e.claimed.score_id,
                "ordinal": n,
                "name": approach.name,
                "description": approach.description,
                "steps": [{"step": step, "tool_name": tool_of_step(step)} for step in approach.steps],
            }
            for e in endings
            for n, approach in enumerate(e.alternative_approaches, start=1)
        ]
        if rows:
            await connection.execute(self.database.sql(ADD_APPROACHES), rows)

    async def cancel(self, score_id: UUID, by: str, *, is_patient: bool = True) -> bool:
        """
        Cancel a pending or running score, and keep who did; its worker learns of it at the next heartbeat.

        Args:
            is_patient: Wait for a database that is away.

        Returns:
            Whether it was still open.

        Raises:
            DatabaseAway: Without patience; it may have been cancelled all the same.
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
            extra = {"status": "cancelled", "error_kind": "cancelled", "error_message": message}
            await outbox.emit(self.database, connection, [NewEvent(score_id, "scoring.failed", extra)])
            await journal.note_change(
                self.database, connection, "cancel", by=by, session_id=session_id, score_id=score_id
            )
            if cancelled["purpose"] == "production":
                await self.inbox.promote(connection, chains, {session_id})
            return True

        cancelled = await (self.database.persist(work) if is_patient else self.database.once(work))
        self.database.ring("scores")  # a deferred request may have become one
        self.database.ring("events")
        return cancelled


def _turn_row(claimed: ClaimedScore, stored: StoredTurn) -> dict[str, Any]:
    return {
        **asdict(stored.turn),
        "score_id": claimed.score_id,
        "ordinal": stored.ordinal,
        "attempt": claimed.attempt,
        "criteria_hash": stored.criteria_hash,
        "context_hash": stored.context_hash,
        "nonce": stored.nonce,
        "asked_hash": stored.asked_hash,
    }

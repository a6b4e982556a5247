"""
Store the results of attempts: phases, turns, what was learned about the session, the end of the score.

Laws. Every write to a score matches its id *and* the lease token. If no row matches, the lease is lost and
nothing is written. Sessions are locked before scores. The transaction that ends a score also promotes the
session's deferred request.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from tarsy_scoring.errors import LeaseLost
from tarsy_scoring.events import bounded_labels
from tarsy_scoring.judge.read.extraction import tool_of_step
from tarsy_scoring.judge.verdict import AlternativeApproach, MissingTool, Turn
from tarsy_scoring.outbox import outbox
from tarsy_scoring.outbox.outbox import NewEvent
from tarsy_scoring.postgres.batching import Batcher
from tarsy_scoring.postgres.database import RETRY_MAX_S, RETRY_MIN_S, Connection, Database, insert_of
from tarsy_scoring.queue.admission import Disposition
from tarsy_scoring.queue.claims import ClaimedScore, progress
from tarsy_scoring.queue.inbox import Inbox, merged_labels, production_sessions
from tarsy_scoring.scores.latest import latest_of
from tarsy_scoring.scores.reader import LAST_PHASE
from tarsy_scoring.scores.shapes import ScoreResults

MAX_TOOL_NAME = 255  # characters; a judge may write a longer name than an index entry can hold


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """
    A turn with the identity of the question; only an equal question may reuse the answer.

    Args:
        asked_hash: None for a turn stored by a version that did not record it.
    """

    ordinal: int
    criteria_hash: str
    context_hash: str
    nonce: str
    asked_hash: str | None
    turn: Turn


TURN_FIELDS = tuple(f.name for f in fields(Turn))
QUESTION_FIELDS = tuple(f.name for f in fields(StoredTurn) if f.name != "turn")


def _add_turns(argument: int, held: str) -> str:
    """SQL that stores the turns of attempts in the relation `held`; an attempt has turns under one lease."""
    insert = insert_of("judge_turns", (*TURN_FIELDS, *QUESTION_FIELDS, "score_id", "attempt"), argument)
    # No columns of the conflict: PostgreSQL would refuse them on a partitioned table whose key they do not
    # hold.
    return f"""{insert} WHERE (score_id, attempt) IN (SELECT score_id, attempt FROM {held})
  ON CONFLICT DO NOTHING"""


# Store the turns ($5) of the steps whose lease is held and whose row is free, and emit the phases that are
# not the last of their score. A step stored since the snapshot, whose reply was lost, makes the statement
# fail: the sequence of an event is unique.
RECORD = f"""
WITH step AS (
  SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[])
    WITH ORDINALITY AS t(score_id, lease_token, phase, traceparent, n)
), held AS (
  SELECT s.score_id, s.lease_token, s.attempt, step.phase, step.traceparent, step.n
  FROM {{schema}}.session_scores s JOIN step USING (score_id, lease_token)
  FOR NO KEY UPDATE OF s SKIP LOCKED
), stored AS ({_add_turns(5, "held")}
), new AS (
  SELECT s.score_id, 'scoring.progress' AS type, jsonb_build_object('phase', s.phase) AS extra, s.traceparent,
    s.n
  FROM held s WHERE s.phase IS DISTINCT FROM {LAST_PHASE} AND s.phase IS NOT NULL
), {outbox.NUMBERED}, emitted AS ({outbox.insert_numbered("{schema}.session_scores")})
SELECT lease_token FROM held
"""

# A score that could not be written, under a lease still held, is locked by another transaction.
STILL_HELD = """
SELECT s.lease_token FROM {schema}.session_scores s
JOIN unnest($1::uuid[], $2::uuid[]) AS h(score_id, token) ON s.score_id = h.score_id
  AND s.lease_token = h.token
"""

TURNS = "SELECT * FROM {schema}.judge_turns WHERE score_id = $1 ORDER BY ordinal"

# The days on which the score counts become dirty, because they count what judging cost.
ADD_TURN = f"""
WITH held AS (
  UPDATE {{schema}}.session_scores SET usage = $3 WHERE score_id = $2
  RETURNING score_id, attempt, session_id, completed_at
), stored AS ({_add_turns(1, "held")})
INSERT INTO {{schema}}.dirty_days (day)
SELECT (d.at AT TIME ZONE 'UTC')::date FROM held h JOIN {{schema}}.sessions m USING (session_id)
CROSS JOIN LATERAL (VALUES (h.completed_at), (least(m.completed_at, m.first_seen_at))) AS d(at)
"""

BIND = """
UPDATE {schema}.session_scores
SET chain_id = $3, criteria = $4, criteria_hash = $5, score_triggered_by = $6, priority = $7,
  chain_is_named = $8 OR coalesce(chain_is_named AND chain_id = $3, false)
WHERE score_id = $1 AND lease_token = $2 RETURNING score_id
"""


def _learning(argument: int) -> str:
    """
    SQL expressions that store what the source says about sessions, under a held lease.

    Alert type and labels of the source replace those of events, as does the chain of the source where events
    may not choose. The day on which a session with completed scores ended becomes dirty when it moves; `END`
    marks the new one.
    """
    return f"""
said AS MATERIALIZED (
  SELECT m.session_id, m.completed_at AS known_end, m.first_seen_at, v.*
  FROM jsonb_to_recordset(${argument}::jsonb) AS v(score_id uuid, lease_token uuid, chain_id text,
    certain_chain_id text, alert_type text, labels jsonb, status text, completed_at timestamptz)
  CROSS JOIN LATERAL (  -- OFFSET 0: by the indexes, however small the tables were when this was planned
    SELECT m.* FROM {{schema}}.session_scores s JOIN {{schema}}.sessions m USING (session_id)
    WHERE s.score_id = v.score_id AND s.lease_token = v.lease_token OFFSET 0) m
), moved AS (
  INSERT INTO {{schema}}.dirty_days (day)
  SELECT (first_seen_at AT TIME ZONE 'UTC')::date FROM said
  WHERE known_end IS NULL AND completed_at < first_seen_at
), learned AS (
  UPDATE {{schema}}.sessions m SET chain_id = coalesce(v.certain_chain_id, m.chain_id, v.chain_id),
    alert_type = coalesce(v.alert_type, m.alert_type),
    labels = {merged_labels("m.labels || v.labels", "v.labels")},
    status = coalesce(m.status, v.status), completed_at = coalesce(m.completed_at, v.completed_at)
  FROM said v
  WHERE m.session_id = v.session_id AND m.session_id = ANY (ARRAY(SELECT session_id FROM said))
  RETURNING m.session_id, m.completed_at
)"""


LEARN_SESSIONS = f"WITH {_learning(1)} SELECT"

KEEP_CRITERIA = """
INSERT INTO {schema}.scoring_criteria (criteria_hash, name, content) VALUES ($1, $2, $3)
ON CONFLICT (criteria_hash) DO NOTHING
"""

# The only statement by which a holder ends a score. The columns are passed as one JSON document. The days
# become dirty on which the score, the session's end, and the replaced score count. The statement before has
# locked the sessions, so its snapshot shows every request that was deferred for them.
END = f"""
WITH v AS (SELECT * FROM jsonb_populate_recordset(NULL::{{schema}}.session_scores, $1::jsonb)),
held AS (  -- LATERAL: by the index, as above
  SELECT h.* FROM v CROSS JOIN LATERAL (
    SELECT s.score_id, s.lease_token FROM {{schema}}.session_scores s
    WHERE s.score_id = v.score_id AND s.lease_token = v.lease_token FOR UPDATE SKIP LOCKED) h
), ended AS (
UPDATE {{schema}}.session_scores s SET
  status = v.status, completed_at = now(), spent_s = s.spent_s + v.spent_s,
  attempts_burned = s.attempts_burned + v.attempts_burned,
  lease_owner = NULL, lease_token = NULL, lease_expires_at = NULL, waiting_reason = NULL,
  {", ".join(f"{name} = v.{name}" for name in ScoreResults.model_fields)}
FROM v JOIN held USING (score_id, lease_token) WHERE s.score_id = held.score_id
RETURNING held.lease_token, s.score_id, s.session_id, s.request_id, s.chain_id, s.purpose, s.attempt,
  s.status, s.completed_at, s.reference
), {_learning(2)}, marked AS (
INSERT INTO {{schema}}.dirty_days (day)
SELECT DISTINCT (d.at AT TIME ZONE 'UTC')::date
FROM ended e JOIN {{schema}}.sessions m USING (session_id) LEFT JOIN learned l USING (session_id)
CROSS JOIN LATERAL (
  SELECT now() UNION ALL SELECT least(coalesce(l.completed_at, m.completed_at), m.first_seen_at)
  UNION ALL SELECT {latest_of("e.session_id", "completed_at", kind_of="e")}) d(at)
WHERE e.status = 'completed' AND e.purpose = 'production' AND d.at IS NOT NULL
), turns AS ({_add_turns(3, "ended")}
), missing AS (
  INSERT INTO {{schema}}.score_missing_tools (score_id, ordinal, tool_name, rationale)
  SELECT e.score_id, t.ordinal, t.tool_name, t.rationale
  FROM jsonb_to_recordset($4::jsonb) AS t(lease_token uuid, ordinal int, tool_name text, rationale text)
  JOIN ended e USING (lease_token)
), new AS (
  SELECT e.score_id, n.type, n.extra, n.traceparent, n.n
  FROM ROWS FROM (jsonb_to_recordset($5::jsonb)
      AS (lease_token uuid, type text, extra jsonb, traceparent text))
    WITH ORDINALITY AS n(lease_token, type, extra, traceparent, n) JOIN ended e USING (lease_token)
), {outbox.NUMBERED}, emitted AS ({outbox.insert_numbered("ended")})
SELECT lease_token, session_id, purpose, EXISTS (SELECT FROM {{schema}}.scoring_requests r
  WHERE r.session_id = ended.session_id AND r.disposition = 'deferred') AS has_deferred
FROM ended
"""

ADD_APPROACHES = """
WITH v AS (
  SELECT * FROM jsonb_to_recordset($1::jsonb)
    AS r(score_id uuid, ordinal int, name text, description text, steps jsonb)
), added AS (
  INSERT INTO {schema}.score_alternative_approaches (score_id, ordinal, name, description)
  SELECT score_id, ordinal, name, description FROM v
  RETURNING score_id, ordinal
)
INSERT INTO {schema}.score_alternative_approach_steps (score_id, approach_ordinal, ordinal, step, tool_name)
SELECT v.score_id, v.ordinal, s.n, s.step ->> 'step', s.step ->> 'tool_name'
FROM v JOIN added USING (score_id, ordinal) CROSS JOIN jsonb_array_elements(v.steps) WITH ORDINALITY
  AS s(step, n)
"""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of an attempt: it entered a phase, received turns, or both."""

    claimed: ClaimedScore
    phase: str | None = None
    turns: Sequence[StoredTurn] = ()


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """What the source says about a session. Of status and end, what an event said takes precedence."""

    alert_type: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    status: str | None = None
    completed_at: datetime | None = None

    def added_to(self, claimed: ClaimedScore) -> ClaimedScore:
        """The claimed score with what it did not know."""
        return replace(
            claimed,
            alert_type=self.alert_type or claimed.alert_type,
            labels=bounded_labels({**self.labels, **claimed.labels, **self.labels}),
            session_status=claimed.session_status or self.status,
            session_ended_at=claimed.session_ended_at or self.completed_at,
        )


@dataclass(frozen=True, slots=True)
class Ending:
    """
    The end of a score.

    Args:
        columns: Columns of `session_scores` to set.
        event: The last event of the score.
        turns: The last turns, not recorded yet. They are stored and the phase `storing` is announced with the
            end.
        disposition: New disposition of the request, if it changes.
        facts: To be stored with the session; None if there is nothing new.
    """

    claimed: ClaimedScore
    columns: Mapping[str, Any]
    event: NewEvent
    missing_tools: Sequence[MissingTool] = ()
    alternative_approaches: Sequence[AlternativeApproach] = ()
    turns: Sequence[StoredTurn] = ()
    disposition: Disposition | None = None
    facts: SessionFacts | None = None


T = TypeVar("T", Step, Ending)
_FACTS = tuple(f.name for f in fields(SessionFacts))


class Store:
    """
    Writes of attempts. Each waits for the database and keeps the data in memory meanwhile.

    Steps and ends of several scores share a transaction. It waits for no lock: what another transaction keeps
    locked is written again later, and the others are not held up.

    A cancel at any await leaves a transaction either committed or rolled back.
    """

    def __init__(self, database: Database, inbox: Inbox) -> None:
        self.database = database
        self.inbox = inbox
        self._steps = Batcher(self._record_all)
        self._endings = Batcher(self._end_all)

    async def record(self, step: Step) -> None:
        """
        Store the turns of a step and announce the phase. Waits for the database.

        Raises:
            LeaseLost: The lease is no longer held; nothing was written.
        """
        await _until_free(self._steps, step)
        self.database.notify("events")

    async def _record_all(self, steps: Sequence[Step]) -> Sequence[bool | None]:
        columns = zip(
            *((s.claimed.score_id, s.claimed.lease_token, s.phase, s.claimed.traceparent) for s in steps),
            strict=True,
        )
        turns = [_turn_row(s.claimed.score_id, s.claimed.attempt, turn) for s in steps for turn in s.turns]
        arguments = (*map(list, columns), turns)

        async def work(connection: Connection) -> tuple[set[UUID], set[UUID]]:
            rows = await connection.fetch(self.database.sql(RECORD), *arguments)
            # By token: a batch may hold steps of a lost lease together with steps of the lease after it.
            written = {r["lease_token"] for r in rows}
            return written, await self._locked(connection, [s.claimed for s in steps], written)

        written, locked = await self.database.persist(work)
        return [_result(s.claimed.lease_token in written, s.claimed.lease_token in locked) for s in steps]

    async def _locked(
        self, connection: Connection, claimed: Sequence[ClaimedScore], written: set[UUID]
    ) -> set[UUID]:
        """
        Leases among these under which nothing was written, because another transaction has locked the score.
        """
        left = [c for c in claimed if c.lease_token not in written]
        if not left:
            return set()
        lists = [c.score_id for c in left], [c.lease_token for c in left]
        return {r["lease_token"] for r in await connection.fetch(self.database.sql(STILL_HELD), *lists)}

    async def stored_turns(self, score_id: UUID) -> list[StoredTurn]:
        """The turns of earlier attempts, in order. Waits for the database."""
        rows = await self.database.persist(lambda c: c.fetch(self.database.sql(TURNS), score_id))
        return [
            StoredTurn(
                **{name: r[name] for name in QUESTION_FIELDS},
                turn=Turn(**{name: r[name] for name in TURN_FIELDS}),
            )
            for r in rows
        ]

    async def add_turn(self, score_id: UUID, attempt: int, stored: StoredTurn, usage: object) -> None:
        """
        Store a turn of a completed score, and the usage of all turns; nothing where the score was erased.

        Waits for the database.
        """
        row = [_turn_row(score_id, attempt, stored)]
        await self.database.persist(lambda c: c.execute(self.database.sql(ADD_TURN), row, score_id, usage))

    async def bind(
        self,
        claimed: ClaimedScore,
        *,
        chain_id: str | None,
        criteria: str,
        criteria_hash: str | None,
        facts: SessionFacts,
        declined: Ending | None = None,
        is_chain_of_source: bool = False,
    ) -> tuple[ClaimedScore, bool]:
        """
        Fix chain and criteria of a claimed score, and store what the source says about the session.

        Waits for the database. What an event said about status and end of the session takes precedence over
        the source.

        Args:
            is_chain_of_source: The source gave the chain, and events may not name another one.
            declined: The end of the score if the chain declines automatic requests. It is stored in the same
                transaction, unless another request has joined the score: then the score becomes that one's.

        Returns:
            The claimed score with the new values, and whether it ended as `declined`.

        Raises:
            LeaseLost: The lease is no longer held.
        """
        bound = replace(
            facts.added_to(claimed), chain_id=chain_id, criteria=criteria, criteria_hash=criteria_hash
        )
        is_due = False  # a deferred request became a score

        async def work(connection: Connection) -> tuple[ClaimedScore, bool]:
            nonlocal is_due
            await self.inbox.lock_sessions(connection, {claimed.session_id})
            chain = {"chain_id": chain_id, "certain_chain_id": chain_id if is_chain_of_source else None}
            await connection.execute(self.database.sql(LEARN_SESSIONS), [_facts_row(claimed, facts) | chain])
            survivor = (
                None if declined is None else await self.inbox.surviving_request(connection, claimed.score_id)
            )
            ours = bound
            if survivor is not None:  # it wants the criteria of the score, else it had not joined
                priority = min(bound.priority, survivor.priority)
                ours = replace(bound, score_triggered_by=survivor.requested_by, priority=priority)
            is_named = ours.chain_id in self.inbox.policy.chains
            columns = (ours.score_triggered_by, ours.priority, is_named)
            lease, sql = (claimed.score_id, claimed.lease_token), self.database.sql(BIND)
            row = await connection.fetchrow(sql, *lease, chain_id, criteria, criteria_hash, *columns)
            is_held, is_declined = row is not None, False
            if declined is not None and survivor is None:
                ended, is_due = await self._end_in(connection, [declined])
                is_held = is_declined = bool(ended)
            if not is_held:
                raise LeaseLost(f"score {claimed.score_id}: the lease was lost before criteria were bound")
            return ours, is_declined

        ours, is_declined = await self.database.persist(work)
        if is_due:
            self.database.notify("scores")
        if is_declined:
            self.database.notify("events")
        return ours, is_declined

    async def keep_criteria(self, criteria_hash: str, name: str, content: Mapping[str, Any]) -> None:
        """Store criteria under their hash, for ever. Waits for the database."""
        await self.database.persist(
            lambda c: c.execute(self.database.sql(KEEP_CRITERIA), criteria_hash, name, dict(content))
        )

    async def end(self, ending: Ending) -> None:
        """
        End a score: columns, rows and the last event, in one transaction. Waits for the database.

        Raises:
            LeaseLost: The lease is no longer held; nothing was written, or it was and the reply was lost.
        """
        await _until_free(self._endings, ending)
        self.database.notify("events")

    async def _end_all(self, endings: Sequence[Ending]) -> Sequence[bool | None]:
        # By token, as in `_record_all`. Of two endings under one lease the first counts.
        by_token = {e.claimed.lease_token: e for e in reversed(endings)}

        async def work(connection: Connection) -> tuple[set[UUID], set[UUID], bool]:
            ended, is_due = await self._end_in(connection, list(by_token.values()))
            return ended, await self._locked(connection, [e.claimed for e in endings], ended), is_due

        ended, locked, is_due = await self.database.persist(work)
        if is_due:
            self.database.notify("scores")
        return [
            _result(token in ended and by_token[token] is e, token in locked)
            for e in endings
            for token in [e.claimed.lease_token]
        ]

    async def _end_in(self, connection: Connection, endings: Sequence[Ending]) -> tuple[set[UUID], bool]:
        """
        End scores in the caller's transaction, except those that another transaction has locked.

        Args:
            endings: At most one under each lease.

        Returns:
            The leases under which a score ended, and whether a deferred request became a score.
        """
        sessions = {e.claimed.session_id for e in endings}
        chains = await self.inbox.lock_sessions(connection, sessions, skip_locked=True)
        free = [e for e in endings if e.claimed.session_id in chains]
        facts = [_facts_row(e.claimed, e.facts) for e in free if e.facts is not None]
        turns = [_turn_row(e.claimed.score_id, e.claimed.attempt, turn) for e in free for turn in e.turns]
        tools = [row for e in free for row in _tool_rows(e)]
        events = [row for e in free for row in _event_rows(e)]
        arguments = (list(map(_end_row, free)), facts, turns, tools, events)
        rows = await connection.fetch(self.database.sql(END), *arguments) if free else []
        ended = {r["lease_token"] for r in rows}
        await self._write_rest(connection, [e for e in free if e.claimed.lease_token in ended])
        deferred = production_sessions(r for r in rows if r["has_deferred"])
        return ended, await self.inbox.promote(connection, chains, deferred)

    async def _write_rest(self, connection: Connection, endings: Sequence[Ending]) -> None:
        """Write what few of these ends have: dispositions and alternative approaches."""
        approaches: list[dict[str, Any]] = []
        for e in endings:
            for n, a in enumerate(e.alternative_approaches, start=1):
                steps = [{"step": step, "tool_name": tool_of_step(step)} for step in a.steps]
                row = {"ordinal": n, "name": a.name, "description": a.description, "steps": steps}
                approaches.append({"score_id": e.claimed.score_id} | row)
            if e.disposition is not None:
                await self.inbox.set_disposition(
                    connection, e.claimed.request_id, e.disposition, e.claimed.score_id
                )
        if approaches:
            await connection.execute(self.database.sql(ADD_APPROACHES), approaches)


async def _until_free(batcher: Batcher[T, bool | None], item: T) -> None:
    """Write an item, again while another transaction keeps the score locked. Raises: LeaseLost."""
    wait_s = RETRY_MIN_S
    while (is_written := await batcher.submit(item)) is None:
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, RETRY_MAX_S)
    if not is_written:
        what = type(item).__name__.lower()
        raise LeaseLost(f"score {item.claimed.score_id}: the lease was lost before its {what} was stored")


def _result(is_written: bool, is_locked: bool) -> bool | None:
    """What a batch returns for an item; None: it has to be written again."""
    return is_written or (None if is_locked else False)


def _end_row(ending: Ending) -> dict[str, Any]:
    claimed = ending.claimed
    key = {"score_id": claimed.score_id, "attempt": claimed.attempt, "lease_token": claimed.lease_token}
    return {**ending.columns, **key}


def _tool_rows(ending: Ending) -> Iterator[dict[str, Any]]:
    for n, t in enumerate(ending.missing_tools, start=1):
        row = {"ordinal": n, "tool_name": t.tool_name[:MAX_TOOL_NAME], "rationale": t.rationale}
        yield {"lease_token": ending.claimed.lease_token} | row


def _event_rows(ending: Ending) -> Iterator[dict[str, Any]]:
    """The last events of a score."""
    claimed = ending.claimed
    for e in [progress(claimed, "storing")] * bool(ending.turns) + [ending.event]:
        row = {"type": e.type, "extra": e.extra, "traceparent": claimed.traceparent}
        yield {"lease_token": claimed.lease_token} | row


def _facts_row(claimed: ClaimedScore, facts: SessionFacts) -> dict[str, Any]:
    row = {name: getattr(facts, name) for name in _FACTS}
    return row | {"score_id": claimed.score_id, "lease_token": claimed.lease_token}


def _turn_row(score_id: UUID, attempt: int, stored: StoredTurn) -> dict[str, Any]:
    # By name: `asdict` copies each field deeply and takes several times as long.
    turn = {name: getattr(stored.turn, name) for name in TURN_FIELDS}
    question = {name: getattr(stored, name) for name in QUESTION_FIELDS}
    return turn | question | {"score_id": score_id, "attempt": attempt}

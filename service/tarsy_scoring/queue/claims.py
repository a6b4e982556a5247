"""
What a claim may take, and what it gives: due scores in their order, apart from those of suspects.

A score is claimed by one statement of PostgreSQL, which passes over the rows that other workers have locked.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
from pydantic_core import from_json

from tarsy_scoring.limits.rules import Standing, Standings
from tarsy_scoring.outbox.outbox import NewEvent
from tarsy_scoring.postgres.moments import moment

# A score whose worker was lost so often is a suspect: it may be what kills workers.
SUSPECT_LOSSES = 2

# Move the start of claims to the first pending score, at most once in 10 s. Under an open snapshot, which
# keeps the index entries of claimed scores, claims then do not read past all of them. A score is due at the
# start of its transaction or later, and no transaction of the service lasts two minutes. If one does, the
# next move finds those scores below the floor. Another worker may freeze, or a program keep the row locked:
# nothing waits for them.
MOVE_CLAIM_FLOOR = """
UPDATE {schema}.claim_floor SET
  due = coalesce((SELECT min(next_attempt_at) FROM {schema}.session_scores
                  WHERE status = 'pending' AND next_attempt_at < now() - interval '2 minutes'),
                 now() - interval '2 minutes'),
  checked_at = now()
WHERE singleton IN (SELECT singleton FROM {schema}.claim_floor
                    WHERE checked_at NOT BETWEEN now() - interval '10 seconds' AND now()
                      FOR UPDATE SKIP LOCKED)
"""

# A floor that was not checked lately hides nothing, nor does one from before the clock was set back.
_FLOOR = """coalesce((SELECT due FROM {schema}.claim_floor
                       WHERE checked_at BETWEEN now() - interval '20 seconds' AND now()), '-infinity')"""
_CLAIMABLE = f"""status = 'pending' AND next_attempt_at <= now() AND next_attempt_at >= {_FLOOR}
    AND CASE WHEN coalesce(chain_id, '') = ANY($4::text[]) THEN coalesce(chain_id, '') <> ALL($5::text[])
             ELSE NOT $6 END
    -- Criteria and chains that this worker does not know are left to those that do (see `known_names`).
    AND (criteria IS NULL OR criteria = ANY($9::text[]))
    AND (chain_id IS NULL OR chain_id = ANY($10::text[]) OR chain_is_named IS NOT TRUE
      AND chain_id <> ALL (ARRAY(
      SELECT name FROM {{schema}}.known_names
      WHERE kind = 'chain' AND seen_at > now() - make_interval(secs => $11))))"""
_DUE = "score_id, priority, next_attempt_at, waiting_reason IS NOT DISTINCT FROM 'session' AS is_lookup_only"

# Suspects are claimed apart, at most $7 of them. They keep their place in the order: neither they nor the
# others overtake. A score that waits for a session is claimed for a look, which is no attempt yet.
CLAIM = f"""
WITH suspects AS MATERIALIZED (
  SELECT {_DUE} FROM {{schema}}.session_scores
  WHERE {_CLAIMABLE} AND losses > 0 AND losses >= $8
  ORDER BY priority, next_attempt_at LIMIT $7 FOR UPDATE SKIP LOCKED
), others AS MATERIALIZED (
  SELECT {_DUE} FROM {{schema}}.session_scores
  WHERE {_CLAIMABLE} AND losses < $8
  ORDER BY priority, next_attempt_at LIMIT $2 FOR UPDATE SKIP LOCKED
), due AS (
  SELECT score_id, is_lookup_only FROM (TABLE suspects UNION ALL TABLE others) d
    ORDER BY priority, next_attempt_at LIMIT $2
), claimed AS (
  UPDATE {{schema}}.session_scores s SET
    status = 'in_progress', attempt = s.attempt + (NOT due.is_lookup_only)::int,
    started_at = coalesce(s.started_at, now()),
    waiting_reason = NULL, waiting_for_text = NULL,
    lease_owner = $1, lease_token = gen_random_uuid(), lease_expires_at = now() + make_interval(secs => $3)
  FROM due WHERE s.score_id = due.score_id
  RETURNING s.*, due.is_lookup_only
)
SELECT c.score_id, c.session_id, c.request_id, c.chain_id, c.purpose, c.attempt, c.attempts_burned, c.losses,
       c.spent_s, c.criteria, c.criteria_hash, c.nonce, c.lease_token, c.score_triggered_by, c.priority,
       extract(epoch FROM now() - c.created_at)::float8 AS age_s,
       m.alert_type, m.status AS session_status,
       coalesce(r.source, '') AS source, r.traceparent,
       r.chain_id AS asked_chain_id, r.criteria AS asked_criteria, c.is_lookup_only,
       coalesce(r.is_reference_refused, false) AS is_reference_refused,
       jsonb_build_object('labels', m.labels, 'session_ended_at', m.completed_at, 'reference', (
         SELECT jsonb_build_object('text', f.text, 'source_url', f.source_url, 'provided_by', f.provided_by,
                                   'provided_at', f.provided_at, 'sent_by', f.sent_by)
         FROM {{schema}}.session_references f WHERE f.reference_id = c.reference_id))::text AS given
FROM claimed c
JOIN {{schema}}.sessions m USING (session_id)
LEFT JOIN {{schema}}.scoring_requests r ON r.request_id = c.request_id
"""


class ChainFilter(NamedTuple):
    """
    Chains whose scores may not be claimed now, in the order in which statements take them.

    Args:
        named: Chains with their own state; '' stands for scores without a chain.
        blocked: Those in `named` that must wait.
        others_blocked: Whether all chains that are not named must wait.
    """

    named: Sequence[str] = ()
    blocked: Sequence[str] = ()
    others_blocked: bool = False

    @classmethod
    def of(cls, standings: Standings, may_claim: Callable[[Standing], bool]) -> "ChainFilter":
        """Chains whose standing does not allow a claim."""
        blocked = [c for c, standing in standings.by_chain.items() if not may_claim(standing)]
        return cls(list(standings.by_chain), blocked, not may_claim(standings.others))


EVERY_CHAIN = ChainFilter()


@dataclass(frozen=True, slots=True)
class ClaimedScore:
    """
    A score held under a lease.

    Args:
        losses: How often a worker was lost with it.
        age_s: Seconds since the request was accepted.
        session_status, session_ended_at: As events and earlier attempts gave them.
        source: Where the request came from.
        traceparent: The request's trace context; within a traced attempt, the attempt's.
        asked_chain_id, asked_criteria: Those that the request itself named.
        is_lookup_only: It was claimed to look for the session again; see `Leases.begin_attempt`.
        is_reference_refused: See `admission.Request`.
        reference: The text to judge against, under `text`, and what the score carries of it.
        is_unreadable: What the session's row gives is not here, because it cannot be read.
    """

    score_id: UUID
    session_id: str
    request_id: UUID
    chain_id: str | None
    purpose: str
    attempt: int
    attempts_burned: int
    losses: int
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
    session_ended_at: datetime | None
    source: str
    traceparent: str | None = None
    asked_chain_id: str | None = None
    asked_criteria: str | None = None
    is_lookup_only: bool = False
    is_reference_refused: bool = False
    reference: Mapping[str, Any] | None = None
    is_unreadable: bool = False

    @classmethod
    def of(cls, row: asyncpg.Record) -> "ClaimedScore":
        """The score in a row of `CLAIM`; one row that Python cannot hold must not stop the others."""
        values = dict(row)
        try:
            given = from_json(values.pop("given"))
        except ValueError:
            given = {"labels": {}, "session_ended_at": None, "is_unreadable": True}
        ended_at = moment(given.pop("session_ended_at"))
        return cls(**values, **given, session_ended_at=ended_at)


def suspect_losses_of(max_attempts: int) -> int:
    """From how many losses on, at least 1, a score with so many attempts is a suspect."""
    return max(1, min(SUSPECT_LOSSES, max_attempts - 1))


def begun_events(claimed: ClaimedScore) -> list[NewEvent]:
    """The events with which an attempt begins."""
    started = NewEvent(claimed.score_id, "scoring.started", {}, claimed.traceparent)
    return [started, progress(claimed, "gathering_context")]


def progress(claimed: ClaimedScore, phase: str) -> NewEvent:
    """The `scoring.progress` event of an attempt that enters a phase."""
    return NewEvent(claimed.score_id, "scoring.progress", {"phase": phase}, claimed.traceparent)

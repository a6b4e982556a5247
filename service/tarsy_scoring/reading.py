"""
Stored scores for people and programs: rows, and the one JSON document that is shown everywhere.
"""

import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from tarsy_scoring.database import Connection, Database

SCORE = """
SELECT s.*, s.next_attempt_at <= now() AS is_due, m.alert_type, m.labels
FROM {schema}.session_scores s JOIN {schema}.sessions m USING (session_id)
WHERE s.score_id = $1
"""

SCORES_OF_SESSION = """
SELECT s.*, m.alert_type, m.labels FROM {schema}.session_scores s JOIN {schema}.sessions m USING (session_id)
WHERE s.session_id = $1 ORDER BY s.created_at DESC, s.score_id LIMIT $2
"""

MISSING_TOOLS = "SELECT tool_name, rationale FROM {schema}.score_missing_tools WHERE score_id = $1 ORDER BY ordinal"

APPROACHES = """
SELECT a.name, a.description,
       coalesce(jsonb_agg(s.step ORDER BY s.ordinal) FILTER (WHERE s.step IS NOT NULL), '[]') AS steps
FROM {schema}.score_alternative_approaches a
LEFT JOIN {schema}.score_alternative_approach_steps s ON s.score_id = a.score_id AND s.approach_ordinal = a.ordinal
WHERE a.score_id = $1 GROUP BY a.ordinal, a.name, a.description ORDER BY a.ordinal
"""

TURNS = """
SELECT kind, provider, model_requested, model_served, input_tokens, cached_input_tokens, output_tokens, cost_usd,
       latency_ms, finish_reason
FROM {schema}.judge_turns WHERE score_id = $1 ORDER BY ordinal
"""

QUEUE = """
SELECT status, count(*) AS scores,
       coalesce(extract(epoch FROM now() - min(next_attempt_at)
                        FILTER (WHERE status = 'pending' AND next_attempt_at <= now())), 0)::float8 AS oldest_due_s
FROM {schema}.session_scores WHERE status IN ('pending', 'in_progress') GROUP BY status
"""

# Sessions whose newest production score ended without a number.
FAILED_SESSIONS = """
SELECT DISTINCT s.session_id FROM {schema}.session_scores s
WHERE s.status IN ('failed', 'timed_out') AND s.purpose = 'production'
  AND ($1::text IS NULL OR s.error_kind = $1) AND ($2::text IS NULL OR s.chain_id = $2)
  AND ($3::timestamptz IS NULL OR s.created_at >= $3)
  AND NOT EXISTS (SELECT FROM {schema}.session_scores n WHERE n.session_id = s.session_id
                  AND n.purpose = 'production' AND n.created_at > s.created_at)
ORDER BY s.session_id
"""

# Sessions with a production score made since a time.
SCORED_SESSIONS = """
SELECT DISTINCT session_id FROM {schema}.session_scores
WHERE purpose = 'production' AND ($1::text IS NULL OR chain_id = $1)
  AND ($2::timestamptz IS NULL OR created_at >= $2)
ORDER BY session_id
"""

KEEP_BODY = """
INSERT INTO {schema}.dead_letter_bodies (body_id, key, value, headers) VALUES ($1, $2, $3, $4)
ON CONFLICT (body_id) DO NOTHING
"""

BODY = "SELECT key, value, headers FROM {schema}.dead_letter_bodies WHERE body_id = $1"

# The columns of `session_scores` that the document shows as they are.
SHOWN = (
    *("score_id", "session_id", "request_id", "chain_id", "purpose", "status", "attempt", "score_triggered_by"),
    *("created_at", "started_at", "completed_at", "total_score", "score_analysis", "score_breakdown"),
    *("missing_tools_analysis", "rubric", "criteria", "criteria_hash", "judge_fingerprint", "samples", "spread"),
    *("outcome", "outcome_reason", "judge_outcome", "composite_score", "failure_tags", "flags", "grounding"),
    *("interaction", "diagnosis", "gates", "gates_passed", "gates_total", "coverage", "evidence", "usage"),
    *("error_kind", "error_message"),
)
NO_USAGE = {"input_tokens": None, "cached_input_tokens": None, "output_tokens": None, "cost_usd": None}


@dataclass(frozen=True, slots=True)
class Body:
    """A message kept because the dead-letter topic would not take it."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


class Waiting(Protocol):
    """What keeps the scores of chains from being claimed, as it stands at a moment."""

    def reason(self, chain_id: str | None) -> str | None:
        """None: nothing does."""
        ...


class Reader:
    """
    Reads of stored scores. Every method raises DatabaseAway instead of waiting, unless it says otherwise.

    Args:
        waiting: Looks up what pending scores wait for; None: nobody knows.
    """

    def __init__(
        self,
        database: Database,
        current_hashes: Mapping[str, str],
        waiting: Callable[[], Awaitable[Waiting]] | None = None,
    ) -> None:
        self.database = database
        self._current_hashes = current_hashes
        self._waiting = waiting

    async def score(self, score_id: UUID) -> dict[str, Any] | None:
        """The document of one score; None: there is none."""

        async def work(connection: Connection) -> tuple[Mapping[str, Any], dict[str, Any]] | None:
            row = await connection.fetchrow(self.database.sql(SCORE), score_id)
            if row is None:
                return None
            tools = await connection.fetch(self.database.sql(MISSING_TOOLS), score_id)
            approaches = await connection.fetch(self.database.sql(APPROACHES), score_id)
            turns = await connection.fetch(self.database.sql(TURNS), score_id)
            return dict(row), document(
                dict(row),
                [dict(t) for t in tools],
                [dict(a) for a in approaches],
                [dict(t) for t in turns],
                self._current_hashes,
            )

        found = await self.database.once(work)
        if found is None:
            return None
        row, shown = found
        if why := (await self.reasons_to_wait([row])).get(score_id):
            shown["waiting_for"] = why
        return shown

    async def reasons_to_wait(self, rows: Sequence[Mapping[str, Any]]) -> dict[UUID, str]:
        """
        Why pending scores do not begin, as it stands now; one that is merely not its turn yet gives no reason.

        Args:
            rows: With `score_id`, `status`, `waiting_reason`, `is_due` and `chain_id`.
        """
        pending = [r for r in rows if r["status"] == "pending"]
        reasons = {r["score_id"]: r["waiting_reason"] for r in pending if not r["is_due"]}
        due = [r for r in pending if not reasons.get(r["score_id"])]
        if due and self._waiting is not None:
            waiting = await self._waiting()
            reasons |= {r["score_id"]: waiting.reason(r["chain_id"]) for r in due}
        return {score_id: reason for score_id, reason in reasons.items() if reason}

    async def scores_of_session(self, session_id: str, limit: int = 100) -> list[dict[str, Any]]:
        """Rows of a session's scores, newest first."""
        rows = await self.database.once(lambda c: c.fetch(self.database.sql(SCORES_OF_SESSION), session_id, limit))
        return [dict(r) for r in rows]

    async def failed_sessions(self, error_kind: str | None, chain: str | None, since: datetime | None) -> list[str]:
        """Sessions whose newest score failed or timed out."""
        rows = await self.database.once(lambda c: c.fetch(self.database.sql(FAILED_SESSIONS), error_kind, chain, since))
        return [r["session_id"] for r in rows]

    async def scored_sessions(self, chain: str | None, since: datetime | None) -> list[str]:
        """Sessions with a score made since a time."""
        rows = await self.database.once(lambda c: c.fetch(self.database.sql(SCORED_SESSIONS), chain, since))
        return [r["session_id"] for r in rows]

    async def queue(self) -> dict[str, tuple[int, float]]:
        """Open scores by status: how many, and for pending ones how long the oldest due one waits in s."""
        rows = await self.database.once(lambda c: c.fetch(self.database.sql(QUEUE)))
        return {r["status"]: (r["scores"], r["oldest_due_s"]) for r in rows}

    async def keep_body(self, body_id: UUID, body: Body) -> None:
        """Keep a message that is too large for the dead-letter topic. Waits for the database."""
        headers = [[k, base64.b64encode(v).decode()] for k, v in body.headers]
        await self.database.persist(
            lambda c: c.execute(self.database.sql(KEEP_BODY), body_id, body.key, body.value, headers)
        )

    async def body(self, body_id: UUID) -> Body | None:
        """A kept message; None: it is not here."""
        row = await self.database.once(lambda c: c.fetchrow(self.database.sql(BODY), body_id))
        if row is None:
            return None
        return Body(row["key"], row["value"], [(k, base64.b64decode(v)) for k, v in row["headers"]])


def document(
    row: Mapping[str, Any],
    missing_tools: Sequence[Mapping[str, Any]],
    alternative_approaches: Sequence[Mapping[str, Any]],
    turns: Sequence[Mapping[str, Any]],
    current_hashes: Mapping[str, str],
) -> dict[str, Any]:
    """
    The score document of the interface, with plain JSON-able values but for ids and times.

    Args:
        row: A row of `session_scores`.
        current_hashes: Criteria name -> the hash it has now.
    """
    shown: dict[str, Any] = {name: row[name] for name in SHOWN}
    shown["usage"] = row["usage"] or NO_USAGE
    shown["scored_at"] = row["completed_at"]
    shown["is_current_criteria"] = (
        row["criteria_hash"] is not None and current_hashes.get(row["criteria"] or "") == row["criteria_hash"]
    )
    shown["missing_tools"] = list(missing_tools)
    shown["alternative_approaches"] = list(alternative_approaches)
    shown["turns"] = list(turns)
    if row["status"] == "in_progress":
        shown["current_stage"] = row["current_stage"]
    return shown

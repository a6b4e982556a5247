"""
Reads of stored scores: documents, histories, the judge's replies, criteria.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from tarsy_scoring.events import MAX_REFERENCES
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.postgres.recent import Recent
from tarsy_scoring.scores.document import CurrentHash, document
from tarsy_scoring.scores.latest import latest_of
from tarsy_scoring.scores.shapes import Turn

# Age of what documents say about the reasons to wait. A worker reads the limits as often.
WAITING_S = 1.0
TURN = tuple(Turn.model_fields)


def newest_disposition(session_id: str) -> str:
    """SQL: the disposition of the newest request for a session."""
    return f"""(SELECT r.disposition FROM {{schema}}.scoring_requests r
  WHERE r.session_id = {session_id} ORDER BY r.received_at DESC LIMIT 1)"""


# The last phase of a score `s`, by the index on the sequence.
LAST_PHASE = """(SELECT e.payload ->> 'phase' FROM {schema}.scoring_events e
  WHERE e.score_id = s.score_id AND e.type = 'scoring.progress' ORDER BY e.sequence DESC LIMIT 1)"""
CURRENT_STAGE = f"CASE WHEN s.status = 'in_progress' THEN {LAST_PHASE} END AS current_stage"

# Everything that a document shows, in one row, with lists that the judge's replies to this score bound. A
# completed production score names the session's newest score where that is newer and not completed.
DOCUMENT = f"""
SELECT s.*, s.next_attempt_at <= now() AS is_due, m.alert_type, m.labels, {CURRENT_STAGE},
  (SELECT jsonb_agg(jsonb_build_object('tool_name', t.tool_name, 'rationale', t.rationale) ORDER BY t.ordinal)
   FROM {{schema}}.score_missing_tools t WHERE t.score_id = s.score_id) AS missing_tools,
  (SELECT jsonb_agg(jsonb_build_object('name', a.name, 'description', a.description, 'steps',
       (SELECT coalesce(jsonb_agg(p.step ORDER BY p.ordinal), '[]')
        FROM {{schema}}.score_alternative_approach_steps p
        WHERE p.score_id = a.score_id AND p.approach_ordinal = a.ordinal)) ORDER BY a.ordinal)
   FROM {{schema}}.score_alternative_approaches a WHERE a.score_id = s.score_id) AS alternative_approaches,
  (SELECT jsonb_agg(
     jsonb_build_object({", ".join(f"'{name}', u.{name}" for name in TURN)}) ORDER BY u.ordinal)
   FROM {{schema}}.judge_turns u WHERE u.score_id = s.score_id) AS turns,
  (SELECT jsonb_build_object('score_id', n.score_id, 'status', n.status)
   FROM (SELECT score_id, status, created_at FROM {{schema}}.session_scores n
         WHERE n.session_id = s.session_id AND n.purpose = 'production' ORDER BY n.created_at DESC LIMIT 1) n
   WHERE s.status = 'completed' AND s.purpose = 'production'
     AND n.created_at > s.created_at AND n.status <> 'completed') AS latest_attempt,
  (SELECT c.content -> 'prompt_hashes' FROM {{schema}}.scoring_criteria c
   WHERE c.criteria_hash = s.criteria_hash) AS prompt_hashes
FROM {{schema}}.session_scores s JOIN {{schema}}.sessions m USING (session_id)
"""

SCORE = f"{DOCUMENT} WHERE s.score_id = $1"

# The latest completed score, else the newest of any status.
SCORE_OF_SESSION = f"""{DOCUMENT}
WHERE s.score_id = coalesce(
  {latest_of("$1", "score_id")},
  (SELECT score_id FROM {{schema}}.session_scores
   WHERE session_id = $1 AND purpose = 'production' ORDER BY created_at DESC LIMIT 1))
"""

# The newest score of a session, of one purpose ($2) or of any, with the alert type and labels of the session.
NEWEST_SCORE = """
SELECT s.*, m.alert_type, m.labels FROM {schema}.session_scores s JOIN {schema}.sessions m USING (session_id)
WHERE s.session_id = $1 AND ($2::text IS NULL OR s.purpose = $2)
ORDER BY s.created_at DESC, s.score_id LIMIT 1
"""

# A page of a session's scores after a given one ($2, $3), newest first.
HISTORY = f"""{DOCUMENT}
WHERE s.session_id = $1 AND ($2::timestamptz IS NULL OR (s.created_at, s.score_id) < ($2, $3::uuid))
  AND ($4::text IS NULL OR s.purpose = $4)
ORDER BY s.created_at DESC, s.score_id DESC LIMIT $5
"""

KNOWS_SESSION = "SELECT EXISTS (SELECT FROM {schema}.sessions WHERE session_id = $1)"

# A score without turns gives one row of nulls, and no row means that there is no such score.
REPLIES = """
SELECT t.* FROM {schema}.session_scores s LEFT JOIN {schema}.judge_turns t USING (score_id)
WHERE s.score_id = $1 ORDER BY t.ordinal
"""

ASKED_BY_PERSON = """
SELECT EXISTS (SELECT FROM {schema}.scoring_requests
               WHERE score_id = $1 AND requested_by = $2 AND source IN ('api', 'cli', 'review'))
"""

CRITERIA = """
SELECT criteria_hash, name, content, first_used_at FROM {schema}.scoring_criteria WHERE criteria_hash = $1
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

REFERENCES_OF_SESSIONS = f"""
SELECT r.session_id, r.text, r.source_url, r.provided_by, r.provided_at, r.sent_by
FROM unnest($1::text[]) AS s(session_id) CROSS JOIN LATERAL (
  SELECT * FROM {{schema}}.session_references f WHERE f.session_id = s.session_id
  ORDER BY given_at DESC, reference_id LIMIT {MAX_REFERENCES}) r
ORDER BY r.given_at DESC, r.reference_id
"""

# Criteria and chains that living workers know. A pending score under other names waits for such a worker.
KNOWN = "SELECT kind, name FROM {schema}.known_names WHERE seen_at > now() - make_interval(secs => $1)"
LIVING_S = 180.0  # the longest `Policy.living_s`

# The columns of a turn with the reply.
REPLY = ("ordinal", *TURN, "reply", "refusal", "has_tool_calls", "attempt", "created_at")


async def references_of(database: Database, session_ids: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """
    The newest `MAX_REFERENCES` references of each session, the newest first; sessions without any are left
    out. Raises: DatabaseAway.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for row in await database.fetch(REFERENCES_OF_SESSIONS, sorted(set(session_ids))):
        values = dict(row)
        found.setdefault(values.pop("session_id"), []).append(values)
    return found


class Holds(Protocol):
    """What holds chains up, read at one moment."""

    def hold(self, chain_id: str | None) -> tuple[str, str] | None:
        """Why no score of this chain is claimed now, as a word and in words; None: they are claimed."""
        ...


class Wait(NamedTuple):
    """Why a pending score does not begin: `waiting_for` in the document, and the same in words."""

    reason: str
    text: str | None


UNKNOWN_NAMES = Wait("worker", "no running worker knows its criteria or its chain")


class Reader:
    """
    Reads stored scores. Every method raises DatabaseAway instead of waiting, unless it says otherwise.

    Args:
        waiting: Looks up why scores of each chain wait; None: documents name no reason beyond the stored one.
    """

    def __init__(
        self,
        database: Database,
        current_hash: CurrentHash,
        waiting: Callable[[], Awaitable[Holds]] | None = None,
    ) -> None:
        self.database = database
        self.current_hash = current_hash
        self._waiting = None if waiting is None else Recent(waiting, WAITING_S)
        self._known = Recent(self._known_names, WAITING_S)

    async def score(self, score_id: UUID) -> dict[str, Any] | None:
        """The document of one score; None: there is none."""
        return await self._one(SCORE, score_id)

    async def score_of_session(self, session_id: str) -> dict[str, Any] | None:
        """
        The session's score as a document: the latest completed one, else the newest in any status.

        The document of a completed score names a newer score that is not completed as `latest_attempt`. None:
        the session has no score.
        """
        return await self._one(SCORE_OF_SESSION, session_id)

    async def disposition(self, session_id: str) -> str | None:
        """Disposition of the session's newest request; None: no request is stored."""
        sql = self.database.sql(f"SELECT {newest_disposition('$1')}")
        found: str | None = await self.database.once(lambda c: c.fetchval(sql, session_id))
        return found

    async def newest_score(self, session_id: str, purpose: str | None = None) -> dict[str, Any] | None:
        """The row of the session's newest score in any status; None: there is none."""
        row = await self.database.once(
            lambda c: c.fetchrow(self.database.sql(NEWEST_SCORE), session_id, purpose)
        )
        return dict(row) if row else None

    async def _one(self, statement: str, of: str | UUID) -> dict[str, Any] | None:
        documents = await self.documents([dict(r) for r in await self.database.single(statement, of)])
        return documents[0] if documents else None

    async def history(
        self,
        session_id: str,
        limit: int,
        after: tuple[datetime, UUID] | None = None,
        purpose: str | None = None,
    ) -> list[dict[str, Any]] | None:
        """
        Documents of a session's scores, newest first; None: the session is unknown.

        Args:
            after: `created_at` and id of the last score on the page before. It may have been deleted since.
            purpose: None: of every purpose.
        """
        at, score_id = after or (None, None)

        async def work(connection: Connection) -> list[Any] | None:
            rows = await connection.fetch(
                self.database.sql(HISTORY), session_id, at, score_id, purpose, limit
            )
            known = bool(rows) or await connection.fetchval(self.database.sql(KNOWS_SESSION), session_id)
            return rows if known else None

        rows = await self.database.once(work)
        return None if rows is None else await self.documents(rows)

    async def replies(self, score_id: UUID) -> list[dict[str, Any]] | None:
        """The turns of a score with their full replies, in order; None: there is no such score."""
        rows = await self.database.rows(REPLIES, score_id)
        if not rows:
            return None
        return [{name: r[name] for name in REPLY} for r in rows if r["ordinal"] is not None]

    async def is_asked_by_person(self, score_id: UUID, name: str) -> bool:
        """
        Whether this name, which asked for a score, is that of a caller or operator; events may hold any name.
        """
        return bool(
            await self.database.once(lambda c: c.fetchval(self.database.sql(ASKED_BY_PERSON), score_id, name))
        )

    async def criteria(self, criteria_hash: str) -> dict[str, Any] | None:
        """Name, content and first use of criteria; None: no score was judged under this hash."""
        row = await self.database.once(lambda c: c.fetchrow(self.database.sql(CRITERIA), criteria_hash))
        return dict(row) if row else None

    async def documents(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Build documents from rows of `DOCUMENT`; those of pending scores say what they wait for."""
        waits = await self.waits(rows)
        documents = []
        for row in rows:
            shown = document(row, self.current_hash)
            if latest_attempt := row.get("latest_attempt"):
                shown["latest_attempt"] = latest_attempt
            if wait := waits.get(row["score_id"]):
                shown["waiting_for"], shown["waiting_for_text"] = wait
            documents.append(shown)
        return documents

    async def waits(self, rows: Sequence[Mapping[str, Any]]) -> dict[UUID, Wait]:
        """
        Why pending scores do not begin, by id; without scores that only wait for their turn.

        What holds chains up, and which names workers know, may be `WAITING_S` old.

        Args:
            rows: Mappings with `score_id`, `status`, `waiting_reason`, `waiting_for_text`, `is_due`,
                `chain_id`, `criteria` and `chain_is_named`.
        """
        pending = [r for r in rows if r["status"] == "pending"]
        waits = {
            r["score_id"]: Wait(r["waiting_reason"], r["waiting_for_text"])
            for r in pending
            if r["waiting_reason"] and _waits_by_itself(r)
        }
        due = [r for r in pending if r["score_id"] not in waits]
        if due and self._waiting is not None:
            waits |= await self._waits_of_due(due, await self._waiting())
        return waits

    async def _waits_of_due(self, due: Sequence[Mapping[str, Any]], holds: Holds) -> dict[UUID, Wait]:
        waits = {r["score_id"]: Wait(*hold) for r in due if (hold := holds.hold(r["chain_id"]))}
        free = [r for r in due if r["score_id"] not in waits]
        if free and (known := await self._known()):
            waits |= {r["score_id"]: UNKNOWN_NAMES for r in free if _has_unknown_name(r, known)}
        return waits

    async def _known_names(self) -> set[tuple[str, str]]:
        return {(r["kind"], r["name"]) for r in await self.database.single(KNOWN, LIVING_S)}

    async def holds(self) -> Holds | None:
        """What holds chains up, at most `WAITING_S` old; None: unknown here."""
        return None if self._waiting is None else await self._waiting()

    async def failed_sessions(
        self, error_kind: str | None, chain: str | None, since: datetime | None
    ) -> list[str]:
        """Ids of sessions whose newest production score, created since `since`, failed or timed out."""
        return [r["session_id"] for r in await self.database.rows(FAILED_SESSIONS, error_kind, chain, since)]

    async def scored_sessions(self, chain: str | None, since: datetime | None) -> list[str]:
        """Ids of sessions with a production score created since `since`; None: ever."""
        return [r["session_id"] for r in await self.database.rows(SCORED_SESSIONS, chain, since)]


def _waits_by_itself(row: Mapping[str, Any]) -> bool:
    """Not due, or due but not claimed: it waits until a worker's source answers."""
    return not row["is_due"] or row["waiting_reason"] == "source"


def _has_unknown_name(row: Mapping[str, Any], known: set[tuple[str, str]]) -> bool:
    """Whether the criteria, or the named chain, of a score are not among the known names."""
    names = [("criteria", row["criteria"])]
    if row["chain_is_named"] and row["chain_id"]:
        names.append(("chain", row["chain_id"]))
    return any(name is not None and (kind, name) not in known for kind, name in names)

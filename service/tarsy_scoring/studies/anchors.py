"""
Anchors: sessions that every judge judges, which tell whether the judge or the agents changed.

A judgement of an anchor never becomes the session's score. An anchor is requested while it lacks judgements
by the chain's current judge and none is under way. After repeated failures it is given up for that
judge; if the source no longer has the session, it is not requested at all.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID, uuid5

from pydantic import Field

from tarsy_scoring.errors import SessionNotFound
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.queue.admission import Policy, Priority, Request
from tarsy_scoring.queue.inbox import SCORES_OF_REQUESTS, Inbox
from tarsy_scoring.scores.bands import DOUBTFUL_FLAGS
from tarsy_scoring.studies.detection import AnchorJudgement

State = Literal["judged", "under_way", "lacking", "given_up", "gone", "no_judge"]

SOURCE_ANCHORS = "anchors"
# The current judge gave most of these newest scores, so one score by a substitute makes no new judge.
NEWEST_LOOKED_AT = 5
EVERY_S = 86_400.0  # between requests for judgements that anchors lack
MOST_TRIES = 3  # for one judgement; each consists of up to `max_attempts` attempts
DRAWN_FROM_DAYS = 90  # so that anchors represent today's agents
ASKED_AT_ONCE = 500
# Never change it: requests already made would be repeated.
_NAMESPACE = UUID("7f1f2c1e-6a55-5f0d-9d6c-1b8f3f6f0c11")

JUDGEMENTS = """
SELECT s.session_id, s.judge_fingerprint, s.total_score::float8 AS total, s.chain_id
FROM {schema}.anchor_sessions a JOIN {schema}.session_scores s USING (session_id)
WHERE a.removed_at IS NULL AND s.purpose = 'anchor' AND s.status = 'completed'
  AND s.total_score IS NOT NULL AND s.judge_fingerprint IS NOT NULL AND NOT s.flags ?| $1
ORDER BY s.completed_at, s.score_id
"""

# The judges of the newest scores without a reference of each chain with anchors ($1 chains with criteria of
# their own, $2 these criteria, $3 those of all other chains).
NEWEST_JUDGES = f"""
SELECT c.chain_id, s.criteria, s.criteria_hash, s.judge_fingerprint AS fingerprint
FROM (SELECT DISTINCT m.chain_id FROM {{schema}}.anchor_sessions a JOIN {{schema}}.sessions m USING (session_id)
      WHERE a.removed_at IS NULL AND m.chain_id IS NOT NULL) c
LEFT JOIN unnest($1::text[], $2::text[]) AS w(chain_id, criteria) USING (chain_id)
CROSS JOIN LATERAL (
  SELECT * FROM (
    SELECT s.criteria, s.criteria_hash, s.judge_fingerprint, s.completed_at FROM {{schema}}.session_scores s
    WHERE s.chain_id = c.chain_id AND s.status = 'completed' AND s.purpose = 'production' AND s.reference IS NULL
    ORDER BY s.completed_at DESC LIMIT 100) lately
  WHERE lately.criteria = coalesce(w.criteria, $3) AND lately.judge_fingerprint IS NOT NULL
  ORDER BY lately.completed_at DESC LIMIT {NEWEST_LOOKED_AT}) s
ORDER BY c.chain_id, s.completed_at DESC
"""

# Anchors and their progress under the current judges ($1 chains, $2 their judges, $3 seconds after a request
# in which no other is made).
STANDING = """
SELECT a.session_id, m.chain_id, m.alert_type, a.added_by, a.added_at, a.note, j.fingerprint IS NULL AS has_no_judge,
       d.judgements, d.open, d.error_kind, q.asked, q.tries, q.asked_lately
FROM {schema}.anchor_sessions a JOIN {schema}.sessions m USING (session_id)
LEFT JOIN unnest($1::text[], $2::text[]) AS j(chain_id, fingerprint) USING (chain_id)
CROSS JOIN LATERAL (
  SELECT count(*) FILTER (WHERE s.status = 'completed' AND s.judge_fingerprint = j.fingerprint
                          AND s.total_score IS NOT NULL AND NOT s.flags ?| $4) AS judgements,
         count(*) FILTER (WHERE s.status IN ('pending', 'in_progress')) AS open,
         (array_agg(s.error_kind ORDER BY s.completed_at DESC)
          FILTER (WHERE s.completed_at >= a.added_at AND s.status <> 'cancelled'))[1] AS error_kind
  FROM {schema}.session_scores s WHERE s.session_id = a.session_id AND s.purpose = 'anchor') d
CROSS JOIN LATERAL (
  SELECT count(*) AS asked, count(*) FILTER (WHERE r.received_at >= a.added_at) AS tries,
         coalesce(bool_or(r.received_at > now() - make_interval(secs => $3)), false) AS asked_lately
  FROM {schema}.scoring_requests r
  WHERE r.session_id = a.session_id AND r.event_id = 'anchors:' || j.fingerprint) q
WHERE a.removed_at IS NULL
ORDER BY m.chain_id, m.alert_type, a.session_id
"""

# Whether sessions ($1) may be anchors: known here, with a chain and a total.
FIT = """
SELECT i.session_id, m.session_id IS NOT NULL AS is_known, m.chain_id,
       EXISTS (SELECT FROM {schema}.session_scores s WHERE s.session_id = i.session_id AND s.status = 'completed'
               AND s.purpose = 'production' AND s.total_score IS NOT NULL) AS is_scored
FROM unnest($1::text[]) AS i(session_id) LEFT JOIN {schema}.sessions m USING (session_id)
"""

ADD = """
INSERT INTO {schema}.anchor_sessions AS a (session_id, added_by, note)
SELECT session_id, $2, $3 FROM {schema}.sessions WHERE session_id = ANY($1::text[]) ORDER BY session_id FOR KEY SHARE
ON CONFLICT (session_id) DO UPDATE SET
  added_by = excluded.added_by, added_at = now(), note = excluded.note, removed_by = NULL, removed_at = NULL
WHERE a.removed_at IS NOT NULL
RETURNING session_id
"""

REMOVE = """
UPDATE {schema}.anchor_sessions SET removed_by = $2, removed_at = now()
WHERE session_id = ANY($1::text[]) AND removed_at IS NULL RETURNING session_id
"""

# Ordinary sessions judged lately that are no anchors, at random.
DRAWN = """
SELECT session_id FROM (
  SELECT DISTINCT s.session_id FROM {schema}.session_scores s JOIN {schema}.sessions m USING (session_id)
  WHERE s.status = 'completed' AND s.purpose = 'production' AND s.total_score IS NOT NULL AND NOT s.flags ?| $3
    AND m.chain_id IS NOT NULL AND s.completed_at > now() - make_interval(days => $2)
    AND ($1::text IS NULL OR m.chain_id = $1)
    AND NOT EXISTS (SELECT FROM {schema}.anchor_sessions a
                    WHERE a.session_id = s.session_id AND a.removed_at IS NULL)) c
ORDER BY random() LIMIT $4
"""

_DOUBTFUL = sorted(DOUBTFUL_FLAGS)


@dataclass(frozen=True, slots=True)
class Judge:
    """A chain's current judge."""

    chain_id: str
    criteria: str
    criteria_hash: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Anchor:
    """A session that every judge judges."""

    session_id: str
    chain_id: str | None
    alert_type: str | None
    added_by: str
    added_at: datetime
    note: str | None
    state: Annotated[
        State,
        Field(
            description="Under the current judge of its chain: `judged`, `under_way`, `lacking`, `given_up` after "
            "several tries; `gone`: its source no longer has it; `no_judge`: its chain has no recent scores with a "
            "fingerprint under its criteria."
        ),
    ]
    judgements: Annotated[int, Field(description="By the current judge of its chain.")]
    asked: Annotated[int, Field(description="Number of requests under that judge.")]
    error_kind: Annotated[str | None, Field(description="Why the last judgement failed.")]
    is_due: Annotated[bool, Field(description="The worker requests it at its next pass.")]

    @property
    def is_awaited(self) -> bool:
        """Whether a judgement by the current judge is still to come."""
        return self.state in ("lacking", "under_way")


@dataclass(frozen=True, slots=True)
class AnchorStanding:
    """All anchors and their chains' current judges."""

    anchors: list[Anchor]
    judges: list[Judge]


# --- which sessions ------------------------------------------------------------------------------------


async def add(
    database: Database, session_ids: Sequence[str], *, by: str, note: str | None = None
) -> list[str]:
    """
    Make sessions anchors; returns those that were not anchors before.

    For an anchor that was removed and is added again, tries and failures are counted anew.

    Raises:
        DatabaseAway: They may have been added; adding them again is harmless.
    """
    return sorted(r["session_id"] for r in await database.rows(ADD, list(session_ids), by, note))


async def unfit(database: Database, session_ids: Sequence[str]) -> dict[str, str]:
    """Find the sessions that cannot be anchors, each with the reason. Raises: DatabaseAway."""
    rows = await database.rows(FIT, list(session_ids))
    return {row["session_id"]: reason for row in rows if (reason := _why_unfit(row)) is not None}


def _why_unfit(row: Any) -> str | None:
    if not row["is_known"]:
        return "it was never scored here; score it first"
    if not row["is_scored"]:
        return "it has no score with a total, so it may be impossible to judge; score it first"
    return "it belongs to no chain" if row["chain_id"] is None else None


async def remove(database: Database, session_ids: Sequence[str], *, by: str) -> list[str]:
    """
    Stop using sessions as anchors; returns those that were anchors.

    Their judgements stay stored but no longer count.

    Raises:
        DatabaseAway: They may have been removed; removing them again is harmless.
    """
    return sorted(r["session_id"] for r in await database.rows(REMOVE, list(session_ids), by))


async def draw(database: Database, count: int, *, chain: str | None = None) -> list[str]:
    """Draw sessions judged in the last 90 days that are no anchors. Raises: DatabaseAway."""
    rows = await database.rows(DRAWN, chain, DRAWN_FROM_DAYS, _DOUBTFUL, count)
    return [r["session_id"] for r in rows]


# --- progress ------------------------------------------------------------------------------------------


async def judgements(database: Database) -> list[AnchorJudgement]:
    """
    Read the judgements of anchors, oldest first, without those whose total is flagged as doubtful.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    return [AnchorJudgement(**dict(row)) for row in await database.rows(JUDGEMENTS, _DOUBTFUL)]


async def standing(database: Database, policy: Policy) -> AnchorStanding:
    """
    Read all anchors and their progress under the current judges.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    settings = policy.settings
    own = {name: chain.criteria for name, chain in settings.config.chains.items()}

    async def work(connection: Connection) -> AnchorStanding:
        rows = await connection.fetch(
            database.sql(NEWEST_JUDGES), list(own), list(own.values()), settings.config.defaults.criteria
        )
        judges = judges_of(rows)
        columns = [j.chain_id for j in judges], [j.fingerprint for j in judges]
        rows = await connection.fetch(database.sql(STANDING), *columns, EVERY_S, _DOUBTFUL)
        return AnchorStanding([_anchor(row) for row in rows], judges)

    return await database.once(work)


def judges_of(rows: Sequence[Any]) -> list[Judge]:
    """The judge that made most newest scores in each chain; with a tie, the newest."""
    newest: defaultdict[str, list[Judge]] = defaultdict(list)
    for row in rows:
        newest[row["chain_id"]].append(Judge(**row))
    return [Counter(judges).most_common(1)[0][0] for judges in newest.values()]


def _anchor(row: Any) -> Anchor:
    state, is_due = state_of(row)
    stored = {f.name: row[f.name] for f in fields(Anchor) if f.name not in ("state", "is_due")}
    return Anchor(**stored, state=state, is_due=is_due)


def state_of(row: Any) -> tuple[State, bool]:
    """The state of an anchor (a row of `STANDING`), and whether it is to be requested now."""
    if row["has_no_judge"]:
        return "no_judge", False
    if row["judgements"]:
        return "judged", False
    if row["open"]:
        return "under_way", False
    if row["error_kind"] == SessionNotFound.error_kind:
        return "gone", False
    if row["tries"] >= MOST_TRIES:
        return "given_up", False
    return "lacking", not row["asked_lately"]


# --- requesting ----------------------------------------------------------------------------------------


async def ask(inbox: Inbox, wanted: Iterable[Anchor], judges: Iterable[Judge], *, by: str) -> list[UUID]:
    """
    Request the missing judgements of anchors, at the lowest priority; returns their score ids.

    Waits for the database. Request ids are derived from anchor, judge and number of requests so far, so
    concurrent calls, and calls repeated with the same anchors, create each judgement once.

    Args:
        wanted, judges: Anchors and the judges of their chains, read shortly before.
    """
    by_chain: dict[str | None, Judge] = {j.chain_id: j for j in judges}
    requests = [_request(anchor, by_chain[anchor.chain_id], by) for anchor in wanted]
    for start in range(0, len(requests), ASKED_AT_ONCE):
        await inbox.accept(requests[start : start + ASKED_AT_ONCE])
    statement, ids = inbox.database.sql(SCORES_OF_REQUESTS), [r.request_id for r in requests]
    rows = await inbox.database.persist(lambda c: c.fetch(statement, ids))
    return [r["score_id"] for r in rows]


def _request(anchor: Anchor, judge: Judge, by: str) -> Request:
    return Request(
        request_id=uuid5(_NAMESPACE, "\x1f".join((anchor.session_id, judge.fingerprint, str(anchor.asked)))),
        session_id=anchor.session_id,
        source=SOURCE_ANCHORS,
        event_id=f"anchors:{judge.fingerprint}",
        requested_by=by,
        force=True,
        criteria=judge.criteria,
        priority=Priority.BULK,
        purpose="anchor",
    )

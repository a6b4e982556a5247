"""
Drift, told apart, chain by chain: what the looks at scores and anchors found, kept with what was told of it.

A look and its finding are one transaction, so that nobody looks twice; `evaluation.judge_change` says when one is due.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field

from tarsy_scoring.drift import anchors
from tarsy_scoring.drift.anchors import Standing
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.postgres.leader import AdvisoryLock
from tarsy_scoring.statistics.agreement import Estimate
from tarsy_scoring.statistics.comparison import DOUBTFUL_FLAGS
from tarsy_scoring.statistics.drift import (
    WINDOW,
    AnchorJudgement,
    Cause,
    Drift,
    anchor_changes,
    explain_new_judge,
    find_change,
)
from tarsy_scoring.statistics.judge_change import (
    OWN_ANCHORS,
    ChainScore,
    Look,
    Reign,
    current_reign,
    due_look,
    is_news,
    judged_by_both,
    size_of,
)

# Of both judges together; a look takes at most `WINDOW` of each.
MOST_READ = 3 * WINDOW
MOST_SHOWN = 100
WATCH_EVERY = timedelta(days=1)  # what `find_change` reckons with
# The same judge following the same judge again within that time is no further change to tell of.
FLAPPING = timedelta(days=30)

# Chains with scores and when the newest of each was made; both are found by one step in the index.
CHAINS = """
WITH RECURSIVE chains AS (
  (SELECT s.chain_id FROM {schema}.session_scores s
   WHERE s.status = 'completed' AND s.purpose = 'production' AND s.chain_id IS NOT NULL ORDER BY s.chain_id LIMIT 1)
  UNION ALL
  SELECT (SELECT s.chain_id FROM {schema}.session_scores s
          WHERE s.status = 'completed' AND s.purpose = 'production' AND s.chain_id > c.chain_id
          ORDER BY s.chain_id LIMIT 1)
  FROM chains c WHERE c.chain_id IS NOT NULL)
SELECT c.chain_id, n.completed_at AS newest_at
FROM chains c CROSS JOIN LATERAL (
  SELECT s.completed_at FROM {schema}.session_scores s
  WHERE s.chain_id = c.chain_id AND s.status = 'completed' AND s.purpose = 'production'
  ORDER BY s.completed_at DESC LIMIT 1) n
"""

# The first total of each session of a chain, the newest first: one that is scored again says nothing new of its agents.
SCORES = """
SELECT s.completed_at AS scored_at, least(m.completed_at, m.first_seen_at) AS ended_at, m.alert_type,
       s.judge_fingerprint, s.criteria_hash, s.total_score::float8 AS total
FROM {schema}.session_scores s JOIN {schema}.sessions m USING (session_id)
WHERE s.status = 'completed' AND s.purpose = 'production' AND s.chain_id = $1 AND s.criteria = $2
  AND s.total_score IS NOT NULL AND NOT s.flags ?| $3
  AND NOT EXISTS (SELECT FROM {schema}.session_scores x WHERE x.session_id = s.session_id AND x.status = 'completed'
                  AND x.purpose = 'production' AND x.completed_at < s.completed_at)
ORDER BY s.completed_at DESC LIMIT $4
"""

_FINDING = """
SELECT f.event_id, f.look, f.chain_id, f.criteria, f.criteria_hash, f.old_fingerprint, f.new_fingerprint, f.cause,
       f.is_clear, f.judge, f.whole, f.agents, f.began_at, f.anchors, f.anchors_missing, f.compared_before,
       f.compared_after, f.meaning, f.found_at, f.is_event, f.published_at
FROM {schema}.drift_findings f
"""

FINDINGS = f"""{_FINDING}
WHERE ($1::text IS NULL OR f.chain_id = $1) AND ($2::text IS NULL OR f.criteria = $2)
  AND ($3::timestamptz IS NULL OR f.found_at >= $3)
ORDER BY f.found_at DESC, f.event_id LIMIT $4
"""

UNPUBLISHED = f"{_FINDING} WHERE f.is_event AND f.published_at IS NULL ORDER BY f.found_at LIMIT $1"

MARK_PUBLISHED = "UPDATE {schema}.drift_findings SET published_at = now() WHERE event_id = ANY($1::uuid[])"

# One look at a chain at a time, whoever looks.
LOOK_LOCK = AdvisoryLock("tarsy-scoring drift look")

ADD = """
INSERT INTO {schema}.drift_findings
  (look, chain_id, criteria, criteria_hash, old_fingerprint, new_fingerprint, cause, is_clear, judge, whole, agents,
   began_at, anchors, anchors_missing, compared_before, compared_after, meaning, is_event)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)
"""

WATCHED = "SELECT looked_at FROM {schema}.drift_watches WHERE chain_id = $1 AND criteria = $2"

WATCH = """
INSERT INTO {schema}.drift_watches (chain_id, criteria, looked_at) VALUES ($1, $2, $3)
ON CONFLICT (chain_id, criteria) DO UPDATE SET looked_at = excluded.looked_at
"""

_DOUBTFUL = sorted(DOUBTFUL_FLAGS)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a look found. Changes are in points, later less earlier."""

    event_id: UUID
    look: Annotated[
        Look,
        Field(
            description="`anchors`: a new judge, told by anchors alone; `sessions`: the same with enough sessions; "
            "`watch`: under one judge."
        ),
    ]
    chain_id: str
    criteria: str
    criteria_hash: str
    old_fingerprint: Annotated[str | None, Field(description="Null: found under one judge.")]
    new_fingerprint: str
    cause: Annotated[Cause | None, Field(description="Null: it cannot be told; `meaning` says why.")]
    is_clear: Annotated[
        bool,
        Field(
            description="False: neither part is shown by itself; `cause` is then the likelier one, or null. Where "
            "anchors alone were looked at, the judge's part can be clear while the agents' is unknown."
        ),
    ]
    judge: Estimate
    whole: Estimate
    agents: Estimate
    began_at: datetime | None
    anchors: Annotated[int, Field(description="That both judges judged.")]
    anchors_missing: int
    compared_before: int
    compared_after: int
    meaning: list[str]
    found_at: datetime
    is_event: Annotated[bool, Field(description="It was news, and is told as `scoring.drift_detected`.")]
    published_at: datetime | None

    @property
    def size(self) -> Estimate | None:
        """The change that it is about."""
        return size_of(self.cause, self.judge, self.whole, self.agents)


@dataclass(frozen=True, slots=True)
class Situation:
    """
    How things stand with a chain.

    Args:
        judgements: Of the anchors that speak for it.
        lenders: Other chains with anchors among them that both judges judged.
        outstanding: Anchors of the chain that its judge is still going to judge.
        unknown: Scores since its judge's first one that have no fingerprint: nobody knows who gave them.
    """

    chain_id: str
    criteria: str
    reign: Reign
    judgements: Sequence[AnchorJudgement]
    lenders: int
    outstanding: int
    unknown: int

    @property
    def criteria_hash(self) -> str:
        return self.reign.scores[-1].criteria_hash or ""


async def chains(database: Database) -> dict[str, datetime]:
    """Chains with scores, and when the newest of each was made. Raises: DatabaseAway."""
    rows = await database.once(lambda c: c.fetch(database.sql(CHAINS)))
    return {r["chain_id"]: r["newest_at"] for r in rows}


async def situation(
    database: Database, chain: str, criteria: str, standing: Standing, judgements: Sequence[AnchorJudgement]
) -> Situation | None:
    """
    How things stand with a chain under its criteria; None: it has too few scores to say who its judge is.

    Args:
        standing, judgements: See `anchors`; of all anchors.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    arguments = (chain, criteria, _DOUBTFUL, MOST_READ)
    rows = await database.once(lambda c: c.fetch(database.sql(SCORES), *arguments))
    known = [ChainScore(**dict(r)) for r in reversed(rows) if r["judge_fingerprint"] is not None]
    reign = await asyncio.to_thread(current_reign, known)
    if reign is None:
        return None
    begun = reign.scores[0].scored_at
    unknown = sum(r["judge_fingerprint"] is None and r["scored_at"] >= begun for r in rows)
    own = [j for j in judgements if j.chain_id == chain]
    borrows = reign.old is not None and judged_by_both(own, reign.old, reign.fingerprint) < OWN_ANCHORS
    speaking = judgements if borrows else own
    waited_for = [a for a in standing.anchors if (borrows or a.chain_id == chain) and _is_awaited(a.state)]
    return Situation(chain, criteria, reign, speaking, _lenders(reign, speaking, chain), len(waited_for), unknown)


def _lenders(reign: Reign, speaking: Sequence[AnchorJudgement], chain: str) -> int:
    changes = anchor_changes(speaking, reign.old, reign.fingerprint).by_chain if reign.old else {}
    return sum(name != chain for name in changes)


def _is_awaited(state: anchors.State) -> bool:
    return state in ("lacking", "under_way")


async def look_at(database: Database, found: Situation, now: datetime) -> list[Look]:
    """
    Make the looks that are due at a chain, and keep what they find; returns which were made.

    Of several who look at once, one does.

    Raises:
        DatabaseAway: Looks were made and kept, or not.
    """

    async def work(connection: Connection) -> list[Look]:
        await LOOK_LOCK.acquire(connection, f"{database.schema}\x1f{found.chain_id}")
        earlier = await _findings(database, connection, found.chain_id, found.criteria)
        made: list[Look] = []
        at_this = _of_this_change(earlier, found.reign, now)
        look = due_look(found.reign, found.judgements, found.outstanding, [f.look for f in at_this], now)
        if look is not None:
            drift = await asyncio.to_thread(explain, found, look)
            told = next(((f.cause, f.size) for f in at_this if f.is_event), None)
            news = is_news(drift.cause, size_of(drift.cause, drift.judge, drift.whole, drift.agents), told)
            await _keep(database, connection, found, look, drift, is_event=news)
            made.append(look)
        watched = await connection.fetchval(database.sql(WATCHED), found.chain_id, found.criteria)
        if watched is None or now - watched >= WATCH_EVERY:
            await connection.execute(database.sql(WATCH), found.chain_id, found.criteria, now)
            drift = await asyncio.to_thread(watch, found, earlier)
            if drift.cause == "agents":
                await _keep(database, connection, found, "watch", drift, is_event=True)
            made.append("watch")
        return made

    return await database.once(work)


async def looked_at(database: Database, found: Situation, now: datetime) -> list[Look]:
    """Looks that were made at the change that brought this judge. Raises: DatabaseAway."""
    earlier = await findings(database, found.chain_id, found.criteria)
    return [f.look for f in _of_this_change(earlier, found.reign, now)]


def explain(found: Situation, look: Look) -> Drift:
    """What a new judge brought. Pure. A look at anchors alone leaves sessions out, of which there are too few."""
    reign = found.reign
    assert reign.old is not None
    scores = [s.ordinary() for s in (*reign.before[-WINDOW:], *reign.scores[-WINDOW:])] if look == "sessions" else None
    drift = explain_new_judge(scores, found.judgements, reign.old, reign.fingerprint, chain=found.chain_id)
    return replace(drift, began_at=reign.since, meaning=(*drift.meaning, *_borrowing(found, drift)))


def _borrowing(found: Situation, drift: Drift) -> tuple[str, ...]:
    """What is to be said where anchors of other chains speak."""
    if not found.lenders or found.reign.old is None:
        return ()
    if drift.judge.n < drift.anchors:
        return (
            f"{drift.judge.n} anchors of this chain speak alone: other chains differ so much that they add nothing.",
        )
    told = f"Fewer than {OWN_ANCHORS} anchors of this chain speak, so those of other chains do, too."
    chains = anchor_changes(found.judgements, found.reign.old, found.reign.fingerprint).by_chain
    if len(chains) > 1:
        return (f"{told} How much chains differ is in the interval, as far as {len(chains)} chains can show it.",)
    return (f"{told} They are of one chain, so how much chains differ is not known and not in the interval.",)


def watch(found: Situation, earlier: Sequence[Finding]) -> Drift:
    """Whether the agents changed under the judge of now, since the last such change. Pure."""
    judge = found.reign.fingerprint
    known = [f.began_at for f in earlier if f.look == "watch" and f.new_fingerprint == judge and f.began_at is not None]
    since = max(known, default=None)
    return find_change(s.ordinary() for s in found.reign.scores if since is None or s.ended_at >= since)


def _of_this_change(earlier: Sequence[Finding], reign: Reign, now: datetime) -> list[Finding]:
    """Findings about the change that brought this judge, the newest first."""
    since = now - FLAPPING if reign.since is None else min(reign.since, now - FLAPPING)
    return [
        f
        for f in earlier
        if (f.old_fingerprint, f.new_fingerprint) == (reign.old, reign.fingerprint)
        and f.look != "watch"
        and f.found_at >= since
    ]


async def _keep(
    database: Database, connection: Connection, found: Situation, look: Look, drift: Drift, *, is_event: bool
) -> None:
    old = None if look == "watch" else found.reign.old
    await connection.execute(
        database.sql(ADD),
        *(look, found.chain_id, found.criteria, found.criteria_hash, old, found.reign.fingerprint),
        *(drift.cause, drift.is_clear, asdict(drift.judge), asdict(drift.whole), asdict(drift.agents)),
        *(drift.began_at, drift.anchors, drift.anchors_missing, *drift.compared, list(drift.meaning), is_event),
    )


# --- what was found ------------------------------------------------------------------------------------


async def findings(
    database: Database,
    chain: str | None = None,
    criteria: str | None = None,
    *,
    since: datetime | None = None,
    limit: int = MOST_SHOWN,
) -> list[Finding]:
    """What looks found, the newest first. Raises: DatabaseAway."""
    return await database.once(lambda c: _findings(database, c, chain, criteria, since, limit))


async def _findings(
    database: Database,
    connection: Connection,
    chain: str | None,
    criteria: str | None,
    since: datetime | None = None,
    limit: int = MOST_SHOWN,
) -> list[Finding]:
    rows = await connection.fetch(database.sql(FINDINGS), chain, criteria, since, limit)
    return [_finding(r) for r in rows]


def _finding(row: Any) -> Finding:
    values = dict(row)
    return Finding(**values | {name: _estimate(values[name]) for name in ("judge", "whole", "agents")})


def _estimate(stored: Mapping[str, Any]) -> Estimate:
    """An estimate as any version stored it."""
    value, low, high, error = (stored.get(name) for name in ("value", "low", "high", "standard_error"))
    return Estimate(value, low, high, stored.get("n") or 0, error, stored.get("method") or "", stored.get("reason"))


async def unpublished(database: Database, limit: int) -> list[Finding]:
    """News that no broker has acknowledged, the oldest first. Raises: DatabaseAway."""
    rows = await database.once(lambda c: c.fetch(database.sql(UNPUBLISHED), limit))
    return [_finding(r) for r in rows]


async def mark_published(database: Database, event_ids: Sequence[UUID]) -> None:
    """The broker has acknowledged these. Raises: DatabaseAway: They go again."""
    await database.once(lambda c: c.execute(database.sql(MARK_PUBLISHED), list(event_ids)))


def event_of(finding: Finding) -> Mapping[str, Any]:
    """The event `scoring.drift_detected` of a finding; the same for the same finding."""
    size = finding.size
    at = finding.found_at.astimezone(UTC)
    return {
        "type": "scoring.drift_detected",
        "event_id": finding.event_id,
        "timestamp": at,
        "timestamp_us": (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1),
        "chain_id": finding.chain_id,
        "criteria_hash": finding.criteria_hash,
        "cause": finding.cause,
        "is_clear": finding.is_clear,
        "old_fingerprint": finding.old_fingerprint,
        "new_fingerprint": finding.new_fingerprint,
        "size_points": None if size is None else size.value,
        "interval": None if size is None or size.low is None else [size.low, size.high],
        "judge": asdict(finding.judge),
        "agents": asdict(finding.agents),
        "began_at": finding.began_at,
        "meaning": finding.meaning,
    }

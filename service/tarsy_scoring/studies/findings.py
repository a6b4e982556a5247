"""
Look for drift in each chain and store what each look found.

A look and the finding are one transaction, so no look is made twice. `detection` decides when a look is due.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field

from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.postgres.leader import AdvisoryLock
from tarsy_scoring.scores.bands import DOUBTFUL_FLAGS
from tarsy_scoring.studies import detection
from tarsy_scoring.studies.anchors import AnchorStanding
from tarsy_scoring.studies.detection import WINDOW, AnchorJudgement, ChainScore, Drift, Look, Tenure
from tarsy_scoring.studies.estimates import Estimate

MOST_READ = 3 * WINDOW  # newest scores by all judges together
MOST_SHOWN = 100
# A judge that follows the same judge again within this time makes the same change, and no further event.
FLAPPING = timedelta(days=30)

# Each session's first total without a reference in a chain, newest first. Later ones say nothing new
# about the agents.
SCORES = """
SELECT s.completed_at AS scored_at, least(m.completed_at, m.first_seen_at) AS at, m.alert_type AS stratum,
       s.judge_fingerprint, s.criteria_hash, s.total_score::float8 AS total
FROM {schema}.session_scores s JOIN {schema}.sessions m USING (session_id)
WHERE s.status = 'completed' AND s.purpose = 'production' AND s.chain_id = $1 AND s.criteria = $2
  AND s.total_score IS NOT NULL AND s.judge_fingerprint IS NOT NULL AND NOT s.flags ?| $3
  AND s.reference IS NULL
  AND NOT EXISTS (SELECT FROM {schema}.session_scores x WHERE x.session_id = s.session_id AND x.status = 'completed'
                  AND x.purpose = 'production' AND x.reference IS NULL AND x.completed_at < s.completed_at)
ORDER BY s.completed_at DESC LIMIT $4
"""

MARK_PUBLISHED = "UPDATE {schema}.drift_findings SET published_at = now() WHERE event_id = ANY($1::uuid[])"

# Held during the looks at a chain: a process that lost the loop's lock unnoticed may look at it as well.
LOOK_LOCK = AdvisoryLock("tarsy-scoring drift look")

_DOUBTFUL = sorted(DOUBTFUL_FLAGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Drift):
    """What a look found. Changes are in points, later minus earlier."""

    event_id: UUID
    look: Annotated[Look, Field(description="`sessions`: a new judge; `watch`: under one judge.")]
    chain_id: str
    criteria: str
    criteria_hash: str
    old_fingerprint: Annotated[str | None, Field(description="Null: found under one judge.")]
    new_fingerprint: str
    found_at: datetime
    is_event: Annotated[bool, Field(description="It is published as `scoring.drift_detected`.")]
    published_at: datetime | None

    @property
    def size(self) -> Estimate | None:
        """How large the change is that `cause` names."""
        return {"judge": self.judge, "agents": self.agents, "both": self.whole}.get(self.cause or "none")


_FINDING = f"SELECT {', '.join(f.name for f in fields(Finding))} FROM {{schema}}.drift_findings f"

FINDINGS = f"""{_FINDING}
WHERE ($1::text IS NULL OR f.chain_id = $1) AND ($2::text IS NULL OR f.criteria = $2)
  AND ($3::timestamptz IS NULL OR f.found_at >= $3)
ORDER BY f.found_at DESC, f.event_id LIMIT $4
"""

UNPUBLISHED = f"{_FINDING} WHERE f.is_event AND f.published_at IS NULL ORDER BY f.found_at LIMIT $1"


async def read_tenure(database: Database, chain: str, criteria: str) -> Tenure | None:
    """Read who judges a chain under the criteria, see `current_tenure`. Raises: DatabaseAway."""
    rows = await database.rows(SCORES, chain, criteria, _DOUBTFUL, MOST_READ)
    return detection.current_tenure([ChainScore(**dict(r)) for r in reversed(rows)])


async def look_at(
    database: Database,
    chain: str,
    criteria: str,
    standing: AnchorStanding,
    judgements: Sequence[AnchorJudgement],
    now: datetime,
) -> Look | None:
    """
    Make the look at a chain under the criteria that is due, and store the finding; returns the look.

    Concurrent calls for a chain run one after the other; only the first finds a look due. A watch that finds
    nothing is not stored, and one that finds a change leaves out the scores before it from then on.

    Args:
        standing: All anchors, as `anchors.standing` returns them.
        judgements: Judgements on all anchors, as `anchors.judgements` returns them.

    Raises:
        DatabaseAway: The look was made and stored, or not.
    """
    found = await read_tenure(database, chain, criteria)
    if found is None:
        return None
    counted = detection.counted_anchors(judgements, chain, found)
    chains = {judgement.chain_id for judgement in counted} | {chain}
    outstanding = sum(a.is_awaited and a.chain_id in chains for a in standing.anchors)

    async def work(connection: Connection) -> Look | None:
        await LOOK_LOCK.acquire(connection, f"{database.schema}\x1f{chain}")
        rows = await connection.fetch(database.sql(FINDINGS), chain, criteria, None, MOST_SHOWN)
        earlier = [_finding(row) for row in rows]
        tenure = _watched(found, earlier)
        look = detection.due_look(found, outstanding, looks_made(earlier, found, now), now)
        if look is None or (look == "watch" and detection.due_look(tenure, 0, ["sessions"], now) is None):
            return None
        drift = await asyncio.to_thread(detection.detect, tenure, counted, look)
        if look == "sessions" or drift.is_change:
            values = {
                "look": look,
                "chain_id": chain,
                "criteria": criteria,
                "criteria_hash": found.scores[-1].criteria_hash or "",
                "old_fingerprint": None if look == "watch" else found.old,
                "new_fingerprint": found.fingerprint,
                "found_at": now,
                "is_event": drift.is_change,
                **asdict(drift),
            }
            marks = ", ".join(f"${n}" for n in range(1, len(values) + 1))
            sql = f"INSERT INTO {{schema}}.drift_findings ({', '.join(values)}) VALUES ({marks})"
            await connection.execute(database.sql(sql), *values.values())
        return look

    return await database.once(work)


def _watched(tenure: Tenure, earlier: Sequence[Finding]) -> Tenure:
    """The tenure without the scores before the last change that a watch found."""
    watches = [f for f in earlier if f.new_fingerprint == tenure.fingerprint and f.look == "watch"]
    since = max((f.began_at for f in watches if f.began_at), default=None)
    return replace(tenure, scores=[s for s in tenure.scores if since is None or s.at >= since])


def looks_made(earlier: Sequence[Finding], tenure: Tenure, now: datetime) -> list[Look]:
    """The looks made at the change that brought the current judge."""
    since = min(tenure.since, now - FLAPPING)
    judges = tenure.old, tenure.fingerprint
    return [
        f.look for f in earlier if (f.old_fingerprint, f.new_fingerprint) == judges and f.found_at >= since
    ]


# --- reading findings ----------------------------------------------------------------------------------


async def read_findings(
    database: Database, chain: str | None, criteria: str | None, since: datetime | None, limit: int
) -> list[Finding]:
    """Findings, the newest first. Raises: DatabaseAway."""
    return [_finding(row) for row in await database.rows(FINDINGS, chain, criteria, since, limit)]


async def unpublished(database: Database, limit: int) -> list[Finding]:
    """Events that no broker has acknowledged, the oldest first. Raises: DatabaseAway."""
    return [_finding(row) for row in await database.rows(UNPUBLISHED, limit)]


def _finding(row: Any) -> Finding:
    return Finding(**dict(row) | {part: Estimate(**row[part]) for part in ("judge", "whole", "agents")})


async def mark_published(database: Database, event_ids: Sequence[UUID]) -> None:
    """Record that the broker acknowledged these events. Raises: DatabaseAway: They are published again."""
    await database.once(lambda c: c.execute(database.sql(MARK_PUBLISHED), list(event_ids)))


def event_of(finding: Finding) -> Mapping[str, Any]:
    """Build the event `scoring.drift_detected` for a finding; equal findings give equal events."""
    size = finding.size
    at = finding.found_at.astimezone(UTC)
    same = ("chain_id", "criteria_hash", "cause", "is_clear", "old_fingerprint", "new_fingerprint")
    return {
        "type": "scoring.drift_detected",
        "event_id": finding.event_id,
        "timestamp": at,
        "timestamp_us": (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1),
        **{name: getattr(finding, name) for name in same},
        "size_points": None if size is None else size.value,
        "interval": None if size is None or size.low is None else [size.low, size.high],
        "judge": asdict(finding.judge),
        "agents": asdict(finding.agents),
        "began_at": finding.began_at,
        "meaning": finding.meaning,
    }

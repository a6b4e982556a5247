"""
Look for drift in each chain and store what each look found.

A look and its finding are one transaction, so no look is made twice. `detection` decides when a look is due.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field

from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.postgres.leader import AdvisoryLock
from tarsy_scoring.scores.bands import DOUBTFUL_FLAGS
from tarsy_scoring.scores.session_list import chains_of_sessions
from tarsy_scoring.statistics.agreement import Estimate
from tarsy_scoring.statistics.drift import WINDOW, AnchorJudgement, Cause, Drift, find_change
from tarsy_scoring.studies import detection
from tarsy_scoring.studies.anchors import Standing
from tarsy_scoring.studies.detection import ChainScore, Look, Situation, Tenure

MOST_READ = 3 * WINDOW  # scores of all judges together; a look takes at most `WINDOW` of each
MOST_SHOWN = 100
MOST_CHAINS = 100_000
WATCH_EVERY = timedelta(days=1)  # the number of looks that `find_change` is calibrated for
# A judge that follows the same judge again within this time makes the same change, and no further event.
FLAPPING = timedelta(days=30)

# The time of the newest score of each of these chains ($1) that has one.
NEWEST = """
SELECT c.chain_id, n.completed_at AS newest_at
FROM unnest($1::text[]) AS c(chain_id) CROSS JOIN LATERAL (
  SELECT s.completed_at FROM {schema}.session_scores s
  WHERE s.chain_id = c.chain_id AND s.status = 'completed' AND s.purpose = 'production'
  ORDER BY s.completed_at DESC LIMIT 1) n
"""

_SCORES = """
SELECT s.completed_at AS scored_at, {at} AS at, {alert_type} AS stratum,
       s.judge_fingerprint, s.criteria_hash, s.total_score::float8 AS total
FROM {{schema}}.session_scores s{sessions}
WHERE s.status = 'completed' AND s.purpose = 'production' AND s.chain_id = $1 AND s.criteria = $2
  AND s.total_score IS NOT NULL AND NOT s.flags ?| $3
  AND NOT EXISTS (SELECT FROM {{schema}}.session_scores r WHERE r.session_id = s.session_id
                  AND r.completed_at = s.completed_at AND r.status = 'completed' AND r.purpose = 'production'
                  AND r.reference IS NOT NULL)
  AND NOT EXISTS (SELECT FROM {{schema}}.session_scores x WHERE x.session_id = s.session_id AND x.status = 'completed'
                  AND x.purpose = 'production' AND x.reference IS NULL AND x.completed_at < s.completed_at)
ORDER BY s.completed_at DESC LIMIT $4
"""

# The first total without a reference of each session of a chain, newest first. Later ones say nothing new
# about its agents.
SCORES = _SCORES.format(
    at="least(m.completed_at, m.first_seen_at)",
    alert_type="m.alert_type",
    sessions=" JOIN {schema}.sessions m USING (session_id)",
)
# The same without what their sessions add, which tells who judges. An index has all of it.
JUDGED = _SCORES.format(at="s.completed_at", alert_type="NULL", sessions="")

MARK_PUBLISHED = "UPDATE {schema}.drift_findings SET published_at = now() WHERE event_id = ANY($1::uuid[])"

# Held during the looks at a chain: a process that lost the lock of the loop unnoticed may look at it as well.
LOOK_LOCK = AdvisoryLock("tarsy-scoring drift look")

WATCHED = "SELECT looked_at FROM {schema}.drift_watches WHERE chain_id = $1 AND criteria = $2"

WATCH = """
INSERT INTO {schema}.drift_watches (chain_id, criteria, looked_at) VALUES ($1, $2, $3)
ON CONFLICT (chain_id, criteria) DO UPDATE SET looked_at = excluded.looked_at
"""

_DOUBTFUL = sorted(DOUBTFUL_FLAGS)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a look. Changes are in points, later minus earlier."""

    event_id: UUID
    look: Annotated[
        Look,
        Field(
            description="`anchors`: a new judge, by anchors alone; `sessions`: a new judge, by anchors and sessions; "
            "`watch`: under one judge."
        ),
    ]
    chain_id: str
    criteria: str
    criteria_hash: str
    old_fingerprint: Annotated[str | None, Field(description="Null: found under one judge.")]
    new_fingerprint: str
    cause: Annotated[Cause | None, Field(description="Null: undecided; `meaning` says why.")]
    is_clear: Annotated[
        bool,
        Field(
            description="False: neither part is significant by itself; `cause` is then the likelier one, or null. With "
            "anchors alone, the judge's part can be clear while the agents' is unknown."
        ),
    ]
    judge: Estimate
    whole: Estimate
    agents: Estimate
    began_at: datetime | None
    anchors: Annotated[int, Field(description="Anchors that both judges judged.")]
    anchors_missing: int
    compared_before: int
    compared_after: int
    meaning: list[str]
    found_at: datetime
    is_event: Annotated[bool, Field(description="It is published as `scoring.drift_detected`.")]
    published_at: datetime | None

    @property
    def size(self) -> Estimate | None:
        """The size of the change that `cause` names."""
        return detection.size_of(self.cause, self.judge, self.whole, self.agents)


_FINDING = f"SELECT {', '.join(f.name for f in fields(Finding))} FROM {{schema}}.drift_findings f"

FINDINGS = f"""{_FINDING}
WHERE ($1::text IS NULL OR f.chain_id = $1) AND ($2::text IS NULL OR f.criteria = $2)
  AND ($3::timestamptz IS NULL OR f.found_at >= $3)
ORDER BY f.found_at DESC, f.event_id LIMIT $4
"""

EVENTS = f"{_FINDING} WHERE f.is_event AND f.found_at >= $1 ORDER BY f.found_at, f.event_id"

UNPUBLISHED = f"{_FINDING} WHERE f.is_event AND f.published_at IS NULL ORDER BY f.found_at LIMIT $1"


async def chains(database: Database) -> dict[str, datetime]:
    """Read the chains that have scores, with the time of the newest score of each. Raises: DatabaseAway."""
    known = await chains_of_sessions(database, MOST_CHAINS)
    rows = await database.once(lambda c: c.fetch(database.sql(NEWEST), known))
    return {r["chain_id"]: r["newest_at"] for r in rows}


async def situation(
    database: Database,
    chain: str,
    criteria: str,
    standing: Standing,
    judgements: Sequence[AnchorJudgement],
    *,
    scores: str = SCORES,
) -> Situation | None:
    """
    Read what detection needs about a chain under its criteria; None: too few scores to tell the judge.

    Args:
        standing: All anchors, as `anchors.standing` returns them.
        judgements: Judgements of all anchors, as `anchors.judgements` returns them.
        scores: `JUDGED` suffices to tell who judges and which look is due, and not for a look.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    arguments = (chain, criteria, _DOUBTFUL, MOST_READ)
    rows = await database.once(lambda c: c.fetch(database.sql(scores), *arguments))
    known = [ChainScore(**dict(r)) for r in reversed(rows) if r["judge_fingerprint"] is not None]
    tenure = await asyncio.to_thread(detection.current_tenure, known)
    if tenure is None:
        return None
    begun = tenure.scores[0].scored_at
    unknown = sum(r["judge_fingerprint"] is None and r["scored_at"] >= begun for r in rows)
    own = [j for j in judgements if j.chain_id == chain]
    borrows = (
        tenure.old is not None
        and detection.judged_by_both(own, tenure.old, tenure.fingerprint) < detection.OWN_ANCHORS
    )
    awaited = [a for a in standing.anchors if (borrows or a.chain_id == chain) and a.is_awaited]
    return Situation(chain, criteria, tenure, judgements if borrows else own, len(awaited), unknown)


async def look_at(database: Database, found: Situation, now: datetime) -> list[Look]:
    """
    Make the looks at a chain that are due and store their findings; returns the looks made.

    Concurrent calls for a chain run one after the other; only the first finds a look due.

    Args:
        now: Decides which looks are due, and is stored as the time of the findings.

    Raises:
        DatabaseAway: Either all looks were made and stored, or none.
    """

    async def work(connection: Connection) -> list[Look]:
        await LOOK_LOCK.acquire(connection, f"{database.schema}\x1f{found.chain_id}")
        earlier = await _findings(
            connection, database.sql(FINDINGS), found.chain_id, found.criteria, None, MOST_SHOWN
        )
        made: list[Look] = []
        of_change = _of_this_change(earlier, found.tenure, now)
        look = detection.due_look(
            found.tenure, found.judgements, found.outstanding, [f.look for f in of_change], now
        )
        if look is not None:
            drift = await asyncio.to_thread(detection.detect_new_judge, found, look)
            published = next(((f.cause, f.size) for f in of_change if f.is_event), None)
            news = detection.is_news(
                drift.cause, detection.size_of(drift.cause, drift.judge, drift.whole, drift.agents), published
            )
            await _keep(database, connection, found, look, drift, now, is_event=news)
            made.append(look)
        watched = await connection.fetchval(database.sql(WATCHED), found.chain_id, found.criteria)
        if watched is None or now - watched >= WATCH_EVERY:
            await connection.execute(database.sql(WATCH), found.chain_id, found.criteria, now)
            since = _last_change(earlier, found.tenure)
            scores = [s for s in found.tenure.scores if since is None or s.at >= since]
            drift = await asyncio.to_thread(find_change, scores)
            if drift.cause == "agents":
                await _keep(database, connection, found, "watch", drift, now, is_event=True)
            made.append("watch")
        return made

    return await database.once(work)


async def looks_made(database: Database, found: Situation, now: datetime) -> list[Look]:
    """The looks made at the change that brought the current judge. Raises: DatabaseAway."""
    earlier = await read_findings(database, found.chain_id, found.criteria)
    return [f.look for f in _of_this_change(earlier, found.tenure, now)]


def _of_this_change(earlier: Sequence[Finding], tenure: Tenure, now: datetime) -> list[Finding]:
    """The findings among `earlier` about the change that brought the current judge, newest first."""
    since = now - FLAPPING if tenure.since is None else min(tenure.since, now - FLAPPING)
    judges = tenure.old, tenure.fingerprint
    return [
        f
        for f in earlier
        if (f.old_fingerprint, f.new_fingerprint) == judges and f.look != "watch" and f.found_at >= since
    ]


def _last_change(earlier: Sequence[Finding], tenure: Tenure) -> datetime | None:
    """When the last known change under the current judge began."""
    began = [f.began_at for f in earlier if f.look == "watch" and f.new_fingerprint == tenure.fingerprint]
    return max((at for at in began if at is not None), default=None)


async def _keep(
    database: Database,
    connection: Connection,
    found: Situation,
    look: Look,
    drift: Drift,
    now: datetime,
    *,
    is_event: bool,
) -> None:
    """Store a finding in the caller's transaction; an event is published later."""
    values = {
        "look": look,
        "chain_id": found.chain_id,
        "criteria": found.criteria,
        "criteria_hash": found.criteria_hash,
        "old_fingerprint": None if look == "watch" else found.tenure.old,
        "new_fingerprint": found.tenure.fingerprint,
        "compared_before": drift.compared[0],
        "compared_after": drift.compared[1],
        "found_at": now,
        "is_event": is_event,
        **{name: value for name, value in asdict(drift).items() if name != "compared"},
    }
    marks = ", ".join(f"${n}" for n in range(1, len(values) + 1))
    sql = database.sql(f"INSERT INTO {{schema}}.drift_findings ({', '.join(values)}) VALUES ({marks})")
    await connection.execute(sql, *values.values())


# --- reading findings ----------------------------------------------------------------------------------


async def read_findings(
    database: Database,
    chain: str | None = None,
    criteria: str | None = None,
    *,
    since: datetime | None = None,
    limit: int = MOST_SHOWN,
) -> list[Finding]:
    """Findings, the newest first. Raises: DatabaseAway."""
    sql = database.sql(FINDINGS)
    return await database.once(lambda c: _findings(c, sql, chain, criteria, since, limit))


async def events_since(database: Database, since: datetime) -> list[Finding]:
    """Events that were found since, published or not, the oldest first. Raises: DatabaseAway."""
    return await database.once(lambda c: _findings(c, database.sql(EVENTS), since))


async def unpublished(database: Database, limit: int) -> list[Finding]:
    """Events that no broker has acknowledged, the oldest first. Raises: DatabaseAway."""
    return await database.once(lambda c: _findings(c, database.sql(UNPUBLISHED), limit))


async def _findings(connection: Connection, sql: str, *arguments: Any) -> list[Finding]:
    rows = [dict(row) for row in await connection.fetch(sql, *arguments)]
    return [
        Finding(**row | {part: Estimate(**row[part]) for part in ("judge", "whole", "agents")})
        for row in rows
    ]


async def mark_published(database: Database, event_ids: Sequence[UUID]) -> None:
    """Record that the broker acknowledged these events. Raises: DatabaseAway: They are published again."""
    await database.once(lambda c: c.execute(database.sql(MARK_PUBLISHED), list(event_ids)))


def event_of(finding: Finding) -> Mapping[str, Any]:
    """Build the event `scoring.drift_detected` of a finding; equal findings give equal events."""
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

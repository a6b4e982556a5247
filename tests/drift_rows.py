"""Stores scores of chains over weeks, so that a test knows what changed: the judge, the agents or neither."""

import random
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from builders import DEFAULT_CRITERIA, HASHES, Scoring
from tarsy_scoring.studies import anchors, findings
from tarsy_scoring.studies.detection import Look

ALERTS = ("PodCrashLoop", "DiskPressure", "HighLatency")

_SESSIONS = """
INSERT INTO sessions (session_id, chain_id, alert_type, status, completed_at, first_seen_at)
SELECT i, $2, a, 'completed', t, t FROM unnest($1::text[], $3::text[], $4::timestamptz[]) AS u(i, a, t)
ON CONFLICT DO NOTHING
"""

_SCORES = """
INSERT INTO session_scores (session_id, request_id, chain_id, priority, score_triggered_by, status, purpose,
  total_score, criteria, criteria_hash, judge_fingerprint, created_at, completed_at)
SELECT i, gen_random_uuid(), $2, 1, 'auto', 'completed', $4, n, $5, $6, $7, t, t
FROM unnest($1::text[], $3::int[], $8::timestamptz[]) AS u(i, n, t)
"""


def totals(mean: float, count: int, *, spread: float = 10.0, seed: int = 1) -> list[int]:
    """Integer totals around a mean; equal seeds give equal totals."""
    dice = random.Random(seed)
    return [min(100, max(0, round(dice.gauss(mean, spread)))) for _ in range(count)]


async def plant_scores(
    scoring: Scoring,
    judge: str,
    numbers: Sequence[int],
    *,
    begin: datetime,
    chain: str = "kubernetes",
    criteria: str = DEFAULT_CRITERIA,
    every: timedelta = timedelta(hours=1),
) -> list[str]:
    """Store sessions of a chain that end one after the other from `begin`, with scores; gives their ids."""
    times = [begin + n * every for n in range(len(numbers))]
    ids = [f"{chain}-{uuid.uuid4().hex[:12]}" for _ in numbers]
    alerts = [ALERTS[n % len(ALERTS)] for n in range(len(ids))]
    await scoring.rows(_SESSIONS, ids, chain, alerts, times)
    await plant_judgements(scoring, judge, dict(zip(ids, numbers, strict=True)), times, "production", chain, criteria)
    return ids


async def plant_judgements(
    scoring: Scoring,
    judge: str,
    numbers: dict[str, int],
    times: Sequence[datetime] | None = None,
    purpose: str = "anchor",
    chain: str = "kubernetes",
    criteria: str = DEFAULT_CRITERIA,
) -> None:
    """Store scores of existing sessions, completed now unless times are given."""
    ids = list(numbers)
    at = list(times or [datetime.now(UTC)] * len(ids))
    bound = (criteria, HASHES[criteria])
    await scoring.rows(_SCORES, ids, chain, list(numbers.values()), purpose, *bound, judge, at)


async def look(scoring: Scoring, at: datetime, chain: str = "kubernetes") -> Look | None:
    """Look at a chain for drift."""
    standing = await anchors.standing(scoring.database, scoring.inbox.policy)
    said = await anchors.judgements(scoring.database)
    return await findings.look_at(scoring.database, chain, DEFAULT_CRITERIA, standing, said, at)

"""
The review queue: scores that people are asked to label, drawn once for each day and judge.

Laws. A score is a candidate once, when the day on which it was completed is over, so the probability that it
is picked is known and does not change. The first reader of the queue makes the missing draws. A day that was
not drawn from within `DAYS` days never is, so labels on its scores do not count.
"""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from typing import Any

from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.records.labels import UNKNOWN, fetch_bands
from tarsy_scoring.statistics.agreement import DEFAULT_BANDS, Band, band_of
from tarsy_scoring.statistics.sampling import Candidate, Pick, pick_for_review

DAYS = 7
PICKS_A_DAY = 10  # for each judge; about half an hour of work
MOST_CANDIDATES = 50_000  # of one day, over all judges; ranking them takes two seconds
MOST_SHOWN = 1000
MISMATCH = "outcome_score_mismatch"

# Days that are over and were not drawn from, oldest first. A day is over ten minutes after midnight, so that
# attempts that ended before midnight have committed.
TO_DRAW = f"""
SELECT d::date AS day
FROM (SELECT date_trunc('day', now() AT TIME ZONE 'UTC' - interval '10 minutes') AS today) t,
     generate_series(t.today - interval '{DAYS} days', t.today - interval '1 day', interval '1 day') d
WHERE NOT EXISTS (SELECT FROM {{schema}}.review_days r WHERE r.day = d::date) ORDER BY d
"""

# A concurrent draw of the same day waits here for the first one to commit, and then finds the day drawn.
TAKE_DAY = "INSERT INTO {schema}.review_days (day) VALUES ($1) ON CONFLICT DO NOTHING RETURNING day"

_OF_DAY = """
FROM {schema}.session_scores s
WHERE s.status = 'completed' AND s.purpose = 'production' AND s.total_score IS NOT NULL
  AND s.completed_at >= $1::date::timestamp AT TIME ZONE 'UTC'
  AND s.completed_at < ($1::date + 1)::timestamp AT TIME ZONE 'UTC'
"""

JUDGES = f"SELECT count(DISTINCT (s.criteria_hash, s.judge_fingerprint)) {_OF_DAY}"

# The scores of a day, of each judge at most $2, which are a random sample of its scores: `share` is the
# probability that a score of this judge is in it. The order by a digest makes the sample repeatable.
CANDIDATES = f"""
SELECT *, least(1, $2 / of_judge::float8) AS share FROM (
  SELECT s.score_id, s.total_score, s.criteria_hash, s.judge_fingerprint, s.flags, s.spread, s.judge_outcome,
         s.outcome, s.gates_passed, s.gates_total,
         count(*) OVER (PARTITION BY s.criteria_hash, s.judge_fingerprint) AS of_judge,
         row_number() OVER (PARTITION BY s.criteria_hash, s.judge_fingerprint ORDER BY md5(s.score_id::text)) AS place
  {_OF_DAY}) c
WHERE place <= $2
"""

# Scores are locked in the order of their ids, as everywhere. A score that was deleted meanwhile is left out.
KEEP_PICKS = """
INSERT INTO {schema}.review_picks (score_id, day, place, is_random, inclusion_probability, reasons)
SELECT s.score_id, $1::date, p.place, p.is_random, p.inclusion_probability, p.reasons
FROM jsonb_to_recordset($2) AS p(score_id uuid, place int, is_random bool, inclusion_probability float8, reasons jsonb)
JOIN {schema}.session_scores s USING (score_id) ORDER BY s.score_id FOR KEY SHARE OF s
ON CONFLICT (score_id) DO NOTHING
"""

QUEUE = f"""
SELECT p.score_id, p.day, p.is_random, p.inclusion_probability, p.reasons, s.session_id, s.chain_id, m.alert_type,
       s.total_score, s.criteria, s.criteria_hash, s.judge_fingerprint, s.completed_at AS scored_at,
       (SELECT count(*) FROM {{schema}}.score_labels l WHERE l.score_id = p.score_id) AS labels
FROM {{schema}}.review_picks p
JOIN {{schema}}.session_scores s USING (score_id) JOIN {{schema}}.sessions m USING (session_id)
WHERE p.day >= (now() AT TIME ZONE 'UTC')::date - {DAYS} AND ($1::text IS NULL OR s.criteria = $1)
ORDER BY p.day DESC, p.place, p.score_id LIMIT {MOST_SHOWN}
"""


@dataclass(frozen=True, slots=True)
class Queue:
    """
    The scores to review.

    Args:
        picks: Rows, newest day first and in random order within a day. Labelled ones stay in their place.
        to_label: How many of them have no label yet.
    """

    picks: Sequence[Mapping[str, Any]]
    to_label: int

    @property
    def judges(self) -> list[tuple[str, str, str]]:
        """The judges of these scores, each as criteria name, criteria hash and fingerprint, latest first."""
        names = ("criteria", "criteria_hash", "judge_fingerprint")
        found = (tuple(pick[name] or UNKNOWN for name in names) for pick in self.picks)
        return [(criteria, of, judge) for criteria, of, judge in dict.fromkeys(found)]


async def queue(database: Database, criteria: str | None = None) -> Queue:
    """
    Make the missing draws, and read the scores to review of the last `DAYS` days.

    Args:
        criteria: Only scores under criteria of this name. The draw covers all criteria.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    for row in await database.once(lambda c: c.fetch(database.sql(TO_DRAW))):
        await draw(database, row["day"])
    return await drawn(database, criteria)


async def drawn(database: Database, criteria: str | None = None) -> Queue:
    """Read the picks so far, without a draw. Raises: DatabaseAway."""
    rows = await database.once(lambda c: c.fetch(database.sql(QUEUE), criteria))
    return Queue([dict(r) for r in rows], sum(not r["labels"] for r in rows))


async def draw(database: Database, day: date) -> bool:
    """
    Pick the scores of a day that people are asked to label, once.

    Returns:
        Whether this call made the draw.

    Raises:
        DatabaseAway: All picks of the day were stored, or none.
    """

    async def work(connection: Connection) -> bool:
        if not await connection.fetchval(database.sql(TAKE_DAY), day):
            return False
        judges = await connection.fetchval(database.sql(JUDGES), day)
        of_each = max(10 * PICKS_A_DAY, MOST_CANDIDATES // max(judges, 1))
        rows = await connection.fetch(database.sql(CANDIDATES), day, of_each)
        bands = await fetch_bands(database, connection, {r["criteria_hash"] or "" for r in rows})
        # In a thread: ranking many scores would block the event loop.
        picked = await asyncio.to_thread(pick, [*map(dict, rows)], bands, day)
        picks = [{"place": place, **asdict(one)} for place, one in picked]
        await connection.execute(database.sql(KEEP_PICKS), day, picks)
        return True

    return await database.once(work)


def pick(
    rows: Sequence[Mapping[str, Any]], bands_by_hash: Mapping[str, tuple[Band, ...]], day: date
) -> list[tuple[int, Pick]]:
    """
    Pick up to `PICKS_A_DAY` scores of each judge, each with its place in the queue.

    The same scores on the same day always give the same picks.

    Args:
        rows: Rows of `CANDIDATES`.
    """
    # By judge, because each judge has its own trust card.
    by_judge = defaultdict[tuple[str, str], list[Mapping[str, Any]]](list)
    for row in rows:
        by_judge[row["criteria_hash"] or "", row["judge_fingerprint"] or ""].append(row)
    picks = list[tuple[int, Pick]]()
    for judge, judged in sorted(by_judge.items()):
        bands = bands_by_hash.get(judge[0], DEFAULT_BANDS)
        candidates = [candidate(row, bands) for row in judged]
        picked = pick_for_review(candidates, PICKS_A_DAY, bands, seed=_seed(day, judge))
        share = judged[0]["share"]
        picks += enumerate(replace(one, inclusion_probability=share * one.inclusion_probability) for one in picked)
    return picks


def candidate(row: Mapping[str, Any], bands: Sequence[Band]) -> Candidate:
    """Derive the properties by which a score is ranked for review."""
    stated, flags = row["judge_outcome"], set(row["flags"] or ())
    is_band = stated in {b.id for b in bands}
    is_outside = MISMATCH in flags or (is_band and band_of(row["total_score"], bands) != stated)
    passed_all = row["gates_total"] and row["gates_passed"] == row["gates_total"]
    return Candidate(
        str(row["score_id"]),
        row["total_score"],
        row["spread"],
        is_flagged=bool(flags - {MISMATCH}),
        is_contradictory=is_outside or bool(passed_all and row["outcome"] == "fail"),
    )


def _seed(day: date, judge: tuple[str, str]) -> int:
    return int.from_bytes(hashlib.sha256("\n".join((str(day), *judge)).encode()).digest()[:8])

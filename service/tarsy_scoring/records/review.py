"""
The review queue: scores that people are asked to label, drawn once for each day and judge.

Laws. A score is a candidate once, when the day on which it was completed is over, so the probability that it
is picked is known and does not change. The first reader of the queue makes the missing draws. A day that was
not drawn from within `DAYS` days never is, so labels on its scores do not count.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.records.labels import UNKNOWN, fetch_bands
from tarsy_scoring.statistics.agreement import DEFAULT_BANDS, Band, band_of
from tarsy_scoring.statistics.sampling import (
    EDGE_POINTS,
    SAMPLES_APART_POINTS,
    Candidate,
    Place,
    choose_places,
    reasons_to_review,
)

DAYS = 7
PICKS_A_DAY = 10  # for each judge; about half an hour of work
MOST_CANDIDATES = 50_000  # of one day, over all judges; ranking them takes half a second
MOST_SHOWN = 1000
MISMATCH = "outcome_score_mismatch"
DISPUTED = "second_opinion_disagrees"

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
WHERE s.status = 'completed' AND s.purpose = 'production' AND s.total_score IS NOT NULL AND s.reference IS NULL
  AND s.completed_at >= $1::date::timestamp AT TIME ZONE 'UTC'
  AND s.completed_at < ($1::date + 1)::timestamp AT TIME ZONE 'UTC'
"""

_JUDGE = "coalesce(s.criteria_hash, '')", "coalesce(s.judge_fingerprint, '')"

# The judges of a day, with the number of their scores.
JUDGES = f"""
SELECT {_JUDGE[0]} AS criteria_hash, {_JUDGE[1]} AS judge_fingerprint, count(*) AS scores {_OF_DAY} GROUP BY 1, 2
"""

# The scores of a day at chosen places of the ranking of their judge ($3 hashes, $4 fingerprints, $5 places). Of each
# judge at most $2 scores are ranked, which are a random sample: the order by a digest makes it repeatable. The
# ranking is that of `statistics.sampling`; $6 to $10 are bands: hash, id, low, high, and whether it is an edge.
RANKED = f"""
WITH bands AS MATERIALIZED (
  SELECT * FROM unnest($6::text[], $7::text[], $8::int[], $9::int[], $10::bool[]) AS b(hash, id, low, high, is_edge)
), candidates AS (
  SELECT * FROM (
    SELECT s.score_id, s.total_score, {_JUDGE[0]} AS criteria_hash, {_JUDGE[1]} AS judge_fingerprint, s.flags, s.spread,
           s.judge_outcome, s.outcome, s.gates_passed, s.gates_total,
           row_number() OVER (PARTITION BY {", ".join(_JUDGE)} ORDER BY md5(s.score_id::text)) AS n
    {_OF_DAY}) c
  WHERE n <= $2
), properties AS (
  SELECT c.*, p.to_edge,
    (c.flags ? '{MISMATCH}' OR p.is_outside OR c.gates_total > 0 AND c.gates_passed = c.gates_total
      AND c.outcome = 'fail') IS TRUE AS is_contradictory
  FROM candidates c, LATERAL (
    SELECT min(abs(c.total_score - b.low)) FILTER (WHERE b.is_edge) AS to_edge,
           bool_or(b.id = c.judge_outcome AND c.total_score NOT BETWEEN b.low AND b.high) AS is_outside
    FROM bands b WHERE b.hash = c.criteria_hash) p
), ranked AS (
  SELECT *, row_number() OVER (PARTITION BY criteria_hash, judge_fingerprint ORDER BY
    (flags ? '{DISPUTED}') IS TRUE DESC, is_contradictory::int + (flags - '{MISMATCH}' - '{DISPUTED}' <> '[]')::int
      + (spread > {SAMPLES_APART_POINTS} IS TRUE)::int + (to_edge <= {EDGE_POINTS} IS TRUE)::int DESC,
    coalesce(spread, 0) DESC, to_edge NULLS LAST, score_id) - 1 AS rank
  FROM properties
)
SELECT r.* FROM ranked r JOIN unnest($3::text[], $4::text[], $5::int[]) AS w(criteria_hash, judge_fingerprint, rank)
  USING (criteria_hash, judge_fingerprint, rank)
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
       s.total_score, s.judge_outcome, s.criteria, s.criteria_hash, s.judge_fingerprint, s.completed_at AS scored_at,
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


Chosen = dict[tuple[str, str, int], tuple[int, Place]]
"""The place in the queue and the pick, by criteria hash, fingerprint and place in the ranking of that judge."""


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
        judges = await connection.fetch(database.sql(JUDGES), day)
        of_each = max(10 * PICKS_A_DAY, MOST_CANDIDATES // max(len(judges), 1))
        chosen = Chosen()
        for criteria_hash, fingerprint, scores in judges:
            ranked = min(scores, of_each)
            places = choose_places(ranked, PICKS_A_DAY, seed=_seed(day, (criteria_hash, fingerprint)))
            for n, pick in enumerate(places):
                probability = ranked / scores * pick.inclusion_probability
                chosen[criteria_hash, fingerprint, pick.place] = n, replace(pick, inclusion_probability=probability)
        if not chosen:
            return True
        stored = await fetch_bands(database, connection, {judge[0] for judge in judges})
        bands = {judge[0]: stored.get(judge[0], DEFAULT_BANDS) for judge in judges}
        edges = [(key, b.id, b.low, b.high, n > 0) for key, of in bands.items() for n, b in enumerate(of)]
        columns = *zip(*chosen, strict=True), *zip(*edges, strict=True)
        rows = await connection.fetch(database.sql(RANKED), day, of_each, *columns)
        await connection.execute(database.sql(KEEP_PICKS), day, [pick_of(dict(r), chosen, bands) for r in rows])
        return True

    return await database.once(work)


def pick_of(row: Mapping[str, Any], chosen: Chosen, bands: Mapping[str, Sequence[Band]]) -> dict[str, Any]:
    """A row of `RANKED` as a row of `review_picks`."""
    of = bands[row["criteria_hash"]]
    place, pick = chosen[row["criteria_hash"], row["judge_fingerprint"], row["rank"]]
    return {
        "score_id": str(row["score_id"]),
        "place": place,
        "is_random": pick.is_random,
        "inclusion_probability": pick.inclusion_probability,
        "reasons": reasons_to_review(candidate(row, of), of),
    }


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
        is_flagged=bool(flags - {MISMATCH, DISPUTED}),
        is_contradictory=is_outside or bool(passed_all and row["outcome"] == "fail"),
        is_disputed=DISPUTED in flags,
    )


def _seed(day: date, judge: tuple[str, str]) -> int:
    return int.from_bytes(hashlib.sha256("\n".join((str(day), *judge)).encode()).digest()[:8])

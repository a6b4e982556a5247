"""
The review queue: scores that people are asked to label, drawn for each day and judge.

Laws. A score is a candidate once, in the first draw after it was completed, so the probability that it is
picked is known and does not change. A day is drawn from when it is over, and before that whenever nothing is
left
to label. The first reader of the queue makes the draws that are due. A day that was not drawn from within
`DAYS` days never is, so labels on its scores do not count.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from tarsy_scoring.labels.labels import UNKNOWN, fetch_bands
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.scores.bands import DEFAULT_BANDS, Band, band_of
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
MOST_CANDIDATES = 50_000  # of one draw, over all judges; ranking them takes half a second
MOST_SHOWN = 1000
MISMATCH = "outcome_score_mismatch"
DISPUTED = "second_opinion_disagrees"


def _candidates(since: str, until: str) -> str:
    """FROM clause of the scores of a draw: those that were completed from `since` on and before `until`."""
    return f"""FROM {{schema}}.session_scores s
WHERE s.status = 'completed' AND s.purpose = 'production' AND s.total_score IS NOT NULL AND s.reference IS NULL
  AND s.completed_at >= {since} AND s.completed_at < {until}"""


# A day is over ten minutes after midnight, so that attempts that ended before midnight have committed.
_TODAY = "date_trunc('day', now() AT TIME ZONE 'UTC' - interval '10 minutes')"

# Days that are over and whose last scores were not candidates yet, oldest first, with the end of the draw
# before.
TO_DRAW = f"""
SELECT d::date AS day, r.drawn_until
FROM generate_series({_TODAY} - interval '{DAYS} days', {_TODAY} - interval '1 day', interval '1 day') d
LEFT JOIN {{schema}}.review_days r ON r.day = d::date
WHERE r.day IS NULL OR r.drawn_until IS NOT NULL ORDER BY d
"""

# The day that is not over, if no pick is left to label and new scores are there. A score whose end is
# committed after the draw, but began before it, is no candidate.
TO_DRAW_TODAY = f"""
SELECT t.day, r.drawn_until, t.until
FROM (SELECT {_TODAY}::date AS day, least(now(), ({_TODAY} + interval '1 day') AT TIME ZONE 'UTC') AS until) t
LEFT JOIN {{schema}}.review_days r USING (day)
WHERE (r.day IS NULL OR r.drawn_until IS NOT NULL)
  AND NOT EXISTS (SELECT FROM {{schema}}.review_picks p
                  WHERE p.day >= (now() AT TIME ZONE 'UTC')::date - {DAYS}
                    AND NOT EXISTS (SELECT FROM {{schema}}.score_labels l WHERE l.score_id = p.score_id))
  AND EXISTS (SELECT {_candidates("coalesce(r.drawn_until, t.day::timestamp AT TIME ZONE 'UTC')", "t.until")})
"""

# A concurrent draw of the same scores waits here for the first one to commit, and then finds them drawn. $2
# is the end of the draw before, $3 that of this one; null: the end of the day.
TAKE_DAY = """
INSERT INTO {schema}.review_days AS r (day, drawn_until) VALUES ($1, $3)
ON CONFLICT (day) DO UPDATE SET drawn_until = $3 WHERE r.drawn_until = $2
RETURNING day
"""

_DRAWN_FROM = _candidates("$1::timestamptz", "$2::timestamptz")
_JUDGE = "coalesce(s.criteria_hash, '')", "coalesce(s.judge_fingerprint, '')"

# The judges of scores from $1 on and before $2, with the number of these scores.
JUDGES = f"""
SELECT {_JUDGE[0]} AS criteria_hash, {_JUDGE[1]} AS judge_fingerprint, count(*) AS scores {_DRAWN_FROM} GROUP BY 1, 2
"""

# The scores of a draw at chosen places of the ranking of their judge ($4 hashes, $5 fingerprints, $6 places).
# Of each judge at most $3 scores are ranked, which are a random sample: the order by a digest makes it
# repeatable. The ranking is that of `statistics.sampling`; $7 to $11 are bands: hash, id, low, high, and
# whether it is an edge.
RANKED = f"""
WITH bands AS MATERIALIZED (
  SELECT * FROM unnest($7::text[], $8::text[], $9::int[], $10::int[], $11::bool[]) AS b(hash, id, low, high, is_edge)
), candidates AS (
  SELECT * FROM (
    SELECT s.score_id, s.total_score, {_JUDGE[0]} AS criteria_hash, {_JUDGE[1]} AS judge_fingerprint, s.flags, s.spread,
           s.judge_outcome, s.outcome, s.gates_passed, s.gates_total,
           row_number() OVER (PARTITION BY {", ".join(_JUDGE)} ORDER BY md5(s.score_id::text)) AS n
    {_DRAWN_FROM}) c
  WHERE n <= $3
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
SELECT r.* FROM ranked r JOIN unnest($4::text[], $5::text[], $6::int[]) AS w(criteria_hash, judge_fingerprint, rank)
  USING (criteria_hash, judge_fingerprint, rank)
"""

# Scores are locked in the order of their ids, as everywhere. A score that was deleted meanwhile is left out.
# Picks come after those of earlier draws of the day.
KEEP_PICKS = """
INSERT INTO {schema}.review_picks (score_id, day, place, is_random, inclusion_probability, reasons)
SELECT s.score_id, $1::date,
       p.place + (SELECT coalesce(max(place) + 1, 0) FROM {schema}.review_picks WHERE day = $1::date),
       p.is_random, p.inclusion_probability, p.reasons
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
    Make the draws that are due, and read the scores to review of the last `DAYS` days.

    Args:
        criteria: Only scores under criteria of this name. Draws cover all criteria.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    for row in await database.once(lambda c: c.fetch(database.sql(TO_DRAW))):
        await draw(database, row["day"], since=row["drawn_until"])
    for row in await database.once(lambda c: c.fetch(database.sql(TO_DRAW_TODAY))):
        await draw(database, row["day"], since=row["drawn_until"], until=row["until"])
    return await drawn(database, criteria)


async def drawn(database: Database, criteria: str | None = None) -> Queue:
    """Read the picks so far, without a draw. Raises: DatabaseAway."""
    rows = await database.once(lambda c: c.fetch(database.sql(QUEUE), criteria))
    return Queue([dict(r) for r in rows], sum(not r["labels"] for r in rows))


async def draw(
    database: Database, day: date, *, since: datetime | None = None, until: datetime | None = None
) -> bool:
    """
    Pick the scores of a day that people are asked to label, each draw once.

    Args:
        since: End of the draw before on that day; None: there was none.
        until: Only scores completed before; None: to the end of the day.

    Returns:
        Whether this call made the draw.

    Raises:
        DatabaseAway: All picks of the draw were stored, or none.
    """
    midnight = datetime.combine(day, time(), UTC)
    window = since or midnight, until or midnight + timedelta(days=1)

    async def work(connection: Connection) -> bool:
        if not await connection.fetchval(database.sql(TAKE_DAY), day, since, until):
            return False
        judges = await connection.fetch(database.sql(JUDGES), *window)
        of_each = max(10 * PICKS_A_DAY, MOST_CANDIDATES // max(len(judges), 1))
        chosen = Chosen()
        for criteria_hash, fingerprint, scores in judges:
            ranked = min(scores, of_each)
            places = choose_places(ranked, PICKS_A_DAY, seed=_seed(window[0], (criteria_hash, fingerprint)))
            for n, pick in enumerate(places):
                probability = ranked / scores * pick.inclusion_probability
                chosen[criteria_hash, fingerprint, pick.place] = (
                    n,
                    replace(pick, inclusion_probability=probability),
                )
        if not chosen:
            return True
        stored = await fetch_bands(database, connection, {judge[0] for judge in judges})
        bands = {judge[0]: stored.get(judge[0], DEFAULT_BANDS) for judge in judges}
        edges = [(key, b.id, b.low, b.high, n > 0) for key, of in bands.items() for n, b in enumerate(of)]
        columns = *zip(*chosen, strict=True), *zip(*edges, strict=True)
        rows = await connection.fetch(database.sql(RANKED), *window, of_each, *columns)
        await connection.execute(
            database.sql(KEEP_PICKS), day, [pick_of(dict(r), chosen, bands) for r in rows]
        )
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


def _seed(since: datetime, judge: tuple[str, str]) -> int:
    return int.from_bytes(hashlib.sha256("\n".join((since.isoformat(), *judge)).encode()).digest()[:8])

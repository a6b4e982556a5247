"""
Labels that people give, and the judges' trust cards, computed from labels.

A label is about a session, and each judge's production score of the session is compared with it. Each
author's last label counts. Labels that people give here are kept with author and time, and nothing replaces
them. The rating in TARSy is one label, which follows TARSy.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from tarsy_scoring.audit import audit
from tarsy_scoring.labels.calibration import (
    OUTCOME_WORDS,
    Coverage,
    Label,
    LabelledScore,
    Selection,
    Source,
    TrustCard,
    band_of_label,
    calibrate,
)
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.scores.bands import DEFAULT_BANDS, Band, band_of, bands_of
from tarsy_scoring.scores.latest import NEWEST_FIRST, is_completed

MOST_SHOWN = 500
RANDOM_A_DAY = 5  # scores per day in the review list's random part
# The newest labels that count, and the newest scores of which `coverage` counts the labelled ones.
MOST_COUNTED = 5_000
MAX_REASON = 4000
UNKNOWN = "unknown"  # stands for criteria, hash or judge where a score names none

SUBJECT = """
SELECT s.score_id, s.status, s.total_score AS total, c.content -> 'bands' AS bands
FROM {schema}.session_scores s LEFT JOIN {schema}.scoring_criteria c USING (criteria_hash) WHERE s.score_id = $1
"""

# Locks the session before the scores, in the order in which an erasure locks them.
LOCK_SESSION = """
SELECT session_id FROM {schema}.sessions
WHERE session_id = (SELECT session_id FROM {schema}.session_scores WHERE score_id = $1) FOR KEY SHARE
"""

_SHOWN = """
label_id, {score_id} AS score_id, session_id, source, labelled_by AS by, labelled_at AS at, agrees, outcome,
number, reason, is_random"""

# A score is random if few scores of the day have a smaller digest, as in the review list.
ADD = f"""
INSERT INTO {{schema}}.score_labels
  (score_id, session_id, labelled_by, source, agrees, outcome, number, reason, is_random)
SELECT s.score_id, s.session_id, $2, $8, $3, $4, $5, $6, $7 > (
  SELECT count(*) FROM {{schema}}.session_scores o
  WHERE o.status = 'completed' AND o.purpose = 'production' AND o.total_score IS NOT NULL AND o.reference IS NULL
    AND o.completed_at >= date_trunc('day', s.completed_at AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'
    AND o.completed_at < (date_trunc('day', s.completed_at AT TIME ZONE 'UTC') + interval '1 day') AT TIME ZONE 'UTC'
    AND md5(o.score_id::text) < md5(s.score_id::text))
FROM {{schema}}.session_scores s
WHERE s.score_id = $1 AND s.status = 'completed' AND s.total_score IS NOT NULL FOR KEY SHARE OF s
RETURNING {_SHOWN.format(score_id="score_id")}
"""

# The labels of a score, and the session's review in TARSy, which is about each score.
OF_SCORE = f"""
SELECT {_SHOWN.format(score_id="$1::uuid")} FROM {{schema}}.score_labels
WHERE score_id = $1 OR source = 'tarsy' AND session_id = (
  SELECT session_id FROM {{schema}}.session_scores s WHERE s.score_id = $1 AND {is_completed("s")})
ORDER BY labelled_at DESC, label_id DESC LIMIT $2
"""

# Each author's last label on each given score, of the newest labels of that score and the review in TARSy, in
# the order in which they were given.
LAST_OF_SCORES = f"""
SELECT score_id, labelled_at AS at, agrees, outcome, number, reason FROM (
  SELECT DISTINCT ON (s.score_id, n.labelled_by)
    s.score_id, n.label_id, n.labelled_at, n.agrees, n.outcome, n.number, n.reason
  FROM unnest($1::uuid[]) AS g(score_id) JOIN {{schema}}.session_scores s USING (score_id)
  CROSS JOIN LATERAL (
    SELECT * FROM {{schema}}.score_labels o
    WHERE o.score_id = s.score_id OR o.source = 'tarsy' AND o.session_id = s.session_id
    ORDER BY label_id DESC LIMIT {MOST_SHOWN}) n
  ORDER BY s.score_id, n.labelled_by, n.label_id DESC) l
ORDER BY label_id
"""

# Each author's last label on each session, of the newest labels, beside the judgement of the score on whose
# page it was given: a label that agrees says the same.
COUNTED = f"""
SELECT DISTINCT ON (l.session_id, l.labelled_by)
  l.session_id, l.source, l.labelled_by AS by, l.labelled_at AS at, l.agrees, l.outcome, l.number, l.reason,
  l.is_random, s.total_score, s.judge_outcome, s.criteria_hash
FROM (
  SELECT * FROM {{schema}}.score_labels
  WHERE $1::timestamptz IS NULL AND $2::timestamptz IS NULL OR session_id IN (
    SELECT o.session_id FROM {{schema}}.score_labels o
    WHERE ($1 IS NULL OR o.labelled_at >= $1) AND ($2 IS NULL OR o.labelled_at < $2))
  ORDER BY label_id DESC LIMIT {MOST_COUNTED}) l
LEFT JOIN {{schema}}.session_scores s USING (score_id)
ORDER BY l.session_id, l.labelled_by, l.labelled_at DESC, l.label_id DESC
"""

# For each given session and each judge that scored it without a reference, the latest score with a total.
SCORES_BY_JUDGE = f"""
SELECT DISTINCT ON (session_id, criteria_hash, judge_fingerprint)
       session_id, total_score, criteria, criteria_hash, judge_fingerprint, judge_outcome
FROM {{schema}}.session_scores s
WHERE session_id = ANY($1::text[]) AND {is_completed("s")} AND total_score IS NOT NULL AND reference IS NULL
  AND ($2::text IS NULL OR coalesce(criteria, '{UNKNOWN}') = $2)
  AND ($3::text IS NULL OR coalesce(judge_fingerprint, '{UNKNOWN}') = $3)
ORDER BY session_id, criteria_hash, judge_fingerprint, {NEWEST_FIRST}
"""

# By judge: how many of the sessions with the newest scores are labelled ($1), and the mean totals.
COVERAGE = f"""
SELECT coalesce(criteria_hash, '{UNKNOWN}') AS criteria_hash,
  coalesce(judge_fingerprint, '{UNKNOWN}') AS judge_fingerprint, count(*)::int AS scored,
  (count(*) FILTER (WHERE is_labelled))::int AS labelled,
  (avg(total_score) FILTER (WHERE is_labelled))::float8 AS mean_labelled,
  (avg(total_score) FILTER (WHERE NOT is_labelled))::float8 AS mean_others
FROM (
  SELECT DISTINCT ON (session_id, criteria_hash, judge_fingerprint)
    criteria_hash, judge_fingerprint, total_score, session_id = ANY($1::text[]) AS is_labelled
  FROM (SELECT * FROM {{schema}}.session_scores s
        WHERE {is_completed("s")} AND total_score IS NOT NULL AND reference IS NULL
        ORDER BY completed_at DESC LIMIT {MOST_COUNTED}) s
  ORDER BY session_id, criteria_hash, judge_fingerprint, {NEWEST_FIRST}) t
GROUP BY 1, 2
"""

ALL_CRITERIA = "SELECT name, criteria_hash, content -> 'bands' AS bands FROM {schema}.scoring_criteria"


@dataclass(frozen=True, slots=True)
class NewLabel:
    """
    A label to be stored.

    Args:
        agrees: Whether the author agrees with the judge's outcome and total; None: not stated.
        outcome: The right outcome: a band of the criteria, or a word of `OUTCOME_WORDS`.
        number: The right total, 0-100.
    """

    agrees: bool | None = None
    outcome: str | None = None
    number: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """A score to be labelled, with the bands of the criteria, lowest first."""

    score_id: UUID
    status: str
    total: int | None
    bands: tuple[Band, ...]

    @property
    def can_be_labelled(self) -> bool:
        """Whether the score is completed and has a total."""
        return self.status == "completed" and self.total is not None


async def subject(database: Database, score_id: UUID) -> Subject | None:
    """Read the score that a label is about; None: there is none. Raises: DatabaseAway."""
    row = await database.once(lambda c: c.fetchrow(database.sql(SUBJECT), score_id))
    if row is None:
        return None
    return Subject(**{**row, "bands": bands_of(row["bands"])})


def contradicted(outcome: str | None, number: float | None, bands: tuple[Band, ...]) -> Band | None:
    """
    The band that the outcome names, if the number lies outside it; None: no contradiction.

    Criteria that define no bands do not say where `correct` begins, so only a number at the other
    end of the scale contradicts the word. The trust card counts such a label by the word.
    """
    if outcome is None or number is None:
        return None
    meant, said = band_of_label(Label("", outcome), bands), band_of(number, bands)
    ends = {bands[0].id, bands[-1].id}
    if said == meant or (bands == DEFAULT_BANDS and outcome in OUTCOME_WORDS and {said, meant} != ends):
        return None
    return next((b for b in bands if b.id == meant), None)


async def add(
    database: Database, score_id: UUID, label: NewLabel, *, by: str, source: Source = "api"
) -> dict[str, Any] | None:
    """
    Store a label and note the change in the journal, in one transaction.

    Returns:
        The label as `of_score` gives it; None: the score does not exist or has no total.

    Raises:
        DatabaseAway: The label may have been stored.
    """

    async def work(connection: Connection) -> dict[str, Any] | None:
        await connection.execute(database.sql(LOCK_SESSION), score_id)
        said = (label.agrees, label.outcome, label.number, label.reason)
        kept = await connection.fetchrow(database.sql(ADD), score_id, by, *said, RANDOM_A_DAY, source)
        if kept is None:
            return None
        about = {"session_id": kept["session_id"], "score_id": score_id}
        await audit.record(database, connection, "label", by=by, **about)
        return dict(kept)

    return await database.once(work)


async def of_score(database: Database, score_id: UUID, limit: int = MOST_SHOWN) -> list[dict[str, Any]]:
    """A score's labels and the session's review in TARSy, newest first. Raises: DatabaseAway."""
    return [dict(r) for r in await database.rows(OF_SCORE, score_id, limit)]


async def last_labels(database: Database, score_ids: Collection[UUID]) -> dict[UUID, list[dict[str, Any]]]:
    """Each author's last label by score, without the authors' names. Raises: DatabaseAway."""
    rows = await database.rows(LAST_OF_SCORES, list(score_ids))
    labels = defaultdict[UUID, list[dict[str, Any]]](list)
    for row in rows:
        labels[row["score_id"]].append({name: value for name, value in row.items() if name != "score_id"})
    return labels


# --- reviews in TARSy --------------------------------------------------------------------------------------

# The session is locked, as an erasure locks it. A label that says the same keeps its author, who may have a
# pseudonym by now.
KEEP_REVIEWS = f"""
INSERT INTO {{schema}}.score_labels AS l (source, session_id, labelled_by, labelled_at, outcome, reason)
SELECT 'tarsy', session_id, labelled_by, labelled_at, outcome, left(reason, {MAX_REASON})
FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::text[], $5::text[])
  AS t(session_id, labelled_by, labelled_at, outcome, reason)
JOIN {{schema}}.sessions m USING (session_id) ORDER BY session_id FOR KEY SHARE OF m
ON CONFLICT (session_id) WHERE source = 'tarsy' DO UPDATE SET
  labelled_by = excluded.labelled_by, labelled_at = excluded.labelled_at, outcome = excluded.outcome,
  reason = excluded.reason
WHERE (l.labelled_at, l.outcome, l.reason)
  IS DISTINCT FROM (excluded.labelled_at, excluded.outcome, excluded.reason)
RETURNING session_id
"""
WITHDRAW_REVIEWS = """
DELETE FROM {schema}.score_labels WHERE source = 'tarsy' AND session_id = ANY($1::text[]) RETURNING session_id
"""


@dataclass(frozen=True, slots=True)
class Review:
    """
    The rating of a session in TARSy.

    Args:
        by, at: Of the last change.
        outcome: A word of `OUTCOME_WORDS`.
        reason: What the reviewer wrote, without secrets.
    """

    session_id: str
    by: str
    at: datetime
    outcome: str
    reason: str | None


async def keep_reviews(database: Database, session_ids: Collection[str], reviews: Sequence[Review]) -> int:
    """
    Make the reviews of these sessions, as they are now, the labels with the source `tarsy`.

    Sessions without a review lose that label. Sessions that this service does not know get none.

    Returns:
        How many labels were added, changed or removed.

    Raises:
        DatabaseAway: They may have been stored; calling again is harmless.
    """
    without = set(session_ids) - {review.session_id for review in reviews}
    columns = zip(*((r.session_id, r.by, r.at, r.outcome, r.reason) for r in reviews), strict=True)

    async def work(connection: Connection) -> int:
        changed = await connection.fetch(database.sql(WITHDRAW_REVIEWS), sorted(without))
        if reviews:
            changed += await connection.fetch(database.sql(KEEP_REVIEWS), *map(list, columns))
        return len(changed)

    return await database.once(work)


# --- trust cards ---------------------------------------------------------------------------------------


async def trust_cards(
    database: Database, criteria: str | None = None, fingerprint: str | None = None
) -> list[TrustCard]:
    """
    A trust card for each judge whose scores have labels, most labels first.

    Args:
        criteria: Only judges under criteria with this name.
        fingerprint: Only the judge with this fingerprint.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    labels, bands = await counted_labels(database)
    cards = await compare(database, labels, bands, criteria, fingerprint)
    return [replace(card, unmatched=0) for card in cards if card.matched + card.unplaced]


async def counted_labels(
    database: Database, since: datetime | None = None, until: datetime | None = None
) -> tuple[list[Label], dict[str, tuple[Band, ...]]]:
    """
    Each author's last label on each session, and the bands of all criteria by hash.

    Args:
        since, until: Only sessions with a label that was given from then to before then.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    rows = [dict(r) for r in await database.rows(COUNTED, since, until)]
    _, bands = await known_criteria(database)
    return [label_of(row, bands.get(row["criteria_hash"], DEFAULT_BANDS)) for row in rows], bands


async def compare(
    database: Database,
    labels: Sequence[Label],
    bands: Mapping[str, Sequence[Band]],
    criteria: str | None = None,
    fingerprint: str | None = None,
) -> list[TrustCard]:
    """
    Compare labels with the stored scores of the sessions, see `calibrate`; the cards have their `coverage`.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    sessions = sorted({label.session_id for label in labels if label.is_decided})
    scores = await scores_by_judge(database, sessions, criteria, fingerprint)
    cards = await asyncio.to_thread(calibrate, labels, scores, bands)
    rows = await database.rows(COVERAGE, sessions) if cards else []
    found = {(hashed, judge): Coverage(*counts) for hashed, judge, *counts in (row.values() for row in rows)}
    return [_covered(card, found.get((card.criteria_hash, card.judge_fingerprint))) for card in cards]


def _covered(card: TrustCard, coverage: Coverage | None) -> TrustCard:
    if coverage is None:  # the judge has none of the newest scores
        return card
    return replace(card, coverage=coverage, meaning=f"{card.meaning} {coverage.in_words()}")


async def scores_by_judge(
    database: Database, sessions: Sequence[str], criteria: str | None = None, fingerprint: str | None = None
) -> list[LabelledScore]:
    """
    For each session and each judge that scored it, the latest production score with a total.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    rows = await database.rows(SCORES_BY_JUDGE, sessions, criteria, fingerprint)
    return [labelled_score(dict(r)) for r in rows]


async def known_criteria(database: Database) -> tuple[set[str], dict[str, tuple[Band, ...]]]:
    """Names, and bands by hash, of all criteria that ever judged, configured or not. Raises: DatabaseAway."""
    rows = await database.rows(ALL_CRITERIA)
    return {r["name"] for r in rows}, {r["criteria_hash"]: bands_of(r["bands"]) for r in rows}


def labelled_score(row: Mapping[str, Any]) -> LabelledScore:
    """Convert a row or a score document to the type that calibration takes."""
    return LabelledScore(
        row["session_id"],
        row["total_score"],
        row["criteria"] or UNKNOWN,
        row["criteria_hash"] or UNKNOWN,
        row["judge_fingerprint"] or UNKNOWN,
        row["judge_outcome"],
    )


def label_of(row: Mapping[str, Any], bands: tuple[Band, ...]) -> Label:
    """Convert a row to a label; a label that agrees gets the judge's own outcome and total."""
    outcome, number = row["outcome"], row["number"]
    if row["agrees"]:
        is_stated = row["judge_outcome"] in {b.id for b in bands}
        outcome = row["judge_outcome"] if is_stated else band_of(row["total_score"], bands)
        number = float(row["total_score"])
    selection: Selection = "random" if row["is_random"] else "picked"
    said = (row["source"], row["by"], row["at"], row["reason"])
    return Label(row["session_id"], outcome, number, selection, *said)

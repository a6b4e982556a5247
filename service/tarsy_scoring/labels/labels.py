"""
Labels that people put on scores, and the judges' trust cards, computed from labels.

Every label is kept with author and time, and nothing replaces it. Each author's last label on a score counts.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from tarsy_scoring.audit import audit
from tarsy_scoring.labels.calibration import (
    OUTCOME_WORDS,
    Label,
    LabelledScore,
    TrustCard,
    band_of_label,
    calibrate,
)
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.scores.bands import DEFAULT_BANDS, Band, band_of, bands_of
from tarsy_scoring.scores.latest import NEWEST_FIRST, is_completed

MOST_SHOWN = 500
RANDOM_A_DAY = 5  # scores per day in the review list's random part
MOST_COUNTED = 20_000  # newest labels
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
label_id, score_id, session_id, labelled_by AS by, labelled_at AS at, agrees, outcome, number, reason, is_random"""

# A score is random if few scores of the day have a smaller digest, as in the review list.
ADD = f"""
INSERT INTO {{schema}}.score_labels (score_id, session_id, labelled_by, agrees, outcome, number, reason, is_random)
SELECT s.score_id, s.session_id, $2, $3, $4, $5, $6, $7 > (
  SELECT count(*) FROM {{schema}}.session_scores o
  WHERE o.status = 'completed' AND o.purpose = 'production' AND o.total_score IS NOT NULL AND o.reference IS NULL
    AND o.completed_at >= date_trunc('day', s.completed_at AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'
    AND o.completed_at < (date_trunc('day', s.completed_at AT TIME ZONE 'UTC') + interval '1 day') AT TIME ZONE 'UTC'
    AND md5(o.score_id::text) < md5(s.score_id::text))
FROM {{schema}}.session_scores s
WHERE s.score_id = $1 AND s.status = 'completed' AND s.total_score IS NOT NULL FOR KEY SHARE OF s
RETURNING {_SHOWN}
"""

OF_SCORE = f"SELECT {_SHOWN} FROM {{schema}}.score_labels WHERE score_id = $1 ORDER BY label_id DESC LIMIT $2"

# Each author's last label on each given score, in the order in which they were given.
LAST_OF_SCORES = """
SELECT score_id, labelled_at AS at, agrees, outcome, number, reason FROM (
  SELECT DISTINCT ON (score_id, labelled_by) * FROM {schema}.score_labels WHERE score_id = ANY($1::uuid[])
  ORDER BY score_id, labelled_by, label_id DESC) l
ORDER BY label_id
"""

# Each author's last label on each score, beside the judgement. Labels are matched by score, which stands
# for the session: a session may have several scores by the same judge.
COUNTED = f"""
SELECT DISTINCT ON (l.score_id, l.labelled_by)
  l.score_id, l.score_id::text AS session_id, l.agrees, l.outcome, l.number, l.is_random,
  s.total_score, s.judge_outcome, s.criteria, s.criteria_hash, s.judge_fingerprint
FROM (SELECT * FROM {{schema}}.score_labels ORDER BY label_id DESC LIMIT {MOST_COUNTED}) l
JOIN {{schema}}.session_scores s USING (score_id)
WHERE s.status = 'completed' AND s.total_score IS NOT NULL
  AND ($1::text IS NULL OR coalesce(s.criteria, '{UNKNOWN}') = $1)
  AND ($2::text IS NULL OR coalesce(s.judge_fingerprint, '{UNKNOWN}') = $2)
ORDER BY l.score_id, l.labelled_by, l.label_id DESC
"""

# For each given session and each judge that scored it without a reference, the latest score with a total.
SCORES_BY_JUDGE = f"""
SELECT DISTINCT ON (session_id, criteria_hash, judge_fingerprint)
       session_id, total_score, criteria, criteria_hash, judge_fingerprint, judge_outcome
FROM {{schema}}.session_scores s
WHERE session_id = ANY($1::text[]) AND {is_completed("s")} AND total_score IS NOT NULL AND reference IS NULL
  AND ($2::text IS NULL OR criteria = $2)
ORDER BY session_id, criteria_hash, judge_fingerprint, {NEWEST_FIRST}
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


async def add(database: Database, score_id: UUID, label: NewLabel, *, by: str) -> dict[str, Any] | None:
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
        kept = await connection.fetchrow(database.sql(ADD), score_id, by, *said, RANDOM_A_DAY)
        if kept is None:
            return None
        about = {"session_id": kept["session_id"], "score_id": score_id}
        await audit.record(database, connection, "label", by=by, **about)
        return dict(kept)

    return await database.once(work)


async def of_score(database: Database, score_id: UUID, limit: int = MOST_SHOWN) -> list[dict[str, Any]]:
    """A score's labels, newest first. Raises: DatabaseAway."""
    rows = await database.once(lambda c: c.fetch(database.sql(OF_SCORE), score_id, limit))
    return [dict(r) for r in rows]


async def last_labels(database: Database, score_ids: Collection[UUID]) -> dict[UUID, list[dict[str, Any]]]:
    """Each author's last label by score, without the authors' names. Raises: DatabaseAway."""
    rows = await database.once(lambda c: c.fetch(database.sql(LAST_OF_SCORES), list(score_ids)))
    labels = defaultdict[UUID, list[dict[str, Any]]](list)
    for row in rows:
        labels[row["score_id"]].append({name: value for name, value in row.items() if name != "score_id"})
    return labels


# --- trust cards ---------------------------------------------------------------------------------------


async def trust_cards(
    database: Database, criteria: str | None = None, fingerprint: str | None = None
) -> list[TrustCard]:
    """
    A trust card for each judge that has labels, most labels first.

    Args:
        criteria: Only judges under criteria with this name.
        fingerprint: Only the judge with this fingerprint.

    Raises:
        DatabaseAway: See `Database.once`.
    """

    found = await database.once(lambda c: c.fetch(database.sql(COUNTED), criteria, fingerprint))
    rows = [dict(row) for row in found]
    _, bands = await known_criteria(database)
    labels = [label_of(row, bands.get(row["criteria_hash"], DEFAULT_BANDS)) for row in rows]
    cards = await asyncio.to_thread(calibrate, labels, [labelled_score(row) for row in rows], bands)
    return [replace(card, unmatched=0) for card in cards]  # every label is on one judge's score


async def scores_by_judge(
    database: Database, sessions: Sequence[str], criteria: str | None
) -> list[LabelledScore]:
    """
    For each session and each judge that scored it, the latest production score with a total.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    rows = await database.once(lambda c: c.fetch(database.sql(SCORES_BY_JUDGE), sessions, criteria))
    return [labelled_score(dict(r)) for r in rows]


async def known_criteria(database: Database) -> tuple[set[str], dict[str, tuple[Band, ...]]]:
    """Names, and bands by hash, of all criteria that ever judged, configured or not. Raises: DatabaseAway."""
    rows = await database.once(lambda c: c.fetch(database.sql(ALL_CRITERIA)))
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
    return Label(str(row["score_id"]), outcome, number, "random" if row["is_random"] else "picked")

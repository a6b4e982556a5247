"""
Labels of people on scores, and the trust cards of judges that are computed from them.

Laws. Every label is kept with its author and time, and nothing replaces it; of each author the last label on
a score counts. A label counts for a judge only where its score was picked for review, because only then the
probability of its being labelled is known.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from uuid import UUID

from tarsy_scoring.audit import audit
from tarsy_scoring.labels.calibration import (
    OUTCOME_WORDS,
    Calibration,
    Label,
    LabelledScore,
    band_of_label,
    calibrate,
)
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.scores.bands import DEFAULT_BANDS, Band, band_of, bands_of

MOST_SHOWN = 500
CARDS_KEPT = 64
# Only the newest scores of a judge count. So many give an interval of kappa within 0.05, in an eighth of a
# second.
MOST_COUNTED = 400
UNKNOWN = "unknown"  # stands for criteria, hash or judge of a score that names none

SUBJECT = """
SELECT s.score_id, s.session_id, s.status, s.total_score, s.judge_outcome, c.content -> 'bands' AS bands
FROM {schema}.session_scores s LEFT JOIN {schema}.scoring_criteria c USING (criteria_hash) WHERE s.score_id = $1
"""

# The session is locked before its scores, in the order in which an erasure locks them.
LOCK_SESSION = """
SELECT session_id FROM {schema}.sessions
WHERE session_id = (SELECT session_id FROM {schema}.session_scores WHERE score_id = $1) FOR KEY SHARE
"""

ADD = """
INSERT INTO {schema}.score_labels
  (score_id, session_id, scored_under, scored_total, labelled_by, agrees, outcome, number, reason)
SELECT score_id, session_id, criteria_hash, total_score, $2, $3, $4, $5, $6 FROM {schema}.session_scores
WHERE score_id = $1 AND status = 'completed' AND total_score IS NOT NULL FOR KEY SHARE
RETURNING label_id, session_id
"""

_SHOWN = """
SELECT l.label_id, l.score_id, l.session_id, l.labelled_by AS by, l.labelled_at AS at, l.agrees, l.outcome, l.number,
       l.reason, coalesce(p.is_random, false) AS is_random, p.inclusion_probability
FROM {schema}.score_labels l LEFT JOIN {schema}.review_picks p USING (score_id)
"""

LABEL = f"{_SHOWN} WHERE l.label_id = $1"

OF_SCORE = f"{_SHOWN} WHERE l.score_id = $1 ORDER BY l.label_id DESC LIMIT $2"

# The last label of each author on each of these scores, in the order in which they were given.
LAST_OF_SCORES = """
SELECT score_id, labelled_at AS at, agrees, outcome, number, reason FROM (
  SELECT DISTINCT ON (score_id, labelled_by) * FROM {schema}.score_labels WHERE score_id = ANY($1::uuid[])
  ORDER BY score_id, labelled_by, label_id DESC) l
ORDER BY label_id
"""

_OF_JUDGE = f"""($1::text IS NULL OR {{0}}.criteria = $1 OR ($1 = '{UNKNOWN}' AND {{0}}.criteria IS NULL))
  AND ($2::text IS NULL OR {{0}}.judge_fingerprint = $2 OR ($2 = '{UNKNOWN}' AND {{0}}.judge_fingerprint IS NULL))"""
_JUDGEMENT = "total_score, judge_outcome, criteria, criteria_hash, judge_fingerprint"

# The last label of each author on each score, beside the judgement; scores of the newest days first, and of
# each judge as many as count. Labels are matched by score, which stands for the session: a session may have
# several scores of the same judge. Picks hold the judgement, because scores lie far apart.
COUNTED = f"""
WITH picked AS (
  SELECT p.*, row_number() OVER (PARTITION BY criteria, criteria_hash, judge_fingerprint
                                 ORDER BY day DESC, score_id) AS n
  FROM {{schema}}.review_picks p
  WHERE total_score IS NOT NULL AND {_OF_JUDGE.format("p")}
    AND EXISTS (SELECT FROM {{schema}}.score_labels l WHERE l.score_id = p.score_id)
), judged AS (
  SELECT score_id, day, inclusion_probability, {_JUDGEMENT} FROM picked WHERE n <= {MOST_COUNTED}
  UNION ALL
  SELECT score_id, NULL, NULL, {_JUDGEMENT} FROM {{schema}}.session_scores s
  WHERE score_id IN (SELECT l.score_id FROM {{schema}}.score_labels l WHERE NOT EXISTS
                     (SELECT FROM {{schema}}.review_picks p WHERE p.score_id = l.score_id))
    AND status = 'completed' AND total_score IS NOT NULL AND {_OF_JUDGE.format("s")}
)
SELECT DISTINCT ON (day, score_id, labelled_by)
       score_id, score_id::text AS session_id, labelled_by, agrees, outcome, number, inclusion_probability, {_JUDGEMENT}
FROM judged JOIN {{schema}}.score_labels l USING (score_id)
ORDER BY day DESC NULLS LAST, score_id, labelled_by, label_id DESC
"""

BANDS = """
SELECT criteria_hash, content -> 'bands' AS bands FROM {schema}.scoring_criteria WHERE criteria_hash = ANY($1::text[])
"""


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
    """A score to be labelled, with the bands of its criteria, lowest first."""

    score_id: UUID
    session_id: str
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
    return Subject(
        row["score_id"], row["session_id"], row["status"], row["total_score"], bands_of(row["bands"])
    )


def contradicted(outcome: str | None, number: float | None, bands: tuple[Band, ...]) -> Band | None:
    """
    The band that the outcome names, if the number lies outside of it; None: no contradiction.

    Criteria without bands of their own do not define where `correct` begins, so only a number at the other
    end of the scale contradicts the word. The trust card counts such a label by its word.
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
        kept = await connection.fetchrow(database.sql(ADD), score_id, by, *said)
        if kept is None:
            return None
        await audit.record(
            database, connection, "label", by=by, session_id=kept["session_id"], score_id=score_id
        )
        row = await connection.fetchrow(database.sql(LABEL), kept["label_id"])
        assert row is not None
        return dict(row)

    return await database.once(work)


async def of_score(database: Database, score_id: UUID, limit: int = MOST_SHOWN) -> list[dict[str, Any]]:
    """The labels of a score, newest first. Raises: DatabaseAway."""
    rows = await database.once(lambda c: c.fetch(database.sql(OF_SCORE), score_id, limit))
    return [dict(r) for r in rows]


async def last_labels(database: Database, score_ids: Collection[UUID]) -> dict[UUID, list[dict[str, Any]]]:
    """The last label of each author by score, without the names of the authors. Raises: DatabaseAway."""
    rows = await database.once(lambda c: c.fetch(database.sql(LAST_OF_SCORES), list(score_ids)))
    labels = defaultdict[UUID, list[dict[str, Any]]](list)
    for score_id, *label in rows:
        labels[score_id].append(
            dict(zip(("at", "agrees", "outcome", "number", "reason"), label, strict=True))
        )
    return labels


async def fetch_bands(
    database: Database, connection: Connection, hashes: Collection[str]
) -> dict[str, tuple[Band, ...]]:
    """The bands of these criteria by hash, lowest first; unknown hashes are left out."""
    rows = await connection.fetch(database.sql(BANDS), list(hashes))
    return {r["criteria_hash"]: bands_of(r["bands"]) for r in rows}


# --- trust cards ---------------------------------------------------------------------------------------


async def trust_cards(
    database: Database, criteria: str | None = None, fingerprint: str | None = None
) -> list[Calibration]:
    """
    The trust card of each judge that has labels, most labels first. The same labels give the same card.

    Args:
        criteria: Only judges under criteria of this name.
        fingerprint: Only the judge with this fingerprint.

    Raises:
        DatabaseAway: See `Database.once`.
    """

    async def work(connection: Connection) -> tuple[list[Any], dict[str, tuple[Band, ...]]]:
        rows = await connection.fetch(database.sql(COUNTED), criteria, fingerprint)
        return rows, await fetch_bands(database, connection, {r["criteria_hash"] or "" for r in rows})

    rows, bands = await database.once(work)
    by_judge = defaultdict[Any, list[Mapping[str, Any]]](list)
    for row in rows:
        by_judge[row["criteria"], row["criteria_hash"], row["judge_fingerprint"]].append(row)
    cards = [
        # In a thread: the intervals of many labels take an eighth of a second.
        await asyncio.to_thread(card_of, judged, bands.get(criteria_hash, DEFAULT_BANDS))
        for (_, criteria_hash, _), judged in by_judge.items()
    ]
    return sorted(cards, key=lambda c: (-c.matched, c.criteria, c.criteria_hash, c.judge_fingerprint))


async def trust_card_of(
    database: Database, criteria: str, criteria_hash: str, fingerprint: str
) -> Calibration:
    """The card of one judge. Without labels it says how many are needed. Raises: DatabaseAway."""
    for card in await trust_cards(database, criteria, fingerprint):
        if card.criteria_hash == criteria_hash:
            return card
    bands = await database.once(lambda c: fetch_bands(database, c, [criteria_hash]))
    # `calibrate` takes judges from scores, so a judge without a labelled score needs a stand-in.
    judged = LabelledScore("", 0, criteria, criteria_hash, fingerprint)
    return _card((), (judged,), bands.get(criteria_hash, DEFAULT_BANDS))


def card_of(rows: Sequence[Mapping[str, Any]], bands: tuple[Band, ...]) -> Calibration:
    """
    The card of one judge.

    The newest `MOST_COUNTED` scores that were picked for review enter the figures. Labels on scores that were
    not picked are only counted.

    Args:
        rows: Rows of `COUNTED` in their order.
    """
    asked_about = dict.fromkeys(r["score_id"] for r in rows if r["inclusion_probability"] is not None)
    too_old = set(list(asked_about)[MOST_COUNTED:])
    rows = [r for r in rows if r["score_id"] not in too_old]
    scores = {r["score_id"]: labelled_score(r) for r in rows}
    return _card(tuple(label_of(r, bands) for r in rows), tuple(scores.values()), bands)


@lru_cache(maxsize=CARDS_KEPT)
def _card(
    labels: tuple[Label, ...], scores: tuple[LabelledScore, ...], bands: tuple[Band, ...]
) -> Calibration:
    """Compute the card of one judge. All inputs are in the cache key, so no cached card is out of date."""
    [card] = calibrate(labels, scores, {scores[0].criteria_hash: bands})
    return card


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
    probability = row["inclusion_probability"]
    return Label(
        str(row["score_id"]),
        outcome,
        number,
        row["labelled_by"],
        is_random=probability is not None,
        inclusion_probability=1.0 if probability is None else probability,
    )

"""
Sessions that were judged without a reference and, when their cause was known, against one.

How often the two judgements agree shows how well a judge does without the reference. It is no label: the same
judge, or
another model, read the reference, and the senders of references choose the sessions.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tarsy_scoring.labels.calibration import Label, LabelledScore
from tarsy_scoring.labels.labels import fetch_bands, labelled_score
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.scores.bands import DEFAULT_BANDS, Band, band_of
from tarsy_scoring.scores.latest import NEWEST_FIRST, has_no_later, is_completed

# The latest score with a reference of each session, beside the latest one without by each judge under the
# same criteria ($1 name of criteria, $2 fingerprint of the judge without a reference).
PAIRS = f"""
SELECT DISTINCT ON (b.session_id, b.criteria_hash, b.judge_fingerprint)
  b.session_id, b.total_score, b.judge_outcome, b.criteria, b.criteria_hash, b.judge_fingerprint,
  r.total_score AS known_total, r.judge_outcome AS known_outcome
FROM {{schema}}.session_scores r
JOIN {{schema}}.session_scores b ON b.session_id = r.session_id AND b.criteria_hash = r.criteria_hash
WHERE {is_completed("r")} AND r.reference IS NOT NULL AND r.total_score IS NOT NULL
  AND {has_no_later("r", of_its_kind=True)}
  AND {is_completed("b")} AND b.reference IS NULL AND b.total_score IS NOT NULL
  AND ($1::text IS NULL OR b.criteria = $1) AND ($2::text IS NULL OR b.judge_fingerprint = $2)
ORDER BY b.session_id, b.criteria_hash, b.judge_fingerprint, {", ".join(f"b.{c}" for c in NEWEST_FIRST.split(", "))}
"""


@dataclass(frozen=True, slots=True)
class KnownCauses:
    """Number of sessions with both judgements, and of those whose two judgements are in the same band."""

    sessions: int
    agreeing: int


@dataclass(frozen=True, slots=True)
class Pair:
    """A score without a reference, and the band and the total of the score with one."""

    score: LabelledScore
    bands: tuple[Band, ...]
    known_band: str | None
    known_total: int

    @property
    def is_agreeing(self) -> bool:
        """Whether both judgements are in the same band."""
        return self.known_band is not None and self.known_band == self._band

    @property
    def _band(self) -> str | None:
        return _band(self.score.judge_outcome, self.score.total, self.bands)

    @property
    def label(self) -> Label:
        """The judgement with the reference in the place of a label."""
        return Label(self.score.session_id, self.known_band, float(self.known_total), "reference")


async def read_pairs(
    database: Database, criteria: str | None = None, fingerprint: str | None = None
) -> list[Pair]:
    """
    Read the sessions with both judgements.

    Args:
        criteria: Only under criteria of this name.
        fingerprint: Only the judge with this fingerprint.

    Raises:
        DatabaseAway: See `Database.once`.
    """

    async def work(connection: Connection) -> tuple[list[Any], dict[str, tuple[Band, ...]]]:
        rows = await connection.fetch(database.sql(PAIRS), criteria, fingerprint)
        return rows, await fetch_bands(database, connection, {r["criteria_hash"] for r in rows})

    rows, bands_by_hash = await database.once(work)
    pairs = []
    for row in rows:
        bands = bands_by_hash.get(row["criteria_hash"], DEFAULT_BANDS)
        known_band = _band(row["known_outcome"], row["known_total"], bands)
        pairs.append(Pair(labelled_score(row), bands, known_band, row["known_total"]))
    return pairs


async def known_causes(
    database: Database, criteria: str | None = None, fingerprint: str | None = None
) -> dict[tuple[str, str], KnownCauses]:
    """
    The numbers of each judge, by criteria hash and fingerprint; arguments and errors as of `read_pairs`.
    """
    by_judge: defaultdict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair in await read_pairs(database, criteria, fingerprint):
        by_judge[pair.score.criteria_hash, pair.score.judge_fingerprint].append(pair)
    return {
        judge: KnownCauses(len(pairs), sum(p.is_agreeing for p in pairs)) for judge, pairs in by_judge.items()
    }


def _band(stated: str | None, total: float, bands: Sequence[Band]) -> str | None:
    """The band that the judge stated, else that of the total; None: the total is in none."""
    return stated if stated in {b.id for b in bands} else band_of(total, bands)

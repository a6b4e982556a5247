"""
What a total means: the labels on scores of the same kind whose totals are near to it.

Laws. Labels on scores under the same criteria hash and without a reference count. Of these, where there are
enough:
those that were drawn for review alone, because only then the probability of their being labelled is known,
and each is
weighted by the inverse of it; and those of the same judge alone.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from tarsy_scoring.labels.calibration import band_of_label
from tarsy_scoring.labels.labels import BANDS, label_of
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.scores.bands import Band, bands_of
from tarsy_scoring.statistics.proportion import share_of

POINTS = 5  # to either side
FEWEST = 10
MOST_COUNTED = 100  # scores; an interval within 0.1 to either side
KEPT_S = 60.0
MOST_KEPT = 10_000  # totals of judges: at most some MB

# The labels on scores under these criteria ($1) with totals from $3 to $4: first those that were drawn, then
# those of this judge ($2), then the newest. OFFSET 0: labels are found by their score, not all of them read.
NEARBY = f"""
SELECT near.*, l.labelled_by, l.agrees, l.outcome, l.number
FROM (SELECT s.score_id, s.total_score, s.judge_outcome, p.inclusion_probability,
        s.judge_fingerprint IS NOT DISTINCT FROM $2::text AS is_of_judge
      FROM (SELECT DISTINCT score_id FROM {{schema}}.score_labels
            WHERE scored_under = $1::text AND scored_total BETWEEN $3::int AND $4::int) k
      JOIN {{schema}}.session_scores s USING (score_id) LEFT JOIN {{schema}}.review_picks p USING (score_id)
      WHERE s.reference IS NULL
      ORDER BY p.score_id IS NULL, is_of_judge DESC, s.completed_at DESC, s.score_id LIMIT {MOST_COUNTED}) near
CROSS JOIN LATERAL (SELECT * FROM {{schema}}.score_labels l WHERE l.score_id = near.score_id OFFSET 0) l
ORDER BY l.label_id
"""


class LabelsNearby:
    """Reads the object `labels_nearby` of score documents. What it returns is at most `KEPT_S` old."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept: dict[tuple[str, str | None, int], tuple[float, dict[str, Any] | None]] = {}

    async def of(self, score: Mapping[str, Any]) -> dict[str, Any] | None:
        """
        The object for the document of a score; None: it has no total or a reference, or too few labels are
        near.

        Raises:
            DatabaseAway: See `Database.single`.
        """
        total, criteria_hash = score["total_score"], score["criteria_hash"]
        if total is None or criteria_hash is None or score["reference"] is not None:
            return None
        key = (criteria_hash, score["judge_fingerprint"], total)
        now = time.monotonic()
        read_at, found = self._kept.get(key, (None, None))
        if read_at is None or now - read_at >= KEPT_S:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()  # the price is one more read of each total
            found = await self._read(*key)
            self._kept[key] = now, found
        return found

    async def _read(self, criteria_hash: str, fingerprint: str | None, total: int) -> dict[str, Any] | None:
        low, high = max(total - POINTS, 0), min(total + POINTS, 100)
        rows = await self._database.single(NEARBY, criteria_hash, fingerprint, low, high)
        if len(rows) < FEWEST:
            return None
        criteria = await self._database.single(BANDS, [criteria_hash])
        counted = count_labels(
            [dict(row) for row in rows], bands_of(criteria[0]["bands"] if criteria else None)
        )
        return counted and {"from_total": low, "to_total": high} | counted


def count_labels(rows: Sequence[Mapping[str, Any]], bands: tuple[Band, ...]) -> dict[str, Any] | None:
    """
    Count the scores whose label is in the highest band; None: too few have a label in a band.

    Of each author the last label on a score counts, and of several authors the lower median.

    Args:
        rows: Rows of `NEARBY`.
    """
    last = {(row["score_id"], row["labelled_by"]): row for row in rows}
    places = {band.id: place for place, band in enumerate(bands)}
    said: dict[UUID, list[int]] = defaultdict(list)
    for (score_id, _), row in last.items():
        if (band := band_of_label(label_of(row, bands), bands)) is not None:
            said[score_id].append(places[band])
    scores = {row["score_id"]: row for row in rows if row["score_id"] in said}
    drawn = {score_id: row for score_id, row in scores.items() if row["inclusion_probability"] is not None}
    is_drawn = len(drawn) >= FEWEST
    counted = drawn if is_drawn else scores
    of_judge = {score_id: row for score_id, row in counted.items() if row["is_of_judge"]}
    is_of_judge = len(of_judge) >= FEWEST
    counted = of_judge if is_of_judge else counted
    if len(counted) < FEWEST:
        return None
    is_right = {score_id: statistics.median_low(said[score_id]) == len(bands) - 1 for score_id in counted}
    weights = {key: 1 / row["inclusion_probability"] if is_drawn else 1.0 for key, row in counted.items()}
    estimate = share_of([(is_right[key], weight) for key, weight in weights.items()])
    return {
        "labelled": len(counted),
        "right": sum(is_right.values()),
        "band": bands[-1].id,
        "share": estimate.value,
        "share_low": estimate.low,
        "share_high": estimate.high,
        "is_drawn": is_drawn,
        "is_of_judge": is_of_judge,
    }

"""
Sessions where a judge and people say the opposite: one the highest band, the other the lowest.

A session counts by its latest production score without a reference, and by each author's last label.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tarsy_scoring.labels.agreement import wilson
from tarsy_scoring.labels.calibration import Label, verdicts
from tarsy_scoring.labels.labels import counted_labels
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.scores.bands import DEFAULT_BANDS, Band
from tarsy_scoring.scores.latest import latest_of

MOST_LISTED = 500

# The latest score of each session ($1), if it is of the chain $2 and under the criteria $3.
LATEST = f"""
SELECT t.session_id, m.alert_type, s.chain_id, s.score_id, s.total_score, s.failure_tags, s.judge_outcome,
  s.criteria_hash, left(s.score_analysis, 1500) AS analysis
FROM unnest($1::text[]) AS t(session_id) JOIN {{schema}}.sessions m USING (session_id)
CROSS JOIN LATERAL {latest_of("t.session_id", "latest.*", kind="without")} s
WHERE total_score IS NOT NULL AND ($2::text IS NULL OR s.chain_id = $2)
  AND ($3::text IS NULL OR s.criteria = $3)
"""


@dataclass(frozen=True, slots=True)
class Counted:
    """
    Labelled sessions of a chain, or with a failure tag.

    Args:
        is_clear: They disagree more often than chance allows: the interval of the share lies above that of
            all other sessions.
    """

    name: str | None
    labelled: int
    disagreeing: int
    is_clear: bool


@dataclass(frozen=True, slots=True)
class Disagreements:
    """
    The labelled sessions.

    Args:
        sessions: Those on which they disagree, the newest label first, at most `MOST_LISTED`: with `judge`
            and `people` (bands), the beginning of the `analysis`, and `labels` (`by`, `source`, `reason`).
    """

    labelled: int
    disagreeing: int
    by_chain: list[Counted]
    by_tag: list[Counted]
    sessions: list[dict[str, Any]]


async def read_disagreements(
    database: Database,
    chain: str | None = None,
    criteria: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Disagreements:
    """
    Compare judge and people on sessions with a label that was given from `since` to before `until`.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    labels, bands = await counted_labels(database, since, until)
    by_session = defaultdict[str, list[Label]](list)
    for label in labels:
        by_session[label.session_id].append(label)
    rows = await database.rows(LATEST, list(by_session), chain, criteria)
    compared = [
        _compared(dict(row), by_session[row["session_id"]], bands.get(row["criteria_hash"], DEFAULT_BANDS))
        for row in rows
    ]
    placed = [one for one in compared if one is not None]
    opposite = [one for one in placed if one["disagrees"]]
    opposite.sort(key=lambda one: (one["at"], one["session_id"]), reverse=True)
    by_chain = count_disagreements([([one["chain_id"]], one["disagrees"]) for one in placed])
    by_tag = count_disagreements([(one["failure_tags"] or (), one["disagrees"]) for one in placed])
    return Disagreements(len(placed), len(opposite), by_chain, by_tag, opposite[:MOST_LISTED])


def _compared(row: dict[str, Any], labels: Sequence[Label], bands: Sequence[Band]) -> dict[str, Any] | None:
    found = verdicts(labels, row["total_score"], row.pop("judge_outcome"), bands)
    if found is None:
        return None
    people, judge = found
    return row | {
        "at": max(label.at for label in labels if label.at is not None),
        "judge": bands[judge].id,
        "people": bands[people].id,
        "disagrees": abs(people - judge) == len(bands) - 1,
        "labels": [{"by": one.by, "source": one.source, "reason": one.reason} for one in labels],
    }


def count_disagreements(sessions: Sequence[tuple[Collection[str | None], bool]]) -> list[Counted]:
    """
    Count by name; most disagreements first.

    Args:
        sessions: For each session the names, and whether judge and people disagree.
    """
    labelled = Counter(name for names, _ in sessions for name in set(names))
    hits = Counter(name for names, disagrees in sessions if disagrees for name in set(names))
    total = sum(disagrees for _, disagrees in sessions)

    def counted(name: str | None) -> Counted:
        n, k = labelled[name], hits[name]
        is_clear = wilson(k, n)[0] > wilson(total - k, len(sessions) - n)[1]
        return Counted(name, n, k, is_clear)

    return sorted(map(counted, labelled), key=lambda one: (-one.disagreeing, -one.labelled, one.name or ""))

"""Compares each chain's last seven days with the week before: totals, names from judges, worst scores."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from math import sqrt
from statistics import NormalDist
from typing import Any

from tarsy_scoring.analytics.chain_averages import COLUMNS, Sums
from tarsy_scoring.analytics.daily import NAMES, SUMS, Selection, midnight, read_counts
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.scores.bands import DOUBTFUL_FLAGS
from tarsy_scoring.scores.latest import has_no_later, is_completed
from tarsy_scoring.scores.session_list import fetch_planned

DAYS = 7
FALSE_ALARMS = 0.05  # share of quiet weeks in which any chain may show a clear difference
MOST_MOVED, WORST = 3, 2  # per chain
CHAINS_SHOWN = 100
_CANDIDATES = 20  # lowest totals in a week; a later score may have replaced some

# By chain, judge and week; the later week begins on $9.
WEEKS = f"""
SELECT chain_id, judge_fingerprint, day >= $9::date AS is_later, {COLUMNS}
FROM {SUMS} s WHERE NOT by_end GROUP BY 1, 2, 3
"""

# The $10 failure tags and missing tools by chain whose share of the scores moved most.
MOVED = f"""
WITH scores AS (
  SELECT chain_id, sum(scores) FILTER (WHERE day < $9::date)::float8 AS before,
    sum(scores) FILTER (WHERE day >= $9::date)::float8 AS now
  FROM {SUMS} s WHERE NOT by_end GROUP BY 1
), named AS (
  SELECT chain_id, kind, u.name, coalesce(sum(scores) FILTER (WHERE day < $9::date), 0)::int AS before,
    coalesce(sum(scores) FILTER (WHERE day >= $9::date), 0)::int AS now
  FROM {NAMES} n CROSS JOIN LATERAL unnest(n.names) AS u(name) GROUP BY 1, 2, 3
)
SELECT chain_id, kind, name, before, now FROM (
  SELECT n.*, row_number() OVER (
    PARTITION BY n.chain_id ORDER BY abs(n.now / s.now - n.before / s.before) DESC, n.kind, n.name) AS place
  FROM named n JOIN scores s ON n.chain_id IS NOT DISTINCT FROM s.chain_id
  WHERE s.before > 0 AND s.now > 0) m
WHERE place <= $10 ORDER BY place
"""

# The lowest totals in each chain ($1) since $2, without scores that have a flag in $3.
LOWEST = f"""
SELECT c.chain_id, l.score_id, l.session_id, l.total_score, m.alert_type
FROM unnest($1::text[]) AS c(chain_id) CROSS JOIN LATERAL (
  SELECT s.* FROM (
    SELECT s.score_id, s.session_id, s.total_score, s.completed_at, s.reference
    FROM {{schema}}.session_scores s
    WHERE s.chain_id = c.chain_id AND {is_completed("s")} AND s.completed_at >= $2 AND s.reference IS NULL
      AND s.total_score IS NOT NULL AND NOT s.flags ?| $3
    ORDER BY s.total_score, s.completed_at DESC LIMIT {_CANDIDATES}) s
  WHERE {has_no_later("s", of_its_kind=True)}
  ORDER BY s.total_score, s.completed_at DESC LIMIT {WORST}) l
JOIN {{schema}}.sessions m USING (session_id)
ORDER BY l.total_score, l.completed_at DESC
"""


@dataclass(slots=True)
class ChainWeek:
    """
    A chain in both weeks.

    Args:
        moved: Rows of `MOVED` where the difference is clear; elsewhere names move by chance.
        worst: Rows of `LOWEST`.
        difference: Between mean totals under the judge with most totals in both weeks; None: no judge has both.
        reach: Half the interval around it; None: too few totals.
    """

    chain_id: str | None
    now: Sums = field(default_factory=Sums)
    before: Sums = field(default_factory=Sums)
    difference: float | None = None
    reach: float | None = None
    moved: list[Mapping[str, Any]] = field(default_factory=list)
    worst: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def is_clear(self) -> bool:
        """Whether the difference is more than normal variation."""
        return self.difference is not None and self.reach is not None and abs(self.difference) > self.reach


@dataclass(frozen=True, slots=True)
class Week:
    """The chains, those with most scores first. `since` begins the later week, which ends today."""

    since: date
    chains: Sequence[ChainWeek]

    @property
    def silent(self) -> list[ChainWeek]:
        """Chains with scores in the week before and none since."""
        return [chain for chain in self.chains if not chain.now.scores]

    @property
    def fallen(self) -> list[ChainWeek]:
        """Chains that got clearly worse, the largest fall first."""
        fallen = [chain for chain in self.chains if chain.is_clear and (chain.difference or 0) < 0]
        return sorted(fallen, key=lambda chain: chain.difference or 0)


async def read_week(database: Database, today: date) -> Week:
    """Read the week that ends today and the week before. Raises: DatabaseAway."""
    since = today - timedelta(days=DAYS - 1)
    both = Selection(since=midnight(since - timedelta(days=DAYS)))
    weeks, moved = await read_counts(database, both, (WEEKS, (since,)), (MOVED, (since, MOST_MOVED)))
    chains = compare_weeks(weeks)
    by_id = {chain.chain_id: chain for chain in chains[:CHAINS_SHOWN]}
    for row in moved:
        if row["chain_id"] in by_id and by_id[row["chain_id"]].is_clear:
            by_id[row["chain_id"]].moved.append(row)
    names = [name for name in by_id if name is not None]
    for row in await fetch_planned(database, LOWEST, names, midnight(since), sorted(DOUBTFUL_FLAGS)):
        by_id[row["chain_id"]].worst.append(row)
    return Week(since, chains)


def compare_weeks(rows: Iterable[Mapping[str, Any]]) -> list[ChainWeek]:
    """Chains from `WEEKS` rows, with their differences; those with most scores first."""
    chains: dict[str | None, ChainWeek] = {}
    judges = defaultdict[tuple[str | None, str | None], list[Sums]](lambda: [Sums(), Sums()])
    for row in rows:
        sums = Sums.of_row(row)
        chain = chains.setdefault(row["chain_id"], ChainWeek(row["chain_id"]))
        judges[row["chain_id"], row["judge_fingerprint"]][row["is_later"]] = sums
        if row["is_later"]:
            chain.now += sums
        else:
            chain.before += sums
    _compare_judges(chains, judges)
    return sorted(chains.values(), key=lambda c: (-c.now.scores, -c.before.scores, c.chain_id or ""))


def _compare_judges(
    chains: Mapping[str | None, ChainWeek], judges: Mapping[tuple[str | None, str | None], list[Sums]]
) -> None:
    """Set each chain's difference by the judge with most totals in both weeks."""
    in_both = [(key[0], before, now) for key, (before, now) in judges.items() if before.totals and now.totals]
    # Bonferroni: with an interval for each chain alone, one of twenty quiet chains would differ every week.
    z = NormalDist().inv_cdf(1 - FALSE_ALARMS / 2 / max(1, len({chain_id for chain_id, _, _ in in_both})))
    for chain_id, before, now in sorted(in_both, key=lambda one: min(one[1].totals, one[2].totals)):
        chain = chains[chain_id]
        chain.difference = now.points / now.totals - before.points / before.totals
        chain.reach = None  # one total says nothing about the variance
        if before.totals > 1 and now.totals > 1:
            chain.reach = z * sqrt(_squared_error(before) + _squared_error(now))


def _squared_error(sums: Sums) -> float:
    """Variance for the mean."""
    variance = (sums.squares - sums.points**2 / sums.totals) / (sums.totals - 1)
    return max(0.0, variance) / sums.totals

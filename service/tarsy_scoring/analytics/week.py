"""
The last seven days of each chain beside the seven days before.

A session counts once, by its latest completed score without a reference, on the day of that score, as on the
page of
trends. Figures are read from the rollups.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from tarsy_scoring.analytics.analytics import Selection, count
from tarsy_scoring.analytics.rollups import FIGURES_SINCE, chain_figures, count_totals_by_chain
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.scores.bands import DEFAULT_BANDS
from tarsy_scoring.statistics.change import Change, Moments, chance_of_change, change_of_moments
from tarsy_scoring.timeline.text import cut

DAYS = 7
CLEAR_POINTS = 5.0  # if chance alone may hide a larger difference, scores are too few to tell
NAME_SHOWN = 80  # characters
NAMED = 3  # chains that the first sentence names
FALSE_ALARMS = 0.05  # share of quiet weeks in which any chain may be marked as better or worse
_DEFAULT_RIGHT = DEFAULT_BANDS[-1].low

# By chain, criteria, judge and week ($10: the first day of the later week).
FIGURES = f"""
SELECT chain_id, criteria, judge_fingerprint, day >= $10::date AS is_later, min(day) AS first_day,
       sum(scores)::bigint AS scores, sum(outcomes)::bigint AS outcomes, sum(passed)::bigint AS passed,
       sum(judging_usd)::float8 AS judging_usd, sum(judging_costs)::bigint AS judging_costs
FROM ({chain_figures("latest", "without")}) f GROUP BY 1, 2, 3, 4 HAVING sum(scores) <> 0
"""

# Number, sum and sum of squares of the totals, and the number of right ones: those from the lowest total of
# the highest band on ($11 criteria, $12 lowest totals; $13 for other criteria).
TOTALS = f"""
SELECT t.chain_id, t.criteria, t.judge_fingerprint, t.day >= $10::date AS is_later, sum(t.number)::bigint AS n,
       sum(t.number * t.total)::float8 AS sum, sum(t.number * t.total * t.total)::float8 AS squares,
       coalesce(sum(t.number) FILTER (WHERE t.total >= coalesce(b.low, $13)), 0)::bigint AS correct
FROM ({count_totals_by_chain()}) t LEFT JOIN unnest($11::text[], $12::int[]) AS b(criteria, low) USING (criteria)
GROUP BY 1, 2, 3, 4 HAVING sum(t.number) > 0
"""


@dataclass(slots=True)
class Figures:
    """Sums over the scores of a week."""

    scores: int = 0
    outcomes: int = 0
    passed: int = 0
    judging_usd: float = 0.0
    judging_costs: int = 0
    totals: Moments = field(default_factory=Moments)
    correct: int = 0

    @property
    def right_share(self) -> float | None:
        """Share of totals in the highest band of their criteria."""
        return self.correct / self.totals.n if self.totals.n else None

    @property
    def left_out(self) -> int:
        """Number of scores that are not in `totals`: without a total, or with a doubtful one."""
        return self.scores - self.totals.n

    @property
    def passed_share(self) -> float | None:
        """Share of the scores with an outcome that passed."""
        return self.passed / self.outcomes if self.outcomes else None

    @property
    def cost_usd(self) -> float | None:
        """Cost of judging; None: unknown for every score."""
        return self.judging_usd if self.judging_costs else None

    def add(self, other: "Figures") -> None:
        """Add the scores of another judge."""
        for name in ("scores", "outcomes", "passed", "judging_usd", "judging_costs", "correct"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.totals = self.totals + other.totals


@dataclass(slots=True)
class ChainWeek:
    """
    A chain in both weeks.

    Args:
        change: Of the mean total, under the judge with most scores in both weeks; None: no judge has both.
        compared: The totals of this judge, those of the week before first.
        judge: Its fingerprint.
        judged: Number of its scores in both weeks, also of those without a total.
        is_marked: Whether the change is more than chance gives, all chains of the page considered.
        new_judges: Name of the criteria and first day of each judge that gave scores in the later week alone.
    """

    chain_id: str | None
    now: Figures = field(default_factory=Figures)
    before: Figures = field(default_factory=Figures)
    change: Change | None = None
    compared: tuple[Moments, Moments] = (Moments(), Moments())
    judge: str | None = None
    judged: tuple[int, int] = (0, 0)
    is_marked: bool = False
    new_judges: list[tuple[str | None, date]] = field(default_factory=list)

    @property
    def points(self) -> float:
        """
        Mean total of the judge of `change` in the later week less that of the week before; 0 without one.
        """
        before, now = (moments.mean for moments in self.compared)
        return 0.0 if before is None or now is None else now - before

    @property
    def is_too_few(self) -> bool:
        """Whether chance alone may hide a difference of `CLEAR_POINTS`."""
        reach = self.change.estimate.half_width if self.change else None
        return not self.is_marked and (reach is None or reach > CLEAR_POINTS)

    @property
    def means_in_words(self) -> str:
        """Mean totals of the compared scores of both weeks, the earlier first."""
        return " to ".join(f"{moments.mean or 0.0:.1f}" for moments in self.compared)

    @property
    def numbers_in_words(self) -> str:
        """Numbers of the compared scores of both weeks, the earlier first."""
        return "{:,} and {:,} scores".format(*(moments.n for moments in self.compared))

    @property
    def in_words(self) -> str:
        """The later week in one sentence, with its difference from the week before."""
        if not self.now.scores:
            return f"No score; {self.before.scores:,} the week before"
        left_out = f" ({self.now.left_out:,} left out)" if self.now.left_out else ""
        parts = [f"{self.now.scores:,} {'score' if self.now.scores == 1 else 'scores'}{left_out}"]
        if (share := self.now.right_share) is not None:
            parts.append(f"{100 * share:.0f} % right")
        return ", ".join([*parts, self._compared])

    @property
    def _compared(self) -> str:
        if not self.before.scores:
            return "none the week before"
        if self.change is None:
            why = "another judge" if self.new_judges else "no judge has totals in both"
            return f"not comparable with the week before: {why}"
        if self.is_marked:
            return f"{abs(self.points):.1f} points {'higher' if self.points > 0 else 'lower'} than the week before"
        reach = self.change.estimate.half_width
        if reach is None:
            return f"too few to tell a difference from the week before ({self.numbers_in_words})"
        return f"no clear difference from the week before: chance alone gives up to {reach:.0f} points"


@dataclass(frozen=True, slots=True)
class Week:
    """
    The chains, those with most scores first.

    Args:
        since: First day of the later week, which ends today.
    """

    since: date
    chains: list[ChainWeek]

    @property
    def silent(self) -> list[ChainWeek]:
        """Chains with scores in the week before and none since."""
        return [chain for chain in self.chains if not chain.now.scores]

    @property
    def fallen(self) -> list[ChainWeek]:
        """Chains that got worse, the largest fall first; if none did, the chain with the largest fall."""
        falls = sorted(
            (chain for chain in self.chains if round(chain.points, 1) < 0), key=lambda chain: chain.points
        )
        return [chain for chain in falls if chain.is_marked] or falls[:1]

    @property
    def in_words(self) -> str:
        """Whether a chain got worse, in one sentence or two; empty without a score in both weeks."""
        both = [chain for chain in self.chains if chain.now.scores and chain.before.scores]
        others = [chain for chain in both if chain.change is None]
        if not both:
            return ""
        if len(others) == len(both):
            return "No chain can be compared with its week before: no judge has totals in both."
        left = (
            f" {len(others):,} more cannot be compared: no judge has totals in both weeks." if others else ""
        )
        return _worst(self.fallen) + left


async def read_week(database: Database, right_from: Mapping[str, int], today: date) -> Week:
    """
    Read the week that ends today and the week before.

    Args:
        right_from: Lowest total of the highest band by name of criteria; other criteria have that of the
            badges.
        today: In UTC.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    since = today - timedelta(days=DAYS - 1)
    both = Selection(since=_midnight(since - timedelta(days=DAYS)))
    bands = (since, list(right_from), list(right_from.values()), _DEFAULT_RIGHT)
    # One after the other: a page that holds several connections at once would take them from other pages.
    [figures] = await count(database, both, (FIGURES, (since,)), filled=FIGURES_SINCE)
    [totals] = await count(database, both, (TOTALS, bands))
    return Week(since, combine(figures, totals))


def combine(figures: Iterable[Mapping[str, Any]], totals: Iterable[Mapping[str, Any]]) -> list[ChainWeek]:
    """Chains from rows of `FIGURES` and `TOTALS`, those with most scores first, with their changes."""
    judges: defaultdict[tuple[Any, Any, Any], tuple[Figures, Figures]] = defaultdict(
        lambda: (Figures(), Figures())
    )
    first_days: dict[tuple[Any, Any, Any], date] = {}
    for row in figures:
        judge, sums = _judge(row), judges[_judge(row)][row["is_later"]]
        for name in ("scores", "outcomes", "passed", "judging_usd", "judging_costs"):
            setattr(sums, name, row[name])
        if row["is_later"]:
            first_days[judge] = row["first_day"]
    for row in totals:
        sums = judges[_judge(row)][row["is_later"]]
        sums.totals, sums.correct = Moments(row["n"], row["sum"], row["squares"]), row["correct"]
    chains: dict[str | None, ChainWeek] = {}
    pairs: defaultdict[str | None, list[tuple[str | None, Figures, Figures]]] = defaultdict(list)
    for judge, (before, now) in judges.items():
        chain = chains.setdefault(judge[0], ChainWeek(judge[0]))
        chain.before.add(before)
        chain.now.add(now)
        if before.totals.n and now.totals.n:
            pairs[judge[0]].append((judge[2], before, now))
        if now.scores and not before.scores:
            chain.new_judges.append((judge[1], first_days[judge]))
    for chain in chains.values():
        chain.new_judges = sorted(chain.new_judges, key=lambda new: new[1]) if chain.before.scores else []
        if pairs[chain.chain_id]:
            most = max(pairs[chain.chain_id], key=lambda pair: min(pair[1].totals.n, pair[2].totals.n))
            chain.judge, before, now = most
            chain.compared, chain.judged = (before.totals, now.totals), (before.scores, now.scores)
            chain.change = change_of_moments(*chain.compared, 1 - FALSE_ALARMS)
    _mark(list(chains.values()))
    return sorted(chains.values(), key=lambda c: (-c.now.scores, -c.before.scores, c.chain_id or ""))


def _worst(fallen: Sequence[ChainWeek]) -> str:
    if not fallen:
        return "No chain got worse: no mean total fell."
    one = fallen[0]
    if not one.is_marked:
        why = "too few to tell" if one.is_too_few else "no more than chance gives"
        fall = f"{short_name(one)}, {one.means_in_words} ({one.numbers_in_words}: {why})"
        return f"No chain got clearly worse; the largest fall is {fall}."
    named = [f"{short_name(c)}, {c.means_in_words} ({c.numbers_in_words})" for c in fallen[:NAMED]]
    more = [f"{len(fallen) - NAMED:,} more"] if len(fallen) > NAMED else []
    return f"{len(fallen):,} {'chain' if len(fallen) == 1 else 'chains'} got worse: {'; '.join([*named, *more])}."


def short_name(chain: ChainWeek) -> str:
    """The name of a chain for a sentence."""
    return cut(chain.chain_id or "scores without a chain", NAME_SHOWN)


def _mark(chains: Iterable[ChainWeek]) -> None:
    # Bonferroni: with a limit for each chain alone, one of twenty quiet chains would be marked every week.
    compared = [
        (c, c.change) for c in chains if c.change is not None and c.change.estimate.standard_error is not None
    ]
    for chain, change in compared:
        chain.is_marked = chance_of_change(change) < FALSE_ALARMS / len(compared)


def _judge(row: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    return row["chain_id"], row["criteria"], row["judge_fingerprint"]


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)

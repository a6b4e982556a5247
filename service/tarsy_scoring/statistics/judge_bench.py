"""
Describes how one judge, a criteria at a provider, scored sessions whose outcome is known.

A number that the judgements do not support is None.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tarsy_scoring.statistics.agreement import Estimate
from tarsy_scoring.statistics.discrimination import Case, Misranked, auc, auc_difference, misranked
from tarsy_scoring.statistics.known_outcomes import KnownOutcome

SPEARMAN_METHOD = "Spearman with midranks"
FEWEST_FOR_A_CORRELATION = 3


@dataclass(frozen=True, slots=True)
class Sample:
    """
    One judgement of a session.

    Args:
        total: None without a score; `reason` then says why.
        checked, held: Citations that were checked, and those that hold.
        cost_usd: None where it is unknown.
        seconds: Time in which the provider answered.
    """

    total: int | None
    reason: str | None = None
    checked: int = 0
    held: int = 0
    cost_usd: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class JudgedSession:
    """
    A session with all samples of one judge.

    Its `total` is the lower median of the samples, as in a stored score; None without any.
    """

    known: KnownOutcome
    samples: Sequence[Sample]

    @property
    def totals(self) -> list[int]:
        """The totals of the samples that have one."""
        return [s.total for s in self.samples if s.total is not None]

    @property
    def total(self) -> int | None:
        return statistics.median_low(self.totals) if self.totals else None

    @property
    def reason(self) -> str | None:
        """Why the session has no total; None where it has one."""
        return None if self.totals else next((s.reason for s in self.samples if s.reason), None)


@dataclass(frozen=True, slots=True)
class Citations:
    """Citations of all judgements, and the share (0-1) that holds."""

    checked: int
    held: int
    share: float | None


@dataclass(frozen=True, slots=True)
class ShownSession:
    """A judged session as the report lists it."""

    session_id: str
    source: str
    incident: str
    outcome: str
    total: int | None
    totals: Sequence[int]
    reason: str | None


@dataclass(frozen=True, slots=True)
class JudgeReport:
    """
    What the judgements of one judge show.

    Args:
        n_unscored: Sessions without a score, which count as misranked.
        auc_within: AUC over pairs of one source.
        auc_pooled: AUC over all pairs.
        standard_deviation: Of the totals of sessions.
        sample_deviation: Of repeated judgements of one session, pooled over sessions.
        distinct_totals: How many different totals occur, of 101.
        agreement: Rank correlation of totals with the scores of the labels.
        cost_usd: Mean cost of a score whose cost is known.
        seconds: Mean time of a score.
        misranked: Sessions that lose pairs of one source.
    """

    n: int
    n_right: int
    n_wrong: int
    n_unscored: int
    auc_within: Estimate
    auc_pooled: Estimate
    mean_right: float | None
    mean_wrong: float | None
    standard_deviation: float | None
    sample_deviation: float | None
    lowest: int | None
    highest: int | None
    distinct_totals: int
    agreement: Estimate
    citations: Citations
    cost_usd: float | None
    n_cost_unknown: int
    seconds: float | None
    misranked: Sequence[Misranked]
    sessions: Sequence[ShownSession]


@dataclass(frozen=True, slots=True)
class Difference:
    """The AUC of the second judge minus that of the first, over the same sessions."""

    within: Estimate
    pooled: Estimate


def describe(sessions: Sequence[JudgedSession]) -> JudgeReport:
    """Describe the judgements of one judge. Every session has the outcome `right` or `wrong`."""
    cases = cases_of(sessions)
    totals = [s.total for s in sessions if s.total is not None]
    of_right, of_wrong = (
        [c.total for c in cases if c.is_right is w and c.total is not None] for w in (True, False)
    )
    samples = [sample for s in sessions for sample in s.samples]
    scored = [sample for sample in samples if sample.total is not None]
    costs = [sample.cost_usd for sample in scored if sample.cost_usd is not None]
    checked, held = sum(s.checked for s in samples), sum(s.held for s in samples)
    outcomes = Counter(s.known.outcome for s in sessions)
    return JudgeReport(
        n=len(sessions),
        n_right=outcomes["right"],
        n_wrong=outcomes["wrong"],
        n_unscored=len(sessions) - len(totals),
        auc_within=auc(cases, within_source=True),
        auc_pooled=auc(cases, within_source=False),
        mean_right=_mean(of_right),
        mean_wrong=_mean(of_wrong),
        standard_deviation=statistics.stdev(totals) if len(totals) > 1 else None,
        sample_deviation=_pooled_deviation([s.totals for s in sessions]),
        lowest=min(totals, default=None),
        highest=max(totals, default=None),
        distinct_totals=len(set(totals)),
        agreement=_agreement(sessions),
        citations=Citations(checked, held, held / checked if checked else None),
        cost_usd=_mean(costs),
        n_cost_unknown=len(scored) - len(costs),
        seconds=_mean([sample.seconds for sample in scored]),
        misranked=misranked(cases, within_source=True),
        sessions=[_shown(s) for s in sessions],
    )


def difference(first: Sequence[JudgedSession], second: Sequence[JudgedSession]) -> Difference:
    """Compare two judges over the same sessions."""
    cases = cases_of(first), cases_of(second)
    return Difference(auc_difference(*cases, within_source=True), auc_difference(*cases, within_source=False))


def cases_of(sessions: Iterable[JudgedSession]) -> list[Case]:
    """The sessions as pairs are formed of them."""
    return [
        Case(s.known.session_id, s.known.outcome == "right", s.total, s.known.source, s.known.incident)
        for s in sessions
    ]


def _shown(session: JudgedSession) -> ShownSession:
    known = session.known
    return ShownSession(
        known.session_id,
        known.source,
        known.incident,
        known.outcome,
        session.total,
        session.totals,
        session.reason,
    )


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _pooled_deviation(groups: Iterable[Sequence[int]]) -> float | None:
    """Standard deviation within groups: the root of their variances, weighted by their degrees of freedom."""
    repeated = [totals for totals in groups if len(totals) > 1]
    freedom = sum(len(totals) - 1 for totals in repeated)
    if not freedom:
        return None
    return math.sqrt(sum(statistics.variance(totals) * (len(totals) - 1) for totals in repeated) / freedom)


def _agreement(sessions: Iterable[JudgedSession]) -> Estimate:
    """Rank correlation of totals with the scores of labels, over the sessions that have both."""
    pairs = [(s.total, s.known.score) for s in sessions if s.total is not None and s.known.score is not None]
    n, reason = len(pairs), None
    if not pairs:
        reason = "no session has a total and a score of its label"
    elif n < FEWEST_FOR_A_CORRELATION:
        reason = f"{n} sessions cannot be ranked against each other; it takes {FEWEST_FOR_A_CORRELATION}"
    elif any(len(set(side)) == 1 for side in zip(*pairs, strict=True)):
        reason = "one side gives every session the same value, which ranks nothing"
    if reason:
        return Estimate(None, None, None, n, None, SPEARMAN_METHOD, reason)
    from scipy import stats

    value = float(stats.spearmanr(*zip(*pairs, strict=True)).statistic)
    return Estimate(value, None, None, n, None, SPEARMAN_METHOD)

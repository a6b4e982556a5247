"""
Compares the sessions of two versions metric by metric: totals, outcomes and how the agents worked.

Where anchors measure how much the judges differ, that part is subtracted. The data is observational:
incidents were not assigned to versions at random, so the version is only one explanation of a difference.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tarsy_scoring.scores.bands import DOUBTFUL_FLAGS
from tarsy_scoring.statistics.agreement import CONFIDENCE, Estimate
from tarsy_scoring.statistics.change import change_within, weighted_change
from tarsy_scoring.statistics.drift import AnchorJudgement
from tarsy_scoring.statistics.judge_alignment import (
    Gap,
    JudgeOnScale,
    Parts,
    align_judges,
    find_gap,
    take_apart,
)
from tarsy_scoring.statistics.pairing import (
    FEWEST_FOR_AN_INTERVAL,
    FEWEST_IN_A_STRATUM,
    Fingerprint,
    Pairing,
    Stratum,
    Value,
    pair_values,
)
from tarsy_scoring.statistics.sentences import sentence

Verdict = Literal["higher", "lower", "no difference shown", "too few"]
PLAIN_METHOD = "plain difference"
Kind = Literal["total", "outcome", "interaction"]
Sides = tuple[Sequence[Value], Sequence[Value]]


@dataclass(frozen=True, slots=True)
class ScoredSession:
    """The compared fields of a session: the value of its label and its latest score, named as in the score
    document.
    """

    value: str
    chain_id: str | None
    alert_type: str | None
    total_score: int | None
    interaction: Mapping[str, Any] | None
    judge_fingerprint: str | None
    flags: Collection[str]
    outcome: str | None


@dataclass(frozen=True, slots=True)
class Metric:
    """
    A number of every session.

    Args:
        allowed_chance: Significance level: the share of comparisons of equal versions in which the metric may
            show a difference.
    """

    name: str
    kind: Kind
    allowed_chance: float

    def of(self, session: ScoredSession) -> float | None:
        """The session's number; None without one, and for doubtful totals."""
        if self.kind == "total":
            return None if DOUBTFUL_FLAGS.intersection(session.flags) else session.total_score
        if self.kind == "outcome":
            return None if session.outcome is None else float(session.outcome == "pass")
        found = (session.interaction or {}).get(self.name)
        return found if isinstance(found, int | float) and not isinstance(found, bool) else None

    def values(self, sessions: Sequence[ScoredSession]) -> list[Value]:
        """The number of each session that has one, with the judge if the metric depends on it."""
        is_judged = self.kind != "interaction"
        return [
            Value(number, s.judge_fingerprint if is_judged else None, (s.chain_id, s.alert_type))
            for s in sessions
            if (number := self.of(s)) is not None
        ]


# Family-wise error rate of all eight metrics. Half of it goes to the total score, the main question; the
# others share the other half.
FALSE_ALARMS = 0.05
_OTHERS = (
    "error_rate",
    "retry_rate",
    "first_try_success_rate",
    "iteration_ratio",
    "total_commands",
    "help_invocations",
)
_SHARE = FALSE_ALARMS / 2 / (1 + len(_OTHERS))
TOTAL = Metric("total_score", "total", FALSE_ALARMS / 2)
METRICS = (
    TOTAL,
    Metric("pass_share", "outcome", _SHARE),
    *(Metric(name, "interaction", _SHARE) for name in _OTHERS),
)


@dataclass(frozen=True, slots=True)
class Side:
    """
    One version's sessions in one metric.

    Args:
        n: Sessions that have the metric; `mean` is over all of them.
        compared: Sessions that the verdict rests on; the others have no counterpart in the other version.
    """

    n: int
    mean: float | None
    compared: int


@dataclass(frozen=True, slots=True)
class MetricComparison:
    """
    One metric of two versions.

    Args:
        difference: Second minus first within strata, which may differ from the difference of the two means.
            Its 95 % interval is not adjusted for the number of metrics; there is none without pairing.
        chance: p-value of the permutation test (see `chance_of`), at least that of the agents' part; None
            when the verdict did not need it.
        is_paired: Whether the difference is within strata of chain and alert type. A difference that is not
            may be due to these alone, so the verdict is `too few`.
        strata: Number of strata that the verdict rests on.
        strata_left_out: Number of strata with too few sessions of one version.
    """

    metric: str
    first: Side
    second: Side
    difference: Estimate
    chance: float | None
    verdict: Verdict
    is_paired: bool
    strata: int
    strata_left_out: int


@dataclass(frozen=True, slots=True)
class Judge:
    """
    A judge of compared totals.

    Args:
        totals: Number of totals in each version.
        scale: Fingerprint of the judge on whose scale they are put; its own when anchors connect it with no
            other.
        shift: How much milder it is than that one, in points, measured on anchors.
    """

    fingerprint: Fingerprint
    totals: tuple[int, int]
    scale: Fingerprint
    shift: Estimate


@dataclass(frozen=True, slots=True)
class Comparison:
    """
    Two versions, the older first.

    Args:
        sessions: Number in each version.
        judge_fingerprints: Number of judges of the compared totals.
        judges: These judges, the one with the most totals first.
        parts: The judges' and the agents' part of the difference of totals; `agents` is the difference of
            `total_score`. None when anchors connect no judges, there are too few sessions, or comparing
            within judges has the smaller error.
        doubtful: Number of sessions whose total is left out, see `DOUBTFUL_FLAGS`.
        judge_unknown: Number of sessions whose total names no judge; they count as those of a single judge.
        meaning: What may be concluded and what not, in plain sentences.
    """

    values: tuple[str, str]
    sessions: tuple[int, int]
    judge_fingerprints: int
    judges: tuple[Judge, ...]
    parts: Parts | None
    doubtful: int
    judge_unknown: int
    metrics: tuple[MetricComparison, ...]
    meaning: tuple[str, ...]


def compare_versions(
    sessions: Sequence[ScoredSession],
    values: tuple[str, str],
    anchors: Collection[AnchorJudgement] = (),
    *,
    resamples: int = 2_000,
) -> Comparison:
    """
    Compare the sessions of two label values, metric by metric.

    Sessions of other values are ignored. The result does not depend on the order of sessions or anchors.
    """
    first, second = ([s for s in sessions if s.value == value] for value in values)
    by_side = [Counter(v.judge for v in TOTAL.values(side)) for side in (first, second)]
    totals = by_side[0] + by_side[1]
    scales = align_judges(totals, anchors)
    judges = tuple(
        Judge(name, (by_side[0][name], by_side[1][name]), scales[name].scale, scales[name].shift.estimate)
        for name in sorted(totals, key=lambda name: (-totals[name], name or ""))
    )
    total, parts = _compare_totals(first, second, scales, resamples)
    found = (total, *(_compare(metric, first, second, resamples) for metric in METRICS[1:]))
    both = [*first, *second]
    by_chain = [(s.chain_id, s.judge_fingerprint) for s in both if TOTAL.of(s) is not None]
    doubtful = sum(s.total_score is not None and not DOUBTFUL_FLAGS.isdisjoint(s.flags) for s in both)
    judge_unknown = sum(TOTAL.of(s) is not None and s.judge_fingerprint is None for s in both)
    meaning = (
        _result(values, found),
        *_meaning_of_the_left_out(found, doubtful, judge_unknown),
        *_caveats(found),
        *_meaning_of_judges(judges, total, parts, find_gap(by_chain, scales, anchors)),
    )
    sizes = len(first), len(second)
    return Comparison(values, sizes, len(judges), judges, parts, doubtful, judge_unknown, found, meaning)


# --- one metric ----------------------------------------------------------------------------------------


def _compare(
    metric: Metric, first: Sequence[ScoredSession], second: Sequence[ScoredSession], resamples: int
) -> MetricComparison:
    values = metric.values(first), metric.values(second)
    pairing = pair_values(*values)
    return _metric_comparison(metric, values, pairing, pairing.strata(), resamples)


def _compare_totals(
    first: Sequence[ScoredSession],
    second: Sequence[ScoredSession],
    scales: Mapping[Fingerprint, JudgeOnScale],
    resamples: int,
) -> tuple[MetricComparison, Parts | None]:
    """Compare totals on the scales that anchors give, with the parts; or within judges, without parts."""
    values = TOTAL.values(first), TOTAL.values(second)
    within, across = pair_values(*values), pair_values(*values, lambda judge: scales[judge].scale)
    if across.is_fine and any(judge.scale != name for name, judge in scales.items()):
        parts = take_apart(across, scales)
        if not _is_surer(within, parts):
            strata = across.strata(lambda v: v.number - scales[v.judge].points)
            return _metric_comparison(TOTAL, values, across, strata, resamples, parts), parts
    return _metric_comparison(TOTAL, values, within, within.strata(), resamples), None


def _is_surer(within: Pairing, parts: Parts) -> bool:
    """
    Whether comparing within judges has the smaller standard error, as when both versions met both judges.

    Choosing by standard errors does not bias the difference, because they do not depend on it.
    """
    if not within.is_fine:
        return False
    error = change_within(within.strata(), CONFIDENCE).estimate.standard_error
    return (error or 0.0) <= (parts.agents.standard_error or 0.0)


def _metric_comparison(
    metric: Metric,
    values: Sides,
    pairing: Pairing,
    strata: Sequence[Stratum],
    resamples: int,
    parts: Parts | None = None,
) -> MetricComparison:
    """
    Compare one metric within strata; with `parts`, the difference is the agents' part.

    Interval and permutation test must both show a difference: unequal variances can mislead the permutation
    test, unequal sizes of skewed groups the interval. The permutation test ignores the anchors' error, so
    with parts the larger of the two p-values counts.
    """
    from tarsy_scoring.statistics.bootstrap import chance_of, estimate_difference

    first, second = (_side(v, compared) for v, compared in zip(values, pairing.compared, strict=True))
    if not pairing.is_fine:
        value = weighted_change(strata) if strata else None
        why = _why_nothing(metric, first, second, strata)
        difference = Estimate(value, None, None, sum(pairing.sizes), None, PLAIN_METHOD, why)
        return MetricComparison(
            metric.name, first, second, difference, None, "too few", False, 0, pairing.left_out
        )
    difference = parts.agents if parts else estimate_difference(strata, resamples=resamples)
    chance: float | None = None
    verdict: Verdict = "no difference shown"
    if difference.low is None or difference.high is None or not difference.low <= 0 <= difference.high:
        chance = max(chance_of(strata, resamples), parts.chance if parts else 0.0)
        if chance <= metric.allowed_chance:
            verdict = "higher" if (difference.value or 0) > 0 else "lower"
    counts = len(pairing.alike), pairing.left_out
    return MetricComparison(metric.name, first, second, difference, chance, verdict, True, *counts)


def _side(values: Sequence[Value], compared: int) -> Side:
    return Side(len(values), math.fsum(v.number for v in values) / len(values) if values else None, compared)


def _why_nothing(metric: Metric, first: Side, second: Side, strata: Sequence[Stratum]) -> str:
    if not (first.n and second.n):
        return "not every version has sessions with this metric"
    if not strata:
        return "no judge scored sessions of both versions; totals of different judges are not compared"
    alike = "chain and alert type" if metric.kind == "interaction" else "chain, alert type and judge"
    return sentence("too_few_alike", alike=alike, each=FEWEST_FOR_AN_INTERVAL, stratum=FEWEST_IN_A_STRATUM)


# --- the result in words -------------------------------------------------------------------------------


def _result(values: tuple[str, str], found: Sequence[MetricComparison]) -> str:
    older, newer = values
    shown = [f"{c.metric} {c.verdict}" for c in found if c.verdict in {"higher", "lower"}]
    if all(c.verdict == "too few" for c in found):
        return sentence("too_few_to_compare")
    return f"{newer!r} against {older!r}: {', '.join(shown)}." if shown else sentence("no_difference")


def _caveats(found: Sequence[MetricComparison]) -> Iterator[str]:
    """The caveats that apply to every result."""
    is_paired = any(c.is_paired for c in found)
    balance = "Strata balance chain and alert type and nothing else" if is_paired else "Nothing balances them"
    yield sentence("not_equal")
    yield sentence("observed", balance=balance)


def _meaning_of_judges(
    judges: Sequence[Judge], total: MetricComparison, parts: Parts | None, gap: Gap | None
) -> Iterator[str]:
    """The judges' part of the difference of totals, or why it is unknown."""
    if parts:
        whole, of_judges, agents = map(_points, (parts.whole, parts.judges, parts.agents))
        yield sentence(
            "parts_of_totals", whole=whole, judges=of_judges, agents=agents, anchors=parts.judges.n
        )
    elif total.is_paired and any(judge.scale != judge.fingerprint for judge in judges):
        yield sentence("within_judges", judges=len(judges))
    if gap:
        fewest = FEWEST_FOR_AN_INTERVAL
        yield sentence("judges_not_connected", judges=len(judges), anchors=gap.anchors, fewest=fewest)
        if gap.missing:
            yield sentence("anchors_missing", missing=gap.missing)
        yield sentence("former_judges")


def _meaning_of_the_left_out(
    found: Sequence[MetricComparison], doubtful: int, judge_unknown: int
) -> Iterator[str]:
    """The sessions that the differences do not rest on."""
    if unpaired := [c.metric for c in found if not c.is_paired and _has_plain_difference(c)]:
        yield sentence("unpaired", metrics=", ".join(unpaired))
    by_loss = defaultdict[tuple[int, int, int], list[str]](list)
    for c in found:
        if c.is_paired and c.strata_left_out:
            by_loss[c.first.n + c.second.n, c.first.compared + c.second.compared, c.strata_left_out].append(
                c.metric
            )
    for (n, compared, strata), metrics in by_loss.items():
        yield sentence(
            "strata_left_out",
            metrics=", ".join(metrics),
            compared=compared,
            n=n,
            percent=100 * compared / n,
            others=n - compared,
            strata=strata,
            fewest=FEWEST_IN_A_STRATUM,
        )
    if doubtful:
        yield sentence("doubtful", doubtful=doubtful)
    if judge_unknown:
        yield sentence("judge_unknown", judge_unknown=judge_unknown)


def _has_plain_difference(c: MetricComparison) -> bool:
    return c.difference.value is not None and min(c.first.n, c.second.n) >= FEWEST_FOR_AN_INTERVAL


def _points(estimate: Estimate) -> str:
    return f"{estimate.value:+.1f} ({estimate.low:+.1f} to {estimate.high:+.1f})"

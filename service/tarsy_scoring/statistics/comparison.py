"""
Two versions of something side by side: metrics and scores of the sessions of each, and what of a difference is shown.

Pure. Where anchors tell how much of a difference of totals is the judges' part, that is taken out. It compares what was
observed: nobody assigned the versions to incidents, so a difference that is shown is a difference between the
sessions, and the version is one explanation of it.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tarsy_scoring.statistics.agreement import CONFIDENCE, Estimate
from tarsy_scoring.statistics.bootstrap import (
    FEWEST_FOR_AN_INTERVAL,
    FEWEST_IN_A_STRATUM,
    RESAMPLES,
    Stratum,
    chance_of,
    estimate_difference,
)
from tarsy_scoring.statistics.changes import change_within, weighted_change
from tarsy_scoring.statistics.drift import AnchorJudgement
from tarsy_scoring.statistics.judge_alignment import Gap, JudgeOnScale, Parts, align_judges, find_gap, take_apart
from tarsy_scoring.statistics.pairing import Fingerprint, Pairing, Value, pair_values

# Totals that contradict themselves, or that somebody may have steered, measure no version.
DOUBTFUL_FLAGS = frozenset({"outcome_score_mismatch", "tampering_suspected"})

Verdict = Literal["higher", "lower", "no difference shown", "too few"]
PLAIN_METHOD = "plain difference"
Kind = Literal["total", "outcome", "interaction"]


@dataclass(frozen=True, slots=True)
class ScoredSession:
    """What is compared of a session: its labels' value and its latest score. The fields are those of the document."""

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
        allowed_chance: Share of comparisons without a difference in which this metric may show one all the same.
    """

    name: str
    kind: Kind
    allowed_chance: float

    def of(self, session: ScoredSession) -> float | None:
        """The session's number; None where it has none, or none that counts."""
        if self.kind == "total":
            return None if DOUBTFUL_FLAGS.intersection(session.flags) else session.total_score
        if self.kind == "outcome":
            return None if session.outcome is None else float(session.outcome == "pass")
        found = (session.interaction or {}).get(self.name)
        return found if isinstance(found, int | float) and not isinstance(found, bool) else None

    def values(self, sessions: Sequence[ScoredSession]) -> list[Value]:
        """The number of each session that has one; the judge is named where it has a part in it."""
        is_judged = self.kind != "interaction"
        return [
            Value(number, s.judge_fingerprint if is_judged else None, (s.chain_id, s.alert_type))
            for s in sessions
            if (number := self.of(s)) is not None
        ]


# Eight looks at the same sessions find something sooner or later. All of them together may, in 5 % of comparisons
# without a difference: half of that goes to the total score, which is the question, the other half to all others.
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
        compared: Those of them that the verdict rests on; the others have nobody to be compared with.
    """

    n: int
    mean: float | None
    compared: int


@dataclass(frozen=True, slots=True)
class MetricComparison:
    """
    One metric of two versions.

    Args:
        difference: Second minus first, within strata, so that it need not be that of the two means. Its 95 % interval
            is for this metric alone; where it is not paired it has none.
        chance: How often shuffling the versions gives a difference as large (see `chance_of`); None where the
            verdict did not need it.
        is_paired: The difference is within strata of chain and alert type. Where it is not, it may be all theirs, and
            the verdict is `too few`.
        strata: That the verdict rests on.
        strata_left_out: That have too few sessions of one version.
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
    Who gave totals that count.

    Args:
        totals: Of each version.
        scale: Fingerprint of the judge on whose scale they are put; its own where anchors connect it with no other.
        shift: By how much it is milder than that one, in points, by anchors.
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
        sessions: Of each.
        judge_fingerprints: How many judges gave the totals that count.
        judges: Each of them, the one with the most totals first.
        parts: What of the difference of totals is whose, `agents` being that of `total_score`. None where anchors
            connect no judges, there are too few sessions, or totals within judges tell it with less error.
        doubtful: Sessions whose total does not count, see `DOUBTFUL_FLAGS`.
        judge_unknown: Sessions whose total names no judge; all of these are taken for those of one.
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
    resamples: int = RESAMPLES,
) -> Comparison:
    """
    Lay the sessions of two label values side by side, metric by metric.

    Sessions of other values are left alone. The order of sessions and of anchors changes nothing.
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
        *_meaning(found),
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
    return _show(metric, values, pairing, pairing.strata(), resamples)


def _compare_totals(
    first: Sequence[ScoredSession],
    second: Sequence[ScoredSession],
    scales: Mapping[Fingerprint, JudgeOnScale],
    resamples: int,
) -> tuple[MetricComparison, Parts | None]:
    """Totals on the scales that anchors give, with what of the difference is whose; or within judges, without that."""
    values = TOTAL.values(first), TOTAL.values(second)
    within, across = pair_values(*values), pair_values(*values, lambda judge: scales[judge].scale)
    if across.is_fine and any(judge.scale != name for name, judge in scales.items()):
        parts = take_apart(across, scales)
        if not _is_surer(within, parts):
            strata = across.strata(lambda v: v.number - scales[v.judge].points)
            return _show(TOTAL, values, across, strata, resamples, parts), parts
    return _show(TOTAL, values, within, within.strata(), resamples), None


def _is_surer(within: Pairing, parts: Parts) -> bool:
    """
    Whether a comparison within judges has less error than one by anchors, as where both versions met both judges.

    Errors know nothing of differences, so that choosing by them leans to no side.
    """
    if not within.is_fine:
        return False
    error = change_within(within.strata(), CONFIDENCE).estimate.standard_error
    return (error or 0.0) <= (parts.agents.standard_error or 0.0)


def _show(
    metric: Metric,
    values: tuple[Sequence[Value], Sequence[Value]],
    pairing: Pairing,
    strata: Sequence[Stratum],
    resamples: int,
    parts: Parts | None = None,
) -> MetricComparison:
    """What is shown of a metric; where there are parts, its difference is the agents'."""
    first, second = (_side(v, compared) for v, compared in zip(values, pairing.compared, strict=True))
    if not pairing.is_fine:
        value = weighted_change(strata) if strata else None
        why = _why_nothing(metric, first, second, strata)
        difference = Estimate(value, None, None, sum(pairing.sizes), None, PLAIN_METHOD, why)
    else:
        difference = parts.agents if parts else estimate_difference(strata, resamples=resamples)
    chance, verdict = _verdict(metric, pairing, strata, difference, resamples, parts)
    shape = pairing.is_fine, len(pairing.alike) if pairing.is_fine else 0, pairing.left_out
    return MetricComparison(metric.name, first, second, difference, chance, verdict, *shape)


def _verdict(
    metric: Metric,
    pairing: Pairing,
    strata: Sequence[Stratum],
    difference: Estimate,
    resamples: int,
    parts: Parts | None,
) -> tuple[float | None, Verdict]:
    """
    The chance of the difference, and what is shown.

    Interval and shuffling must both tell it from none: unequal spreads can mislead the shuffling, unequal sizes of
    skewed groups the interval. Shuffling knows nothing of the anchors' error, so with parts their chance counts too.
    """
    if difference.value is None or not pairing.is_fine:
        return None, "too few"
    if difference.low is not None and difference.high is not None and difference.low <= 0 <= difference.high:
        return None, "no difference shown"
    chance = max(chance_of(strata, resamples), parts.chance if parts else 0.0)
    if chance > metric.allowed_chance:
        return chance, "no difference shown"
    return chance, "higher" if difference.value > 0 else "lower"


def _side(values: Sequence[Value], compared: int) -> Side:
    return Side(len(values), math.fsum(v.number for v in values) / len(values) if values else None, compared)


def _why_nothing(metric: Metric, first: Side, second: Side, strata: Sequence[Stratum]) -> str:
    if not (first.n and second.n):
        return "not every version has sessions with it"
    if not strata:
        return "no judge scored sessions of both; totals of different judges are not compared"
    alike = "chain and alert type" if metric.kind == "interaction" else "chain, alert type and judge"
    return (
        f"too few sessions of both versions share {alike}; it takes {FEWEST_FOR_AN_INTERVAL} of each, and "
        f"{FEWEST_IN_A_STRATUM} of each in every such stratum"
    )


# --- what it means -------------------------------------------------------------------------------------


def _result(values: tuple[str, str], found: Sequence[MetricComparison]) -> str:
    older, newer = values
    shown = [f"{c.metric} {c.verdict}" for c in found if c.verdict in {"higher", "lower"}]
    if all(c.verdict == "too few" for c in found):
        return "There are too few comparable sessions to show anything."
    return f"{newer!r} against {older!r}: {', '.join(shown)}." if shown else "No difference is shown."


def _meaning(found: Sequence[MetricComparison]) -> Iterator[str]:
    """What may be concluded, whatever the result is."""
    yield (
        f"An interval is about its metric alone. With {len(found)} metrics looked at, what is shown is held to more: "
        "where nothing differs, at most about one comparison in twenty shows anything. That is of one look; who looks "
        "until something is shown finds something."
    )
    yield "'No difference shown' does not mean equal: the interval says how large a difference may still be."
    balanced = "Strata balance chain and alert type and nothing else" if any(c.is_paired for c in found) else ""
    yield (
        "These sessions were observed, not assigned: the versions may have met other incidents, at other times. "
        f"{balanced or 'Nothing balances them'}, so a difference goes with the version and need not come of it. It "
        "does where chance chose the version of each session, such as a hash of its id."
    )


def _meaning_of_judges(
    judges: Sequence[Judge], total: MetricComparison, parts: Parts | None, gap: Gap | None
) -> Iterator[str]:
    """What of the difference of totals is the judges', or why nobody can tell."""
    if parts:
        yield (
            f"As stored, totals differ by {_points(parts.whole)}. The judges' part of that is {_points(parts.judges)}, "
            f"as {parts.judges.n} anchors tell that these judges have in common. {_points(parts.agents)} is left to "
            "the agents, and is the difference of total_score. Anchors speak for sessions that are like them."
        )
    elif total.is_paired and any(judge.scale != judge.fingerprint for judge in judges):
        yield (
            f"{len(judges)} judge fingerprints gave these totals, and anchors connect judges. Totals are compared "
            "within judges all the same: both versions met them, so it has less error."
        )
    if gap:
        yield (
            f"{len(judges)} judge fingerprints gave these totals, and anchors do not connect all of one chain: "
            f"{gap.anchors} were judged by both of two, and it takes {FEWEST_FOR_AN_INTERVAL}. Their totals are never "
            "compared with each other."
        )
        if gap.missing:
            yield (
                f"Anchors that only one of these two has judged: {gap.missing}. `tarsy-scoring anchors run` has "
                "today's judge judge those that it has not."
            )
        yield (
            "What a former judge has not judged, nobody can ask it any more: `tarsy-scoring rescore --since TIME` has "
            "its sessions scored by today's, and `tarsy-scoring anchors add` is for the next change."
        )


def _meaning_of_the_left_out(found: Sequence[MetricComparison], doubtful: int, judge_unknown: int) -> Iterator[str]:
    """What the differences do not rest on."""
    if unpaired := [c.metric for c in found if not c.is_paired and _has_plain_difference(c)]:
        yield (
            f"No verdict on {', '.join(unpaired)}: too few sessions of both versions share chain and alert type (and "
            "who judged), so that a difference may be all theirs."
        )
    by_loss = defaultdict[tuple[int, int, int], list[str]](list)
    for c in found:
        if c.is_paired and c.strata_left_out:
            by_loss[c.first.n + c.second.n, c.first.compared + c.second.compared, c.strata_left_out].append(c.metric)
    for (n, compared, strata), metrics in by_loss.items():
        yield (
            f"Compared in {', '.join(metrics)}: {compared} of {n} sessions ({100 * compared / n:.3g} %). Of the others "
            f"a version has fewer than {FEWEST_IN_A_STRATUM} of their kind (chain, alert type, and who judged), and "
            f"nothing is said about them: {n - compared} sessions of {strata} kinds."
        )
    if doubtful:
        yield f"Totals left out because they are flagged as doubtful: {doubtful}."
    if judge_unknown:
        yield f"Totals that name no judge are taken for those of one, which nobody can check: {judge_unknown} sessions."


def _has_plain_difference(c: MetricComparison) -> bool:
    return c.difference.value is not None and min(c.first.n, c.second.n) >= FEWEST_FOR_AN_INTERVAL


def _points(estimate: Estimate) -> str:
    return f"{estimate.value:+.1f} ({estimate.low:+.1f} to {estimate.high:+.1f})"

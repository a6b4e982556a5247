"""
Two versions of something side by side: metrics and scores of the sessions of each, and what of a difference is shown.

Pure. It compares what was observed: nobody assigned the versions to incidents, so a difference that is shown is a
difference between the sessions, and the version is one explanation of it.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tarsy_scoring.evaluation.agreement import Estimate
from tarsy_scoring.evaluation.bootstrap import (
    FEWEST_FOR_AN_INTERVAL,
    FEWEST_IN_A_STRATUM,
    RESAMPLES,
    Stratum,
    chance_of,
    estimate_difference,
    shared_strata,
)

# Totals that contradict themselves, or that somebody may have steered, measure no version.
DOUBTFUL_FLAGS = frozenset({"outcome_score_mismatch", "tampering_suspected"})

Verdict = Literal["higher", "lower", "no difference shown", "too few"]
Kind = Literal["total", "outcome", "interaction"]


@dataclass(frozen=True, slots=True)
class ScoredSession:
    """What is compared of a session: its labels' value and its latest score. The fields are those of the document."""

    value: str
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

    @property
    def pairings(self) -> Sequence[Callable[[ScoredSession], Hashable]]:
        """What makes sessions alike, the finest first; what a judge said is only compared under the same judge."""
        if self.kind == "interaction":
            return (lambda s: s.alert_type), (lambda _: None)
        return (lambda s: (s.judge_fingerprint, s.alert_type)), (lambda s: s.judge_fingerprint)


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
METRICS = (
    Metric("total_score", "total", FALSE_ALARMS / 2),
    Metric("pass_share", "outcome", _SHARE),
    *(Metric(name, "interaction", _SHARE) for name in _OTHERS),
)


@dataclass(frozen=True, slots=True)
class Side:
    """
    One version's sessions in one metric.

    Args:
        n: Sessions that have the metric; `mean` is over all of them.
        compared: Those of them that the difference rests on; the others have nobody to be compared with.
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
            is for this metric alone.
        chance: How often shuffling the versions gives a difference as large (see `chance_of`); None where the
            verdict did not need it.
        is_paired: The difference is within alert types.
    """

    metric: str
    first: Side
    second: Side
    difference: Estimate
    chance: float | None
    verdict: Verdict
    is_paired: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """
    Two versions, the older first.

    Args:
        sessions: Of each.
        judge_fingerprints: How many judges gave the totals that count.
        doubtful: Sessions whose total does not count, see `DOUBTFUL_FLAGS`.
        meaning: What may be concluded and what not, in plain sentences.
    """

    values: tuple[str, str]
    sessions: tuple[int, int]
    judge_fingerprints: int
    doubtful: int
    metrics: tuple[MetricComparison, ...]
    meaning: tuple[str, ...]


def compare_versions(
    sessions: Sequence[ScoredSession], values: tuple[str, str], *, resamples: int = RESAMPLES
) -> Comparison:
    """
    Lay the sessions of two label values side by side, metric by metric.

    Sessions of other values are left alone. The order of sessions changes nothing.
    """
    first, second = ([s for s in sessions if s.value == value] for value in values)
    both = [*first, *second]
    total_score = METRICS[0]
    judges = {s.judge_fingerprint for s in both if total_score.of(s) is not None}
    doubtful = sum(s.total_score is not None and total_score.of(s) is None for s in both)
    found = tuple(_compare(metric, first, second, resamples) for metric in METRICS)
    meaning = _meaning(values, found, len(judges), doubtful)
    return Comparison(values, (len(first), len(second)), len(judges), doubtful, found, meaning)


# --- one metric ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Pairing:
    strata: Sequence[Stratum]
    is_paired: bool

    @property
    def compared(self) -> tuple[int, int]:
        return sum(len(s.first) for s in self.strata), sum(len(s.second) for s in self.strata)

    @property
    def has_enough(self) -> bool:
        has_pairs = all(min(len(s.first), len(s.second)) >= FEWEST_IN_A_STRATUM for s in self.strata)
        return has_pairs and min(self.compared) >= FEWEST_FOR_AN_INTERVAL


def _compare(
    metric: Metric, first: Sequence[ScoredSession], second: Sequence[ScoredSession], resamples: int
) -> MetricComparison:
    pairing = _pair(metric, first, second)
    sides = _side(metric, first, pairing.compared[0]), _side(metric, second, pairing.compared[1])
    difference = estimate_difference(pairing.strata, resamples=resamples)
    if difference.value is None:
        difference = replace(difference, reason=_why_nothing(*sides))
    chance, verdict = _verdict(metric, pairing, difference, resamples)
    return MetricComparison(metric.name, *sides, difference, chance, verdict, pairing.is_paired)


def _verdict(metric: Metric, pairing: "_Pairing", difference: Estimate, resamples: int) -> tuple[float | None, Verdict]:
    """
    The chance of the difference, and what is shown.

    Interval and shuffling must both tell it from none: unequal spreads can mislead the shuffling, unequal sizes of
    skewed groups the interval.
    """
    if difference.value is None or not pairing.has_enough:
        return None, "too few"
    if difference.low is not None and difference.high is not None and difference.low <= 0 <= difference.high:
        return None, "no difference shown"
    chance = chance_of(pairing.strata, resamples)
    if chance > metric.allowed_chance:
        return chance, "no difference shown"
    return chance, "higher" if difference.value > 0 else "lower"


def _pair(metric: Metric, first: Sequence[ScoredSession], second: Sequence[ScoredSession]) -> _Pairing:
    """The finest pairing that leaves enough to compare, else the coarsest."""
    for pairing, is_paired in zip(metric.pairings, (True, False), strict=True):
        groups = _by_stratum(metric, first, pairing), _by_stratum(metric, second, pairing)
        if (found := _Pairing(shared_strata(*groups), is_paired)).has_enough:
            return found
    return _Pairing(shared_strata(*groups, fewest=1), is_paired=False)


def _by_stratum(
    metric: Metric, sessions: Sequence[ScoredSession], pairing: Callable[[ScoredSession], Hashable]
) -> dict[Hashable, list[float]]:
    strata: defaultdict[Hashable, list[float]] = defaultdict(list)
    for session in sessions:
        if (value := metric.of(session)) is not None:
            strata[pairing(session)].append(value)
    return dict(strata)


def _side(metric: Metric, sessions: Sequence[ScoredSession], compared: int) -> Side:
    found = [value for s in sessions if (value := metric.of(s)) is not None]
    return Side(len(found), math.fsum(found) / len(found) if found else None, compared)


def _why_nothing(first: Side, second: Side) -> str:
    if not (first.n and second.n):
        return "not every version has sessions with it"
    return "no judge scored sessions of both; totals of different judges are not compared"


# --- what it means -------------------------------------------------------------------------------------


def _meaning(values: tuple[str, str], found: Sequence[MetricComparison], judges: int, doubtful: int) -> tuple[str, ...]:
    """What may be concluded and what not, in plain sentences."""
    older, newer = values
    shown = [f"{c.metric} {c.verdict}" for c in found if c.verdict in {"higher", "lower"}]
    unpaired = [c.metric for c in found if not c.is_paired and c.verdict != "too few"]
    if all(c.verdict == "too few" for c in found):
        first = "There are too few comparable sessions to show anything."
    else:
        first = f"{newer!r} against {older!r}: {', '.join(shown)}." if shown else "No difference is shown."
    sentences = [
        first,
        f"An interval is about its metric alone. With {len(found)} metrics looked at, what is shown is held to more: "
        "where nothing differs, at most about one comparison in twenty shows anything.",
        "'No difference shown' does not mean equal: the interval says how large a difference may still be.",
        "These sessions were observed, not assigned: the versions may have met other incidents, at other times. "
        "Pairing by alert type balances only the alert types.",
    ]
    if unpaired:
        sentences.append(f"Not paired by alert type, as too few sessions share one: {', '.join(unpaired)}.")
    if judges > 1:
        sentences.append(f"{judges} judge fingerprints gave these totals; they are compared only within each.")
    if doubtful:
        sentences.append(f"Totals left out because they are flagged as doubtful: {doubtful}.")
    return tuple(sentences)

"""
Compares two versions' sessions metric by metric: totals, outcomes and how the agents worked.

Sessions are compared within chain and alert type, totals and outcomes within the judge as well. The data is
observational: incidents were not assigned to versions at random, so the version is only one explanation of a
difference.
"""

import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tarsy_scoring.scores.bands import DOUBTFUL_FLAGS
from tarsy_scoring.studies.estimates import Change, Estimate, change_within, sizes_of, strata_of

Verdict = Literal["higher", "lower", "no difference shown", "too few"]

CONFIDENCE = 0.95
JUDGED = ("total_score", "pass_share")
METRICS = (
    *JUDGED,
    "error_rate",
    "retry_rate",
    "first_try_success_rate",
    "iteration_ratio",
    "total_commands",
    "help_invocations",
)
# How often equal versions may show a difference in any metric. The total, the main question, gets half.
FALSE_ALARMS = 0.05


@dataclass(frozen=True, slots=True)
class ScoredSession:
    """A session's label value and latest score, named as in the score document."""

    value: str
    chain_id: str | None
    alert_type: str | None
    total_score: int | None
    interaction: Mapping[str, Any] | None
    judge_fingerprint: str | None
    flags: Collection[str]
    outcome: str | None

    def number(self, metric: str) -> float | None:
        """The metric's value; None without one, and for doubtful totals."""
        if metric == "total_score":
            return None if DOUBTFUL_FLAGS.intersection(self.flags) else self.total_score
        if metric == "pass_share":
            return None if self.outcome is None else float(self.outcome == "pass")
        found = (self.interaction or {}).get(metric)
        return found if isinstance(found, int | float) and not isinstance(found, bool) else None


@dataclass(frozen=True, slots=True)
class Side:
    """One version in one metric: sessions that have it, their mean, and how many have a counterpart."""

    n: int
    mean: float | None
    compared: int


@dataclass(frozen=True, slots=True)
class MetricComparison:
    """
    One metric for two versions.

    Args:
        difference: Second minus first within strata, which may differ from the two means. The 95 % interval
            ignores how many metrics are tested; the verdict does not.
        chance: Two-sided p-value; None without an interval.
    """

    metric: str
    first: Side
    second: Side
    difference: Estimate
    chance: float | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Comparison:
    """
    Two versions, the older first.

    Args:
        sessions: How many each version has.
        judges: How many judges gave the totals.
        doubtful: Sessions whose total is left out, see `DOUBTFUL_FLAGS`.
        meaning: What may be concluded and what not, in plain sentences.
    """

    values: tuple[str, str]
    sessions: tuple[int, int]
    judges: int
    doubtful: int
    metrics: tuple[MetricComparison, ...]
    meaning: tuple[str, ...]


def compare_versions(sessions: Sequence[ScoredSession], values: tuple[str, str]) -> Comparison:
    """Compare two label values, metric by metric; other sessions are ignored."""
    first, second = ([s for s in sessions if s.value == value] for value in values)
    both = [*first, *second]
    metrics = tuple(_compare(metric, first, second) for metric in METRICS)
    judges = len({s.judge_fingerprint for s in both if s.number("total_score") is not None})
    doubtful = sum(s.total_score is not None and not DOUBTFUL_FLAGS.isdisjoint(s.flags) for s in both)
    meaning = tuple(_meaning(values, metrics, judges, doubtful))
    return Comparison(values, (len(first), len(second)), judges, doubtful, metrics, meaning)


def _compare(
    metric: str, first: Sequence[ScoredSession], second: Sequence[ScoredSession]
) -> MetricComparison:
    older, newer = ([s for s in side if s.number(metric) is not None] for side in (first, second))
    strata = strata_of(
        older,
        newer,
        lambda s: (s.chain_id, s.alert_type, s.judge_fingerprint if metric in JUDGED else None),
        lambda s: s.number(metric) or 0.0,
    )
    change, sizes = change_within(strata, CONFIDENCE), sizes_of(strata)
    verdict = _verdict(metric, change)
    return MetricComparison(
        metric,
        _side(metric, older, sizes[0]),
        _side(metric, newer, sizes[1]),
        change.estimate,
        None if verdict == "too few" else change.chance,
        verdict,
    )


def _verdict(metric: str, change: Change) -> Verdict:
    if change.estimate.low is None:
        return "too few"
    allowed = FALSE_ALARMS / 2 if metric == METRICS[0] else FALSE_ALARMS / 2 / (len(METRICS) - 1)
    if change.chance <= allowed:
        return "higher" if (change.estimate.value or 0.0) > 0 else "lower"
    return "no difference shown"


def _side(metric: str, sessions: Sequence[ScoredSession], compared: int) -> Side:
    numbers = [s.number(metric) or 0.0 for s in sessions]
    return Side(len(numbers), statistics.fmean(numbers) if numbers else None, compared)


def _meaning(
    values: tuple[str, str], found: Sequence[MetricComparison], judges: int, doubtful: int
) -> Iterator[str]:
    older, newer = values
    shown = [f"{c.metric} {c.verdict}" for c in found if c.verdict in ("higher", "lower")]
    if all(c.verdict == "too few" for c in found):
        yield "There are too few comparable sessions to show anything."
    else:
        yield f"{newer!r} against {older!r}: {', '.join(shown)}." if shown else "No difference is shown."
    total = found[0]
    if total.verdict == "too few" and judges > 1 and min(total.first.n, total.second.n):
        yield (
            f"{judges} judges gave the totals, and totals of different judges are not compared: "
            "`tarsy-scoring rescore --since TIME` scores all sessions with today's judge."
        )
    if doubtful:
        yield f"Totals left out because they are flagged as doubtful: {doubtful}."
    yield (
        "'No difference shown' does not mean equal: the interval shows how large a difference may still be. "
        "The versions may have met other incidents, at other times, so a difference is associated with the "
        "version, not necessarily caused by it."
    )

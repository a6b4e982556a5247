"""
Combines gates and judge into an outcome with a reason, and into a composite score for chains with weights.

Interaction metrics inform; they never decide an outcome.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tarsy_scoring.events import Counts

MOST_MESSAGES = 3  # of failed gates in one reason; the others are named
_SIGNIFICANT_DECIMALS = 6  # removes the floating-point error of a weighted score


@dataclass(frozen=True, slots=True)
class GateResult:
    """Whether a gate passed, and why."""

    name: str
    gate_type: str
    passed: bool
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    Pass or fail; None where nothing decides. `reason` is set for a failure only.

    Args:
        judge_passed: False also where the judge says wrong; None without a total, or a threshold to reach.
    """

    value: Literal["pass", "fail"] | None
    reason: str | None = None
    judge_passed: bool | None = None


@dataclass(frozen=True, slots=True)
class Threshold:
    """
    The least total that passes.

    Args:
        value: 0-100; 0 is a valid threshold. None: the total decides nothing.
        is_of_criteria: The threshold of a rubric is compared with the total before rounding: a weighted score
            of 0.695 is shown as a total of 70 and yet does not reach 0.70. Others are compared with the
            total.
    """

    value: float | None
    is_of_criteria: bool = False


def threshold_of(chain: float | None, criteria: float | None, default: float | None) -> Threshold:
    """
    The threshold in force: the chain's own, else that of the criteria, else that of `defaults`.

    Args:
        chain: 0-100, as `default`.
        criteria: 0-1, as criteria files have it.
    """
    if chain is None and criteria is not None:
        return Threshold(round(100 * criteria, _SIGNIFICANT_DECIMALS), is_of_criteria=True)
    return Threshold(default if chain is None else chain)


def decide_outcome(
    gates: Sequence[GateResult],
    total_score: int | None,
    threshold: Threshold,
    weighted_score: float | None = None,
    judged_wrong: str | None = None,
) -> Outcome:
    """
    Pass if all gates pass, the total reaches the threshold and the judge does not say wrong; None where there
    are neither gates nor a threshold, unless the judge says wrong.

    Without a total, the threshold is ignored and the gates decide: a missing judge is no failure. A total
    equal to the threshold passes.

    Args:
        weighted_score: Of a rubric, 0-1.
        judged_wrong: See `judged_wrong`; fails in any case.
    """
    failed = [gate for gate in gates if not gate.passed]
    reasons = [_failed_gates(failed)] if failed else []
    judge_passed: bool | None = None
    if total_score is not None and threshold.value is not None:
        exact = _exact_total(total_score, threshold, weighted_score)
        judge_passed = exact >= threshold.value
        if not judge_passed:
            total = (
                f"total {total_score}"
                if total_score < threshold.value
                else f"total before rounding, {exact:.10g},"
            )
            reasons.append(f"the {total} is below the threshold {threshold.value:.10g}")
    if judged_wrong is not None:
        reasons.append(judged_wrong)
        judge_passed = False
    if not gates and judge_passed is None:
        return Outcome(None)
    return Outcome("fail" if reasons else "pass", "; ".join(reasons) or None, judge_passed)


def judged_wrong(judge_outcome: str | None, flags: Collection[str]) -> str | None:
    """Why the judge's own words fail a score: it states `wrong`, or a total that contradicts its outcome."""
    if judge_outcome == "wrong":
        return "judged wrong"
    is_contradicted = "outcome_score_mismatch" in flags
    return "judged wrong: the total contradicts the stated outcome" if is_contradicted else None


def _failed_gates(failed: Sequence[GateResult]) -> str:
    shown = "; ".join(f"gate {g.name!r} failed: {g.message}" for g in failed[:MOST_MESSAGES])
    more = failed[MOST_MESSAGES:]
    return f"{shown}; and {len(more)} more: {', '.join(repr(g.name) for g in more)}" if more else shown


def _exact_total(total_score: int, threshold: Threshold, weighted_score: float | None) -> float:
    """The value to compare with the threshold: a rubric's own threshold applies to the unrounded score."""
    if threshold.is_of_criteria and weighted_score is not None:
        return round(100 * weighted_score, _SIGNIFICANT_DECIMALS)
    return total_score


def composite_score(
    weights: Mapping[str, float],
    gates: Sequence[GateResult],
    total_score: int | None,
    interaction: Counts | None,
) -> float | None:
    """
    Compute 100 times the weighted mean of gates, judge and interaction. Parts that do not exist are left out.

    The parts are gates passed / gates, total / 100, and the mean of 1 - error rate, first-try success rate
    and iteration ratio. None where no part with a weight exists.

    Args:
        weights: `gate_weight`, `judge_weight` and `interaction_weight`, each >= 0; a missing one is 0.
    """
    parts: dict[str, float] = {}
    if gates:
        parts["gate_weight"] = sum(gate.passed for gate in gates) / len(gates)
    if total_score is not None:
        parts["judge_weight"] = total_score / 100
    if interaction is not None and (rate := _interaction_rate(interaction)) is not None:
        parts["interaction_weight"] = rate
    weight = math.fsum(weights.get(name, 0) for name in parts)
    if not weight:
        return None
    return 100 * math.fsum(weights.get(name, 0) * part for name, part in parts.items()) / weight


def _interaction_rate(counts: Counts) -> float | None:
    if counts.error_rate is None:  # the rates are known or unknown together
        return None
    rates = (1 - counts.error_rate, counts.first_try_success_rate or 0, counts.iteration_ratio or 0)
    return math.fsum(rates) / len(rates)

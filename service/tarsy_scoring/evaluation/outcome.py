"""
Combines gates and judge into an outcome with its reason, and into a composite score for chains with weights.

Interaction metrics inform; they never decide an outcome.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tarsy_scoring.evaluation.interaction import Counts

MOST_MESSAGES = 3  # of failed gates in one reason; the others are named
_SHOWN_DECIMALS = 2  # of a number in a reason; more where they are needed to show a difference
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
    """Pass or fail; None where neither gates nor a threshold apply. `reason` is set for a failure only."""

    value: Literal["pass", "fail"] | None
    reason: str | None = None


def threshold_of(chain_threshold: float | None, rubric_threshold: float | None) -> float | None:
    """
    The effective threshold, 0-100: that of the chain, else that of the rubric, else None.

    Args:
        chain_threshold: 0-100; 0 is a valid threshold.
        rubric_threshold: 0-1, as criteria files have it.
    """
    if chain_threshold is not None:
        return chain_threshold
    return None if rubric_threshold is None else round(100 * rubric_threshold, _SIGNIFICANT_DECIMALS)


def decide_outcome(
    gates: Sequence[GateResult], total_score: int | None, pass_threshold: float | None, *, judged: float | None = None
) -> Outcome:
    """
    Pass if all gates pass and the total reaches the threshold; None where there are neither gates nor a
    threshold.

    Without a total, the threshold is ignored and the gates decide: a missing judge is no failure.

    Args:
        pass_threshold: 0-100, see `threshold_of`; a total equal to it passes.
        judged: 0-100, compared with the threshold instead of the total. For the threshold of a rubric this is
            100 times the weighted score: 0.695 is shown as a total of 70 and yet does not reach 0.70. None
            for the threshold of a chain, which applies to the total.
    """
    value = total_score if judged is None or total_score is None else round(judged, _SIGNIFICANT_DECIMALS)
    is_judged = value is not None and pass_threshold is not None
    if not gates and not is_judged:
        return Outcome(None)
    reasons = [_failed_gates(failed)] if (failed := [g for g in gates if not g.passed]) else []
    if value is not None and pass_threshold is not None and value < pass_threshold:
        what = "total" if value == total_score else "weighted score"
        shown, needed = _distinguishable(value, pass_threshold)
        reasons.append(f"the {what} {shown} is below the threshold {needed}")
    return Outcome("fail", "; ".join(reasons)) if reasons else Outcome("pass")


def _failed_gates(failed: Sequence[GateResult]) -> str:
    shown = "; ".join(f"gate {g.name!r} failed: {g.message}" for g in failed[:MOST_MESSAGES])
    more = failed[MOST_MESSAGES:]
    return f"{shown}; and {len(more)} more: {', '.join(repr(g.name) for g in more)}" if more else shown


def _distinguishable(low: float, high: float) -> tuple[str, str]:
    """Two numbers with the fewest decimals that show which one is lower, without trailing zeros."""
    decimals = range(_SHOWN_DECIMALS, _SIGNIFICANT_DECIMALS)
    enough = next((n for n in decimals if round(low, n) < round(high, n)), _SIGNIFICANT_DECIMALS)
    shown, needed = (f"{number:.{enough}f}".rstrip("0").rstrip(".") for number in (low, high))
    return shown, needed


def composite_score(
    weights: Mapping[str, float], gates: Sequence[GateResult], total_score: int | None, interaction: Counts | None
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
    if interaction is not None and interaction.error_rate is not None:  # the rates are known or unknown together
        rates = (1 - interaction.error_rate, interaction.first_try_success_rate or 0, interaction.iteration_ratio or 0)
        parts["interaction_weight"] = math.fsum(rates) / len(rates)
    weight = math.fsum(weights.get(name, 0) for name in parts)
    return 100 * math.fsum(weights.get(name, 0) * part for name, part in parts.items()) / weight if weight else None

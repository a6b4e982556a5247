"""
What gates and judge come to: pass or fail with the reason, and the composite number where a chain declares weights.

Interaction metrics inform; they never decide an outcome.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

MOST_MESSAGES = 3  # of failed gates in one reason; the others are named
_TOLD_DECIMALS = 2  # of a number in a reason, unless it takes more to see what is below what
_SIGNIFICANT_DECIMALS = 6  # what floating point adds to a weighted score is no point more


class GateLike(Protocol):
    """What is read of the result of a gate."""

    @property
    def name(self) -> str: ...
    @property
    def passed(self) -> bool: ...
    @property
    def message(self) -> str: ...


class InteractionLike(Protocol):
    """What is read of the interaction metrics: rates 0-1, None where there was no command."""

    @property
    def error_rate(self) -> float | None: ...
    @property
    def first_try_success_rate(self) -> float | None: ...
    @property
    def iteration_ratio(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """Pass or fail; None where nothing decides. `reason` says why it failed, and is None otherwise."""

    value: Literal["pass", "fail"] | None
    reason: str | None = None


def threshold_of(chain_threshold: float | None, rubric_threshold: float | None) -> float | None:
    """
    The threshold in force, 0-100: the chain's, else the rubric's, else None.

    Args:
        chain_threshold: 0-100; 0 is a threshold too.
        rubric_threshold: 0-1, as criteria files have it.
    """
    if chain_threshold is not None:
        return chain_threshold
    return None if rubric_threshold is None else round(100 * rubric_threshold, _SIGNIFICANT_DECIMALS)


def decide_outcome(
    gates: Sequence[GateLike], total_score: int | None, pass_threshold: float | None, *, judged: float | None = None
) -> Outcome:
    """
    Pass if all gates pass and the total reaches the threshold; None where there is neither.

    A threshold without a total decides nothing: an absent judge is no failure, and the gates decide alone.

    Args:
        pass_threshold: 0-100, see `threshold_of`; a total equal to it passes.
        judged: 0-100, what is held against the threshold in place of the total. For a rubric's own threshold this is
            100 times the weighted score: 0.695 is shown as a total of 70 and yet does not reach 0.70. None against
            a chain's threshold, which is about the total.
    """
    value = total_score if judged is None or total_score is None else round(judged, _SIGNIFICANT_DECIMALS)
    is_judged = value is not None and pass_threshold is not None
    if not gates and not is_judged:
        return Outcome(None)
    reasons = [_failed_gates(failed)] if (failed := [g for g in gates if not g.passed]) else []
    if value is not None and pass_threshold is not None and value < pass_threshold:
        what = "total" if value == total_score else "weighted score"
        told, needed = _told_apart(value, pass_threshold)
        reasons.append(f"the {what} {told} is below the threshold {needed}")
    return Outcome("fail", "; ".join(reasons)) if reasons else Outcome("pass")


def _failed_gates(failed: Sequence[GateLike]) -> str:
    told = "; ".join(f"gate {g.name!r} failed: {g.message}" for g in failed[:MOST_MESSAGES])
    more = failed[MOST_MESSAGES:]
    return f"{told}; and {len(more)} more: {', '.join(repr(g.name) for g in more)}" if more else told


def _told_apart(low: float, high: float) -> tuple[str, str]:
    """Two numbers with the fewest decimals that show which is the lower one, none of them a needless zero."""
    decimals = range(_TOLD_DECIMALS, _SIGNIFICANT_DECIMALS)
    enough = next((n for n in decimals if round(low, n) < round(high, n)), _SIGNIFICANT_DECIMALS)
    told, needed = (f"{number:.{enough}f}".rstrip("0").rstrip(".") for number in (low, high))
    return told, needed


def composite_score(
    weights: Mapping[str, float],
    gates_passed: int,
    gates_total: int,
    total_score: int | None,
    interaction: InteractionLike | None,
) -> float | None:
    """
    100 times the weighted mean of gates, judge and interaction; a part that does not exist gives its weight away.

    The parts are gates passed / gates, total / 100, and the mean of 1 - error rate, first-try success rate and
    iteration ratio. None where no part with a weight exists.

    Args:
        weights: `gate_weight`, `judge_weight` and `interaction_weight`, each >= 0; an absent one is 0.
    """
    parts = {
        "gate_weight": gates_passed / gates_total if gates_total else None,
        "judge_weight": None if total_score is None else total_score / 100,
        "interaction_weight": None if interaction is None else _interaction_part(interaction),
    }
    existing = [(weights.get(name, 0.0), part) for name, part in parts.items() if part is not None]
    return _weighted_percent(existing) if any(weight for weight, _ in existing) else None


def _interaction_part(interaction: InteractionLike) -> float | None:
    rates = (interaction.error_rate, interaction.first_try_success_rate, interaction.iteration_ratio)
    error_rate, first_try, iteration = rates
    if error_rate is None or first_try is None or iteration is None:
        return None
    return math.fsum((1 - error_rate, first_try, iteration)) / len(rates)


def _weighted_percent(parts: Iterable[tuple[float, float]]) -> float:
    weighed = list(parts)
    return 100 * math.fsum(weight * part for weight, part in weighed) / math.fsum(weight for weight, _ in weighed)

"""Tables of the outcome (pass, fail or null) and of the composite score."""

import pytest

from tables import table
from tarsy_scoring.evaluation.outcome import (
    GateResult,
    Outcome,
    Threshold,
    composite_score,
    decide_outcome,
    judged_wrong,
    threshold_of,
)
from tarsy_scoring.events import Counts


def gate(name: str, passed: bool = True, message: str = "as asked") -> GateResult:
    return GateResult(name, "script", passed, message)


PASSED, FAILED = gate("quiet"), gate("asks the cluster", False, "called 0 times, at least 1")


def rates(error: float | None, first_try: float | None, iteration: float | None) -> Counts:
    return Counts(9, 9, 0, 0, 0, 0, error, 0, first_try, iteration)


# --- the outcome ---------------------------------------------------------------------------------------


@table
def test_outcome_needs_every_check(
    passed: list[bool], total: int | None, threshold: float | None, value: str | None, judge_passed: bool | None
) -> None:
    """Every gate and the threshold must pass; an absent one decides nothing. Only a failure has a reason."""
    outcome = decide_outcome([PASSED if p else FAILED for p in passed], total, Threshold(threshold))

    assert (outcome.value, outcome.judge_passed) == (value, judge_passed)
    assert (outcome.reason is not None) == (value == "fail")


def test_reason_names_every_failed_gate_and_the_threshold() -> None:
    outcome = decide_outcome([FAILED, PASSED], 41, Threshold(62.5))

    assert outcome.reason == (
        "gate 'asks the cluster' failed: called 0 times, at least 1; the total 41 is below the threshold 62.5"
    )


@table
def test_many_failed_gates_are_named_and_three_explained(failed: int, ending: str) -> None:
    outcome = decide_outcome([gate(name, False, f"why {name}") for name in "abcde"[:failed]], None, Threshold(None))

    assert outcome.reason is not None
    assert outcome.reason.endswith(ending)
    assert outcome.reason.count("failed: why") == 3


@table
def test_threshold_of_criteria_applies_before_rounding(
    weighted: float, total: int, threshold: float, reason: str | None
) -> None:
    """The reason has numbers of 0-100 only, rounded but different."""
    outcome = decide_outcome([], total, threshold_of(None, threshold, None), weighted)

    assert outcome == Outcome("fail" if reason else "pass", reason, judge_passed=reason is None)


def test_threshold_of_a_chain_applies_to_the_total() -> None:
    assert decide_outcome([], 70, threshold_of(70, 0.9, None), 0.695).judge_passed


@table
def test_a_judge_that_says_wrong_fails_the_score(
    stated: str, flags: list[str], threshold: float | None, value: str | None, reason: str | None
) -> None:
    """Also without gates and a threshold; nothing is a failure because a judge says no more."""
    outcome = decide_outcome([], 70, Threshold(threshold), None, judged_wrong(stated, flags))

    assert (outcome.value, outcome.reason) == (value, reason)
    assert (outcome.judge_passed is False) == (value == "fail")


def test_a_weighted_score_without_a_total_decides_nothing() -> None:
    assert decide_outcome([], None, Threshold(70, is_of_criteria=True), 0.2) == Outcome(None)


@table
def test_the_nearest_threshold_counts(
    chain: float | None, criteria: float | None, default: float | None, threshold: float | None
) -> None:
    """That of the chain, then that of the criteria, then that of `defaults`."""
    assert threshold_of(chain, criteria, default).value == threshold


# --- the composite -------------------------------------------------------------------------------------


@table
def test_composite_weighs_the_known_parts(
    weights: list[float], gates: list[int], total: int | None, known: list[float] | None, composite: float | None
) -> None:
    of = dict(zip(("gate_weight", "judge_weight", "interaction_weight"), weights, strict=False))
    passed, all_gates = gates
    results = [PASSED] * passed + [FAILED] * (all_gates - passed)

    found = composite_score(of, results, total, rates(*known) if known else None)

    assert found == (None if composite is None else pytest.approx(composite))

"""Pass, fail or undecided, and the composite number, as tables."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from tables import table
from tarsy_scoring.evaluation.outcome import Outcome, composite_score, decide_outcome, threshold_of


@dataclass(frozen=True)
class Gate:
    name: str
    passed: bool = True
    message: str = "as asked"


@dataclass(frozen=True)
class Rates:
    error_rate: float | None = 0.1
    first_try_success_rate: float | None = 0.8
    iteration_ratio: float | None = 0.9


PASSED, FAILED = Gate("quiet"), Gate("asks the cluster", False, "called 0 times, at least 1")

# --- the outcome ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gates", "total", "threshold", "value"),
    [
        pytest.param([], None, None, None, id="nothing-at-all"),
        pytest.param([], 90, None, None, id="a-total-without-threshold"),
        pytest.param([], None, 60, None, id="a-threshold-without-judge"),
        pytest.param([PASSED], None, None, "pass", id="gates-alone"),
        pytest.param([PASSED, FAILED], None, None, "fail", id="one-gate-failed"),
        pytest.param([PASSED], None, 60, "pass", id="gates-decide-where-no-judge-does"),
        pytest.param([FAILED], None, 60, "fail", id="a-failed-gate-without-judge"),
        pytest.param([PASSED], 10, None, "pass", id="a-total-without-threshold-decides-nothing"),
        pytest.param([], 60, 60, "pass", id="exactly-the-threshold"),
        pytest.param([], 59, 60, "fail", id="one-point-below"),
        pytest.param([], 60, 60.5, "fail", id="half-a-point-below"),
        pytest.param([], 0, 0, "pass", id="a-threshold-of-0"),
        pytest.param([PASSED], 59, 60, "fail", id="gates-passed-judge-not"),
        pytest.param([FAILED], 99, 60, "fail", id="judge-passed-gates-not"),
    ],
)
def test_outcome(gates: Sequence[Gate], total: int | None, threshold: float | None, value: str | None) -> None:
    """Everything that there is must pass; what is not there decides nothing. Only a failure has a reason."""
    outcome = decide_outcome(gates, total, threshold)

    assert outcome.value == value
    assert (outcome.reason is not None) == (value == "fail")


def test_a_failure_says_all_that_failed() -> None:
    outcome = decide_outcome([FAILED, PASSED], 41, 62.5)

    assert outcome == Outcome(
        "fail",
        "gate 'asks the cluster' failed: called 0 times, at least 1; the total 41 is below the threshold 62.5",
    )


@table
def test_many_failed_gates_are_named_and_three_explained(failed: int, ending: str) -> None:
    outcome = decide_outcome([Gate(name, False, f"why {name}") for name in "abcde"[:failed]], None, None)

    assert outcome.reason is not None
    assert outcome.reason.endswith(ending)
    assert outcome.reason.count("failed: why") == 3


@table
def test_a_rubric_is_held_against_its_weighted_score(weighted: float, total: int, value: str) -> None:
    outcome = decide_outcome([], total, threshold_of(None, 0.70), judged=100 * weighted)

    assert outcome.value == value
    if value == "fail":
        assert outcome.reason == "the weighted score 69.5 is below the threshold 70"


@table
def test_numbers_in_a_reason_are_rounded_and_stay_apart(weighted: float, threshold: float, reason: str) -> None:
    assert decide_outcome([], 1, threshold, judged=weighted).reason == f"the weighted score {reason}"


def test_a_weighted_score_without_a_total_decides_nothing() -> None:
    assert decide_outcome([], None, 70, judged=20) == Outcome(None)


@table
def test_threshold_in_force(chain: float | None, rubric: float | None, threshold: float | None) -> None:
    assert threshold_of(chain, rubric) == threshold


# --- the composite -------------------------------------------------------------------------------------

WEIGHTS = {"gate_weight": 0.5, "judge_weight": 0.3, "interaction_weight": 0.2}
NO_COMMANDS = Rates(None, None, None)


@pytest.mark.parametrize(
    ("weights", "gates", "total", "rates", "composite"),
    [
        # 0.5 · 3/4 + 0.3 · 0.6 + 0.2 · (0.9 + 0.8 + 0.9) / 3
        pytest.param(WEIGHTS, (3, 4), 60, Rates(), 100 * (0.375 + 0.18 + 0.2 * 2.6 / 3), id="all-parts"),
        pytest.param(WEIGHTS, (0, 0), 60, Rates(), 100 * (0.18 + 0.2 * 2.6 / 3) / 0.5, id="no-gates"),
        pytest.param(WEIGHTS, (3, 4), None, Rates(), 100 * (0.375 + 0.2 * 2.6 / 3) / 0.7, id="no-judge"),
        pytest.param(WEIGHTS, (3, 4), 60, NO_COMMANDS, 100 * (0.375 + 0.18) / 0.8, id="no-commands"),
        pytest.param(WEIGHTS, (3, 4), 60, None, 100 * (0.375 + 0.18) / 0.8, id="no-interaction"),
        pytest.param(WEIGHTS, (0, 4), 0, Rates(1, 0, 0), 0, id="the-worst-is-0"),
        pytest.param(WEIGHTS, (4, 4), 100, Rates(0, 1, 1), 100, id="the-best-is-100"),
        pytest.param({"gate_weight": 5, "judge_weight": 3}, (1, 2), 80, Rates(), 61.25, id="weights-of-any-size"),
        pytest.param(WEIGHTS, (0, 0), None, NO_COMMANDS, None, id="no-part"),
        pytest.param({"judge_weight": 1}, (4, 4), None, Rates(), None, id="only-parts-without-weight"),
        pytest.param({}, (4, 4), 100, Rates(), None, id="no-weights"),
    ],
)
def test_composite(
    weights: dict[str, float], gates: tuple[int, int], total: int | None, rates: Rates | None, composite: float | None
) -> None:
    assert composite_score(weights, *gates, total, rates) == (None if composite is None else pytest.approx(composite))


@table
def test_one_unknown_rate_leaves_the_interaction_out(missing: str) -> None:
    rates = Rates(**{missing: None})

    assert composite_score(WEIGHTS, 1, 2, 100, rates) == composite_score(WEIGHTS, 1, 2, 100, None)

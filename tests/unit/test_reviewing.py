"""The reasons for which a score is picked for review."""

from typing import Any

import pytest

from tarsy_scoring.labels.review import candidate
from tarsy_scoring.scores.bands import DEFAULT_BANDS, bands_of
from tarsy_scoring.statistics.sampling import reasons_to_review

OUTCOMES = bands_of({"correct": (60, 100), "wrong": (0, 59)})


def row(score_id: str = "s", total: int = 65, **columns: Any) -> dict[str, Any]:
    return {
        "score_id": score_id,
        "total_score": total,
        "criteria_hash": "hash-1",
        "judge_fingerprint": "judge-1",
        "flags": [],
        "spread": None,
        "judge_outcome": None,
        "outcome": "pass",
        "gates_passed": 0,
        "gates_total": 0,
    } | columns


@pytest.mark.parametrize(
    ("columns", "contradicts"),
    [
        pytest.param({}, False, id="nothing"),
        pytest.param({"judge_outcome": "correct"}, False, id="total-in-the-stated-band"),
        pytest.param({"judge_outcome": "wrong"}, True, id="total-outside-the-stated-band"),
        pytest.param({"judge_outcome": "dubious"}, False, id="a-band-of-earlier-criteria"),
        pytest.param({"flags": ["outcome_score_mismatch"]}, True, id="found-when-it-was-judged"),
        pytest.param({"gates_passed": 2, "gates_total": 2, "outcome": "fail"}, True, id="gates-passed-judge-failed"),
        pytest.param({"gates_passed": 2, "gates_total": 2}, False, id="both-passed"),
        pytest.param({"gates_passed": 1, "gates_total": 2, "outcome": "fail"}, False, id="both-failed"),
        pytest.param({"outcome": "fail"}, False, id="no-gates"),
    ],
)
def test_contradiction_of_judge_or_gates_is_a_reason(columns: dict[str, Any], contradicts: bool) -> None:
    """A total outside the stated band, or passed gates and a failing judge; `flag` is no further reason."""
    reasons = reasons_to_review(candidate(row(**columns), OUTCOMES), OUTCOMES)
    assert ("contradiction" in reasons) == contradicts
    assert "flag" not in reasons


def test_flags_spread_and_band_edges_are_reasons() -> None:
    """The edges are those of the score's own criteria."""
    found = candidate(row(total=61, flags=["ungrounded"], spread=20), OUTCOMES)
    assert reasons_to_review(found, OUTCOMES) == ("flag", "samples apart", "band edge")
    assert "band edge" not in reasons_to_review(candidate(row(total=61), OUTCOMES), DEFAULT_BANDS)

"""The review picks of a day: each judge has its share, and every draw gives the same picks."""

from collections import Counter
from datetime import date
from typing import Any

import pytest

from tarsy_scoring.records.review import PICKS_A_DAY, candidate, pick
from tarsy_scoring.statistics.agreement import DEFAULT_BANDS, bands_of
from tarsy_scoring.statistics.sampling import reasons_to_review

DAY = date(2026, 3, 2)
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
        "share": 1.0,
    } | columns


def day_of(judge: str, scores: int) -> list[dict[str, Any]]:
    return [row(f"{judge}-{n:03}", judge_fingerprint=judge) for n in range(scores)]


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


def test_each_judge_has_its_own_share() -> None:
    """The scores of other judges do not matter; of few scores, all are picked with certainty."""
    found = pick([*day_of("busy", 300), *day_of("idle", 3)], {}, DAY)
    judges = Counter(p.score_id.partition("-")[0] for _, p in found)
    assert judges == {"busy": PICKS_A_DAY, "idle": 3}
    assert {p.inclusion_probability for _, p in found if p.score_id.startswith("idle")} == {1.0}
    assert min(p.inclusion_probability for _, p in found) == pytest.approx(PICKS_A_DAY / 2 / 300)
    assert sorted(place for place, p in found if p.score_id.startswith("idle")) == [0, 1, 2]


def test_picks_of_a_day_are_always_the_same() -> None:
    """The order of the rows does not matter; another day has other picks."""
    rows = day_of("judge-1", 100)
    assert pick([], {}, DAY) == []
    assert pick(rows, {}, DAY) == pick(rows[::-1], {}, DAY)
    assert {p.score_id for _, p in pick(rows, {}, DAY)} != {p.score_id for _, p in pick(rows, {}, date(2026, 3, 3))}

"""How labels on scores near a total become the object `labels_nearby`."""

import uuid
from typing import Any

import pytest

from tarsy_scoring.labels.nearby import count_labels
from tarsy_scoring.scores.bands import DEFAULT_BANDS, bands_of

BANDS = bands_of({"correct": (60, 100), "partial": (35, 59), "wrong": (0, 34)})


def row(score: int, outcome: str | None = "correct", by: str = "ada", **columns: Any) -> dict[str, Any]:
    return {
        "score_id": uuid.UUID(int=score),
        "total_score": 62,
        "judge_outcome": "correct",
        "inclusion_probability": 1.0,
        "is_of_judge": True,
        "labelled_by": by,
        "agrees": None,
        "outcome": outcome,
        "number": None,
    } | columns


NINE = [row(n) for n in range(1, 10)]


def right_of(*rows: dict[str, Any]) -> tuple[int, int]:
    """How many of nine right scores and these are right, and how many count."""
    found = count_labels([*NINE, *rows], BANDS)
    assert found is not None
    return found["right"], found["labelled"]


@pytest.mark.parametrize(
    ("said", "is_right"),
    [
        pytest.param([row(0, "accurate")], True, id="word-of-the-highest-band"),
        pytest.param([row(0, "partial")], False, id="middle-band"),
        pytest.param([row(0, None, number=59.5)], True, id="number-in-the-highest-band"),
        pytest.param([row(0, None, number=59)], False, id="number-below-it"),
        pytest.param([row(0, None, agrees=True)], True, id="agrees-with-the-judge"),
        pytest.param([row(0, None, agrees=True, judge_outcome="wrong")], False, id="agrees-that-it-is-wrong"),
        pytest.param([row(0, "wrong"), row(0)], True, id="the-last-of-an-author-counts"),
        pytest.param([row(0), row(0, "wrong", by="bob")], False, id="the-lower-median-of-two"),
        pytest.param([row(0), row(0, "wrong", by="bob"), row(0, by="eve")], True, id="the-median-of-three"),
    ],
)
def test_a_score_is_right_if_its_label_is_in_the_highest_band(said: list[dict[str, Any]], is_right: bool) -> None:
    assert right_of(*said) == (9 + is_right, 10)


def test_ten_labelled_scores_are_needed() -> None:
    """A score whose label is in no band is none of them; several labels on a score are one."""
    assert count_labels([*NINE, row(9, by="bob")], BANDS) is None
    assert count_labels([*NINE, row(0, "partial")], bands_of({"good": (50, 100), "bad": (0, 49)})) is None


def test_scores_of_other_judges_count_where_this_one_has_too_few() -> None:
    others = [row(n, "wrong", is_of_judge=False) for n in range(20, 30)]

    own, mixed = (count_labels([*NINE, *rows, *others], BANDS) for rows in ([row(0)], []))

    assert own is not None
    assert (own["right"], own["labelled"], own["is_of_judge"]) == (10, 10, True)
    assert mixed is not None
    assert (mixed["right"], mixed["labelled"], mixed["is_of_judge"]) == (9, 19, False)


def test_the_share_is_that_of_all_scores() -> None:
    """Half of the scores were drawn with a probability of a fourth, so each of them stands for four."""
    drawn = [row(n, inclusion_probability=0.25) for n in range(10)]
    suspicious = [row(n, "wrong") for n in range(10, 20)]

    found = count_labels([*drawn, *suspicious], BANDS)

    assert found is not None
    assert (found["right"], found["labelled"], found["share"]) == (10, 20, pytest.approx(40 / 50))
    assert found["share_low"] < 0.8 < found["share_high"]


def test_scores_that_people_chose_count_where_too_few_were_drawn() -> None:
    """Each of them alike, also the drawn ones among them."""
    chosen = [row(n, "wrong", inclusion_probability=None) for n in range(20, 30)]
    drawn = [row(n, inclusion_probability=0.1) for n in range(1, 10)]

    few = count_labels([*drawn, *chosen], BANDS)
    enough = count_labels([*drawn, row(10, inclusion_probability=0.1), *chosen], BANDS)

    assert few is not None
    assert (few["right"], few["labelled"], few["share"], few["is_drawn"]) == (9, 19, pytest.approx(9 / 19), False)
    assert enough is not None
    assert (enough["right"], enough["labelled"], enough["is_drawn"]) == (10, 10, True)


def test_criteria_without_bands_use_the_ranges() -> None:
    found = count_labels([row(n, "75-100") for n in range(10)], DEFAULT_BANDS)

    assert found is not None
    assert (found["band"], found["right"]) == ("75-100", 10)

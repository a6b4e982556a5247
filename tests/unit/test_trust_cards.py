"""How labels of reviewers become the trust card of a judge."""

import uuid
from typing import Any

import pytest

from tarsy_scoring.labels import labels
from tarsy_scoring.labels.labels import card_of, contradicted
from tarsy_scoring.scores.bands import DEFAULT_BANDS, Band, bands_of

BANDS = bands_of({"correct": (60, 100), "wrong": (0, 49)})


def row(score: int = 0, total: int = 70, by: str = "ada", **columns: Any) -> dict[str, Any]:
    return {
        "score_id": uuid.UUID(int=score),
        "session_id": str(uuid.UUID(int=score)),
        "labelled_by": by,
        "agrees": None,
        "outcome": None,
        "number": None,
        "inclusion_probability": 1.0,
        "total_score": total,
        "judge_outcome": None,
        "criteria": "methodology",
        "criteria_hash": "hash-1",
        "judge_fingerprint": "judge-1",
    } | columns


@pytest.mark.parametrize(
    ("said", "counts", "difference"),
    [
        pytest.param({"agrees": True}, ((0, 0), (0, 1)), 0, id="agrees-with-the-band-of-the-total"),
        pytest.param({"agrees": True, "judge_outcome": "wrong"}, ((1, 0), (0, 0)), 0, id="agrees-with-the-stated-band"),
        pytest.param({"outcome": "wrong"}, ((0, 1), (0, 0)), None, id="own-outcome"),
        pytest.param({"outcome": "correct", "number": 95}, ((0, 0), (0, 1)), -25, id="own-number"),
        pytest.param({"number": 20}, ((0, 1), (0, 0)), 50, id="a-number-has-a-band"),
    ],
)
def test_a_label_gives_band_and_difference(said: dict[str, Any], counts: object, difference: float | None) -> None:
    """Row: the label's band; column: the judge's; the difference is the total less the label's number."""
    found = card_of([row(**said)], BANDS)
    assert found.confusion.counts == counts
    assert found.mean_difference.value == difference


@pytest.mark.parametrize(
    ("word", "bands", "expected"),
    [
        pytest.param("correct", BANDS, {60, 75, 100}, id="highest-band"),
        pytest.param("wrong", BANDS, {0, 20, 49}, id="lowest-band"),
        pytest.param("partially_accurate", BANDS, {0, 20, 49, 50, 55, 60, 75, 100}, id="no-such-band"),
        pytest.param("correct", DEFAULT_BANDS, {50, 55, 60, 75, 100}, id="a-word-without-bands"),
        pytest.param("wrong", DEFAULT_BANDS, {0, 20, 49, 50, 55, 60}, id="the-other-end"),
        pytest.param("partially_accurate", DEFAULT_BANDS, {0, 20, 49, 50, 55, 60, 75, 100}, id="the-middle"),
        pytest.param("50-74", DEFAULT_BANDS, {50, 55, 60}, id="a-default-band-by-its-name"),
    ],
)
def test_a_number_must_not_contradict_its_outcome(word: str, bands: tuple[Band, ...], expected: set[int]) -> None:
    """It must be in the outcome's band; without bands of the criteria, not in the opposite one."""
    assert {n for n in (0, 20, 49, 50, 55, 60, 75, 100) if contradicted(word, n, bands) is None} == expected


def test_a_label_without_a_band_is_named() -> None:
    """Agreeing with a total between two bands names no band either."""
    found = card_of([row(total=55, agrees=True)], BANDS)
    assert (found.matched, len(found.unplaced)) == (0, 1)


def test_labels_of_two_scores_of_one_session_count_separately() -> None:
    """A label is about one score and says nothing about another."""
    assert card_of([row(1, agrees=True), row(2, outcome="wrong")], BANDS).matched == 2


def test_only_the_newest_labels_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of scores picked for review the newest count; labels of other scores do not use up that number."""
    monkeypatch.setattr(labels, "MOST_COUNTED", 2)
    newest = [row(1, agrees=True), row(1, by="bob", agrees=True), row(2, agrees=True)]
    others = [row(3, outcome="wrong"), row(4, agrees=True, inclusion_probability=None)]
    found = card_of([*newest, *others], BANDS)
    assert (found.matched, found.picked, found.confusion.counts) == (2, 1, ((0, 0), (0, 2)))


def test_a_card_is_computed_once_until_a_new_label() -> None:
    rows = [row(n, agrees=n % 3 > 0 or None, outcome=None if n % 3 else "wrong") for n in range(30)]
    first = card_of(rows, BANDS)
    assert card_of([dict(r) for r in rows], BANDS) is first
    assert card_of([*rows, row(31, agrees=True)], BANDS).matched == first.matched + 1

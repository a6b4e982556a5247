"""What a label of a reviewer means: its band and its number."""

from typing import Any

import pytest

from tables import table
from tarsy_scoring.labels.calibration import band_of_label
from tarsy_scoring.labels.labels import contradicted, label_of
from tarsy_scoring.scores.bands import DEFAULT_BANDS, Band, bands_of

BANDS = bands_of({"correct": (60, 100), "wrong": (0, 49)})


def row(**columns: Any) -> dict[str, Any]:
    said = {"agrees": None, "outcome": None, "number": None, "is_random": True}
    whose = {"session_id": "s", "source": "page", "by": "ada", "at": None, "reason": None}
    return whose | {"total_score": 70, "judge_outcome": None} | said | columns


@table
def test_a_label_gives_band_and_number(said: dict[str, Any], band: str | None, number: float | None) -> None:
    label = label_of(row(**said), BANDS)

    assert (band_of_label(label, BANDS), label.number) == (band, number)


@pytest.mark.parametrize(
    ("word", "bands", "expected"),
    [
        pytest.param("correct", BANDS, {60, 75, 100}, id="highest-band"),
        pytest.param("wrong", BANDS, {0, 20, 49}, id="lowest-band"),
        pytest.param("correct", DEFAULT_BANDS, {50, 55, 60, 75, 100}, id="a-word-without-bands"),
        pytest.param("wrong", DEFAULT_BANDS, {0, 20, 49, 50, 55, 60}, id="the-other-end"),
        pytest.param("50-74", DEFAULT_BANDS, {50, 55, 60}, id="a-default-band-by-its-name"),
    ],
)
def test_a_number_must_not_contradict_its_outcome(word: str, bands: tuple[Band, ...], expected: set[int]) -> None:
    """It must be in the outcome's band; without bands of the criteria, not in the opposite one."""
    assert {n for n in (0, 20, 49, 50, 55, 60, 75, 100) if contradicted(word, n, bands) is None} == expected

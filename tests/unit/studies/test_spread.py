"""Bands of totals, counts of agreement, and a judge against itself."""

import math

import pytest

from tarsy_scoring.scores.bands import DEFAULT_BANDS, Band, band_of, bands_of
from tarsy_scoring.studies.spread import flip_rate, spread

OUTCOME_BANDS = bands_of({"correct": (60, 100), "wrong": (0, 34), "partial": (35, 59)})


def test_bands_are_in_order_and_hold_rounded_totals() -> None:
    """Both ends are inclusive; halves are rounded up; criteria may leave gaps."""
    expected = {0: "0-49", 49: "0-49", 49.5: "50-74", 50: "50-74", 74.4: "50-74", 75: "75-100", 100: "75-100"}

    assert {total: band_of(total, DEFAULT_BANDS) for total in expected} == expected
    assert band_of(45, [Band("bad", 0, 40), Band("good", 60, 100)]) is None
    assert [b.id for b in OUTCOME_BANDS] == ["wrong", "partial", "correct"]
    assert bands_of({}) == DEFAULT_BANDS


def test_flip_rate_is_the_share_of_pairs_in_different_bands() -> None:
    for bands, rate, by_band in (
        ("aaaaa", 0.0, {"a": 5}),
        ("baaaa", 0.4, {"a": 4, "b": 1}),
        ("bbaaa", 0.6, {"a": 3, "b": 2}),
        ("abc", 1.0, {"a": 1, "b": 1, "c": 1}),
    ):
        found = flip_rate(list(bands))
        assert (found["rate"], found["flipped"]) == (pytest.approx(rate), rate * found["pairs"])
        assert {one["band"]: one["count"] for one in found["by_band"]} == by_band
    assert [flip_rate(few)["rate"] for few in ([], ["a"])] == [None, None]


def test_spread_equals_that_worked_by_hand() -> None:
    found = spread([60, 70, 64, 66])

    assert found.pop("standard_deviation") == pytest.approx(math.sqrt((25 + 25 + 1 + 1) / 3))
    assert found == {"n": 4, "lowest": 60, "highest": 70, "width": 10, "mean": 65, "median": 64, "reason": None}
    assert (spread([60])["lowest"], spread([60])["width"], spread([])["lowest"]) == (60, None, None)

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
    cases: list[tuple[list[float], float, int, dict[str, int]]] = [
        ([60, 61, 62, 63, 64], 0.0, 0, {"50-74": 5}),
        ([48, 60, 60, 60, 60], 0.4, 4, {"50-74": 4, "0-49": 1}),
        ([48, 49, 50, 51, 52], 0.6, 6, {"50-74": 3, "0-49": 2}),
        ([40, 60, 80], 1.0, 3, {"0-49": 1, "50-74": 1, "75-100": 1}),
    ]

    for totals, rate, flipped, by_band in cases:
        found = flip_rate(totals)
        assert (found.rate, found.flipped, found.pairs) == (pytest.approx(rate), flipped, math.comb(len(totals), 2))
        assert (dict(found.by_band), found.reason) == (by_band, None)
    assert (flip_rate([55, 62]).rate, flip_rate([55, 62], OUTCOME_BANDS).rate) == (0, 1)
    assert (flip_rate([]).rate, flip_rate([]).reason) == (None, "a flip takes two judgements; there is none")
    assert flip_rate([60]).reason == "a flip takes two judgements; there is one"


def test_spread_equals_that_worked_by_hand() -> None:
    found = spread([60, 70, 64, 66])

    assert (found.n, found.lowest, found.highest, found.width, found.mean, found.median) == (4, 60, 70, 10, 65, 64)
    assert found.standard_deviation == pytest.approx(math.sqrt((25 + 25 + 1 + 1) / 3))
    assert (spread([]).width, spread([]).reason) == (None, "there is no judgement")
    assert (spread([60]).lowest, spread([60]).width, spread([60]).reason) == (60, None, "one judgement has no spread")

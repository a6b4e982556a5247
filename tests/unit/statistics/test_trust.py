"""The figures of a trust card, their reasons where there are none, and the effect of unequal probabilities."""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tarsy_scoring.scores.bands import DEFAULT_BANDS, Band
from tarsy_scoring.statistics.agreement import Estimate
from tarsy_scoring.statistics.trust import Rating, TrustCard, assumed_error, labels_needed, trust_card

LOW, MIDDLE, HIGH = IDS = tuple(b.id for b in DEFAULT_BANDS)
TOTALS = {LOW: 30.0, MIDDLE: 60.0, HIGH: 90.0}
# Raters 2 and 3 of the data set `anxiety` in the R package irr.
ANXIETY_2 = (3, 6, 4, 6, 2, 4, 2, 4, 3, 3, 2, 3, 3, 3, 2, 2, 1, 3, 3, 4)
ANXIETY_3 = (2, 1, 4, 4, 3, 2, 1, 6, 1, 1, 1, 2, 3, 3, 1, 1, 3, 3, 2, 2)


def card(ratings: Sequence[Rating]) -> TrustCard:
    return trust_card(ratings, DEFAULT_BANDS)


def rated(*counts: tuple[str, str, int], inclusion_probability: float = 1.0) -> list[Rating]:
    """So many ratings with that band of the label and of the judge, and the total in its middle."""
    return [
        Rating(said, judged, TOTALS[judged], None, inclusion_probability)
        for said, judged, times in counts
        for _ in range(times)
    ]


def table(*rows: Sequence[int]) -> list[Rating]:
    """The ratings that a table of labels (rows) and judgements counts."""
    return rated(*((IDS[i], IDS[j], rows[i][j]) for i, j in product(range(3), repeat=2)))


MIXED = table((8, 0, 2), (0, 6, 4), (1, 0, 12))


# --- values --------------------------------------------------------------------------------------------


def test_kappa_equals_that_by_hand_and_of_the_r_package_irr() -> None:
    """1 less the observed over the expected squared distance; `kappa2(anxiety[,2:3], "squared")`."""
    bands = [Band(str(i), i, i) for i in (1, 2, 3, 4, 6)]
    anxiety = [Rating(str(a), str(b), b) for a, b in zip(ANXIETY_2, ANXIETY_3, strict=True)]

    assert card(table((4, 1, 0), (1, 3, 1), (0, 1, 4))).kappa.value == pytest.approx(1 - 15 * 4 / 300)
    assert trust_card(anxiety, bands).kappa.value == pytest.approx(0.2520325, abs=5e-8)


def test_spearman_is_the_correlation_of_midranks() -> None:
    for x, y in (
        ([1, 2, 3, 4, 5], [2, 1, 4, 3, 5]),
        ([1, 2, 2, 3], [1, 2, 3, 4]),
        ([0, 0, 1, 1], [0, 1, 0, 1]),
        ([1, 2, 3], [30, 20, 10]),
    ):
        found = card([Rating(LOW, LOW, b, a) for a, b in zip(x, y, strict=True)]).spearman
        assert found.value == pytest.approx(stats.spearmanr(x, y).statistic)


def test_equal_probabilities_give_the_plain_values() -> None:
    certain, rare = card(MIXED), card([replace(r, inclusion_probability=0.05) for r in MIXED])

    assert rare.kappa.value == pytest.approx(certain.kappa.value)
    assert rare.spearman.value == pytest.approx(certain.spearman.value)
    assert rare.matched == 33
    assert rare.confusion.counts == ((8, 0, 2), (0, 6, 4), (1, 0, 12))
    assert rare.shares[0] == pytest.approx([8 / 33, 0, 2 / 33])


def test_a_label_is_weighted_by_its_inverse_probability() -> None:
    """With a probability of one third it counts as three in every value; the confusion counts labels."""
    source = random.Random(1)
    certain = [replace(r, number=r.total - source.randint(0, 30), total=r.total + source.randint(-9, 9)) for r in MIXED]
    rare = [replace(r, inclusion_probability=1 / 3) for r in certain[10:20]]

    weighed, repeated = card([*certain, *rare]), card([*certain, *certain[10:20] * 3])

    for one, other in (
        (weighed.kappa, repeated.kappa),
        (weighed.spearman, repeated.spearman),
        (weighed.mean_difference, repeated.mean_difference),
    ):
        assert one.value == pytest.approx(other.value)
    assert [v for row in weighed.shares for v in row] == pytest.approx([v for row in repeated.shares for v in row])
    assert sum(map(sum, weighed.shares)) == pytest.approx(1)
    assert (weighed.matched, weighed.confusion.n) == (43, 43)


def test_the_mean_difference_is_over_ratings_with_a_number() -> None:
    """It is positive for a milder judge; totals are ranked against numbers only if all ratings have one."""
    numbered = [replace(r, number=r.total - lean) for r, lean in zip(MIXED[:5], (4, 8, 6, 5, 7), strict=True)]

    found = card([*numbered, *MIXED[5:]])

    assert (found.mean_difference.value, found.mean_difference.n) == (pytest.approx(6), 5)
    assert found.mean_difference.low is not None
    assert found.mean_difference.low < 6
    assert found.spearman_over == "bands"
    assert card([replace(r, number=r.total) for r in MIXED]).spearman_over == "numbers"


def test_the_order_of_ratings_changes_nothing() -> None:
    ratings = [replace(r, number=float(i) if i % 2 else None) for i, r in enumerate(MIXED)]

    assert card(random.Random(3).sample(ratings, len(ratings))) == card(ratings)


# --- no value, no interval -----------------------------------------------------------------------------


def test_without_labels_there_is_a_first_plan() -> None:
    found = card([])

    assert (found.matched, found.shares, found.is_supposed, found.still_needed) == (0, (), True, 279)
    assert [e.value for e in (found.kappa, found.spearman, found.mean_difference)] == [None] * 3
    assert found.mean_difference.reason == "no label has a number"


def test_a_card_without_a_value_or_an_interval_says_why() -> None:
    heavy = rated((LOW, LOW, 4), (HIGH, MIDDLE, 4), inclusion_probability=0.01)
    perfect = "perfect agreement leaves no error to measure"
    cases: list[tuple[Sequence[Rating], float | None, str, str]] = [
        ([], None, "0 sessions cannot show agreement; it takes 3", "0 sessions cannot be ranked"),
        (MIXED[:2], None, "2 sessions cannot show agreement; it takes 3", "2 sessions cannot be ranked"),
        (table((9, 30, 5), (0,) * 3, (0,) * 3), None, f"every label is {LOW!r}", "one side gives every session the"),
        (rated((LOW, HIGH, 9), (HIGH, HIGH, 9)), None, f"every judgement is {HIGH!r}", "one side gives every session"),
        (table((20, 0, 0), (0, 7, 0), (0, 0, 3)), 1, perfect, "perfect order leaves no error"),
        (table((0, 0, 20), (0,) * 3, (20, 0, 0)), -1, "perfect disagreement leaves no", "perfect order leaves"),
        (MIXED[4:13], None, "9 sessions are too few for an interval; it takes 20", "9 sessions are too few for an int"),
        ([*MIXED, *heavy], None, "41 labels of unequal weight are worth 9, too few for", "41 labels of unequal weight"),
    ]

    for ratings, value, why_kappa, why_spearman in cases:
        found = card(ratings)
        for estimate, reason in ((found.kappa, why_kappa), (found.spearman, why_spearman)):
            assert (estimate.reason or "").startswith(reason), reason
            assert (estimate.low, estimate.high, estimate.standard_error) == (None, None, None)
        if value:
            assert (found.kappa.value, found.spearman.value) == pytest.approx((value, value))


def test_a_mean_difference_without_spread_has_no_interval() -> None:
    for differences, reason in (
        ((1, 2, 3, 4), "4 are too few for an interval; it takes 5"),
        ((3,) * 9, "the differences do not vary, which leaves no spread to measure"),
    ):
        found = card([replace(MIXED[0], number=MIXED[0].total - d) for d in differences]).mean_difference
        assert found.value == pytest.approx(statistics.fmean(differences))
        assert (found.low, found.reason) == (None, reason)


# --- how many labels -----------------------------------------------------------------------------------


def test_labels_needed_in_closed_form() -> None:
    """At kappa 0 half the interval is tanh(1.96 / √n); with two bands the error of one is √(1 - kappa²)."""
    by_hand = math.ceil((1.959964 / math.atanh(0.10)) ** 2)

    assert labels_needed(0.0, assumed_error(0.0, 3)) == labels_needed(0.0, assumed_error(0.0, 2)) == by_hand == 382
    assert assumed_error(0.6, 2) == pytest.approx(0.8)


def test_a_plan_is_fulfilled_exactly_when_the_interval_is_narrow_enough() -> None:
    error = 0.8 / math.sqrt(100)
    reach = 1.959963984540054 * error / (1 - 0.6**2)
    half_width = (math.tanh(math.atanh(0.6) + reach) - math.tanh(math.atanh(0.6) - reach)) / 2

    assert [labels_needed(0.6, 0.8, half_width * f) for f in (1, 1.001, 0.999)] == [100, 100, 101]


@given(st.floats(0, 0.95), st.floats(0.02, 0.4))
def test_a_narrower_interval_never_takes_fewer_labels(kappa: float, half_width: float) -> None:
    error = assumed_error(kappa, 3)

    assert 20 <= labels_needed(kappa, error, half_width) <= labels_needed(kappa, error, half_width / 2)


def test_a_plan_counts_the_existing_labels() -> None:
    few, many = card(MIXED), card(MIXED * 40)

    assert few.needed.total is not None
    assert few.still_needed == few.needed.total - 33 > 0
    assert not few.is_supposed
    assert many.still_needed == 0
    assert half_width(many.kappa) < half_width(few.kappa) / 5


def test_labels_of_unequal_weight_have_a_plan_too() -> None:
    """If they are worth fewer than 20 labels, the plan is an assumed one, enlarged by their lost weight."""
    for equal, rare, probability in ((33, 4, 0.05), (6, 1, 0.25), (33, 0, 1.0)):
        found = card([*MIXED[:equal], *rated((LOW, HIGH, rare), inclusion_probability=probability)])
        worth = (equal + rare / probability) ** 2 / (equal + rare / probability**2)  # Kish

        assert found.needed.total is not None
        assert found.still_needed == found.needed.total - equal - rare > 0
        assert found.is_supposed == (worth < 20)
        if found.is_supposed:
            assert found.needed.total == math.ceil(279 * (equal + rare) / worth) > 279


def half_width(estimate: Estimate) -> float:
    assert estimate.half_width is not None
    return estimate.half_width

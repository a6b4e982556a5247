"""Changes of a mean with known answers, checked against scipy's own tests."""

import random

import pytest
from scipy import stats

from tarsy_scoring.studies.estimates import NO_CHANGE, Estimate, change_within, less, paired_change, strata_of

DICE = random.Random(3)
FIRST = [DICE.gauss(60, 10) for _ in range(40)]
SECOND = [DICE.gauss(66, 20) for _ in range(25)]


def test_one_stratum_gives_the_test_of_welch() -> None:
    found, expected = change_within([(FIRST, SECOND)], 0.95), stats.ttest_ind(SECOND, FIRST, equal_var=False)
    interval = expected.confidence_interval(0.95)

    assert (found.estimate.low, found.estimate.high) == pytest.approx((interval.low, interval.high))
    assert found.chance == pytest.approx(expected.pvalue)


def test_strata_are_weighted_by_the_information_in_them() -> None:
    """Another mixture of strata alone is no change."""
    easy, hard = [80.0, 82.0, 78.0, 80.0] * 5, [20.0, 22.0, 18.0, 20.0] * 5
    before = [("easy", n) for n in easy] + [("hard", n) for n in hard[:4]] + [("alone", 50.0)]
    after = [("easy", n) for n in easy[:4]] + [("hard", n) for n in hard]

    strata = strata_of(before, after)

    assert len(strata) == 2
    assert change_within(strata, 0.95).estimate.value == pytest.approx(0)


def test_pairs_give_the_paired_test() -> None:
    changes = [after - before for before, after in zip(FIRST, SECOND, strict=False)]
    interval = stats.ttest_1samp(changes, 0).confidence_interval(0.98)

    found = paired_change(changes, 0.98).estimate

    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


def test_a_part_is_subtracted_with_its_error() -> None:
    whole, part = change_within([(FIRST, SECOND)], 0.95), paired_change([5.0, 7.0, 6.0, 8.0, 4.0], 0.95)
    rest = less(whole, part, 0.95)

    assert rest.estimate.value == pytest.approx((whole.estimate.value or 0) - 6)
    assert (rest.estimate.high or 0) - (rest.estimate.low or 0) > (whole.estimate.high or 0) - (whole.estimate.low or 0)
    assert less(whole, NO_CHANGE, 0.95).estimate == whole.estimate


def test_too_few_values_have_a_reason() -> None:
    few = change_within([([1.0, 2.0], [3.0, 4.0])], 0.95)

    assert (few.estimate.value, few.estimate.significance, few.chance) == (None, None, 1.0)
    assert few.estimate.reason == "2 and 2 sessions share their circumstances; it takes 5 of each"
    assert paired_change([1.0], 0.95).estimate == Estimate(
        1.0, None, None, 1, "1 sessions were judged by both judges; it takes 5"
    )
    assert less(few, NO_CHANGE, 0.95).estimate.reason == few.estimate.reason


def test_a_judge_that_repeats_itself_has_an_interval() -> None:
    """Rounding to whole points hides a variance."""
    found = paired_change([0.0] * 40, 0.98).estimate

    assert found.value == 0
    assert -0.5 < (found.low or 0) < 0 < (found.high or 0) < 0.5

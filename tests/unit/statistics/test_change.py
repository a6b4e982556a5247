"""Intervals and p-values against scipy, published tables and exact enumeration."""

import math
import random
import statistics

import pytest
from scipy import stats

from tarsy_scoring.statistics.agreement import Estimate
from tarsy_scoring.statistics.bootstrap import chance_of, estimate_difference, estimate_mean
from tarsy_scoring.statistics.change import (
    FEWEST_TO_COMPARE,
    LEAST_VARIANCE,
    Change,
    Moments,
    chance_of_change,
    change_of_moments,
    change_within,
    paired_change,
)
from tarsy_scoring.statistics.pairing import Stratum, pair_up


def draws(seed: int, n: int, mean: float = 50, deviation: float = 12) -> list[float]:
    source = random.Random(seed)
    return [source.gauss(mean, deviation) for _ in range(n)]


# --- strata --------------------------------------------------------------------------------------------


def test_strata_are_weighted_by_both_sizes() -> None:
    """n_a · n_b / (n_a + n_b), by hand: (1 · 4 + 4/3 · 1) / (1 + 4/3)."""
    strata = [Stratum([1, 1], [5, 5]), Stratum([0, 0], [0, 1, 1, 2])]

    assert estimate_difference(strata).value == pytest.approx((4 + 4 / 3) / (7 / 3))


def test_another_mix_of_strata_is_no_difference() -> None:
    """Easy alerts score 40 points above hard ones; one group has more of them: plain means differ by 20."""
    easy, hard = draws(1, 40, 80, 5), draws(2, 40, 40, 5)
    plain = estimate_difference([Stratum(easy[:10] + hard[:30], easy[10:] + hard[30:])])
    within = estimate_difference([Stratum(easy[:10], easy[10:]), Stratum(hard[:30], hard[30:])])

    assert plain.value == pytest.approx(20, abs=3)
    assert within.low is not None
    assert within.high is not None
    assert within.low < 0 < within.high < within.low + 8


def test_strata_without_both_groups_are_left_out() -> None:
    first, second = ("a1", "a2", "b5", "c8", "c8"), ("a3", "a4", "b6", "b7", "d9", "d9")
    a, b = (["a1", "a2"], ["a3", "a4"]), (["b5"], ["b6", "b7"])

    assert pair_up(first, second, lambda member: member[0]) == ([a], 3)
    assert pair_up(first, second, lambda member: member[0], fewest=1) == ([a, b], 2)


# --- bootstrap -----------------------------------------------------------------------------------------


def test_the_interval_of_a_large_sample_is_welchs() -> None:
    first, second = draws(1, 400), draws(2, 400, 55)

    found = estimate_difference([Stratum(first, second)])

    welch = stats.ttest_ind(second, first, equal_var=False).confidence_interval()
    assert (found.low, found.high) == pytest.approx((welch.low, welch.high), abs=0.15)


def test_small_strata_do_not_understate_their_variance() -> None:
    """Resampling n of n would halve the variance of 30 strata of two against two."""
    strata = [Stratum(draws(seed, 2), draws(seed + 100, 2)) for seed in range(30)]

    pooled = statistics.fmean(statistics.variance(group) for s in strata for group in (s.first, s.second))
    assert estimate_difference(strata).standard_error == pytest.approx(math.sqrt(pooled / 30), rel=0.1)


def test_the_interval_of_a_mean_is_students() -> None:
    values = [3, -1, 4, 1, -5, 9, 2, 6, 5, 3]

    found = estimate_mean(values, resamples=8000)

    low, high = stats.t.interval(0.95, 9, loc=2.7, scale=stats.sem(values))
    assert (found.value, found.n) == (pytest.approx(2.7), 10)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.4)


def test_the_order_of_values_and_strata_changes_nothing() -> None:
    strata = [Stratum(draws(seed, 7), draws(seed + 50, 9)) for seed in range(4)]
    turned = [Stratum(s.first[::-1], s.second[::-1]) for s in reversed(strata)]

    assert estimate_difference(strata) == estimate_difference(turned)
    assert chance_of(strata, 300) == chance_of(turned, 300)


def test_resampling_in_blocks_gives_one_sample() -> None:
    """3,000 values are drawn in blocks of some 350 rows."""
    first, second = draws(1, 3000), draws(2, 3000)

    found = estimate_difference([Stratum(first, second)], resamples=800)

    assert found.standard_error == pytest.approx(12 * math.sqrt(2 / 3000), rel=0.1)
    assert chance_of([Stratum(first, second)], 800) == pytest.approx(stats.ttest_ind(first, second).pvalue, abs=0.05)


def test_no_interval_without_spread_or_values() -> None:
    """There is only the value, with the reason."""
    cases: list[tuple[Estimate, float | None, str]] = [
        (estimate_difference([]), None, "no stratum"),
        (estimate_difference([Stratum([1, 2, 3, 4], [5, 6, 7, 8, 9])]), 4.5, "4 and 5 are too few"),
        (estimate_difference([Stratum([i], [i + 2.0]) for i in range(9)]), 2, "2 in every stratum"),
        (estimate_difference([Stratum([1] * 9, [0, 1] * 9)]), -0.5, "does not vary"),
        (estimate_difference([Stratum([1] * 9, [0] * 9)]), -1, "does not vary"),
        (estimate_mean([]), None, "no value"),
        (estimate_mean([1, 2, 3, 4]), 2.5, "4 are too few"),
        (estimate_mean([2] * 8), 2, "do not vary"),
    ]

    for found, value, reason in cases:
        assert (found.low, found.high) == (None, None), reason
        assert found.value == (value if value is None else pytest.approx(value)), reason
        assert reason in (found.reason or "")
    assert estimate_difference([Stratum([1, 2, 3, 4, 5], [3, 4, 5, 6, 8])]).low is not None


# --- permutation test ----------------------------------------------------------------------------------


def test_chance_is_the_share_of_all_permutations() -> None:
    """All ways to distribute the values over the two groups are counted by hand."""
    cases = [
        ([Stratum([1, 2, 3], [4, 5, 6])], 2 / 20),  # of C(6, 3)
        ([Stratum([1], [2, 3, 4])], 2 / 4),
        ([Stratum([1, 1], [1, 1, 1])], 1),
        ([Stratum([1], [2]), Stratum([1], [2]), Stratum([1], [2])], 2 / 8),
        ([Stratum([1], [2, 3]), Stratum([5, 6], [7])], 2 / 9),
        ([Stratum([9], [0, 0]), Stratum([9, 0], [0])], 4 / 9),
    ]

    for strata, exact in cases:
        assert chance_of(strata, 4000) == pytest.approx(exact, abs=0.02), strata
    assert chance_of([Stratum(draws(1, 50), draws(2, 50, 500))], 199) == 1 / 200


# --- Student's t ---------------------------------------------------------------------------------------


def test_changes_and_p_values_equal_those_of_the_t_test() -> None:
    before, after = draws(1, 30), draws(2, 20, 58, 6)

    within = change_within([Stratum(before, after)], 0.98)
    from_sums = change_of_moments(*(Moments(len(g), sum(g), sum(x * x for x in g)) for g in (before, after)), 0.98)
    paired = paired_change([b - a for a, b in zip(before, after, strict=False)], 0.98)

    for found, theirs in (
        (within, stats.ttest_ind(after, before, equal_var=False)),
        (from_sums, stats.ttest_ind(after, before, equal_var=False)),
        (paired, stats.ttest_rel(after, before[:20])),
    ):
        interval = theirs.confidence_interval(0.98)
        assert (found.estimate.low, found.estimate.high) == pytest.approx((interval.low, interval.high))
        assert chance_of_change(found) == pytest.approx(theirs.pvalue)
    assert chance_of_change(Change(Estimate(0.0, 0.0, 0.0, 0, 0.0, "one judge"))) == 1


def test_too_few_totals_give_no_change() -> None:
    few, enough = Moments(FEWEST_TO_COMPARE - 1, 40.0, 400.0), Moments(FEWEST_TO_COMPARE, 50.0, 500.0)
    for pair in ((few, enough), (enough, few)):
        found = change_of_moments(*pair, 0.95).estimate
        assert (found.value, found.standard_error) == (None, None)
    assert change_of_moments(enough, enough, 0.95).estimate.value == 0


def test_equal_totals_have_the_variance_that_rounding_hides() -> None:
    assert Moments(5, 250.0, 12500.0).variance == LEAST_VARIANCE

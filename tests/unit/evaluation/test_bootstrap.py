"""What intervals and shuffles of means promise, and that they keep it."""

import math
import random
import statistics

import pytest

from tarsy_scoring.statistics.bootstrap import (
    Stratum,
    chance_of,
    estimate_difference,
    estimate_mean,
    shared_strata,
    student_quantile,
)


def draws(seed: int, n: int, mean: float = 50, deviation: float = 12) -> list[float]:
    source = random.Random(seed)
    return [source.gauss(mean, deviation) for _ in range(n)]


# --- the estimate --------------------------------------------------------------------------------------


def test_strata_weigh_by_both_their_sizes() -> None:
    """n_a · n_b / (n_a + n_b), worked by hand: (1 · 4 + 4/3 · 1) / (1 + 4/3)."""
    strata = [Stratum([1, 1], [5, 5]), Stratum([0, 0], [0, 1, 1, 2])]

    assert estimate_difference(strata).value == pytest.approx((4 + 4 / 3) / (7 / 3))


def test_a_difference_of_mixtures_is_no_difference() -> None:
    """Easy alerts are 40 points above hard ones, and one group has more of them: plain means differ by 20."""
    easy, hard = draws(1, 40, 80, 5), draws(2, 40, 40, 5)
    first, second = {"easy": easy[:10], "hard": hard[:30]}, {"easy": easy[10:], "hard": hard[30:]}

    plain = estimate_difference([Stratum(easy[:10] + hard[:30], easy[10:] + hard[30:])])
    within = estimate_difference(shared_strata(first, second))

    assert plain.value is not None
    assert plain.value == pytest.approx(20, abs=3)
    assert within.low is not None
    assert within.high is not None
    assert within.low < 0 < within.high
    assert within.high - within.low < 8


@pytest.mark.parametrize(
    ("fewest", "shared"), [(2, [Stratum([1, 2], [3, 4])]), (1, [Stratum([1, 2], [3, 4]), Stratum([5], [6, 7])])]
)
def test_strata_without_both_groups_are_left_out(fewest: int, shared: list[Stratum]) -> None:
    """Also one with a single value of a group, unless that is enough."""
    first, second = {"a": [1, 2], "b": [5], "c": [8, 8]}, {"a": [3, 4], "b": [6, 7], "d": [9, 9]}

    assert shared_strata(first, second, fewest=fewest) == shared


# --- the interval --------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(6, 6), (12, 30)], ids=["few", "uneven"])
def test_intervals_cover_the_truth(sizes: tuple[int, int]) -> None:
    """About 95 of 100 intervals of a difference of 3 hold 3; below 92 % would be broken, as 100 % would be."""
    seeds, covered = 600, 0
    for seed in range(seeds):
        source = random.Random(seed)
        first, second = ([source.gauss(mean, 12) for _ in range(n)] for mean, n in zip((50, 53), sizes, strict=True))
        found = estimate_difference([Stratum(first, second)], resamples=400)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 3 <= found.high

    assert 0.92 * seeds < covered < 0.98 * seeds


def test_small_strata_are_not_sure_of_themselves() -> None:
    """Resampling pairs as they are would halve their variance: 30 strata of two against two."""
    strata = [Stratum(draws(seed, 2), draws(seed + 100, 2)) for seed in range(30)]

    found = estimate_difference(strata)

    pooled = statistics.fmean(statistics.variance(group) for s in strata for group in (s.first, s.second))
    assert found.standard_error == pytest.approx(math.sqrt(pooled / 2 * 2 / 30), rel=0.1)


def test_an_interval_of_many_is_the_one_of_the_textbook() -> None:
    """Of 400 against 400 normal values: the difference plus and minus 1.96 standard errors."""
    first, second = draws(1, 400), draws(2, 400, 55)

    found = estimate_difference([Stratum(first, second)], resamples=4000)

    reach = 1.96 * math.sqrt(statistics.variance(first) / 400 + statistics.variance(second) / 400)
    assert found.value == pytest.approx(statistics.fmean(second) - statistics.fmean(first))
    assert (found.low, found.high) == (
        pytest.approx(found.value - reach, abs=0.15),
        pytest.approx(found.value + reach, abs=0.15),
    )


def test_more_confidence_is_wider() -> None:
    """99 % holds 95 %."""
    strata = [Stratum(draws(1, 20), draws(2, 20))]
    narrow, wide = estimate_difference(strata), estimate_difference(strata, confidence=0.99)

    assert wide.low < narrow.low < narrow.high < wide.high  # type: ignore[operator]


def test_the_order_of_values_and_strata_changes_no_byte() -> None:
    """The same values, whoever reads them first."""
    strata = [Stratum(draws(seed, 7), draws(seed + 50, 9)) for seed in range(4)]
    turned = [Stratum(s.first[::-1], s.second[::-1]) for s in reversed(strata)]

    assert estimate_difference(strata) == estimate_difference(turned)
    assert chance_of(strata, 300) == chance_of(turned, 300)


@pytest.mark.parametrize(
    ("strata", "value", "reason"),
    [
        pytest.param([], None, "no stratum", id="nothing"),
        pytest.param([Stratum([1, 2, 3, 4], [5, 6, 7, 8, 9])], 4.5, "4 and 5 are too few", id="four-of-one"),
        pytest.param([Stratum([i], [i + 2.0]) for i in range(9)], 2, "2 in every stratum", id="one-each-in-a-stratum"),
        pytest.param([Stratum([1] * 9, [0, 1] * 9)], -0.5, "does not vary", id="one-side-all-alike"),
        pytest.param([Stratum([1] * 9, [0] * 9)], -1, "does not vary", id="both-all-alike"),
    ],
)
def test_no_interval_without_a_spread(strata: list[Stratum], value: float | None, reason: str) -> None:
    """The difference stands alone, with the reason."""
    found = estimate_difference(strata)

    assert (found.value, found.low, found.high) == (value if value is None else pytest.approx(value), None, None)
    assert found.reason is not None
    assert reason in found.reason


def test_five_of_each_are_enough() -> None:
    """The fewest with an interval."""
    assert estimate_difference([Stratum([1, 2, 3, 4, 5], [3, 4, 5, 6, 8])]).low is not None


# --- paired differences --------------------------------------------------------------------------------


def test_the_interval_of_a_mean() -> None:
    """Student's: for ten values 2.262 standard errors to either side."""
    values = [3, -1, 4, 1, -5, 9, 2, 6, 5, 3]

    found = estimate_mean(values, resamples=8000)

    reach = 2.262 * statistics.stdev(values) / math.sqrt(10)
    assert (found.value, found.n) == (pytest.approx(2.7), 10)
    assert found.low == pytest.approx(2.7 - reach, abs=0.4)
    assert found.high == pytest.approx(2.7 + reach, abs=0.4)


@pytest.mark.parametrize(
    ("values", "value", "reason"),
    [([], None, "no value"), ([1, 2, 3, 4], 2.5, "4 are too few"), ([2] * 8, 2, "do not vary")],
    ids=["none", "four", "all alike"],
)
def test_no_interval_of_a_mean(values: list[float], value: float | None, reason: str) -> None:
    """None, and why."""
    found = estimate_mean(values)

    assert (found.value, found.low, found.high) == (value, None, None)
    assert found.reason is not None
    assert reason in found.reason


@pytest.mark.parametrize(
    ("confidence", "freedom", "printed"),
    [(0.95, 4, 2.776), (0.95, 39, 2.023), (0.98, 4, 3.747), (0.98, 39, 2.426), (0.98, math.inf, 2.326)],
)
def test_students_quantiles_are_those_of_the_tables(confidence: float, freedom: float, printed: float) -> None:
    """Two-sided; with endless degrees of freedom the normal ones."""
    assert student_quantile(confidence, freedom) == pytest.approx(printed, rel=2e-3)


# --- chance --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strata", "exact"),
    [
        pytest.param([Stratum([1, 2, 3], [4, 5, 6])], 2 / 20, id="a-clean-cut"),  # of C(6, 3) ways
        pytest.param([Stratum([1], [2, 3, 4])], 2 / 4, id="uneven-as-large-either-way"),
        pytest.param([Stratum([1, 1], [1, 1, 1])], 1, id="all-alike"),
        pytest.param([Stratum([1], [2]), Stratum([1], [2]), Stratum([1], [2])], 2 / 8, id="three-pairs"),
        pytest.param([Stratum([1], [2, 3]), Stratum([5, 6], [7])], 2 / 9, id="either-side-the-smaller"),
        pytest.param([Stratum([9], [0, 0]), Stratum([9, 0], [0])], 4 / 9, id="skewed-either-side-the-smaller"),
    ],
)
def test_chance_is_the_share_of_all_ways(strata: list[Stratum], exact: float) -> None:
    """Counted by hand over every way to deal the values to the two groups."""
    assert chance_of(strata, 4000) == pytest.approx(exact, abs=0.02)


def test_chance_is_never_zero() -> None:
    """What was seen is one of the ways."""
    assert chance_of([Stratum(draws(1, 50), draws(2, 50, 500))], 199) == 1 / 200

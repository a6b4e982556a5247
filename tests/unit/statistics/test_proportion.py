"""Weighted shares with Wilson's interval, and the chance that a share rose."""

import pytest
from scipy import stats

from tarsy_scoring.statistics.proportion import chance_of_rise, share_of

# Source of the ends: statsmodels, proportion_confint(k, n, method="wilson").
WILSON = [(31, 40, 0.6250, 0.8768), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (1, 1, 0.2065, 1.0)]


@pytest.mark.parametrize(("holding", "n", "low", "high"), WILSON)
def test_equal_weights_give_the_plain_share(holding: int, n: int, low: float, high: float) -> None:
    found = share_of([(i < holding, 7.0) for i in range(n)])

    assert (found.value, found.n) == (pytest.approx(holding / n), n)
    assert (found.low, found.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_cases_of_little_weight_hardly_count() -> None:
    """The interval is that of the cases which carry the information."""
    few = [(True, 1.0)] * 9 + [(False, 1.0)]

    found, alone = share_of([*few, *[(False, 1e-6)] * 1000]), share_of(few)

    assert (found.value, found.low, found.high) == (
        pytest.approx(alone.value, abs=0.001),
        pytest.approx(alone.low, abs=0.001),
        pytest.approx(alone.high, abs=0.001),
    )


@pytest.mark.parametrize(
    ("before", "cases_before", "now", "cases_now"),
    [(6, 31, 15, 26), (0, 31, 26, 26), (1, 31, 2, 26), (300, 9000, 380, 9000), (30, 31, 26, 26), (2, 2, 900, 901)],
    ids=["rise", "all", "little", "many", "nearly-all", "no-rise"],
)
def test_the_chance_of_a_rise_is_that_of_the_exact_test(
    before: int, cases_before: int, now: int, cases_now: int
) -> None:
    cells = [[now, cases_now - now], [before, cases_before - before]]
    exact = stats.fisher_exact(cells, "greater").pvalue if now / cases_now > before / cases_before else 1.0

    assert chance_of_rise(before, cases_before, now, cases_now) == pytest.approx(exact, rel=1e-6)


def test_an_empty_group_shows_no_rise() -> None:
    assert chance_of_rise(0, 0, 5, 5) == chance_of_rise(0, 5, 0, 0) == 1.0

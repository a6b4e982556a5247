"""Weighted shares with Wilson's interval."""

import pytest

from tarsy_scoring.statistics.proportion import share_of

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

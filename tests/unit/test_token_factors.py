"""How the token factor of a provider follows the token counts that its calls report."""

import pytest

from tables import table
from tarsy_scoring.limits.token_calibration import REPORTS_TO_FALL, FactorReports

ESTIMATED = 10_000


def follow(factor: float, *ratios: float, estimated: int = ESTIMATED) -> float:
    """The factor after these reports."""
    reports = FactorReports()
    for ratio in ratios:
        factor = reports.factor_after(factor, estimated, round(ratio * estimated))
    return factor


@table
def test_the_factor_rises_at_once(ratios: list[float], factor: float) -> None:
    """A prompt that is too long wastes a call; steps of 0.05 keep contexts the same."""
    assert follow(1.0, *ratios) == factor


@pytest.mark.parametrize(("estimated", "factor"), [(999, 1.0), (1_000, 2.0)], ids=["small", "large-enough"])
def test_small_prompts_do_not_change_the_factor(estimated: int, factor: float) -> None:
    """A provider may add twenty tokens of its own to a prompt of ten."""
    assert follow(1.0, 2.0, estimated=estimated) == factor


@pytest.mark.parametrize(
    ("ratios", "factor"),
    [
        pytest.param([1.2] * (REPORTS_TO_FALL - 1), 4.0, id="one-too-few"),
        pytest.param([1.2] * REPORTS_TO_FALL, 1.2, id="enough"),
        pytest.param([1.2, 1.62, *[1.1] * (REPORTS_TO_FALL - 2)], 1.65, id="to-the-highest-of-them"),
        pytest.param([1.2] * 19 + [4.0] + [1.2] * 19, 4.0, id="one-as-high-in-between"),
        pytest.param([1.2] * 19 + [4.0] + [1.2] * 20, 1.2, id="in-a-row-at-last"),
        pytest.param([3.96] * 2 * REPORTS_TO_FALL, 4.0, id="within-the-step"),
        pytest.param([1.2] * REPORTS_TO_FALL + [1.0] * 19, 1.2, id="then-it-holds"),
        pytest.param([1.2] * REPORTS_TO_FALL + [1.0] * 20, 1.0, id="then-it-falls-again"),
    ],
)
def test_one_absurd_report_is_forgotten(ratios: list[float], factor: float) -> None:
    """Only after twenty lower reports in a row."""
    assert follow(4.0, *ratios) == factor

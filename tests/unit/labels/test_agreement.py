"""Kappa with known answers, its interval, and how many labels it takes."""

import pytest

from tarsy_scoring.labels.agreement import FIRST_PLAN, HALF_WIDTH, Confusion, in_words, kappa_of, labels_needed

BANDS = ("wrong", "partial", "correct")


def table(*counts: tuple[int, ...]) -> Confusion:
    return Confusion(BANDS[: len(counts)], counts)


def test_kappa_of_two_bands_is_that_of_the_textbook() -> None:
    """Cohen's kappa 0.4 with a standard error of 0.1265: the example 20, 5, 10, 15 of many textbooks."""
    found = kappa_of(table((20, 5), (10, 15)))

    assert (found.value, found.n) == (pytest.approx(0.4), 50)
    assert found.low == pytest.approx(0.4 - 1.96 * 0.1271, abs=0.002)
    assert found.high == pytest.approx(0.4 + 1.96 * 0.1271, abs=0.002)


def test_a_miss_by_two_bands_weighs_four_times_as_much() -> None:
    near, far = kappa_of(table((20, 5, 0), (0, 20, 0), (0, 0, 20))), kappa_of(table((20, 0, 5), (0, 20, 0), (0, 0, 20)))

    assert near.value is not None
    assert far.value is not None
    assert 1 - far.value > 3.5 * (1 - near.value)


@pytest.mark.parametrize(
    ("counts", "value", "reason"),
    [
        pytest.param(((0, 0), (0, 0)), None, "there is no label", id="none"),
        pytest.param(((0, 0), (9, 9)), None, "two bands", id="one band of labels"),
        pytest.param(((0, 9), (0, 9)), None, "two bands", id="one band of judgements"),
        pytest.param(((4, 0), (0, 4)), 1.0, "8 labels are too few", id="few"),
        pytest.param(((20, 0), (0, 20)), 1.0, "no error to measure", id="perfect"),
    ],
)
def test_what_labels_do_not_support_is_none_with_a_reason(
    counts: tuple[tuple[int, ...], ...], value: float | None, reason: str
) -> None:
    found = kappa_of(table(*counts))

    assert (found.value, found.low, found.high) == (value, None, None)
    assert reason in (found.reason or "")
    assert labels_needed(found) == FIRST_PLAN
    assert reason in in_words(found, table(*counts))


def test_the_labels_needed_bring_the_interval_within_the_half_width() -> None:
    found = kappa_of(table((20, 5), (10, 15)))

    assert found.high is not None
    reach = found.high - (found.value or 0)
    assert labels_needed(found) == pytest.approx(50 * (reach / HALF_WIDTH) ** 2, abs=1)

"""How well totals tell right conclusions from wrong ones: AUC, its intervals, and the sessions in the wrong order."""

import math
import random

import pytest

from tarsy_scoring.statistics.discrimination import (
    BOOTSTRAP_METHOD,
    NEWCOMBE_METHOD,
    Case,
    auc,
    auc_difference,
    lower_end_at_one,
    misranked,
)

Z = 1.959963984540054


def cases(*rows: tuple[bool, float | None, str, str]) -> list[Case]:
    return [Case(f"s-{i:03}", *row) for i, row in enumerate(rows)]


def in_one_source(right: list[float | None], wrong: list[float | None]) -> list[Case]:
    """Sessions of one source, each an incident of its own."""
    outcomes = [(True, total) for total in right] + [(False, total) for total in wrong]
    return cases(*((is_right, total, "s", str(i)) for i, (is_right, total) in enumerate(outcomes)))


def test_auc_is_the_share_of_pairs_in_order_and_a_tie_counts_half() -> None:
    """By hand: 80 wins three pairs; 50 wins one and ties one: (3 + 1.5) / 6."""
    found = auc(in_one_source([80, 50], [20, 50, 70]), within_source=True)
    assert found.value == pytest.approx(4.5 / 6)
    assert found.n == 5


def test_a_session_without_a_total_loses_all_its_pairs() -> None:
    assert auc(in_one_source([80, None], [20]), within_source=True).value == 0.5
    assert auc(in_one_source([80, 70], [20, None]), within_source=True).value == 0.5
    assert auc(in_one_source([None], [None]), within_source=True).value == 0.0


def test_pairs_of_two_sources_count_only_when_pooled() -> None:
    """The totals of the sources are far apart: within each source the order is right, between them it is not."""
    rows = cases((True, 40, "a", "1"), (False, 30, "a", "2"), (True, 90, "b", "3"), (False, 80, "b", "4"))
    assert auc(rows, within_source=True).value == 1.0
    assert auc(rows, within_source=False).value == 0.75


def test_without_a_pair_there_is_no_auc() -> None:
    rows = cases((True, 40, "a", "1"), (False, 30, "b", "2"))
    found = auc(rows, within_source=True)
    assert found.value is None
    assert found.reason == "1 right and 1 wrong sessions form no pair of one source"


def test_newcombes_end_is_wilsons_with_one_pair() -> None:
    """Wilson's interval of one success in one trial begins at 1 / (1 + z squared)."""
    assert lower_end_at_one([(1, 1)]) == pytest.approx(1 / (1 + Z * Z))


@pytest.mark.parametrize(("m", "n"), [(5, 5), (11, 13), (2, 40)])
def test_newcombes_end_solves_his_equation(m: int, n: int) -> None:
    """1 - theta = z * standard error, by the formula of Hanley and McNeil with (m + n) / 2 for both sizes."""
    theta, size = lower_end_at_one([(m, n)]), (m + n) / 2
    one_right, one_wrong = theta / (2 - theta), 2 * theta**2 / (1 + theta)
    variance = theta * (1 - theta) + (size - 1) * (one_right - theta**2) + (size - 1) * (one_wrong - theta**2)
    assert 1 - theta == pytest.approx(Z * math.sqrt(variance / (m * n)))


def test_several_sources_are_less_certain_than_one_of_the_same_sessions() -> None:
    assert lower_end_at_one([(3, 3), (3, 3)]) < lower_end_at_one([(6, 6)])
    assert lower_end_at_one([(3, 3), (3, 3)]) > lower_end_at_one([(3, 3)])


def test_the_interval_at_zero_and_one_is_newcombes() -> None:
    best = auc(in_one_source([80, 90], [20, 30]), within_source=True)
    worst = auc(in_one_source([20, 30], [80, 90]), within_source=True)
    assert (best.method, best.low, best.high) == (NEWCOMBE_METHOD, lower_end_at_one([(2, 2)]), 1.0)
    assert (worst.low, worst.high) == (0.0, pytest.approx(1 - lower_end_at_one([(2, 2)])))


def test_the_standard_error_is_that_of_the_resamples_counted_by_hand() -> None:
    """
    Of three incidents two are drawn. The AUC is 1 for aa, cc and ac, 0 for bb, 3/4 for ab and 1/2 for bc, where
    each pair of unlike letters has the chance 2/9: the mean is 6.5/9, the mean square 5.625/9.
    """
    rows = cases(
        *((True, 80, "s", "a"), (False, 20, "s", "a"), (True, 60, "s", "b")),
        *((False, 70, "s", "b"), (True, 50, "s", "c"), (False, 40, "s", "c")),
    )
    found = auc(rows, within_source=True, resamples=20_000)
    assert found.value == pytest.approx(7 / 9)
    assert found.standard_error == pytest.approx(math.sqrt(5.625 / 9 - (6.5 / 9) ** 2), abs=0.005)
    assert (found.low, found.high, found.method) == (0.0, 1.0, BOOTSTRAP_METHOD)


def noisy(seed: int, shift: float, incidents: int = 12) -> list[Case]:
    draw = random.Random(seed)
    rows = [(i % 2 == 0, draw.gauss(50 + shift * (i % 2 == 0), 15), "s", str(i // 4)) for i in range(4 * incidents)]
    return cases(*rows)


def test_sessions_repeated_within_their_incident_narrow_nothing() -> None:
    rows = noisy(1, 10)
    again = [Case(f"{c.session_id}-again", c.is_right, c.total, c.source, c.incident) for c in rows]
    once, twice = auc(rows, within_source=True), auc([*rows, *again], within_source=True)
    assert (once.low, once.high) == (pytest.approx(twice.low), pytest.approx(twice.high))


def test_the_order_of_sessions_changes_nothing() -> None:
    rows = noisy(2, 10)
    assert auc(rows, within_source=False) == auc(rows[::-1], within_source=False)


def test_the_interval_holds_the_value_and_lies_between_zero_and_one() -> None:
    for seed in range(5):
        found = auc(noisy(seed, 15), within_source=True)
        assert found.value is not None
        assert found.low is not None
        assert found.high is not None
        assert 0 <= found.low < found.value < found.high <= 1


def test_few_incidents_give_no_interval() -> None:
    rows = cases((True, 40, "s", "1"), (False, 50, "s", "1"), (True, 60, "s", "2"))
    found = auc(rows, within_source=True)
    assert (found.value, found.low) == (0.5, None)
    assert found.reason == "2 are too few incidents for an interval; it takes 3"


def test_a_paired_difference_is_narrower_than_the_two_intervals() -> None:
    """Both judges see the same sessions, and one adds a little noise to the other's totals."""
    first, draw = noisy(3, 12), random.Random(4)
    second = [
        Case(c.session_id, c.is_right, (c.total or 0) + 8 * c.is_right + draw.gauss(0, 1), c.source, c.incident)
        for c in first
    ]
    found = auc_difference(first, second, within_source=True)
    alone = [auc(rows, within_source=True) for rows in (first, second)]
    assert found.value == pytest.approx((alone[1].value or 0) - (alone[0].value or 0))
    assert found.half_width is not None
    assert found.half_width < max(a.half_width or 0 for a in alone)
    assert found.low is not None
    assert found.low > 0


def test_the_difference_of_equal_judges_is_zero_without_an_interval() -> None:
    rows = noisy(5, 10)
    found = auc_difference(rows, rows, within_source=True)
    assert (found.value, found.low) == (0.0, None)
    assert found.reason == "resamples do not differ, which leaves no spread to measure"


def test_misranked_sessions_are_listed_with_their_lost_pairs() -> None:
    rows = in_one_source([80, 50], [20, 50, None])
    found = [(m.session_id, m.lost, m.pairs) for m in misranked(rows, within_source=True)]
    assert found == [("s-004", 2.0, 2), ("s-001", 1.5, 3), ("s-000", 1.0, 3), ("s-003", 0.5, 2)]

"""Agreement against published and hand-worked numbers, its invariants, and input that carries no number."""

import math
from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from tarsy_scoring.statistics.agreement import (
    DEFAULT_BANDS,
    FEWEST_FOR_A_KAPPA_INTERVAL,
    FEWEST_FOR_A_SPEARMAN_INTERVAL,
    Band,
    Weights,
    band_of,
    bands_of,
    confusion,
    flip_rate,
    kappa_of,
    labels_needed,
    spearman,
    spread,
    weighted_kappa,
)

THREE = ("low", "middle", "high")
Table = Sequence[Sequence[int]]


def rows_of(table: Table, times: int = 1) -> list[tuple[str, str]]:
    """The pairs that a table counts; its categories are `THREE`, or "0", "1", ... for other sizes."""
    names = names_of(table)
    cells = product(range(len(table)), repeat=2)
    return [(names[i], names[j]) for i, j in cells for _ in range(times * table[i][j])]


def names_of(table: Table) -> tuple[str, ...]:
    return THREE if len(table) == 3 else tuple(map(str, range(len(table))))


# --- published and hand-worked numbers -----------------------------------------------------------------

# The skin condition study of the manual of SAS, PROC FREQ, "Agreement Study": 88 patients, two dermatologists.
SKIN_CONDITION = ((10, 4, 1, 0), (5, 10, 12, 2), (2, 4, 12, 5), (0, 2, 6, 13))
# The SAS printout that the tests of statsmodels hold cohens_kappa against: 19 ratings.
STATSMODELS = ((0, 4, 1), (0, 8, 0), (0, 1, 5))
# Raters 2 and 3 of the data set `anxiety` in the R package irr.
ANXIETY_2 = (3, 6, 4, 6, 2, 4, 2, 4, 3, 3, 2, 3, 3, 3, 2, 2, 1, 3, 3, 4)
ANXIETY_3 = (2, 1, 4, 4, 3, 2, 1, 6, 1, 1, 1, 2, 3, 3, 1, 1, 3, 3, 2, 2)


@pytest.mark.parametrize(
    ("weights", "by_hand"),
    [
        # 15 pairs, 4 of them one step apart; every margin is 5, so each cell off the diagonal weighs 25: six of
        # them, or four at distance 1 and two at distance 2, or at 4.
        pytest.param("unweighted", 1 - 15 * 4 / 150, id="unweighted"),
        pytest.param("linear", 1 - 15 * 4 / 200, id="linear"),
        pytest.param("quadratic", 1 - 15 * 4 / 300, id="quadratic"),
    ],
)
def test_kappa_as_worked_by_hand(weights: Weights, by_hand: float) -> None:
    """0.6, 0.7 and 0.8: 1 less the observed over the expected distance."""
    assert weighted_kappa(rows_of([[4, 1, 0], [1, 3, 1], [0, 1, 4]]), THREE, weights).value == pytest.approx(by_hand)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        pytest.param("unweighted", -0.006289308, id="unweighted"),
        pytest.param("linear", 0.1459075, id="equal"),
        pytest.param("quadratic", 0.2520325, id="squared"),
    ],
)
def test_kappa_as_the_r_package_irr_gives_it(weights: Weights, expected: float) -> None:
    """`kappa2(anxiety[,2:3], weights)`, with the categories that occur."""
    rows = [(str(a), str(b)) for a, b in zip(ANXIETY_2, ANXIETY_3, strict=True)]

    assert weighted_kappa(rows, ["1", "2", "3", "4", "6"], weights).value == pytest.approx(expected, abs=5e-8)


def test_kappa_and_its_error_as_sas_prints_them() -> None:
    """Simple kappa 0.3449 with an asymptotic standard error of 0.0724, over 88 patients."""
    estimate = weighted_kappa(rows_of(SKIN_CONDITION), names_of(SKIN_CONDITION), "unweighted")

    assert estimate.value == pytest.approx(0.3449, abs=5e-5)
    assert estimate.standard_error == pytest.approx(0.0724, abs=5e-5)


@pytest.mark.parametrize(
    ("weights", "value", "error"),
    [
        pytest.param("unweighted", 0.4842, 0.1380, id="simple"),
        pytest.param("linear", 0.4701, 0.1457, id="weighted"),
    ],
)
def test_the_error_of_a_weighted_kappa_as_sas_prints_it(weights: Weights, value: float, error: float) -> None:
    """Counted twice, to have enough for an interval: the same kappa, the error over the root of two."""
    estimate = weighted_kappa(rows_of(STATSMODELS, times=2), THREE, weights)

    assert estimate.value == pytest.approx(value, abs=5e-5)
    assert estimate.standard_error is not None
    assert estimate.standard_error * math.sqrt(2) == pytest.approx(error, abs=5e-5)


def test_kappa_of_a_table_of_weights() -> None:
    """Only their ratios count; perfect agreement is exactly 1, and one category on both sides leaves no chance."""
    counts = [[8, 0, 2], [0, 6, 4], [1, 0, 12]]

    known = kappa_of(counts)

    assert known == pytest.approx(1 - 33 * (4 * 3 + 4) / (4 * (10 * 18 + 13 * 9) + 10 * 6 + 10 * 9 + 10 * 18 + 13 * 6))
    assert kappa_of([[cell / 7 for cell in row] for row in counts]) == pytest.approx(known)
    assert kappa_of([[0.1, 0], [0, 0.7]]) == 1
    assert kappa_of([[5, 0], [0, 0]]) is None


def test_kappa_and_its_interval_in_closed_form() -> None:
    """Two bands with equal margins: the error is the root of (1 - kappa²) / n, here 0.08; the interval is on z."""
    estimate = weighted_kappa(rows_of([[40, 10], [10, 40]]), ["0", "1"])

    assert estimate.value == pytest.approx(0.6)
    assert estimate.standard_error == pytest.approx(0.08)
    reach = 1.959964 * 0.08 / (1 - 0.6**2)
    assert estimate.low == pytest.approx(math.tanh(math.atanh(0.6) - reach))
    assert estimate.high == pytest.approx(math.tanh(math.atanh(0.6) + reach))
    assert estimate.half_width == pytest.approx((estimate.high - estimate.low) / 2)


def test_spearman_is_the_correlation_of_midranks() -> None:
    """Equal to scipy, ties included; by hand 1 - 6 Σd² / (n³ - n) without ties."""
    cases: list[tuple[list[float], list[float], float]] = [
        ([1, 2, 3, 4, 5], [2, 1, 4, 3, 5], 1 - 6 * 4 / (5 * 24)),
        ([1, 2, 2, 3], [1, 2, 3, 4], 4.5 / math.sqrt(4.5 * 5)),
        ([0, 0, 1, 1], [0, 1, 0, 1], 0.0),
        ([1, 2, 3], [30, 20, 10], -1.0),
    ]

    for x, y, by_hand in cases:
        assert spearman(x, y).value == pytest.approx(by_hand)
        assert spearman(x, y).value == pytest.approx(stats.spearmanr(x, y).statistic)


def test_spearman_as_its_author_publishes_it() -> None:
    """The example of `ci.spear` in Bonett's R package statpsych: estimate, standard error and both limits."""
    y = [21, 4, 9, 12, 35, 18, 10, 22, 24, 1, 6, 8, 13, 16, 19]
    x = [67, 28, 30, 28, 52, 40, 25, 37, 44, 10, 14, 20, 28, 40, 51]

    found = spearman(y, x)

    numbers = (found.value, found.standard_error, found.low, found.high)
    assert numbers == pytest.approx((0.8699639, 0.08241326, 0.5840951, 0.9638297), abs=5e-8)


# --- invariants ----------------------------------------------------------------------------------------

tables = st.lists(st.lists(st.integers(0, 12), min_size=3, max_size=3), min_size=3, max_size=3)
all_weights = st.sampled_from(["quadratic", "linear", "unweighted"])
ratings = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=3, max_size=40)


@given(tables, all_weights)
def test_kappa_is_symmetric_and_in_its_range(table: Table, weights: Weights) -> None:
    """Swapping label and judge changes nothing; a value has an interval around it or a reason, never both."""
    rows = rows_of(table)
    found, swapped = weighted_kappa(rows, THREE, weights), weighted_kappa([(b, a) for a, b in rows], THREE, weights)

    assert swapped.value == found.value
    assert (found.reason is None) == (found.low is not None) == (swapped.low is not None)
    if found.low is not None and found.high is not None and found.value is not None:
        assert -1 <= found.low <= found.value <= found.high <= 1
        assert (swapped.low, swapped.high) == pytest.approx((found.low, found.high))


@given(tables, st.integers(2, 5))
def test_k_times_the_sessions_divide_the_error_of_kappa_by_the_root_of_k(table: Table, times: int) -> None:
    once, often = weighted_kappa(rows_of(table), THREE), weighted_kappa(rows_of(table, times), THREE)
    assume(once.standard_error is not None)
    assert once.standard_error is not None

    assert often.value == pytest.approx(once.value)
    assert often.standard_error == pytest.approx(once.standard_error / math.sqrt(times), abs=1e-9)


@given(ratings)
def test_spearman_is_symmetric_and_depends_on_order_alone(pairs: list[tuple[int, int]]) -> None:
    x, y = [float(a) for a, _ in pairs], [float(b) for _, b in pairs]
    found = spearman(x, y)

    assert spearman(y, x) == found
    assert spearman([math.exp(a) for a in x], y) == found
    falling = spearman([-a for a in x], y)
    assert falling.value == (None if found.value is None else -found.value)
    if found.low is not None and found.high is not None and found.value is not None:
        assert (falling.low, falling.high) == pytest.approx((-found.high, -found.low))
        assert -1 <= found.low <= found.value <= found.high <= 1


# --- input that carries no number ----------------------------------------------------------------------


def test_kappa_is_none_with_a_reason_where_it_means_nothing() -> None:
    cases: list[tuple[Table, str]] = [
        ([[0, 0, 0], [0, 0, 0], [0, 0, 0]], "0 sessions cannot show agreement; it takes 3"),
        ([[1, 0, 0], [0, 0, 1], [0, 0, 0]], "2 sessions cannot show agreement; it takes 3"),
        ([[30, 0, 0], [0, 0, 0], [0, 0, 0]], "every label is 'low'"),
        ([[9, 30, 5], [0, 0, 0], [0, 0, 0]], "every label is 'low'"),
        ([[0, 9, 0], [0, 30, 0], [0, 5, 0]], "every judgement is 'middle'"),
    ]

    for table, reason in cases:
        found = weighted_kappa(rows_of(table), THREE)
        assert (found.value, found.low, found.high, found.standard_error) == (None, None, None, None)
        assert found.n == sum(map(sum, table))
        assert (found.reason or "").startswith(reason)


def test_few_sessions_have_a_kappa_and_no_interval() -> None:
    few = [*rows_of([[3, 1, 0], [1, 4, 2], [0, 1, 7]])]
    assert len(few) == FEWEST_FOR_A_KAPPA_INTERVAL - 1

    found = weighted_kappa(few, THREE)

    assert found.value is not None
    assert (found.low, found.half_width) == (None, None)
    assert found.reason == "19 sessions are too few for an interval; it takes 20"
    assert weighted_kappa([*few, ("low", "high")], THREE).low is not None


def test_perfect_agreement_and_disagreement_have_no_interval() -> None:
    """Exactly 1 and -1; the large-sample error would be 0."""
    for table, value, what in (
        ([[20, 0, 0], [0, 7, 0], [0, 0, 3]], 1, "agreement"),
        ([[0, 20], [20, 0]], -1, "disagreement"),
    ):
        for weights in ("quadratic", "linear", "unweighted"):
            found = weighted_kappa(rows_of(table), names_of(table), weights)
            assert (found.value, found.low, found.high, found.standard_error) == (value, None, None, None)
            assert found.reason == f"perfect {what} leaves no error to measure"


def test_spearman_is_none_with_a_reason_where_it_means_nothing() -> None:
    cases: list[tuple[list[float], list[float], str]] = [
        ([], [], "0 sessions cannot be ranked"),
        ([1, 2], [1, 2], "2 sessions cannot be ranked"),
        ([5, 5, 5, 5], [1, 2, 3, 4], "one side gives every session the same"),
        ([1, 2, 3, 4], [5, 5, 5, 5], "one side gives every session the same"),
    ]

    for x, y, reason in cases:
        found = spearman(x, y)
        assert (found.value, found.low, found.high) == (None, None, None)
        assert (found.reason or "").startswith(reason)


def test_few_sessions_or_a_perfect_order_have_no_interval_of_spearman() -> None:
    x = [float(i) for i in range(FEWEST_FOR_A_SPEARMAN_INTERVAL)]
    y = [1.0, 0.0, *x[2:]]

    assert spearman(x, y).low is not None
    assert spearman(x[:-1], y[:-1]).low is None
    assert spearman(x[:-1], y[:-1]).reason == "9 sessions are too few for an interval; it takes 10"
    perfect = spearman(x, x)
    assert (perfect.value, perfect.low, perfect.reason) == (1, None, "a perfect order leaves no error to measure")


def test_invalid_input_is_refused() -> None:
    with pytest.raises(ValueError, match="3 ratings cannot be paired with 2"):
        spearman([1, 2, 3], [1, 2])
    with pytest.raises(ValueError, match="unknown categories"):
        weighted_kappa([("low", "excellent")], THREE)
    with pytest.raises(ValueError, match="occurs twice"):
        confusion([], ["low", "low"])
    for half_width in (0.0, 1.0, -0.1):
        with pytest.raises(ValueError, match="between 0 and 1"):
            labels_needed(0.5, half_width)


def test_confusion_has_a_row_per_label() -> None:
    found = confusion([("low", "low"), ("low", "high"), ("low", "middle"), ("high", "middle")], THREE)

    assert found.counts == ((1, 1, 1), (0, 0, 0), (0, 1, 0))
    assert (found.n, found.agreeing, found.judge_higher, found.judge_lower) == (4, 1, 2, 1)


# --- how many labels -----------------------------------------------------------------------------------


def test_labels_needed_in_closed_form() -> None:
    """At kappa 0 half the interval is tanh(1.96 / √n): 382 labels for 0.10, as many for two bands as for three."""
    by_hand = math.ceil((1.959964 / math.atanh(0.10)) ** 2)

    assert labels_needed(0.0).total == labels_needed(0.0, bands=2).total == by_hand == 382


def test_a_plan_is_fulfilled_exactly_when_the_interval_is_narrow_enough() -> None:
    found = weighted_kappa(rows_of([[40, 10], [10, 40]]), ["0", "1"])
    assert found.half_width is not None
    assert found.standard_error is not None
    error_of_one = found.standard_error * math.sqrt(found.n)

    plans = [labels_needed(found.value, found.half_width * f, error_of_one=error_of_one) for f in (1, 1.001, 0.999)]

    assert [plan.total for plan in plans] == [100, 100, 101]


@given(st.floats(0, 0.95), st.floats(0.02, 0.4))
def test_a_narrower_interval_never_takes_fewer_labels(kappa: float, half_width: float) -> None:
    wide, narrow = labels_needed(kappa, half_width).total, labels_needed(kappa, half_width / 2).total

    assert wide is not None
    assert narrow is not None
    assert FEWEST_FOR_A_KAPPA_INTERVAL <= wide <= narrow


def test_no_plan_without_a_basis() -> None:
    """None and the reason, never an invented number."""
    assert labels_needed(None).reason == "there is no kappa to start from"
    assert labels_needed(1.0, error_of_one=0.0).reason == "perfect agreement leaves no error to plan with"
    assert labels_needed(0.9, error_of_one=0.0).reason == "perfect agreement leaves no error to plan with"
    assert labels_needed(-0.2).reason == "a kappa below 0 cannot be assumed; measure it first"
    assert labels_needed(0.6, bands=1).reason == "agreement beyond chance needs two bands"
    assert labels_needed(0.6, bands=1).total is None


# --- a judge against itself ----------------------------------------------------------------------------

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


def test_spread_as_worked_by_hand() -> None:
    found = spread([60, 70, 64, 66])

    assert (found.n, found.lowest, found.highest, found.width, found.mean, found.median) == (4, 60, 70, 10, 65, 64)
    assert found.standard_deviation == pytest.approx(math.sqrt((25 + 25 + 1 + 1) / 3))
    assert (spread([]).width, spread([]).reason) == (None, "there is no judgement")
    assert (spread([60]).lowest, spread([60]).width, spread([60]).reason) == (60, None, "one judgement has no spread")

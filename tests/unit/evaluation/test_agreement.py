"""Agreement: published and hand-worked numbers, laws, coverage of the intervals, and input that says nothing."""

import math
import random
from collections.abc import Sequence
from itertools import product
from statistics import fmean

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

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


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        pytest.param([1, 2, 3, 4, 5], [2, 1, 4, 3, 5], 1 - 6 * 4 / (5 * 24), id="without-ties"),
        pytest.param([1, 2, 2, 3], [1, 2, 3, 4], 4.5 / math.sqrt(4.5 * 5), id="with-a-tie"),
        pytest.param([0, 0, 1, 1], [0, 1, 0, 1], 0.0, id="nothing-in-common"),
        pytest.param([1, 2, 3], [30, 20, 10], -1.0, id="the-other-way-round"),
    ],
)
def test_spearman_as_worked_by_hand(x: list[float], y: list[float], expected: float) -> None:
    """1 - 6 Σd² / (n³ - n) without ties; the correlation of midranks with them."""
    assert spearman(x, y).value == pytest.approx(expected)


def test_spearman_as_its_author_publishes_it() -> None:
    """The example of `ci.spear` in Bonett's R package statpsych: estimate, standard error and both limits."""
    y = [21, 4, 9, 12, 35, 18, 10, 22, 24, 1, 6, 8, 13, 16, 19]
    x = [67, 28, 30, 28, 52, 40, 25, 37, 44, 10, 14, 20, 28, 40, 51]

    estimate = spearman(y, x)

    told = (estimate.value, estimate.standard_error, estimate.low, estimate.high)
    assert told == pytest.approx((0.8699639, 0.08241326, 0.5840951, 0.9638297), abs=5e-8)


# --- laws ----------------------------------------------------------------------------------------------

tables = st.lists(st.lists(st.integers(0, 12), min_size=3, max_size=3), min_size=3, max_size=3)
all_weights = st.sampled_from(["quadratic", "linear", "unweighted"])
ratings = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=3, max_size=40)


@given(tables, all_weights)
def test_kappa_is_the_same_from_both_sides(table: Table, weights: Weights) -> None:
    """Label and judge may change places: value, error and interval stay."""
    rows = rows_of(table)
    estimate, swapped = weighted_kappa(rows, THREE, weights), weighted_kappa([(b, a) for a, b in rows], THREE, weights)

    assert swapped.value == estimate.value
    assert (swapped.low is None) == (estimate.low is None)
    if estimate.low is not None:
        assert (swapped.low, swapped.high) == pytest.approx((estimate.low, estimate.high))


@given(tables, all_weights)
def test_kappa_does_not_depend_on_which_end_is_up(table: Table, weights: Weights) -> None:
    """The categories in reverse order give the same."""
    rows = rows_of(table)

    assert weighted_kappa(rows, THREE[::-1], weights).value == weighted_kappa(rows, THREE, weights).value


@given(tables)
def test_a_category_at_an_end_that_nobody_used_changes_nothing(table: Table) -> None:
    """Quadratic distances are relative to each other, so an empty band above does not matter."""
    rows = rows_of(table)
    estimate, wider = weighted_kappa(rows, THREE), weighted_kappa(rows, [*THREE, "highest"])

    assert wider.value == estimate.value
    if estimate.low is not None:
        assert (wider.low, wider.high) == pytest.approx((estimate.low, estimate.high))


@given(tables, st.integers(2, 5))
def test_more_of_the_same_keeps_kappa_and_narrows_its_error(table: Table, times: int) -> None:
    """k times as many sessions: the same value, the error over the root of k."""
    once, often = weighted_kappa(rows_of(table), THREE), weighted_kappa(rows_of(table, times), THREE)
    assume(once.standard_error is not None)
    assert once.standard_error is not None

    assert often.value == pytest.approx(once.value)
    assert often.standard_error == pytest.approx(once.standard_error / math.sqrt(times), abs=1e-9)


@given(tables, all_weights)
def test_kappa_and_its_interval_stay_in_their_range(table: Table, weights: Weights) -> None:
    """-1 <= low <= value <= high <= 1; and a value with a reason or an interval, never both."""
    estimate = weighted_kappa(rows_of(table), THREE, weights)

    assert (estimate.reason is None) == (estimate.low is not None)
    if estimate.low is not None and estimate.high is not None and estimate.value is not None:
        assert -1 <= estimate.low <= estimate.value <= estimate.high <= 1


@given(st.lists(st.integers(1, 20), min_size=3, max_size=3), all_weights)
def test_perfect_agreement_is_one_and_has_no_interval(counts: list[int], weights: Weights) -> None:
    """Exactly 1. The large-sample error would be 0, which nobody should believe."""
    perfect = [[counts[i] if i == j else 0 for j in range(3)] for i in range(3)]

    estimate = weighted_kappa(rows_of(perfect, times=20), THREE, weights)

    assert (estimate.value, estimate.low, estimate.high, estimate.standard_error) == (1, None, None, None)
    assert estimate.reason == "perfect agreement leaves no error to measure"


@given(ratings)
def test_spearman_is_symmetric_and_knows_order_alone(pairs: list[tuple[int, int]]) -> None:
    """Sides may change places, a growing function of the ratings changes nothing, a falling one the sign."""
    x, y = [float(a) for a, _ in pairs], [float(b) for _, b in pairs]
    estimate = spearman(x, y)

    assert spearman(y, x) == estimate
    assert spearman([math.exp(a) for a in x], y) == estimate
    falling = spearman([-a for a in x], y)
    assert falling.value == (None if estimate.value is None else -estimate.value)
    if estimate.low is not None and estimate.high is not None and estimate.value is not None:
        assert (falling.low, falling.high) == pytest.approx((-estimate.high, -estimate.low))
        assert -1 <= estimate.low <= estimate.value <= estimate.high <= 1


@given(st.lists(st.integers(0, 100), min_size=3, max_size=40))
def test_a_judge_that_orders_like_the_labels_has_spearman_one(x: list[int]) -> None:
    """Exactly 1, ties or not."""
    assume(len(set(x)) > 1)

    assert spearman(x, [3 * a + 1 for a in x]).value == 1


# --- coverage ------------------------------------------------------------------------------------------

# Shares of label and judge whose kappa is known: the judge repeats the label with that probability, else draws
# from the same margins. Kappa is then that probability, whatever the weights.
MARGINS = {"even": (1 / 3, 1 / 3, 1 / 3), "skewed": (0.2, 0.5, 0.3)}


def draw(kappa: float, margins: Sequence[float], n: int, seed: int) -> list[tuple[str, str]]:
    source = random.Random(seed)
    labels = source.choices(THREE, margins, k=n)
    return [(s, s if source.random() < kappa else source.choices(THREE, margins)[0]) for s in labels]


@pytest.mark.parametrize(
    ("kappa", "margins", "n", "seeds", "tolerance"),
    [
        pytest.param(0.0, "even", 100, 400, 0.02, id="chance"),
        pytest.param(0.3, "even", 100, 400, 0.02, id="fair"),
        pytest.param(0.6, "skewed", 50, 400, 0.04, id="fifty-sessions"),
        pytest.param(0.6, "even", 200, 1000, 0.02, id="two-hundred-sessions"),
        pytest.param(0.8, "even", 100, 400, 0.02, id="substantial"),
    ],
)
def test_the_interval_of_kappa_covers_what_is_true(
    kappa: float, margins: str, n: int, seeds: int, tolerance: float
) -> None:
    """95 % intervals hold the known kappa in 95 % of samples, within 2 % from 100 sessions on."""
    covered = 0
    for seed in range(seeds):
        estimate = weighted_kappa(draw(kappa, MARGINS[margins], n, seed), THREE)
        assert estimate.low is not None
        assert estimate.high is not None
        covered += estimate.low <= kappa <= estimate.high

    assert covered / seeds == pytest.approx(0.95, abs=tolerance)


@pytest.mark.parametrize(
    ("rho", "n"),
    [
        pytest.param(0.0, 30, id="unrelated"),
        pytest.param(0.6, 30, id="thirty-sessions"),
        pytest.param(0.6, 120, id="many-sessions"),
    ],
)
def test_the_interval_of_spearman_covers_what_is_true(rho: float, n: int) -> None:
    """Of normal ratings with correlation rho the rank correlation is 6/π · arcsin(rho/2)."""
    true, covered, seeds = 6 / math.pi * math.asin(rho / 2), 0, 400
    for seed in range(seeds):
        source = random.Random(seed)
        x = [source.gauss() for _ in range(n)]
        estimate = spearman(x, [rho * a + math.sqrt(1 - rho**2) * source.gauss() for a in x])
        assert estimate.low is not None
        assert estimate.high is not None
        covered += estimate.low <= true <= estimate.high

    assert 0.92 <= covered / seeds <= 0.98


# --- input that says nothing ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        pytest.param([[0, 0, 0], [0, 0, 0], [0, 0, 0]], "0 sessions cannot show agreement; it takes 3", id="none"),
        pytest.param([[1, 0, 0], [0, 0, 1], [0, 0, 0]], "2 sessions cannot show agreement; it takes 3", id="two"),
        pytest.param([[30, 0, 0], [0, 0, 0], [0, 0, 0]], "every label is 'low'", id="one-category"),
        pytest.param([[9, 30, 5], [0, 0, 0], [0, 0, 0]], "every label is 'low'", id="labels-are-all-alike"),
        pytest.param([[0, 9, 0], [0, 30, 0], [0, 5, 0]], "every judgement is 'middle'", id="judge-says-one-thing"),
    ],
)
def test_kappa_is_none_where_it_would_mean_nothing(table: Table, reason: str) -> None:
    """No value, no interval, and the reason."""
    estimate = weighted_kappa(rows_of(table), THREE)

    assert (estimate.value, estimate.low, estimate.high, estimate.standard_error) == (None, None, None, None)
    assert estimate.n == sum(map(sum, table))
    assert estimate.reason is not None
    assert estimate.reason.startswith(reason)


def test_few_sessions_have_a_kappa_and_no_interval() -> None:
    """From 20 sessions on there is one."""
    few = [*rows_of([[3, 1, 0], [1, 4, 2], [0, 1, 7]])]
    assert len(few) == FEWEST_FOR_A_KAPPA_INTERVAL - 1

    estimate = weighted_kappa(few, THREE)
    assert estimate.value is not None
    assert (estimate.low, estimate.half_width) == (None, None)
    assert estimate.reason == "19 sessions are too few for an interval; it takes 20"
    assert weighted_kappa([*few, ("low", "high")], THREE).low is not None


def test_perfect_disagreement_has_no_interval() -> None:
    """-1, with the reason; nothing is divided by zero."""
    estimate = weighted_kappa(rows_of([[0, 20], [20, 0]]), ["0", "1"])

    assert (estimate.value, estimate.low) == (-1, None)
    assert estimate.reason == "perfect disagreement leaves no error to measure"


@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        pytest.param([], [], "0 sessions cannot be ranked", id="none"),
        pytest.param([1, 2], [1, 2], "2 sessions cannot be ranked", id="two"),
        pytest.param([5, 5, 5, 5], [1, 2, 3, 4], "one side gives every session the same", id="constant-labels"),
        pytest.param([1, 2, 3, 4], [5, 5, 5, 5], "one side gives every session the same", id="constant-totals"),
    ],
)
def test_spearman_is_none_where_it_would_mean_nothing(x: list[float], y: list[float], reason: str) -> None:
    """No value, no interval, and the reason."""
    estimate = spearman(x, y)

    assert (estimate.value, estimate.low, estimate.high) == (None, None, None)
    assert estimate.reason is not None
    assert estimate.reason.startswith(reason)


def test_few_sessions_have_a_spearman_and_no_interval() -> None:
    """From 10 sessions on there is one; a perfect order never has one."""
    x = [float(i) for i in range(FEWEST_FOR_A_SPEARMAN_INTERVAL)]
    y = [1.0, 0.0, *x[2:]]

    assert spearman(x, y).low is not None
    assert spearman(x[:-1], y[:-1]).low is None
    assert spearman(x[:-1], y[:-1]).reason == "9 sessions are too few for an interval; it takes 10"
    assert (spearman(x, x).low, spearman(x, x).reason) == (None, "a perfect order leaves no error to measure")


def test_what_cannot_be_paired_is_refused() -> None:
    """A mistake of the caller, not of the data."""
    with pytest.raises(ValueError, match="3 ratings cannot be paired with 2"):
        spearman([1, 2, 3], [1, 2])
    with pytest.raises(ValueError, match="none of the categories"):
        weighted_kappa([("low", "excellent")], THREE)
    with pytest.raises(ValueError, match="given twice"):
        confusion([], ["low", "low"])


def test_confusion_counts_labels_by_row_and_tells_the_lean() -> None:
    """Who is higher is asked from the judge's side."""
    found = confusion([("low", "low"), ("low", "high"), ("low", "middle"), ("high", "middle")], THREE)

    assert found.counts == ((1, 1, 1), (0, 0, 0), (0, 1, 0))
    assert (found.n, found.agreeing, found.judge_higher, found.judge_lower) == (4, 1, 2, 1)


# --- how many labels -----------------------------------------------------------------------------------


def test_labels_needed_in_closed_form() -> None:
    """At kappa 0 half the interval is tanh(1.96 / √n): 382 labels for 0.10, as many for two bands as for three."""
    by_hand = math.ceil((1.959964 / math.atanh(0.10)) ** 2)

    assert labels_needed(0.0).total == labels_needed(0.0, bands=2).total == by_hand == 382


def test_a_plan_on_labels_is_fulfilled_exactly_when_the_interval_is_narrow_enough() -> None:
    """The plan from a table asks for no more than the table has if, and only if, its interval is within the target."""
    estimate = weighted_kappa(rows_of([[40, 10], [10, 40]]), ["0", "1"])
    assert estimate.half_width is not None
    assert estimate.value is not None
    assert estimate.standard_error is not None
    error_of_one = estimate.standard_error * math.sqrt(estimate.n)

    def plan(half_width: float) -> int | None:
        assert estimate.value is not None
        return labels_needed(estimate.value, half_width, error_of_one=error_of_one).total

    assert plan(estimate.half_width) == 100
    assert plan(estimate.half_width * 1.001) == 100
    assert plan(estimate.half_width * 0.999) == 101


@pytest.mark.parametrize("kappa", [0.3, 0.6, 0.8], ids=["fair", "moderate", "substantial"])
def test_the_planned_number_gives_the_planned_interval(kappa: float) -> None:
    """Samples of that size have intervals of 0.10 to either side on average."""
    total = labels_needed(kappa).total
    assert total is not None

    half_widths = [weighted_kappa(draw(kappa, MARGINS["even"], total, s), THREE).half_width or 0 for s in range(60)]

    assert fmean(half_widths) == pytest.approx(0.10, abs=0.006)


@given(st.floats(0, 0.95), st.floats(0.02, 0.4))
def test_a_narrower_interval_never_takes_fewer_labels(kappa: float, half_width: float) -> None:
    """And never fewer than an interval takes at all."""
    wide, narrow = labels_needed(kappa, half_width).total, labels_needed(kappa, half_width / 2).total

    assert wide is not None
    assert narrow is not None
    assert FEWEST_FOR_A_KAPPA_INTERVAL <= wide <= narrow


@pytest.mark.parametrize(
    ("kappa", "error_of_one", "reason"),
    [
        pytest.param(None, None, "there is no kappa to start from", id="no-kappa"),
        pytest.param(1.0, 0.0, "perfect agreement leaves no error to plan with", id="perfect"),
        pytest.param(0.9, 0.0, "perfect agreement leaves no error to plan with", id="no-error"),
        pytest.param(-0.2, None, "a kappa below 0 cannot be supposed; measure it first", id="below-chance"),
    ],
)
def test_no_plan_where_there_is_nothing_to_plan_with(
    kappa: float | None, error_of_one: float | None, reason: str
) -> None:
    """None and the reason, never a number made up."""
    plan = labels_needed(kappa, error_of_one=error_of_one)

    assert (plan.total, plan.reason) == (None, reason)


def test_no_plan_for_a_single_band() -> None:
    """Criteria may have one band; then there is nothing to agree about."""
    assert labels_needed(0.6, bands=1).reason == "agreement beyond chance needs two bands"
    assert weighted_kappa([("all", "all")] * 30, ["all"]).value is None


@pytest.mark.parametrize("half_width", [0.0, 1.0, -0.1], ids=["nothing", "everything", "negative"])
def test_a_target_that_no_interval_has_is_refused(half_width: float) -> None:
    """Half an interval of kappa lies between 0 and 1."""
    with pytest.raises(ValueError, match="between 0 and 1"):
        labels_needed(0.5, half_width)


# --- a judge against itself ----------------------------------------------------------------------------

OUTCOME_BANDS = bands_of({"correct": (60, 100), "wrong": (0, 34), "partial": (35, 59)})


def test_bands_are_in_order_whatever_the_file_says() -> None:
    """Lowest first; criteria without bands have the edges 50 and 75."""
    assert [b.id for b in OUTCOME_BANDS] == ["wrong", "partial", "correct"]
    assert bands_of({}) == DEFAULT_BANDS


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        pytest.param(0, "0-49", id="lowest"),
        pytest.param(49, "0-49", id="below-the-first-edge"),
        pytest.param(49.5, "50-74", id="half-a-point-below"),
        pytest.param(50, "50-74", id="first-edge"),
        pytest.param(74.4, "50-74", id="rounded-down"),
        pytest.param(75, "75-100", id="second-edge"),
        pytest.param(100, "75-100", id="highest"),
    ],
)
def test_a_total_is_in_one_band(total: float, expected: str) -> None:
    """Both ends belong to a band; fractions are rounded half up first."""
    assert band_of(total, DEFAULT_BANDS) == expected


def test_a_total_between_bands_is_in_none() -> None:
    """A criteria file may leave gaps."""
    assert band_of(45, [Band("bad", 0, 40), Band("good", 60, 100)]) is None


@pytest.mark.parametrize(
    ("totals", "rate", "flipped", "by_band"),
    [
        pytest.param([60, 61, 62, 63, 64], 0.0, 0, {"50-74": 5}, id="steady"),
        pytest.param([48, 60, 60, 60, 60], 0.4, 4, {"50-74": 4, "0-49": 1}, id="one-of-five"),
        pytest.param([48, 49, 50, 51, 52], 0.6, 6, {"50-74": 3, "0-49": 2}, id="at-an-edge"),
        pytest.param([40, 60, 80], 1.0, 3, {"0-49": 1, "50-74": 1, "75-100": 1}, id="never-twice-the-same"),
        pytest.param([60, 40], 1.0, 1, {"50-74": 1, "0-49": 1}, id="two"),
    ],
)
def test_flip_rate_is_the_share_of_pairs_in_different_bands(
    totals: list[float], rate: float, flipped: int, by_band: dict[str, int]
) -> None:
    """Of n judgements there are n (n - 1) / 2 pairs."""
    found = flip_rate(totals)

    assert found.rate == pytest.approx(rate)
    assert (found.flipped, found.pairs) == (flipped, math.comb(len(totals), 2))
    assert (dict(found.by_band), found.reason) == (by_band, None)


def test_flip_rate_goes_by_the_bands_it_is_given() -> None:
    """55 and 62 are one band by default, and two where 60 is an edge."""
    assert flip_rate([55, 62]).rate == 0
    assert flip_rate([55, 62], OUTCOME_BANDS).rate == 1


def test_flip_rate_is_not_biased_by_the_number_of_judgements() -> None:
    """A judge that says one of two bands with 0.2 and 0.8 flips with 2 · 0.2 · 0.8, seen twice or ten times."""
    source = random.Random(1)
    for judgements in (2, 3, 10):
        rates = [flip_rate(source.choices([40, 60], [0.2, 0.8], k=judgements)).rate or 0 for _ in range(3000)]
        assert fmean(rates) == pytest.approx(0.32, abs=0.025)


@given(st.lists(st.integers(0, 100), min_size=2, max_size=12), st.randoms())
def test_flip_rate_does_not_depend_on_the_order(totals: list[int], source: random.Random) -> None:
    """Judgements of one session have no order."""
    shuffled = totals[:]
    source.shuffle(shuffled)

    assert flip_rate(shuffled).rate == flip_rate(totals).rate


@pytest.mark.parametrize(
    ("totals", "reason"),
    [
        pytest.param([], "it takes two judgements to see a flip, there is none", id="none"),
        pytest.param([60], "it takes two judgements to see a flip, there is one", id="one"),
    ],
)
def test_no_flip_rate_without_a_pair(totals: list[float], reason: str) -> None:
    """None, not 0: nothing was compared."""
    assert (flip_rate(totals).rate, flip_rate(totals).reason) == (None, reason)


def test_spread_as_worked_by_hand() -> None:
    """The width is the highest less the lowest; the deviation that of a sample."""
    found = spread([60, 70, 64, 66])

    assert (found.n, found.lowest, found.highest, found.width) == (4, 60, 70, 10)
    assert (found.mean, found.median) == (65, 64)
    assert found.standard_deviation == pytest.approx(math.sqrt((25 + 25 + 1 + 1) / 3))
    assert found.reason is None


@pytest.mark.parametrize(
    ("totals", "lowest", "reason"),
    [
        pytest.param([], None, "there is no judgement", id="none"),
        pytest.param([60], 60, "one judgement has no spread", id="one"),
    ],
)
def test_no_spread_without_two_judgements(totals: list[float], lowest: float | None, reason: str) -> None:
    """None, not 0."""
    found = spread(totals)

    assert (found.width, found.standard_deviation) == (None, None)
    assert (found.lowest, found.reason) == (lowest, reason)

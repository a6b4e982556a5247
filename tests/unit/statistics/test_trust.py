"""What a trust card says, what it refuses to say, and that unequal chances of a label do not bend it."""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest
from benchmarks.labelling import AGREEMENTS, coverages, draws, labelled, true_card

from tarsy_scoring.statistics.agreement import DEFAULT_BANDS, Estimate, spearman, weighted_kappa
from tarsy_scoring.statistics.trust import Rating, TrustCard, trust_card

LOW, MIDDLE, HIGH = IDS = tuple(b.id for b in DEFAULT_BANDS)


def card(ratings: Sequence[Rating]) -> TrustCard:
    return trust_card(ratings, DEFAULT_BANDS)


def rated(*counts: tuple[str, str, int], inclusion_probability: float = 1.0) -> list[Rating]:
    """So many ratings with that band of the label and of the judge, and the total in its middle."""
    totals = {LOW: 30.0, MIDDLE: 60.0, HIGH: 90.0}
    return [
        Rating(said, judged, totals[judged], None, inclusion_probability)
        for said, judged, times in counts
        for _ in range(times)
    ]


MIXED = rated((LOW, LOW, 8), (LOW, HIGH, 2), (MIDDLE, MIDDLE, 6), (MIDDLE, HIGH, 4), (HIGH, HIGH, 12), (HIGH, LOW, 1))


# --- values --------------------------------------------------------------------------------------------


def test_equal_chances_give_the_plain_values() -> None:
    """Whatever the chance is: only its ratio to that of the others counts."""
    for chance in (1.0, 0.05):
        found = card([replace(r, inclusion_probability=chance) for r in MIXED])

        assert found.kappa.value == pytest.approx(weighted_kappa([(r.said, r.judged) for r in MIXED], IDS).value)
        over = [IDS.index(r.said) for r in MIXED]
        assert found.spearman.value == pytest.approx(spearman(over, [r.total for r in MIXED]).value)
        assert (found.ratings, found.effective) == (33, pytest.approx(33))
        assert found.confusion.counts == ((8, 0, 2), (0, 6, 4), (1, 0, 12))
        assert found.shares[0] == pytest.approx([8 / 33, 0, 2 / 33])


def test_a_label_stands_for_as_many_scores_as_it_was_drawn_from() -> None:
    """A chance of one third is as three labels for certain, in every value; the confusion is as it was counted."""
    source = random.Random(1)
    certain = [
        replace(
            r, number=min(100.0, max(0.0, r.total + source.randint(-30, 20))), total=r.total + source.randint(-9, 9)
        )
        for r in MIXED
    ]
    rare = [replace(r, inclusion_probability=1 / 3) for r in certain[10:20]]

    weighed, repeated = card([*certain, *rare]), card([*certain, *certain[10:20] * 3])

    for one, other in (
        (weighed.kappa, repeated.kappa),
        (weighed.spearman, repeated.spearman),
        (weighed.mean_difference, repeated.mean_difference),
    ):
        assert one.value == pytest.approx(other.value)
    assert [v for row in weighed.shares for v in row] == pytest.approx([v for row in repeated.shares for v in row])
    assert sum(map(sum, weighed.shares)) == pytest.approx(1)
    assert (weighed.ratings, weighed.confusion.n) == (43, 43)
    # Kish: (33 + 30)² / (33 + 90).
    assert weighed.effective == pytest.approx(63**2 / 123)


def test_the_mean_difference_is_over_ratings_with_a_number() -> None:
    """Above 0 where the judge is the milder; totals are ranked against numbers only where all have one."""
    numbered = [replace(r, number=r.total - lean) for r, lean in zip(MIXED[:5], (4, 8, 6, 5, 7), strict=True)]

    found = card([*numbered, *MIXED[5:]])

    assert (found.mean_difference.value, found.mean_difference.n) == (pytest.approx(6), 5)
    assert found.mean_difference.low is not None
    assert found.mean_difference.low < 6
    assert found.spearman_over == "bands"
    assert card([replace(r, number=r.total) for r in MIXED]).spearman_over == "numbers"


def test_the_order_of_ratings_changes_nothing() -> None:
    """The same labels give the same bytes."""
    ratings = [replace(r, number=float(i) if i % 2 else None) for i, r in enumerate(MIXED)]

    assert card(random.Random(3).sample(ratings, len(ratings))) == card(ratings)


# --- what it refuses to say ----------------------------------------------------------------------------


def test_nothing_is_said_of_nothing() -> None:
    """No number but the first plan, which says that it supposes."""
    found = card([])

    assert (found.ratings, found.effective, found.shares) == (0, 0, ())
    assert (found.kappa.value, found.spearman.value, found.mean_difference.value) == (None, None, None)
    assert found.mean_difference.reason == "no label has a number"
    assert (found.is_supposed, found.still_needed) == (True, 279)


@pytest.mark.parametrize(
    ("ratings", "value", "reason"),
    [
        pytest.param(MIXED[:9] + MIXED[-9:], None, "18 sessions are too few for an interval; it takes 20", id="few"),
        pytest.param(
            rated((LOW, LOW, 20), (HIGH, HIGH, 20)), 1, "perfect agreement leaves no error to measure", id="perfect"
        ),
        pytest.param(
            [*MIXED, *rated((LOW, LOW, 4), (HIGH, MIDDLE, 4), inclusion_probability=0.01)],
            None,
            "41 labels of unequal weight are worth 9, too few for an interval; it takes 20",
            id="few-of-great-weight",
        ),
    ],
)
def test_an_interval_takes_enough_labels_and_some_error(
    ratings: Sequence[Rating], value: float | None, reason: str
) -> None:
    """The value stands alone then."""
    kappa = card(ratings).kappa

    assert kappa.value is not None
    assert value in (None, kappa.value)
    assert (kappa.low, kappa.high, kappa.reason) == (None, None, reason)


@pytest.mark.parametrize(
    ("differences", "reason"),
    [
        pytest.param((1, 2, 3, 4), "4 are too few for an interval; it takes 5", id="few"),
        pytest.param((3,) * 9, "the differences do not vary, which leaves no spread to measure", id="still"),
    ],
)
def test_a_mean_difference_without_spread_has_no_interval(differences: Sequence[int], reason: str) -> None:
    """The mean stands alone then."""
    found = card([replace(MIXED[0], number=MIXED[0].total - d) for d in differences]).mean_difference

    assert found.value == pytest.approx(statistics.fmean(differences))
    assert (found.low, found.reason) == (None, reason)


@pytest.mark.parametrize("chance", [0.0, -0.1, 1.1, float("nan")])
def test_a_chance_is_above_0_and_at_most_1(chance: float) -> None:
    """What could not be drawn cannot have been labelled."""
    with pytest.raises(ValueError, match="inclusion probability"):
        card([replace(MIXED[0], inclusion_probability=chance)])


# --- what it promises ----------------------------------------------------------------------------------


def test_most_intervals_hold_the_truth() -> None:
    """A few runs of the simulation of `benchmarks.years`: kappa, Spearman and mean difference of 60 unequal labels."""
    found = coverages(AGREEMENTS[1], 60, 30, seed=1, how="unequal", resamples=100)

    assert [f.intervals for f in found] == [30] * 3
    assert all(f.covering >= 25 for f in found)


def test_unequal_probabilities_do_not_bias_the_card() -> None:
    """Scores near an edge are labelled four times as often; unweighted, kappa comes out lower."""
    agreement = AGREEMENTS[1]
    truth = true_card(agreement.population(20_000, 1))[0]
    ratings = labelled(agreement, 6_000, draws(1, "unequal"), "unequal")

    assert true_card(ratings)[0] == pytest.approx(truth, abs=0.025)  # twice its standard error
    assert true_card([replace(r, inclusion_probability=1.0) for r in ratings])[0] < truth - 0.04


def test_a_plan_counts_the_labels_that_there_are() -> None:
    """Needed in all less the ones that exist, and never below none."""
    few, many = card(MIXED), card(MIXED * 40)

    assert few.needed.total is not None
    assert few.still_needed == few.needed.total - 33 > 0
    assert not few.is_supposed
    assert many.still_needed == 0
    assert half_width(many.kappa) < half_width(few.kappa) / 5


@pytest.mark.parametrize(
    ("equal", "rare", "chance"),
    [
        pytest.param(33, 4, 0.05, id="more-than-an-interval-takes-by-number"),
        pytest.param(6, 1, 0.25, id="fewer-by-number-too"),
        pytest.param(33, 0, 1.0, id="of-equal-weight"),
    ],
)
def test_labels_of_unequal_weight_have_a_plan_too(equal: int, rare: int, chance: float) -> None:
    """Where they say as much as fewer than 20 it supposes, and takes more by as much as they say less."""
    found = card([*MIXED[:equal], *rated((LOW, HIGH, rare), inclusion_probability=chance)])

    assert found.needed.total is not None
    assert found.still_needed == found.needed.total - equal - rare > 0
    assert found.is_supposed == (found.effective < 20)
    if found.is_supposed:
        assert found.needed.total == math.ceil(279 * (equal + rare) / found.effective) > 279


def half_width(estimate: Estimate) -> float:
    assert estimate.half_width is not None
    return estimate.half_width

"""
What labels of people say about a judge: agreement over bands, order of the totals, lean, and how sure all that is.

Pure and seeded. Every label counts by the inverse of the probability with which its score came to be labelled, so that
hard scores which were picked on purpose speak for themselves and not for the rest.

Source:
    Weights: J. Hájek (1971), the ratio form of Horvitz and Thompson. Standard errors: bootstrap of labels, B. Efron,
    R. J. Tibshirani: An Introduction to the Bootstrap (1993), chapter 6. Intervals of kappa and Spearman are made on
    Fisher's z with Student's t. At 40 to 200 labels, those of 95 % cover the true kappa in 91-98 of 100 simulations
    (`benchmarks.years`), whatever the judge is like. Percentiles of the same resamples were not taken for that reason:
    plain ones covered in 86-96, with bias correction and acceleration in 89-98.
"""

import math
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tarsy_scoring.statistics.agreement import (
    CONFIDENCE,
    FEWEST_FOR_A_KAPPA_INTERVAL,
    FEWEST_FOR_A_SPEARMAN_INTERVAL,
    Band,
    Confusion,
    Estimate,
    LabelsNeeded,
    confusion,
    kappa_of,
    labels_needed,
    spearman,
    weighted_kappa,
)
from tarsy_scoring.statistics.bootstrap import FEWEST_FOR_AN_INTERVAL, student_quantile

RESAMPLES = 500  # a standard error made of them is itself within about 3 %
# With fewer labels than an interval takes, what the first plan supposes the kappa to be.
SUPPOSED_KAPPA = 0.6

KAPPA_METHOD = "quadratic kappa; bootstrap standard error on Fisher's z, Student's t"
SPEARMAN_METHOD = "Spearman with midranks; bootstrap standard error on Fisher's z, Student's t"
DIFFERENCE_METHOD = "mean of total less number; bootstrap standard error, Student's t"
_SEED = 20_260_228


@dataclass(frozen=True, slots=True)
class Rating:
    """
    A score beside its label.

    Args:
        said: Band of the label.
        judged: Band of the judge.
        number: 0-100, of the label; None: not given.
        inclusion_probability: How probable it was that this score would be labelled, above 0 to 1. Only the ratio to
            that of the others counts.
    """

    said: str
    judged: str
    total: float
    number: float | None = None
    inclusion_probability: float = 1.0

    @property
    def weight(self) -> float:
        """How many scores it stands for."""
        return 1 / self.inclusion_probability


@dataclass(frozen=True, slots=True)
class TrustCard:
    """
    How far a judge can be trusted.

    Args:
        ratings: Scores with a label.
        effective: As many equally weighed labels would say as much.
        spearman_over: What the totals were ranked against: `numbers` where every rating has one.
        mean_difference: Total less number, over the ratings with a number; above 0 the judge is the milder.
        confusion: Labels as they were counted.
        shares: The same table for all scores that the labels stand for; adds up to 1, empty without labels.
        needed: Labels in all until the interval of kappa is within `HALF_WIDTH`, if the others are chosen alike.
        still_needed: Those less the ones that there are; None where it cannot be said.
        is_supposed: The plan rests on `SUPPOSED_KAPPA`, there being too few labels to plan with.
    """

    ratings: int
    effective: float
    kappa: Estimate
    spearman: Estimate
    spearman_over: Literal["numbers", "bands"]
    mean_difference: Estimate
    confusion: Confusion
    shares: tuple[tuple[float, ...], ...]
    needed: LabelsNeeded
    still_needed: int | None
    is_supposed: bool


def trust_card(ratings: Sequence[Rating], bands: Sequence[Band], *, resamples: int = RESAMPLES) -> TrustCard:
    """
    Hold judgements against labels. The same ratings give the same card, in whatever order they come.

    200 labels take about a tenth of a second.

    Args:
        bands: Of the criteria, lowest first.

    Raises:
        ValueError: A rating has a band that is none of these, or a probability that is none.
    """
    for rating in ratings:
        if not 0 < rating.inclusion_probability <= 1:
            raise ValueError(f"an inclusion probability is above 0 and at most 1, not {rating.inclusion_probability}")
    ids = [b.id for b in bands]
    table = confusion(((r.said, r.judged) for r in ratings), ids)
    sample = _Sample.of(ratings, ids)
    errors = sample.standard_errors(resamples)
    kappa = _on_z(weighted_kappa(((r.said, r.judged) for r in ratings), ids), sample, sample.kappa, errors.kappa)
    needed, is_supposed = _plan(kappa, sample, len(bands))
    whole = math.fsum(sample.weights)
    return TrustCard(
        ratings=len(ratings),
        effective=sample.effective,
        kappa=kappa,
        spearman=_on_z(spearman(sample.said, sample.totals), sample, sample.spearman, errors.spearman),
        spearman_over="numbers" if sample.has_numbers else "bands",
        mean_difference=_difference(sample, errors.difference),
        confusion=table,
        shares=tuple(tuple(cell / whole for cell in row) for row in sample.table(sample.weights)) if ratings else (),
        needed=needed,
        still_needed=None if needed.total is None else max(needed.total - len(ratings), 0),
        is_supposed=is_supposed,
    )


def _on_z(unweighted: Estimate, sample: "_Sample", value: float | None, error: float | None) -> Estimate:
    """The weighted estimate with its interval, or without one for the reason that the unweighted has none."""
    is_kappa = unweighted.method.startswith("quadratic")
    method = KAPPA_METHOD if is_kappa else SPEARMAN_METHOD
    fewest = FEWEST_FOR_A_KAPPA_INTERVAL if is_kappa else FEWEST_FOR_A_SPEARMAN_INTERVAL
    reason = unweighted.reason
    if reason is None and sample.is_below(fewest):
        reason = (
            f"{unweighted.n} labels of unequal weight say as much as {sample.effective:.0f}, too few for an interval; "
            f"it takes {fewest}"
        )
    if unweighted.value is None or value is None:
        return Estimate(None, None, None, unweighted.n, None, method, reason)
    if reason is None and (error is None or not error or abs(value) >= 1):
        reason = "the labels leave no error to measure"
    if reason is not None or error is None:
        return Estimate(value, None, None, unweighted.n, None, method, reason)
    z, reach = math.atanh(value), student_quantile(CONFIDENCE, sample.effective - 1) * error / (1 - value * value)
    return Estimate(value, math.tanh(z - reach), math.tanh(z + reach), unweighted.n, error, method)


def _difference(sample: "_Sample", error: float | None) -> Estimate:
    n, value = len(sample.numbered), sample.difference
    if value is None:
        return Estimate(None, None, None, 0, None, DIFFERENCE_METHOD, "no label has a number")
    if n < FEWEST_FOR_AN_INTERVAL:
        reason = f"{n} are too few for an interval; it takes {FEWEST_FOR_AN_INTERVAL}"
        return Estimate(value, None, None, n, None, DIFFERENCE_METHOD, reason)
    if not error:
        reason = "the differences do not vary, which leaves no spread to measure"
        return Estimate(value, None, None, n, None, DIFFERENCE_METHOD, reason)
    freedom = _effective([sample.weights[i] for i in sample.numbered]) - 1
    if freedom < 1:
        reason = f"{n} labels of very unequal weight say as much as one"
        return Estimate(value, None, None, n, None, DIFFERENCE_METHOD, reason)
    reach = student_quantile(CONFIDENCE, freedom) * error
    return Estimate(value, value - reach, value + reach, n, error, DIFFERENCE_METHOD)


def _plan(kappa: Estimate, sample: "_Sample", bands: int) -> tuple[LabelsNeeded, bool]:
    """
    How many labels, and whether that rests on a supposition instead of on the labels that are there.

    The error shrinks with the root of the number of labels, if they go on to be chosen as they were: with weights as
    unequal as theirs it takes as many more labels as there are for each that would say as much.
    """
    if kappa.value is not None and kappa.standard_error is not None:
        return labels_needed(kappa.value, error_of_one=kappa.standard_error * math.sqrt(kappa.n)), False
    if not sample.is_below(FEWEST_FOR_A_KAPPA_INTERVAL):
        return LabelsNeeded(None, kappa.reason), False
    equal = labels_needed(SUPPOSED_KAPPA, bands=bands)
    if equal.total is None or not kappa.n:
        return equal, True
    return LabelsNeeded(math.ceil(equal.total * kappa.n / sample.effective * (1 - 1e-9))), True


# --- weighing and resampling ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Errors:
    """Standard errors; None where too few resamples had a value."""

    kappa: float | None
    spearman: float | None
    difference: float | None


@dataclass(frozen=True, slots=True)
class _Sample:
    """
    Ratings as columns, in an order of their own.

    Args:
        cells: Places in the table of bands, row by row.
        said: What totals are ranked against: numbers, or places of bands.
        numbered: Rows with a number.
        differences: Total less number of each row; 0 without a number.
        said_places, total_places: Places of the values among the distinct ones, ascending.
    """

    bands: int
    weights: Sequence[float]
    cells: Sequence[int]
    has_numbers: bool
    said: Sequence[float]
    totals: Sequence[float]
    numbered: Sequence[int]
    differences: Sequence[float]
    said_places: Sequence[int]
    total_places: Sequence[int]

    @classmethod
    def of(cls, ratings: Sequence[Rating], ids: Sequence[str]) -> "_Sample":
        # Neither the order of rows may change the draws, nor may None stand beside a number in it.
        rows = sorted(
            ratings, key=lambda r: (ids.index(r.said), ids.index(r.judged), r.total, r.number or -1.0, r.weight)
        )
        has_numbers = bool(rows) and all(r.number is not None for r in rows)
        said = [r.number if has_numbers and r.number is not None else float(ids.index(r.said)) for r in rows]
        totals = [r.total for r in rows]
        return cls(
            bands=len(ids),
            weights=[r.weight for r in rows],
            cells=[ids.index(r.said) * len(ids) + ids.index(r.judged) for r in rows],
            has_numbers=has_numbers,
            said=said,
            totals=totals,
            numbered=[i for i, r in enumerate(rows) if r.number is not None],
            differences=[0.0 if r.number is None else r.total - r.number for r in rows],
            said_places=_places(said),
            total_places=_places(totals),
        )

    @property
    def effective(self) -> float:
        return _effective(self.weights)

    def is_below(self, fewest: int) -> bool:
        """Whether it says less than so many equally weighed labels; the last bit of a sum decides nothing."""
        return self.effective < fewest * (1 - 1e-9)

    def table(self, weights: Sequence[float]) -> list[list[float]]:
        """The sums of weights in each cell, a row per band of the label."""
        sums = [0.0] * (self.bands * self.bands)
        for cell, weight in zip(self.cells, weights, strict=True):
            sums[cell] += weight
        return [sums[start : start + self.bands] for start in range(0, len(sums), self.bands)]

    @property
    def kappa(self) -> float | None:
        return kappa_of(self.table(self.weights))

    @property
    def spearman(self) -> float | None:
        return self._spearman(self.weights)

    @property
    def difference(self) -> float | None:
        return self._difference(self.weights)

    def _spearman(self, weights: Sequence[float]) -> float | None:
        ranks = _midranks(self.said_places, weights), _midranks(self.total_places, weights)
        sxx = sum(w * x * x for w, x in zip(weights, ranks[0], strict=True))
        syy = sum(w * y * y for w, y in zip(weights, ranks[1], strict=True))
        if not (sxx and syy):
            return None
        sxy = sum(w * x * y for w, x, y in zip(weights, *ranks, strict=True))
        return max(-1.0, min(1.0, sxy / math.sqrt(sxx * syy)))

    def _difference(self, weights: Sequence[float]) -> float | None:
        whole = math.fsum(weights[i] for i in self.numbered)
        return math.fsum(weights[i] * self.differences[i] for i in self.numbered) / whole if whole else None

    def standard_errors(self, resamples: int) -> _Errors:
        """How much each estimate varies when the labels are drawn anew from themselves."""
        kappas, orders, differences = list[float](), list[float](), list[float]()
        for weights in self._resampled_weights(resamples):
            for found, value in (
                (kappas, kappa_of(self.table(weights))),
                (orders, self._spearman(weights)),
                (differences, self._difference(weights)),
            ):
                if value is not None:
                    found.append(value)
        return _Errors(
            *(statistics.stdev(v) if len(v) > resamples / 2 else None for v in (kappas, orders, differences))
        )

    def _resampled_weights(self, resamples: int) -> Iterator[list[float]]:
        """Each resample as the weights of all rows: 0 for one that was not drawn, twice its own for one drawn twice."""
        draw = random.Random(_SEED)  # noqa: S311 - nobody gains by guessing it
        rows = range(len(self.weights))
        if len(rows) < FEWEST_FOR_AN_INTERVAL:
            return
        for _ in range(resamples):
            weights = [0.0] * len(rows)
            for row in draw.choices(rows, k=len(rows)):
                weights[row] += self.weights[row]
            yield weights


def _effective(weights: Sequence[float]) -> float:
    """
    How many equal weights vary as little.

    Source:
        L. Kish: Survey Sampling (1965), section 11.7.
    """
    squares = math.fsum(w * w for w in weights)
    return math.fsum(weights) ** 2 / squares if squares else 0.0


def _places(values: Sequence[float]) -> list[int]:
    places = {value: place for place, value in enumerate(sorted(set(values)))}
    return [places[v] for v in values]


def _midranks(places: Sequence[int], weights: Sequence[float]) -> list[float]:
    """The weight below each value plus half of that at it, less half of all: around 0, as ranks less their mean."""
    at = [0.0] * (max(places, default=-1) + 1)
    for place, weight in zip(places, weights, strict=True):
        at[place] += weight
    below, middle = 0.0, list[float]()
    for weight in at:
        middle.append(below + weight / 2)
        below += weight
    return [middle[place] - below / 2 for place in places]

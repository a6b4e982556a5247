"""
Estimates a mean, or a difference of means within strata, by resampling; no distribution is assumed.

All results are deterministic and independent of the order of the input. `comparison` imports this module
inside
functions, so that a worker, which needs only its constants, does not load numpy.

Source:
    Percentile interval: B. Efron, R. J. Tibshirani: An Introduction to the Bootstrap (1993), chapter 13;
    permutation test: chapter 15. Resampling n - 1 of n values, which keeps the variance of a mean unbiased in
    small strata: J. N. K. Rao, C. F. J. Wu, Journal of the American Statistical Association 83 (1988),
    231-241. Widening by the ratio of Student's quantile to the normal one: T. C. Hesterberg, The American
    Statistician 69 (2015), 371-386.
"""

import math
import statistics
from collections.abc import Iterator, Sequence

import numpy as np

from tarsy_scoring.statistics.agreement import CONFIDENCE, Estimate
from tarsy_scoring.statistics.change import (
    FEWEST,
    degrees_of_freedom,
    shares_of,
    student_quantile,
    weighted_change,
)
from tarsy_scoring.statistics.pairing import FEWEST_FOR_AN_INTERVAL, FEWEST_IN_A_STRATUM, Stratum, sizes_of

METHOD = "percentile bootstrap, widened by Student's t"
RESAMPLES = 2_000
_SEED = 20_260_131
_DECIMALS = 9  # interval ends are rounded to this: sums of equal values may differ in their last bit
_MOST_DRAWN_AT_ONCE = 2**20  # floats per block; keeps resampling of large groups within some 16 MB

Cell = tuple[float, Sequence[float]]
"""The values of one group of one stratum, and the weight of their mean in the estimate."""


def estimate_mean(values: Sequence[float], *, resamples: int = RESAMPLES) -> Estimate:
    """
    The mean with its bootstrap interval.

    No interval for fewer than `FEWEST_FOR_AN_INTERVAL` values, or when all values are equal.
    """
    n = len(values)
    if n == 0:
        return Estimate(None, None, None, 0, None, METHOD, "there is no value")
    reason = None
    if n < FEWEST_FOR_AN_INTERVAL:
        reason = f"{n} are too few for an interval; it takes {FEWEST_FOR_AN_INTERVAL}"
    elif _is_constant([values]):
        reason = "the values do not vary, which leaves no spread to measure"
    return _estimate([(1.0, values)], n, reason, resamples)


def estimate_difference(strata: Sequence[Stratum], *, resamples: int = RESAMPLES) -> Estimate:
    """
    The weighted mean, over strata, of the second group's mean minus the first's, with its bootstrap interval.

    Each group is resampled within its stratum. No interval when a group is too small, or constant in every
    stratum: resampling cannot show the spread of values that never differ.
    """
    if not strata:
        return Estimate(None, None, None, 0, None, METHOD, "no stratum has both groups")
    first, second = [s.first for s in strata], [s.second for s in strata]
    sizes = sizes_of(strata)
    reason = None
    if min(sizes) < FEWEST_FOR_AN_INTERVAL or min(map(len, first + second)) < FEWEST_IN_A_STRATUM:
        reason = f"{sizes[0]} and {sizes[1]} are too few for an interval; {FEWEST}"
    elif _is_constant(first) or _is_constant(second):
        reason = "one side does not vary at all, which leaves no spread to measure"
    cells = [
        cell
        for w, s in zip(shares_of(strata), strata, strict=True)
        for cell in ((-w, s.first), (w, s.second))
    ]
    return _estimate(cells, sum(sizes), reason, resamples)


def chance_of(strata: Sequence[Stratum], shuffles: int = RESAMPLES) -> float:
    """
    The two-sided p-value of a stratified permutation test of the weighted difference of means.

    (1 + permutations with a difference at least as large) / (1 + `shuffles`): valid for all sizes and shapes
    of the groups, and never 0.
    """
    rng = np.random.default_rng(_SEED)
    differences = np.zeros(shuffles)
    whole = math.fsum(s.weight for s in strata)
    for first, second in sorted((sorted(s.first), sorted(s.second)) for s in strata):
        weight = Stratum(first, second).weight / whole
        pool = np.sort(np.array([*first, *second], dtype=float))
        sums = np.concatenate(
            [_permuted_sums(rng, pool, len(second), rows) for rows in blocks(shuffles, len(pool))]
        )
        differences += weight * (sums / len(second) - (pool.sum() - sums) / len(first))
    # Permutations that repeat the observed difference must not fall below it through the last bit of a sum.
    at_least = abs(weighted_change(strata)) * (1 - 1e-9) - 10.0**-_DECIMALS
    return float((1 + np.count_nonzero(np.abs(differences) >= at_least)) / (1 + shuffles))


def _permuted_sums(rng: np.random.Generator, pool: np.ndarray, size: int, rows: int) -> np.ndarray:
    """The sums of the second group in that many permutations: the first `size` values of each."""
    sums: np.ndarray = rng.permuted(np.tile(pool, (rows, 1)), axis=1)[:, :size].sum(axis=1)
    return sums


def blocks(rows: int, width: int, most: int = _MOST_DRAWN_AT_ONCE) -> Iterator[int]:
    """Sizes of blocks that add up to `rows`, each with at most `most` values at `width` values a row."""
    size = max(1, most // max(width, 1))
    return (min(size, rows - start) for start in range(0, rows, size))


def _is_constant(groups: Sequence[Sequence[float]]) -> bool:
    return all(len(set(values)) == 1 for values in groups)


def _estimate(cells: Sequence[Cell], n: int, reason: str | None, resamples: int) -> Estimate:
    """
    The weighted sum of the means of the cells; with its interval unless `reason` says why there is none.

    The ends are the k-th lowest and highest resampled estimates, widened around the value. k is rounded down,
    so that few resamples never narrow the interval.
    """
    value = math.fsum(weight * math.fsum(values) / len(values) for weight, values in cells)
    if reason is not None:
        return Estimate(value, None, None, n, None, METHOD, reason)
    resampled = _resampled(cells, resamples)
    components = [(w * w * statistics.variance(values) / len(values), len(values) - 1) for w, values in cells]
    stretch = student_quantile(CONFIDENCE, degrees_of_freedom(components)) / student_quantile(
        CONFIDENCE, math.inf
    )
    k = max(1, math.floor((resamples + 1) * (1 - CONFIDENCE) / 2))
    low, high = (value + stretch * (float(end) - value) for end in (resampled[k - 1], resampled[-k]))
    error = float(resampled.std(ddof=1))
    return Estimate(value, round(low, _DECIMALS), round(high, _DECIMALS), n, error, METHOD)


def _resampled(cells: Sequence[Cell], resamples: int) -> np.ndarray:
    """The estimate of each resample, ascending."""
    rng = np.random.default_rng(_SEED)
    estimates = np.zeros(resamples)
    # Cells are drawn in an order of their own, so that neither stratum names nor the order of rows change the
    # draws.
    for weight, values in sorted((weight, sorted(values)) for weight, values in cells):
        n = len(values)
        means = [rng.choice(values, size=(rows, n - 1)).mean(axis=1) for rows in blocks(resamples, n)]
        estimates += weight * np.concatenate(means)
    return np.sort(estimates)

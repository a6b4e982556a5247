"""
Estimate a mean, or a difference of means within strata, with its interval and its p-value.

`estimate_mean`, `estimate_difference` and `chance_of` resample and assume no distribution; `change_within`,
`paired_change`, `borrowed_change` and `less` use Student's t and keep the components of the variance, so that
one change can be subtracted from another. All results are deterministic and independent of the order of the
input.

Source:
    Percentile interval: B. Efron, R. J. Tibshirani: An Introduction to the Bootstrap (1993), chapter 13;
        permutation
    test: chapter 15. Resampling n - 1 of n values, which keeps the variance of a mean unbiased in small
    strata: J. N. K. Rao, C. F. J. Wu, Journal of the American Statistical Association 83 (1988), 231-241.
    Widening by the ratio of Student's quantile to the normal one: T. C. Hesterberg, The American Statistician
    69 (2015), 371-386. Unequal variances: B. L. Welch, Biometrika 34 (1947), 28-35. Degrees of freedom: F. E.
    Satterthwaite, Biometrics Bulletin 2 (1946), 110-114.
"""

import math
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tarsy_scoring.statistics.agreement import CONFIDENCE, Estimate
from tarsy_scoring.statistics.pairing import FEWEST_FOR_AN_INTERVAL, FEWEST_IN_A_STRATUM, Stratum

if TYPE_CHECKING:
    import numpy as np

METHOD = "percentile bootstrap, widened by Student's t"
ANCHORS_METHOD = "paired t over anchors"
BORROWED_METHOD = "paired t over anchors, random effects between chains (DerSimonian-Laird)"
WHOLE_METHOD = "Welch's t within strata"
AGENTS_METHOD = "the whole change less the judge's; Welch's t"

RESAMPLES = 2_000
# Totals are whole points; rounding hides a variance of 1/12 in each. Without this floor a judge that repeats
# itself to the point would get an interval of width 0. Source: W. F. Sheppard (1898).
LEAST_VARIANCE = 1 / 12
GRIDS = (10, 5, 2)  # judges that only give multiples of these hide correspondingly more
_SEED = 20_260_131
_DECIMALS = 9  # interval ends are rounded to this: sums of equal values may differ in their last bit
_MOST_DRAWN_AT_ONCE = 2**20  # floats per block; keeps resampling of large groups within some 16 MB

Component = tuple[float, int]
"""A variance and its degrees of freedom."""


# --- resampling ----------------------------------------------------------------------------------------


def estimate_mean(values: Sequence[float], *, confidence: float = CONFIDENCE, resamples: int = RESAMPLES) -> Estimate:
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
    return _estimate([(1.0, values)], n, reason, confidence, resamples)


def estimate_difference(
    strata: Sequence[Stratum], *, confidence: float = CONFIDENCE, resamples: int = RESAMPLES
) -> Estimate:
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
        reason = f"{sizes[0]} and {sizes[1]} are too few for an interval; {_FEWEST}"
    elif _is_constant(first) or _is_constant(second):
        reason = "one side does not vary at all, which leaves no spread to measure"
    cells = [cell for w, s in zip(_shares(strata), strata, strict=True) for cell in ((-w, s.first), (w, s.second))]
    return _estimate(cells, sum(sizes), reason, confidence, resamples)


def chance_of(strata: Sequence[Stratum], shuffles: int = RESAMPLES) -> float:
    """
    The two-sided p-value of a stratified permutation test of the weighted difference of means.

    (1 + permutations with a difference at least as large) / (1 + `shuffles`): valid for all sizes and shapes
    of the groups, and never 0.
    """
    import numpy as np

    rng = np.random.default_rng(_SEED)
    differences = np.zeros(shuffles)
    whole = math.fsum(s.weight for s in strata)
    for first, second in sorted((sorted(s.first), sorted(s.second)) for s in strata):
        weight = Stratum(first, second).weight / whole
        pool = np.sort(np.array([*first, *second], dtype=float))
        total = pool.sum()
        sums = _in_blocks(partial(_permuted_sums, rng, pool, len(second)), shuffles, len(pool))
        differences += weight * (sums / len(second) - (total - sums) / len(first))
    # Permutations that repeat the observed difference must not fall below it through the last bit of a sum.
    at_least = abs(weighted_change(strata)) * (1 - 1e-9) - 10.0**-_DECIMALS
    return float((1 + np.count_nonzero(np.abs(differences) >= at_least)) / (1 + shuffles))


def _is_constant(groups: Sequence[Sequence[float]]) -> bool:
    return all(len(set(values)) == 1 for values in groups)


def _estimate(
    cells: Sequence[tuple[float, Sequence[float]]], n: int, reason: str | None, confidence: float, resamples: int
) -> Estimate:
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
    stretch = student_quantile(confidence, _freedom(components)) / student_quantile(confidence, math.inf)
    k = max(1, math.floor((resamples + 1) * (1 - confidence) / 2))
    low, high = (value + stretch * (float(end) - value) for end in (resampled[k - 1], resampled[-k]))
    error = float(resampled.std(ddof=1))
    return Estimate(value, round(low, _DECIMALS), round(high, _DECIMALS), n, error, METHOD)


def _resampled(cells: Sequence[tuple[float, Sequence[float]]], resamples: int) -> "np.ndarray":
    """The estimate of each resample, ascending."""
    import numpy as np

    rng = np.random.default_rng(_SEED)
    estimates = np.zeros(resamples)
    # Cells are drawn in an order of their own, so that neither stratum names nor the order of rows change the
    # draws.
    for weight, values in sorted((weight, sorted(values)) for weight, values in cells):
        means = partial(_resampled_means, rng, np.array(values))
        estimates += weight * _in_blocks(means, resamples, len(values))
    return np.sort(estimates)


def _permuted_sums(rng: "np.random.Generator", pool: "np.ndarray", n: int, rows: int) -> "np.ndarray":
    """The sum of the first n values of each of `rows` permutations."""
    import numpy as np

    return np.asarray(rng.permuted(np.tile(pool, (rows, 1)), axis=1)[:, :n].sum(axis=1))


def _resampled_means(rng: "np.random.Generator", values: "np.ndarray", rows: int) -> "np.ndarray":
    """The mean of each of `rows` resamples of n - 1 of the n values."""
    import numpy as np

    return np.asarray(rng.choice(values, size=(rows, len(values) - 1)).mean(axis=1))


def _in_blocks(draw: "Callable[[int], np.ndarray]", rows: int, width: int) -> "np.ndarray":
    """Call `draw` for `rows` rows of `width` values in blocks of bounded memory."""
    import numpy as np

    block = max(1, _MOST_DRAWN_AT_ONCE // width)
    return np.concatenate([draw(min(block, rows - start)) for start in range(0, rows, block)])


# --- Student's t ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """
    A change, or a part of one.

    Args:
        components: The independent components of its variance; empty without an interval, or for an exact 0.
    """

    estimate: Estimate
    components: Sequence[Component] = ()

    @property
    def freedom(self) -> float:
        """Satterthwaite's degrees of freedom."""
        return _freedom(self.components)


def student_quantile(confidence: float, freedom: float) -> float:
    """
    The two-sided quantile of Student's t: `confidence` of the distribution lies within plus and minus the
    result.

    Args:
        freedom: Above 0; `math.inf` gives the normal quantile.

    Source:
        `scipy.special.stdtrit`.
    """
    from scipy import special

    return float(special.stdtrit(freedom, (1 + confidence) / 2))


def _freedom(components: Sequence[Component]) -> float:
    """Satterthwaite's (sum v)² / sum v²/f; infinite when nothing varies."""
    spent = math.fsum(variance * variance / freedom for variance, freedom in components)
    return math.fsum(variance for variance, _ in components) ** 2 / spent if spent else math.inf


def change_of(value: float, components: Sequence[Component], n: int, method: str, confidence: float) -> Change:
    """
    The change with the t interval that its variance gives.

    Args:
        components: At least one, with a variance above 0.
    """
    error = math.sqrt(math.fsum(variance for variance, _ in components))
    reach = student_quantile(confidence, _freedom(components)) * error
    return Change(Estimate(value, value - reach, value + reach, n, error, method), components)


def hidden_variance(totals: Collection[float]) -> float:
    """The variance that rounding hides in each total: grid² / 12 for the coarsest grid that all totals lie
    on.
    """
    return LEAST_VARIANCE * next((grid for grid in GRIDS if not any(t % grid for t in totals)), 1) ** 2


def paired_change(changes: Sequence[float], confidence: float, least_variance: float = 2 * LEAST_VARIANCE) -> Change:
    """
    The mean change of sessions that were judged twice; no interval for fewer than `FEWEST_FOR_AN_INTERVAL`.

    Args:
        least_variance: Floor for the variance of one change: what rounding hides in its two totals.
    """
    n = len(changes)
    if n < FEWEST_FOR_AN_INTERVAL:
        value = statistics.fmean(changes) if changes else None
        seen = "no anchor was" if n == 0 else f"only {n} anchor{'s were' if n > 1 else ' was'}"
        reason = f"{seen} judged by both judges; it takes {FEWEST_FOR_AN_INTERVAL}"
        return Change(Estimate(value, None, None, n, None, ANCHORS_METHOD, reason))
    variance = max(statistics.variance(changes), least_variance)
    return change_of(statistics.fmean(changes), [(variance / n, n - 1)], n, ANCHORS_METHOD, confidence)


def borrowed_change(
    own: Sequence[float], others: Sequence[Sequence[float]], confidence: float, least_variance: float
) -> Change:
    """
    The mean change of a chain's anchors, strengthened by the anchors of other chains.

    Random-effects model: chains are a sample from a population whose changes differ with a variance that is
    estimated from the chains themselves. The fewer anchors the chain has and the more alike the chains are,
    the more the other chains count. If the chain's own anchors alone give a narrower interval, the result is
    theirs. Anchors of a single chain show no variance between chains, so they are used as if they were the
    chain's own.

    Args:
        own: Changes of the chain itself; may be empty.
        others: Changes of each other chain; at least one each.
        least_variance: See `paired_change`.

    Source:
        Variance between chains: R. DerSimonian, N. Laird, Controlled Clinical Trials 7 (1986), 177-188, with
        a common variance within chains. Estimate for one chain: R. E. Fay, R. A. Herriot, Journal of the
        American Statistical Association 74 (1979), 269-277.
    """
    chains = [changes for changes in (own, *others) if changes]
    everything = [change for changes in chains for change in changes]
    n, freedom = len(everything), len(everything) - len(chains)
    if len(chains) < 2 or n < FEWEST_FOR_AN_INTERVAL:
        return paired_change(everything, confidence, least_variance)
    means = [statistics.fmean(changes) for changes in chains]
    scatter = math.fsum((change - m) ** 2 for changes, m in zip(chains, means, strict=True) for change in changes)
    within = max(scatter / max(freedom, 1), least_variance)
    between = _variance_between([len(changes) for changes in chains], means, within)
    weights = [1 / (within / len(changes) + between) for changes in chains]
    center = math.fsum(w * m for w, m in zip(weights, means, strict=True)) / math.fsum(weights)
    trust = between / (between + within / len(own)) if own else 0.0
    value = trust * means[0] + (1 - trust) * center
    error = (trust * within / len(own) if own else between) + (1 - trust) ** 2 / math.fsum(weights)
    components = [(within / n, max(freedom, 1)), (max(0.0, error - within / n), len(chains) - 1)]
    found = change_of(value, components, n, BORROWED_METHOD, confidence)
    alone = paired_change(own, confidence, least_variance)
    return alone if _is_narrower(alone.estimate, found.estimate) else found


def _is_narrower(one: Estimate, other: Estimate) -> bool:
    return one.half_width is not None and other.half_width is not None and one.half_width < other.half_width


def _variance_between(sizes: Sequence[int], means: Sequence[float], within: float) -> float:
    """The variance of the chains' changes beyond what the scatter within chains explains; at least 0."""
    n = sum(sizes)
    mean = math.fsum(size * m for size, m in zip(sizes, means, strict=True)) / n
    seen = math.fsum(size * (m - mean) ** 2 for size, m in zip(sizes, means, strict=True))
    return max(0.0, (seen - (len(sizes) - 1) * within) / (n - math.fsum(size * size for size in sizes) / n))


_FEWEST = f"it takes {FEWEST_FOR_AN_INTERVAL} of each, and {FEWEST_IN_A_STRATUM} in every stratum"


def change_within(strata: Sequence[Stratum], confidence: float, method: str = WHOLE_METHOD) -> Change:
    """
    The weighted difference of means within strata, with Welch's interval; no value when too few sessions
    remain.

    Variances are estimated separately for each group of each stratum and are at least `LEAST_VARIANCE`.
    """
    sizes = sizes_of(strata)
    if min(sizes) < FEWEST_FOR_AN_INTERVAL:
        reason = f"{sizes[0]} sessions before and {sizes[1]} after are too few in shared strata; {_FEWEST}"
        return Change(Estimate(None, None, None, sum(sizes), None, method, reason))
    components = [
        (share**2 * max(statistics.variance(side), LEAST_VARIANCE) / len(side), len(side) - 1)
        for share, s in zip(_shares(strata), strata, strict=True)
        for side in (s.first, s.second)
    ]
    return change_of(weighted_change(strata), components, sum(sizes), method, confidence)


def weighted_change(strata: Sequence[Stratum]) -> float:
    """The weighted mean, over strata, of the second group's mean minus the first's."""
    return math.fsum(
        share * (statistics.fmean(s.second) - statistics.fmean(s.first))
        for share, s in zip(_shares(strata), strata, strict=True)
    )


def _shares(strata: Sequence[Stratum]) -> list[float]:
    whole = math.fsum(s.weight for s in strata)
    return [s.weight / whole for s in strata]


def sizes_of(strata: Sequence[Stratum]) -> tuple[int, int]:
    """Number of values of the first and of the second group."""
    return sum(len(s.first) for s in strata), sum(len(s.second) for s in strata)


def less(whole: Change, judge: Change, confidence: float) -> Change:
    """The whole change minus the judge's part; the variances add up. No value when either has no interval."""
    n, value, subtracted = whole.estimate.n, whole.estimate.value, judge.estimate.value
    if value is None or subtracted is None or not judge.components:
        reason = whole.estimate.reason or judge.estimate.reason
        return Change(Estimate(None, None, None, n, None, AGENTS_METHOD, reason))
    components = [*whole.components, *judge.components]
    return change_of(value - subtracted, components, n, AGENTS_METHOD, confidence)


def chance_of_change(change: Change) -> float:
    """
    The two-sided p-value of the change under Student's t; 1 when it has no value or no error.

    Source:
        `scipy.special.stdtr`.
    """
    from scipy import special

    if not change.estimate.value or not change.estimate.standard_error:
        return 1.0
    ratio = abs(change.estimate.value) / change.estimate.standard_error
    return float(2 * special.stdtr(change.freedom, -ratio))

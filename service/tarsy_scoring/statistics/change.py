"""
Estimates changes of a mean with Student's t, and subtracts one change from another.

Each change keeps the components of its variance, from which the interval of a difference is computed.

Source:
    Unequal variances: B. L. Welch, Biometrika 34 (1947), 28-35. Degrees of freedom: F. E. Satterthwaite,
    Biometrics Bulletin 2 (1946), 110-114.
"""

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tarsy_scoring.statistics.agreement import Estimate
from tarsy_scoring.statistics.pairing import FEWEST_FOR_AN_INTERVAL, FEWEST_IN_A_STRATUM, Stratum, sizes_of

ANCHORS_METHOD = "paired t over anchors"
BORROWED_METHOD = "paired t over anchors, random effects between chains (DerSimonian-Laird)"
WHOLE_METHOD = "Welch's t within strata"
MOMENTS_METHOD = "Welch's t"
AGENTS_METHOD = "the whole change less the judge's; Welch's t"

# Totals are whole points; rounding hides a variance of 1/12 in each. Without this floor a judge that repeats
# itself to the point would get an interval of width 0. Source: W. F. Sheppard (1898).
LEAST_VARIANCE = 1 / 12
GRIDS = (10, 5, 2)  # judges that only give multiples of these hide correspondingly more
FEWEST = f"it takes {FEWEST_FOR_AN_INTERVAL} of each, and {FEWEST_IN_A_STRATUM} in every stratum"

FEWEST_TO_COMPARE = FEWEST_FOR_AN_INTERVAL  # of each group, where there are no strata

Component = tuple[float, int]
"""A variance and its degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Change:
    """
    A change, or a part of one.

    Args:
        components: The independent components of its variance; empty without an interval, or for an exact 0.
    """

    estimate: Estimate
    components: Sequence[Component] = ()


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


def degrees_of_freedom(components: Sequence[Component]) -> float:
    """Satterthwaite's (sum v)² / sum v²/f; infinite when nothing varies."""
    spent = math.fsum(variance * variance / freedom for variance, freedom in components)
    return math.fsum(variance for variance, _ in components) ** 2 / spent if spent else math.inf


def change_of(
    value: float, components: Sequence[Component], n: int, method: str, confidence: float
) -> Change:
    """
    The change with the t interval that its variance gives.

    Args:
        components: At least one, with a variance above 0.
    """
    error = math.sqrt(math.fsum(variance for variance, _ in components))
    reach = student_quantile(confidence, degrees_of_freedom(components)) * error
    return Change(Estimate(value, value - reach, value + reach, n, error, method), components)


def hidden_variance(totals: Collection[float]) -> float:
    """The variance that rounding hides in each total: grid² / 12 for the coarsest grid that all totals lie
    on.
    """
    return LEAST_VARIANCE * next((grid for grid in GRIDS if not any(t % grid for t in totals)), 1) ** 2


def paired_change(
    changes: Sequence[float], confidence: float, least_variance: float = 2 * LEAST_VARIANCE
) -> Change:
    """
    The mean change of sessions that were judged twice; no interval for fewer than `FEWEST_FOR_AN_INTERVAL`.

    Args:
        least_variance: Floor for the variance of one change: the variance that rounding hides in two totals.
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
    scatter = math.fsum(
        (change - m) ** 2 for changes, m in zip(chains, means, strict=True) for change in changes
    )
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


def change_within(strata: Sequence[Stratum], confidence: float, method: str = WHOLE_METHOD) -> Change:
    """
    The weighted difference of means within strata, with Welch's interval; no value when too few sessions
    remain.

    Variances are estimated separately for each group of each stratum and are at least `LEAST_VARIANCE`.
    """
    sizes = sizes_of(strata)
    if min(sizes) < FEWEST_FOR_AN_INTERVAL:
        reason = f"{sizes[0]} sessions before and {sizes[1]} after are too few in shared strata; {FEWEST}"
        return Change(Estimate(None, None, None, sum(sizes), None, method, reason))
    components = [
        (share**2 * max(statistics.variance(side), LEAST_VARIANCE) / len(side), len(side) - 1)
        for share, s in zip(shares_of(strata), strata, strict=True)
        for side in (s.first, s.second)
    ]
    return change_of(weighted_change(strata), components, sum(sizes), method, confidence)


@dataclass(frozen=True, slots=True)
class Moments:
    """Number, sum and sum of squares of whole totals; exact up to 2**53."""

    n: int = 0
    sum: float = 0.0
    squares: float = 0.0

    @property
    def mean(self) -> float | None:
        return self.sum / self.n if self.n else None

    def __add__(self, other: "Moments") -> "Moments":
        return Moments(self.n + other.n, self.sum + other.sum, self.squares + other.squares)

    @property
    def variance(self) -> float:
        """Unbiased, and at least `LEAST_VARIANCE`; needs two totals."""
        return max((self.squares - self.sum * self.sum / self.n) / (self.n - 1), LEAST_VARIANCE)


def change_of_moments(first: Moments, second: Moments, confidence: float) -> Change:
    """
    The second mean minus the first, with Welch's interval; no value with fewer than `FEWEST_TO_COMPARE`
    totals.
    """
    n = first.n + second.n
    if min(first.n, second.n) < FEWEST_TO_COMPARE:
        reason = (
            f"{first.n} totals before and {second.n} after are too few; it takes {FEWEST_TO_COMPARE} of each"
        )
        return Change(Estimate(None, None, None, n, None, MOMENTS_METHOD, reason))
    components = [(side.variance / side.n, side.n - 1) for side in (first, second)]
    return change_of(second.sum / second.n - first.sum / first.n, components, n, MOMENTS_METHOD, confidence)


def weighted_change(strata: Sequence[Stratum]) -> float:
    """The weighted mean, over strata, of the second group's mean minus the first's."""
    return math.fsum(
        share * (statistics.fmean(s.second) - statistics.fmean(s.first))
        for share, s in zip(shares_of(strata), strata, strict=True)
    )


def shares_of(strata: Sequence[Stratum]) -> list[float]:
    """The weight of each stratum as a share of all."""
    whole = math.fsum(s.weight for s in strata)
    return [s.weight / whole for s in strata]


def less(whole: Change, judge: Change, confidence: float) -> Change:
    """Subtract the judge's part from the whole change; variances add up. No value if one has no interval."""
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
    return float(2 * special.stdtr(degrees_of_freedom(change.components), -ratio))

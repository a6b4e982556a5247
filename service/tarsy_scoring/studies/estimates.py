"""
Estimate how a mean changed, with Student's t: within strata, in pairs, and one change less another.

A change keeps the variance components, so that another change can be subtracted.

Source:
    Unequal variances: B. L. Welch, Biometrika 34 (1947), 28-35. Degrees of freedom: F. E. Satterthwaite,
    Biometrics Bulletin 2 (1946), 110-114. Weights: W. G. Cochran, Biometrics 10 (1954), 417-451.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from scipy import special  # `scipy.stats` has the same functions for 45 MB and 0.6 s more

FEWEST = 5  # values in each group; with fewer the intervals undercover
FEWEST_IN_A_STRATUM = 2  # per group: a single value has no variance
# Totals are whole points; rounding hides a variance of 1/12 in each. Source: W. F. Sheppard (1898).
LEAST_VARIANCE = 1 / 12

Component = tuple[float, int]
"""Variance and degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """
    A number with an interval.

    `value`, or only the interval, is None when the input does not support it; `reason` says why.

    Args:
        n: Sessions behind the value.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int
    reason: str | None = None

    @property
    def significance(self) -> float | None:
        """|value| in half widths; above 1 the interval excludes 0. None without an interval."""
        if self.value is None or self.low is None or self.high is None:
            return None
        return 2 * abs(self.value) / (self.high - self.low) if self.high > self.low else 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """
    How much a mean changed.

    Args:
        components: Independent variance components; empty for an exact 0.
        chance: Two-sided p-value.
    """

    estimate: Estimate
    components: Sequence[Component] = ()
    chance: float = 1.0


NO_CHANGE = Change(Estimate(0.0, 0.0, 0.0, 0))


Stratum = tuple[list[float], list[float]]
"""Two groups under the same circumstances; each has at least two values."""


def strata_of(
    first: Iterable[tuple[Hashable, float]], second: Iterable[tuple[Hashable, float]]
) -> list[Stratum]:
    """
    Sort two groups into strata; leaves out strata where a group has too few values.

    Args:
        first, second: The circumstances of each value, and the value.
    """
    groups = defaultdict[Hashable, Stratum](lambda: ([], []))
    for side, members in enumerate((first, second)):
        for circumstances, value in members:
            groups[circumstances][side].append(value)
    return [sides for sides in groups.values() if min(map(len, sides)) >= FEWEST_IN_A_STRATUM]


def sizes_of(strata: Sequence[Stratum]) -> tuple[int, int]:
    """How many values the first and the second group have."""
    return sum(len(first) for first, _ in strata), sum(len(second) for _, second in strata)


def change_within(strata: Sequence[Stratum], confidence: float) -> Change:
    """The second group's mean minus the first's, averaged over strata; None for too few values."""
    sizes = sizes_of(strata)
    if min(sizes) < FEWEST:
        few = f"{sizes[0]} and {sizes[1]} sessions share their circumstances; it takes {FEWEST} of each"
        return Change(Estimate(None, None, None, sum(sizes), few))
    # This weight minimises the variance when all strata vary alike.
    weights = [len(first) * len(second) / (len(first) + len(second)) for first, second in strata]
    shares = [weight / math.fsum(weights) for weight in weights]
    differences = [statistics.fmean(second) - statistics.fmean(first) for first, second in strata]
    components = [
        (share**2 * max(statistics.variance(side), LEAST_VARIANCE) / len(side), len(side) - 1)
        for share, sides in zip(shares, strata, strict=True)
        for side in sides
    ]
    value = math.fsum(share * d for share, d in zip(shares, differences, strict=True))
    return change_of(value, components, sum(sizes), confidence)


def paired_change(changes: Sequence[float], confidence: float) -> Change:
    """How much twice-judged sessions changed on average; no interval for fewer than `FEWEST`."""
    n = len(changes)
    if n < FEWEST:
        value = statistics.fmean(changes) if changes else None
        few = f"{n} sessions were judged by both judges; it takes {FEWEST}"
        return Change(Estimate(value, None, None, n, few))
    variance = max(statistics.variance(changes), 2 * LEAST_VARIANCE)
    return change_of(statistics.fmean(changes), [(variance / n, n - 1)], n, confidence)


def less(whole: Change, part: Change, confidence: float) -> Change:
    """Subtract a part from the whole change; variances add up. No value if one has no interval."""
    for one in (whole.estimate, part.estimate):
        if one.low is None:
            return Change(Estimate(None, None, None, whole.estimate.n, one.reason))
    value = (whole.estimate.value or 0.0) - (part.estimate.value or 0.0)
    return change_of(value, [*whole.components, *part.components], whole.estimate.n, confidence)


def change_of(value: float, components: Sequence[Component], n: int, confidence: float) -> Change:
    """The change with the t interval and the two-sided p-value that the variance gives."""
    variance = math.fsum(v for v, _ in components)
    freedom = variance**2 / math.fsum(v * v / f for v, f in components)
    error = math.sqrt(variance)
    reach = float(special.stdtrit(freedom, (1 + confidence) / 2)) * error
    chance = float(2 * special.stdtr(freedom, -abs(value) / error))
    return Change(Estimate(value, value - reach, value + reach, n), components, chance)


def in_points(estimate: Estimate) -> str:
    """Format a change in points with the interval."""
    if estimate.value is None:
        return "unknown"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:+.1f}, no interval"
    if estimate.low == estimate.high:
        return f"{estimate.value:+.1f}"
    return f"{estimate.value:+.1f} ({estimate.low:+.1f} to {estimate.high:+.1f})"

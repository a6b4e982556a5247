"""
How much totals changed and how sure that is, by Student's t: within strata, of the same sessions, and what is left of
one less the other. Pure.

Source:
    B. L. Welch, Biometrika 34 (1947), 28-35; degrees of freedom: F. E. Satterthwaite, Biometrics Bulletin 2 (1946),
    110-114.
"""

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tarsy_scoring.statistics.agreement import Estimate
from tarsy_scoring.statistics.bootstrap import FEWEST_FOR_AN_INTERVAL, FEWEST_IN_A_STRATUM, Stratum, student_quantile

# Totals are whole points, which hides a variance of 1/12 each: a judge that repeats itself to the point is known to
# change by little, not by nothing. Source: W. F. Sheppard (1898).
LEAST_VARIANCE = 1 / 12
GRIDS = (10, 5, 2)  # coarser ones that judges keep to; they hide that much more

ANCHORS_METHOD = "paired t over anchors"
BORROWED_METHOD = "paired t over anchors, random effects between chains (DerSimonian-Laird)"
WHOLE_METHOD = "Welch's t within strata"
AGENTS_METHOD = "the whole change less the judge's; Welch's t"

Piece = tuple[float, int]
"""A variance and its degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Change:
    """
    A change, or a part of one.

    Args:
        pieces: Its variance in independent pieces; none where it has no interval, or no error.
    """

    estimate: Estimate
    pieces: Sequence[Piece] = ()

    @property
    def freedom(self) -> float:
        """Degrees of freedom of its variance."""
        return _freedom(self.pieces)


def _freedom(pieces: Sequence[Piece]) -> float:
    return math.fsum(v for v, _ in pieces) ** 2 / math.fsum(v * v / f for v, f in pieces)


def change_of(value: float, pieces: Sequence[Piece], n: int, method: str, confidence: float) -> Change:
    """
    A change with the interval that its variance gives it.

    Args:
        pieces: At least one, with a variance above 0.
    """
    error = math.sqrt(math.fsum(v for v, _ in pieces))
    reach = student_quantile(confidence, _freedom(pieces)) * error
    return Change(Estimate(value, value - reach, value + reach, n, error, method), pieces)


def hidden_variance(totals: Collection[float]) -> float:
    """What rounding hides in each of these totals: on the coarsest grid that all of them lie on."""
    return LEAST_VARIANCE * next((grid for grid in GRIDS if not any(t % grid for t in totals)), 1) ** 2


def paired_change(changes: Sequence[float], confidence: float, least_variance: float = 2 * LEAST_VARIANCE) -> Change:
    """
    The mean change of the same sessions; with fewer than `FEWEST_FOR_AN_INTERVAL` of them it has no interval.

    Args:
        least_variance: Of one change; what rounding hides in its two totals.
    """
    n = len(changes)
    if n < FEWEST_FOR_AN_INTERVAL:
        value = statistics.fmean(changes) if changes else None
        told = "no anchor was" if n == 0 else f"only {n} anchor{'s were' if n > 1 else ' was'}"
        reason = f"{told} judged by both judges; it takes {FEWEST_FOR_AN_INTERVAL}"
        return Change(Estimate(value, None, None, n, None, ANCHORS_METHOD, reason))
    variance = max(statistics.variance(changes), least_variance)
    return change_of(statistics.fmean(changes), [(variance / n, n - 1)], n, ANCHORS_METHOD, confidence)


def borrowed_change(
    own: Sequence[float], others: Sequence[Sequence[float]], confidence: float, least_variance: float
) -> Change:
    """
    The mean change of a chain's sessions, where those of other chains speak for it, too.

    Chains are taken as drawn from many whose changes differ. The fewer of its own a chain has, and the less chains
    differ, the more the others count; as much as chains are seen to differ, the interval is wider. Chains that do not
    differ make one plain sample. Where its own changes alone make a narrower interval, they speak alone. From one
    chain nobody knows how much chains differ: its changes are taken as they stand.

    Args:
        own: Changes of the chain itself, of which there may be none.
        others: Changes chain by chain; at least one of each.
        least_variance: See `paired_change`.

    Source:
        Variance between chains: R. DerSimonian, N. Laird, Controlled Clinical Trials 7 (1986), 177-188, with one
        variance within. What is told of one chain: R. E. Fay, R. A. Herriot, Journal of the American Statistical
        Association 74 (1979), 269-277. Degrees of freedom: F. E. Satterthwaite (1946).
    """
    chains = [changes for changes in (own, *others) if changes]
    everything = [change for changes in chains for change in changes]
    n, freedom = len(everything), len(everything) - len(chains)
    if len(chains) < 2 or n < FEWEST_FOR_AN_INTERVAL:
        return paired_change(everything, confidence, least_variance)
    means, mean = [statistics.fmean(changes) for changes in chains], statistics.fmean(everything)
    scatter = math.fsum((change - m) ** 2 for changes, m in zip(chains, means, strict=True) for change in changes)
    within = max(scatter / max(freedom, 1), least_variance)
    between = _between(list(zip(map(len, chains), means, strict=True)), mean, within)
    weights = [1 / (within / len(changes) + between) for changes in chains]
    center = math.fsum(w * m for w, m in zip(weights, means, strict=True)) / math.fsum(weights)
    trust = between / (between + within / len(own)) if own else 0.0
    value = trust * means[0] + (1 - trust) * center
    error = (trust * within / len(own) if own else between) + (1 - trust) ** 2 / math.fsum(weights)
    pieces = [(within / n, max(freedom, 1)), (max(0.0, error - within / n), len(chains) - 1)]
    found = change_of(value, pieces, n, BORROWED_METHOD, confidence)
    alone = paired_change(own, confidence, least_variance)
    return alone if _is_narrower(alone.estimate, found.estimate) else found


def _is_narrower(one: Estimate, other: Estimate) -> bool:
    return one.half_width is not None and other.half_width is not None and one.half_width < other.half_width


def _between(chains: Sequence[tuple[int, float]], mean: float, within: float) -> float:
    """The variance of chains' changes beyond what the scatter within explains; at least 0."""
    n = sum(size for size, _ in chains)
    seen = math.fsum(size * (m - mean) ** 2 for size, m in chains)
    return max(0.0, (seen - (len(chains) - 1) * within) / (n - math.fsum(size * size for size, _ in chains) / n))


def change_within(strata: Sequence[Stratum], confidence: float, method: str = WHOLE_METHOD) -> Change:
    """The change within strata, each side of each with a variance of its own; no value where too few remain."""
    sizes = sizes_of(strata)
    if min(sizes) < FEWEST_FOR_AN_INTERVAL:
        fewest = f"it takes {FEWEST_FOR_AN_INTERVAL} of each, and {FEWEST_IN_A_STRATUM} in every stratum"
        reason = f"{sizes[0]} sessions before and {sizes[1]} after are too few in shared strata; {fewest}"
        return Change(Estimate(None, None, None, sum(sizes), None, method, reason))
    pieces = [
        (share**2 * max(statistics.variance(side), LEAST_VARIANCE) / len(side), len(side) - 1)
        for share, s in zip(_shares(strata), strata, strict=True)
        for side in (s.first, s.second)
    ]
    return change_of(weighted_change(strata), pieces, sum(sizes), method, confidence)


def weighted_change(strata: Sequence[Stratum]) -> float:
    """The weighted mean, over strata, of the second mean less the first."""
    return math.fsum(
        share * (statistics.fmean(s.second) - statistics.fmean(s.first))
        for share, s in zip(_shares(strata), strata, strict=True)
    )


def _shares(strata: Sequence[Stratum]) -> list[float]:
    all_weights = math.fsum(s.weight for s in strata)
    return [s.weight / all_weights for s in strata]


def sizes_of(strata: Sequence[Stratum]) -> tuple[int, int]:
    """Of the first and the second group."""
    return sum(len(s.first) for s in strata), sum(len(s.second) for s in strata)


def less(whole: Change, judge: Change, confidence: float) -> Change:
    """The whole less the judge's part, with the errors of both; no value where either has no interval."""
    n, value, taken = whole.estimate.n, whole.estimate.value, judge.estimate.value
    if value is None or taken is None or not judge.pieces:
        lacking = whole.estimate.reason or judge.estimate.reason
        return Change(Estimate(None, None, None, n, None, AGENTS_METHOD, lacking))
    return change_of(value - taken, [*whole.pieces, *judge.pieces], n, AGENTS_METHOD, confidence)


def chance_of_change(change: Change) -> float:
    """How often a change at least as far from 0, in either direction, comes of its errors alone."""
    if not change.estimate.value or not change.estimate.standard_error:
        return 1.0
    ratio = abs(change.estimate.value) / change.estimate.standard_error
    without, within = 0.0, 1 - 1e-9  # confidences of intervals that leave out 0, and that hold it
    for _ in range(50):
        middle = (without + within) / 2
        if student_quantile(middle, change.freedom) < ratio:
            without = middle
        else:
            within = middle
    return 1 - without

"""
Shares: an estimate from cases of unequal weight, and whether a share rose from one group of cases to another.
"""

import math
import statistics
from collections.abc import Sequence

from tarsy_scoring.statistics.agreement import CONFIDENCE, Estimate

NEGLIGIBLE = 1e-9  # of a sum
METHOD = "weighted share; Wilson's interval with the effective number of cases"


def share_of(cases: Sequence[tuple[bool, float]]) -> Estimate:
    """
    The weighted share of the cases that hold, with its interval.

    Cases of unequal weight carry as little information as fewer cases of equal weight: (sum of weights)² /
    sum of squared weights.

    Args:
        cases: At least one; whether it holds, and its weight, above 0.

    Source:
        E. B. Wilson, Journal of the American Statistical Association 22 (1927), 209-212. Effective number: L.
        Kish, Survey Sampling (1965).
    """
    whole = math.fsum(weight for _, weight in cases)
    share = math.fsum(weight for holds, weight in cases if holds) / whole
    effective = whole**2 / math.fsum(weight**2 for _, weight in cases)
    z = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    spread = z**2 / effective
    middle = (share + spread / 2) / (1 + spread)
    reach = math.sqrt(share * (1 - share) * spread + spread**2 / 4) / (1 + spread)
    # Floating-point error must not move an end of the interval past 0, 1 or the share.
    low, high = min(max(middle - reach, 0.0), share), max(min(middle + reach, 1.0), share)
    return Estimate(share, low, high, len(cases), None, METHOD)


def chance_of_rise(before: int, cases_before: int, now: int, cases_now: int) -> float:
    """
    The probability that chance alone puts at least as many of the holding cases into the later group.

    Fisher's exact test, one-sided: 1 where the share did not rise, or a group is empty.

    Args:
        before, now: Holding cases of each group; at most its cases.

    Source:
        R. A. Fisher, Journal of the Royal Statistical Society 98 (1935), 39-82.
    """
    if not cases_before or not cases_now or now * cases_before <= before * cases_now:
        return 1.0
    holding = before + now
    ways = _log_ways(cases_before + cases_now, holding)
    chance = 0.0
    for later in range(now, min(holding, cases_now) + 1):
        if holding - later > cases_before:
            continue
        term = math.exp(_log_ways(cases_now, later) + _log_ways(cases_before, holding - later) - ways)
        chance += term
        if term < chance * NEGLIGIBLE:  # above the expected number, each term is smaller than the one before
            break
    return min(chance, 1.0)


def _log_ways(of: int, chosen: int) -> float:
    """Logarithm of the number of ways to choose so many."""
    return math.lgamma(of + 1) - math.lgamma(chosen + 1) - math.lgamma(of - chosen + 1)

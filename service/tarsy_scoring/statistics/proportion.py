"""
Estimates a share from cases of unequal weight.
"""

import math
import statistics
from collections.abc import Sequence

from tarsy_scoring.statistics.agreement import CONFIDENCE, Estimate

METHOD = "weighted share; Wilson's interval with the effective number of cases"


def share_of(cases: Sequence[tuple[bool, float]]) -> Estimate:
    """
    The weighted share of the cases that hold, with its interval.

    Cases of unequal weight carry as little information as fewer cases of equal weight: (sum of weights)² / sum of
    squared weights.

    Args:
        cases: At least one; whether it holds, and its weight, above 0.

    Source:
        E. B. Wilson, Journal of the American Statistical Association 22 (1927), 209-212. Effective number: L. Kish,
        Survey Sampling (1965).
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

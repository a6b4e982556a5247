"""How consistent one judge is with itself: repeated judgements for one session."""

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any


def spread(totals: Sequence[int]) -> dict[str, Any]:
    """
    Describe how far the totals spread; None for what too few judgements cannot show, with the `reason`.

    Returns:
        Among others `median`, the lower middle total when their number is even, and `width`, the highest minus
        the lowest.
    """
    n, is_spread = len(totals), len(totals) > 1
    return {
        "n": n,
        "lowest": min(totals, default=None),
        "highest": max(totals, default=None),
        "mean": statistics.fmean(totals) if totals else None,
        "median": statistics.median_low(totals) if totals else None,
        "width": max(totals) - min(totals) if is_spread else None,
        "standard_deviation": statistics.stdev(totals) if is_spread else None,
        "reason": None if is_spread else _too_few(n),
    }


def flip_rate(bands: Sequence[str | None]) -> dict[str, Any]:
    """
    The share of judgement pairs that fall into different bands.

    An unbiased estimate, for any number of judgements, of the probability that another judgement would show
    another band. Rejected: the share that differs from the most frequent band, because it grows with the
    number of judgements and is arbitrary for ties.

    Args:
        bands: Each total's band; None for a total between bands.
    """
    pairs = math.comb(len(bands), 2)
    flipped = sum(a != b for a, b in combinations(bands, 2))
    return {
        "rate": flipped / pairs if pairs else None,
        "flipped": flipped,
        "pairs": pairs,
        "by_band": [{"band": band, "count": n} for band, n in Counter(bands).most_common()],
        "reason": None if pairs else _too_few(len(bands)),
    }


def _too_few(n: int) -> str:
    return f"it takes two judgements with a total; there {'is one' if n else 'is none'}"

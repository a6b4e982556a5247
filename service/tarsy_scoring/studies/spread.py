"""How consistent one judge is with itself: repeated judgements for one session."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from tarsy_scoring.scores.bands import DEFAULT_BANDS, Band, band_of


@dataclass(frozen=True, slots=True)
class Spread:
    """
    How far repeated judgements for one session spread; None for what too few judgements cannot show, with the
    reason.

    Args:
        median: The lower middle total when their number is even.
        width: Highest minus lowest, like a score's column `spread`.
        standard_deviation: The sample's standard deviation, with the divisor n - 1.
    """

    n: int
    lowest: float | None
    highest: float | None
    mean: float | None
    median: float | None
    width: float | None
    standard_deviation: float | None
    reason: str | None = None


def spread(totals: Sequence[float]) -> Spread:
    """Describe how far repeated judgements' totals spread."""
    n = len(totals)
    if n == 0:
        return Spread(0, None, None, None, None, None, None, "there is no judgement")
    location = (n, min(totals), max(totals), statistics.fmean(totals), statistics.median_low(totals))
    if n == 1:
        return Spread(*location, None, None, "one judgement has no spread")
    return Spread(*location, max(totals) - min(totals), statistics.stdev(totals))


@dataclass(frozen=True, slots=True)
class FlipRate:
    """
    How often two judgements for one session fall into different bands.

    Args:
        rate: 0-1; None without a pair, with the reason.
        flipped: Pairs in different bands, of `pairs`.
        by_band: Judgements per band that occurred, most frequent first; the key None counts totals between
            bands.
    """

    rate: float | None
    flipped: int
    pairs: int
    by_band: Mapping[str | None, int]
    reason: str | None = None


def flip_rate(totals: Sequence[float], bands: Sequence[Band] = DEFAULT_BANDS) -> FlipRate:
    """
    The share of judgement pairs that fall into different bands.

    An unbiased estimate, for any number of judgements, of the probability that another judgement would show
    another band. Rejected: the share that differs from the most frequent band, because it grows with the
    number of judgements and is arbitrary for ties.
    """
    found = [band_of(t, bands) for t in totals]
    by_band = dict(Counter(found).most_common())
    pairs = math.comb(len(found), 2)
    flipped = sum(a != b for a, b in combinations(found, 2))
    if not pairs:
        there = "is one" if found else "is none"
        return FlipRate(None, 0, 0, by_band, f"a flip takes two judgements; there {there}")
    return FlipRate(flipped / pairs, flipped, pairs, by_band)

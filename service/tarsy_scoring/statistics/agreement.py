"""
Measure how well two ratings of the same sessions agree, and how consistent one judge is with itself.

A number that the input does not support is None with a reason.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

Weights = Literal["quadratic", "linear", "unweighted"]
Pair = tuple[str, str]

CONFIDENCE = 0.95
FEWEST_FOR_A_VALUE = 3
# With fewer sessions the intervals undercover. Source: our simulations with known agreement (three bands,
# 1,000 to 1,500 seeds): 95 % intervals cover 88-96 % for kappa from 20 sessions on, 81-93 % at 10; for
# Spearman 94-98 % from 10 on, ties included.
FEWEST_FOR_A_KAPPA_INTERVAL = 20
FEWEST_FOR_A_SPEARMAN_INTERVAL = 10

SPEARMAN_METHOD = "Spearman with midranks; interval of Bonett and Wright (2000)"
KAPPA_METHOD = "Fleiss, Cohen and Everitt (1969) standard error on Fisher's z"


@dataclass(frozen=True, slots=True)
class Band:
    """A named range of totals; both ends are inclusive."""

    id: str
    low: int
    high: int


# For criteria without bands: the edges 50 and 75, as used by the badges.
DEFAULT_BANDS = (Band("0-49", 0, 49), Band("50-74", 50, 74), Band("75-100", 75, 100))


def bands_of(ranges: Mapping[str, Sequence[int]]) -> tuple[Band, ...]:
    """The bands of a criteria (`{id: (low, high)}`), lowest first; `DEFAULT_BANDS` without any."""
    bands = (Band(name, low, high) for name, (low, high) in ranges.items())
    return tuple(sorted(bands, key=lambda b: b.low)) or DEFAULT_BANDS


def band_of(total: float, bands: Sequence[Band]) -> str | None:
    """
    Id of the band that contains a total, rounded half up to a whole number; None between two bands.

    Rounding is needed because bands have whole edges: 49.5 must not fall between 49 and 50.
    """
    whole = math.floor(total + 0.5)
    return next((b.id for b in bands if b.low <= whole <= b.high), None)


@dataclass(frozen=True, slots=True)
class Estimate:
    """
    A number with its interval.

    `value`, or only the ends of the interval, are None when the input does not support them; `reason` says
    why.

    Args:
        n: Number of sessions it rests on.
        standard_error: Of the value itself, not of a transformation; None without an interval.
        method: Name of the method of value and interval.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int
    standard_error: float | None
    method: str
    reason: str | None = None

    @property
    def half_width(self) -> float | None:
        """Half of the interval's width; None without an interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


# --- rank correlation ----------------------------------------------------------------------------------


def spearman(x: Sequence[float], y: Sequence[float], *, confidence: float = CONFIDENCE) -> Estimate:
    """
    Spearman's rank correlation r of two ratings, -1 to 1; ties get the mean of their ranks.

    Interval: tanh(atanh(r) ± z · sqrt((1 + r²/2) / (n - 3))). No value for fewer than 3 sessions or a
    constant side; no interval for fewer than 10 sessions or |r| = 1.

    Args:
        x, y: The ratings, session by session.

    Raises:
        ValueError: `x` and `y` differ in length.

    Source:
        D. G. Bonett, T. A. Wright: Sample size requirements for estimating Pearson, Kendall and Spearman
        correlations. Psychometrika 65 (2000), 23-28.
    """
    if len(x) != len(y):
        raise ValueError(f"{len(x)} ratings cannot be paired with {len(y)}")
    n = len(x)

    def without_value(reason: str) -> Estimate:
        return Estimate(None, None, None, n, None, SPEARMAN_METHOD, reason)

    if n < FEWEST_FOR_A_VALUE:
        return without_value(f"{_sessions(n)} cannot be ranked against each other; it takes {FEWEST_FOR_A_VALUE}")
    if len(set(x)) == 1 or len(set(y)) == 1:
        return without_value("one side gives every session the same value, which ranks nothing")
    rx, ry = _doubled_midranks(x), _doubled_midranks(y)
    # Doubled ranks are whole numbers, so perfect agreement is exactly 1.
    sxy = sum((a - n - 1) * (b - n - 1) for a, b in zip(rx, ry, strict=True))
    sxx, syy = sum((a - n - 1) ** 2 for a in rx), sum((b - n - 1) ** 2 for b in ry)
    if sxy * sxy == sxx * syy:
        perfect = math.copysign(1.0, sxy)
        return Estimate(perfect, None, None, n, None, SPEARMAN_METHOD, "a perfect order leaves no error to measure")
    value = sxy / math.sqrt(sxx * syy)
    if n < FEWEST_FOR_A_SPEARMAN_INTERVAL:
        return Estimate(value, None, None, n, None, SPEARMAN_METHOD, _too_few(n, FEWEST_FOR_A_SPEARMAN_INTERVAL))
    error_of_z = math.sqrt((1 + value * value / 2) / (n - 3))
    low, high = _interval_on_z(value, error_of_z, confidence)
    return Estimate(value, low, high, n, error_of_z * (1 - value * value), SPEARMAN_METHOD)


def _doubled_midranks(values: Sequence[float]) -> list[int]:
    """Twice the mid-rank of each value: first plus last of the ranks it occupies. A whole number even for
    ties.
    """
    counts, before, ranks = Counter(values), 0, dict[float, int]()
    for value in sorted(counts):
        ranks[value] = 2 * before + counts[value] + 1
        before += counts[value]
    return [ranks[v] for v in values]


# --- agreement over bands ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Confusion:
    """Counts of pairs of categories: rows are categories of the label, columns those of the judge."""

    categories: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]

    @property
    def n(self) -> int:
        """Number of pairs."""
        return sum(map(sum, self.counts))

    @property
    def agreeing(self) -> int:
        """Pairs in which label and judge agree."""
        return sum(row[i] for i, row in enumerate(self.counts))

    @property
    def judge_higher(self) -> int:
        """Pairs in which the judge's category is above the label's."""
        return sum(sum(row[i + 1 :]) for i, row in enumerate(self.counts))

    @property
    def judge_lower(self) -> int:
        """Pairs in which the judge's category is below the label's."""
        return sum(sum(row[:i]) for i, row in enumerate(self.counts))


def confusion(rows: Iterable[Pair], categories: Sequence[str]) -> Confusion:
    """
    Count pairs of (label, judge).

    Args:
        categories: All possible ones, lowest first.

    Raises:
        ValueError: A row has an unknown category, or a category is listed twice.
    """
    if len(set(categories)) < len(categories):
        raise ValueError(f"a category occurs twice in {list(categories)}")
    seen = Counter(rows)
    if unknown := {c for pair in seen for c in pair} - set(categories):
        raise ValueError(f"unknown categories {sorted(unknown)}; known are {list(categories)}")
    return Confusion(tuple(categories), tuple(tuple(seen[a, b] for b in categories) for a in categories))


def weighted_kappa(
    rows: Iterable[Pair],
    categories: Sequence[str],
    weights: Weights = "quadratic",
    *,
    confidence: float = CONFIDENCE,
) -> Estimate:
    """
    Cohen's weighted kappa: 1 - observed / expected disagreement over ordered categories.

    1 is perfect agreement, 0 is chance given both sides' frequencies. A disagreement counts by the square of
    its distance (`quadratic`), by its distance (`linear`) or as 1 (`unweighted`). The standard error is that
    of Fleiss, Cohen and Everitt. The interval is computed on Fisher's z (error / (1 - kappa²)): it stays
    within -1 and 1 and covers better below 100 sessions than the symmetric one. No value for fewer than 3
    sessions or a constant side; no interval for fewer than 20 sessions or |kappa| = 1.

    Args:
        rows: Pairs of (label, judge), one per session.
        categories: All possible ones, lowest first. An unused one does not change quadratic kappa.

    Raises:
        ValueError: See `confusion`.

    Source:
        J. L. Fleiss, J. Cohen, B. S. Everitt: Large sample standard errors of kappa and weighted kappa.
        Psychological Bulletin 72 (1969), 323-327. Fisher's z: quadratic kappa is the concordance correlation
        of band ranks; L. I.-K. Lin, Biometrics 45 (1989), 255-268.
    """
    table = confusion(rows, categories)
    n, counts = table.n, table.counts
    method = f"{weights} kappa; {KAPPA_METHOD}"

    def without_value(reason: str) -> Estimate:
        return Estimate(None, None, None, n, None, method, reason)

    if n < FEWEST_FOR_A_VALUE:
        return without_value(f"{_sessions(n)} cannot show agreement; it takes {FEWEST_FOR_A_VALUE}")
    by_label, by_judge = [sum(row) for row in counts], [sum(column) for column in zip(*counts, strict=True)]
    for side, sums in (("label", by_label), ("judgement", by_judge)):
        if sum(map(bool, sums)) == 1:
            only = categories[sums.index(n)]
            return without_value(f"every {side} is {only!r}, and agreement beyond chance needs two categories")
    value = kappa_of(counts, weights)
    assert value is not None, "two categories on each side make some disagreement possible"
    if abs(value) == 1:
        what = "perfect agreement" if value > 0 else "perfect disagreement"
        return Estimate(value, None, None, n, None, method, f"{what} leaves no error to measure")
    if n < FEWEST_FOR_A_KAPPA_INTERVAL:
        return Estimate(value, None, None, n, None, method, _too_few(n, FEWEST_FOR_A_KAPPA_INTERVAL))
    error = _error_of_one([[count / n for count in row] for row in counts], weights) / math.sqrt(n)
    low, high = _interval_on_z(value, error / (1 - value * value), confidence)
    return Estimate(value, low, high, n, error, method)


def kappa_of(table: Sequence[Sequence[float]], weights: Weights = "quadratic") -> float | None:
    """
    The weighted kappa of a table of counts or weights; None when the expected disagreement is 0.

    Counts stay whole numbers up to the division, so perfect agreement is exactly 1.
    """
    size = len(table)
    by_label, by_judge = [sum(row) for row in table], [sum(column) for column in zip(*table, strict=True)]
    observed = expected = 0.0
    for i in range(size):
        for j in range(size):
            distance = _distance(i, j, weights)
            observed += distance * table[i][j]
            expected += distance * by_label[i] * by_judge[j]
    return 1 - sum(by_label) * observed / expected if expected else None


def _distance(i: int, j: int, weights: Weights) -> int:
    if weights == "unweighted":
        return int(i != j)
    return abs(i - j) if weights == "linear" else (i - j) * (i - j)


def _error_of_one(shares: Sequence[Sequence[float]], weights: Weights) -> float:
    """The large-sample standard error of weighted kappa times sqrt(n), for a table of shares that add up to
    1.
    """
    size = len(shares)
    farthest = _distance(0, size - 1, weights)
    w = [[1 - _distance(i, j, weights) / farthest for j in range(size)] for i in range(size)]
    rows, columns = [math.fsum(row) for row in shares], [math.fsum(column) for column in zip(*shares, strict=True)]
    cells = [(i, j) for i in range(size) for j in range(size)]
    mean_of_row = [math.fsum(w[i][j] * columns[j] for j in range(size)) for i in range(size)]
    mean_of_column = [math.fsum(w[i][j] * rows[i] for i in range(size)) for j in range(size)]
    observed = math.fsum(w[i][j] * shares[i][j] for i, j in cells)
    expected = math.fsum(w[i][j] * rows[i] * columns[j] for i, j in cells)
    missing = (1 - observed) / (1 - expected)  # 1 - kappa
    squares = math.fsum(
        shares[i][j] * (w[i][j] - (mean_of_row[i] + mean_of_column[j]) * missing) ** 2 for i, j in cells
    )
    return math.sqrt(max(squares - (1 - missing - expected * missing) ** 2, 0.0)) / (1 - expected)


# --- how many labels -----------------------------------------------------------------------------------

HALF_WIDTH = 0.10


@dataclass(frozen=True, slots=True)
class LabelsNeeded:
    """Total number of labels needed; None when it cannot be computed, with the reason."""

    total: int | None
    reason: str | None = None


def labels_needed(
    kappa: float | None,
    half_width: float = HALF_WIDTH,
    *,
    error_of_one: float | None = None,
    bands: int = 3,
    confidence: float = CONFIDENCE,
) -> LabelsNeeded:
    """
    The smallest number of labelled sessions for which half the interval of `weighted_kappa` is at most
    `half_width`.

    At least `FEWEST_FOR_A_KAPPA_INTERVAL`.

    Args:
        kappa: Measured or assumed.
        half_width: In units of kappa, between 0 and 1.
        error_of_one: Standard error times sqrt(n) of existing labels. None: assume a judge that repeats the
            label with probability kappa and otherwise draws one of `bands` equally frequent bands. Real
            misses are narrower than random ones, so the result then tends to be too high.

    Raises:
        ValueError: `half_width` is not between 0 and 1.

    Source:
        The planning of Bonett and Wright (see `spearman`) with the standard error of `weighted_kappa`, solved
        for n. For two bands the assumed judge is the common correlation model of A. Donner, M. Eliasziw,
        Statistics in Medicine 11 (1992), 1511-1519.
    """
    if not 0 < half_width < 1:
        raise ValueError(f"half_width must be between 0 and 1, not {half_width}")
    if bands < 2:
        return LabelsNeeded(None, "agreement beyond chance needs two bands")
    if kappa is None:
        return LabelsNeeded(None, "there is no kappa to start from")
    if abs(kappa) >= 1 or error_of_one == 0:
        return LabelsNeeded(None, "perfect agreement leaves no error to plan with")
    if error_of_one is None:
        if kappa < 0:
            return LabelsNeeded(None, "a kappa below 0 cannot be assumed; measure it first")
        error_of_one = _error_of_one(_assumed_shares(kappa, bands), "quadratic")
    # With z = atanh(kappa) and d the reach of the interval on z, half the width is sinh 2d / (cosh 2z + cosh
    # 2d): a quadratic equation in e^2d.
    slope = half_width * math.cosh(2 * math.atanh(kappa))
    reach = math.log((slope + math.sqrt(slope**2 + 1 - half_width**2)) / (1 - half_width)) / 2
    needed = (_quantile(confidence) * error_of_one / (1 - kappa * kappa) / reach) ** 2
    # The tolerance keeps a last-bit error from adding a label when the existing ones are just enough.
    return LabelsNeeded(max(math.ceil(needed * (1 - 1e-12)), FEWEST_FOR_A_KAPPA_INTERVAL))


def _assumed_shares(kappa: float, bands: int) -> list[list[float]]:
    by_chance = (1 - kappa) / bands**2
    return [[by_chance + (kappa / bands if i == j else 0) for j in range(bands)] for i in range(bands)]


# --- a judge against itself ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spread:
    """
    Spread of repeated judgements of one session; None for what too few judgements cannot show, with the
    reason.

    Args:
        median: The lower one for an even number.
        width: Highest minus lowest, like the column `spread` of a score.
        standard_deviation: Of the sample (n - 1).
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
    """Describe the spread of the totals of repeated judgements."""
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
    How often two judgements of one session fall into different bands.

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
    The share of pairs of judgements that fall into different bands.

    An unbiased estimate, for any number of judgements, of the probability that another judgement would show
    another band. Rejected: the share that differs from the most frequent band, because it grows with the
    number of judgements and is arbitrary for ties.
    """
    found = [band_of(t, bands) for t in totals]
    by_band = dict(Counter(found).most_common())
    pairs = math.comb(len(found), 2)
    flipped = sum(a != b for a, b in combinations(found, 2))
    if not pairs:
        return FlipRate(None, 0, 0, by_band, f"a flip takes two judgements; there {_is_or_are(len(found))}")
    return FlipRate(flipped / pairs, flipped, pairs, by_band)


# --- shared --------------------------------------------------------------------------------------------


def _interval_on_z(value: float, error_of_z: float, confidence: float) -> tuple[float, float]:
    z, reach = math.atanh(value), _quantile(confidence) * error_of_z
    return math.tanh(z - reach), math.tanh(z + reach)


def _quantile(confidence: float) -> float:
    return statistics.NormalDist().inv_cdf((1 + confidence) / 2)


def _sessions(n: int) -> str:
    return f"{n} session" if n == 1 else f"{n} sessions"


def _is_or_are(n: int) -> str:
    return "is one" if n == 1 else "is none"


def _too_few(n: int, fewest: int) -> str:
    return f"{_sessions(n)} are too few for an interval; it takes {fewest}"

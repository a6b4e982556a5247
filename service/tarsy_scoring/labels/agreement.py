"""
How far a judge agrees with labels: one weighted kappa with an interval, and how many labels it takes.

Source:
    Kappa with quadratic weights and its large-sample standard error: J. L. Fleiss, J. Cohen, B. S. Everitt,
    Psychological Bulletin 72 (1969), 323-327. Interval of a share: E. B. Wilson, Journal of the American
    Statistical Association 22 (1927), 209-212.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Z = 1.96  # 95 % confidence
FEWEST_FOR_AN_INTERVAL = 10
HALF_WIDTH = 0.1  # how wide kappa's interval may be, to either side
FIRST_PLAN = 150  # labels for it, where kappa is about 0.6 in three bands; until labels can tell


@dataclass(frozen=True, slots=True)
class Confusion:
    """Counts by band: rows are the label's, columns the judge's."""

    categories: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]

    @property
    def n(self) -> int:
        """How many pairs there are."""
        return sum(map(sum, self.counts))

    @property
    def agreeing(self) -> int:
        """Pairs in which label and judge agree."""
        return sum(row[i] for i, row in enumerate(self.counts))

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval around the share of `agreeing`."""
        return wilson(self.agreeing, self.n)


@dataclass(frozen=True, slots=True)
class Kappa:
    """
    Agreement beyond chance; a miss by two bands weighs four times as much as by one.

    A number that the labels do not support is None, and `reason` says why.

    Args:
        low, high: 95 % interval.
        n: Labelled scores.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int
    reason: str | None = None


def confusion(pairs: Iterable[tuple[str, str]], categories: Sequence[str]) -> Confusion:
    """Count pairs of (label, judge). `categories` are all possible ones, lowest first."""
    seen = Counter(pairs)
    return Confusion(tuple(categories), tuple(tuple(seen[a, b] for b in categories) for a in categories))


def kappa_of(table: Confusion) -> Kappa:
    """Compute kappa; the interval needs `FEWEST_FOR_AN_INTERVAL` pairs."""
    n, (rows, columns) = table.n, _margins(table)
    if n == 0:
        return Kappa(None, None, None, 0, "there is no label")
    if any(sum(map(bool, side)) < 2 for side in (rows, columns)):
        return Kappa(None, None, None, n, "agreement beyond chance needs labels and judgements in two bands")
    size = len(rows)
    weight = {(i, j): 1 - ((i - j) / (size - 1)) ** 2 for i in range(size) for j in range(size)}
    observed = math.fsum(w * (table.counts[i][j] / n) for (i, j), w in weight.items())
    expected = math.fsum(w * rows[i] * columns[j] / n**2 for (i, j), w in weight.items())
    value = (observed - expected) / (1 - expected)
    if n < FEWEST_FOR_AN_INTERVAL:
        few = f"{n} labels are too few for an interval; it takes {FEWEST_FOR_AN_INTERVAL}"
        return Kappa(value, None, None, n, few)
    variance = _variance_of(table, weight, value, expected)
    if variance < 1e-12:
        return Kappa(value, None, None, n, "the labels leave no error to measure")
    reach = Z * math.sqrt(variance)
    return Kappa(value, max(-1.0, value - reach), min(1.0, value + reach), n)


def _margins(table: Confusion) -> tuple[list[int], list[int]]:
    return list(map(sum, table.counts)), list(map(sum, zip(*table.counts, strict=True)))


def _variance_of(
    table: Confusion, weight: Mapping[tuple[int, int], float], value: float, expected: float
) -> float:
    n, (rows, columns) = table.n, _margins(table)
    size = len(rows)
    by_row = [math.fsum(weight[i, j] * columns[j] / n for j in range(size)) for i in range(size)]
    by_column = [math.fsum(weight[i, j] * rows[i] / n for i in range(size)) for j in range(size)]
    spread = math.fsum(
        table.counts[i][j] / n * (w - (by_row[i] + by_column[j]) * (1 - value)) ** 2
        for (i, j), w in weight.items()
    )
    return max(0.0, spread - (value - expected * (1 - value)) ** 2) / (n * (1 - expected) ** 2)


def wilson(hits: int, n: int) -> tuple[float, float]:
    """The 95 % interval of a share; 0 to 1 without a case."""
    middle, spread = hits + Z**2 / 2, Z * math.sqrt(hits * (n - hits) / max(n, 1) + Z**2 / 4)
    return max(0.0, (middle - spread) / (n + Z**2)), min(1.0, (middle + spread) / (n + Z**2))


def labels_needed(kappa: Kappa) -> int:
    """How many labels, chosen alike, bring kappa's interval within `HALF_WIDTH` to either side."""
    if kappa.value is None or kappa.low is None or kappa.high is None:
        return FIRST_PLAN
    reach = max(kappa.value - kappa.low, kappa.high - kappa.value)  # an end may be cut at 1
    return max(FEWEST_FOR_AN_INTERVAL, math.ceil(kappa.n * (reach / HALF_WIDTH) ** 2 * (1 - 1e-9)))


def in_words(kappa: Kappa, table: Confusion) -> str:
    """The agreement in a few plain sentences."""
    said = list[str]()
    if kappa.value is None:
        said.append(f"Agreement is unknown: {kappa.reason}.")
    elif kappa.low is None or kappa.high is None:
        said.append(f"The weighted kappa is {kappa.value:.2f}, but {kappa.reason}.")
    else:
        chance = " This is no better than chance." if kappa.low <= 0 else ""
        interval = f"95 % interval {kappa.low:.2f} to {kappa.high:.2f}"
        said.append(f"The weighted kappa is {kappa.value:.2f} ({interval}).{chance}")
    if differing := table.n - table.agreeing:
        higher = sum(sum(row[i + 1 :]) for i, row in enumerate(table.counts))
        said.append(
            f"Judge and labels differ on {differing} of {table.n} scores: the judge is higher on {higher} of "
            f"them and lower on {differing - higher}."
        )
    lacking = labels_needed(kappa) - kappa.n
    if lacking > 0:
        said.append(
            f"About {lacking} more labels would bring the interval within {HALF_WIDTH:.1f} to either side."
        )
    return " ".join(said)

"""
How far a judge can be trusted, measured against labels of people: agreement over bands, rank correlation and
bias.

Every label is weighted by the inverse of the probability with which its score came to be labelled, so that
scores that were picked on purpose do not distort the estimates. The result is deterministic and independent
of the order of labels.

Source:
    Weights: J. Hájek (1971), the ratio form of Horvitz and Thompson. Standard errors: bootstrap of labels, B.
    Efron, R. J. Tibshirani: An Introduction to the Bootstrap (1993), chapter 6. Intervals of kappa and
    Spearman: Fisher's z with Student's t. With 40 to 200 labels, the 95 % interval of kappa covers the true
    value in 91-98 % of simulations (`benchmarks.years`) for all kinds of judges. Rejected: percentile
    intervals (86-96 %), also with bias correction and acceleration (89-98 %).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tarsy_scoring.statistics.agreement import (
    CONFIDENCE,
    FEWEST_FOR_A_KAPPA_INTERVAL,
    FEWEST_FOR_A_SPEARMAN_INTERVAL,
    Band,
    Confusion,
    Estimate,
    LabelsNeeded,
    confusion,
    labels_needed,
    spearman,
    weighted_kappa,
)
from tarsy_scoring.statistics.change import student_quantile
from tarsy_scoring.statistics.pairing import FEWEST_FOR_AN_INTERVAL

if TYPE_CHECKING:
    import numpy as np

RESAMPLES = 2_000  # gives the standard error within about 1.6 %
_MOST_DRAWN_AT_ONCE = 2**18  # weights per block; keeps thousands of labels within some 20 MB
ASSUMED_KAPPA = 0.6  # for the first plan, when there are too few labels to measure kappa

KAPPA_METHOD = "quadratic kappa; bootstrap standard error on Fisher's z, Student's t"
SPEARMAN_METHOD = "Spearman with midranks; bootstrap standard error on Fisher's z, Student's t"
DIFFERENCE_METHOD = "mean of total less number; bootstrap standard error, Student's t"
_SEED = 20_260_228


@dataclass(frozen=True, slots=True)
class Rating:
    """
    A score with its label.

    Args:
        said: Band of the label.
        judged: Band of the judge.
        number: 0-100, of the label; None: not given.
        inclusion_probability: Probability, above 0 and at most 1, that this score would be labelled. Only the
            ratio to that of the others matters.
    """

    said: str
    judged: str
    total: float
    number: float | None = None
    inclusion_probability: float = 1.0

    @property
    def weight(self) -> float:
        """Number of scores that it represents."""
        return 1 / self.inclusion_probability


@dataclass(frozen=True, slots=True)
class TrustCard:
    """
    How far a judge can be trusted.

    Args:
        ratings: Number of labelled scores.
        effective: Number of equally weighted labels that would carry the same information (Kish).
        spearman_over: What totals are ranked against: `numbers` if every rating has one, else `bands`.
        mean_difference: Total minus number over the ratings with a number; above 0 the judge is milder than
            people.
        confusion: Unweighted counts of labels.
        shares: The weighted confusion, as shares of all scores that the labels represent; empty without
            labels.
        needed: Total number of labels for an interval of kappa within `HALF_WIDTH`, if further ones are
            chosen alike.
        still_needed: `needed` minus the existing labels; None when it cannot be computed.
        is_supposed: The plan rests on `ASSUMED_KAPPA`, because there are too few labels.
    """

    ratings: int
    effective: float
    kappa: Estimate
    spearman: Estimate
    spearman_over: Literal["numbers", "bands"]
    mean_difference: Estimate
    confusion: Confusion
    shares: tuple[tuple[float, ...], ...]
    needed: LabelsNeeded
    still_needed: int | None
    is_supposed: bool


def trust_card(ratings: Sequence[Rating], bands: Sequence[Band], *, resamples: int = RESAMPLES) -> TrustCard:
    """
    Compare judgements with labels.

    Args:
        bands: Of the criteria, lowest first.

    Raises:
        ValueError: A rating has an unknown band, or an inclusion probability out of range.
    """
    for rating in ratings:
        if not 0 < rating.inclusion_probability <= 1:
            raise ValueError(
                f"an inclusion probability must be above 0 and at most 1, not {rating.inclusion_probability}"
            )
    ids = [b.id for b in bands]
    pairs = [(r.said, r.judged) for r in ratings]
    table = confusion(pairs, ids)
    sample = _Sample(ratings, ids, resamples)
    kappa = _on_z(weighted_kappa(pairs, ids), sample, sample.kappa, KAPPA_METHOD, FEWEST_FOR_A_KAPPA_INTERVAL)
    needed, is_supposed = _plan(kappa, sample.effective, len(bands))
    return TrustCard(
        ratings=len(ratings),
        effective=sample.effective,
        kappa=kappa,
        spearman=_on_z(
            spearman(sample.said, sample.totals),
            sample,
            sample.spearman,
            SPEARMAN_METHOD,
            FEWEST_FOR_A_SPEARMAN_INTERVAL,
        ),
        spearman_over="numbers" if sample.has_numbers else "bands",
        mean_difference=_difference(sample),
        confusion=table,
        shares=sample.shares,
        needed=needed,
        still_needed=None if needed.total is None else max(needed.total - len(ratings), 0),
        is_supposed=is_supposed,
    )


@dataclass(frozen=True, slots=True)
class _Weighted:
    """A weighted estimate; None when the sample has no value, or too few resamples have one."""

    value: float | None
    error: float | None


def _is_below(effective: float, fewest: int) -> bool:
    """Compare with a tolerance, so that the last bit of a sum of weights decides nothing."""
    return effective < fewest * (1 - 1e-9)


def _on_z(plain: Estimate, sample: "_Sample", weighted: _Weighted, method: str, fewest: int) -> Estimate:
    """The weighted estimate with its interval, or without one for the reason for which the plain one has
    none.
    """
    value, error, reason = weighted.value, weighted.error, plain.reason
    if reason is None and _is_below(sample.effective, fewest):
        reason = (
            f"{plain.n} labels of unequal weight are worth {sample.effective:.0f}, too few for an interval; "
            f"it takes {fewest}"
        )
    if plain.value is None or value is None:
        return Estimate(None, None, None, plain.n, None, method, reason)
    if reason is None and (not error or abs(value) >= 1):
        reason = "the labels leave no error to measure"
    if reason is not None or error is None:
        return Estimate(value, None, None, plain.n, None, method, reason)
    z, reach = math.atanh(value), student_quantile(CONFIDENCE, sample.effective - 1) * error / (1 - value * value)
    return Estimate(value, math.tanh(z - reach), math.tanh(z + reach), plain.n, error, method)


def _difference(sample: "_Sample") -> Estimate:
    value, error, n = sample.difference.value, sample.difference.error, len(sample.numbered_weights)
    if value is None:
        return Estimate(None, None, None, 0, None, DIFFERENCE_METHOD, "no label has a number")
    freedom = _effective(sample.numbered_weights) - 1
    if n < FEWEST_FOR_AN_INTERVAL:
        reason = f"{n} are too few for an interval; it takes {FEWEST_FOR_AN_INTERVAL}"
    elif not error:
        reason = "the differences do not vary, which leaves no spread to measure"
    elif freedom < 1:
        reason = f"{n} labels of very unequal weight are worth a single one"
    else:
        reach = student_quantile(CONFIDENCE, freedom) * error
        return Estimate(value, value - reach, value + reach, n, error, DIFFERENCE_METHOD)
    return Estimate(value, None, None, n, None, DIFFERENCE_METHOD, reason)


def _plan(kappa: Estimate, effective: float, bands: int) -> tuple[LabelsNeeded, bool]:
    """
    The number of labels needed, and whether it rests on `ASSUMED_KAPPA` instead of on the existing labels.

    The error falls with the root of the number of labels, if further ones are chosen alike. Weights as
    unequal as the existing ones raise the number by n / `effective`.
    """
    if kappa.value is not None and kappa.standard_error is not None:
        return labels_needed(kappa.value, error_of_one=kappa.standard_error * math.sqrt(kappa.n)), False
    if not _is_below(effective, FEWEST_FOR_A_KAPPA_INTERVAL):
        return LabelsNeeded(None, kappa.reason), False
    equal = labels_needed(ASSUMED_KAPPA, bands=bands)
    if equal.total is None or not kappa.n:
        return equal, True
    return LabelsNeeded(math.ceil(equal.total * kappa.n / effective * (1 - 1e-9))), True


# --- weighting and resampling --------------------------------------------------------------------------


class _Sample:
    """
    Ratings as columns, with the weighted estimates and their bootstrap standard errors.

    Each estimate is computed for a matrix of weights, a row per resample: a label drawn twice has twice its
    weight. The first row is the sample itself.
    """

    def __init__(self, ratings: Sequence[Rating], ids: Sequence[str], resamples: int) -> None:
        # Sorted by all they contain, so that the order of labels does not change the draws.
        rows = sorted(
            ratings,
            key=lambda r: (
                ids.index(r.said),
                ids.index(r.judged),
                r.total,
                -1 if r.number is None else r.number,
                r.weight,
            ),
        )
        bands = len(ids)
        self.has_numbers = bool(rows) and all(r.number is not None for r in rows)
        self.said = [r.number if self.has_numbers and r.number is not None else float(ids.index(r.said)) for r in rows]
        self.totals = [r.total for r in rows]
        self.effective = _effective([r.weight for r in rows])
        self.numbered_weights = [r.weight for r in rows if r.number is not None]
        self.shares: tuple[tuple[float, ...], ...] = ()
        self.kappa = self.spearman = self.difference = _Weighted(None, None)
        if not rows:
            return
        cells = [ids.index(r.said) * bands + ids.index(r.judged) for r in rows]
        numbered = [i for i, r in enumerate(rows) if r.number is not None]
        differences = [r.total - r.number for r in rows if r.number is not None]
        kappas, spearmans, means = list["np.ndarray"](), list["np.ndarray"](), list["np.ndarray"]()
        for weights in _weights_of_resamples([r.weight for r in rows], resamples):
            tables = _sums_by_place(weights, cells, bands * bands).reshape(-1, bands, bands)
            if not self.shares:
                self.shares = tuple(tuple(map(float, row)) for row in tables[0] / tables[0].sum())
            kappas.append(_kappas(tables))
            spearmans.append(_spearmans(weights, self.said, self.totals))
            means.append(_means(weights[:, numbered], differences))
        self.kappa, self.spearman, self.difference = map(_weighted, (kappas, spearmans, means))


def _weights_of_resamples(weights: Sequence[float], resamples: int) -> "Iterator[np.ndarray]":
    """The weights as they are, then those of the resamples in blocks; none of these for very few labels."""
    import numpy as np

    n = len(weights)
    yield np.array([weights])
    if n < FEWEST_FOR_AN_INTERVAL:
        return
    rng = np.random.default_rng(_SEED)
    block = max(1, _MOST_DRAWN_AT_ONCE // n)
    for start in range(0, resamples, block):
        drawn = rng.multinomial(n, np.full(n, 1 / n), size=min(block, resamples - start))
        yield np.asarray(drawn * np.array(weights))


def _weighted(blocks: "Sequence[np.ndarray]") -> _Weighted:
    """Value of the first row and standard deviation of the others; NaN marks a row without a value."""
    import numpy as np

    estimates = np.concatenate(blocks)
    value, resampled = float(estimates[0]), estimates[1:]
    found = resampled[~np.isnan(resampled)]
    error = float(found.std(ddof=1)) if len(found) > len(resampled) / 2 else None
    return _Weighted(None if math.isnan(value) else value, error)


def _kappas(tables: "np.ndarray") -> "np.ndarray":
    """Quadratic kappa of each table."""
    import numpy as np

    places = np.arange(tables.shape[1])
    distances = (places[:, None] - places) ** 2
    observed = (tables * distances).sum(axis=(1, 2))
    expected = np.einsum("ri,ij,rj->r", tables.sum(axis=2), distances, tables.sum(axis=1))
    return np.asarray(1 - _ratio(tables.sum(axis=(1, 2)) * observed, expected))


def _spearmans(weights: "np.ndarray", x: Sequence[float], y: Sequence[float]) -> "np.ndarray":
    """Weighted Spearman correlation for each row of weights."""
    import numpy as np

    rx, ry = _centered_ranks(weights, x), _centered_ranks(weights, y)
    sxx, syy, sxy = ((weights * a * b).sum(axis=1) for a, b in ((rx, rx), (ry, ry), (rx, ry)))
    return np.asarray(np.clip(_ratio(sxy, np.sqrt(sxx * syy)), -1, 1))


def _centered_ranks(weights: "np.ndarray", values: Sequence[float]) -> "np.ndarray":
    """Mid-ranks minus their mean: the weight below each value plus half of that at it, minus half of all."""
    import numpy as np

    distinct, places = np.unique(values, return_inverse=True)
    at = _sums_by_place(weights, places, len(distinct))
    ranks = np.cumsum(at, axis=1) - at / 2 - at.sum(axis=1, keepdims=True) / 2
    return np.asarray(ranks[:, places])


def _means(weights: "np.ndarray", values: Sequence[float]) -> "np.ndarray":
    import numpy as np

    return _ratio((weights * np.array(values, dtype=float)).sum(axis=1), weights.sum(axis=1))


def _ratio(numerators: "np.ndarray", denominators: "np.ndarray") -> "np.ndarray":
    """The ratios; NaN for a denominator of 0."""
    import numpy as np

    return np.asarray(
        np.divide(numerators, denominators, out=np.full(len(denominators), np.nan), where=denominators != 0)
    )


def _sums_by_place(weights: "np.ndarray", places: "Sequence[int] | np.ndarray", size: int) -> "np.ndarray":
    """For each row of weights, their sums by place. Not a matrix product: BLAS would start a thread per core."""
    import numpy as np

    used, index = np.unique(places, return_inverse=True)
    order = np.argsort(index, kind="stable")
    starts = np.searchsorted(index[order], np.arange(len(used)))
    sums = np.zeros((len(weights), size))
    sums[:, used] = np.add.reduceat(weights[:, order], starts, axis=1)
    return sums


def _effective(weights: Sequence[float]) -> float:
    """
    Kish's effective sample size, (sum w)² / sum w².

    Source:
        L. Kish: Survey Sampling (1965), section 11.7.
    """
    squares = math.fsum(w * w for w in weights)
    return math.fsum(weights) ** 2 / squares if squares else 0.0

"""Simulated labels and judgements, to check trust cards and review queues; `benchmarks.years` prints them."""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tarsy_scoring.statistics.agreement import DEFAULT_BANDS, Estimate, band_of
from tarsy_scoring.statistics.sampling import Candidate, pick_for_review
from tarsy_scoring.statistics.trust import Rating, trust_card
from tarsy_scoring_lab.simulated import draws

# --- the trust card ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Agreement:
    """
    People and a judge who rate the same quality, each with an error.

    Args:
        mean, spread: Mean and standard deviation of the quality of sessions, in points.
        people_error, judge_error: Standard deviations of one rating, in points.
        lean: Points by which the judge is milder than people.
    """

    name: str
    mean: float = 60.0
    spread: float = 18.0
    people_error: float = 6.0
    judge_error: float = 8.0
    lean: float = 3.0

    def rating(self, draw: random.Random) -> Rating:
        """Draw one labelled score."""
        quality = draw.gauss(self.mean, self.spread)
        number = min(100.0, max(0.0, quality + draw.gauss(0, self.people_error)))
        judged = min(100, max(0, round(quality + self.lean + draw.gauss(0, self.judge_error))))
        return Rating(band(number), band(judged), judged, number)

    def population(self, size: int, seed: int) -> list[Rating]:
        """Draw `size` labelled scores, from which `true_card` computes the true values."""
        draw = draws(seed, "population", self)
        return [self.rating(draw) for _ in range(size)]


AGREEMENTS = (
    Agreement("moderate", spread=15.0, people_error=8.0, judge_error=12.0, lean=8.0),
    Agreement("substantial"),
    Agreement("lopsided", mean=78.0, spread=12.0),
    Agreement("precise", spread=22.0, people_error=3.0, judge_error=4.0, lean=0.0),
)


def band(points: float) -> str:
    """Band of a total among the default bands."""
    found = band_of(points, DEFAULT_BANDS)
    assert found is not None
    return found


def true_card(ratings: Sequence[Rating]) -> tuple[float, float, float]:
    """Kappa, Spearman's correlation and mean difference of a whole population."""
    card = trust_card(ratings, DEFAULT_BANDS, resamples=0)
    values = (card.kappa.value, card.spearman.value, card.mean_difference.value)
    return values[0] or 0.0, values[1] or 0.0, values[2] or 0.0


def chance_of_label(rating: Rating) -> float:
    """Probability of a label: high near the edge of a band, so that labels have very different weights."""
    return 0.8 if min(abs(rating.total - 50), abs(rating.total - 75)) <= 3 else 0.2


Labels = Literal["alike", "unequal", "queue"]


def labelled(agreement: Agreement, labels: int, draw: random.Random, how: Labels = "alike") -> list[Rating]:
    """
    Draw as many labelled scores as `labels` says.

    Args:
        how: `alike`: each score is labelled; `unequal`: with the probability of `chance_of_label`;
            `queue`: the review queue picks them from 1,000 scores.
    """
    if how == "queue":
        return queued([agreement.rating(draw) for _ in range(1000)], labels, draw)
    found = list[Rating]()
    while len(found) < labels:
        rating = agreement.rating(draw)
        chance = chance_of_label(rating) if how == "unequal" else 1.0
        if draw.random() < chance:
            found.append(replace(rating, inclusion_probability=chance))
    return found


def queued(ratings: Sequence[Rating], labels: int, draw: random.Random) -> list[Rating]:
    """The ratings that the review queue picks, half of them at random."""
    candidates = [Candidate(str(place), rating.total) for place, rating in enumerate(ratings)]
    picks = pick_for_review(candidates, labels, DEFAULT_BANDS, seed=draw.getrandbits(32))
    return [replace(ratings[int(p.score_id)], inclusion_probability=p.inclusion_probability) for p in picks]


@dataclass(slots=True)
class Coverage:
    """Number of intervals, and of those that cover the true value."""

    intervals: int = 0
    covering: int = 0

    def add(self, estimate: Estimate, truth: float) -> None:
        """Count the interval of an estimate, if it has one."""
        if estimate.low is not None and estimate.high is not None:
            self.intervals += 1
            self.covering += estimate.low <= truth <= estimate.high

    @property
    def share(self) -> float:
        """Share of intervals that cover the true value, 0-1; NaN without intervals."""
        return self.covering / self.intervals if self.intervals else math.nan


def coverages(
    agreement: Agreement, labels: int, runs: int, seed: int, how: Labels = "alike", *, resamples: int = 200
) -> tuple[Coverage, Coverage, Coverage]:
    """Coverage of the intervals of kappa, Spearman's correlation and mean difference, over `runs` cards."""
    truths = true_card(agreement.population(40_000, seed))
    found = Coverage(), Coverage(), Coverage()
    for run in range(runs):
        ratings = labelled(agreement, labels, draws(seed, agreement, labels, how, run), how)
        card = trust_card(ratings, DEFAULT_BANDS, resamples=resamples)
        for coverage, estimate, truth in zip(
            found, (card.kappa, card.spearman, card.mean_difference), truths, strict=True
        ):
            coverage.add(estimate, truth)
    return found


def half_widths_as_planned(agreement: Agreement, labels: int, runs: int, seed: int) -> list[float]:
    """
    Half widths of kappa's interval after as many labels as the trust card plans.

    Each run makes a card of `labels` labels and adds the labels that it still needs. Runs whose card gives no
    number are left out.
    """
    found = list[float]()
    for run in range(runs):
        draw = draws(seed, "plan", agreement, labels, run)
        ratings = labelled(agreement, labels, draw)
        card = trust_card(ratings, DEFAULT_BANDS, resamples=300)
        if card.still_needed is None:
            continue
        ratings += labelled(agreement, card.still_needed, draw)
        half_width = trust_card(ratings, DEFAULT_BANDS, resamples=300).kappa.half_width
        if half_width is not None:
            found.append(half_width)
    return found


# --- the review queue ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Estimates:
    """Estimates of the share of scores in another band than their label, over many queues."""

    truth: float
    random_share: Sequence[float]
    informative_share: Sequence[float]
    all_weighed: Sequence[float]

    def bias(self, found: Sequence[float]) -> float:
        """Mean error."""
        return statistics.fmean(found) - self.truth

    def error(self, found: Sequence[float]) -> float:
        """Root of the mean squared error."""
        return math.sqrt(statistics.fmean((value - self.truth) ** 2 for value in found))


def queue_estimates(size: int, picks: int, runs: int, seed: int) -> Estimates:
    """
    Estimate the share of scores whose label is in another band, from `runs` queues of the same scores.

    One score in ten is erratic: the judge's error is large, six in ten are flagged, and samples lie apart.
    """
    draw = draws(seed, "queue", size)
    candidates, differs = list[Candidate](), dict[str, bool]()
    for number in range(size):
        is_erratic = draw.random() < 0.1
        quality = draw.gauss(62, 18)
        judged = min(100, max(0, round(quality + draw.gauss(0, 25 if is_erratic else 6))))
        is_flagged = draw.random() < (0.6 if is_erratic else 0.02)
        spread = abs(draw.gauss(0, 12 if is_erratic else 5))
        candidates.append(Candidate(str(number), judged, spread, is_flagged))
        differs[str(number)] = band(judged) != band(min(100, max(0, quality + draw.gauss(0, 5))))
    shares = list[float](), list[float](), list[float]()
    for run in range(runs):
        queue = pick_for_review(candidates, picks, DEFAULT_BANDS, seed=seed * 1_000_003 + run)
        weights = [1 / p.inclusion_probability for p in queue]
        shares[0].append(statistics.fmean(differs[p.score_id] for p in queue if p.is_random))
        shares[1].append(statistics.fmean(differs[p.score_id] for p in queue if not p.is_random))
        shares[2].append(sum(w * differs[p.score_id] for w, p in zip(weights, queue, strict=True)) / sum(weights))
    return Estimates(statistics.fmean(differs.values()), *shares)

"""What a trust card is computed from, and what it states. `trust` computes it, and loads numpy."""

from dataclasses import dataclass
from typing import Literal

from tarsy_scoring.statistics.agreement import Confusion, Estimate, LabelsNeeded

ASSUMED_KAPPA = 0.6  # for the first plan, when there are too few labels to measure kappa


@dataclass(frozen=True, slots=True)
class Rating:
    """
    A score with its label.

    Args:
        said: Band of the label.
        judged: Band of the judge.
        number: Number of the label, 0-100; None: not given.
        inclusion_probability: Probability, above 0 and at most 1, that this score would be labelled. Only its
            ratio to the probabilities of other scores matters.
    """

    said: str
    judged: str
    total: float
    number: float | None = None
    inclusion_probability: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustCard:
    """
    How far a judge can be trusted.

    Args:
        matched: Number of labelled scores.
        spearman_over: What totals are ranked against: `numbers` if every rating has one, else `bands`.
        mean_difference: Total minus number over the ratings with a number; above 0 the judge is milder than
            people.
        confusion: Unweighted counts of labels.
        shares: The weighted confusion, as shares of all scores that the labels represent; empty without
            labels.
        needed: Total number of labels for an interval of kappa within `HALF_WIDTH`, if further ones are
            chosen alike.
        still_needed: `needed` minus the existing labels; None when it cannot be computed.
        is_supposed: Whether `needed` rests on `ASSUMED_KAPPA`, because there are too few labels.
    """

    matched: int
    spearman: Estimate
    spearman_over: Literal["numbers", "bands"]
    mean_difference: Estimate
    kappa: Estimate
    confusion: Confusion
    shares: tuple[tuple[float, ...], ...]
    needed: LabelsNeeded
    still_needed: int | None
    is_supposed: bool

"""
Chooses the scores that people should label: a random sample, which represents all scores, and the most
suspicious ones.

The same seed picks the same scores, independent of the order of the input.
"""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tarsy_scoring.scores.bands import Band

Reason = Literal["second opinion", "contradiction", "flag", "samples apart", "band edge"]

RANDOM_SHARE = 0.5
EDGE_POINTS = 3
SAMPLES_APART_POINTS = 8


@dataclass(frozen=True, slots=True)
class Candidate:
    """
    A score that could be reviewed.

    Args:
        spread: Highest minus lowest total of its samples; None for a single sample.
        is_contradictory: Whether facts of the score contradict each other, such as a total outside the band
            of the stated outcome, or gates that pass and a judge that fails the session.
        is_disputed: Whether the second opinion disagrees. Such a score comes before all others.
    """

    score_id: str
    total: float
    spread: float | None = None
    is_flagged: bool = False
    is_contradictory: bool = False
    is_disputed: bool = False


@dataclass(frozen=True, slots=True)
class Pick:
    """
    A score to review.

    Args:
        is_random: Whether the score is part of the random sample; the others were picked as informative.
        inclusion_probability: Probability, before the draw, that the score would be picked either way. Labels
            are weighted by its inverse.
        reasons: Reasons why the score is informative. May be empty for a random pick, and where fewer scores
            have a reason than are to be picked.
    """

    score_id: str
    is_random: bool
    inclusion_probability: float
    reasons: tuple[Reason, ...]


def pick_for_review(
    candidates: Iterable[Candidate], count: int, bands: Sequence[Band], *, seed: int
) -> list[Pick]:
    """
    Pick scores for people to label: a random sample of all candidates, then the most informative of the rest.

    `RANDOM_SHARE` of the picks, rounded up, are drawn; without random picks nothing could be estimated.

    The random share is a simple random sample without replacement, so its plain mean is unbiased for all
    candidates. All picks, each weighted by the inverse of its `inclusion_probability`, are unbiased too
    (Horvitz-Thompson) and never less precise. Both hold only if every pick is labelled: skipping tedious ones
    biases the estimates.

    Args:
        candidates: Each score once.
        count: Maximum number of picks.
        seed: Use a new one for every draw.

    Returns:
        The picks in random order, so that a reviewer who stops early leaves a random subset.

    Source:
        D. G. Horvitz, D. J. Thompson, Journal of the American Statistical Association 47 (1952), 663-685.
    """
    ranked = sorted(candidates, key=lambda c: _rank(c, bands))
    return [
        Pick(
            ranked[chosen.place].score_id,
            chosen.is_random,
            chosen.inclusion_probability,
            reasons_to_review(ranked[chosen.place], bands),
        )
        for chosen in choose_places(len(ranked), count, seed=seed)
    ]


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the ranking, from 0, that is picked; see `Pick`."""

    place: int
    is_random: bool
    inclusion_probability: float


def choose_places(size: int, count: int, *, seed: int) -> list[Place]:
    """
    Choose which places of a ranking of `size` candidates `pick_for_review` picks, in its order.

    The choice depends on nothing else, so the candidates may be ranked elsewhere.
    """
    count = min(count, size)
    drawn = math.ceil(count * RANDOM_SHARE)
    draw = random.Random(seed)  # noqa: S311 - sampling, not security
    random_places = set(draw.sample(range(size), drawn))
    first = range(min(size, count))  # no more than `drawn` of them are random, so enough remain
    informative = [place for place in first if place not in random_places][: count - drawn]
    chosen = [
        Place(place, place in random_places, _inclusion_probability(place, size, drawn, count - drawn))
        for place in (*random_places, *informative)
    ]
    draw.shuffle(chosen)
    return chosen


def reasons_to_review(candidate: Candidate, bands: Sequence[Band]) -> tuple[Reason, ...]:
    """Which of the reasons hold for the candidate."""
    found: dict[Reason, bool] = {
        "second opinion": candidate.is_disputed,
        "contradiction": candidate.is_contradictory,
        "flag": candidate.is_flagged,
        "samples apart": candidate.spread is not None and candidate.spread > SAMPLES_APART_POINTS,
        "band edge": _points_to_edge(candidate.total, bands) <= EDGE_POINTS,
    }
    return tuple(reason for reason, holds in found.items() if holds)


def _rank(candidate: Candidate, bands: Sequence[Band]) -> tuple[bool, int, float, float, str]:
    """
    Sort key: disputed scores first, then most reasons, then the larger spread, then the nearer band edge.
    """
    reasons, to_edge = reasons_to_review(candidate, bands), _points_to_edge(candidate.total, bands)
    return not candidate.is_disputed, -len(reasons), -(candidate.spread or 0.0), to_edge, candidate.score_id


def _points_to_edge(total: float, bands: Sequence[Band]) -> float:
    """Distance to the nearest edge between bands; infinite without one."""
    edges = sorted(b.low for b in bands)[1:]
    return min((abs(total - edge) for edge in edges), default=math.inf)


def _inclusion_probability(place: int, size: int, drawn: int, informative: int) -> float:
    """
    Probability that the score at `place` of the ranking is drawn, or else is among the informative picks.

    Not drawn itself, it is an informative pick if fewer than `informative` of the `place` scores before it
    remain undrawn; the number drawn among them is hypergeometric over the other `size` - 1 scores.
    """
    share = drawn / size
    if drawn == size:  # a single score
        return 1.0
    needed = max(place - informative + 1, 0)
    ways = sum(math.comb(place, d) * math.comb(size - 1 - place, drawn - d) for d in range(needed, drawn + 1))
    return share + (1 - share) * (ways / math.comb(size - 1, drawn))

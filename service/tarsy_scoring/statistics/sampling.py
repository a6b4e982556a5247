"""
Which scores people should look at: some drawn by chance, which speak for all, and some that look worth a look.

Pure; the same seed picks the same scores, in whatever order they come.
"""

import math
import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tarsy_scoring.statistics.agreement import Band

Reason = Literal["contradiction", "flag", "samples apart", "band edge"]

RANDOM_SHARE = 0.5
# Where `samples: adaptive` asks the judge again, a person is worth asking too.
EDGE_POINTS = 3
SAMPLES_APART_POINTS = 8


@dataclass(frozen=True, slots=True)
class Candidate:
    """
    A score that could be reviewed.

    Args:
        spread: Highest minus lowest of its samples; None where there was one.
        contradictions: What speaks against each other, such as a total outside the band of the stated outcome, or
            gates that passed beside a judge who failed it.
    """

    score_id: str
    total: float
    flags: Collection[str] = ()
    spread: float | None = None
    contradictions: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Pick:
    """
    A score to review.

    Args:
        is_random: Drawn by chance from all candidates; else picked because of what it looks like.
        inclusion_probability: How probable it was, before drawing, that this score would be picked in either way.
            Labels weigh by its inverse.
        reasons: What makes it informative; empty for many that were drawn by chance, and for those that come next in
            order where fewer scores have a reason than were to be picked.
    """

    score_id: str
    is_random: bool
    inclusion_probability: float
    reasons: tuple[Reason, ...]


def pick_for_review(
    candidates: Iterable[Candidate], count: int, bands: Sequence[Band], *, seed: int, random_share: float = RANDOM_SHARE
) -> list[Pick]:
    """
    Pick scores for people to label: first a random share of all candidates, then the most informative of the rest.

    The random share is a simple sample without replacement, so that its plain mean is unbiased for all candidates,
    whatever the informative ones look like. All picks together, each weighed by the inverse of its
    `inclusion_probability`, are as unbiased (Horvitz and Thompson), and never less exact: what is sure to be picked
    speaks for itself alone, the drawn ones for the rest.

    Both hold for labels that were asked for and came. Picks that people leave out because they are tedious bias both.

    Args:
        count: How many at most; all candidates are picked where there are no more.
        seed: A new one for every draw.
        random_share: Of `count`, above 0 to 1, rounded up: without it nothing could be estimated.

    Returns:
        In random order, so that people who stop early stop by chance.

    Raises:
        ValueError: `random_share` is not above 0 and at most 1, `count` is negative or a score comes twice.

    Source:
        D. G. Horvitz, D. J. Thompson, Journal of the American Statistical Association 47 (1952), 663-685.
    """
    if not 0 < random_share <= 1:
        raise ValueError(f"the random share is above 0 and at most 1, not {random_share}")
    if count < 0:
        raise ValueError(f"{count} scores cannot be picked")
    ranked = sorted(candidates, key=lambda c: _rank(c, bands))
    if len({c.score_id for c in ranked}) < len(ranked):
        raise ValueError("a score is twice among the candidates, which would double its chance")
    count = min(count, len(ranked))
    drawn = math.ceil(count * random_share)
    draw = random.Random(seed)  # noqa: S311 - nobody gains by guessing it
    by_chance = set(draw.sample(range(len(ranked)), drawn))
    informative = [place for place in range(len(ranked)) if place not in by_chance][: count - drawn]
    picks = [
        Pick(
            ranked[place].score_id,
            place in by_chance,
            _inclusion_probability(place, len(ranked), drawn, count - drawn),
            reasons_to_review(ranked[place], bands),
        )
        for place in (*by_chance, *informative)
    ]
    draw.shuffle(picks)
    return picks


def reasons_to_review(candidate: Candidate, bands: Sequence[Band]) -> tuple[Reason, ...]:
    """What of the four makes the score informative."""
    found: dict[Reason, bool] = {
        "contradiction": bool(candidate.contradictions),
        "flag": bool(candidate.flags),
        "samples apart": candidate.spread is not None and candidate.spread > SAMPLES_APART_POINTS,
        "band edge": _points_to_edge(candidate.total, bands) <= EDGE_POINTS,
    }
    return tuple(reason for reason, holds in found.items() if holds)


def _rank(candidate: Candidate, bands: Sequence[Band]) -> tuple[int, float, float, str]:
    """Most reasons first; among equals samples that are farther apart, then a nearer edge."""
    reasons = reasons_to_review(candidate, bands)
    return -len(reasons), -(candidate.spread or 0.0), _points_to_edge(candidate.total, bands), candidate.score_id


def _points_to_edge(total: float, bands: Sequence[Band]) -> float:
    """To the nearest lower end of a band but the lowest; infinite where there is no edge."""
    edges = sorted(b.low for b in bands)[1:]
    return min((abs(total - edge) for edge in edges), default=math.inf)


def _inclusion_probability(place: int, size: int, drawn: int, informative: int) -> float:
    """
    How probable it is that the score at this place of the ranking is drawn, or else still among the informative.

    It is informative where fewer than `informative` of those before it are left: of the `place` scores before it so
    many must have been drawn, which is hypergeometric among the other `size` - 1.
    """
    by_chance = drawn / size
    if drawn == size:
        return 1.0
    needed = max(place - informative + 1, 0)
    ways = sum(math.comb(place, d) * math.comb(size - 1 - place, drawn - d) for d in range(needed, drawn + 1))
    return by_chance + (1 - by_chance) * (ways / math.comb(size - 1, drawn))

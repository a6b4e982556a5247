"""
Decides whether a judgement needs a second opinion, and whether the two judgements agree.

`scoring.providers` asks for it.
"""

from tarsy_scoring.judge.definition import Bands
from tarsy_scoring.judge.verdict import Verdict
from tarsy_scoring.scores.bands import band_of, bands_of

# Noise in one judgement: two readers judged 16 recorded sessions each, under two wordings for the outcome
# criteria, and differed as two judgements with a standard deviation of 6.1 points do. With that noise another
# judgement at this distance is in another band in 24 % of cases, and at the edge in 50 %.
EDGE_POINTS = 6
# About the standard deviation for the difference between two judgements, 6.1 times the root of 2.
APART_POINTS = 8
# Two of these standard deviations, 17.3: noise alone is further apart once in 20 times.
TAMPERING_POINTS = 17


def needs_second_opinion(verdict: Verdict, bands: Bands) -> bool:
    """
    Whether another judgement may well put the session into another band.

    That is so near a band's edge, where the stated outcome contradicts the total, and where the judge
    states the highest band although most citations do not hold. Never under criteria without bands.
    """
    edges = sorted(low for low, _ in bands.values())[1:]
    highest = max(bands, key=lambda band: bands[band], default=None)
    return bool(bands) and (
        any(abs(verdict.total_score - edge) <= EDGE_POINTS for edge in edges)
        or "outcome_score_mismatch" in verdict.flags
        or (verdict.judge_outcome == highest and "ungrounded" in verdict.flags)
    )


def agree(first: Verdict, second: Verdict, bands: Bands) -> bool:
    """Whether both totals are in one band and at most `APART_POINTS` apart, and no stated outcomes differ."""
    stated = {v.judge_outcome for v in (first, second)} - {None}
    found = {band_of(v.total_score, bands_of(bands)) for v in (first, second)}
    return len(stated) < 2 and len(found) == 1 and abs(first.total_score - second.total_score) <= APART_POINTS

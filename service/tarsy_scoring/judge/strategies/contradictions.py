"""Numbers of a verdict that do not agree with each other."""

from tarsy_scoring.judge.definition import Bands
from tarsy_scoring.judge.verdict import Verdict


def contradictions(verdict: Verdict, bands: Bands) -> set[str]:
    """
    Flags for numbers that do not agree.

    A total may round half points of the breakdown; whole points must match it. A missing outcome contradicts
    nothing.
    """
    flags = set()
    stated = verdict.score_breakdown
    if stated is not None and abs(sum(stated.values()) - verdict.total_score) > 0.5:
        flags.add("breakdown_mismatch")
    if verdict.judge_outcome is not None and verdict.judge_outcome in bands:
        low, high = bands[verdict.judge_outcome]
        if not low <= verdict.total_score <= high:
            flags.add("outcome_score_mismatch")
    return flags

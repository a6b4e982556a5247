"""
Whether judges stop asking for a tool once agents have it: the demand without it against the demand with it.

Pure. The verdict is measured, never stated by anybody: who builds a tool says that it is there, and new scores say
whether it was what was missed.

Source:
    Two Poisson rates compared by the binomial test of their sum: J. Przyborowski, H. Wilenski, Biometrika 31 (1940),
    313-323. Demands of sessions are rarer than that, never more scattered, so it errs on the careful side. Chains are
    put together by indirect standardisation: those that ask more are expected to ask more.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

Verdict = Literal["confirmed", "still_missed", "undecided"]

CONFIDENCE = 0.95
# Confirmed: less than this share of the demand is left. Not zero: judges err, and some ask for what they see.
LEFT_OF_A_TOOL_THAT_HELPS = 0.25
# Still missed: more than this share is left.
LEFT_OF_ONE_THAT_DOES_NOT = 0.5
# Before as many sessions had the tool nothing is said. Looked at after every session and not once, the verdict is
# wrong in fewer than 5 of 100 runs, where demand stays as it was or falls to a twentieth (tests hold the simulation).
FEWEST_SESSIONS = 20
_SUMMED = 400  # of the rarer side, up to which the tail is summed; beyond, the normal curve is within 0.005 of it
_FARTHEST = 1e6  # times the sessions before: nobody waits for that


@dataclass(frozen=True, slots=True)
class ChainDemand:
    """Sessions of a chain without the tool and with it, and how many of each asked for it."""

    sessions_without: int
    asked_without: int
    sessions_with: int
    asked_with: int


@dataclass(frozen=True, slots=True)
class Demand:
    """
    What became of the demand, over the chains that have sessions of both kinds.

    Args:
        expected: Demands that the sessions with the tool would have made, had nothing changed.
        left: Share of the demand that is left; None: there was none before.
        sessions_needed: So many more sessions with the tool that do not ask for it, and it is confirmed; None: it is
            already, nothing can be compared, or no judge has judged with and without it.
    """

    verdict: Verdict
    sessions_without: int
    asked_without: int
    sessions_with: int
    asked_with: int
    expected: float
    left: float | None
    sessions_needed: int | None


def measure_demand(chains: Iterable[ChainDemand]) -> Demand:
    """
    Whether the demand has gone.

    Chains without sessions of both kinds say nothing: what they ask now has nothing to be held against.
    """
    told = [c for c in chains if c.sessions_without and c.sessions_with]
    before, after = sum(c.asked_without for c in told), sum(c.asked_with for c in told)
    sessions = sum(c.sessions_with for c in told)
    expected = math.fsum(c.sessions_with * c.asked_without / c.sessions_without for c in told)
    verdict = _verdict(before, after, sessions, expected)
    return Demand(
        verdict,
        sum(c.sessions_without for c in told),
        before,
        sessions,
        after,
        expected,
        after / expected if expected else None,
        None if verdict == "confirmed" else _sessions_needed(before, after, sessions, expected),
    )


def sessions_until_confirmed(sessions_without: int, asked_without: int) -> int | None:
    """
    How many sessions with the tool, none of which asks for it, confirm it.

    None where nobody has asked for it before.
    """
    if not asked_without:
        return None
    exposure = _exposure_needed(asked_without, 0)
    return None if exposure is None else max(FEWEST_SESSIONS, math.ceil(exposure * sessions_without))


def _verdict(before: int, after: int, sessions: int, expected: float) -> Verdict:
    if not before or sessions < FEWEST_SESSIONS:
        return "undecided"
    exposure = expected / before  # how much longer we looked with the tool than without
    if _at_most(after, before + after, _share(LEFT_OF_A_TOOL_THAT_HELPS * exposure)) <= 1 - CONFIDENCE:
        return "confirmed"
    above = 1 - _at_most(after - 1, before + after, _share(LEFT_OF_ONE_THAT_DOES_NOT * exposure))
    return "still_missed" if above <= 1 - CONFIDENCE else "undecided"


def _sessions_needed(before: int, after: int, sessions: int, expected: float) -> int | None:
    if not before or not expected:
        return None
    exposure = _exposure_needed(before, after)
    if exposure is None:
        return None
    return max(FEWEST_SESSIONS, math.ceil(exposure * before / expected * sessions)) - sessions


def _exposure_needed(before: int, after: int) -> float | None:
    """The least exposure at which so many demands would confirm the tool."""
    low, high = 0.0, _FARTHEST
    if _at_most(after, before + after, _share(LEFT_OF_A_TOOL_THAT_HELPS * high)) > 1 - CONFIDENCE:
        return None
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        if _at_most(after, before + after, _share(LEFT_OF_A_TOOL_THAT_HELPS * middle)) <= 1 - CONFIDENCE:
            high = middle
        else:
            low = middle
    return high


def _share(ratio: float) -> float:
    """Of all demands those that come with the tool, where the rates with and without it are in this ratio."""
    return ratio / (1 + ratio)


def _at_most(successes: int, trials: int, chance: float) -> float:
    """The chance of so many successes or fewer."""
    if successes < 0 or chance >= 1:
        return 0.0
    if successes >= trials or chance <= 0:
        return 1.0
    if successes > trials - successes:
        return 1 - _at_most(trials - successes - 1, trials, 1 - chance)
    if successes > _SUMMED:
        scatter = math.sqrt(trials * chance * (1 - chance))
        return NormalDist().cdf((successes + 0.5 - trials * chance) / scatter)
    return min(1.0, math.fsum(math.exp(_log_term(k, trials, chance)) for k in range(successes + 1)))


def _log_term(successes: int, trials: int, chance: float) -> float:
    ways = math.lgamma(trials + 1) - math.lgamma(successes + 1) - math.lgamma(trials - successes + 1)
    return ways + successes * math.log(chance) + (trials - successes) * math.log1p(-chance)

"""
Decide whether judges stop requesting a tool once agents have it: demand without it against demand with it.

People record that a tool is built; whether it was the missing one is measured in new scores.

Source:
    Two Poisson rates compared by the conditional binomial test: J. Przyborowski, H. Wilenski, Biometrika 31
    (1940), 313-323. Requests per session are 0 or 1 and thus vary less than Poisson, so the test is
    conservative. Chains are combined by indirect standardisation, each with its own rate before.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["confirmed", "still_missed", "undecided"]

CONFIDENCE = 0.95
# Confirmed: less than this share of the demand is left. Not 0, because judges err, and some request tools
# they see.
LEFT_OF_A_TOOL_THAT_HELPS = 0.25
# Still missed: more than this share is left.
LEFT_OF_ONE_THAT_DOES_NOT = 0.5
# No verdict with fewer sessions with the tool. Evaluated after every session instead of once, the verdict is
# wrong in fewer than 5 % of simulated runs, for a demand that stays as it was or falls to a twentieth
# .
FEWEST_SESSIONS = 20
FARTHEST = 1e6  # `sessions_needed` is not reported above this multiple of the sessions with the tool


@dataclass(frozen=True, slots=True)
class ChainDemand:
    """Sessions of a chain without and with the tool, and how many of each requested it."""

    sessions_without: int
    asked_without: int
    sessions_with: int
    asked_with: int


@dataclass(frozen=True, slots=True)
class Demand:
    """
    The demand over all chains that have sessions of both kinds.

    Args:
        expected: Requests that the sessions with the tool would have made at the rates before.
        left: Share of the demand that is left; None without demand before.
        sessions_needed: Number of further sessions with the tool and without a request that would confirm it;
            None: it is confirmed, no session requested it before, no judge has judged both sides, or
            the number exceeds a million times the sessions with the tool.
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
    Compare the demand without the tool and with it, and decide on the verdict.

    Chains without sessions of both kinds are ignored, because nothing can be compared in them.
    """
    both = [c for c in chains if c.sessions_without and c.sessions_with]
    before, after = sum(c.asked_without for c in both), sum(c.asked_with for c in both)
    sessions = sum(c.sessions_with for c in both)
    expected = math.fsum(c.sessions_with * c.asked_without / c.sessions_without for c in both)
    verdict = _verdict(before, after, sessions, expected)
    return Demand(
        verdict,
        sum(c.sessions_without for c in both),
        before,
        sessions,
        after,
        expected,
        after / expected if expected else None,
        None if verdict == "confirmed" else _sessions_needed(before, after, sessions, expected),
    )


def _verdict(before: int, after: int, sessions: int, expected: float) -> Verdict:
    if not before or sessions < FEWEST_SESSIONS:
        return "undecided"
    exposure = expected / before  # how much longer sessions were observed with the tool than without it
    if _at_most(after, before + after, _share(LEFT_OF_A_TOOL_THAT_HELPS * exposure)) <= 1 - CONFIDENCE:
        return "confirmed"
    above = 1 - _at_most(after - 1, before + after, _share(LEFT_OF_ONE_THAT_DOES_NOT * exposure))
    return "still_missed" if above <= 1 - CONFIDENCE else "undecided"


def _sessions_needed(before: int, after: int, sessions: int, expected: float) -> int | None:
    if not before or not expected:
        return None
    needed = _exposure_needed(before, after) * before / expected * sessions
    return None if needed > FARTHEST * sessions else max(FEWEST_SESSIONS, math.ceil(needed)) - sessions


def _exposure_needed(before: int, after: int) -> float:
    """The smallest ratio of sessions with to without the tool at which these requests would confirm it."""
    from scipy import special

    # The share whose binomial tail is 5 %.
    share = float(special.bdtri(after, before + after, 1 - CONFIDENCE))
    # One part in 10^12 more, so that rounding cannot leave the tail above the limit.
    return share / (1 - share) / LEFT_OF_A_TOOL_THAT_HELPS * (1 + 1e-12)


def _share(ratio: float) -> float:
    """The share of all requests that come with the tool, if the rates with and without it have this ratio."""
    return ratio / (1 + ratio)


def _at_most(successes: int, trials: int, chance: float) -> float:
    """
    The probability of at most so many successes.

    Source:
        `scipy.special.bdtr`.
    """
    from scipy import special

    return float(special.bdtr(successes, trials, chance)) if successes >= 0 else 0.0


def demand_in_words(demand: Demand, *, has_other_judge: bool) -> str:
    """Describe the measured demand and the verdict in two or three sentences."""
    text = (
        f"Without it {demand.asked_without:,} of {demand.sessions_without:,} sessions requested it, with it "
        f"{demand.asked_with:,} of {demand.sessions_with:,}, where {demand.expected:,.1f} were expected."
    )
    confidence = f"{CONFIDENCE:.0%} confidence"
    if has_other_judge:
        text += (
            " No judge has judged both sides: the change may be the judge's and shows nothing about the tool."
        )
    elif demand.verdict == "confirmed":
        text += f" So less than a quarter of the demand is left ({confidence})."
    elif demand.verdict == "still_missed":
        text += f" So more than half of the demand is left ({confidence}): the reasons in its scores show what is missing."
    elif demand.sessions_needed is not None:
        text += f" {demand.sessions_needed:,} more sessions that do not request it would confirm it."
    else:
        text += " No session requested it before, so nothing can be concluded."
    return text

"""
Whether scores changed because the agents did or because the judge did.

A new judge is told from new agents by anchors, sessions that both judges judged; under one judge whatever changes is
the agents'. Pure.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from typing import Literal

from tarsy_scoring.statistics.agreement import Estimate
from tarsy_scoring.statistics.bootstrap import FEWEST_FOR_AN_INTERVAL, Stratum, shared_strata
from tarsy_scoring.statistics.changes import (
    WHOLE_METHOD,
    Change,
    borrowed_change,
    change_within,
    hidden_variance,
    less,
    sizes_of,
)

Cause = Literal["judge", "agents", "both", "none"]

# Share of quiet changes of judge, or of quiet years of daily looks, with an alarm. The promise is 5 of 100; at exactly
# that every other hundred would break it.
FALSE_ALARMS = 0.04
# Two questions share it (Bonferroni), so each is asked at half. An interval of this confidence leaves out 0 exactly
# where its change is shown.
CONFIDENCE_OF_EACH = 1 - FALSE_ALARMS / 2

LOOKS = 365
# Source: own simulations. In 300 scores with a standard deviation of 16 even the best placed shift of 8 is often
# missed, in 600 with one of 21; more of them remember so much that a shift is found later.
WINDOW = 1_000
FEWEST_TO_WATCH = 60

WATCH_METHOD = "CUSUM of residuals, law of the Brownian bridge; Welch's t within strata for the size"
NOT_LOOKED_AT = Change(Estimate(None, None, None, 0, None, WHOLE_METHOD, "ordinary sessions were left out"))


@dataclass(frozen=True, slots=True)
class OrdinaryScore:
    """
    The total of an ordinary session.

    Args:
        at: When the session ended.
        stratum: What makes sessions alike, such as chain and alert type.
    """

    at: datetime
    judge_fingerprint: str
    stratum: Hashable
    total: float


@dataclass(frozen=True, slots=True)
class AnchorJudgement:
    """One judgement of an anchor; there may be several under the same fingerprint, of which the mean counts."""

    session_id: str
    judge_fingerprint: str
    total: float
    chain_id: str | None = None


@dataclass(frozen=True, slots=True)
class Drift:
    """
    A change of scores and what is behind it. Changes are in points, later minus earlier.

    The intervals have a confidence of 98 % each, so that those of `judge` and `whole` hold together in 96 of 100 cases.

    Args:
        cause: None where it cannot be told, `meaning` then says why; `none`: no change is shown.
        is_clear: False where neither part is shown by itself; `cause` is then the likelier one, or cannot be told.
        judge: The judge's part: how the same sessions are scored otherwise. Exactly 0 under one judge.
        whole: The change of ordinary sessions within strata.
        agents: The whole less the judge's part.
        began_at: When the first session after the change ended; None where no change is shown under one judge.
        anchors: That both judges judged.
        anchors_missing: That only one of them judged.
        compared: Ordinary sessions before and after that `whole` rests on.
        meaning: What may be concluded and what not, in plain sentences.
    """

    cause: Cause | None
    is_clear: bool
    judge: Estimate
    whole: Estimate
    agents: Estimate
    began_at: datetime | None
    anchors: int
    anchors_missing: int
    compared: tuple[int, int]
    meaning: tuple[str, ...]


# --- a new judge ---------------------------------------------------------------------------------------


def explain_new_judge(
    scores: Iterable[OrdinaryScore] | None,
    anchors: Iterable[AnchorJudgement],
    old: str,
    new: str,
    *,
    chain: str | None = None,
) -> Drift:
    """
    Tell the judge's part of a change from the agents', where one judge followed another.

    1. Something changed where the anchors did or the ordinary sessions did. Both are asked at half of `FALSE_ALARMS`.
    2. A part is named where its own interval leaves out 0. The agents' part carries the errors of both, so it needs
       no first step of its own: that is the other question's.
    3. Where step 1 holds and no part is shown by itself, the one that is farther from 0 in terms of its interval is
       named, and `is_clear` is False.

    Holm's procedure over the two parts was not taken: it never uses that the sessions' whole change is known better
    than the agents' part. At a standard deviation of 20 it then misses one agents' change of 8 points in ten. Nor was
    it taken to guess the anchors' quality from that of ordinary sessions: at the errors that judges have that makes
    the judge's part surer by less than a tenth, and wrong where anchors were picked by hand.

    Args:
        scores: Those of other fingerprints are left alone. None: they are not looked at, anchors alone are asked.
        anchors: Likewise. They should be drawn like the ordinary sessions: a judge who became stricter on hard
            sessions only is seen where there are hard anchors.
        old, new: Fingerprints.
        chain: Whose change it is. Anchors of other chains count as far as chains are seen to be alike.

    Raises:
        ValueError: Both fingerprints are the same; see `find_change`.

    Source:
        B. L. Welch, Biometrika 34 (1947), 28-35; degrees of freedom: F. E. Satterthwaite, Biometrics Bulletin 2
        (1946), 110-114; deciding on parts after the whole: R. Marcus, E. Peritz, K. R. Gabriel, Biometrika 63
        (1976), 655-660.
    """
    if old == new:
        raise ValueError("both sides have the same judge, so that its part is 0 and find_change is what to ask")
    changes = anchor_changes(anchors, old, new)
    ordinary = [] if scores is None else list(scores)
    before = [s for s in ordinary if s.judge_fingerprint == old]
    after = [s for s in ordinary if s.judge_fingerprint == new]
    strata = _strata(before, after)
    judge_part = _judge_part(changes, chain)
    whole_part = NOT_LOOKED_AT if scores is None else change_within(strata, CONFIDENCE_OF_EACH)
    judge, whole = judge_part.estimate, whole_part.estimate
    agents = less(whole_part, judge_part, CONFIDENCE_OF_EACH).estimate
    cause, is_clear = _cause(judge, whole, agents, is_judge_alone=scores is None)
    return Drift(
        cause,
        is_clear,
        judge,
        whole,
        agents,
        began_at=min((s.at for s in after), default=None),
        anchors=len(changes.everywhere),
        anchors_missing=changes.missing,
        compared=sizes_of(strata),
        meaning=_meaning(cause, is_clear, judge, whole, agents, changes.missing),
    )


def _judge_part(found: "AnchorChanges", chain: str | None) -> Change:
    own, others = found.by_chain.get(chain, ()), [c for name, c in found.by_chain.items() if name != chain]
    return borrowed_change(own, others, CONFIDENCE_OF_EACH, found.least_variance)


def _cause(judge: Estimate, whole: Estimate, agents: Estimate, *, is_judge_alone: bool) -> tuple[Cause | None, bool]:
    """The cause and whether it is clear."""
    found_judge, found_whole, found_agents = map(_reach, (judge, whole, agents))
    if found_judge is None or found_whole is None or found_agents is None:
        # Half of the answer: anchors alone can show the judge's part, sessions alone a change of whatever cause.
        if found_judge is not None and found_judge > 1:
            return "judge", True
        return ("none", True) if found_judge is not None and is_judge_alone else (None, False)
    if max(found_judge, found_whole) <= 1:
        return "none", True
    if found_judge > 1 and found_agents > 1:
        return "both", True
    return ("judge" if found_judge > found_agents else "agents"), max(found_judge, found_agents) > 1


def _reach(estimate: Estimate) -> float | None:
    """How far from 0, in halves of its interval: a change is shown above 1. None without an interval."""
    if estimate.value is None or estimate.half_width is None:
        return None
    return abs(estimate.value) / estimate.half_width


# --- under one judge -----------------------------------------------------------------------------------


def find_change(scores: Iterable[OrdinaryScore], *, looks: int = LOOKS) -> Drift:
    """
    Find out whether the agents changed at some time under one judge.

    The last `WINDOW` scores, less the means of their strata, are added up in order of time. Where nothing changes
    the sum, over the standard deviation and the root of their number, wanders like a Brownian bridge; a change makes
    it run away, and it turns about where the change began. Of `looks` looks at the same chain, at most a share
    `FALSE_ALARMS` of cases has any false alarm, however much the looks have in common. So one look finds only what
    is plain: a shift of half a standard deviation after about 160 scores. Measured (`benchmarks.years`), 1 of 100 quiet
    years has an alarm; 6 of 100 where the sessions of a day share a deviation of 3 points, as those of one incident do.

    The size is that of the place where the sum turned; being sought out, it comes out a little too large.

    Args:
        looks: How often one looks before the count of false alarms begins anew; 365 is daily for a year.

    Raises:
        ValueError: The scores are of several judges.

    Source:
        R. L. Brown, J. Durbin, J. M. Evans, Journal of the Royal Statistical Society B 37 (1975), 149-192, with the
        residuals of W. Ploberger, W. Krämer, Econometrica 60 (1992), 271-285. Law of the bridge: A. Kolmogorov (1933).
        Place of the change by least squares: J. Bai, Journal of Time Series Analysis 15 (1994), 453-472.
    """
    window = sorted(scores, key=lambda s: s.at)[-WINDOW:]
    if len({s.judge_fingerprint for s in window}) > 1:
        raise ValueError("the scores are of several judges, whose changes explain_new_judge tells apart")
    unchanged = Estimate(0.0, 0.0, 0.0, 0, 0.0, "one judge", None)
    if len(window) < FEWEST_TO_WATCH:
        reason = f"{len(window)} scores under one judge are too few to watch; it takes {FEWEST_TO_WATCH}"
        nothing = Estimate(None, None, None, len(window), None, WATCH_METHOD, reason)
        return Drift(None, False, unchanged, nothing, nothing, None, 0, 0, (0, 0), (f"Nothing can be told: {reason}.",))
    farthest, turn = _cusum(window)
    strata = _strata(window[:turn], window[turn:])
    whole = change_within(strata, CONFIDENCE_OF_EACH, WATCH_METHOD).estimate
    is_shown = chance_of_bridge(farthest) <= FALSE_ALARMS / looks and _reach(whole) is not None
    cause: Cause = "agents" if is_shown else "none"
    began_at = window[turn].at if is_shown else None
    meaning = _meaning_under_one_judge(whole if is_shown else None, began_at, len(window), looks)
    return Drift(cause, True, unchanged, whole, whole, began_at, 0, 0, sizes_of(strata), meaning)


def _cusum(window: Sequence[OrdinaryScore]) -> tuple[float, int]:
    """The farthest that the sum of residuals strays from 0, as a Brownian bridge would, and how many came before it."""
    by_stratum: defaultdict[Hashable, list[float]] = defaultdict(list)
    for score in window:
        by_stratum[score.stratum].append(score.total)
    means = {stratum: statistics.fmean(totals) for stratum, totals in by_stratum.items()}
    residuals = [s.total - means[s.stratum] for s in window]
    freedom = len(window) - len(means)
    if freedom < 1 or not any(residuals):
        return 0.0, len(window) // 2
    variance = math.fsum(r * r for r in residuals) / freedom
    n, sums = len(window), [abs(s) for s in accumulate(residuals)]
    # The farthest sum lies too near the middle for a late change; over its own error it points at the change.
    least = FEWEST_FOR_AN_INTERVAL
    turn = max(range(least, n - least + 1), key=lambda before: sums[before - 1] ** 2 / (before * (n - before)))
    return max(sums) / math.sqrt(variance * n), turn


def chance_of_bridge(farthest: float) -> float:
    """How often a Brownian bridge strays at least so far from 0, in either direction."""
    if farthest < 0.2:  # all but always, and the series would need many terms
        return 1.0
    terms = (-1.0 if k % 2 == 0 else 1.0 for k in range(1, 51))
    return 2 * math.fsum(sign * math.exp(-2 * (k * farthest) ** 2) for k, sign in enumerate(terms, 1))


@dataclass(frozen=True, slots=True)
class AnchorChanges:
    """
    How the totals of anchors differ under a new judge.

    Args:
        by_chain: The change of each anchor that both judged.
        missing: Anchors that one of the two has not judged.
        least_variance: Of a change; what rounding hides in its two totals.
    """

    by_chain: Mapping[str | None, Sequence[float]]
    missing: int
    least_variance: float

    @property
    def everywhere(self) -> list[float]:
        """The changes of all chains."""
        return [change for changes in self.by_chain.values() for change in changes]


def anchor_changes(anchors: Iterable[AnchorJudgement], old: str, new: str) -> AnchorChanges:
    """Anchor by anchor, the mean of its judgements by the new judge less that of those by the old one."""
    totals: defaultdict[str, dict[str, list[float]]] = defaultdict(lambda: {old: [], new: []})
    chains = dict[str, str | None]()
    for judgement in anchors:
        if judgement.judge_fingerprint in (old, new):
            totals[judgement.session_id][judgement.judge_fingerprint].append(judgement.total)
            chains[judgement.session_id] = judgement.chain_id
    judged = {name: t for name, t in totals.items() if t[old] and t[new]}
    by_chain = defaultdict[str | None, list[float]](list)
    for name, t in judged.items():
        by_chain[chains[name]].append(statistics.fmean(t[new]) - statistics.fmean(t[old]))
    seen = [total for t in judged.values() for judge in (old, new) for total in t[judge]]
    return AnchorChanges(by_chain, len(totals) - len(judged), 2 * hidden_variance(seen))


def _strata(before: Iterable[OrdinaryScore], after: Iterable[OrdinaryScore]) -> list[Stratum]:
    sides = defaultdict[Hashable, list[float]](list), defaultdict[Hashable, list[float]](list)
    for side, scores in zip(sides, (before, after), strict=True):
        for score in scores:
            side[score.stratum].append(score.total)
    return shared_strata(dict(sides[0]), dict(sides[1]))


# --- what it means -------------------------------------------------------------------------------------


def _meaning(
    cause: Cause | None, is_clear: bool, judge: Estimate, whole: Estimate, agents: Estimate, missing: int
) -> tuple[str, ...]:
    """What may be concluded of a new judge and what not."""
    sentences = [_conclusion(cause, judge, whole, agents)]
    is_judge_alone = whole == NOT_LOOKED_AT.estimate
    asked = [judge] if is_judge_alone else [judge, whole]
    for reason in dict.fromkeys(e.reason for e in asked if e.reason is not None):
        sentences.append(f"Of this nothing is known: {reason}.")
    if is_judge_alone:
        sentences.append("Anchors alone were looked at; whether the agents changed is told by ordinary sessions later.")
    elif cause == "judge" and agents.value is None:
        sentences.append("Whether the agents changed too cannot be told.")
    elif not is_clear and cause is not None:
        sentences.append("Neither part is shown by itself; this is the likelier of the two.")
    if cause == "none" and whole.value is not None:
        sentences.append(f"That does not mean equal: ordinary sessions may have moved by {_interval(whole)} points.")
    if missing:
        sentences.append(
            f"{missing} anchor{'s still lack' if missing > 1 else ' still lacks'} a judgement by one of the judges."
        )
    sentences.append(
        "The agents' part is whatever the judge did not do: other prompts, tools or models, but also incidents that "
        "became harder within their strata. Anchors speak for sessions that are like them."
    )
    return tuple(sentences)


def _conclusion(cause: Cause | None, judge: Estimate, whole: Estimate, agents: Estimate) -> str:
    """The cause in words; where it cannot be told, what is known all the same."""
    found_judge, found_whole = _reach(judge), _reach(whole)
    match cause:
        case "judge":
            return f"The judge changed: the same sessions get {_points(judge)}."
        case "agents":
            return f"The agents changed: their part is {_points(agents)}."
        case "both":
            return f"Both changed: the judge's part is {_points(judge)}, the agents' {_points(agents)}."
        case "none" if found_whole is not None:
            return "No change is shown."
    if found_judge is not None:
        told = f"No change of the judge is shown: the same sessions get {_points(judge)}."
        return f"{told} A change within that interval may hide."
    if found_whole is None:
        return "What is behind a change cannot be told."
    if found_whole > 1:
        return f"Scores changed: ordinary sessions get {_points(whole)}. What is behind that cannot be told."
    return f"No change of ordinary sessions is shown: {_points(whole)}. What is behind it cannot be told."


def _meaning_under_one_judge(shown: Estimate | None, began_at: datetime | None, n: int, looks: int) -> tuple[str, ...]:
    """What may be concluded under one judge; without an estimate no change is shown."""
    if shown is None or began_at is None:
        return (
            f"No change is shown in the last {n} scores. Only what is plain is shown, so that over {looks} looks at "
            "most 5 of 100 quiet chains ever raise an alarm.",
        )
    return (
        f"The agents changed at about {began_at:%Y-%m-%d %H:%M}, by {_points(shown)}.",
        "The judge is the same, so the change is in the sessions: prompts, tools or models, or incidents that became "
        "harder or easier within their strata.",
        "Time and size were sought out and are rough. Many sessions of one incident are fewer than they look.",
    )


def _points(estimate: Estimate) -> str:
    return f"{estimate.value:+.1f} points ({_interval(estimate)})"


def _interval(estimate: Estimate) -> str:
    return "no interval" if estimate.low is None else f"{estimate.low:+.1f} to {estimate.high:+.1f}"

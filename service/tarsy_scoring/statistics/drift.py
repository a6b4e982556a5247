"""
Decides whether scores changed because the agents changed or because the judge did.

When the judge changed, anchors (sessions that both judges judged) separate its part from the agents'. Under
one judge every change is the agents'.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from typing import Literal

from tarsy_scoring.statistics.agreement import Estimate
from tarsy_scoring.statistics.change import (
    WHOLE_METHOD,
    Change,
    borrowed_change,
    change_within,
    hidden_variance,
    less,
)
from tarsy_scoring.statistics.pairing import FEWEST_FOR_AN_INTERVAL, Stratum, pair_up, sizes_of
from tarsy_scoring.statistics.sentences import sentence

Cause = Literal["judge", "agents", "both", "none"]

# Share of quiet changes of judge, or of quiet years of daily looks, that may raise an alarm. The documented
# limit is 5 %; with exactly that, every other series of 100 would exceed it.
FALSE_ALARMS = 0.04
# Two tests share the alarms (Bonferroni), so each gets half. A test at that level is significant when the
# interval of this confidence excludes 0.
CONFIDENCE_OF_EACH = 1 - FALSE_ALARMS / 2

LOOKS = 365
# Source: our simulations. With 300 scores of standard deviation 16, or 600 of 21, even an ideally placed
# shift of 8 points is often missed; with more than 1,000 a shift is found later, because the old scores
# dominate.
WINDOW = 1_000
FEWEST_TO_WATCH = 60

WATCH_METHOD = "CUSUM of residuals, law of the Brownian bridge; Welch's t within strata for the size"
NOT_LOOKED_AT = Change(Estimate(None, None, None, 0, None, WHOLE_METHOD, "ordinary sessions were left out"))


@dataclass(frozen=True, slots=True)
class OrdinaryScore:
    """
    The total of an ordinary session.

    Args:
        at: Time when the session ended.
        stratum: Properties that make sessions comparable, such as chain and alert type.
    """

    at: datetime
    judge_fingerprint: str
    stratum: Hashable
    total: float


@dataclass(frozen=True, slots=True)
class AnchorJudgement:
    """One judgement of an anchor. Several by one judge are averaged."""

    session_id: str
    judge_fingerprint: str
    total: float
    chain_id: str | None = None


@dataclass(frozen=True, slots=True)
class Drift:
    """
    A change of scores and its cause. Changes are in points, later minus earlier.

    Each interval has 98 % confidence, so those of `judge` and `whole` hold together in 96 % of cases.

    Args:
        cause: None when it cannot be decided (`meaning` says why); `none` when no change is shown.
        is_clear: False when neither part is significant by itself; `cause` is then the likelier one, or None.
        judge: The judge's part: the change of the same sessions' totals. Exactly 0 under one judge.
        whole: The change of ordinary sessions within strata.
        agents: `whole` minus `judge`.
        began_at: Under one judge, the end of the first session after the change; None when no change is
            shown. With a new judge, the end of the first session that it scored; None without one.
        anchors: Number of anchors that both judges judged.
        anchors_missing: Number of anchors that only one of them judged.
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
    Split a change of scores between two judges into the judge's part and the agents' part, and name the
    cause.

    1. A change is shown if that of the anchors or that of the ordinary sessions is significant, each at half
       of `FALSE_ALARMS`.
    2. A part is named if its own interval excludes 0. The agents' part carries the errors of both and needs
       no correction of its own, since step 1 already guards it.
    3. If step 1 holds and neither part is significant, the part farther from 0 relative to its interval is
       named and `is_clear` is False.

    Rejected: Holm's procedure over the two parts. It ignores that the whole change is known better than the
    agents' part and misses one in ten changes of 8 points at a standard deviation of 20. Rejected: pooling
    the variances of anchors and ordinary sessions. At realistic judge errors it narrows the judge's part by
    less than a tenth, and it is wrong for anchors that were picked by hand.

    Args:
        scores: Scores of other judges are ignored. None: test the anchors alone.
        anchors: Judgements of other judges are ignored. Anchors should be a sample like the ordinary
            sessions: a judge that became stricter only on hard sessions is detected only by hard anchors.
        old, new: Fingerprints, which differ.
        chain: The chain in question. Anchors of other chains count as far as the chains are alike.

    Source:
        Naming parts after a test of the whole: R. Marcus, E. Peritz, K. R. Gabriel, Biometrika 63 (1976),
            655-660.
        Intervals: see `change_within`, `borrowed_change` and `less`.
    """
    changes = anchor_changes(anchors, old, new)
    ordinary = [] if scores is None else list(scores)
    before = [s for s in ordinary if s.judge_fingerprint == old]
    after = [s for s in ordinary if s.judge_fingerprint == new]
    strata = _strata(before, after)
    own, others = (
        changes.by_chain.get(chain, ()),
        [c for name, c in changes.by_chain.items() if name != chain],
    )
    judge_part = borrowed_change(own, others, CONFIDENCE_OF_EACH, changes.least_variance)
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
        meaning=tuple(_meaning(cause, is_clear, judge, whole, agents, changes.missing)),
    )


def _cause(
    judge: Estimate, whole: Estimate, agents: Estimate, *, is_judge_alone: bool
) -> tuple[Cause | None, bool]:
    """The cause and whether it is clear."""
    found_judge, found_whole, found_agents = map(_significance, (judge, whole, agents))
    if found_judge is None or found_whole is None or found_agents is None:
        # Half of the data: anchors alone can show the judge's part; sessions alone show a change of unknown
        # cause.
        if found_judge is not None and found_judge > 1:
            return "judge", True
        return ("none", True) if found_judge is not None and is_judge_alone else (None, False)
    if max(found_judge, found_whole) <= 1:
        return "none", True
    if found_judge > 1 and found_agents > 1:
        return "both", True
    return ("judge" if found_judge > found_agents else "agents"), max(found_judge, found_agents) > 1


def _significance(estimate: Estimate) -> float | None:
    """|value| in half widths of its interval; above 1 the interval excludes 0. None without an interval."""
    if estimate.value is None or estimate.half_width is None:
        return None
    return abs(estimate.value) / estimate.half_width


# --- under one judge -----------------------------------------------------------------------------------


def find_change(scores: Iterable[OrdinaryScore], *, looks: int = LOOKS) -> Drift:
    """
    Decide whether the agents changed at some time under one judge, and when and by how much.

    CUSUM test: the residuals of the last `WINDOW` scores against the means of their strata are summed in
    order of time. Without a change the sum, divided by the standard deviation and the root of the number of
    scores, behaves like a Brownian bridge; after a change it drifts away and turns at the change. The level
    is `FALSE_ALARMS` / `looks` (Bonferroni), so a single look finds only large changes: half a standard
    deviation after about 160 scores. Measured : a false alarm in 1 % of quiet years, and
    in 6 % when the sessions of a day share a deviation of 3 points, as those of one incident do.

    The size is measured at the turning point found, and is therefore slightly overestimated.

    Args:
        scores: Scores by one judge, in any order.
        looks: Number of looks that share `FALSE_ALARMS`; 365 is daily for a year.

    Source:
        R. L. Brown, J. Durbin, J. M. Evans, Journal of the Royal Statistical Society B 37 (1975), 149-192,
        with the residuals of W. Ploberger, W. Krämer, Econometrica 60 (1992), 271-285. Turning point by least
        squares: J. Bai, Journal of Time Series Analysis 15 (1994), 453-472.
    """
    window = sorted(scores, key=lambda s: s.at)[-WINDOW:]
    unchanged = Estimate(0.0, 0.0, 0.0, 0, 0.0, "one judge", None)
    if len(window) < FEWEST_TO_WATCH:
        reason = f"{len(window)} scores under one judge are too few to watch; it takes {FEWEST_TO_WATCH}"
        nothing = Estimate(None, None, None, len(window), None, WATCH_METHOD, reason)
        return Drift(
            None,
            False,
            unchanged,
            nothing,
            nothing,
            None,
            0,
            0,
            (0, 0),
            (sentence("no_conclusion", reason=reason),),
        )
    farthest, turn = _cusum(window)
    strata = _strata(window[:turn], window[turn:])
    whole = change_within(strata, CONFIDENCE_OF_EACH, WATCH_METHOD).estimate
    is_shown = chance_of_bridge(farthest) <= FALSE_ALARMS / looks and whole.half_width is not None
    if not is_shown:
        quiet = sentence("no_change_under_one", n=len(window), looks=looks)
        return Drift("none", True, unchanged, whole, whole, None, 0, 0, sizes_of(strata), (quiet,))
    began_at = window[turn].at
    change = sentence("agents_changed_at", began_at=began_at, points=_points(whole))
    meaning = (change, sentence("same_judge"), sentence("rough"))
    return Drift("agents", True, unchanged, whole, whole, began_at, 0, 0, sizes_of(strata), meaning)


def _cusum(window: Sequence[OrdinaryScore]) -> tuple[float, int]:
    """The maximum of the scaled sum of residuals, and the number of scores before the turning point."""
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
    # The place of the largest sum is biased towards the middle for late changes; weighted by its own error it
    # is not.
    least = FEWEST_FOR_AN_INTERVAL
    turn = max(
        range(least, n - least + 1), key=lambda before: sums[before - 1] ** 2 / (before * (n - before))
    )
    return max(sums) / math.sqrt(variance * n), turn


def chance_of_bridge(farthest: float) -> float:
    """
    The probability that a Brownian bridge reaches at least `farthest` from 0, in either direction.

    Source:
        A. Kolmogorov (1933); `scipy.special.kolmogorov`.
    """
    from scipy import special

    return float(special.kolmogorov(farthest))


@dataclass(frozen=True, slots=True)
class AnchorChanges:
    """
    The differences of anchors' totals between two judges, new minus old.

    Args:
        by_chain: The change of each anchor that both judged.
        missing: Anchors that only one of the two judged.
        least_variance: The variance that rounding hides in a change of two totals.
    """

    by_chain: Mapping[str | None, Sequence[float]]
    missing: int
    least_variance: float

    @property
    def everywhere(self) -> list[float]:
        """The changes of all chains."""
        return [change for changes in self.by_chain.values() for change in changes]


def anchor_changes(anchors: Iterable[AnchorJudgement], old: str, new: str) -> AnchorChanges:
    """For each anchor, the mean of the new judge's totals minus the mean of the old judge's."""
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
    alike, _ = pair_up(before, after, lambda score: score.stratum)
    return [Stratum([s.total for s in first], [s.total for s in second]) for first, second in alike]


# --- the result in words -------------------------------------------------------------------------------


def _meaning(
    cause: Cause | None, is_clear: bool, judge: Estimate, whole: Estimate, agents: Estimate, missing: int
) -> Iterator[str]:
    """What may be concluded about a new judge and what not."""
    yield _conclusion(cause, judge, whole, agents)
    is_judge_alone = whole == NOT_LOOKED_AT.estimate
    tested = [judge] if is_judge_alone else [judge, whole]
    for reason in dict.fromkeys(e.reason for e in tested if e.reason is not None):
        yield sentence("not_enough_data", reason=reason)
    if is_judge_alone:
        yield sentence("only_anchors")
    elif cause == "judge" and agents.value is None:
        yield sentence("agents_undecided")
    elif not is_clear and cause is not None:
        yield sentence("likelier_part")
    if cause == "none" and whole.value is not None:
        yield sentence("may_have_moved", interval=_interval(whole))
    if missing:
        yield sentence("anchor_lacks_judge" if missing == 1 else "anchors_lack_judge", missing=missing)
    yield sentence("agents_part")


def _conclusion(cause: Cause | None, judge: Estimate, whole: Estimate, agents: Estimate) -> str:
    """The cause in words; without a cause, the half that is known."""
    found_judge, found_whole = _significance(judge), _significance(whole)
    if cause in ("judge", "agents", "both"):
        return sentence(f"{cause}_changed", judge=_points(judge), agents=_points(agents))
    if cause == "none" and found_whole is not None:
        return sentence("no_change")
    if found_judge is not None:
        return sentence("judge_steady", judge=_points(judge))
    if found_whole is None:
        return sentence("cause_undecided")
    return sentence("scores_changed" if found_whole > 1 else "sessions_steady", whole=_points(whole))


def _points(estimate: Estimate) -> str:
    return "unknown" if estimate.value is None else f"{estimate.value:+.1f} points ({_interval(estimate)})"


def _interval(estimate: Estimate) -> str:
    return "no interval" if estimate.low is None else f"{estimate.low:+.1f} to {estimate.high:+.1f}"

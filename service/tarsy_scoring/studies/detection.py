"""
Detects whether a chain's scores changed, and whether the judge or the agents changed.

Two groups are compared within their alert types: scores by the former and by the current judge or, under one
judge, older and newest scores. What anchors say about the judges is subtracted; the rest is the agents' part.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import Field

from tarsy_scoring.studies import estimates
from tarsy_scoring.studies.estimates import Change, Estimate

Cause = Literal["judge", "agents", "both", "none"]
Look = Literal["sessions", "watch"]

RECENT = 30  # newest scores that decide who judges now
WINDOW = 300  # scores in a group: with more, old scores dominate and a change is found later
NEWEST = 100  # scores that are compared with those before, under one judge
FEWEST_SESSIONS = 60  # under a new judge; a chain with less traffic waits
DAYS_TO_WAIT = 14  # for anchors and sessions under a new judge
OWN_ANCHORS = 20  # with fewer, a chain also uses other chains' anchors
# A new judge is looked at once: both intervals hold together in 96 % of cases. Under one judge each day has a
# look, so 5 in 100 quiet chains raise an alarm in a year.
CONFIDENCE = {"sessions": 0.98, "watch": 1 - 0.05 / 365}


@dataclass(frozen=True, slots=True)
class ChainScore:
    """
    A session's first total.

    Args:
        at: When the session ended.
        stratum: Alert type.
    """

    scored_at: datetime
    at: datetime
    judge_fingerprint: str
    criteria_hash: str | None
    stratum: str | None
    total: float


@dataclass(frozen=True, slots=True)
class AnchorJudgement:
    """How a judge judged an anchor; several judgements by one judge are averaged."""

    session_id: str
    judge_fingerprint: str
    total: float
    chain_id: str | None = None


@dataclass(frozen=True, slots=True)
class Tenure:
    """
    Scores by a chain's current judge, and by the judge before.

    Args:
        old: The former judge; None: too few scores are older, so there is one judge.
    """

    fingerprint: str
    scores: Sequence[ChainScore]
    old: str | None = None
    before: Sequence[ChainScore] = ()

    @property
    def since(self) -> datetime:
        """When the current judge gave a score first."""
        return self.scores[0].scored_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """
    Whether scores changed, and why. Changes are in points, later minus earlier.

    Args:
        judge: The judge's part: how the same sessions' totals changed. Exactly 0 under one judge.
        whole: How ordinary sessions changed within strata.
        agents: `whole` minus `judge`.
        began_at: When the later group's first session ended.
        anchors_missing: Anchors that only one of both judges judged.
        compared_before, compared_after: Ordinary sessions that `whole` rests on.
    """

    cause: Annotated[Cause | None, Field(description="`none`: no change. Null: undecided, see `meaning`.")]
    is_clear: Annotated[bool, Field(description="False: neither part is significant by itself.")]
    judge: Estimate
    whole: Estimate
    agents: Estimate
    began_at: datetime | None
    anchors: Annotated[int, Field(description="Anchors that both judges judged.")]
    anchors_missing: int
    compared_before: int
    compared_after: int
    meaning: list[str]

    @property
    def is_change(self) -> bool:
        """Whether a change is shown and its cause is named."""
        return self.cause in ("judge", "agents", "both")


def current_tenure(scores: Sequence[ChainScore]) -> Tenure | None:
    """
    Determine who judges now, and who judged before; None: too few scores to tell.

    Judges that alternate or substitute for each other have no predecessor.

    Args:
        scores: In the order in which they were scored.
    """
    if len(scores) < RECENT:
        return None
    now = _most_frequent(scores[-RECENT:])
    mine = [s for s in scores if s.judge_fingerprint == now]
    earlier = [s for s in scores if s.scored_at < mine[0].scored_at]
    if len(earlier) < RECENT:
        return Tenure(now, mine)
    old = _most_frequent(earlier[-RECENT:])
    return Tenure(now, mine, old, [s for s in earlier if s.judge_fingerprint == old])


def _most_frequent(scores: Sequence[ChainScore]) -> str:
    return Counter(s.judge_fingerprint for s in scores).most_common(1)[0][0]


def anchor_changes(anchors: Collection[AnchorJudgement], old: str, new: str) -> tuple[list[float], int]:
    """
    How each anchor with both judges changed: mean new total minus mean old total.

    Returns:
        The changes, and how many anchors only one judge judged.
    """
    totals: defaultdict[str, dict[str, list[float]]] = defaultdict(lambda: {old: [], new: []})
    for judgement in anchors:
        if judgement.judge_fingerprint in (old, new):
            totals[judgement.session_id][judgement.judge_fingerprint].append(judgement.total)
    both = [t for t in totals.values() if t[old] and t[new]]
    changes = [statistics.fmean(t[new]) - statistics.fmean(t[old]) for t in both]
    return changes, len(totals) - len(both)


def due_look(tenure: Tenure, outstanding: int, made: Collection[Look], now: datetime) -> Look | None:
    """
    The look that is due; None: none is.

    Args:
        outstanding: Anchors that the current judge is still to judge.
        made: Looks already made at this new judge.
    """
    if tenure.old is not None and "sessions" not in made:
        is_late = now - tenure.since >= timedelta(days=DAYS_TO_WAIT)
        is_ready = not outstanding and len(tenure.scores) >= FEWEST_SESSIONS
        return "sessions" if is_late or is_ready else None
    return "watch" if len(tenure.scores) >= NEWEST + FEWEST_SESSIONS else None


def detect(tenure: Tenure, anchors: Collection[AnchorJudgement], look: Look) -> Drift:
    """
    Compare the two groups and name the cause.

    A change is shown if anchors or ordinary sessions changed significantly. A part is named if the interval
    excludes 0. If neither interval does, the more significant part is named and `is_clear` is False.
    """
    confidence = CONFIDENCE[look]
    if look == "sessions":
        assert tenure.old is not None
        before, after = tenure.before[-WINDOW:], tenure.scores[-WINDOW:]
        changes, missing = anchor_changes(anchors, tenure.old, tenure.fingerprint)
        judge = estimates.paired_change(changes, confidence)
    else:
        before, after = tenure.scores[-NEWEST - WINDOW : -NEWEST], tenure.scores[-NEWEST:]
        judge, missing = estimates.NO_CHANGE, 0
    strata = estimates.strata_of(*([(s.stratum, s.total) for s in side] for side in (before, after)))
    whole = estimates.change_within(strata, confidence)
    agents = estimates.less(whole, judge, confidence)
    cause, is_clear = _cause(judge.estimate, whole.estimate, agents.estimate)
    compared_before, compared_after = estimates.sizes_of(strata)
    return Drift(
        cause=cause,
        is_clear=is_clear,
        judge=judge.estimate,
        whole=whole.estimate,
        agents=agents.estimate,
        began_at=min((s.at for s in after), default=None),
        anchors=judge.estimate.n,
        anchors_missing=missing,
        compared_before=compared_before,
        compared_after=compared_after,
        meaning=list(_meaning(cause, is_clear, judge, whole, agents)),
    )


def _cause(judge: Estimate, whole: Estimate, agents: Estimate) -> tuple[Cause | None, bool]:
    """The cause and whether it is clear."""
    of_judge, of_whole, of_agents = judge.significance, whole.significance, agents.significance
    if of_judge is None or of_whole is None or of_agents is None:
        # Anchors alone can show the judge's part; sessions alone cannot tell the cause.
        return ("judge", True) if of_judge is not None and of_judge > 1 else (None, False)
    if max(of_judge, of_whole) <= 1:
        return "none", True
    if of_judge > 1 and of_agents > 1:
        return "both", True
    return ("judge" if of_judge > of_agents else "agents"), max(of_judge, of_agents) > 1


def _meaning(
    cause: Cause | None, is_clear: bool, judge: Change, whole: Change, agents: Change
) -> Iterator[str]:
    """What may be concluded and what not."""
    of_judge, of_agents = estimates.in_points(judge.estimate), estimates.in_points(agents.estimate)
    yield {
        "judge": f"The judge changed: the same sessions get {of_judge} points.",
        "agents": f"The agents changed: their part is {of_agents} points.",
        "both": f"Both changed: the judge's part is {of_judge} points, the agents' {of_agents}.",
        "none": "No change is shown.",
        None: "The cause of a change cannot be decided; ordinary sessions changed by "
        f"{estimates.in_points(whole.estimate)}.",
    }[cause]
    for reason in dict.fromkeys(e.reason for e in (judge.estimate, whole.estimate) if e.reason is not None):
        yield f"Not enough data: {reason}."
    if cause is not None and not is_clear:
        yield "Neither part is significant by itself; this is the likelier of the two."
    if cause in ("agents", "both"):
        yield (
            "The agents' part is everything except the judge: prompts, tools and models, but also incidents "
            "that became harder or easier. Many sessions about one incident say less than their number suggests."
        )


def counted_anchors(
    judgements: Sequence[AnchorJudgement], chain: str, tenure: Tenure
) -> list[AnchorJudgement]:
    """Judgements that count for a chain: those for own anchors, or all where both judges judged few."""
    own = [j for j in judgements if j.chain_id == chain]
    if tenure.old is None:
        return own
    changes, _ = anchor_changes(own, tenure.old, tenure.fingerprint)
    return own if len(changes) >= OWN_ANCHORS else list(judgements)

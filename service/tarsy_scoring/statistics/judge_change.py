"""
When to look for drift, and what of it is news: every look can raise a false alarm, so there are few of them.

    anchors  -> once, as soon as a new judge has judged them: whether the judge changed
    sessions -> once, when there are enough sessions under it: whether the agents did, too
    watch    -> once a day under one judge

Pure.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from tarsy_scoring.statistics.agreement import Estimate
from tarsy_scoring.statistics.drift import AnchorJudgement, Cause, OrdinaryScore
from tarsy_scoring.statistics.pairing import FEWEST_FOR_AN_INTERVAL

Look = Literal["anchors", "sessions", "watch"]

# Scores in a row that show who judges. Where one judge follows another, neither gives more than a few of them in the
# time of the other: judges who take turns, or stand in for each other, follow nobody. A judge reigned who gave so
# many of twice as many in a row.
REIGN = 30
FEW = 3
# Enough to tell a shift of 8 points nearly always. Source: own simulations (`benchmarks.years`).
SESSIONS_TO_LOOK = 300
# For chains that never get there: by time, which says nothing about the scores, so that it is no further look.
DAYS_TO_LOOK = 14
SESSIONS_AFTER_DAYS = 60
# From so many anchors of its own a chain speaks for itself; else those of other chains are in it, too.
OWN_ANCHORS = 20


@dataclass(frozen=True, slots=True)
class ChainScore:
    """A session's first total, as the scores of a chain are read."""

    scored_at: datetime
    ended_at: datetime
    alert_type: str | None
    judge_fingerprint: str
    criteria_hash: str | None
    total: float

    def ordinary(self) -> OrdinaryScore:
        """As statistics take it. The chain is the same for all, so the alert type is the stratum."""
        return OrdinaryScore(self.ended_at, self.judge_fingerprint, self.alert_type, self.total)


@dataclass(frozen=True, slots=True)
class Reign:
    """
    The scores of the judge of a chain since it took over, and those of the judge before it.

    Args:
        since: When the first of them was scored. None: as far back as was looked, it followed nobody.
        old: The judge before; None: it followed nobody.
        before: Scores by that judge, in order of scoring.
        judges: How many gave the scores that were looked at.
    """

    fingerprint: str
    since: datetime | None
    scores: Sequence[ChainScore]
    old: str | None
    before: Sequence[ChainScore]
    judges: int


def current_reign(scores: Sequence[ChainScore]) -> Reign | None:
    """
    Who judges now and since when, seen through stand-ins; None: there are fewer than `REIGN` scores.

    It judges who gave most of the newest `REIGN` scores. It took over behind the last `REIGN` scores in a row of which
    it gave at most `FEW`, from the judge who reigned last before that; from nobody where that one gave more than `FEW`
    of the newest. Who stood in between the two is neither of them, and a judge who comes back from behind stand-ins
    has followed nobody.

    Args:
        scores: In order of scoring.
    """
    if len(scores) < REIGN:
        return None
    last = len(scores) - REIGN
    judges = [s.judge_fingerprint for s in scores]
    newest = Counter(judges[last:])
    now = newest.most_common(1)[0][0]
    counts, reigned = Counter(newest), _reigned_last(judges)
    for start in range(last - 1, -1, -1):
        counts[judges[start + REIGN]] -= 1
        counts[judges[start]] += 1
        old = reigned[start + REIGN]
        if counts[now] <= FEW and old is not None and old != now:
            if newest[old] > FEW:
                break
            mine = [s for s in scores[start:] if s.judge_fingerprint == now]
            theirs = [s for s in scores[: start + REIGN] if s.judge_fingerprint == old]
            return Reign(now, mine[0].scored_at, mine, old, theirs, len(set(judges)))
    return Reign(now, None, [s for s in scores if s.judge_fingerprint == now], None, (), len(set(judges)))


def _reigned_last(judges: Sequence[str]) -> list[str | None]:
    """Who reigned last among the first n scores, for every n."""
    counts, reigned = Counter[str](), list[str | None]([None])
    for n, judge in enumerate(judges):
        counts[judge] += 1
        if n >= 2 * REIGN:
            counts[judges[n - 2 * REIGN]] -= 1
        reigned.append(judge if counts[judge] >= REIGN else reigned[-1])
    return reigned


def judged_by_both(anchors: Sequence[AnchorJudgement], old: str, new: str) -> int:
    """How many anchors have a judgement by each of two judges."""
    by_judge = {f: {a.session_id for a in anchors if a.judge_fingerprint == f} for f in (old, new)}
    return len(by_judge[old] & by_judge[new])


def due_look(
    reign: Reign, anchors: Sequence[AnchorJudgement], outstanding: int, looked: Collection[Look], now: datetime
) -> Look | None:
    """
    The look at a new judge that is to be made now, each at most once; None: none yet, or none any more.

    Args:
        anchors: That speak for the chain.
        outstanding: Anchors that the new judge is still going to judge. Nobody waits for them longer than
            `DAYS_TO_LOOK`.
        looked: Looks that were made at this change.
    """
    if reign.old is None or reign.since is None:
        return None
    is_late = now - reign.since >= timedelta(days=DAYS_TO_LOOK)
    if outstanding and not is_late:
        return None
    enough = SESSIONS_AFTER_DAYS if is_late else SESSIONS_TO_LOOK
    if len(reign.scores) >= enough:
        return None if "sessions" in looked else "sessions"
    can_tell = judged_by_both(anchors, reign.old, reign.fingerprint) >= FEWEST_FOR_AN_INTERVAL
    return "anchors" if can_tell and not looked else None


def size_of(cause: Cause | None, judge: Estimate, whole: Estimate, agents: Estimate) -> Estimate | None:
    """The change that a cause is about; None: there is none to speak of."""
    if cause == "judge":
        return judge
    if cause == "agents":
        return agents
    return whole if cause == "both" else None


def is_news(cause: Cause | None, size: Estimate | None, told: tuple[Cause | None, Estimate | None] | None) -> bool:
    """
    Whether somebody has to be told: a change of another cause than was told, or of a size that was not.

    Args:
        told: What was told of the same change of judge last; None: nothing.
    """
    if size is None or size.value is None:
        return False
    if told is None:
        return True
    old_cause, old_size = told
    if cause != old_cause or old_size is None or old_size.low is None or old_size.high is None:
        return True
    return not old_size.low <= size.value <= old_size.high

"""
Detect drift of a chain: decide when a look is due, and what it says.

    anchors  -> once, as soon as a new judge has judged them: did the judge change?
    sessions -> once, when there are enough sessions under the new judge: did the agents change too?
    watch    -> once a day under one judge: did the agents change?

Every look can raise a false alarm, so each is made as rarely as the question allows.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from tarsy_scoring.statistics.agreement import Estimate
from tarsy_scoring.statistics.drift import (
    WINDOW,
    AnchorJudgement,
    Cause,
    Drift,
    OrdinaryScore,
    anchor_changes,
    explain_new_judge,
)
from tarsy_scoring.statistics.pairing import FEWEST_FOR_AN_INTERVAL

Look = Literal["anchors", "sessions", "watch"]

# A judge has a tenure when it gave this many of twice as many consecutive scores. The current judge is
# determined from the same number of newest scores.
TENURE = 30
# One judge follows another only if neither gives more than this many of `TENURE` scores during the other's
# time. Judges that alternate, or substitute for each other, follow no other judge.
FEW = 3
SESSIONS_TO_LOOK = 300  # detects a shift of 8 points in nearly all cases. Source: our simulations
# In a chain with little traffic, the look is due after `DAYS_TO_LOOK` with `SESSIONS_AFTER_DAYS`. The
# deadline does not depend on the totals, so it adds no further look.
DAYS_TO_LOOK = 14
SESSIONS_AFTER_DAYS = 60
OWN_ANCHORS = 20  # with fewer anchors of its own, a chain also uses those of other chains


# --- who judges a chain --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChainScore(OrdinaryScore):
    """The first total of a session of the chain. All are of one chain, so the alert type is the stratum."""

    scored_at: datetime
    criteria_hash: str | None


@dataclass(frozen=True, slots=True)
class Tenure:
    """
    The scores of a chain's current judge since it took over, and those of the judge before it.

    Args:
        since: Time of its first score. None: it followed no other judge within the scores read.
        old: The judge before; None like `since`.
        before: Scores by `old`, in order of scoring.
        judges: Number of judges of all scores read.
    """

    fingerprint: str
    since: datetime | None
    scores: Sequence[ChainScore]
    old: str | None
    before: Sequence[ChainScore]
    judges: int


def current_tenure(scores: Sequence[ChainScore]) -> Tenure | None:
    """
    Determine who judges now and since when, ignoring judges that substitute for a while.

    The current judge gave most of the newest `TENURE` scores. It took over after the last `TENURE`
    consecutive scores of which it gave at most `FEW`, from the judge that last had a tenure before that. It
    followed no judge if that one gave more than `FEW` of the newest. Judges in between are ignored, and a
    judge that returns after substitutes has followed no judge.

    Args:
        scores: In order of scoring.

    Returns:
        None for fewer than `TENURE` scores.
    """
    if len(scores) < TENURE:
        return None
    judges = [s.judge_fingerprint for s in scores]
    newest = Counter(judges[-TENURE:])
    now = newest.most_common(1)[0][0]
    last_tenured = _last_tenured(judges)
    for start in range(len(scores) - TENURE - 1, -1, -1):
        end = start + TENURE
        old = last_tenured[end]
        if old is not None and old != now and judges[start:end].count(now) <= FEW:
            if newest[old] > FEW:
                break
            mine = [s for s in scores[start:] if s.judge_fingerprint == now]
            theirs = [s for s in scores[:end] if s.judge_fingerprint == old]
            return Tenure(now, mine[0].scored_at, mine, old, theirs, len(set(judges)))
    return Tenure(now, None, [s for s in scores if s.judge_fingerprint == now], None, (), len(set(judges)))


def _last_tenured(judges: Sequence[str]) -> list[str | None]:
    """
    For each n from 0, the judge with the latest tenure within the first n scores; None: no tenure yet.

    Args:
        judges: The judge of each score, in order of scoring.
    """
    found: list[str | None] = [None]
    for n, judge in enumerate(judges, start=1):
        has_tenure = judges[max(0, n - 2 * TENURE) : n].count(judge) >= TENURE
        found.append(judge if has_tenure else found[-1])
    return found


# --- when to look --------------------------------------------------------------------------------------


def judged_by_both(anchors: Sequence[AnchorJudgement], old: str, new: str) -> int:
    """Number of anchors with a judgement by each of two judges."""
    by_judge = {f: {a.session_id for a in anchors if a.judge_fingerprint == f} for f in (old, new)}
    return len(by_judge[old] & by_judge[new])


def due_look(
    tenure: Tenure,
    anchors: Sequence[AnchorJudgement],
    outstanding: int,
    made: Collection[Look],
    now: datetime,
) -> Look | None:
    """
    The look at a new judge that is due now; None: none is. Each look is made at most once per change.

    Args:
        anchors: Judgements of the anchors that count for the chain.
        outstanding: Anchors that the new judge is still to judge. A look waits for them at most
            `DAYS_TO_LOOK`.
        made: Looks made at this change.
    """
    if tenure.old is None or tenure.since is None:
        return None
    is_late = now - tenure.since >= timedelta(days=DAYS_TO_LOOK)
    if outstanding and not is_late:
        return None
    enough = SESSIONS_AFTER_DAYS if is_late else SESSIONS_TO_LOOK
    if len(tenure.scores) >= enough:
        return None if "sessions" in made else "sessions"
    has_anchors = judged_by_both(anchors, tenure.old, tenure.fingerprint) >= FEWEST_FOR_AN_INTERVAL
    return "anchors" if has_anchors and not made else None


# --- looking -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Situation:
    """
    What detection knows about a chain.

    Args:
        judgements: Judgements of the anchors that count for the chain, which include those of other chains if
            its own are too few.
        outstanding: Number of these anchors that the current judge is still to judge.
        unknown: Number of scores without a fingerprint since the current judge's first score.
    """

    chain_id: str
    criteria: str
    tenure: Tenure
    judgements: Sequence[AnchorJudgement]
    outstanding: int
    unknown: int

    @property
    def criteria_hash(self) -> str:
        """Criteria hash of the current judge's newest score; empty: unknown."""
        return self.tenure.scores[-1].criteria_hash or ""


def detect_new_judge(found: Situation, look: Look) -> Drift:
    """
    Estimate the change that came with a new judge, split into the judge's part and the agents' part.

    Args:
        found: `tenure.old` is set.
        look: `anchors` leaves ordinary sessions out, because there are too few yet.
    """
    tenure = found.tenure
    assert tenure.old is not None
    scores = None
    if look == "sessions":
        scores = [*tenure.before[-WINDOW:], *tenure.scores[-WINDOW:]]
    drift = explain_new_judge(scores, found.judgements, tenure.old, tenure.fingerprint, chain=found.chain_id)
    meaning = (*drift.meaning, *_about_other_chains(found, tenure.old, drift))
    return replace(drift, began_at=tenure.since, meaning=meaning)


def _about_other_chains(found: Situation, old: str, drift: Drift) -> tuple[str, ...]:
    """A sentence about the use of other chains' anchors; empty: none were used."""
    by_chain = anchor_changes(found.judgements, old, found.tenure.fingerprint).by_chain
    if not set(by_chain) - {found.chain_id}:
        return ()
    if drift.judge.n < drift.anchors:
        only = f"Only the {drift.judge.n} anchors of this chain count"
        return (f"{only}: other chains differ so much that they add nothing.",)
    reason = f"Fewer than {OWN_ANCHORS} anchors of this chain count, so those of other chains do, too."
    spread = f"The interval includes the difference between chains, estimated from {len(by_chain)} chains."
    if len(by_chain) == 1:
        spread = "They are of one chain, so how much chains differ is unknown and not in the interval."
    return (f"{reason} {spread}",)


# --- what to publish -----------------------------------------------------------------------------------


def size_of(cause: Cause | None, judge: Estimate, whole: Estimate, agents: Estimate) -> Estimate | None:
    """The estimate of the part that a cause names; None: the cause names no part."""
    return {"judge": judge, "agents": agents, "both": whole}.get(cause or "none")


def is_news(
    cause: Cause | None, size: Estimate | None, published: tuple[Cause | None, Estimate | None] | None
) -> bool:
    """
    Whether a finding must be published: its cause is another, or its size is outside the published interval.

    Args:
        published: Cause and size of the last event about the same change of judge; None: there was none.
    """
    if size is None or size.value is None:
        return False
    if published is None:
        return True
    old_cause, old_size = published
    if cause != old_cause or old_size is None or old_size.low is None or old_size.high is None:
        return True
    return not old_size.low <= size.value <= old_size.high

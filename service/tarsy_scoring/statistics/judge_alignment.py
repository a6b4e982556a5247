"""
Totals of several judges on one scale: anchors, sessions that two judges judged, say how much milder one is than the
other. What that takes off a difference of totals is the judges' part of it, and its error comes along. Pure.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tarsy_scoring.statistics.agreement import CONFIDENCE, Estimate
from tarsy_scoring.statistics.bootstrap import FEWEST_FOR_AN_INTERVAL
from tarsy_scoring.statistics.changes import (
    AGENTS_METHOD,
    ANCHORS_METHOD,
    Change,
    Piece,
    chance_of_change,
    change_of,
    change_within,
    paired_change,
    weighted_change,
)
from tarsy_scoring.statistics.drift import AnchorJudgement, anchor_changes
from tarsy_scoring.statistics.pairing import Fingerprint, Pairing, Value


@dataclass(frozen=True, slots=True)
class JudgeOnScale:
    """
    A judge, and how its totals are brought to the scale of another.

    Args:
        scale: The judge whose scale it is; a judge that no anchors connect with others is its own.
        shift: By how much this judge is milder than that one; exactly 0, without error, where it is the same.
    """

    fingerprint: Fingerprint
    scale: Fingerprint
    shift: Change

    @property
    def points(self) -> float:
        """What to take off a total."""
        return self.shift.estimate.value or 0.0


def align_judges(
    totals: Mapping[Fingerprint, int], anchors: Collection[AnchorJudgement]
) -> dict[Fingerprint, JudgeOnScale]:
    """
    Put the judges on as few scales as anchors allow.

    The judge with whom the most totals can be connected directly gives the first scale, and so on with those that
    remain. Two judges are connected by `FEWEST_FOR_AN_INTERVAL` anchors that both judged. Nothing is connected
    over a third judge: anchors are judged by every new judge, and a chain of errors is hard to tell about.

    Args:
        totals: How many there are of each judge.
        anchors: Of whatever judges; those of others are left alone.
    """
    shifts = {(center, other): _shift(anchors, center, other) for center in totals for other in totals}
    # Neither the order of rows nor that of judges may decide.
    remaining = sorted(totals, key=lambda judge: (-totals[judge], judge or ""))
    aligned = dict[Fingerprint, JudgeOnScale]()
    while remaining:
        connected = {c: [j for j in remaining if shifts[c, j] is not None] for c in remaining}
        center = max(remaining, key=lambda c: sum(totals[j] for j in connected[c]))
        for judge in connected[center]:
            if (shift := shifts[center, judge]) is not None:
                aligned[judge] = JudgeOnScale(judge, center, shift)
        remaining = [judge for judge in remaining if judge not in aligned]
    return aligned


def _shift(anchors: Collection[AnchorJudgement], center: Fingerprint, other: Fingerprint) -> Change | None:
    """None where too few anchors connect the two."""
    if center == other:
        return Change(Estimate(0.0, 0.0, 0.0, 0, 0.0, "one judge"))
    if center is None or other is None:
        return None
    found = anchor_changes(anchors, center, other)
    enough = len(found.everywhere) >= FEWEST_FOR_AN_INTERVAL
    return paired_change(found.everywhere, CONFIDENCE, found.least_variance) if enough else None


@dataclass(frozen=True, slots=True)
class Gap:
    """
    Two judges of one chain whose totals no anchors connect.

    Args:
        anchors: That both of them judged.
        missing: That one of them judged.
    """

    anchors: int
    missing: int


def find_gap(
    totals: Iterable[tuple[str | None, Fingerprint]],
    judges: Mapping[Fingerprint, JudgeOnScale],
    anchors: Collection[AnchorJudgement],
) -> Gap | None:
    """
    Of the chain that loses most by it, between the scales of most totals; None where every chain has one scale.

    Args:
        totals: The chain and the judge of each.
    """
    by_chain = defaultdict[str | None, Counter[Fingerprint]](Counter)
    for chain, judge in totals:
        by_chain[chain][judges[judge].scale] += 1
    apart = [scales for scales in by_chain.values() if len(scales) > 1]
    if not apart:
        return None
    worst = max(apart, key=lambda scales: (scales.total() - max(scales.values()), len(scales)))
    old, new = sorted(worst, key=lambda scale: (-worst[scale], scale or ""))[:2]
    if not old or not new:
        return Gap(0, 0)
    found = anchor_changes(anchors, old, new)
    return Gap(len(found.everywhere), found.missing)


# --- what of a difference is whose ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parts:
    """
    What a difference of totals is made of: `whole` is `judges` plus `agents`. Points, second minus first, with 95 %
    intervals.

    Args:
        whole: Of totals as stored.
        judges: What the same sessions would differ by, where one group met milder judges than the other.
        agents: What remains.
        chance: How often as much as `agents` comes of errors alone.
    """

    whole: Estimate
    judges: Estimate
    agents: Estimate
    chance: float


def take_apart(pairing: Pairing, judges: Mapping[Fingerprint, JudgeOnScale]) -> Parts:
    """
    Tell the judges' part of a difference of totals from the rest.

    The rest is the difference on the common scale, and as sure as the sessions and the anchors together are. Where
    each group met one judge it is what `explain_new_judge` calls the agents' part.

    Args:
        pairing: Of totals as stored; it has enough, and those of a stratum are on one scale.
    """
    whole = change_within(pairing.strata(), CONFIDENCE).estimate
    rest = change_within(pairing.strata(lambda v: v.number - judges[v.judge].points), CONFIDENCE)
    taken = _judges_part(pairing, judges)
    agents = change_of(rest.estimate.value or 0.0, [*rest.pieces, *taken.pieces], whole.n, AGENTS_METHOD, CONFIDENCE)
    return Parts(whole, taken.estimate, agents.estimate, chance_of_change(agents))


def _judges_part(pairing: Pairing, judges: Mapping[Fingerprint, JudgeOnScale]) -> Change:
    """
    The weighted sum of the judges' shifts.

    A judge weighs how much more of the second group it judged: 1 where that was all of the second and nothing of the
    first, 0 where it was the same share of both. Errors of several judges on one scale are added up as if they always
    went together, since what the anchors got from the judge of the scale is in all of them: that is never too narrow,
    and exact for two judges.
    """
    by_scale = defaultdict[Fingerprint, list[tuple[float, JudgeOnScale]]](list)
    for name, judge in judges.items():
        weight = weighted_change(pairing.strata(partial(_is_by, name)))
        if weight and judge.shift.pieces:
            by_scale[judge.scale].append((weight, judge))
    weighed = [part for parts in by_scale.values() for part in parts]
    if not weighed:
        return Change(Estimate(0.0, 0.0, 0.0, 0, 0.0, ANCHORS_METHOD))
    value = math.fsum(weight * judge.points for weight, judge in weighed)
    fewest = min(judge.shift.estimate.n for _, judge in weighed)
    return change_of(value, list(map(_piece, by_scale.values())), fewest, ANCHORS_METHOD, CONFIDENCE)


def _is_by(judge: Fingerprint, value: Value) -> float:
    return float(value.judge == judge)


def _piece(parts: Sequence[tuple[float, JudgeOnScale]]) -> Piece:
    """Variance and degrees of freedom of what the judges of one scale contribute."""
    error = math.fsum(abs(weight) * (judge.shift.estimate.standard_error or 0.0) for weight, judge in parts)
    return error**2, min(freedom for _, judge in parts for _, freedom in judge.shift.pieces)

"""
Puts the totals of several judges on one scale, and splits a difference of totals into the judges' and the
agents' part.

Anchors, sessions that two judges have both judged, show how much milder one is than the other. The standard
error of that shift is propagated into both parts.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tarsy_scoring.statistics.agreement import CONFIDENCE, Estimate
from tarsy_scoring.statistics.change import (
    AGENTS_METHOD,
    ANCHORS_METHOD,
    Change,
    Component,
    chance_of_change,
    change_of,
    change_within,
    paired_change,
    weighted_change,
)
from tarsy_scoring.statistics.drift import AnchorJudgement, anchor_changes
from tarsy_scoring.statistics.pairing import FEWEST_FOR_AN_INTERVAL, Fingerprint, Pairing, Value


@dataclass(frozen=True, slots=True)
class JudgeOnScale:
    """
    A judge and the shift of its totals against the scale of another.

    Args:
        scale: The judge that defines the scale; a judge that no anchors connect with another is its own.
        shift: How much milder this judge is than that one, in points; exactly 0 without error for the same
            judge.
    """

    scale: Fingerprint
    shift: Change

    @property
    def points(self) -> float:
        """Points to subtract from a total to bring it to the scale."""
        return self.shift.estimate.value or 0.0


def align_judges(
    totals: Mapping[Fingerprint, int], anchors: Collection[AnchorJudgement]
) -> dict[Fingerprint, JudgeOnScale]:
    """
    Put the judges on as few scales as anchors allow.

    Two judges are connected by at least `FEWEST_FOR_AN_INTERVAL` anchors that both judged. The judge whose
    direct connections cover the most totals defines the first scale; the rest is repeated with the remaining
    judges. Judges are never connected through a third one: every new judge judges the anchors, and chained
    errors are hard to explain to a reader.

    Args:
        totals: Number of totals of each judge.
        anchors: Judgements of any judges; those of judges without totals are ignored.
    """
    shifts = {(center, other): _shift(anchors, center, other) for center in totals for other in totals}
    # Sorted, so that ties do not depend on the order of rows.
    remaining = sorted(totals, key=lambda judge: (-totals[judge], judge or ""))
    aligned = dict[Fingerprint, JudgeOnScale]()
    while remaining:
        connected = {c: [j for j in remaining if shifts[c, j] is not None] for c in remaining}
        center = max(remaining, key=lambda c: sum(totals[j] for j in connected[c]))
        for judge in connected[center]:
            if (shift := shifts[center, judge]) is not None:
                aligned[judge] = JudgeOnScale(center, shift)
        remaining = [judge for judge in remaining if judge not in aligned]
    return aligned


def _shift(anchors: Collection[AnchorJudgement], center: Fingerprint, other: Fingerprint) -> Change | None:
    """How much milder `other` is than `center`; None when too few anchors connect them."""
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
    Two judges of one chain whose totals are not connected by enough anchors.

    Args:
        anchors: Anchors that both judged.
        missing: Anchors that only one of them judged.
    """

    anchors: int
    missing: int


def find_gap(
    totals: Iterable[tuple[str | None, Fingerprint]],
    judges: Mapping[Fingerprint, JudgeOnScale],
    anchors: Collection[AnchorJudgement],
) -> Gap | None:
    """
    Find the gap that costs most: in the chain with the most totals off its main scale, between its two main
    scales.

    Args:
        totals: Chain and judge of each total.

    Returns:
        None when every chain has one scale.
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


# --- parts of a difference -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parts:
    """
    The parts of a difference of totals: `whole` = `judges` + `agents`, in points, with 95 % intervals.

    Args:
        whole: The difference of the totals as stored, second minus first.
        judges: The part that comes from one group having met milder judges than the other.
        agents: The remainder.
        chance: Two-sided p-value of `agents`.
    """

    whole: Estimate
    judges: Estimate
    agents: Estimate
    chance: float


def take_apart(pairing: Pairing, judges: Mapping[Fingerprint, JudgeOnScale]) -> Parts:
    """
    Split a difference of totals into the judges' part and the agents' part.

    The agents' part is the difference on the common scale; its variance adds those of the sessions and of the
    anchors. When each group met a single judge, it equals the agents' part of `explain_new_judge`.

    Args:
        pairing: A fine pairing of totals as stored, in which all totals of a stratum are on one scale.
    """
    whole = change_within(pairing.strata(), CONFIDENCE).estimate
    rest = change_within(pairing.strata(lambda v: v.number - judges[v.judge].points), CONFIDENCE)
    shifts = _judges_part(pairing, judges)
    components = [*rest.components, *shifts.components]
    agents = change_of(rest.estimate.value or 0.0, components, whole.n, AGENTS_METHOD, CONFIDENCE)
    return Parts(whole, shifts.estimate, agents.estimate, chance_of_change(agents))


def _judges_part(pairing: Pairing, judges: Mapping[Fingerprint, JudgeOnScale]) -> Change:
    """
    The weighted sum of the judges' shifts.

    A judge's weight is its share of the second group minus its share of the first, within strata: 1 for a
    judge that gave all totals of the second group and none of the first. The errors of judges on one scale
    are added linearly, as if they were perfectly correlated, because all of them contain the error of the
    judge that defines the scale. That never understates the error and is exact for two judges.
    """
    by_scale = defaultdict[Fingerprint, list[tuple[float, JudgeOnScale]]](list)
    for name, judge in judges.items():
        weight = weighted_change(pairing.strata(partial(_is_by, name)))
        if weight and judge.shift.components:
            by_scale[judge.scale].append((weight, judge))
    weighted = [part for parts in by_scale.values() for part in parts]
    if not weighted:
        return Change(Estimate(0.0, 0.0, 0.0, 0, 0.0, ANCHORS_METHOD))
    value = math.fsum(weight * judge.points for weight, judge in weighted)
    fewest = min(judge.shift.estimate.n for _, judge in weighted)
    return change_of(value, list(map(_component, by_scale.values())), fewest, ANCHORS_METHOD, CONFIDENCE)


def _is_by(judge: Fingerprint, value: Value) -> float:
    return float(value.judge == judge)


def _component(parts: Sequence[tuple[float, JudgeOnScale]]) -> Component:
    """Variance and degrees of freedom that the judges of one scale contribute."""
    error = math.fsum(abs(weight) * (judge.shift.estimate.standard_error or 0.0) for weight, judge in parts)
    return error**2, min(freedom for _, judge in parts for _, freedom in judge.shift.components)

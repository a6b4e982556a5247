"""
Which shares of the scores of a chain differ between two weeks: counts, and whether chance alone explains
them.

A difference is no cause.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tarsy_scoring.statistics.proportion import chance_of_rise

FALSE_ALARMS = 0.05  # share of unchanged chains of which any difference may be called clear

Kind = Literal["missing_tool", "failure_tag", "agent_tool", "alert_type", "label", "flag"]
Numbers = tuple[int, int]
"""Of the week before and of the later week."""

_SAID: Mapping[Kind, str] = {
    "missing_tool": "judges missed the tool",
    "failure_tag": "judges named the failure",
    "agent_tool": "agents had the tool",
    "alert_type": "the alert type was",
    "label": "sessions had the label",
    "flag": "scores had the flag",
}


@dataclass(frozen=True, slots=True)
class Counted:
    """
    The scores that have something of one kind.

    Args:
        scores: Numbers of scores that were looked at.
        having: By name, the numbers of them that have it.
    """

    kind: Kind
    scores: Numbers
    having: Mapping[str, Numbers]


@dataclass(frozen=True, slots=True)
class Difference:
    """
    A share of scores that differs between the weeks.

    Args:
        names: One name, or all tools that the agents of as many scores had.
        having: Numbers of scores that have it.
        scores: Numbers of scores that were looked at, both above 0.
        chance: Probability that the share changed as much by chance alone.
        is_clear: Whether that is less likely than `FALSE_ALARMS`, all compared shares of the chain
            considered.
    """

    kind: Kind
    names: Sequence[str]
    having: Numbers
    scores: Numbers
    chance: float
    is_clear: bool

    @property
    def shares(self) -> tuple[float, float]:
        """Shares of the scores that have it, that of the week before first."""
        return self.having[0] / self.scores[0], self.having[1] / self.scores[1]

    @property
    def rise(self) -> float:
        """The later share less that of the week before."""
        before, now = self.shares
        return now - before

    @property
    def said(self) -> str:
        """What these scores have in common, before the name."""
        return _SAID[self.kind]

    @property
    def direction(self) -> str:
        """How often that was so in the later week."""
        return "more often" if self.rise > 0 else "less often"

    @property
    def counts_in_words(self) -> str:
        """The numbers of scores, those of the later week first."""
        (before, now), (of_before, of_now) = self.having, self.scores
        return f"in {now:,} of {of_now:,} scores, before in {before:,} of {of_before:,}"


def tally(rows: Iterable[tuple[bool, Collection[str], int]]) -> dict[str, Numbers]:
    """
    The numbers of scores by name, from rows of whether they are of the later week, names, and number of
    scores.
    """
    found: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for is_later, names, scores in rows:
        for name in names:
            found[name][is_later] += scores
    return {name: (before, now) for name, (before, now) in found.items()}


def compare(counted: Iterable[Counted]) -> list[Difference]:
    """
    The shares that rose, and those of the tools of agents that fell, the least likely by chance first.

    A fall of the others says nothing more: where one value of a label is more frequent, another one is less.
    """
    candidates = [(one, names, having) for one in counted for having, names in _by_numbers(one)]
    found = []
    for one, names, having in candidates:
        if (chance := _chance(one, having)) < 1:
            is_clear = chance < FALSE_ALARMS / len(candidates)  # Bonferroni
            found.append(Difference(one.kind, names, having, one.scores, chance, is_clear))
    return sorted(found, key=lambda difference: (difference.chance, difference.kind, difference.names))


def _by_numbers(counted: Counted) -> Iterable[tuple[Numbers, list[str]]]:
    """
    Names with their numbers; tools of agents with the same numbers together, as those of one server have.
    """
    if not all(counted.scores):
        return
    together: defaultdict[Numbers, list[str]] = defaultdict(list)
    for name in sorted(counted.having):
        # A score may end between two statements; a share is at most 1.
        before, now = map(min, counted.having[name], counted.scores)
        if counted.kind == "agent_tool":
            together[before, now].append(name)
        else:
            yield (before, now), [name]
    yield from together.items()


def _chance(counted: Counted, having: Numbers) -> float:
    (before, now), (of_before, of_now) = having, counted.scores
    rise = chance_of_rise(before, of_before, now, of_now)
    if counted.kind != "agent_tool":
        return rise
    return min(rise, chance_of_rise(of_before - before, of_before, of_now - now, of_now))

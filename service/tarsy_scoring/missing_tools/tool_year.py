"""
Split a year of sessions into those without a tool and those with it.

Sessions are counted by chain, judge, set of tools and day, so the time for a tool does not grow with their
number.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import accumulate
from typing import NamedTuple

from tarsy_scoring.missing_tools.tool_effect import ChainDemand, Demand, measure_demand


class Group(NamedTuple):
    """
    Chain, judge and set of tools that sessions have in common.

    Args:
        tools: Hash of the set of tools of the agents; None: unknown.
    """

    chain: str | None
    judge: str | None
    tools: str | None


class Asked(NamedTuple):
    """
    Number of sessions of a chain that requested a tool, before its start in the chain and since then.

    Args:
        tools: As in `Group`.
    """

    chain: str | None
    tools: str | None
    before: int
    since: int


class _Days(NamedTuple):
    """The days of a group in order, and the number of its sessions before each of them, and in all."""

    group: Group
    days: Sequence[int]
    before: Sequence[int]


@dataclass(frozen=True, slots=True)
class Sides:
    """
    Sessions without a tool and with it, of each chain that has both.

    Args:
        has: Hashes of the sets of tools that contain the tool.
        is_built: Whether the day on which it was built was entered.
        starts: By chain, the day from which on sessions are compared with earlier ones.
        numbers: By chain, the sessions without the tool and those with it.
        has_other_judge: No judge has judged both sides.
    """

    has: Collection[str]
    is_built: bool
    starts: Mapping[str | None, date]
    numbers: Mapping[str | None, tuple[int, int]]
    has_other_judge: bool

    def demand(self, asked: Iterable[Asked]) -> tuple[Demand | None, bool]:
        """
        Measure the demand for the tool in sessions without it and with it.

        Without a judge that judged both sides the verdict is `undecided`, because judges differ in what they
        request.

        Args:
            asked: Sessions that requested the tool, each once.

        Returns:
            The demand (None: nothing can be compared), and whether no judge has judged both sides.
        """
        if not self.starts:
            return None, False
        requests = {chain: [0, 0] for chain in self.starts}
        for chain, tools, before, since in asked:
            if self.is_built or tools is not None:
                requests[chain][0] += before
            if tools in self.has:
                requests[chain][1] += since
        demand = measure_demand(
            ChainDemand(without, requests[chain][0], with_it, requests[chain][1])
            for chain, (without, with_it) in self.numbers.items()
        )
        if self.has_other_judge:
            demand = replace(demand, verdict="undecided", sessions_needed=None)
        return demand, self.has_other_judge


class Year:
    """
    Sessions by chain, with the day on which each was scored.

    Args:
        groups: Groups with days (`date.toordinal`) and numbers of sessions; those of one group and day add
            up.
    """

    def __init__(self, groups: Iterable[tuple[Group, Iterable[tuple[int, int]]]]) -> None:
        by_group: defaultdict[Group, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        for group, counts in groups:
            numbers = by_group[group]
            for day, number in counts:
                numbers[day] += number
        self._by_chain: dict[str | None, list[_Days]] = {}
        for group, numbers in by_group.items():
            days = sorted(filter(numbers.__getitem__, numbers))
            if days and group.judge is not None:  # without a judge there are no requests
                before = list(accumulate(map(numbers.__getitem__, days), initial=0))
                self._by_chain.setdefault(group.chain, []).append(_Days(group, days, before))

    def sides(self, has: Collection[str], *, built: date | None = None) -> Sides:
        """
        Split the sessions into those without a tool and those with it.

        If the day on which the tool was built or improved is given, sessions before it are compared with
        later ones whose agents had the tool. Otherwise a chain counts if the tool appeared in it: known to be
        missing at first, and present from some day on.

        Args:
            has: Hashes of the sets of tools that contain it.
            built: The day since which the tool exists or is better; None: not entered.
        """
        numbers: dict[str | None, tuple[int, int]] = {}
        starts: dict[str | None, date] = {}
        has_other_judge = True
        for chain, groups in self._by_chain.items():
            first = min((days[0] for group, days, _ in groups if group.tools in has), default=None)
            if first is None:
                continue
            start = first if built is None else built.toordinal()
            without, with_it, before, since = _sides(groups, start, has, is_built=built is not None)
            if without and with_it:
                numbers[chain], starts[chain] = (without, with_it), date.fromordinal(start)
                has_other_judge &= before.isdisjoint(since)
        return Sides(has, built is not None, starts, numbers, has_other_judge)


def _sides(
    groups: Iterable[_Days], start: int, has: Collection[str], *, is_built: bool
) -> tuple[int, int, set[str | None], set[str | None]]:
    """Number of sessions without and with the tool, and the judges of each side."""
    without = with_it = 0
    judges_before: set[str | None] = set()
    judges_since: set[str | None] = set()
    for group, days, before in groups:
        place = bisect_left(days, start)
        if place and (is_built or group.tools is not None):
            without += before[place]
            judges_before.add(group.judge)
        if place < len(days) and group.tools in has:
            with_it += before[-1] - before[place]
            judges_since.add(group.judge)
    return without, with_it, judges_before, judges_since

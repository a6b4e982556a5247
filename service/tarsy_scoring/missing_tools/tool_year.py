"""
Split a year of sessions into those without a tool and those with it.

Sessions are numbers, grouped by chain, judge and set of tools, so that a year of many chains is split quickly
for every tool.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import date
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


class Year:
    """
    Sessions by chain, with the day on which each was scored.

    Args:
        sessions: Groups with their sessions (numbered from 0 over all groups) and the ordinal of the day of
            each.
        first_day: Sessions scored earlier count for the selection only, not for demand.
    """

    def __init__(self, sessions: Iterable[tuple[Group, Sequence[int], Sequence[int]]], first_day: date) -> None:
        self._first_day = first_day.toordinal()
        self._by_chain: dict[str | None, list[tuple[Group, list[int]]]] = {}  # with the measured days, sorted
        found = list(sessions)
        count = sum(len(numbers) for _, numbers, _ in found)
        self._days = [0] * count
        self._groups: list[Group] = [Group(None, None, None)] * count
        for group, numbers, days in found:
            for n, day in zip(numbers, days, strict=True):
                self._days[n] = day
                self._groups[n] = group
            ordered = sorted(days)
            measured = ordered[bisect_left(ordered, self._first_day) :]
            if measured and group.judge is not None:  # without a judge there are no requests
                self._by_chain.setdefault(group.chain, []).append((group, measured))

    def __len__(self) -> int:
        """Number of sessions."""
        return len(self._days)

    def group_of(self, session: int) -> Group:
        """The group of a session."""
        return self._groups[session]

    def demand(
        self, has: Collection[str], asked: Iterable[int], *, built: int | None = None
    ) -> tuple[Demand | None, bool]:
        """
        Measure the demand for a tool in sessions without it and with it.

        Without a judge that judged both sides the verdict is `undecided`, because judges differ in what they
        request.

        If the day on which the tool was built or improved is given, sessions before it are compared with
        later ones whose agents had the tool. Otherwise a chain counts if the tool appeared in it: known to be
        missing at first, and present from some day on.

        Args:
            has: Hashes of the sets of tools that contain it.
            asked: Sessions that requested it, each once.
            built: Ordinal of the day since which the tool exists or is better; None: not entered.

        Returns:
            The demand (None: nothing can be compared), and whether no judge has judged both sides.
        """
        sides: dict[str | None, list[int]] = {}
        starts: dict[str | None, int] = {}
        has_other_judge = True
        for chain, groups in self._by_chain.items():
            first = min((days[0] for group, days in groups if group.tools in has), default=None)
            if first is None:
                continue
            start = first if built is None else built
            without, with_it, before, since = _sides(groups, start, has, is_built=built is not None)
            if without and with_it:
                sides[chain], starts[chain] = [without, 0, with_it, 0], start
                has_other_judge &= before.isdisjoint(since)
        for n in asked if sides else ():
            chain, judge, tools = self._groups[n]
            day = self._days[n]
            if chain not in starts or judge is None or day < self._first_day:
                continue
            if day < starts[chain]:
                sides[chain][1] += built is not None or tools is not None
            elif tools in has:
                sides[chain][3] += 1
        chain_demands = [ChainDemand(*counts) for counts in sides.values()]
        if not chain_demands:
            return None, False
        demand = measure_demand(chain_demands)
        if has_other_judge:
            demand = replace(demand, verdict="undecided", sessions_needed=None)
        return demand, has_other_judge


def _sides(
    groups: Iterable[tuple[Group, list[int]]], start: int, has: Collection[str], *, is_built: bool
) -> tuple[int, int, set[str | None], set[str | None]]:
    """Number of sessions without and with the tool, and the judges of each side."""
    without = with_it = 0
    before: set[str | None] = set()
    since: set[str | None] = set()
    for group, days in groups:
        earlier = bisect_left(days, start)
        if earlier and (is_built or group.tools is not None):
            without += earlier
            before.add(group.judge)
        if earlier < len(days) and group.tools in has:
            with_it += len(days) - earlier
            since.add(group.judge)
    return without, with_it, before, since

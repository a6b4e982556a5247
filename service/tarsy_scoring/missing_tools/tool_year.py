"""
Split a year of sessions into those without a tool and those with it.

Sessions are counted by chain, judge, set of tools and day, so the time for a tool does not grow with their number.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
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


class Sessions(NamedTuple):
    """Number of sessions of a group that were scored on a day."""

    group: Group
    day: date
    number: int


class _Days(NamedTuple):
    """The days of a group in order, and the number of its sessions before each of them, and in all."""

    group: Group
    days: Sequence[date]
    before: Sequence[int]


class Year:
    """
    Sessions by chain, with the day on which each was scored.

    Args:
        sessions: Each group and day once.
        first_day: Sessions scored earlier do not count.
    """

    def __init__(self, sessions: Iterable[Sessions], first_day: date) -> None:
        self._first_day = first_day
        by_group: dict[Group, list[tuple[date, int]]] = {}
        for group, day, number in sessions:
            if day >= first_day and group.judge is not None:  # without a judge there are no requests
                by_group.setdefault(group, []).append((day, number))
        self._by_chain: dict[str | None, list[_Days]] = {}
        for group, counts in by_group.items():
            counts.sort()
            before = list(accumulate((number for _, number in counts), initial=0))
            self._by_chain.setdefault(group.chain, []).append(_Days(group, [day for day, _ in counts], before))

    def demand(
        self, has: Collection[str], asked: Iterable[Sessions], *, built: date | None = None
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
            built: The day since which the tool exists or is better; None: not entered.

        Returns:
            The demand (None: nothing can be compared), and whether no judge has judged both sides.
        """
        sides: dict[str | None, list[int]] = {}
        starts: dict[str | None, date] = {}
        has_other_judge = True
        for chain, groups in self._by_chain.items():
            first = min((days[0] for group, days, _ in groups if group.tools in has), default=None)
            if first is None:
                continue
            start = first if built is None else built
            without, with_it, before, since = _sides(groups, start, has, is_built=built is not None)
            if without and with_it:
                sides[chain], starts[chain] = [without, 0, with_it, 0], start
                has_other_judge &= before.isdisjoint(since)
        for (chain, judge, tools), day, number in asked if sides else ():
            if chain not in starts or judge is None or day < self._first_day:
                continue
            if day < starts[chain]:
                sides[chain][1] += number if built is not None or tools is not None else 0
            elif tools in has:
                sides[chain][3] += number
        chain_demands = [ChainDemand(*counts) for counts in sides.values()]
        if not chain_demands:
            return None, False
        demand = measure_demand(chain_demands)
        if has_other_judge:
            demand = replace(demand, verdict="undecided", sessions_needed=None)
        return demand, has_other_judge


def _sides(
    groups: Iterable[_Days], start: date, has: Collection[str], *, is_built: bool
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

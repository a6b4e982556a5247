"""
Which sessions show what agents did without a tool, and which with it.

Pure. Sessions are numbers and lie in groups, so that a year of many chains is looked through quickly for every tool.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import date
from typing import NamedTuple

from tarsy_scoring.missing_tools.tool_effect import ChainDemand, Demand, measure_demand


class Group(NamedTuple):
    """What sessions have in common: `tools` is the set of tools that their agents had. None: nobody knows which."""

    chain: str | None
    judge: str | None
    tools: str | None


class Year:
    """
    Sessions by chain, and of each the day on which it was scored.

    Args:
        sessions: Groups with their sessions, which are numbered from 0 over all groups, and the day of each as the
            ordinal of its date.
        first_day: What was scored before is known and not measured.
    """

    def __init__(self, sessions: Iterable[tuple[Group, Sequence[int], Sequence[int]]], first_day: date) -> None:
        self._first_day = first_day.toordinal()
        self._by_chain: dict[str | None, list[tuple[Group, list[int]]]] = {}  # with the days that are measured, sorted
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
            if measured and group.judge is not None:  # where nobody judged, nobody could ask
                self._by_chain.setdefault(group.chain, []).append((group, measured))

    def __len__(self) -> int:
        """How many sessions there are."""
        return len(self._days)

    def group_of(self, session: int) -> Group:
        """The group of a session."""
        return self._groups[session]

    def demand(
        self, has: Collection[str], asked: Iterable[int], *, built: int | None = None
    ) -> tuple[Demand | None, bool]:
        """
        What became of the demand for a tool, and whether no judge has seen both sides; None: nothing can be measured.

        Where no judge has seen both sides of a chain, nothing is decided: judges differ in what they ask for.

        Where somebody gave the day since which it is there or better, sessions before that day are held against those
        since whose agents had it. Otherwise a chain counts where the tool appears in it: known to be missing at
        first, and there from some day on.

        Args:
            has: The sets of tools that it is in.
            asked: Sessions that asked for it, each once.
            built: The day from which on it is there, or better than before, as somebody said.
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
        told = [ChainDemand(*counts) for counts in sides.values()]
        if not told:
            return None, False
        demand = measure_demand(told)
        if has_other_judge:
            demand = replace(demand, verdict="undecided", sessions_needed=None)
        return demand, has_other_judge


def _sides(
    groups: Iterable[tuple[Group, list[int]]], start: int, has: Collection[str], *, is_built: bool
) -> tuple[int, int, set[str | None], set[str | None]]:
    """How many sessions were without the tool and with it, and which judges judged them."""
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

"""
How often sessions requested which tools, read from the rollups by sets of names.

A score requests a set of names. Each session has one set, so counts of sets add up, also over several names of one
tool.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import chain
from typing import Any

from tarsy_scoring.errors import ScoringError
from tarsy_scoring.missing_tools.tool_year import Group, Sessions, Year
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.records.analytics import CALLED, LATEST_CALLERS, MOST_SPELLINGS, Selection, ToolSort, count
from tarsy_scoring.records.rollups import CHAIN_COUNTS, missed_sets
from tarsy_scoring.records.session_list import CUSTOM_PLAN

MEASURED_DAYS = 365  # older requests are about other agents than today's
# Rows of one read, some 60 MB in memory. They are combinations of a chain and a set of names, or of a day; their number
# does not grow with that of the sessions, unless judges give each tool a name of its own.
MOST_ROWS = 200_000

# Sets of names by chain, with the sessions that requested them and the points that these lost.
SETS = f"""
SELECT names, chain_id, sum(number)::bigint AS sessions, sum(lost)::bigint AS points_lost
FROM ({missed_sets("chain_id")}) m GROUP BY 1, 2 HAVING sum(number) <> 0 LIMIT $8
"""

# All names, with the number of sessions that requested them.
NAMES = f"""
SELECT n.name, sum(number)::bigint AS sessions
FROM (SELECT names, sum(number) AS number FROM ({missed_sets()}) m GROUP BY 1) m, unnest(m.names) AS n(name)
GROUP BY 1 HAVING sum(number) <> 0 ORDER BY 2 DESC, 1 LIMIT $8
"""

# Sessions by chain, judge, set of tools and day. Tools whose set is not stored are unknown.
YEAR = f"""
SELECT chain_id, judge_fingerprint, t.tools_hash, day, sum(number)::bigint AS sessions
FROM ({CHAIN_COUNTS}) c LEFT JOIN {{schema}}.tool_lists t USING (tools_hash)
GROUP BY 1, 2, 3, 4 HAVING sum(number) <> 0 LIMIT $8
"""

# Those of them that requested any of these names ($9), by set of names.
ASKED = f"""
SELECT chain_id, judge_fingerprint, t.tools_hash, day, m.names, sum(number)::bigint AS sessions
FROM ({missed_sets("day", "chain_id", "judge_fingerprint", "tools_hash")}) m
LEFT JOIN {{schema}}.tool_lists t USING (tools_hash)
WHERE m.names && $9::text[] GROUP BY 1, 2, 3, 4, 5 HAVING sum(number) <> 0 LIMIT $8
"""


@dataclass(frozen=True, slots=True)
class RequestedSet:
    """A set of names that sessions of a chain requested, and the points that these lost."""

    names: frozenset[str]
    chain_id: str | None
    sessions: int
    points_lost: int


class ToolRequests:
    """
    Which tools sessions requested.

    Args:
        sets: Those of the selection.
        others: Names that only sessions outside the selection requested.
        called: Tools called by the agents of the sessions judged last.
    """

    def __init__(self, sets: Sequence[RequestedSet], others: Iterable[str], called: Collection[str]) -> None:
        self.as_of = datetime.now(UTC)
        self.called = called
        self._sets = sets
        self._of_name: dict[str, list[int]] = {name: [] for name in others}
        for n, one in enumerate(sets):
            for name in one.names:
                self._of_name.setdefault(name, []).append(n)
        self.names_left_out = 0

    def keep_most_wanted(self, measured: Mapping[str, int], sort: ToolSort, most: int) -> None:
        """
        Forget the least wanted names, beyond `most` of them.

        Args:
            measured: Sessions that requested a name, also outside the selection.
        """

        def rank(name: str) -> tuple[int, int, str]:
            wanted = sum(getattr(self._sets[n], sort) for n in self._of_name[name])
            return -wanted, -measured.get(name, 0), name

        ordered = sorted(self._of_name, key=rank)
        self.names_left_out = sum(bool(self._of_name[name]) for name in ordered[most:])
        self._of_name = {name: self._of_name[name] for name in ordered[:most]}

    def spellings(self) -> dict[str, int]:
        """Number of sessions of the selection that requested each name; 0: only sessions outside it did."""
        return {name: sum(self._sets[n].sessions for n in found) for name, found in self._of_name.items()}

    def by_chain(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """Sums over the selection for any of these names: rows of `chain_id`, `sessions`, `points_lost`."""
        sums: defaultdict[str | None, list[int]] = defaultdict(lambda: [0, 0])
        for n in {n for name in names for n in self._of_name.get(name, ())}:
            sums[self._sets[n].chain_id][0] += self._sets[n].sessions
            sums[self._sets[n].chain_id][1] += self._sets[n].points_lost
        return [{"chain_id": c, "sessions": s, "points_lost": points} for c, (s, points) in sums.items()]


@dataclass(frozen=True, slots=True)
class Measured:
    """The sessions of the last `MEASURED_DAYS` days, and those of them that requested some names."""

    year: Year
    asked: Mapping[frozenset[str], Sequence[Sessions]]

    def sessions_of(self, names: Collection[str]) -> Iterator[Sessions]:
        """The sessions that requested any of these names."""
        return chain.from_iterable(found for one, found in self.asked.items() if not one.isdisjoint(names))


def first_measured_day() -> date:
    """The first of the last `MEASURED_DAYS` days (UTC), in which demand is measured."""
    return datetime.now(UTC).date() - timedelta(days=MEASURED_DAYS)


class TooManySets(ScoringError):
    """The requests of a selection do not fit into memory."""


async def read_tool_requests(database: Database, selection: Selection, sort: ToolSort) -> ToolRequests:
    """
    Read the requests of the selection, and the names in requests of the time in which demand is measured.

    Raises:
        TooManySets: See `MOST_ROWS`.
        DatabaseAway: See `Database.once`.
    """
    since = selection.since
    if since is not None:
        since = min(since, _midnight(first_measured_day()))
    longer = Selection(selection.chain, selection.criteria, since)

    async def find_called(connection: Connection) -> list[Any]:
        await connection.execute(CUSTOM_PLAN)
        return await connection.fetch(database.sql(CALLED), *selection.arguments, LATEST_CALLERS)

    [found], [names], tools = await asyncio.gather(
        _rows(database, selection, (SETS, ())),
        count(database, longer, (NAMES, (MOST_ROWS,))),
        database.once(find_called),
    )
    called = frozenset(row["tool"] for row in tools)
    sets = [RequestedSet(frozenset(r["names"]), r["chain_id"], r["sessions"], r["points_lost"]) for r in found]
    measured = {row["name"]: row["sessions"] for row in names}
    requests = ToolRequests(sets, measured, called)
    requests.keep_most_wanted(measured, sort, MOST_SPELLINGS)
    return requests


async def read_measured(database: Database, selection: Selection, names: Collection[str]) -> Measured:
    """
    Read what the demand for tools with these names is measured from, in the chain and criteria of the selection.

    Raises:
        TooManySets: See `MOST_ROWS`.
        DatabaseAway: See `Database.once`.
    """
    first_day = first_measured_day()
    of = Selection(selection.chain, selection.criteria, _midnight(first_day))
    year, asked = await _rows(database, of, (YEAR, ()), (ASKED, (list(names),)))
    by_set = defaultdict[frozenset[str], list[Sessions]](list)
    for row in asked:
        by_set[frozenset(row["names"])].append(_sessions(row))
    return Measured(Year(map(_sessions, year), first_day), by_set)


def _sessions(row: Mapping[str, Any]) -> Sessions:
    return Sessions(Group(row["chain_id"], row["judge_fingerprint"], row["tools_hash"]), row["day"], row["sessions"])


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


async def _rows(database: Database, selection: Selection, *statements: tuple[str, Sequence[Any]]) -> list[list[Any]]:
    """The rows of each statement. Raises: TooManySets, DatabaseAway."""
    limited = [(statement, (MOST_ROWS + 1, *more)) for statement, more in statements]
    found = await count(database, selection, *limited)
    if any(len(rows) > MOST_ROWS for rows in found):
        raise TooManySets(
            f"missing tools have more than {MOST_ROWS:,} combinations of chains, days and names: "
            "choose one chain, or criteria, or a shorter period"
        )
    return found

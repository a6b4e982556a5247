"""
How often sessions requested which tools, read from the rollups by sets of names.

A score requests a set of names. Each session has one set, so counts of sets add up, also over several names
of one
tool.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from tarsy_scoring.analytics.analytics import (
    CALLED,
    LATEST_CALLERS,
    MOST_SPELLINGS,
    Selection,
    ToolSort,
    count,
)
from tarsy_scoring.analytics.rollups import (
    FIRST_MONTH,
    days_by_chain,
    missed_in,
    missed_sets,
    not_rolled_up,
    selected,
)
from tarsy_scoring.errors import ScoringError
from tarsy_scoring.missing_tools.tool_year import Asked, Group, Year
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.scores.session_list import CUSTOM_PLAN

MEASURED_DAYS = 365  # older requests are about other agents than today's
# Rows of one read, some 60 MB in memory. They are combinations of a chain and a set of names or of tools;
# their number does not grow with that of the sessions, unless judges give each tool a name of its own.
MOST_ROWS = 200_000

# Sets of names by chain, with the sessions that requested them, the points that these lost, and their judges.
SETS = f"""
SELECT names, chain_id, sum(sessions)::bigint AS sessions, sum(points_lost)::bigint AS points_lost,
  array_agg(judge_fingerprint) AS judges
FROM (SELECT names, chain_id, judge_fingerprint, sum(number) AS sessions, sum(lost) AS points_lost
      FROM ({missed_sets("chain_id", "judge_fingerprint")}) m GROUP BY 1, 2, 3 HAVING sum(number) <> 0) j
GROUP BY 1, 2 LIMIT $10
"""

# All names, with the number of sessions that requested them.
NAMES = f"""
SELECT n.name, sum(number)::bigint AS sessions
FROM (SELECT names, sum(number) AS number FROM ({missed_sets()}) m GROUP BY 1) m, unnest(m.names) AS n(name)
GROUP BY 1 HAVING sum(number) <> 0 ORDER BY 2 DESC, 1 LIMIT $10
"""

# Sessions by chain, judge and set of tools: days and the number on each. Tools whose set is not stored are
# unknown.
YEAR = f"""
SELECT chain_id, judge_fingerprint, t.tools_hash, days, numbers
FROM ({days_by_chain()}) c LEFT JOIN {{schema}}.tool_lists t USING (tools_hash) LIMIT $10
"""

_OF_CHAIN = (
    "coalesce(s.chain_id, '') = coalesce({0}.chain_id, '') AND (s.chain_id IS NULL) = ({0}.chain_id IS NULL)"
)
_COLUMNS = "x.tool, g.chain_id, g.tools_hash, {0} AS day, r.scores AS number"
_JOINED = " JOIN sets x ON x.set_id = r.set_id AND g.judge_fingerprint IS NOT NULL"
# A month has the day on which it ends.
_BY_MONTH = missed_in(
    "missed_months",
    FIRST_MONTH,
    "$6::date",
    _COLUMNS.format("(r.month + interval '1 month')::date - 1"),
    _JOINED,
)
_BEFORE_MONTHS = missed_in(
    "missed_rollups", "$5::date", f"least({FIRST_MONTH}, $6::date)", _COLUMNS.format("r.day"), _JOINED
)

# Those of them that requested tools, by any of their names ($11 names, $12 the tool of each): in chains ($14;
# $13 the tool), the number before a day ($15) and since then. A month that contains this day counts as since
# then, so its `moved` days are added to those before. The time of the selection has no end.
ASKED = f"""
WITH wanted AS MATERIALIZED (SELECT * FROM unnest($11::text[], $12::int[]) AS w(name, tool)),
splits AS MATERIALIZED (
  SELECT *, date_trunc('month', start::timestamp)::date AS month
  FROM unnest($13::int[], $14::text[], $15::date[]) AS s(tool, chain_id, start)
), sets AS MATERIALIZED (
  SELECT DISTINCT w.tool, t.set_id
  FROM {{schema}}.missed_sets t CROSS JOIN unnest(t.names) AS n(name) JOIN wanted w USING (name)
), counted AS (
  {_BY_MONTH}
  UNION ALL {_BEFORE_MONTHS}
  UNION ALL
  SELECT tool, chain_id, tools_hash, day, number FROM (
    SELECT DISTINCT d.n, w.tool, d.chain_id, d.tools_hash, d.day, d.number
    FROM (SELECT row_number() OVER () AS n, m.* FROM ({not_rolled_up("missed", "tools_hash", "tools")}) m
          WHERE m.judge_fingerprint IS NOT NULL) d
    CROSS JOIN unnest(d.tools) AS u(name) JOIN wanted w USING (name)) d
), moved AS MATERIALIZED (
  SELECT m.tool, m.start, r.group_id, r.scores
  FROM (SELECT DISTINCT tool, start, month FROM splits) m JOIN sets x USING (tool) CROSS JOIN LATERAL (
    SELECT r.group_id, r.scores FROM {{schema}}.missed_rollups r
    WHERE r.set_id = x.set_id AND r.day >= greatest(m.month, {FIRST_MONTH}) AND r.day < m.start OFFSET 0) r
)
SELECT tool, chain_id, t.tools_hash, sum(before)::bigint AS before, (sum(number) - sum(before))::bigint AS since
FROM (
  SELECT s.tool, s.chain_id, c.tools_hash, c.number, CASE WHEN c.day < s.start THEN c.number ELSE 0 END AS before
  FROM counted c JOIN splits s ON s.tool = c.tool AND {_OF_CHAIN.format("c")}
  UNION ALL
  SELECT s.tool, s.chain_id, g.tools_hash, 0, m.scores
  FROM moved m JOIN {{schema}}.score_groups g USING (group_id)
  JOIN splits s ON s.tool = m.tool AND s.start = m.start AND {_OF_CHAIN.format("g")}
  WHERE {selected("g")} AND g.judge_fingerprint IS NOT NULL
) c LEFT JOIN {{schema}}.tool_lists t USING (tools_hash)
GROUP BY 1, 2, 3 HAVING sum(before) <> 0 OR sum(number) <> 0 LIMIT $10
"""


@dataclass(frozen=True, slots=True)
class RequestedSet:
    """A set of names that sessions of a chain requested, the points that these lost, and who judged them."""

    names: frozenset[str]
    chain_id: str | None
    sessions: int
    points_lost: int
    judges: frozenset[str | None]


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
        """
        Over the selection, for any of these names: rows of `chain_id`, `sessions`, `points_lost`, `judges`.
        """
        rows: dict[str | None, dict[str, Any]] = {}
        for n in {n for name in names for n in self._of_name.get(name, ())}:
            one = self._sets[n]
            nothing: dict[str, Any] = {
                "chain_id": one.chain_id,
                "sessions": 0,
                "points_lost": 0,
                "judges": set(),
            }
            row = rows.setdefault(one.chain_id, nothing)
            row["sessions"] += one.sessions
            row["points_lost"] += one.points_lost
            row["judges"] |= one.judges
        return list(rows.values())


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
    sets = [
        RequestedSet(
            frozenset(r["names"]), r["chain_id"], r["sessions"], r["points_lost"], frozenset(r["judges"])
        )
        for r in found
    ]
    measured = {row["name"]: row["sessions"] for row in names}
    requests = ToolRequests(sets, measured, called)
    requests.keep_most_wanted(measured, sort, MOST_SPELLINGS)
    return requests


async def read_year(database: Database, selection: Selection) -> Year:
    """
    Read the sessions of the time in which demand is measured, in the chain and criteria of the selection.

    Raises:
        TooManySets: See `MOST_ROWS`.
        DatabaseAway: See `Database.once`.
    """
    [found] = await _rows(database, _measured(selection), (YEAR, ()))
    groups = (
        (Group(r["chain_id"], r["judge_fingerprint"], r["tools_hash"]), r["days"], r["numbers"])
        for r in found
    )
    return Year((group, zip(days, numbers, strict=True)) for group, days, numbers in groups)


async def read_asked(
    database: Database,
    selection: Selection,
    tools: Sequence[tuple[Collection[str], Mapping[str | None, date]]],
) -> list[list[Asked]]:
    """
    Read which of these sessions requested tools: for each tool, before and since its start in a chain.

    Args:
        tools: Names and starts by chain of each tool.

    Raises:
        TooManySets: See `MOST_ROWS`.
        DatabaseAway: See `Database.once`.
    """
    asked: list[list[Asked]] = [[] for _ in tools]
    wanted = [(name, n) for n, (names, starts) in enumerate(tools) if starts for name in names]
    splits = [
        (n, chain_id, start) for n, (_, starts) in enumerate(tools) for chain_id, start in starts.items()
    ]
    if splits:
        arguments = *map(list, zip(*wanted, strict=True)), *map(list, zip(*splits, strict=True))
        [found] = await _rows(database, _measured(selection), (ASKED, arguments))
        for row in found:
            asked[row["tool"]].append(Asked(row["chain_id"], row["tools_hash"], row["before"], row["since"]))
    return asked


def _measured(selection: Selection) -> Selection:
    return Selection(selection.chain, selection.criteria, _midnight(first_measured_day()))


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


async def _rows(
    database: Database, selection: Selection, *statements: tuple[str, Sequence[Any]]
) -> list[list[Any]]:
    """The rows of each statement. Raises: TooManySets, DatabaseAway."""
    limited = [(statement, (MOST_ROWS + 1, *more)) for statement, more in statements]
    found = await count(database, selection, *limited)
    if any(len(rows) > MOST_ROWS for rows in found):
        raise TooManySets(
            f"missing tools have more than {MOST_ROWS:,} combinations of chains and names: "
            "choose one chain, or criteria, or a shorter period"
        )
    return found

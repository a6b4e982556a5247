"""How many sessions asked for which tools, by the names that judges wrote, from the daily counts."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tarsy_scoring.analytics.analytics import CHOSEN
from tarsy_scoring.analytics.daily import NAMES_OVER_TIME, Selection, read_counts
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.scores.latest import is_completed, is_of_kind
from tarsy_scoring.scores.session_list import fetch_planned

MOST_NAMES = 2000  # that are merged and counted: judges name tools freely
MOST_ROWS = 50_000
LATEST_CALLERS = 1000  # scores whose sessions show which tools agents have

# Sets with the names that a score asked for, by chain, the most frequent first.
DEMAND = f"""
SELECT names, chain_id, sum(scores)::bigint AS sessions FROM {NAMES_OVER_TIME} n WHERE kind = 'missing_tools'
GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT $9
"""

# Tools that agents called in the sessions behind the $5 newest scores.
CALLED = f"""
SELECT DISTINCT k.tool FROM (
  SELECT CASE jsonb_typeof(s.interaction -> 'by_tool')
         WHEN 'object' THEN s.interaction -> 'by_tool' ELSE '{{}}' END AS tools
  FROM {{schema}}.session_scores s
  WHERE {is_completed("s")} AND {is_of_kind("s", "without")} AND {CHOSEN} ORDER BY s.completed_at DESC LIMIT $5) l,
LATERAL jsonb_object_keys(l.tools) AS k(tool)
"""


@dataclass(frozen=True, slots=True)
class RequestedSet:
    """Names that sessions of a chain asked for together."""

    names: frozenset[str]
    chain_id: str | None
    sessions: int


@dataclass(frozen=True, slots=True)
class Demand:
    """
    What the selected scores asked for.

    Args:
        by_name: The sets by name, for the `MOST_NAMES` most wanted names.
        called: Tools that agents called in the newest sessions.
        names_left_out: Number of rarer names.
    """

    by_name: Mapping[str, Sequence[RequestedSet]]
    called: frozenset[str]
    names_left_out: int
    as_of: datetime

    def sessions(self) -> dict[str, int]:
        """How many sessions asked for each name."""
        return {name: sum(one.sessions for one in found) for name, found in self.by_name.items()}

    def of_names(self, names: Iterable[str]) -> set[RequestedSet]:
        """The sets that contain any such name, so that a session with several of them counts once."""
        return {one for name in names for one in self.by_name[name]}


async def read_called(database: Database, selection: Selection) -> frozenset[str]:
    """Tools that agents called in the newest selected sessions. Raises: DatabaseAway."""
    rows = await fetch_planned(database, CALLED, *selection.arguments, LATEST_CALLERS)
    return frozenset(row["tool"] for row in rows)


async def read_demand(database: Database, selection: Selection) -> Demand:
    """Read the demand for tools. Raises: DatabaseAway."""
    as_of = datetime.now(UTC)
    [rows] = await read_counts(database, selection, (DEMAND, (MOST_ROWS,)))
    found = defaultdict[str, list[RequestedSet]](list)
    for row in rows:
        one = RequestedSet(frozenset(row["names"]), row["chain_id"], row["sessions"])
        for name in one.names:
            found[name].append(one)
    ranked = sorted(found, key=lambda name: (-sum(one.sessions for one in found[name]), name))
    by_name = {name: found[name] for name in ranked[:MOST_NAMES]}
    called = await read_called(database, selection)
    return Demand(by_name, called, len(ranked) - len(by_name), as_of)

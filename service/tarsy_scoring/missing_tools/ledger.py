"""
The ledger of missing tools: which names are one tool, its state, and whether judges still request it.

    open -> planned -> built -> confirmed | still_missed

People set the first three states. The last two are measured at every read, from sessions whose agents have
the tool.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import date, datetime
from typing import Annotated, Literal

from pydantic import Field

from tarsy_scoring.analytics.analytics import Selection, ToolSort, WantedTool, wanted_tools
from tarsy_scoring.evaluation.tool_names import Tool, normalise
from tarsy_scoring.missing_tools.decisions import Decisions, Merge, Saying, read_decisions
from tarsy_scoring.missing_tools.demand import ToolRequests, read_asked, read_tool_requests, read_year
from tarsy_scoring.missing_tools.tool_effect import Demand
from tarsy_scoring.missing_tools.tool_year import Asked, Sides, Year
from tarsy_scoring.postgres.database import Database

State = Literal["open", "planned", "built", "confirmed", "still_missed"]

# The sets of tools that contain any of these names ($1 names, $2 the tool of each), and the tools in each.
OFFERED = """
SELECT l.tools_hash, array_agg(DISTINCT w.tool) AS has
FROM unnest($1::text[], $2::int[]) AS w(name, tool) JOIN {schema}.tool_lists l ON l.names @> ARRAY[w.name]
GROUP BY l.tools_hash
"""


@dataclass(frozen=True, slots=True)
class LedgerEntry(WantedTool):
    """A tool that judges missed, with its state."""

    state: State
    said: Annotated[Saying | None, Field(description="The last decision; null: none yet.")]
    demand: Annotated[
        Demand | None, Field(description="Null: no agents had the tool, so nothing can be measured.")
    ]
    has_other_judge: Annotated[
        bool, Field(description="No judge has judged with and without it, so the verdict stays undecided.")
    ]
    merges: list[Merge]


@dataclass(frozen=True, slots=True)
class Ledger:
    """The most wanted tools first; then planned or built tools that are wanted less, or not at all."""

    as_of: Annotated[datetime, Field(description="When the scores were read; decisions are current.")]
    entries: list[LedgerEntry]
    tools_left_out: Annotated[
        int, Field(description="Tools beyond `limit` that are neither planned nor built.")
    ]
    spellings_left_out: Annotated[int, Field(description="Number of least used names that were not read.")]


@dataclass(frozen=True, slots=True)
class _Row:
    """
    A tool in the ledger, before its demand is measured.

    Args:
        names: All its names, also those that only sessions outside the selection requested.
    """

    tool: WantedTool
    names: Sequence[str]
    merges: list[Merge]
    said: Saying | None
    built: date | None


# --- reading -------------------------------------------------------------------------------------------


async def read_ledger(
    database: Database,
    selection: Selection,
    sort: ToolSort = "sessions",
    limit: int = 100,
) -> Ledger:
    """
    Read the ledger: counts over the selection, states measured over the last year of its chain and criteria.

    Args:
        limit: Maximum number of tools besides planned and built ones.

    Raises:
        TooManySets: See `read_tool_requests`.
        DatabaseAway: See `Database.once`.
    """
    requests, decisions, year = await asyncio.gather(
        read_tool_requests(database, selection, sort),
        read_decisions(database),
        read_year(database, selection),
    )
    # In threads: many names, or adversarial ones, take long enough to block the event loop.
    rows, left_out = await asyncio.to_thread(_list, requests, decisions, sort, limit)
    offered = await _offered(database, rows)
    sides = await asyncio.to_thread(_split, year, rows, offered)
    starts = [(one.names, split.starts) for one, split in zip(rows, sides, strict=True)]
    asked = await read_asked(database, selection, starts)
    entries = await asyncio.to_thread(_measure, rows, sides, asked)
    return Ledger(requests.as_of, entries, left_out, requests.names_left_out)


def _list(requests: ToolRequests, decisions: Decisions, sort: ToolSort, limit: int) -> tuple[list[_Row], int]:
    """The tools of the ledger, and the number left out; planned and built tools are never left out."""
    merged = decisions.merge(requests.spellings())
    names = {normalise(tool.name): [name for name, _ in tool.spellings] for tool in merged}
    asked_for = [
        Tool(tool.name, tuple((name, used) for name, used in tool.spellings if used)) for tool in merged
    ]
    counts = (
        row | {"tool": n}
        for n, tool in enumerate(asked_for)
        for row in requests.by_chain(name for name, _ in tool.spellings)
    )
    found = {
        normalise(tool.tool_name): tool for tool in wanted_tools(asked_for, counts, requests.called, sort)
    }
    decided = {key: said for key, said in decisions.said.items() if said.state != "open"}
    later = [key for key in list(found)[limit:] if key in decided]
    unwanted = {
        key: WantedTool(said.tool, [], 0, 0, [], 0, 0, exists=False)
        for key, said in decided.items()
        if key not in found and not decisions.is_merged_away(key)
    }
    rows = []
    for key in (*list(found)[:limit], *later, *unwanted):
        tool = found[key] if key in found else unwanted[key]
        merged_names = decisions.merged_into(tool.tool_name, names.get(key, ()))
        every_name = dict.fromkeys(
            [tool.tool_name, *names.get(key, ()), *(merge.name for merge in merged_names)]
        )
        rows.append(
            _Row(tool, list(every_name), merged_names, decisions.said.get(key), decisions.built.get(key))
        )
    return rows, max(0, len(found) - limit - len(later))


async def _offered(database: Database, rows: Sequence[_Row]) -> list[set[str]]:
    """
    Find, for each of these tools, the sets of tools that contain it.

    Sets contain tools with and without their server's name: a request without a server is met by a tool of
    any server, a request with one only by that server's.
    """
    asked = list(dict.fromkeys((normalise(name), n) for n, one in enumerate(rows) for name in one.names))
    offered: list[set[str]] = [set() for _ in rows]
    arguments = [key for key, _ in asked], [n for _, n in asked]
    for row in await database.once(lambda c: c.fetch(database.sql(OFFERED), *arguments)):
        for n in row["has"]:
            offered[n].add(row["tools_hash"])
    return offered


def _split(year: Year, rows: Iterable[_Row], offered: Iterable[set[str]]) -> list[Sides]:
    return [year.sides(has, built=one.built) for one, has in zip(rows, offered, strict=True)]


def _measure(
    rows: Iterable[_Row], sides: Iterable[Sides], asked: Iterable[Iterable[Asked]]
) -> list[LedgerEntry]:
    entries = []
    for one, split, requests in zip(rows, sides, asked, strict=True):
        demand, has_other_judge = split.demand(requests)
        counts = {f.name: getattr(one.tool, f.name) for f in fields(one.tool)}
        state = state_of(one.said, demand)
        entries.append(
            LedgerEntry(
                **counts,
                state=state,
                said=one.said,
                demand=demand,
                has_other_judge=has_other_judge,
                merges=one.merges,
            )
        )
    return entries


def state_of(said: Saying | None, demand: Demand | None) -> State:
    """The state of a tool; a measured verdict takes precedence over what people recorded."""
    if demand is not None and demand.verdict != "undecided":
        return "confirmed" if demand.verdict == "confirmed" else "still_missed"
    if demand is not None or (said is not None and said.state == "built"):
        return "built"
    return said.state if said is not None else "open"

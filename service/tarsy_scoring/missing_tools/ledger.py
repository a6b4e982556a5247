"""
The ledger of missing tools: which names are one tool, how far it has come, and whether judges still ask for it.

    open -> planned -> built -> confirmed | still_missed

People say the first three; the last two are measured anew at every look, by what judges ask of sessions whose agents
have the tool (`tool_decisions`).
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import date, datetime
from typing import Annotated, Literal

from pydantic import Field

from tarsy_scoring.evaluation.tool_names import Tool, normalise
from tarsy_scoring.missing_tools import demand as wishes
from tarsy_scoring.missing_tools.decisions import Decisions, Merge, Saying, read_decisions
from tarsy_scoring.missing_tools.demand import Look, Question, Wishes, first_measured_day
from tarsy_scoring.missing_tools.tool_effect import Demand
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.records.analytics import Selection, ToolSort, WantedTool, wanted_tools

State = Literal["open", "planned", "built", "confirmed", "still_missed"]

# The sets of tools that hold some of these ($1 names, $2 the tool of each), and which.
OFFERED = """
SELECT l.tools_hash, array_agg(DISTINCT w.tool) AS has
FROM unnest($1::text[], $2::int[]) AS w(name, tool) JOIN {schema}.tool_lists l ON l.names @> ARRAY[w.name]
GROUP BY l.tools_hash
"""


@dataclass(frozen=True, slots=True)
class LedgerEntry(WantedTool):
    """A tool that judges missed, and how far it has come."""

    state: State
    said: Annotated[Saying | None, Field(description="Null: nobody has said anything yet.")]
    demand: Annotated[Demand | None, Field(description="Null: no agents had it, so nothing can be measured.")]
    has_other_judge: Annotated[
        bool, Field(description="No judge has judged with and without it, so nothing about it is decided.")
    ]
    merges: list[Merge]


@dataclass(frozen=True, slots=True)
class Ledger:
    """What to build next, the most wanted first; then what is planned or built and less wanted, or not at all."""

    as_of: Annotated[datetime, Field(description="When the scores were looked at; decisions are those of now.")]
    entries: list[LedgerEntry]
    tools_left_out: Annotated[int, Field(description="Tools beyond `limit` that are neither planned nor built.")]
    spellings_left_out: Annotated[int, Field(description="Of the least used names, which were not looked at.")]


@dataclass(frozen=True, slots=True)
class _Told:
    """
    A tool that the ledger tells of.

    Args:
        names: All of them, also those that only sessions outside the selection asked for.
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
    look: Look = wishes.look,
) -> Ledger:
    """
    The ledger: counts over the selection, states measured over the last year of its chain and criteria.

    What people decided is as it is now; the scores are as `look` tells them.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    question = Question(selection, first_measured_day(), sort)
    wishes, decisions = await asyncio.gather(look(database, question), read_decisions(database))
    # In threads: many sessions, and the names of hostile judges, take a while to count.
    told, left_out = await asyncio.to_thread(_list, wishes, decisions, sort, limit)
    offered = await _offered(database, told)
    entries = await asyncio.to_thread(_measure, wishes, told, offered)
    return Ledger(wishes.as_of, entries, left_out, wishes.names_left_out)


def _list(wishes: Wishes, decisions: Decisions, sort: ToolSort, limit: int) -> tuple[list[_Told], int]:
    """The tools that are told, and how many are not; what somebody called planned or built always is."""
    merged = decisions.merge(wishes.spellings())
    names = {normalise(tool.name): [name for name, _ in tool.spellings] for tool in merged}
    asked_for = [Tool(tool.name, tuple((name, used) for name, used in tool.spellings if used)) for tool in merged]
    rows = (
        row | {"tool": n}
        for n, tool in enumerate(asked_for)
        for row in wishes.by_chain(wishes.sessions_of(name for name, _ in tool.spellings))
    )
    found = {normalise(tool.tool_name): tool for tool in wanted_tools(asked_for, rows, wishes.called, sort)}
    spoken_of = {key: said for key, said in decisions.said.items() if said.state != "open"}
    later = [key for key in list(found)[limit:] if key in spoken_of]
    unwanted = {
        key: WantedTool(said.tool, [], 0, 0, [], 0, exists=False)
        for key, said in spoken_of.items()
        if key not in found and not decisions.is_joined(key)
    }
    told = []
    for key in (*list(found)[:limit], *later, *unwanted):
        tool = found[key] if key in found else unwanted[key]
        joined = decisions.joined_to(tool.tool_name, names.get(key, ()))
        every_name = dict.fromkeys([tool.tool_name, *names.get(key, ()), *(merge.name for merge in joined)])
        told.append(_Told(tool, list(every_name), joined, decisions.said.get(key), decisions.built.get(key)))
    return told, max(0, len(found) - limit - len(later))


async def _offered(database: Database, told: Sequence[_Told]) -> list[set[str]]:
    """
    The sets of tools that each of these tools is in.

    Sets hold their tools with and without their server: a wish that names none is met by any, another only by its own.
    """
    asked = list(dict.fromkeys((normalise(name), n) for n, one in enumerate(told) for name in one.names))
    offered: list[set[str]] = [set() for _ in told]
    arguments = [key for key, _ in asked], [n for _, n in asked]
    for row in await database.once(lambda c: c.fetch(database.sql(OFFERED), *arguments)):
        for n in row["has"]:
            offered[n].add(row["tools_hash"])
    return offered


def _measure(wishes: Wishes, told: Iterable[_Told], offered: Iterable[set[str]]) -> list[LedgerEntry]:
    entries = []
    for one, has in zip(told, offered, strict=True):
        demand, has_other_judge = _demand(wishes, one, has) if has else (None, False)
        counts = {f.name: getattr(one.tool, f.name) for f in fields(one.tool)}
        entries.append(
            LedgerEntry(
                **counts,
                state=state_of(one.said, demand),
                said=one.said,
                demand=demand,
                has_other_judge=has_other_judge,
                merges=one.merges,
            )
        )
    return entries


def _demand(wishes: Wishes, one: _Told, has: set[str]) -> tuple[Demand | None, bool]:
    built = one.built.toordinal() if one.built is not None else None
    return wishes.year.demand(has, wishes.sessions_of(one.names), built=built)


def state_of(said: Saying | None, demand: Demand | None) -> State:
    """How far a tool has come: what was measured counts before what was said."""
    if demand is not None and demand.verdict != "undecided":
        return "confirmed" if demand.verdict == "confirmed" else "still_missed"
    if demand is not None or (said is not None and said.state == "built"):
        return "built"
    return said.state if said is not None else "open"

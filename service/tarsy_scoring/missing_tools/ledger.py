"""Merges missing tools: which names are one tool, how often judges missed it, what people decided."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from pydantic import Field

from tarsy_scoring.analytics.daily import Selection
from tarsy_scoring.evaluation.tool_names import Tool, bare, normalise
from tarsy_scoring.missing_tools.decisions import Decisions, Merge, ToolState, ToolStateName, read_decisions
from tarsy_scoring.missing_tools.demand import Demand, read_demand
from tarsy_scoring.postgres.database import Database

MOST_CHAINS = 100  # listed by name; the totals count all


@dataclass(frozen=True, slots=True)
class Spelling:
    """A name as judges wrote it, and how many sessions have scores with it."""

    name: str
    sessions: int


@dataclass(frozen=True, slots=True)
class ToolChain:
    """How many sessions in a chain asked for a tool."""

    chain_id: str | None
    sessions: int


@dataclass(frozen=True, slots=True)
class WantedTool:
    """A tool that judges missed, and what people decided about it."""

    tool_name: Annotated[str, Field(description="Its most used spelling.")]
    spellings: list[Spelling]
    sessions: int
    chains: int
    by_chain: Annotated[list[ToolChain], Field(description="At most 100, those with most sessions first.")]
    exists: Annotated[bool, Field(description="Judged sessions have called a tool of that name lately.")]
    state: ToolStateName
    said: Annotated[ToolState | None, Field(description="The last decision; null: none yet.")]
    merges: Annotated[list[Merge], Field(description="Decisions about names that belong to it.")]
    named_once: Annotated[bool, Field(description="Open, and one session alone names it.")] = False


@dataclass(frozen=True, slots=True)
class Ledger:
    """
    The most wanted tools first; then planned or built tools that are wanted less, or not at all.

    Tools that are `named_once` come last: the text of that session may have asked for them.
    """

    as_of: Annotated[datetime, Field(description="When the scores were read; decisions are current.")]
    tools: list[WantedTool]
    tools_left_out: Annotated[int, Field(description="Open tools beyond `limit`.")]
    spellings_left_out: Annotated[int, Field(description="Number of least used names that were not read.")]


async def read_ledger(database: Database, selection: Selection, limit: int = 100) -> Ledger:
    """
    Read the ledger.

    Args:
        limit: Maximum number of tools besides planned and built ones.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    demand, decisions = await asyncio.gather(read_demand(database, selection), read_decisions(database))
    # In a thread: many names, or adversarial ones, take long enough to block the event loop.
    return await asyncio.to_thread(list_tools, demand, decisions, limit)


def list_tools(demand: Demand, decisions: Decisions, limit: int) -> Ledger:
    """Merge names to tools; planned and built tools are never left out."""
    called = {normalise(name) for tool in demand.called for name in (tool, bare(tool))}
    wanted = [_wanted(tool, demand, decisions, called) for tool in decisions.merge(demand.sessions())]
    wanted.sort(key=lambda tool: (-tool.sessions, tool.tool_name))
    found = {normalise(tool.tool_name) for tool in wanted}
    unwanted = [_wanted(tool, demand, decisions, called) for tool in _decided(decisions, found)]
    later = wanted[limit:]
    kept = [tool for tool in later if tool.state != "open"]
    tools = sorted([*wanted[:limit], *kept, *unwanted], key=lambda tool: tool.named_once)
    return Ledger(demand.as_of, tools, len(later) - len(kept), demand.names_left_out)


def _decided(decisions: Decisions, found: set[str]) -> list[Tool]:
    """Planned and built tools that no score asks for."""
    decided = [said.tool for key, said in decisions.said.items() if said.state != "open" and key not in found]
    return [Tool(name, ()) for name in decided if not decisions.is_merged_away(normalise(name))]


def _wanted(tool: Tool, demand: Demand, decisions: Decisions, called: set[str]) -> WantedTool:
    """A tool with the demand for all names that it has."""
    sessions = Counter[str | None]()
    for one in demand.of_names(name for name, _ in tool.spellings):
        sessions[one.chain_id] += one.sessions
    key = normalise(tool.name)
    said = decisions.said.get(key)
    chains = sorted(sessions.items(), key=lambda item: (-item[1], item[0] or ""))
    return WantedTool(
        tool.name,
        [Spelling(name, used) for name, used in tool.spellings],
        sessions.total(),
        len(sessions),
        [ToolChain(chain_id, number) for chain_id, number in chains[:MOST_CHAINS]],
        any(normalise(name) in called for name in (tool.name, *dict(tool.spellings))),
        said.state if said else "open",
        said,
        list(decisions.of_tool.get(key, ())),
        sessions.total() == 1 and (said is None or said.state == "open"),
    )

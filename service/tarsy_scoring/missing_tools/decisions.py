"""
What people decided about missing tools: each tool's state, and which names are one tool.

Decisions are only appended; the last one about a tool or a name counts.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from tarsy_scoring.analytics.daily import Selection
from tarsy_scoring.audit import audit
from tarsy_scoring.evaluation.tool_names import Tool, merge_spellings, normalise
from tarsy_scoring.missing_tools.demand import MOST_NAMES, read_called
from tarsy_scoring.postgres.database import Connection, Database

ToolStateName = Literal["open", "planned", "built"]
T = TypeVar("T")

LAST_STATES = """
SELECT DISTINCT ON (tool_key) tool, tool_key, state, since, said_by, said_at, note
FROM {schema}.tool_states ORDER BY tool_key, state_id DESC
"""

LAST_MERGES = """
SELECT DISTINCT ON (name_key) name, name_key, tool, decided_by, decided_at
FROM {schema}.tool_merges ORDER BY name_key, merge_id DESC
"""

# The names that most scores requested, at most $1.
NAMES = """
SELECT tool_name, count(*) AS scores FROM {schema}.score_missing_tools
GROUP BY tool_name ORDER BY scores DESC, tool_name LIMIT $1
"""

ADD_STATE = """
INSERT INTO {schema}.tool_states (tool, tool_key, state, since, said_by, note)
VALUES ($1, $2, $3, coalesce($4, now()), $5, $6) RETURNING tool, state, since, said_by, said_at, note
"""

ADD_MERGE = """
INSERT INTO {schema}.tool_merges (name, name_key, tool, decided_by) VALUES ($1, $2, $3, $4)
RETURNING name, tool, decided_by, decided_at
"""


@dataclass(frozen=True, slots=True)
class ToolState:
    """The last decision about a tool's state."""

    tool: str
    state: ToolStateName
    since: Annotated[datetime, Field(description="Start of the state.")]
    said_by: str
    said_at: datetime
    note: str | None


@dataclass(frozen=True, slots=True)
class Merge:
    """A name and the tool it belongs to; if both are equal, the name is kept apart."""

    name: str
    tool: str
    decided_by: str
    decided_at: datetime


@dataclass(frozen=True, slots=True)
class Decisions:
    """
    The last decisions, by tool or name.

    Args:
        of_tool: The names merged into each tool.
    """

    said: Mapping[str, ToolState]
    merges: Mapping[str, Merge]
    of_tool: Mapping[str, Sequence[Merge]]

    def merge(self, counts: Mapping[str, int]) -> list[Tool]:
        """Merge spellings to tools, respecting the decisions."""
        decided = {merge.name: merge.tool for merge in self.merges.values()}
        return merge_spellings(counts, decided, {said.tool for said in self.said.values()})

    def is_merged_away(self, key: str) -> bool:
        """Whether this name was merged into another tool."""
        return key in self.merges and normalise(self.merges[key].tool) != key


async def read_decisions(database: Database) -> Decisions:
    """Read the last decision about each tool and name. Raises: DatabaseAway."""
    states, merged = await database.rows(LAST_STATES), await database.rows(LAST_MERGES)
    merges = {row["name_key"]: _of_row(Merge, row) for row in merged}
    of_tool: defaultdict[str, list[Merge]] = defaultdict(list)
    for merge in merges.values():
        of_tool[normalise(merge.tool)].append(merge)
    return Decisions({row["tool_key"]: _of_row(ToolState, row) for row in states}, merges, of_tool)


def _of_row(kind: type[T], row: Any) -> T:
    return kind(**{name: row[name] for name in kind.__slots__})  # type: ignore[attr-defined]


# --- deciding -------------------------------------------------------------------------------------------


class UnknownTool(LookupError):
    """No judge has missed a tool with that name, and no decision names it."""


class SameTool(ValueError):
    """Raised on a merge when two names are the same tool already."""


async def set_state(
    database: Database,
    name: str,
    state: ToolStateName,
    *,
    by: str,
    since: datetime | None = None,
    note: str | None = None,
) -> ToolState:
    """
    Record a tool's state.

    Args:
        name: Any name of the tool.
        since: When the state began; None: now.

    Raises:
        UnknownTool: The name is unknown; nothing was stored.
        DatabaseAway: The decision may have been stored.
    """
    [tool] = await _find(database, [name])

    async def work(connection: Connection) -> Any:
        await audit.record(database, connection, "tool_state", by=by, tool=tool.name, state=state)
        values = tool.name, normalise(tool.name), state, since, by, note
        return await connection.fetchrow(database.sql(ADD_STATE), *values)

    return _of_row(ToolState, await database.once(work))


async def merge_name(database: Database, name: str, tool: str | None, *, by: str) -> Merge:
    """
    Record that a name, in all spellings, belongs to a tool.

    Args:
        tool: Any name of the tool, or of one that agents call; None: keep the name apart from now on.

    Raises:
        UnknownTool: A name is unknown; nothing was stored.
        SameTool: Both names are one tool already; nothing was stored.
        DatabaseAway: The decision may have been stored.
    """
    called = frozenset[str]() if tool is None else await read_called(database, Selection())
    found = await _find(database, [name] if tool is None else [name, tool], called)
    into = name if tool is None else found[1].name
    if tool is not None and normalise(name) == normalise(into):
        raise SameTool("these are names of one tool already; give the name of another tool")

    async def work(connection: Connection) -> Any:
        await audit.record(database, connection, "tool_merge", by=by, name=name, into=into)
        return await connection.fetchrow(database.sql(ADD_MERGE), name, normalise(name), into, by)

    return _of_row(Merge, await database.once(work))


async def _find(database: Database, names: Sequence[str], called: frozenset[str] = frozenset()) -> list[Tool]:
    """
    Find the tool that each name belongs to, among those decided about, the `MOST_NAMES` most requested, and
    `called`.

    Raises:
        UnknownTool: A name is unknown.
        DatabaseAway: See `Database.once`.
    """
    read = database.rows(NAMES, MOST_NAMES)
    decisions, requested = await asyncio.gather(read_decisions(database), read)
    decided = [said.tool for said in decisions.said.values()]
    joined = [name for merge in decisions.merges.values() for name in (merge.name, merge.tool)]
    counts = dict.fromkeys([*decided, *joined, *called], 0) | {
        row["tool_name"]: row["scores"] for row in requested
    }
    # In a thread: comparing adversarial names takes long enough to block the event loop.
    tools = await asyncio.to_thread(decisions.merge, counts)
    by_key = {normalise(name): tool for tool in tools for name, _ in tool.spellings}
    try:
        return [by_key[normalise(name)] for name in names]
    except KeyError:
        raise UnknownTool("no judge has missed a tool of that name; look it up in the ledger") from None

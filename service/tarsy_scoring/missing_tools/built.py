"""
Which tools exist now that scores asked for: tools whose last recorded state is `built`, since the recorded
time.

Later measurements do not matter here: also a tool that is still missed exists.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from tarsy_scoring.evaluation.tool_names import normalise, root_of
from tarsy_scoring.missing_tools.decisions import Decisions, read_decisions
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.scores.built_tools import NO_TOOLS, BuiltTools, asked_before

Excluded = Literal["tool_built"]

MOST_NAMES = 200_000

# One step through the index for each name, however often it was requested: PostgreSQL cannot skip for
# `DISTINCT`.
NAMES = """
WITH RECURSIVE known AS (
  SELECT min(tool_name) AS name FROM {schema}.score_missing_tools
  UNION ALL
  SELECT (SELECT min(t.tool_name) FROM {schema}.score_missing_tools t WHERE t.tool_name > k.name)
  FROM known k WHERE k.name IS NOT NULL)
SELECT name FROM known WHERE name IS NOT NULL LIMIT $1
"""

NAMES_OF_SCORES = f"""
SELECT s.score_id, s.completed_at, t.tool_name
FROM {{schema}}.session_scores s JOIN {{schema}}.score_missing_tools t USING (score_id)
WHERE s.score_id = ANY($1::uuid[]) AND {asked_before("s", "$2::timestamptz")}
ORDER BY s.score_id, t.ordinal
"""


@dataclass(frozen=True, slots=True)
class BuiltTool:
    """A tool that a score asked for, and since when it exists."""

    tool: str
    since: datetime


Marks = Mapping[UUID, Sequence[BuiltTool]]
"""Scores that asked for tools which were built later, and these tools."""


async def read_built(database: Database, exclude: Excluded | None = "tool_built") -> BuiltTools:
    """
    Read all names of built tools, for statements that leave out the scores that asked for them earlier.

    Args:
        exclude: None: leave out nothing.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    if exclude is None:
        return NO_TOOLS
    decisions = await read_decisions(database)
    if not any(said.state == "built" for said in decisions.said.values()):
        return NO_TOOLS
    rows = await database.once(lambda c: c.fetch(database.sql(NAMES), MOST_NAMES))
    find = built_tools(decisions)
    found = [(row["name"], tool.since) for row in rows if (tool := find(row["name"]))]
    return BuiltTools(tuple(name for name, _ in found), tuple(since for _, since in found))


async def read_marks(database: Database, scores: Collection[UUID]) -> Marks:
    """
    Read which of these scores asked for tools that were built later, and for which.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    decisions = await read_decisions(database)
    built = [said.since for said in decisions.said.values() if said.state == "built"]
    if not built or not scores:
        return {}
    rows: list[Any] = await database.once(
        lambda c: c.fetch(database.sql(NAMES_OF_SCORES), list(scores), max(built))
    )
    find = built_tools(decisions)
    marks: dict[UUID, list[BuiltTool]] = {}
    for row in rows:
        tool = find(row["tool_name"])
        if tool and tool.since > row["completed_at"] and tool not in marks.setdefault(row["score_id"], []):
            marks[row["score_id"]].append(tool)
    return marks


def built_tools(decisions: Decisions) -> Callable[[str], BuiltTool | None]:
    """Return the look-up of a built tool by any of its names, which follows merges."""
    tool_of = {key: normalise(merge.tool) for key, merge in decisions.merges.items()}
    built = {
        key: BuiltTool(said.tool, said.since) for key, said in decisions.said.items() if said.state == "built"
    }
    return lambda name: built.get(root_of(normalise(name), tool_of))

"""
Why judges missed tools: for each tool the reasons that a few scores give.

They come from the selection's newest scores, the lowest totals first. If these do not name a tool, the most
used names are looked up in some requests. A tool may have reasons that are not found.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from tarsy_scoring.analytics.analytics import SELECTED
from tarsy_scoring.analytics.daily import Selection
from tarsy_scoring.missing_tools.ledger import WantedTool
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.scores.session_list import CUSTOM_PLAN
from tarsy_scoring.timeline.text import cut, one_line

REASONS = 2  # per tool
NAMES = 4  # per tool
MOST_READ = 500  # newest scores
MOST_OF_NAME = 50  # stored requests that are looked at
LONGEST_REASON = 300  # characters

_COLUMNS = "s.score_id, s.session_id, s.total_score, s.completed_at"
_COUNTS = f"{SELECTED} AND NOT s.flags ? 'tampering_suspected'"

# Requests in the newest $5 scores, at most $8 per tool ($6 names, $7 their tools).
NEWEST = f"""
SELECT * FROM (
  SELECT r.*, row_number() OVER (PARTITION BY tool ORDER BY total_score NULLS LAST, completed_at DESC, score_id) AS n
  FROM (SELECT DISTINCT ON (w.tool, s.score_id) w.tool, s.*, t.rationale
        FROM (SELECT {_COLUMNS} FROM {{schema}}.session_scores s WHERE {_COUNTS}
              ORDER BY s.completed_at DESC LIMIT $5) s
        -- OFFSET 0: never by the name, which any number of scores may have
        CROSS JOIN LATERAL (SELECT t.tool_name, t.rationale, t.ordinal FROM {{schema}}.score_missing_tools t
                            WHERE t.score_id = s.score_id OFFSET 0) t
        JOIN unnest($6::text[], $7::int[]) AS w(name, tool) ON w.name = t.tool_name
        ORDER BY w.tool, s.score_id, t.ordinal) r) ranked
WHERE n <= $8 ORDER BY tool, n
"""

# Some requests by each name ($5 names, $6 their tools), the newest first.
BY_NAME = f"""
SELECT w.tool, f.* FROM unnest($5::text[], $6::int[]) AS w(name, tool) CROSS JOIN LATERAL (
  SELECT {_COLUMNS}, t.rationale
  FROM (SELECT t.score_id, t.rationale FROM {{schema}}.score_missing_tools t
        WHERE t.tool_name = w.name LIMIT {MOST_OF_NAME}) t
  JOIN {{schema}}.session_scores s USING (score_id)
  WHERE {_COUNTS} ORDER BY s.completed_at DESC LIMIT {REASONS}) f
ORDER BY w.tool, f.completed_at DESC, f.score_id
"""
_CANDIDATES = 4 * REASONS  # many scores give the same reason


@dataclass(frozen=True, slots=True)
class Reason:
    """A judge's reason for missing a tool, and the score it comes from."""

    score_id: UUID
    session_id: str
    total_score: int | None
    reason: str
    scored_at: datetime


def clipped(text: str) -> str:
    """Put a model's text in one line of at most `LONGEST_REASON` characters, without invisible characters."""
    return cut(one_line(text), LONGEST_REASON)


async def read_reasons(
    database: Database, selection: Selection, tools: Sequence[WantedTool]
) -> list[list[Reason]]:
    """
    Read reasons for the tools in a ledger, in the same order; at most `REASONS` different texts per tool.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    names = [(spelling.name, n) for n, entry in enumerate(tools) for spelling in entry.spellings[:NAMES]]

    async def work(connection: Connection) -> dict[int, list[Reason]]:
        await connection.execute(CUSTOM_PLAN)
        arguments = (*selection.arguments, MOST_READ, *_columns(names), _CANDIDATES)
        found = _by_tool(await connection.fetch(database.sql(NEWEST), *arguments))
        if others := [(name, tool) for name, tool in names if tool not in found]:
            rows = await connection.fetch(database.sql(BY_NAME), *selection.arguments, *_columns(others))
            found |= _by_tool(rows)
        return found

    found = await database.once(work) if names else {}
    return [found.get(n, []) for n in range(len(tools))]


def _columns(names: Sequence[tuple[str, int]]) -> tuple[list[str], list[int]]:
    return [name for name, _ in names], [tool for _, tool in names]


def _by_tool(rows: Iterable[Any]) -> dict[int, list[Reason]]:
    """Each tool's first reasons that differ in text and score."""
    found = defaultdict[int, list[Reason]](list)
    for row in rows:
        reason, known = clipped(row["rationale"]), found[row["tool"]]
        is_new = all(reason != one.reason and row["score_id"] != one.score_id for one in known)
        if is_new and len(known) < REASONS:
            columns = row["score_id"], row["session_id"], row["total_score"], reason, row["completed_at"]
            known.append(Reason(*columns))
    return dict(found)

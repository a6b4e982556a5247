"""
Why judges missed tools: for each tool the reasons that a few scores give.

They come from the selection's newest scores, the lowest totals first, so a rare tool may have none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from tarsy_scoring.analytics.analytics import SELECTED
from tarsy_scoring.analytics.daily import Selection
from tarsy_scoring.missing_tools.ledger import WantedTool
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.scores.session_list import fetch_planned
from tarsy_scoring.timeline.text import cut, one_line

REASONS = 2  # per tool
MOST_READ = 1000  # newest scores
LONGEST_REASON = 300  # characters

# Requests in the newest $5 scores for the names $6 with their tools $7, the lowest totals first.
NEWEST = f"""
SELECT w.tool, s.*, t.rationale
FROM (SELECT s.score_id, s.session_id, s.total_score, s.completed_at FROM {{schema}}.session_scores s
      WHERE {SELECTED} AND NOT s.flags ? 'tampering_suspected' ORDER BY s.completed_at DESC LIMIT $5) s
-- OFFSET 0: never by the name, which any number of scores may have
CROSS JOIN LATERAL (SELECT t.tool_name, left(t.rationale, 1000) AS rationale, t.ordinal
                    FROM {{schema}}.score_missing_tools t WHERE t.score_id = s.score_id OFFSET 0) t
JOIN unnest($6::text[], $7::int[]) AS w(name, tool) ON w.name = t.tool_name
ORDER BY s.total_score NULLS LAST, s.completed_at DESC, s.score_id, t.ordinal
"""


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
    named = [(spelling.name, n) for n, entry in enumerate(tools) for spelling in entry.spellings]
    names, numbers = [name for name, _ in named], [n for _, n in named]
    found: list[list[Reason]] = [[] for _ in tools]
    if tools:
        arguments = *selection.arguments, MOST_READ, names, numbers
        _sort_out(await fetch_planned(database, NEWEST, *arguments), found)
    return found


def _sort_out(rows: Sequence[Any], found: Sequence[list[Reason]]) -> None:
    """Add each tool's first reasons that differ in text and score."""
    for row in rows:
        known = found[row["tool"]]
        if len(known) == REASONS:
            continue
        reason = clipped(row["rationale"])
        if all(reason != one.reason and row["score_id"] != one.score_id for one in known):
            columns = row["score_id"], row["session_id"], row["total_score"], reason, row["completed_at"]
            known.append(Reason(*columns))

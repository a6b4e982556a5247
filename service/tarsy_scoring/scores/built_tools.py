"""
Scores that asked for a tool which was built after they were made.

Such a score says what the agents lacked then. Reports of quality may leave it out: the agents have the tool
now.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class BuiltTools:
    """
    Names that judges wrote for built tools, and since when each tool exists. Empty: nothing is left out.

    Args:
        names: Every spelling of the tools' names.
        since: For each name.
    """

    names: tuple[str, ...] = ()
    since: tuple[datetime, ...] = ()

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The two arrays that statements take."""
        return list(self.names), list(self.since)


NO_TOOLS = BuiltTools()


def requests_of(names: str, since: str) -> str:
    """
    SELECT the scores that asked for such a tool: `score_id`, and `built`, when the last one was built.

    Args:
        names, since: Parameters with the arrays of `BuiltTools`.
    """
    return f"""
    SELECT t.score_id, max(b.built) AS built FROM unnest({names}::text[], {since}::timestamptz[]) AS b(name, built)
    JOIN {{schema}}.score_missing_tools t ON t.tool_name = b.name GROUP BY t.score_id"""


def asked_before(alias: str, built: str) -> str:
    """Condition: the score was made before this time. What a tampered score asks for does not count."""
    return f"{alias}.completed_at < {built} AND NOT {alias}.flags ? 'tampering_suspected'"


def has_no_built_tool(alias: str, names: str, since: str) -> str:
    """
    Condition: the score asked for none of these tools before it was built. For statements that read many
    scores.
    """
    return f"""NOT EXISTS (
    SELECT FROM unnest({names}::text[], {since}::timestamptz[]) AS b(name, built)
    JOIN {{schema}}.score_missing_tools t ON t.tool_name = b.name
    WHERE t.score_id = {alias}.score_id AND {asked_before(alias, "b.built")})"""

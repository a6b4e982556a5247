"""The session text in a context, ranks for shortening, and facts about entries."""

from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import NamedTuple

from tarsy_scoring.timeline.render.fence import prefix_lines


class Rank(IntEnum):
    """The order in which parts are shortened when the context is too long; `KEPT` is never shortened."""

    KEPT = 0
    SUMMARISED_RESULT = 1
    RESULT = 2
    REASONING = 3
    REST = 4


@dataclass(slots=True)
class RenderedPart:
    """
    A piece of the context that shows session text.

    `entry` is the id by which the judge can cite it, `place` the index in `Rendering.pieces`. `quoted` is the
    session text; `quote` makes it safe text with a line end. Each shown line has the prefix, except the first
    line of an `inline` part. A shortened part counts the characters `removed` from `quoted`.
    """

    entry: str
    place: int
    rank: Rank
    quoted: str
    inline: bool
    removed: int = 0

    def quote(self, text: str) -> str:
        """Make this session text, which must be safe, the text of the part; returns it as it is shown."""
        self.quoted = text if text.endswith("\n") else text + "\n"
        return prefix_lines(self.quoted, inline=self.inline)


class EntryFacts(NamedTuple):
    """
    Where an entry stands, and what made it, in safe words; the judge reads the same in headings.

    Args:
        stage: Number and name; empty outside stages.
        execution: Number and name of the agent, and the agent that it worked for; empty outside executions.
        agent: The agent's name alone.
        tool: The called tool; empty where the entry is no call.
        failed: Whether the call or the step failed, or the entry is an error.
        at: When it happened; None where the source has none. The judge does not see it.
    """

    stage: str = ""
    execution: str = ""
    agent: str = ""
    tool: str = ""
    failed: bool = False
    at: datetime | None = None

"""The pieces of a context, their ranks for shortening, and facts about entries."""

from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum

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
    A piece of the context; all parts joined are the context.

    `entry` is the id by which the judge can cite it, empty for headings. `text` is sanitized and ends with a
    line end. `quoted` is the part's session text, if any; in `text` each line has the prefix, except an
    `inline` part's first line. A shortened part counts the characters `removed`
    from `quoted`.
    """

    entry: str
    text: str
    rank: Rank = Rank.KEPT
    quoted: str = ""
    inline: bool = False
    removed: int = 0

    def quote(self, text: str) -> None:
        """Make this session text, which must be safe, the text of the part."""
        self.quoted = text if text.endswith("\n") else text + "\n"
        self.text = self.quoted_lines(self.quoted)

    def quoted_lines(self, start: str) -> str:
        """The start of the session text as it is shown."""
        first, line_end, others = start.partition("\n") if self.inline else ("", "", start)
        return first + line_end + (prefix_lines(others) if others else "")


@dataclass(frozen=True, slots=True)
class EntryFacts:
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

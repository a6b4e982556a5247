"""What `tools` says of a tool in one line."""

from tables import table
from tarsy_scoring.commands.tools import _line
from tarsy_scoring.missing_tools.ledger import LedgerEntry
from tarsy_scoring.records.analytics import Spelling


@table
def test_a_tool_in_one_line(sessions: int, points: int, told: str) -> None:
    assert _line(entry(sessions, points)) == told


def test_other_names_of_a_tool() -> None:
    assert _line(entry(2, 5, "tail_logs", "tail\x1b[2Jlogs")).endswith("lost, open (also tail [2Jlogs)")


def entry(sessions: int, points: int, *names: str) -> LedgerEntry:
    spellings = [Spelling(name, 1) for name in names]
    return LedgerEntry(
        "tail_logs",
        spellings,
        sessions,
        1,
        [],
        points,
        False,
        state="open",
        said=None,
        demand=None,
        has_other_judge=False,
        merges=[],
    )

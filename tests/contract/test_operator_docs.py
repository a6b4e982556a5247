"""The documentation has an entry for each error kind, flag and log event that an operator may meet."""

import re

from contracts import ROOT

from log_events import log_events
from tarsy_scoring.scores.shapes import ERROR_KINDS, FLAGS, WAITING_FOR

ERRORS = (ROOT / "docs/errors.md").read_text("utf-8")
LOG_EVENTS = (ROOT / "docs/log-events.md").read_text("utf-8")


def rows_below(page: str, head: str) -> dict[str, list[str]]:
    """First word -> the other columns of the tables whose first column has this head; no word stands twice."""
    rows: dict[str, list[str]] = {}
    for table in re.findall(rf"^\| {re.escape(head)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE):
        for row in table.splitlines():
            word, *others = (column.strip() for column in row.strip().removesuffix("|").split(" | "))
            word = word.removeprefix("| ").strip("`")
            assert word not in rows, word
            rows[word] = others
    return rows


def test_every_error_kind_has_a_meaning_and_a_remedy() -> None:
    entries = re.findall(
        r"^### `(\w+)`\n\n\*\*Means\.\*\* .+?\n\n\*\*Do\.\*\* .+?\n\n", ERRORS, re.DOTALL | re.MULTILINE
    )

    assert sorted(entries) == sorted(ERROR_KINDS)


def test_every_flag_and_every_wait_has_a_row() -> None:
    assert rows_below(ERRORS, "`waiting_for`").keys() == set(WAITING_FOR)
    assert rows_below(ERRORS, "flag").keys() == set(FLAGS)


def test_every_log_event_has_a_row_with_its_level() -> None:
    """A name in the code without a row fails, and so does a row whose event was removed."""
    rows = rows_below(LOG_EVENTS, "event")
    levels = {name: {columns[0]} for name, columns in rows.items()}

    assert levels == log_events(ROOT / "service/tarsy_scoring")


def test_every_log_event_of_level_error_has_a_remedy() -> None:
    rows = rows_below(LOG_EVENTS, "event")

    assert [name for name, (level, _, remedy) in rows.items() if level == "error" and not remedy] == []

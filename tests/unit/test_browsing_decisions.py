"""Computations of lists, exports and analytics: cursors, cells, shares, and whether a tool exists."""

import base64
import csv
import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from tables import table
from tarsy_scoring.analytics.analytics import tag_shares
from tarsy_scoring.missing_tools.decisions import Decisions, ToolState
from tarsy_scoring.missing_tools.demand import Demand, RequestedSet
from tarsy_scoring.missing_tools.ledger import list_tools
from tarsy_scoring.scores.cursors import InvalidCursor
from tarsy_scoring.scores.document import NO_USAGE, document, unstored_row
from tarsy_scoring.scores.export import CSV_COLUMNS, ExportedScore, csv_lines, csv_row
from tarsy_scoring.scores.session_list import LONGEST_CURSOR, Filters, Place, Sort, read_cursor, write_cursor

ENDED = datetime(2026, 3, 10, 12, 30, 15, 123456, tzinfo=UTC)
FILTERS = Filters(chain="kubernetes", labels={"guidance": "v2", "build": "7"}, since=ENDED)

# --- cursors -------------------------------------------------------------------------------------------


PLACES: list[tuple[Place, Sort]] = [
    ((ENDED, "session-1"), "newest"),
    ((0, "session-1"), "score_asc"),
    ((datetime.max.replace(tzinfo=UTC), "a" * 255), "newest"),
    ((datetime.min.replace(tzinfo=UTC), "a:b@c.d-e_f"), "newest"),
]


def test_a_cursor_gives_its_place_back() -> None:
    """It is exact to the microsecond and needs no escaping in a URL."""
    for place, sort in PLACES:
        cursor = write_cursor(place, FILTERS, sort)
        assert read_cursor(cursor, FILTERS, sort) == place
        assert len(cursor) <= LONGEST_CURSOR
        assert cursor.replace("-", "").replace("_", "").isalnum()


def test_a_cursor_belongs_to_its_list() -> None:
    cursor = write_cursor((ENDED, "session-1"), FILTERS, "newest")
    changes: list[dict[str, Any]] = [{"chain": "other"}, {"min_score": 1}, {"since": None}, {"prefix": "x"}]
    for changed in (*changes, {"labels": {"guidance": "v2"}}):
        with pytest.raises(InvalidCursor, match="other filters"):
            read_cursor(cursor, replace(FILTERS, **changed), "newest")
    with pytest.raises(InvalidCursor, match="another sort"):
        read_cursor(write_cursor((50, "session-1"), FILTERS, "score_asc"), FILTERS, "score_desc")


def test_the_same_filters_written_otherwise_have_the_same_cursors() -> None:
    """The order of labels and the time zone do not change a filter."""
    same = replace(
        FILTERS, labels=dict(reversed(FILTERS.labels.items())), since=ENDED.astimezone(timezone(timedelta(hours=2)))
    )

    assert read_cursor(write_cursor((7, "s"), FILTERS, "score_asc"), same, "score_asc") == (7, "s")


def _written(*parts: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")


DIGEST, TIME, _ = json.loads(base64.urlsafe_b64decode(write_cursor((ENDED, "s"), Filters(), "newest") + "=="))
FORGED = {
    "empty": "",
    "no-base64": "?",
    "no-json": "AAAA",
    "deeply-nested": base64.urlsafe_b64encode(b"[" * 400).decode(),
    "too-long": _written(DIGEST, TIME, "s", 2),
    "a-total-where-time-sorts": _written(DIGEST, 1, "s"),
    "before-time": _written(DIGEST, "0001-01-01T00:00:00+14:00", "s"),
    "a-nul": _written(DIGEST, TIME, "a\0b"),
    "another-list": _written("0" * 16, TIME, "s"),
}


def test_forged_cursors_are_refused() -> None:
    """No other error is raised, and no part of such a cursor reaches the database."""
    for name, cursor in FORGED.items():
        with pytest.raises(InvalidCursor):
            pytest.fail(f"{name}: {read_cursor(cursor, Filters(), 'newest')}")


def test_special_characters_of_a_prefix_are_escaped() -> None:
    assert Filters(prefix=r"50%_\a").arguments[-1] == r"50\%\_\\a%"


# --- cells ---------------------------------------------------------------------------------------------


def cells(*values: Any) -> list[str]:
    """The cells as a CSV reader gets them."""
    [row] = csv.reader(io.StringIO(csv_lines([values])))
    return row


FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", " =1", "=cmd|' /C calc'!A0", "＝1", "－1", '=HYPERLINK("http://x","y")')
INSIDE: list[tuple[Any, str]] = [
    ("a;=1", "a;'=1"),
    ("a; =1", "a; '=1"),
    ('a;"=1"', 'a;"\'=1"'),
    ("a\t@SUM(A1)", "a\t'@SUM(A1)"),
    ("a\n-1", "a\n'-1"),
    ("a\r\n+1", "a\r\n'+1"),
    ("\t=1", "'\t'=1"),
    ("\n=1", "'\n'=1"),
    ("x;=1;=2", "x;'=1;'=2"),
    ("a = b, c-d; e=f", "a = b, c-d; e=f"),
    ("a\nb - c", "a\nb - c"),
    ({"guidance": "v2;=1"}, '{"guidance":"v2;\'=1"}'),
]


def test_no_text_is_a_formula() -> None:
    """No part of a text is one either, for readers that end a cell at `;`, a tab or a line break."""
    for text, written in [*((text, "'" + text) for text in FORMULAS), *INSIDE]:
        assert cells(text) == [written]
        for invisible in "" if isinstance(text, dict) else "\u200b\ufeff\u2060\xad":
            assert cells(invisible + text.replace(";", f";{invisible}")) == [written]
    for text in ("plain", "a=b", "1-2", "'=1", "", "a,b", 'say "so"', "two\nlines", "Ünïcode ✓"):
        assert cells("first", text) == ["first", text]


def test_values_other_than_text_are_written_plainly() -> None:
    """Numbers may be negative, null is an empty cell, and times are in UTC."""
    at = datetime(2026, 3, 10, 14, tzinfo=timezone(timedelta(hours=2)))

    assert cells(67, -1.5, None, True, False, at, {"b": 1.5}, {}) == [
        *("67", "-1.5", "", "true", "false", "2026-03-10T12:00:00Z", '{"b":1.5}', "")
    ]


def test_a_label_cannot_leave_its_cell() -> None:
    assert cells({'"\r\n=1,': "=2"}) == [json.dumps({'"\r\n=1,': "=2"}, separators=(",", ":"))]


def exported(**columns: Any) -> ExportedScore:
    """A score in which only the named columns are known."""
    row = unstored_row("session-1", "kubernetes", "c", "h", ENDED) | {"status": "completed"} | columns
    row["missing_tools"] = [{"tool_name": "=evil()", "rationale": "r"}, {"tool_name": "node_cpu", "rationale": "r"}]
    return ExportedScore(document(row, lambda _name, _chain: None), "PodCrashLoop", {"guidance": "v2"})


def test_a_row_has_a_cell_for_every_column() -> None:
    """This holds also where a layer did not run."""
    row = dict(zip(CSV_COLUMNS, csv_row(exported(total_score=67)), strict=True))

    assert row["total_score"] == 67
    assert (row["alert_type"], row["labels"], row["missing_tools"]) == (
        "PodCrashLoop",
        {"guidance": "v2"},
        "=evil(); node_cpu",
    )
    assert row["interaction_error_rate"] is None
    assert [row[f"usage_{name}"] for name in NO_USAGE] == [None] * len(NO_USAGE)


def test_a_row_shows_the_measured_values() -> None:
    score = exported(
        score_id=UUID(int=1),
        interaction={"total_commands": 7, "error_rate": 0.25, "completed": True},
        grounding={"checked": 4, "held": 3, "share": 0.75},
        flags=["ungrounded", "self_judged"],
        score_breakdown={"logical_flow": 18},
    )
    row = dict(zip(CSV_COLUMNS, cells(*csv_row(score)), strict=True))

    assert row["interaction_total_commands"] == "7"
    assert row["interaction_completed"] == "true"
    assert row["grounding_share"] == "0.75"
    assert row["flags"] == "ungrounded; self_judged"
    assert row["score_breakdown"] == '{"logical_flow":18}'
    assert row["missing_tools"] == "'=evil(); node_cpu"
    assert len(CSV_COLUMNS) == len(set(CSV_COLUMNS))


# --- shares and tools ----------------------------------------------------------------------------------


def test_a_share_is_never_above_one() -> None:
    """A score stored between the two counts is only in the second."""
    [tag] = tag_shares({"kubernetes": 1}, [{"tag": "late", "chain_id": "kubernetes", "scores": 2}]).tags

    assert tag.share == tag.by_chain[0].share == 1.0


@table
def test_a_tool_exists_if_a_called_tool_has_its_name(called: str, exists: bool) -> None:
    demand = Demand(
        {"node_cpu": [RequestedSet(frozenset({"node_cpu"}), "kubernetes", 4)]}, frozenset({called}), 0, ENDED
    )

    [tool] = list_tools(demand, Decisions({}, {}, {}), 50).tools

    assert tool.exists is exists


def test_a_tool_that_one_session_alone_names_is_listed_apart() -> None:
    """Below all others; a decision about it takes it among them, and another session with another spelling as well."""
    asked = {"paint": {"k": 1}, "plan": {"k": 1}, "node_cpu": {"k": 1}, "Node CPU": {"n": 1}, "logs": {"k": 1, "n": 2}}
    sets = {name: [RequestedSet(frozenset({name}), *one) for one in by.items()] for name, by in asked.items()}
    planned = ToolState("plan", "planned", ENDED, "ada", ENDED, None)

    found = list_tools(Demand(sets, frozenset(), 0, ENDED), Decisions({"plan": planned}, {}, {}), 50)

    assert [(tool.tool_name, tool.sessions, tool.named_once) for tool in found.tools] == [
        ("logs", 3, False),
        ("Node CPU", 2, False),
        ("plan", 1, False),
        ("paint", 1, True),
    ]

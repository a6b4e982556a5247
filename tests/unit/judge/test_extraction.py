"""Which parts of a judge's answer count as total, analysis, breakdown and missing tools."""

import time

from tables import table
from tarsy_scoring.judge.read.extraction import analysis_of, extract_breakdown, extract_missing_tools, extract_total
from tarsy_scoring.judge.verdict import MissingTool

CATEGORIES = {"logical_flow": 25, "consistency": 25}


@table
def test_a_plain_or_decorated_integer_on_the_last_line_is_the_total(reply: str, total: int) -> None:
    assert extract_total(reply) == total


@table
def test_anything_else_on_the_last_line_is_no_score(reply: str) -> None:
    assert extract_total(reply) is None


@table
def test_only_0_to_100_are_scores(number: int) -> None:
    assert extract_total(f"analysis\n{number}") == (number if 0 <= number <= 100 else None)


@table
def test_the_analysis_is_the_answer_without_its_score_line(reply: str, analysis: str) -> None:
    assert analysis_of(reply) == analysis


@table
def test_stated_categories_are_the_breakdown(reply: str) -> None:
    """Usual spellings of `Logical Flow: X/25`; where a category is stated twice the last statement counts."""
    assert extract_breakdown(reply, CATEGORIES) == {"logical_flow": 15, "consistency": 17}


@table
def test_a_reply_without_every_category_has_no_breakdown(reply: str) -> None:
    assert extract_breakdown(reply, CATEGORIES) is None


def test_half_points_are_kept() -> None:
    assert extract_breakdown("Logical Flow: 15.5/25\nConsistency: 17/25", CATEGORIES) == {
        "logical_flow": 15.5,
        "consistency": 17,
    }


def test_criteria_without_categories_have_no_breakdown() -> None:
    assert extract_breakdown("Logical Flow: 15/25", {}) is None


READ_FILE = MissingTool("read-file", "would have shown the script")
LIST = MissingTool("list-processes", "would have verified execution")


@table
def test_numbered_items_are_missing_tools(text: str) -> None:
    assert extract_missing_tools(text) == [READ_FILE, LIST]


def test_lines_below_an_item_belong_to_its_reason() -> None:
    text = "1. **read-file**: no content seen\n   - the script\n   1. its arguments\n   2. its owner\n2. `ps`: x"
    assert extract_missing_tools(text) == [
        MissingTool("read-file", "no content seen\n- the script\n1. its arguments\n2. its owner"),
        MissingTool("ps", "x"),
    ]


@table
def test_a_reply_without_a_list_of_tools_gives_no_rows(text: str) -> None:
    assert extract_missing_tools(text) == []


HOSTILE = [" ", "\n", "67\n", "9", "*", "`", "```\n", "> ", "\u200b", "total ", "Logical Flow: ", "Logical Flow (((1/2"]
HOSTILE += ["1. a: b\n", "1. " + " " * 97, "no missing ", "<b>", "> 1\n", "~~~\n```\n", "$1", "\\boxed{", "\U0001f3af"]
HOSTILE += ["| Consistency | 1 "]


def test_a_hostile_reply_is_read_in_linear_time() -> None:
    for unit in HOSTILE:
        for before, after in [("", ""), ("```", "1"), ("1.", "x"), ("", "\n67"), ("a", "b\n\n67")]:
            reply = before + unit * (40_000 // len(unit)) + after
            started = time.thread_time()
            extract_total(reply)
            analysis_of(reply)
            extract_breakdown(reply, CATEGORIES)
            extract_missing_tools(reply)
            assert time.thread_time() - started < 5, (before, unit)  # linear: 0.3 s; one quadratic search: 8 s

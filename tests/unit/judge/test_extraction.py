"""What counts as a total, an analysis, a breakdown and a missing tool in an answer of the judge."""

import time

import pytest

from tables import table
from tarsy_scoring.judge.extraction import analysis_of, extract_breakdown, extract_missing_tools, extract_total
from tarsy_scoring.judge.verdict import MissingTool

CATEGORIES = {"logical_flow": 25, "consistency": 25}
MEGABYTE = 1_000_000


@table
def test_a_plain_or_decorated_integer_on_the_last_line_is_the_total(reply: str, total: int) -> None:
    """The last non-empty line holds the total, whatever usual decoration it wears."""
    assert extract_total(reply) == total


@table
def test_anything_else_on_the_last_line_is_no_score(reply: str) -> None:
    """0-100 or nothing: what is not plainly a total is never guessed."""
    assert extract_total(reply) is None


@table
def test_only_0_to_100_are_scores(number: int) -> None:
    """Every whole number from 0 to 100 is a score, no other one is."""
    assert extract_total(f"analysis\n{number}") == (number if 0 <= number <= 100 else None)


@table
def test_the_analysis_is_the_answer_without_its_score_line(reply: str, analysis: str) -> None:
    """Only the line that holds the total goes, with the fence around it."""
    assert analysis_of(reply) == analysis


@table
def test_stated_categories_are_the_breakdown(reply: str) -> None:
    """Usual spellings of `Logical Flow: X/25`; where a category is stated twice the last statement counts."""
    assert extract_breakdown(reply, CATEGORIES) == {"logical_flow": 15, "consistency": 17}


@table
def test_what_does_not_state_every_category_is_no_breakdown(reply: str) -> None:
    """A part cannot be added up, and points are never clamped or guessed."""
    assert extract_breakdown(reply, CATEGORIES) is None


def test_half_points_are_kept() -> None:
    """Points are what the judge wrote."""
    assert extract_breakdown("Logical Flow: 15.5/25\nConsistency: 17/25", CATEGORIES) == {
        "logical_flow": 15.5,
        "consistency": 17,
    }


def test_criteria_without_categories_have_no_breakdown() -> None:
    """Nothing to add up."""
    assert extract_breakdown("Logical Flow: 15/25", {}) is None


READ_FILE = MissingTool("read-file", "would have shown the script")
LIST = MissingTool("list-processes", "would have verified execution")


@table
def test_numbered_items_are_missing_tools(text: str) -> None:
    """The usual spellings of a numbered list; text before it and headings after it are no items."""
    assert extract_missing_tools(text) == [READ_FILE, LIST]


def test_what_stands_below_an_item_joins_its_reason() -> None:
    """Nested bullets and nested numbers are part of the item they stand under."""
    text = "1. **read-file**: no content seen\n   - the script\n   1. its arguments\n   2. its owner\n2. `ps`: x"
    assert extract_missing_tools(text) == [
        MissingTool("read-file", "no content seen\n- the script\n1. its arguments\n2. its owner"),
        MissingTool("ps", "x"),
    ]


@table
def test_what_is_no_list_of_tools_gives_no_rows(text: str) -> None:
    """A list that cannot be read gives no rows and no error."""
    assert extract_missing_tools(text) == []


@pytest.mark.parametrize(
    "unit",
    [
        pytest.param(" ", id="blanks"),
        pytest.param("\n", id="line_ends"),
        pytest.param("67\n", id="scores"),
        pytest.param("9", id="digits"),
        pytest.param("*", id="stars"),
        pytest.param("`", id="ticks"),
        pytest.param("```\n", id="fences"),
        pytest.param("> ", id="quotes"),
        pytest.param("\u200b", id="zero_width"),
        pytest.param("total ", id="label_words"),
        pytest.param("Logical Flow: ", id="category_names"),
        pytest.param("Logical Flow (((1/2", id="almost_a_breakdown"),
        pytest.param("1. " + " " * 97, id="almost_items"),
        pytest.param("1. a: b\n", id="items"),
        pytest.param("no missing ", id="almost_none_missing"),
        pytest.param("<b>", id="tags"),
        pytest.param("> 1\n", id="quoted_lines"),
        pytest.param("~~~\n```\n", id="two_kinds_of_fences"),
        pytest.param("$1", id="dollars"),
        pytest.param("\\boxed{", id="boxes"),
        pytest.param("\U0001f3af", id="emoji"),
        pytest.param("| Consistency | 1 ", id="cells"),
    ],
)
@pytest.mark.parametrize(
    "frame", [("", ""), ("```", "1"), ("1.", "x"), ("", "\n67")], ids=["alone", "fence", "item", "score"]
)
def test_a_hostile_megabyte_is_read_in_linear_time(unit: str, frame: tuple[str, str]) -> None:
    reply = frame[0] + unit * (MEGABYTE // len(unit)) + frame[1]
    started = time.process_time()
    extract_total(reply)
    analysis_of(reply)
    extract_breakdown(reply, CATEGORIES)
    extract_missing_tools(reply)
    assert time.process_time() - started < 5

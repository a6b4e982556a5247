"""What counts as a total, an analysis, a breakdown and a missing tool in an answer of the judge."""

import time

import pytest

from tarsy_scoring.judge.extraction import analysis_of, extract_breakdown, extract_missing_tools, extract_total
from tarsy_scoring.judge.verdict import MissingTool

CATEGORIES = {"logical_flow": 25, "consistency": 25}
MEGABYTE = 1_000_000

SCORES = {
    "bare": ("67", 67),
    "zero": ("0", 0),
    "hundred": ("100", 100),
    "after_an_analysis": ("However, it failed to look.\n\n67", 67),
    "surrounded_by_blanks": ("  \t67 \n\n  \n", 67),
    "bold": ("**67**", 67),
    "bold_italic": ("***67***", 67),
    "underscores": ("__67__", 67),
    "inline_code": ("`67`", 67),
    "html_bold": ("<b>67</b>", 67),
    "html_strong": ("<STRONG>Total: 67</STRONG>", 67),
    "quotation_marks": ('"67"', 67),
    "plus": ("+67", 67),
    "percent": ("67%", 67),
    "per_cent_in_words": ("67 percent", 67),
    "over_hundred": ("67/100", 67),
    "over_hundred_spaced": ("67 / 100", 67),
    "out_of_hundred": ("67 out of 100", 67),
    "points": ("67 points", 67),
    "points_out_of_hundred": ("67 points out of 100.", 67),
    "labelled_total": ("Total: 67", 67),
    "labelled_total_in_capitals": ("TOTAL SCORE: 67", 67),
    "labelled_with_equals": ("Total score = 67", 67),
    "label_bold": ("**Total:** 67", 67),
    "value_bold": ("Final Score: **67/100**", 67),
    "label_and_value_bold": ("**Total Score: 67/100**", 67),
    "full_stop": ("Score: 67.", 67),
    "sentence": ("The final score is 67.", 67),
    "heading": ("## Total Score: 67/100", 67),
    "quote": ("> **67**", 67),
    "list_item": ("- 67", 67),
    "starred_list_item": ("* Total: 67", 67),
    "table_row": ("| Total | 67/100 |", 67),
    "closing_fence_below": ("67\n```", 67),
    "fenced": ("```text\n67\n```\n", 67),
    "tilde_fence": ("~~~\n67\n~~~", 67),
    "zero_width_space_inside": ("6\u200b7", 67),
    "byte_order_mark": ("\ufeff67", 67),
    "only_zero_width_below": ("67\n\u200b\u200d\n", 67),
    "no_break_space": ("Total:\u00a067", 67),
    "carriage_returns": ("analysis\r67\r", 67),
    "windows_line_ends": ("analysis\r\n67\r\n", 67),
    "line_separator": ("analysis\u202867\u2028", 67),
    "next_line": ("analysis 12\u008567", 67),
    "earlier_score_lines": ("Total: 90\n> 100\nFinally:\n67", 67),
    "per_cent_in_two_words": ("67 per cent", 67),
    "fraction_slash": ("67\u2044100", 67),
    "full_width_slash": ("67\uff0f100", 67),
    "scale_behind_the_label": ("Total Score (out of 100): 67", 67),
    "bold_scale_behind_the_label": ("**Total (/100):** 67", 67),
    "labelled_grade": ("Final grade: 67", 67),
    "labelled_answer": ("Final answer: 67", 67),
    "labelled_verdict": ("Final verdict: **67/100**", 67),
    "whole_sentence": ("My final score for this investigation is 67.", 67),
    "boxed": ("\\boxed{67}", 67),
    "boxed_in_dollars": ("$\\boxed{67}$", 67),
    "boxed_label": ("**Total:** $\\boxed{67/100}$", 67),
    "bold_in_latex": ("$$\\textbf{67}$$", 67),
    "dollars": ("Total: $67$", 67),
    "displayed_math": ("\\[ 67 \\]", 67),
    "emoji_behind": ("**67/100** \U0001f3af", 67),
    "emoji_before": ("\u2705 Total: 67", 67),
    "emoji_with_a_variation_selector": ("67 \u26a0\ufe0f", 67),
    "emoji_around": ("\U0001f3c1 **Final Score: 67/100** \U0001f3c1", 67),
    "whole_answer_in_a_fence": ("```markdown\n# Evaluation\nWeak.\n\n67\n```", 67),
    "whole_answer_in_a_quote": ("> Weak.\n>\n> 67", 67),
    "fenced_with_its_breakdown": ("Weak.\n```\nLogical Flow: 15/25\nConsistency: 17/25\n67\n```", 67),
    "fenced_with_its_outcome": ("Weak.\n```\nOutcome: partial\n45\n```", 45),
    "fenced_below_its_heading": ("Weak.\n```\nFinal score\n\n67\n```", 67),
    "quoted_with_its_breakdown": ("Weak.\n> Logical Flow: 15/25\n> 67", 67),
    "behind_a_fence": ("It wrote:\n```\nretries\n100\n```\n67", 67),
    "behind_a_fence_of_tildes_with_ticks": ("It wrote:\n~~~\n```\n100\n~~~\n67", 67),
    "behind_a_longer_fence": ("It wrote:\n````\n```\nx\n````\n67", 67),
    "behind_a_fence_with_words": ("It wrote:\n```c++ title=x\n100\n```\n67", 67),
    "behind_a_quote": ("It wrote:\n> retries\n\n> 67", 67),
}

NO_SCORES = {
    "empty": "",
    "blank": " \n\t\n",
    "only_a_fence": "```\n```",
    "prose": "The investigation was reasonable.",
    "score_above_prose": "67\nThat is my score.",
    "too_high": "167",
    "one_too_high": "101",
    "negative": "-3",
    "negative_with_unicode_minus": "\u22123",
    "negative_labelled": "Total: -3",
    "decimal": "6.7",
    "decimal_of_hundred": "85.5",
    "decimal_that_is_whole": "100.0",
    "decimal_comma": "6,7",
    "leading_zero": "067",
    "exponent": "1e2",
    "hexadecimal": "0x43",
    "digit_group": "1_00",
    "other_denominator": "67/110",
    "category_denominator": "20/25",
    "two_denominators": "67/100/100",
    "percent_of_hundred": "67%/100",
    "two_numbers": "80 or 90",
    "range": "60-70",
    "product": "6*7",
    "sum": "15 + 17 + 15 + 20 = 67",
    "second_number_in_brackets": "Total: 67 (of 25x4)",
    "number_in_label": "Score 1: 67",
    "category": "Logical Flow: 15",
    "category_named_score": "Synthesis quality score: 20",
    "deduction": "Points deducted: 5",
    "trailing_words": "67 (adequate)",
    "about": "~67",
    "struck_out": "~~67~~",
    "at_least": ">67",
    "full_width_digits": "\uff16\uff17",
    "arabic_indic_digits": "\u0666\u0667",
    "superscript": "6\u2077",
    "label_alone": "Total:",
    "label_word_that_names_no_total": "My 67",
    "decoration_alone": "67\n**",
    "json": '{"total_score": 67}',
    "not_available": "N/A",
    "spelled_out": "sixty-seven",
    "last_line_of_code": "However, it never counted them:\n```\n$ kubectl get pods | wc -l\n12\n```",
    "last_line_of_code_that_never_closes": "The log ends in:\n```text\nretries\nTotal: 100",
    "last_line_of_code_in_tildes": "The log ends in:\n~~~\nretries\n100\n~~~\n",
    "last_line_of_code_with_a_fence_in_it": "The log ends in:\n````\n```\nretries\n100",
    "last_line_of_code_that_names_a_language_inside": "It wrote:\n```\nretries\n```python\n100",
    "last_line_of_a_quote": "The log ends in:\n> all pods healthy\n> 100",
    "last_line_of_a_nested_quote": "The log ends in:\n> > all pods healthy\n> 100",
    "money": "Total: $67",
    "two_amounts": "$85 of $100",
    "two_amounts_with_a_slash": "$85/$100",
    "range_without_a_total": "Total (0-100):",
    "range_behind_the_label": "Total (0-100): 67",
    "scale_of_another_size": "Total (out of 25): 20",
    "scale_without_a_colon": "Total of 100 67",
    "boxed_fraction": "\\boxed{\\frac{67}{100}}",
    "boxed_twice": "\\boxed{67} \\boxed{70}",
    "hundred_points_emoji": "67 \U0001f4af",
    "hundred_points_emoji_alone": "\U0001f4af",
    "emoji_between": "6\U0001f3af7",
    "heavy_minus": "\u279667",
    "keycaps": "6\ufe0f\u20e37\ufe0f\u20e3",
    "devanagari_digits": "\u096c\u096d",
    "chinese_digits": "六十七",
    "roman_digits": "LXVII",
    "letter_for_a_digit": "1OO",
    "negative_zero": "-0",
    "double_zero": "00",
    "not_a_number": "NaN",
    "tolerance": "67 \u00b1 5",
    "range_in_words": "between 60 and 70",
    "sum_and_total": "15 + 20 = 67",
    "struck_out_and_corrected": "Total: ~~90~~ 67",
    "numbered": "1. 67",
    "struck_out_digits": "6\u03367\u0336",
    "question": "67?",
    "backslash": "67\\100",
}


@pytest.mark.parametrize(("reply", "total"), SCORES.values(), ids=SCORES.keys())
def test_a_plain_or_decorated_integer_on_the_last_line_is_the_total(reply: str, total: int) -> None:
    """The last non-empty line holds the total, whatever usual decoration it wears."""
    assert extract_total(reply) == total


@pytest.mark.parametrize("reply", NO_SCORES.values(), ids=NO_SCORES.keys())
def test_anything_else_on_the_last_line_is_no_score(reply: str) -> None:
    """0-100 or nothing: what is not plainly a total is never guessed."""
    assert extract_total(reply) is None


@pytest.mark.parametrize("number", range(-5, 111))
def test_only_0_to_100_are_scores(number: int) -> None:
    """Every whole number from 0 to 100 is a score, no other one is."""
    assert extract_total(f"analysis\n{number}") == (number if 0 <= number <= 100 else None)


@pytest.mark.parametrize(
    ("reply", "analysis"),
    [
        pytest.param("Weak.\n\n67", "Weak.", id="score_line"),
        pytest.param("Weak.\n```\n67\n```\n", "Weak.", id="fenced_score_line"),
        pytest.param("```\nkubectl\n```\n67", "```\nkubectl\n```", id="fence_of_the_analysis_stays"),
        pytest.param("  Weak.\nNo score. ", "Weak.\nNo score.", id="no_total"),
        pytest.param("67", "", id="nothing_but_the_total"),
        pytest.param("Total: 60\nmore\n67", "Total: 60\nmore", id="earlier_score_lines_stay"),
    ],
)
def test_the_analysis_is_the_answer_without_its_score_line(reply: str, analysis: str) -> None:
    """Only the line that holds the total goes, with the fence around it."""
    assert analysis_of(reply) == analysis


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param("Logical Flow: 15/25\nConsistency: 17/25", id="plain"),
        pytest.param("**Logical Flow:** 15/25\n**Consistency**: **17**/25", id="bold"),
        pytest.param("- logical flow (15/25)\n- consistency - 17 / 25", id="list"),
        pytest.param("| Logical Flow | 15/25 |\n| Consistency | 17/25 |", id="table"),
        pytest.param("### 1. Logical Flow (max 25): 15/25\n### 2. Consistency: 17 out of 25", id="headings"),
        pytest.param("Logical Flow: 15/25, Consistency: 17/25", id="one_line"),
        pytest.param("Logical\u200b Flow: 1\u200b5/25\nConsistency: 17/\u206025", id="characters_without_width"),
        pytest.param("Logical\u00a0Flow:\u00a015\u202f/\u202f25\nConsistency: 17/25", id="other_blanks"),
        pytest.param("Logical Flow: 15 of 25\nConsistency: 17 of 25", id="of"),
        pytest.param("Logical Flow: 15 points out of 25\nConsistency: 17 pts / 25 points", id="points"),
        pytest.param("| Logical Flow | 15 | 25 |\n| **Consistency** | **17** | **25** |", id="a_column_of_maxima"),
        pytest.param("$$Logical Flow: 15/25$$\nConsistency: $17/25$", id="latex"),
        pytest.param("logical_flow score: 15/25\nconsistency=17/25", id="ids"),
        pytest.param(
            "Logical Flow: 22/25 at first sight.\nConsistency: 9/25\n\nLogical Flow: 15/25\nConsistency: 17/25",
            id="last_statement_wins",
        ),
    ],
)
def test_stated_categories_are_the_breakdown(reply: str) -> None:
    """Usual spellings of `Logical Flow: X/25`; where a category is stated twice the last statement counts."""
    assert extract_breakdown(reply, CATEGORIES) == {"logical_flow": 15, "consistency": 17}


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param("Logical Flow: 15/25", id="one_category_missing"),
        pytest.param("Logical Flow: 15/20\nConsistency: 17/25", id="other_denominator"),
        pytest.param("Logical Flow: 15/250\nConsistency: 17/25", id="longer_denominator"),
        pytest.param("Logical Flow: 26/25\nConsistency: 17/25", id="more_than_there_is"),
        pytest.param("Logical Flow: -5/25\nConsistency: 17/25", id="deduction"),
        pytest.param("Logical Flow: 15\nConsistency: 17", id="no_denominator"),
        pytest.param("Logical Flow: ~15/25\nConsistency: 17/25", id="about"),
        pytest.param("Logical Flow: \u226415/25\nConsistency: 17/25", id="at_most"),
        pytest.param("Logical Flow: ~~20/25~~ 15/25\nConsistency: 17/25", id="struck_out_and_corrected"),
        pytest.param("Logical Flow: 20/25 \u2192 15/25\nConsistency: 17/25", id="changed"),
        pytest.param("Logical Flow: 20/25 -> 15/25\nConsistency: 17/25", id="changed_with_an_arrow_of_ascii"),
        pytest.param("Logical Flow: 10-22/25\nConsistency: 17/25", id="range"),
        pytest.param("| Logical Flow | 25 | 15 |\n| Consistency | 25 | 17 |", id="maxima_first"),
        pytest.param("Inconsistency: 15/25\nLogical Flow: 15/25", id="part_of_a_word"),
        pytest.param("", id="empty"),
    ],
)
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


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "1. **read-file**: would have shown the script\n2. **list-processes**: would have verified execution",
            id="bold_and_colon",
        ),
        pytest.param(
            "1. **read-file:** would have shown the script\n2. **list-processes:** would have verified execution",
            id="colon_inside_bold",
        ),
        pytest.param(
            "1) read-file - would have shown the script\n2) list-processes — would have verified execution", id="dashes"
        ),
        pytest.param(
            "1. `read-file`: would have shown the script\n\n2. `list-processes` would have verified execution",
            id="code",
        ),
        pytest.param(
            "**1. read-file**\nwould have shown the script\n\n**2. list-processes**\n\nwould have verified execution",
            id="reason_below",
        ),
        pytest.param(
            "Two were missing.\n### 1. `read-file`\nwould have shown the script\n"
            "### 2. `list-processes`\nwould have verified execution\n## Summary\nBoth matter.",
            id="headings",
        ),
        pytest.param(
            "1. read-file: would have shown the script\n1. list-processes: would have verified execution",
            id="every_item_is_one",
        ),
        pytest.param(
            "1. Tool: `read-file`\n   would have shown the script\n"
            "2. **Tool name:** list-processes: would have verified execution",
            id="labelled_names",
        ),
        pytest.param(
            "1. read\u200b-file: would have shown the script\n"
            "2.\u2060 list-processes\ufeff: would have verified execution",
            id="characters_without_width",
        ),
    ],
)
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


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("No critical missing tools identified.", id="none_missing"),
        pytest.param("**No critical missing tools identified.**", id="none_missing_in_bold"),
        pytest.param("1. No critical missing tools identified.", id="none_missing_as_an_item"),
        pytest.param("1. None", id="none_as_an_item"),
        pytest.param("1. **None**: everything was there", id="none_in_bold_with_a_reason"),
        pytest.param("1. N/A", id="not_applicable"),
        pytest.param("1. No tools missing.", id="no_tools_missing"),
        pytest.param("1. No additional tools: all were there", id="no_additional_tools"),
        pytest.param("A file reader would have helped.", id="prose"),
        pytest.param("- read-file: bullets are no numbers", id="bullets"),
        pytest.param("1. It would have helped to have a tool that reads files in ended pods", id="item_without_a_name"),
        pytest.param("1. **" + "x" * 200 + "**: why", id="name_too_long"),
        pytest.param("In 2024. something: happened", id="number_in_prose"),
        pytest.param("", id="empty"),
    ],
)
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
    """Nobody can make the service hang by what the judge writes; anything quadratic would take minutes here."""
    reply = frame[0] + unit * (MEGABYTE // len(unit)) + frame[1]
    started = time.process_time()
    extract_total(reply)
    analysis_of(reply)
    extract_breakdown(reply, CATEGORIES)
    extract_missing_tools(reply)
    assert time.process_time() - started < 5

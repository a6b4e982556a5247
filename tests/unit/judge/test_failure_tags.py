"""Which failures an analysis asserts: phrases of judges, decoration, and hostile text."""

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cpu import cpu_s
from tables import table
from tarsy_scoring.judge.read.failure_tags import find_failure_tags

CORPUS = yaml.safe_load(Path(__file__).with_name("failure_tags.yaml").read_text(encoding="utf-8"))
VOCABULARY: list[str] = CORPUS["vocabulary"]
DENIED: list[str] = CORPUS["denied"]
ASSERTED = [(phrase, tags.split()) for tags, phrases in CORPUS["asserted"].items() for phrase in phrases]
EVERYTHING = [(phrase, list[str]()) for phrase in DENIED] + ASSERTED
TERM = re.compile("|".join(VOCABULARY), re.IGNORECASE)


def test_denials_give_no_tag_and_assertions_theirs() -> None:
    """The corpus is a tenth of 1,187 phrases, of which 96 % were read as written: all 100 plain denials among them."""
    assert [p for p, tags in EVERYTHING if find_failure_tags(p, VOCABULARY) != tags] == []


@pytest.mark.parametrize(
    "decorate",
    [
        pytest.param(str.upper, id="capitals"),
        pytest.param("**{}**".format, id="bold"),
        pytest.param("`{}`".format, id="code"),
        pytest.param("<code>{}</code>".format, id="html"),
        pytest.param(lambda term: term.replace("_", "\\_"), id="escaped_underscore"),
        pytest.param(lambda term: term.replace("_", "\u200b_\u00ad") + "\u2060", id="without_width"),
    ],
)
def test_decoration_changes_nothing(decorate: Callable[[str], str]) -> None:
    # Decorating a term that is decorated already or part of a longer word would make it another word.
    whole = [p for p, _ in EVERYTHING if not re.search(r"\w[-.]?X|X[-.]?\w|[¬!_`*]X", TERM.sub("X", p))]

    def tags(phrase: str) -> list[str]:
        return find_failure_tags(phrase, VOCABULARY)

    assert [p for p in whole if tags(TERM.sub(lambda m: decorate(m[0]), p)) != tags(p)] == []
    assert len(whole) > 80


def test_a_denial_does_not_reach_into_another_paragraph() -> None:
    draw = random.Random(1)
    for phrase, tags in ASSERTED:
        for other in draw.sample(DENIED, 4):
            for analysis in (f"{other}\n\nSo much for that.\n\n{phrase}", f"{phrase}\n\nSo much for that.\n\n{other}"):
                assert find_failure_tags(analysis, VOCABULARY) == tags, analysis


@table
def test_asserted_terms_are_found(analysis: str, vocabulary: list[str], tags: list[str]) -> None:
    assert find_failure_tags(analysis, vocabulary) == tags


MARKS = ["\n", "\n- ", "|", "(", ")", '"', "_", "*", ". ", "? ", ", ", ": ", "~~", "[ ] ", "\u200b", "\U000f0000", "İ"]
PIECES = [*VOCABULARY, *(term[:-1] for term in VOCABULARY), "no ", "not ", "if ", " or ", "yes", "none", "x", *MARKS]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=30).map("".join))
@settings(max_examples=150)
def test_there_is_never_a_tag_that_is_not_in_the_text(analysis: str) -> None:
    visible = re.sub("[\\\\\u00ad\u200b-\u200f\u2060-\u206f]", "", analysis).lower()

    tags = find_failure_tags(analysis, VOCABULARY)

    assert tags == [term for term in VOCABULARY if term in tags]
    assert all(tag in visible for tag in tags)


UNITS = [
    *("wrong_conclusion, ", "wrong_conclusion; ", "wrong_conclusion. ", "wrong_conclusion\n", "- wrong_conclusion:\n"),
    *("No:\n", "| wrong_conclusion ", "wrong_conclusion (", "wrong_conclusion: no a ", "wrong_conclusion was been "),
    *(
        "no ",
        "no, a ",
        "not avoid ",
        "(",
        "-",
        "_",
        "a_",
        '"',
        '"a" ',
        "~~a",
        "|",
        "'",
        "> ",
        "[ ] ",
        " ",
        "\n",
        "? ",
        "a\n",
    ),
]


def test_a_hostile_analysis_is_read_in_linear_time() -> None:
    """Ten times the text takes about ten times the CPU; quadratic code would take a hundred times."""

    def seconds(unit: str, size: int) -> float:
        analysis = f"no wrong_conclusion {unit * (size // len(unit))} wrong_conclusion"
        return cpu_s(lambda: find_failure_tags(analysis, VOCABULARY))

    slow = {
        unit: (small, large)
        for unit in UNITS
        if (large := seconds(unit, 30_000)) > 40 * (small := seconds(unit, 3_000)) + 0.2
    }

    assert slow == {}

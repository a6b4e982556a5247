"""Which failures an analysis asserts: phrases of judges, decoration, and hostile text."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

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
    """None of the denials may give a tag: a tag that was not asserted would be made up."""
    assert [p for p, tags in EVERYTHING if find_failure_tags(p, VOCABULARY) != tags] == []


@pytest.mark.parametrize(
    "decorate",
    [
        pytest.param(str.upper, id="capitals"),
        pytest.param("**{}**".format, id="bold"),
        pytest.param("`{}`".format, id="code"),
        pytest.param("<code>{}</code>".format, id="html"),
        pytest.param(lambda term: term.replace("_", "\\_"), id="escaped_underscore"),
    ],
)
def test_decoration_changes_nothing(decorate: Callable[[str], str]) -> None:
    # Decorating a term that is decorated already or part of a longer word would make it another word.
    whole = [p for p, _ in EVERYTHING if not re.search(r"\w[-.]?X|X[-.]?\w|[¬!_`*]X", TERM.sub("X", p))]

    def tags(phrase: str) -> list[str]:
        return find_failure_tags(phrase, VOCABULARY)

    assert [p for p in whole if tags(TERM.sub(lambda m: decorate(m[0]), p)) != tags(p)] == []
    assert len(whole) > 80


@table
def test_asserted_terms_are_found(analysis: str, vocabulary: list[str], tags: list[str]) -> None:
    assert find_failure_tags(analysis, vocabulary) == tags


UNITS = [
    *("wrong_conclusion, ", "wrong_conclusion; ", "wrong_conclusion. ", "wrong_conclusion\n", "- wrong_conclusion:\n"),
    *("No:\n", "| wrong_conclusion ", "wrong_conclusion (", "wrong_conclusion: no a ", "wrong_conclusion was been "),
    *("no ", "no, a ", "not avoid ", "(", "-", "_", "a_", '"', '"a" ', "~~a", "|", "'", "> ", "[ ] ", " ", "\n", "? "),
    "a\n",
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

"""Which failures an analysis asserts: a corpus of phrases, the recorded judges, and hostile text."""

import json
import random
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cpu import cpu_s
from tables import table
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.judge.read.failure_tags import find_failure_tags

CORPUS = yaml.safe_load(Path(__file__).with_name("failure_tags.yaml").read_text(encoding="utf-8"))
VOCABULARY: list[str] = CORPUS["vocabulary"]
DENIED: list[str] = CORPUS["denied_law"] + CORPUS["denied"]
ASSERTED = [(phrase, tags.split()) for tags, phrases in CORPUS["asserted"].items() for phrase in phrases]
EVERYTHING = [(phrase, list[str]()) for phrase in DENIED] + ASSERTED
RECORDED = Path(__file__).parents[4] / "shared/judge-replies"
TERM = re.compile("|".join(VOCABULARY), re.IGNORECASE)


def misread(phrases: Iterable[tuple[str, list[str]]]) -> list[str]:
    return [phrase for phrase, tags in phrases if find_failure_tags(phrase, VOCABULARY) != tags]


def test_plain_denials_never_give_a_tag() -> None:
    assert misread((phrase, []) for phrase in CORPUS["denied_law"]) == []


def test_all_phrases_but_three_known_ones_are_read_correctly() -> None:
    """
    | | no tag | right tags | misread |
    |---|---|---|---|
    | 707 denials | 705 | | 2 |
    | 480 assertions | | 479 | 1 |

    The grammar that this matcher replaced read all 1,187 phrases as written, in 699 lines.
    """
    assert (len(DENIED), len(ASSERTED)) == (707, 480)
    assert misread(EVERYTHING) == [
        "I looked at missed_available_tool and found it not to apply.",
        "It ended without a claim that is hallucinated_evidence.",
        "It is not so much wrong_conclusion as it is premature_conclusion.",
    ]
    # A search for substrings would give all of these.
    assert sum(term in phrase.lower() for phrase in DENIED for term in VOCABULARY) >= 700


@pytest.mark.skipif(not RECORDED.is_dir(), reason="the recorded replies of judges are not part of the repository")
def test_recorded_judges_assert_every_failure_that_they_name() -> None:
    vocabulary = list(load_criteria().get("investigation-outcome").failure_vocabulary)
    replies = [reply for file in sorted(RECORDED.iterdir()) for reply in json.loads(file.read_bytes())["replies"]]
    named = [[term for term in vocabulary if term in reply.lower()] for reply in replies]

    assert [find_failure_tags(reply, vocabulary) for reply in replies] == named
    assert sum(map(len, named)) >= 100


@pytest.mark.parametrize(
    "decorate",
    [
        pytest.param(str.upper, id="capitals"),
        pytest.param("**{}**".format, id="bold"),
        pytest.param("`{}`".format, id="code"),
        pytest.param("<code>{}</code>".format, id="html"),
        pytest.param(lambda term: term.replace("_", "\\_"), id="escaped_underscore"),
        pytest.param(lambda term: term.replace("_", "\u200b_\u00ad") + "\u2060", id="without_width"),
        pytest.param(dict(zip(VOCABULARY, map("failure_{}".format, range(9)), strict=False)).get, id="another_name"),
    ],
)
def test_decoration_and_names_change_nothing(decorate: Callable[[str], str]) -> None:
    # Decorating a term that is decorated already or part of a longer word would make it another word.
    whole = [
        p
        for p, _ in EVERYTHING
        if not re.search(r"\w[-.]?X|X[-.]?\w|[¬!_]X", TERM.sub("X", p)) and p == p.lower() and TERM.search(p)
    ]
    names = [decorate(term) for term in VOCABULARY] if decorate("wrong_conclusion") == "failure_5" else VOCABULARY

    def tags(phrase: str, vocabulary: list[str]) -> list[int]:
        return [vocabulary.index(tag) for tag in find_failure_tags(phrase, vocabulary)]

    changed = [p for p in whole if tags(TERM.sub(lambda m: decorate(m[0]), p), names) != tags(p, VOCABULARY)]

    assert changed == []
    assert len(whole) > 300


def test_a_denial_does_not_reach_into_another_paragraph() -> None:
    draw = random.Random(1)
    right = [(phrase, tags) for phrase, tags in ASSERTED if misread([(phrase, tags)]) == []]
    for phrase, tags in right:
        for other in draw.sample(CORPUS["denied_law"], 2):
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

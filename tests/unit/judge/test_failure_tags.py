"""Which failures an analysis asserts, over a corpus of what judges write for and against them."""

import random
import re
import time
from collections.abc import Callable, Iterable

import pytest
from failure_tags_corpus import ASSERTED, NOT_ASSERTED, VOCABULARY
from hypothesis import given, settings
from hypothesis import strategies as st

from tarsy_scoring.judge.failure_tags import find_failure_tags

EVERYTHING = [(phrase, list[str]()) for phrase in NOT_ASSERTED] + ASSERTED
TERM = re.compile("|".join(VOCABULARY), re.IGNORECASE)


def words_of(phrases: Iterable[str]) -> list[str]:
    return [re.sub(r"\W+", "_", phrase).strip("_")[:60] or "marks" for phrase in phrases]


@pytest.mark.parametrize("phrase", NOT_ASSERTED, ids=words_of(NOT_ASSERTED))
def test_what_is_denied_asked_or_only_named_gives_no_tag(phrase: str) -> None:
    """To name a failure is not to assert it."""
    assert find_failure_tags(phrase, VOCABULARY) == []


@pytest.mark.parametrize(("phrase", "tags"), ASSERTED, ids=words_of(phrase for phrase, _ in ASSERTED))
def test_what_is_asserted_gives_its_tags(phrase: str, tags: list[str]) -> None:
    """In any decoration, and with denials of other things around it."""
    assert find_failure_tags(phrase, VOCABULARY) == tags


def test_a_search_for_the_bare_terms_would_give_hundreds_of_false_tags() -> None:
    """The corpus is hard: this is what it shows of the method that looks for substrings."""
    false_tags = sum(term in phrase.lower() for phrase in NOT_ASSERTED for term in VOCABULARY)

    assert len(NOT_ASSERTED) >= 600
    assert len(ASSERTED) >= 400
    assert false_tags >= 700


@pytest.mark.parametrize(
    "decorate",
    [
        pytest.param(str.upper, id="capitals"),
        pytest.param("**{}**".format, id="bold"),
        pytest.param("`{}`".format, id="code"),
        pytest.param("*{}*".format, id="italics"),
        pytest.param("<code>{}</code>".format, id="html"),
        pytest.param(lambda term: term.replace("_", "\\_"), id="escaped_underscore"),
        pytest.param(lambda term: term.replace("_", "\u200b_\u00ad"), id="without_width"),
        pytest.param(lambda term: term.replace("_", "\ufeff_") + "\u2060", id="byte_order_mark"),
    ],
)
def test_decoration_changes_nothing(decorate: Callable[[str], str]) -> None:
    """Every phrase says the same with its terms decorated."""
    # Where a term is part of a longer word, decoration would cut it out of there.
    whole = [
        (phrase, tags)
        for phrase, tags in EVERYTHING
        if not re.search(r"\w[-.]?X|X[-.]?\w|[¬!_]X", TERM.sub("X", phrase))
    ]

    changed = [
        phrase
        for phrase, tags in whole
        if find_failure_tags(TERM.sub(lambda m: decorate(m[0]), phrase), VOCABULARY) != tags
    ]

    assert changed == []
    assert len(whole) > 1000


def test_no_term_is_special() -> None:
    """Every phrase says the same of other terms."""
    others = {term: f"failure_{number}" for number, term in enumerate(VOCABULARY)}

    changed = [
        phrase
        for phrase, tags in EVERYTHING
        if all(tag in phrase.lower() for tag in tags)  # else it is spelt in a way that TERM does not know
        and find_failure_tags(TERM.sub(lambda m: others[m[0].lower()], phrase), others.values())
        != [others[tag] for tag in tags]
    ]

    assert changed == []


def test_paragraphs_do_not_reach_into_each_other() -> None:
    """A denial takes nothing back that another paragraph asserts, before it or after it."""
    draw = random.Random(1)
    wrong = []
    for phrase, tags in ASSERTED:
        for other in draw.sample(NOT_ASSERTED, 5):
            for analysis in (f"{other}\n\nSo much for that.\n\n{phrase}", f"{phrase}\n\nSo much for that.\n\n{other}"):
                if find_failure_tags(analysis, VOCABULARY) != tags:
                    wrong.append(analysis)

    assert wrong == []


ANALYSIS = """\
## Assessment

However, the agent failed to look at the previous logs although `get_previous_logs` was available (E4): it never
called it, and the restart at 03:12 stayed unexplained. That is a **missed_available_tool**. There is no
hallucinated_evidence; all quoted lines stand in E7 and E9.

The verdict "OOM" came in E11, before the node was looked at. I considered `premature_conclusion`, but E12 and E13
still test it, so I do not assign it. Its confidence is "high" while nothing was verified: `unsupported_confidence`.

Was the conclusion wrong? E14 supports it, so wrong_conclusion does not apply.

| tag | applies |
|---|---|
| premature_conclusion | no |
| missed_available_tool | yes |

Logical Flow: 14/25

61
"""


def test_a_whole_analysis_gives_what_it_asserts() -> None:
    """Assertions and denials side by side."""
    assert find_failure_tags(ANALYSIS, VOCABULARY) == ["missed_available_tool", "unsupported_confidence"]


@pytest.mark.parametrize(
    "sentence",
    [
        pytest.param("On a second look it is a wrong_conclusion.", id="later"),
        pytest.param("wrong_conclusion: yes", id="as_an_answer"),
        pytest.param("- wrong_conclusion", id="as_an_item"),
    ],
)
def test_a_later_sentence_can_assert_what_an_earlier_one_denies(sentence: str) -> None:
    """One assertion is enough."""
    assert find_failure_tags(f"There is no wrong_conclusion at first sight.\n\n{sentence}", VOCABULARY) == [
        "wrong_conclusion"
    ]


def test_tags_come_in_the_order_of_the_vocabulary_and_once() -> None:
    """However often and in whatever order they are asserted."""
    analysis = "b_failure, a_failure and b_failure. Again a_failure."

    assert find_failure_tags(analysis, ["a_failure", "b_failure", "a_failure"]) == ["a_failure", "b_failure"]


def test_terms_are_found_whatever_their_case_in_the_vocabulary() -> None:
    """And given back as the vocabulary writes them."""
    assert find_failure_tags("wrong_conclusion", ["Wrong_Conclusion"]) == ["Wrong_Conclusion"]


@pytest.mark.parametrize("analysis", ["", " \n", "A reasonable report.", "wrong\nconclusion", "_", "|", "- [ ]", "?"])
def test_without_a_term_there_is_no_tag(analysis: str) -> None:
    """Nothing is read into what does not name it."""
    assert find_failure_tags(analysis, VOCABULARY) == []


def test_without_a_vocabulary_there_is_no_tag() -> None:
    """Criteria may have none."""
    assert find_failure_tags("wrong_conclusion", []) == []


def test_a_short_vocabulary_may_be_listed_whole() -> None:
    """Only a list of four and more terms that leaves none out is taken for a quotation."""
    four = ["a_1", "b_1", "c_1", "d_1"]

    assert find_failure_tags("a_1, b_1, c_1", four[:3]) == four[:3]
    assert find_failure_tags("a_1, b_1, c_1", four) == four[:3]
    assert find_failure_tags("a_1, b_1, c_1, d_1", four) == []


MARKS = [
    "\n",
    "\n- ",
    "|",
    "(",
    ")",
    '"',
    "_",
    "*",
    ". ",
    "? ",
    ", ",
    ": ",
    "~~",
    "[ ] ",
    "\u200b",
    "\U000f0000",
    "İ",
    "ſ",
]
PIECES = [*VOCABULARY, *(term[:-1] for term in VOCABULARY), "no ", "not ", "if ", " or ", "yes", "none", "x", *MARKS]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=30).map("".join))
@settings(max_examples=400)
def test_there_is_never_a_tag_that_is_not_in_the_text(analysis: str) -> None:
    """Whatever the text: tags are terms of the vocabulary that stand in it, in order and once."""
    visible = re.sub("[\\\\\u00ad\u200b-\u200f\u2060-\u206f]", "", analysis).lower()

    tags = find_failure_tags(analysis, VOCABULARY)

    assert tags == [term for term in VOCABULARY if term in tags]
    assert all(tag in visible for tag in tags)


HOSTILE = 200_000


@pytest.mark.parametrize(
    "unit",
    [
        pytest.param("wrong_conclusion, ", id="lists"),
        pytest.param("wrong_conclusion; ", id="semicolons"),
        pytest.param("wrong_conclusion. ", id="sentences"),
        pytest.param("wrong_conclusion\n", id="lines"),
        pytest.param("- wrong_conclusion:\n", id="items_that_lead_in"),
        pytest.param("No:\n", id="labels"),
        pytest.param("| wrong_conclusion ", id="cells"),
        pytest.param("wrong_conclusion (", id="brackets"),
        pytest.param("wrong_conclusion: no a ", id="almost_answers"),
        pytest.param("wrong_conclusion was been ", id="almost_predicates"),
        pytest.param("wrong_conclusion was ", id="auxiliaries"),
        pytest.param("no ", id="denials"),
        pytest.param("no, a ", id="parentheses"),
        pytest.param("not avoid ", id="denied_denials"),
        pytest.param("(", id="opening"),
        pytest.param("-", id="hyphens"),
        pytest.param("_", id="underscores"),
        pytest.param("a_", id="long_words"),
        pytest.param('"', id="quotes"),
        pytest.param('"a" ', id="quotations"),
        pytest.param("~~a", id="strokes"),
        pytest.param("|", id="pipes"),
        pytest.param("'", id="apostrophes"),
        pytest.param("> ", id="block_quotes"),
        pytest.param("[ ] ", id="boxes"),
        pytest.param(" ", id="blanks"),
        pytest.param("\n", id="line_ends"),
        pytest.param("? ", id="questions"),
    ],
)
def test_a_hostile_analysis_is_read_in_linear_time(unit: str) -> None:
    """200 KB between two terms; anything quadratic would take minutes here."""
    analysis = f"no wrong_conclusion {unit * (HOSTILE // len(unit))} wrong_conclusion"
    started = time.process_time()

    find_failure_tags(analysis, VOCABULARY)

    assert time.process_time() - started < 2

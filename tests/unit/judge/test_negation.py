"""What one sentence says of its terms, and what it hands on to the lines below it."""

import pytest

from tarsy_scoring.judge.negation import read_sentence
from tarsy_scoring.judge.retraction import FIRST_MARK

X, Y = chr(FIRST_MARK), chr(FIRST_MARK + 1)


@pytest.mark.parametrize(
    ("text", "following", "runs"),
    [
        pytest.param(f"this is {X}.", "", [(X, True)], id="asserted"),
        pytest.param(f"there is no {X}.", "", [(X, False)], id="denied_in_front"),
        pytest.param(f"{X} was ruled out.", "", [(X, False)], id="taken_back_behind"),
        pytest.param(f"{X}:", "not observed.", [(X, False)], id="taken_back_by_what_follows"),
        pytest.param(f"is it {X}?", "yes.", [(X, True)], id="question_with_an_answer"),
        pytest.param(f"is it {X}?", "", [(X, False)], id="question_without_one"),
        pytest.param(f"{X} and {Y} are there.", "", [(X + Y, True)], id="terms_that_stand_together"),
        pytest.param(f"no {X}, but a clear {Y}.", "", [(X, False), (Y, True)], id="each_on_its_own"),
        pytest.param("nothing to see.", "", [], id="no_term"),
    ],
)
def test_a_sentence_tells_what_it_asserts(text: str, following: str, runs: list[tuple[str, bool]]) -> None:
    """Terms in order, each with whether the form of the sentence asserts it."""
    assert read_sentence(text, following, is_first=True).runs == runs


def test_only_what_leads_in_hands_its_denial_on() -> None:
    """A denial of something else ends with its sentence."""
    assert read_sentence("no signs of:", "", is_first=True).leading_on is not None
    assert read_sentence("no logs were read:", "", is_first=True).leading_on is None
    assert read_sentence("no log file", "", is_first=True).leading_on is None  # a heading
    assert read_sentence("signs of:", "", is_first=True).leading_on is None


def test_a_denial_is_not_used_up_by_the_items_below_it() -> None:
    """What one item says of itself changes nothing for the next."""
    denial = read_sentence("not observed:", "", is_first=True).leading_on

    first = read_sentence(f"the gap is too small for {X}.", "", is_first=True, denial=denial)
    second = read_sentence(f"failure tags: {Y}", "", is_first=True, denial=denial)

    assert first.runs == [(X, False)]
    assert second.runs == [(Y, False)]

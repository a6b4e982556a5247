"""The words for a score: every state has one, and no state is shown by colour alone."""

from typing import get_args

from tarsy_scoring.events import Phase
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.judge.verdict import FailureReason
from tarsy_scoring.scores.shapes import ERROR_KINDS, FAILURE_REASONS, FLAGS, WAITING_FOR
from tarsy_scoring.web.pages import words
from tarsy_scoring.web.pages.words import badge, badge_of, in_words


def test_a_total_without_an_outcome_has_its_range() -> None:
    """The range is shown, not its colour alone."""
    for totals, look in (((0, 49), "weak"), ((50, 74), "fair"), ((75, 100), "good")):
        for total in totals:
            shown = badge("completed", total)
            assert (shown.look, shown.text, shown.number) == (look, f"{totals[0]}-{totals[1]}", total)


def test_a_total_with_an_outcome_has_its_word() -> None:
    """It is the word that the judge stated under the criteria, whatever the total."""
    shown = [badge("completed", 62, outcome=outcome) for outcome in ("correct", "partial", "wrong", "mostly_right")]
    assert [(b.text, b.look) for b in shown] == [
        ("correct", "good"),
        ("partial", "fair"),
        ("wrong", "weak"),
        ("mostly right", "plain"),
    ]


def test_pages_and_shipped_criteria_use_one_set_of_words() -> None:
    """Shipped criteria with bands name them correct, partial and wrong, in the file and in the prompts."""
    with_bands = [criteria for criteria in load_criteria() if criteria.bands]
    assert with_bands
    for criteria in with_bands:
        assert list(criteria.bands) == list(words.OUTCOMES)
        for name, (low, high) in criteria.bands.items():
            assert f"{name} ({low}-{high})" in criteria.system_prompt
            assert f"{name} {low}-{high}" in criteria.prompt


def test_a_state_without_a_total_has_its_word() -> None:
    """An unknown state has one too, since later versions may add states."""
    texts = {None: "No score requested", "not_scored": "No score requested", "pending": "Queued", "failed": "Failed"}
    texts |= {"timed_out": "Timed out", "cancelled": "Cancelled", "completed": "Completed", "odd_one": "odd one"}
    assert {status: (badge(status).text, badge(status).number) for status in texts} == {
        status: (text, None) for status, text in texts.items()
    }


def test_a_score_in_progress_says_what_it_does() -> None:
    shown = badge("in_progress", phase="identifying_missing_tools")
    assert (shown.text, shown.is_busy) == ("Looking for missing tools", True)
    assert badge("in_progress").text == "Reading the session"


def test_a_failure_is_never_a_number() -> None:
    """This holds even for a row that wrongly has a total."""
    document = {"status": "failed", "total_score": 90}
    assert badge_of(document).number is None


def test_every_word_of_the_interface_is_explained() -> None:
    """A flag or reason without a sentence would be shown as its identifier."""
    for known, explained in (
        (FLAGS, words.FLAGS),
        (ERROR_KINDS, words.ERROR_KINDS),
        (set(ERROR_KINDS) - {words.NOTHING_TO_JUDGE}, words.ERROR_HELP),
        (WAITING_FOR, words.WAITING_FOR),
        (FAILURE_REASONS, words.FAILURE_REASONS),
        (get_args(FailureReason), words.FAILURE_REASONS),
        (get_args(Phase), words.PHASES),
    ):
        assert set(known) == set(explained)


def test_an_unknown_word_is_spelt_out() -> None:
    assert in_words(words.FLAGS, "brand_new_flag") == "brand new flag"

"""The words for a score: every state has one, and no state is shown by colour alone."""

from pathlib import Path
from typing import Any, get_args

from pydantic_core import from_json

from tables import table
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.judge.verdict import FailureReason
from tarsy_scoring.queue.admission import Disposition
from tarsy_scoring.scores.bands import DEFAULT_BANDS, bands_of
from tarsy_scoring.scores.shapes import ERROR_KINDS, FAILURE_REASONS, FLAGS, WAITING_FOR
from tarsy_scoring.scores.why_no_score import DISPOSITIONS, in_words, why_no_score
from tarsy_scoring.web.pages import words
from tarsy_scoring.web.pages.words import Badge, badge_of

ANSWERED = {"accepted", "in_progress", "deferred", "already_scored"}

PROGRESS = Path(__file__).parents[3] / "schemas/scoring-progress.v1.json"


def badge(status: str | None, total: int | None = None, bands: Any = DEFAULT_BANDS, **document: Any) -> Badge:
    return badge_of(lambda _: bands, {"status": status, "total_score": total} | document)


def test_a_total_without_bands_of_its_criteria_has_its_range() -> None:
    """The range is shown, not its colour alone."""
    for totals, look in (((0, 49), "weak"), ((50, 74), "fair"), ((75, 100), "good")):
        for total in totals:
            shown = badge("completed", total)
            assert (shown.look, shown.text, shown.number) == (look, f"{totals[0]}-{totals[1]}", total)


def test_a_total_with_an_outcome_has_its_word() -> None:
    """It is the word that the judge stated under the criteria, whatever the total; without one, that of the band."""
    bands = bands_of({"all_there": (60, 100), "partial": (41, 59), "half": (21, 39), "wrong": (0, 20)})
    stated = ("all_there", "partial", "half", "wrong", "mostly_right")
    shown = [badge("completed", 62, bands, judge_outcome=outcome) for outcome in stated]
    looks = [("all there", "good"), ("partial", "fair"), ("half", "fair"), ("wrong", "weak"), ("mostly right", "plain")]
    assert [(b.text, b.look) for b in shown] == looks
    shown = [badge("completed", total, bands) for total in (62, 41, 21, 20, 40)]
    assert [(b.text, b.look) for b in shown] == [*looks[:4], ("between bands", "plain")]


def test_a_score_that_did_not_pass_says_so_in_the_same_badge() -> None:
    """It is never green, and what failed stands behind the band; the lowest band needs no more words."""
    bands = bands_of({"correct": (60, 100), "partial": (35, 59), "wrong": (0, 34)})
    for total, outcome, gates_total, text, look in (
        (92, "pass", 1, "correct", "good"),
        (92, "fail", 2, "correct, 1 gate failed", "fair"),
        (92, "fail", 3, "correct, 2 gates failed", "fair"),
        (92, "fail", 1, "correct, did not pass", "fair"),
        (8, "fail", 1, "wrong", "weak"),
        (8, "fail", 2, "wrong, 1 gate failed", "weak"),
        (None, "fail", 2, "did not pass, 1 gate failed", "weak"),
        (None, "pass", 1, "passed", "good"),
    ):
        shown = badge("completed", total, bands, outcome=outcome, gates_passed=1, gates_total=gates_total)
        assert (shown.text, shown.look) == (text, look)


def test_pages_and_shipped_criteria_use_one_set_of_words() -> None:
    """Shipped criteria with bands name them correct, partial and wrong, in the file and in the prompts."""
    with_bands = [criteria for criteria in load_criteria() if criteria.bands]
    assert with_bands
    for criteria in with_bands:
        assert list(criteria.bands) == ["correct", "partial", "wrong"]
        for name, (low, high) in criteria.bands.items():
            assert f"{name} ({low}-{high})" in criteria.system_prompt
            assert f"{name} {low}-{high}" in criteria.added_by_code["output_schema"]


def test_a_state_without_a_total_has_its_word() -> None:
    """An unknown state has one too, since later versions may add states."""
    texts = {None: "Not scored", "not_scored": "Not scored", "pending": "Queued", "failed": "Failed"}
    texts |= {"timed_out": "Timed out", "cancelled": "Cancelled", "completed": "Completed", "odd_one": "odd one"}
    assert {status: (badge(status).text, badge(status).number) for status in texts} == {
        status: (text, None) for status, text in texts.items()
    }


def test_a_score_in_progress_says_what_it_does() -> None:
    shown = badge("in_progress", current_stage="identifying_missing_tools")
    assert (shown.text, shown.is_busy) == ("Looking for missing tools", True)
    assert badge("in_progress").text == "Reading the session"


def test_a_failure_is_never_a_number() -> None:
    """This holds even for a row that wrongly has a total."""
    assert badge("failed", 90).number is None


def test_every_word_of_the_interface_is_explained() -> None:
    """A flag or reason without a sentence would be shown as its identifier."""
    for known, explained in (
        (FLAGS, words.FLAGS),
        (ERROR_KINDS, words.ERROR_KINDS),
        (set(ERROR_KINDS) - {words.NOTHING_TO_JUDGE}, words.ERROR_HELP),
        (WAITING_FOR, words.WAITING_FOR),
        (set(get_args(Disposition)) - ANSWERED, DISPOSITIONS),
        (FAILURE_REASONS, words.FAILURE_REASONS),
        (get_args(FailureReason), words.FAILURE_REASONS),
        (from_json(PROGRESS.read_bytes())["properties"]["phase"]["enum"], words.PHASES),
    ):
        assert set(known) == set(explained)


@table
def test_a_session_without_a_score_says_why(newest: Any, disposition: str | None, why: str | None) -> None:
    assert why_no_score(newest, disposition) == why


def test_an_unknown_word_is_spelt_out() -> None:
    assert in_words(words.FLAGS, "brand_new_flag") == "brand new flag"

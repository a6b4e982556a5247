"""When a second provider is asked, which one, and when the two judgements agree."""

from typing import Any

import pytest

from scripted import answer
from tables import table
from tarsy_scoring.config.chains import ChainSettings
from tarsy_scoring.judge.doubt import agree, needs_second_opinion
from tarsy_scoring.judge.verdict import Verdict

BANDS = {"correct": (60, 100), "partial": (35, 59), "wrong": (0, 34)}


def verdict(total: int, outcome: str | None = None, *flags: str) -> Verdict:
    return Verdict(total, "analysis", answer(), judge_outcome=outcome, flags=set(flags))


def test_totals_within_six_points_of_an_edge_are_in_doubt() -> None:
    asked = [total for total in range(101) if needs_second_opinion(verdict(total), BANDS)]

    assert asked == [*range(29, 42), *range(54, 67)]


@pytest.mark.parametrize(
    ("judged", "is_needed"),
    [
        pytest.param(verdict(80, "correct"), False, id="nothing-is-in-doubt"),
        pytest.param(verdict(80, "partial", "outcome_score_mismatch"), True, id="total-outside-the-stated-band"),
        pytest.param(verdict(80, "correct", "ungrounded"), True, id="correct-without-citations-that-hold"),
        pytest.param(verdict(10, "wrong", "ungrounded"), False, id="wrong-without-citations-that-hold"),
        pytest.param(verdict(80, None, "ungrounded"), False, id="no-outcome-and-no-citations-that-hold"),
        pytest.param(verdict(80, "correct", "breakdown_mismatch"), False, id="another-flag"),
    ],
)
def test_an_outcome_that_the_rest_contradicts_is_in_doubt(judged: Verdict, is_needed: bool) -> None:
    assert needs_second_opinion(judged, BANDS) is is_needed


@pytest.mark.parametrize("flag", ["outcome_score_mismatch", "ungrounded"])
def test_criteria_without_bands_have_nothing_to_doubt(flag: str) -> None:
    assert not any(needs_second_opinion(verdict(total, None, flag), {}) for total in range(101))


@pytest.mark.parametrize(
    ("first", "second", "agrees"),
    [
        pytest.param((58, "partial"), (50, "partial"), True, id="one-band-and-8-apart"),
        pytest.param((58, "partial"), (49, "partial"), False, id="one-band-and-9-apart"),
        pytest.param((59, "partial"), (60, "correct"), False, id="other-bands"),
        pytest.param((58, "partial"), (58, "wrong"), False, id="one-total-and-other-outcomes"),
        pytest.param((58, "partial"), (56, None), True, id="only-one-states-an-outcome"),
        pytest.param((58, None), (62, None), False, id="no-outcomes-and-other-bands"),
    ],
)
def test_one_band_one_outcome_and_near_totals_agree(first: Any, second: Any, agrees: bool) -> None:
    assert agree(verdict(*first), verdict(*second), BANDS) is agrees


@table
def test_the_provider_behind_the_one_that_answered_is_asked(answered: str, asked: str) -> None:
    assert ChainSettings(providers=("a", "b", "c")).next_provider(answered) == asked


def test_a_single_provider_has_no_other() -> None:
    assert ChainSettings(providers=("a",)).next_provider("a") is None

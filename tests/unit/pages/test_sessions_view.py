"""Rows of the list of sessions."""

from dataclasses import replace
from datetime import UTC, datetime
from uuid import uuid4

from tarsy_scoring.records.session_list import ListedScore, ListedSession, NewestAttempt
from tarsy_scoring.web.pages.sessions_view import explained, row

NOW = datetime(2026, 3, 2, tzinfo=UTC)


def listed(score: int | None = None, attempt: str | None = None) -> ListedSession:
    shown = (
        None
        if score is None
        else ListedScore(
            uuid4(), score, "fail", None, "c", "h", False, None, ["ungrounded"], ["wrong_conclusion"], "auto", NOW
        )
    )
    latest = None if attempt is None else NewestAttempt(uuid4(), attempt, 1, NOW, None, "budget", None, None)
    return ListedSession(
        "s", "k", "Restarts", {}, "completed", NOW, attempt or ("completed" if score else "not_scored"), shown, latest
    )


def test_a_session_without_a_score_can_be_scored() -> None:
    shown = row(listed())
    assert (shown.badge.text, shown.action, shown.is_open, shown.tags) == ("Not scored", "Score", False, [])


def test_the_newest_attempt_is_the_badge_and_the_number_stays_in_sight() -> None:
    shown = row(listed(81, "failed"))
    assert (shown.badge.text, shown.action) == ("Failed", "Re-score")
    assert shown.before is not None
    assert shown.before.number == 81


def test_an_open_score_has_no_button_and_says_what_it_waits_for() -> None:
    shown = row(listed(None, "pending"))
    assert shown.is_open
    assert "budget" in shown.badge.more


def test_remarks_name_outcome_tags_flags_and_old_criteria() -> None:
    shown = row(listed(40))
    assert [tag for _, tag in shown.tags] == ["did not pass", "wrong conclusion", "criteria not current"]
    assert shown.flags == ["ungrounded"]


def test_flags_of_a_list_are_explained_once() -> None:
    """An unknown flag has no explanation."""
    assert list(explained([row(listed(40)), row(listed(50)), row(listed())])) == ["ungrounded"]
    unknown = replace(listed(40), score=replace(listed(40).score, flags=["a_new_flag"]))
    assert explained([row(unknown)]) == {}

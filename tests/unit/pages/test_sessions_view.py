"""What the form above the list of sessions asks for, and how a session is told in a row."""

from dataclasses import replace
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from tarsy_scoring.records.session_list import Filters, ListedScore, ListedSession, NewestAttempt
from tarsy_scoring.web.pages.sessions_view import asked, explained, row

NOW = datetime(2026, 3, 2, tzinfo=UTC)


def test_empty_fields_ask_for_nothing() -> None:
    """A form sends all of its fields."""
    found = asked({"q": "", "chain": " ", "status": "", "min": "", "max": "", "label": "", "flag": "", "sort": ""})
    assert (found.filters, found.sort, found.faults, found.is_narrowed) == (Filters(), "newest", [], False)


def test_every_field_is_a_filter() -> None:
    found = asked(
        {
            "q": "pod",
            "chain": "k",
            "status": "failed",
            "min": "10",
            "max": "49",
            "criteria": "c",
            "label": "team = a=b",
            "flag": "ungrounded",
            "outcome": "fail",
            "since": "2026-03-01",
            "until": "2026-03-01",
            "sort": "score_asc",
            "nonsense": "x",
        }
    )
    assert not found.faults
    assert found.sort == "score_asc"
    assert found.filters == Filters(
        chain="k",
        status="failed",
        min_score=10,
        max_score=49,
        criteria="c",
        labels={"team": "a=b"},
        flag="ungrounded",
        outcome="fail",
        since=datetime(2026, 3, 1, tzinfo=UTC),
        until=datetime(2026, 3, 2, tzinfo=UTC),
        prefix="pod",
    )
    assert found.shows_rarer


@pytest.mark.parametrize(
    "query",
    [
        {"min": "101"},
        {"min": "-1"},
        {"max": "5.5"},
        {"max": "٣"},
        {"max": "9" * 300},
        {"min": "60", "max": "40"},
        {"label": "team"},
        {"label": "=a"},
        {"status": "lost"},
        {"sort": "random"},
        {"outcome": "maybe"},
        {"since": "yesterday"},
        {"until": "9999-12-31"},
        {"since": "2026-03-02", "until": "2026-03-01"},
        {"q": "a\0b"},
        {"q": "\ud800"},
        {"chain": "\u202ex"},
        {"q": "x" * 256},
    ],
)
def test_what_cannot_be_meant_is_a_fault(query: dict[str, str]) -> None:
    """And the form can be filled again with what was given."""
    found = asked(query)
    assert found.faults
    assert found.values[next(iter(query))] == next(iter(query.values()))


def test_what_is_rarely_asked_is_folded_up() -> None:
    """Until it is asked."""
    assert not asked({"q": "a", "chain": "k", "min": "1", "sort": "newest"}).shows_rarer
    assert asked({"label": "a=b"}).shows_rarer


def test_what_may_be_a_session_can_be_looked_for_at_its_source() -> None:
    """Nothing else can: it would have no page."""
    assert asked({"q": "session-1"}).session == "session-1"
    for text in ("", "two words", "../x", "x" * 256):
        assert asked({"q": text}).session is None


def test_a_query_keeps_what_was_asked_and_leaves_out_what_was_not() -> None:
    assert asked({"q": "a b&c", "min": ""}).query(cursor="x=") == "q=a+b%26c&cursor=x%3D"


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
    assert (shown.badge.text, shown.asks, shown.is_open, shown.tags) == ("Not scored", "Score", False, [])


def test_the_newest_attempt_is_the_badge_and_the_number_stays_in_sight() -> None:
    """A failed re-score hides no earlier score."""
    shown = row(listed(81, "failed"))
    assert (shown.badge.text, shown.asks) == ("Failed", "Re-score")
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
    """Those that it shows, and no others; one that nobody has described has no explanation."""
    assert list(explained([row(listed(40)), row(listed(50)), row(listed())])) == ["ungrounded"]
    unknown = replace(listed(40), score=replace(listed(40).score, flags=["a_new_flag"]))
    assert explained([row(unknown)]) == {}

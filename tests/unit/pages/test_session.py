"""The session on a score's page: the text that the judge saw, without secrets."""

from typing import Any

import pytest

from attempting import a_timeline
from fakes import FakeSessions
from tarsy_scoring.errors import SessionNotFound, SessionNotTerminal, SessionTooLarge, TimelineUnavailable
from tarsy_scoring.web.pages.session import MAX_ENTRY_CHARACTERS, ShownSession, Unreadable, read_session, show


def test_alert_analysis_and_cited_entries() -> None:
    """They stand under the ids that the judge cites; ids without an entry are named."""
    shown = show(a_timeline(), ["E1", "E2", "E99"], cut=["E2"])
    assert (shown.alert.entry_id, shown.alert.text) == ("E1", "a pod restarts")
    assert shown.final_analysis == "out of memory"
    [entry] = shown.cited
    assert (entry.entry_id, entry.label, entry.was_cut) == ("E2", "Reasoning", True)
    assert entry.text == "The pod restarts; I look at its logs."
    assert list(shown.not_there) == ["E99"]
    assert shown.anchors == {"E1", "E2"}


def test_secrets_are_masked() -> None:
    secret = "password=hunter2-hunter2"
    shown = show(a_timeline(alert_data=secret, final_analysis=secret), [])
    assert "hunter2" not in repr(shown)
    assert "[REDACTED:password]" in shown.alert.text


def test_a_long_entry_is_cut_and_says_so() -> None:
    shown = show(a_timeline(alert_data="x" * (MAX_ENTRY_CHARACTERS + 500)), [])
    assert len(shown.alert.text) == MAX_ENTRY_CHARACTERS
    assert shown.alert.left_out >= 500


@pytest.mark.parametrize(
    ("error", "is_gone"),
    [
        (SessionNotFound("x"), True),
        (SessionNotTerminal("x"), False),
        (TimelineUnavailable("x"), False),
        (SessionTooLarge("one", 2, 1), False),
    ],
    ids=["deleted", "runs again", "away", "too large"],
)
async def test_a_session_that_cannot_be_read_says_why(error: Any, is_gone: bool) -> None:
    """The page of its score is shown all the same."""
    found = await read_session(FakeSessions(one=error), "one")
    assert isinstance(found, Unreadable)
    assert found.is_gone is is_gone


async def test_without_a_source_nothing_can_be_shown() -> None:
    assert isinstance(await read_session(None, "one"), Unreadable)


async def test_a_session_that_can_be_read() -> None:
    assert isinstance(await read_session(FakeSessions(one=a_timeline()), "one", ["E2"]), ShownSession)

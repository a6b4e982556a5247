"""The session on a score's page: the text that the judge saw, without secrets."""

import asyncio
from typing import Any

import pytest

from attempting import a_timeline
from fakes import FakeSessions
from tarsy_scoring.errors import SessionNotFound, SessionNotTerminal, SessionTooLarge, TimelineUnavailable
from tarsy_scoring.timeline.model import Timeline
from tarsy_scoring.web.pages import session as module
from tarsy_scoring.web.pages.session import (
    MAX_ANALYSIS_CHARACTERS,
    MAX_ENTRY_CHARACTERS,
    ShownSession,
    Unreadable,
    read_session,
    show,
)
from tarsy_scoring.web.places import Places


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
    assert "[REDACTED:password#1]" in shown.alert.text


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
    found = await read_session(FakeSessions(one=error), "one", places=Places(1))
    assert isinstance(found, Unreadable)
    assert found.is_gone is is_gone


async def test_without_a_source_nothing_can_be_shown() -> None:
    assert isinstance(await read_session(None, "one", places=Places(1)), Unreadable)


async def test_a_session_that_can_be_read() -> None:
    found = await read_session(FakeSessions(one=a_timeline()), "one", ["E2"], places=Places(1))
    assert isinstance(found, ShownSession)


class HeldSessions(FakeSessions):
    """Holds each read up until `go_on`, and counts those under way."""

    def __init__(self) -> None:
        super().__init__(one=a_timeline())
        self.go_on = asyncio.Event()
        self.reading = self.most = 0

    async def fetch_timeline(self, session_id: str) -> Timeline:
        self.reading += 1
        self.most = max(self.most, self.reading)
        await self.go_on.wait()
        self.reading -= 1
        return await super().fetch_timeline(session_id)


async def test_few_sessions_are_in_memory_at_once() -> None:
    """Some pages wait for a place; further ones are shown without their session."""
    source, places = HeldSessions(), Places(2, waiting=3)
    asked = [asyncio.create_task(read_session(source, "one", places=places)) for _ in range(6)]
    done, _ = await asyncio.wait(asked, timeout=20, return_when=asyncio.FIRST_COMPLETED)
    [refused] = [task.result() for task in done]
    source.go_on.set()
    found = await asyncio.gather(*asked)

    assert isinstance(refused, Unreadable)
    assert "too many sessions" in refused.reason
    assert source.most == 2
    assert sum(isinstance(session, ShownSession) for session in found) == 5


async def test_a_page_waits_for_a_place_as_long_as_for_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_S", 0.1)
    source, places = HeldSessions(), Places(1, waiting=1)
    found = await asyncio.gather(*(read_session(source, "one", places=places) for _ in range(2)))
    source.go_on.set()

    assert [type(session) for session in found] == [Unreadable, Unreadable]
    assert isinstance(await read_session(source, "one", places=places), ShownSession), "the place is free again"


def test_a_long_final_analysis_is_cut_and_says_so() -> None:
    """The secret that begins before the cut and ends behind it stays masked."""
    secret = "password=hunter2-hunter2"
    shown = show(a_timeline(final_analysis="x " * (MAX_ANALYSIS_CHARACTERS // 2 - 6) + secret + "y" * 500), [])
    assert shown.final_analysis is not None
    assert len(shown.final_analysis) <= MAX_ANALYSIS_CHARACTERS
    assert "hunter2" not in shown.final_analysis
    assert shown.analysis_left_out > 0

"""The session on a score's page: alert and final analysis without secrets, and why it cannot be shown."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from attempting import a_timeline
from fakes import FakeSessions
from tarsy_scoring.errors import SessionNotFound, SessionNotTerminal, SessionTooLarge, TimelineUnavailable
from tarsy_scoring.timeline.model import Timeline
from tarsy_scoring.web.edge.semaphore import BoundedSemaphore
from tarsy_scoring.web.pages import session as module
from tarsy_scoring.web.pages.session import MAX_TEXT_CHARACTERS, SessionTexts, UnreadableSession, read_session


def context(source: Any, places: BoundedSemaphore | None = None) -> Any:
    settings = SimpleNamespace(config=SimpleNamespace(masking_patterns={}))
    return SimpleNamespace(settings=settings, source=source, session_reads=places or BoundedSemaphore(1))


async def shown(**changes: Any) -> SessionTexts:
    found = await read_session(context(FakeSessions(one=a_timeline(**changes))), "one")
    assert isinstance(found, SessionTexts)
    return found


async def test_alert_and_final_analysis() -> None:
    found = await shown()
    assert (found.alert, found.final_analysis, found.is_cut) == ("a pod restarts", "out of memory", False)


async def test_secrets_are_masked() -> None:
    secret = "password=hunter2-hunter2"
    found = await shown(alert_data=secret, final_analysis=secret)
    assert "hunter2" not in repr(found)
    assert "[REDACTED:password#1]" in found.alert


async def test_a_long_text_is_cut_and_says_so() -> None:
    """The secret that begins before the cut and ends behind it stays masked."""
    secret = "password=hunter2-hunter2"
    found = await shown(final_analysis="x " * (MAX_TEXT_CHARACTERS // 2 - 6) + secret + "y" * 500)
    assert len(found.final_analysis) == MAX_TEXT_CHARACTERS
    assert "hunter2" not in found.final_analysis
    assert found.is_cut


@pytest.mark.parametrize(
    ("source", "is_gone"),
    [
        (FakeSessions(one=SessionNotFound("x")), True),
        (FakeSessions(one=SessionNotTerminal("x")), False),
        (FakeSessions(one=TimelineUnavailable("x")), False),
        (FakeSessions(one=SessionTooLarge("one", 2, 1)), False),
        (None, False),
    ],
    ids=["deleted", "runs again", "away", "too large", "no source"],
)
async def test_a_session_that_cannot_be_read_says_why(source: Any, is_gone: bool) -> None:
    """The page of its score is shown all the same."""
    found = await read_session(context(source), "one")
    assert isinstance(found, UnreadableSession)
    assert found.is_gone is is_gone


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
    source = HeldSessions()
    held = context(source, BoundedSemaphore(2, queue=3))
    asked = [asyncio.create_task(read_session(held, "one")) for _ in range(6)]
    done, _ = await asyncio.wait(asked, timeout=20, return_when=asyncio.FIRST_COMPLETED)
    [refused] = [task.result() for task in done]
    source.go_on.set()
    found = await asyncio.gather(*asked)

    assert isinstance(refused, UnreadableSession)
    assert "too many sessions" in refused.reason
    assert source.most == 2
    assert sum(isinstance(session, SessionTexts) for session in found) == 5


async def test_a_page_waits_for_a_place_as_long_as_for_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_S", 0.1)
    source = HeldSessions()
    held = context(source, BoundedSemaphore(1, queue=1))
    found = await asyncio.gather(*(read_session(held, "one") for _ in range(2)))
    source.go_on.set()

    assert [type(session) for session in found] == [UnreadableSession, UnreadableSession]
    assert isinstance(await read_session(held, "one"), SessionTexts), "the place is free again"

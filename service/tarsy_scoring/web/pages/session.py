"""
Reads a session for pages. Each request reads from the source: nothing is stored.

Entry ids and masked secrets are the same as for the judge.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tarsy_scoring.errors import SessionNotFound, SessionNotTerminal, SessionTooLarge, TimelineUnavailable
from tarsy_scoring.timeline.clean.masking import mask_secrets, masking_of
from tarsy_scoring.timeline.model import Timeline
from tarsy_scoring.web.context import AppContext
from tarsy_scoring.web.edge.problems import Problem
from tarsy_scoring.web.edge.semaphore import QueueFull

T = TypeVar("T")

RETRY_S = 10
READ_S = 5.0  # after this the page is shown without the session
MAX_TEXT_CHARACTERS = 50_000
MAX_REASON_CHARACTERS = 500
AWAY = "reload the page shortly; if it stays so, an operator should look at the timeline source"


@dataclass(frozen=True, slots=True)
class SessionTexts:
    """
    What a score page shows from a session.

    `error`: the last error that the session recorded; `is_cut`: whether texts are cut.
    """

    status: str
    chain_id: str | None
    alert_type: str | None
    alert: str
    final_analysis: str
    is_cut: bool
    error: str = ""


@dataclass(frozen=True, slots=True)
class UnreadableSession:
    """
    Why a session cannot be shown, and what the reader can do.

    `is_gone`: the source has none; `is_running`: it has not ended; `may_return`: another try may succeed.
    """

    reason: str
    advice: str = ""
    is_gone: bool = False
    is_running: bool = False
    may_return: bool = False

    def problem(self, session_id: str, *, has_score: bool) -> Problem:
        """The answer where a page consists of the session alone."""
        if self.is_running:
            detail = f"{self.reason}; its timeline can be read when it has ended"
            return Problem(409, "Session has not ended", detail)
        if self.is_gone and not has_score:
            return Problem(404, "Unknown session", f"there is no session {session_id}, or it was deleted")
        kept = "its scores and their analyses are kept: see the page of the session" if has_score else ""
        why = f"the session {session_id} cannot be shown: {self.reason}"
        detail = "; ".join(filter(None, (why, kept, self.advice)))
        if self.may_return:
            return Problem(503, "Session not readable", detail, headers={"Retry-After": str(RETRY_S)})
        return Problem(404, "Session not readable", detail)


async def read_session(context: AppContext, session_id: str) -> SessionTexts | UnreadableSession:
    """Read what a score page shows. If the source fails, that is a result, not an exception."""
    masking = masking_of(context.settings.config.masking_patterns)

    def show(timeline: Timeline) -> SessionTexts:
        shown = (timeline.alert_data, timeline.final_analysis or "", _last_error(timeline))
        texts = [mask_secrets(text, masking) for text in shown]
        alert, analysis, error = (text[:MAX_TEXT_CHARACTERS] for text in texts)
        is_cut = max(map(len, texts)) > MAX_TEXT_CHARACTERS
        alert_type = mask_secrets(timeline.alert_type or "", masking) or None
        texts_of = (timeline.status, timeline.chain_id, alert_type, alert, analysis)
        return SessionTexts(*texts_of, is_cut=is_cut, error=error)

    return await read_with(show, context, session_id)


def _last_error(timeline: Timeline) -> str:
    """The session's own error, else the last error event, or an empty text."""
    events = (v for s in timeline.shown_stages for e in s.executions for v in e.events)
    errors = [event.content for event in events if event.event_type == "error"]
    return timeline.error_message or (errors[-1] if errors else "")


async def read_with(
    work: Callable[[Timeline], T], context: AppContext, session_id: str
) -> T | UnreadableSession:
    """
    Run `work` in a thread on the timeline that the source has now.

    Holds a place in `session_reads` while the session is in memory. If the source fails, that is a result.
    """
    source = context.source
    if source is None:
        return UnreadableSession("this process has no timeline source", "set SCORING_TIMELINE_SOURCE for it")
    try:
        async with asyncio.timeout(READ_S) as limit, context.session_reads.hold():
            timeline = await source.fetch_timeline(session_id)
            limit.reschedule(None)  # a thread cannot be interrupted, and the place would be given away
            return await asyncio.to_thread(work, timeline)
    except QueueFull:
        return UnreadableSession(
            "too many sessions are being shown", "reload the page shortly", may_return=True
        )
    except SessionNotFound:
        return UnreadableSession("the source no longer has the session", is_gone=True)
    except SessionNotTerminal as error:
        return UnreadableSession(str(error)[:MAX_REASON_CHARACTERS], is_running=True)
    except SessionTooLarge as error:
        return UnreadableSession(str(error))
    except (TimelineUnavailable, TimeoutError):
        return UnreadableSession("the timeline source cannot be read now", AWAY, may_return=True)

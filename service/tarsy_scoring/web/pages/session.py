"""
The session on the page of its score: alert, final analysis and the entries that the judge cites.

Each request reads the session from its source. Entry ids and masked secrets are the same as for the judge.
Nothing is stored.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from tarsy_scoring.errors import SessionNotFound, SessionNotTerminal, SessionTooLarge, TimelineUnavailable
from tarsy_scoring.timeline.model import Timeline, TimelineSource
from tarsy_scoring.timeline.render.fence import new_nonce, without_prefixes
from tarsy_scoring.web.places import NoPlace, Places

if TYPE_CHECKING:
    from tarsy_scoring.timeline.render.context import FittedContext

T = TypeVar("T")

READ_S = 5.0  # after this the page is shown without its session
NO_LIMIT_TOKENS = 10**12  # a page has no context window, so nothing is shortened
MAX_ENTRY_CHARACTERS = 20_000
MAX_ENTRIES = 100
MAX_ANALYSIS_CHARACTERS = 50_000
MAX_REASON_CHARACTERS = 500
ALERT = "E1"
AWAY = "reload the page shortly; if it stays so, an operator should look at the timeline source"


@dataclass(frozen=True, slots=True)
class Entry:
    """
    An entry of the session under the id that the judge cites.

    Args:
        was_cut: Whether it was shortened for the judge.
        left_out: Number of characters at its end that the page leaves out.
    """

    entry_id: str
    label: str
    text: str
    was_cut: bool = False
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class ShownSession:
    """
    The parts of a session that a page shows.

    Args:
        analysis_left_out: Number of characters at the end of the final analysis that the page leaves out.
        cited: Cited entries in the order of their numbers, without the alert.
        not_there: Cited ids that the session does not have.
    """

    status: str
    chain_id: str | None
    alert_type: str | None
    alert: Entry
    final_analysis: str | None
    analysis_left_out: int = 0
    cited: Sequence[Entry] = ()
    not_there: Sequence[str] = ()

    @property
    def anchors(self) -> frozenset[str]:
        """Ids that links on the page can lead to."""
        return frozenset({ALERT, *(entry.entry_id for entry in self.cited)})


@dataclass(frozen=True, slots=True)
class Unreadable:
    """
    Why a session cannot be shown, and what its reader can do.

    `is_gone`: the source has none; `is_running`: it has not ended; `may_return`: another try may succeed.
    """

    reason: str
    advice: str = ""
    is_gone: bool = False
    is_running: bool = False
    may_return: bool = False


async def read_session(
    source: TimelineSource | None,
    session_id: str,
    cited: Sequence[str] = (),
    cut: Collection[str] = (),
    *,
    reference: str | None = None,
    places: Places,
    extra_patterns: Mapping[str, str] = MappingProxyType({}),
) -> ShownSession | Unreadable:
    """
    Read what a page shows of a session. A failure of the source is a result, not an exception.

    Args:
        cited: Ids of the entries to show.
        cut: Ids of entries that were shortened for the judge.
        reference: The text that the score was judged against; it is an entry, too.
        places: One is held while the session is in memory.
        extra_patterns: The shapes of the operator's own secrets.
    """

    def work(timeline: Timeline) -> ShownSession:
        return show(replace(timeline, reference=reference), cited, cut, extra_patterns)

    return await read_with(work, source, session_id, places)


async def read_with(
    work: Callable[[Timeline], T], source: TimelineSource | None, session_id: str, places: Places
) -> T | Unreadable:
    """
    The result of `work`, done in a thread on the timeline that the source has now. A failure of the source is
    a result.

    Args:
        places: One is held while the session is in memory.
    """
    if source is None:
        return Unreadable(
            "this process has no timeline source", "an operator can set SCORING_TIMELINE_SOURCE for it"
        )
    try:
        async with asyncio.timeout(READ_S) as limit, places.one():
            timeline = await source.fetch_timeline(session_id)
            limit.reschedule(None)  # a thread cannot be interrupted, and its place would be given away
            return await asyncio.to_thread(work, timeline)
    except NoPlace:
        return Unreadable("too many sessions are being shown now", "reload the page shortly", may_return=True)
    except SessionNotFound:
        return Unreadable(
            "the source no longer has the session", is_gone=True
        )  # and nothing would bring it back
    except SessionNotTerminal as error:
        return Unreadable(str(error)[:MAX_REASON_CHARACTERS], is_running=True)  # the text names the status
    except SessionTooLarge as error:
        return Unreadable(str(error))
    except (TimelineUnavailable, TimeoutError):
        return Unreadable("the timeline source cannot be read now", AWAY, may_return=True)


def show(
    timeline: Timeline,
    cited: Sequence[str],
    cut: Collection[str] = (),
    extra_patterns: Mapping[str, str] = MappingProxyType({}),
) -> ShownSession:
    """The parts of a timeline that a page shows. Blocks for a time that grows with the session."""
    # The rules of secrets take 15 MB and a quarter of a second, which an API that shows no session saves.
    from tarsy_scoring.timeline.clean.masking import mask_secrets, masking_of
    from tarsy_scoring.timeline.render.context import build_context

    masking = masking_of(extra_patterns)
    context = build_context(timeline, new_nonce(), NO_LIMIT_TOKENS, masking=masking)
    analysis = mask_secrets(timeline.final_analysis or "", masking)
    wanted = [entry for entry in cited if entry != ALERT][:MAX_ENTRIES]
    found = [entry for entry in wanted if entry in context.entries]
    return ShownSession(
        status=timeline.status,
        chain_id=timeline.chain_id,
        alert_type=timeline.alert_type,
        alert=_entry(context, ALERT, cut),
        final_analysis=analysis[:MAX_ANALYSIS_CHARACTERS] or None,
        analysis_left_out=max(0, len(analysis) - MAX_ANALYSIS_CHARACTERS),
        cited=[_entry(context, entry, cut) for entry in found],
        not_there=[entry for entry in wanted if entry not in context.entries],
    )


def _entry(context: "FittedContext", entry_id: str, cut: Collection[str]) -> Entry:
    start, end = context.entries[entry_id]
    whole = context.alert if entry_id == ALERT else context.conversation
    heading, _, text = without_prefixes(whole[start:end]).partition("\n")
    left_out = max(0, len(text) - MAX_ENTRY_CHARACTERS)
    label = heading.removeprefix(f"[{entry_id}]").strip()
    return Entry(entry_id, label, text[:MAX_ENTRY_CHARACTERS].strip("\n"), entry_id in cut, left_out)

"""
What a session itself says, for the page of its score: alert, final analysis and the entries that the judge cites.

It is read from the source when the page is asked for and shown as the judge is shown it: the same ids, secrets
masked. Nothing of it is stored.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tarsy_scoring.errors import SessionNotFound, SessionNotTerminal, TimelineUnavailable
from tarsy_scoring.timeline.context import FittedContext, build_context
from tarsy_scoring.timeline.fence import new_nonce
from tarsy_scoring.timeline.masking import mask_secrets
from tarsy_scoring.timeline.model import Timeline, TimelineSource

READ_S = 5.0  # a page is better without its session than late
NO_LIMIT_TOKENS = 10**12  # people have no window: nothing is shortened for them here
MAX_ENTRY_CHARACTERS = 20_000
MAX_ENTRIES = 100
MAX_REASON_CHARACTERS = 500
ALERT = "E1"


@dataclass(frozen=True, slots=True)
class Entry:
    """
    A piece of the session as the judge may cite it.

    Args:
        was_cut: The judge saw it shortened.
        left_out: Characters at its end that are not shown here.
    """

    entry_id: str
    label: str
    text: str
    was_cut: bool = False
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class ShownSession:
    """
    Args:
        cited: In the order of their numbers; the alert is not among them.
        not_there: Cited ids that the session does not hold.
    """

    status: str
    chain_id: str | None
    alert_type: str | None
    alert: Entry
    final_analysis: str | None
    cited: Sequence[Entry] = ()
    not_there: Sequence[str] = ()

    @property
    def anchors(self) -> frozenset[str]:
        """Ids that a link on the page can lead to."""
        return frozenset({ALERT, *(entry.entry_id for entry in self.cited)})


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why a session cannot be shown; `is_gone` and `is_running`: the source says that there is none, or no end yet."""

    reason: str
    is_gone: bool = False
    is_running: bool = False


async def read_session(
    source: TimelineSource | None, session_id: str, cited: Sequence[str] = (), cut: Collection[str] = ()
) -> ShownSession | Unreadable:
    """
    What can be shown of a session now; never fails because its source does.

    Args:
        cited: Ids to show.
        cut: Ids of what the judge saw shortened.
    """
    if source is None:
        return Unreadable("this process has no source of sessions")
    try:
        async with asyncio.timeout(READ_S):
            timeline = await source.fetch_timeline(session_id)
    except SessionNotFound:
        return Unreadable("the source has no such session any more", is_gone=True)
    except SessionNotTerminal as error:
        return Unreadable(str(error)[:MAX_REASON_CHARACTERS], is_running=True)  # it names the status
    except (TimelineUnavailable, TimeoutError):
        return Unreadable("the source of sessions cannot be read now")
    return await asyncio.to_thread(show, timeline, cited, cut)


def show(timeline: Timeline, cited: Sequence[str], cut: Collection[str] = ()) -> ShownSession:
    """The pieces of a timeline that a page shows. Pure; takes as long as the session is large."""
    context = build_context(timeline, new_nonce(), NO_LIMIT_TOKENS)
    wanted = [entry for entry in cited if entry != ALERT][:MAX_ENTRIES]
    found = [entry for entry in wanted if entry in context.entries]
    return ShownSession(
        status=timeline.status,
        chain_id=timeline.chain_id,
        alert_type=timeline.alert_type,
        alert=_entry(context, ALERT, cut),
        final_analysis=mask_secrets(timeline.final_analysis) if timeline.final_analysis else None,
        cited=[_entry(context, entry, cut) for entry in found],
        not_there=[entry for entry in wanted if entry not in context.entries],
    )


def _entry(context: FittedContext, entry_id: str, cut: Collection[str]) -> Entry:
    start, end = context.entries[entry_id]
    whole = context.alert if entry_id == ALERT else context.conversation
    heading, _, text = whole[start:end].partition("\n")
    left_out = max(0, len(text) - MAX_ENTRY_CHARACTERS)
    label = heading.removeprefix(f"[{entry_id}]").strip()
    return Entry(entry_id, label, text[:MAX_ENTRY_CHARACTERS].strip("\n"), entry_id in cut, left_out)

"""
Decides where work on the text of strangers is done: on the event loop, or in a thread.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tarsy_scoring.timeline.model import Timeline

T = TypeVar("T")
# Work on a larger session takes long, and leases are renewed on the same event loop: at this size 10 ms, and with
# nothing but secrets 0.5 s. For smaller ones a thread costs more than the work, and ends are stored in smaller
# batches: 21 instead of 16 ms of CPU a score. Source: 90 of 91 recorded sessions are smaller.
INLINE_CHARACTERS = 120_000
ASSEMBLED_INLINE = 1_000_000  # bytes of rows, which nothing searches: 5 ms


async def compute(characters: int, work: Callable[[], T], *, inline: int = INLINE_CHARACTERS) -> T:
    """Do work on a text with that many characters: in a thread if they are more than `inline`."""
    return await asyncio.to_thread(work) if characters > inline else work()


async def compute_on(timeline: Timeline, work: Callable[[], T]) -> T:
    """Do work on a session: in a thread if the session is large."""
    size = sum(len(event.content) for event in timeline.shown_events)
    return await compute(size, work)

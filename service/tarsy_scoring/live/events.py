"""Scoring events as clients get them: the channels of an event, and the order in which events are sent."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

SESSIONS = "sessions"
OF_SESSION_PREFIX = "session:"
# Of `scoring.progress`; the others go to the session's channel only.
PHASES_FOR_ALL = ("queued", "waiting_retry")
# Limit of the events kept while an earlier one is missing. Further events are dropped; the database has them.
EARLY_LIMIT = 10_000


@dataclass(frozen=True, slots=True)
class LiveEvent:
    """
    A scoring event to be sent.

    Args:
        channels: The channels it belongs to. A client that is subscribed to several of them gets it once.
        text: The event as JSON, sent unchanged.
        emitted_us: When it was emitted, in microseconds since 1970.
    """

    position: int
    channels: tuple[str, ...]
    text: bytes
    emitted_us: int


class EventSequence:
    """
    Puts events into the order of their positions. Positions have no gaps, so a missing event is noticed.

    Attributes:
        position: Position up to which `take` and `take_until` have returned all events.
    """

    def __init__(self, position: int) -> None:
        self.position = position
        self._early: dict[int, LiveEvent] = {}

    @property
    def has_gap(self) -> bool:
        """Whether events wait for an earlier one that is missing."""
        return bool(self._early)

    @property
    def is_full(self) -> bool:
        """Whether `EARLY_LIMIT` events wait, so that no more should be added."""
        return len(self._early) >= EARLY_LIMIT

    def add(self, event: LiveEvent) -> None:
        """Add an event. One that was taken already is dropped; one that is waiting is replaced."""
        if event.position > self.position:
            self._early[event.position] = event

    def take(self) -> list[LiveEvent]:
        """Remove and return the events that follow `position` without a gap."""
        ready = []
        while (event := self._early.pop(self.position + 1, None)) is not None:
            ready.append(event)
            self.position += 1
        return ready

    def take_until(self, position: int) -> list[LiveEvent]:
        """Remove and return the events up to `position` and those that follow it; earlier gaps are final."""
        # The database had no row for these positions: their sessions were erased.
        ready = [self._early.pop(p) for p in sorted(self._early) if p <= position]
        self.position = max(self.position, position)
        return ready + self.take()


def decode(value: bytes | None) -> LiveEvent | None:
    """The event in a record's value; None if it is not a scoring event with a position."""
    try:
        return event_of(from_json(value or b""), value or b"")
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def event_of(payload: Mapping[str, Any], text: bytes) -> LiveEvent:
    """
    Build an event from the payload, and decide the channels.

    Args:
        text: The payload as JSON.

    Raises:
        KeyError, TypeError: The payload is not a scoring event.
    """
    position, emitted_us = payload["position"], payload["timestamp_us"]
    if type(position) is not int or type(emitted_us) is not int:
        raise TypeError("position and timestamp_us are whole numbers")
    own = f"{OF_SESSION_PREFIX}{payload['session_id']}"
    is_for_all = payload["purpose"] == "production" and (
        payload["type"] != "scoring.progress" or payload["phase"] in PHASES_FOR_ALL
    )
    return LiveEvent(position, (own, SESSIONS) if is_for_all else (own,), text, emitted_us)

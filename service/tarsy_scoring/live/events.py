"""
Scoring events as dashboards get them: to which channels each belongs, and in which order they go out. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

SESSIONS = "sessions"
OF_SESSION_PREFIX = "session:"
PHASES_FOR_ALL = ("queued", "waiting_retry")
EARLY_LIMIT = 10_000  # events kept ahead of a missing one; what is dropped is read from the database in its turn


@dataclass(frozen=True, slots=True)
class Event:
    """
    A scoring event on its way to clients.

    Args:
        channels: Where it belongs; a client that is subscribed to several of them gets it once.
        text: The event as JSON, as it is sent.
        emitted_us: When it was emitted, in microseconds since 1970.
    """

    position: int
    channels: tuple[str, ...]
    text: bytes
    emitted_us: int


class Order:
    """
    Puts events into the order of their positions; knows what is missing. Pure.

    Attributes:
        position: Everything up to it was given out.
    """

    def __init__(self, position: int) -> None:
        self.position = position
        self._early: dict[int, Event] = {}

    @property
    def has_gap(self) -> bool:
        """Whether something came that has to wait for what is missing before it."""
        return bool(self._early)

    @property
    def is_full(self) -> bool:
        """Whether so much waits for what is missing that no more should be kept: the database has it."""
        return len(self._early) >= EARLY_LIMIT

    def add(self, event: Event) -> None:
        """Take an event in; one that was given out is dropped, one that waits already is replaced."""
        if event.position > self.position:
            self._early[event.position] = event

    def take(self) -> list[Event]:
        """What may go out now."""
        ready = []
        while (event := self._early.pop(self.position + 1, None)) is not None:
            ready.append(event)
            self.position += 1
        return ready

    def take_until(self, position: int) -> list[Event]:
        """Everything up to `position`: what is still missing there does not exist any more (an erased session)."""
        ready = [self._early.pop(p) for p in sorted(self._early) if p <= position]
        self.position = max(self.position, position)
        return ready + self.take()


def decode(value: bytes | None) -> Event | None:
    """An event as the topic has it; None: it is none of ours, or has no position."""
    try:
        return event_of(from_json(value or b""), value or b"")
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def event_of(payload: Mapping[str, Any], text: bytes) -> Event:
    """
    An event with the channels it belongs to.

    Raises:
        KeyError, TypeError: The payload is not one of ours.
    """
    position, emitted_us = payload["position"], payload["timestamp_us"]
    if type(position) is not int or type(emitted_us) is not int:
        raise TypeError("position and timestamp_us are whole numbers")
    own = f"{OF_SESSION_PREFIX}{payload['session_id']}"
    is_for_all = payload["purpose"] == "production" and (
        payload["type"] != "scoring.progress" or payload["phase"] in PHASES_FOR_ALL
    )
    return Event(position, (own, SESSIONS) if is_for_all else (own,), text, emitted_us)

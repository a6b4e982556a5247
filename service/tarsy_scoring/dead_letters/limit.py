"""
Decides when a topic is not read because dead letters of so many invalid messages would hide a fault.

A broken producer or a broken version of this service would otherwise divert every message.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable

WINDOW = 1_000  # messages that a share is computed over
WINDOW_AT_LEAST = 100  # fewer messages have no share
FIRST_PAUSE_S, MOST_PAUSE_S = 30.0, 900.0


class DeadLetterLimit:
    """
    Counts messages and invalid ones on one topic, and pauses the topic behind a take that exceeds a limit.

    Behind a pause the count begins again, so a topic that is still at fault costs one take of dead letters per
    pause. Each pause is twice as long as the one before, until `WINDOW_AT_LEAST` messages are within the
    limits.

    Args:
        max_share: Largest share among the last `WINDOW` messages that may be invalid, 0-1.
        max_streak: How many messages in a row may be invalid.
        clock: Monotonic, in seconds.
    """

    def __init__(
        self, max_share: float, max_streak: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_share = max_share
        self._max_streak = max_streak
        self._clock = clock
        self._are_invalid: deque[bool] = deque(maxlen=WINDOW)
        self._streak = 0
        self._excess: str | None = None
        self._paused_until_s = -math.inf
        self.pause_s = 0.0
        """Length of the last pause; 0: the topic is within the limits."""

    @property
    def excess(self) -> str | None:
        """While the topic must not be read: which setting was exceeded, with the numbers."""
        return self._excess if self._clock() < self._paused_until_s else None

    def count(self, take: Iterable[bool]) -> str | None:
        """
        Count the messages of a take, by whether they are invalid.

        Returns:
            `excess`, if the topic is paused from now on.
        """
        has_invalid = False
        for is_invalid in take:
            self._are_invalid.append(is_invalid)
            self._streak = self._streak + 1 if is_invalid else 0
            has_invalid |= is_invalid
        invalid, messages = sum(self._are_invalid), len(self._are_invalid)
        if self._streak > self._max_streak:
            self._excess = f"{self._streak} messages in a row are invalid (SCORING_DEAD_LETTER_MAX_STREAK={self._max_streak})"
        elif has_invalid and messages >= WINDOW_AT_LEAST and invalid > self._max_share * messages:
            self._excess = (
                f"{invalid} of the last {messages} messages are invalid "
                f"(SCORING_DEAD_LETTER_MAX_SHARE={self._max_share:g})"
            )
        else:
            if messages >= WINDOW_AT_LEAST:
                self.pause_s = 0.0
            return None
        self.pause_s = min(2 * self.pause_s, MOST_PAUSE_S) or FIRST_PAUSE_S
        self._paused_until_s = self._clock() + self.pause_s
        self._are_invalid.clear()
        self._streak = 0
        return self._excess

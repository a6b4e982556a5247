"""
Decides when so many messages of a topic are invalid that dead letters would hide a fault.

A broken producer or a broken version of this service would otherwise divert every message.
"""

from collections import deque

WINDOW = 1_000  # messages that a share is computed over
WINDOW_AT_LEAST = 100  # fewer messages have no share


class DeadLetterLimit:
    """
    Counts messages and invalid ones on one topic.

    Args:
        max_share: Largest share among the last `WINDOW` messages that may be invalid, 0-1.
        max_streak: How many messages in a row may be invalid.
    """

    def __init__(self, max_share: float, max_streak: int) -> None:
        self._max_share = max_share
        self._max_streak = max_streak
        self._are_invalid: deque[bool] = deque(maxlen=WINDOW)
        self._streak = 0

    def count(self, *, is_invalid: bool) -> str | None:
        """
        Count a message. Returns: Which setting it exceeds, with the numbers; None: it is within the limit.
        """
        self._are_invalid.append(is_invalid)
        self._streak = self._streak + 1 if is_invalid else 0
        if not is_invalid:
            return None
        invalid, messages = sum(self._are_invalid), len(self._are_invalid)
        if self._streak > self._max_streak:
            return f"{self._streak} messages in a row are invalid (SCORING_DEAD_LETTER_MAX_STREAK={self._max_streak})"
        if messages >= WINDOW_AT_LEAST and invalid > self._max_share * messages:
            return (
                f"{invalid} of the last {messages} messages are invalid "
                f"(SCORING_DEAD_LETTER_MAX_SHARE={self._max_share:g})"
            )
        return None

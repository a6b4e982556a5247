"""When an outage begins and when it is over, so that each is logged once however often work is repeated."""

import time


class Outage:
    """
    Tells the first failure from repetitions, and the end of an outage from a success beside failures.

    While some work fails, other work may succeed: a lock concerns one row, a full server only new
    connections. So an outage is over at the first success after a time without a failure.

    Args:
        settled_s: That time.
    """

    def __init__(self, settled_s: float) -> None:
        self._settled_s = settled_s
        self._began_at: float | None = None
        self._failed_at = 0.0

    def begins(self) -> bool:
        """Note a failure; returns whether an outage begins with it."""
        self._failed_at = time.monotonic()
        if self._began_at is not None:
            return False
        self._began_at = self._failed_at
        return True

    def ends(self) -> float | None:
        """Note a success; returns the seconds from first to last failure of the outage that is now over."""
        if self._began_at is None or time.monotonic() - self._failed_at < self._settled_s:
            return None
        lasted_s = self._failed_at - self._began_at
        self._began_at = None
        return lasted_s

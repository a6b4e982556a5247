"""A token bucket: a burst at once, then an even rate."""


class TokenBucket:
    """
    Rate limit for one caller or connection.

    The bucket starts full. The caller passes the time, so that one clock serves many buckets and tests need
    none.

    Args:
        per_s: Tokens added per second.
        burst: Capacity in tokens.
        now: Current time in seconds, by any monotonic clock.
    """

    __slots__ = ("_burst", "_filled_at", "_per_s", "_tokens")

    def __init__(self, per_s: float, burst: float, now: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._tokens = burst
        self._filled_at = now

    def take(self, now: float) -> float:
        """Take one token and return 0.0, or take nothing and return the seconds until there is one."""
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._per_s)
        self._filled_at = now
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / self._per_s

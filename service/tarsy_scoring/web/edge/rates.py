"""Request rate by caller; each API process counts for itself."""

import math
from collections import OrderedDict
from collections.abc import Callable

from tarsy_scoring.limits.token_bucket import TokenBucket
from tarsy_scoring.web.edge.problems import Problem


class Rates:
    """
    One token bucket per caller, which holds `per_minute` tokens and fills evenly.

    Memory is bounded: beyond `max_callers` the least recently active caller is forgotten and starts with a
    full bucket again.

    Args:
        monotonic: Clock, in s.
    """

    def __init__(self, per_minute: int, monotonic: Callable[[], float], max_callers: int = 10_000) -> None:
        self._per_minute = per_minute
        self._monotonic = monotonic
        self._max_callers = max_callers
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def count(self, identity: str) -> None:
        """Count a request by this caller. Raises: Problem: 429, with the seconds until the next token."""
        now = self._monotonic()
        bucket = self._buckets.pop(identity, None) or TokenBucket(
            self._per_minute / 60, self._per_minute, now
        )
        self._buckets[identity] = bucket
        if len(self._buckets) > self._max_callers:
            self._buckets.popitem(last=False)
        if (wait_s := bucket.take(now)) > 0:
            seconds = max(1, math.ceil(wait_s))
            detail = f"the limit is {self._per_minute} changes per minute: try again in {seconds} s"
            raise Problem(429, "Too many requests", detail, headers={"Retry-After": str(seconds)})

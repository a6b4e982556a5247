"""Decides whether a worker may take back expired scores: no worker could renew a lease during an outage."""

import math
from dataclasses import dataclass


@dataclass(slots=True)
class TakeoverGuard:
    """
    How long a worker has renewed leases without a break.

    A lease that expired says nothing about the worker if the same outage cut off that worker. So a worker
    takes scores back only after it has been in contact with the database for one lease time: by then every
    other worker has renewed. Times are read from this process's monotonic clock.
    """

    lease_s: float
    _since: float = math.inf
    _last: float = -math.inf

    def renewed(self, now: float) -> None:
        """Record a successful renewal, even with no leases to renew."""
        if self._is_broken(now):
            self._since = now
        self._last = now

    def is_settled(self, now: float) -> bool:
        """Whether contact has lasted for one lease time."""
        return not self._is_broken(now) and now - self._since >= self.lease_s

    def _is_broken(self, now: float) -> bool:
        # Renewals come three times per lease, so one failed. A break that is long enough to expire
        # a living worker's lease lasts longer: at least what the last renewal left, two thirds of the
        # lease.
        return now - self._last > self.lease_s / 2

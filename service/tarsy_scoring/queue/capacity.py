"""
Decides how many more requests intake may take, by two bounds on due scores.

Scores that workers may claim count towards `max_pending`. Scores of a chain that is held up for long (a
pause, a spent budget, an open circuit) count towards ten times that number: one chain's hold must not stop
the requests of all others. At a bound intake pauses until the count has shrunk to 80 % of it.
"""

import time
from collections.abc import Awaitable, Callable

import structlog

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.limits.rules import Standings
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.queue.backlog import Bound, due_scores
from tarsy_scoring.telemetry.metrics import Metrics

log = structlog.get_logger()

HELD_PER_PENDING = 10  # bound on scores that are held up, in multiples of `max_pending`
COUNT_EVERY_S = 1.0
COUNTING_SHARE = 0.1  # of the time: a count reads every due score, up to both bounds
RESUME_SHARE = 0.8  # of a bound; without a gap intake would pause and resume with every claim


class Capacity:
    """
    How many more requests this process may take. Counts at most once a second.

    Args:
        standings: Reads what holds chains up now. A process without the role `judging` refreshes them nowhere
            else.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        metrics: Metrics,
        standings: Callable[[], Awaitable[Standings]],
    ) -> None:
        most_held = HELD_PER_PENDING * settings.max_pending
        self._bounds: dict[Bound, int] = {"pending": settings.max_pending, "held": most_held}
        self._database = database
        self._metrics = metrics
        self._standings = standings
        self._reached: set[Bound] = set()
        self._room = 0
        self._next_count = 0.0

    @property
    def is_paused(self) -> bool:
        """Whether a bound is reached."""
        return bool(self._reached)

    def use(self, requests: int) -> None:
        """Record that this many requests were taken."""
        self._room -= requests

    async def room(self) -> int:
        """
        How many more requests may be taken; 0 or less: none.

        Raises:
            DatabaseAway: See `Database.once`.
        """
        started = time.monotonic()
        if started < self._next_count and (self._room > 0 or self.is_paused):
            return self._room
        # Each request may make a score of either kind, so one more than both bounds shows that one is
        # reached.
        due = await due_scores(self._database, await self._standings(), sum(self._bounds.values()) + 2)
        for bound, most in self._bounds.items():
            was_reached = bound in self._reached
            is_reached = due[bound] > (most * RESUME_SHARE if was_reached else most)
            if is_reached != was_reached:
                self._reached ^= {bound}
                counts = {"due": due[bound], f"max_{bound}": most}
                log.warning("intake.paused" if is_reached else "intake.resumed", bound=bound, **counts)
            self._metrics.intake_paused.labels(bound).set(is_reached)
        self._room = 0 if self._reached else min(most + 1 - due[b] for b, most in self._bounds.items())
        ended = time.monotonic()
        self._next_count = ended + max(COUNT_EVERY_S, (ended - started) / COUNTING_SHARE)
        return self._room

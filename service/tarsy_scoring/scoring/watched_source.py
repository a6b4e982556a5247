"""
The timeline source as a worker's attempts use it: tells a source that is away from a session that cannot be
read.

After a failed read the source is asked for an answer that depends on no session. If it answers, the session
is read once more, and a second failure belongs to the session. If it does not, the source's circuit opens:
attempts wait, the worker claims nothing, and single checks find out when the source is back. The circuit also
opens if several sessions in a row cannot be read: a source may answer the check and give no session.
"""

import asyncio
import math
import random
import time

import structlog

from tarsy_scoring.errors import CallerRefused, StartRefused, TimelineUnavailable, WaitFor
from tarsy_scoring.judge.clock import AttemptClock
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.timeline.model import Timeline, TimelineSource

log = structlog.get_logger()

READ_TIMEOUT_S = 60.0
CHECK_TIMEOUT_S = 10.0
COOL_DOWN_S, MOST_COOL_DOWN_S = 2.0, 30.0
MOST_UNREADABLE = 3  # different sessions, with none in between that could be read
# If sessions are still unreadable after this time, they are the fault and not the source.
LONGEST_ROW_S = 3600.0
SPREAD = 0.5  # between workers that check one source, and between scores that they put back


class WatchedSource:
    """
    One source with a circuit for this process alone: a worker may be cut off from it while others
    are not.
    """

    def __init__(self, source: TimelineSource, metrics: Metrics) -> None:
        self.may_change = source.may_change
        self.away: str | None = None
        """Why the circuit is open; None while it is closed."""
        self._source = source
        self._metrics = metrics
        self._reads = asyncio.Semaphore(source.reads_at_once)
        self._checking = asyncio.Lock()
        self._is_away = asyncio.Event()
        self._away_since = 0.0
        self._answered_at = -math.inf
        self._cool_down_s = COOL_DOWN_S
        self._unreadable: set[str] = set()
        self._row_began_at = 0.0

    @property
    def unanswered(self) -> str | None:
        """
        Why the source has never answered this process; None from the first answer on, also while it is away.
        """
        return (
            None if self._answered_at > -math.inf else self.away or "the timeline source has not answered yet"
        )

    async def fetch_timeline(self, session_id: str, clock: AttemptClock) -> Timeline:
        """
        Read one session; see `TimelineSource`.

        Args:
            clock: The attempt's. Waiting until the source has room for another read takes no attempt time.

        Raises:
            WaitFor: The source does not answer, or gives no session.
            TimelineUnavailable: The source answers, and yet this session cannot be read.
            SessionNotFound, SessionNotTerminal, SessionTooLarge: See `TimelineSource`.
        """
        await clock.untimed(self._reads.acquire())
        try:
            return await self._read(session_id, clock)
        finally:
            self._reads.release()

    async def _read(self, session_id: str, clock: AttemptClock) -> Timeline:
        failure: TimelineUnavailable
        for _ in range(2):  # the first failure may come from an outage that is already over
            if self.away is not None:
                break
            try:
                async with asyncio.timeout(min(READ_TIMEOUT_S, max(0.0, clock.left_s))):
                    timeline = await self._source.fetch_timeline(session_id)
                self._unreadable.clear()
                self._cool_down_s = COOL_DOWN_S
                return timeline
            except TimeoutError:
                failure = TimelineUnavailable(f"reading session {session_id} took longer than allowed")
            except TimelineUnavailable as error:
                failure = error
            if isinstance(failure, CallerRefused):
                self._open(str(failure))
            else:
                await self._check_after(time.monotonic())
        if self.away is None:
            self._note_unreadable(session_id, failure)
        if self.away is not None:
            raise WaitFor(self.away, self._cool_down_s * _spread(), "source")
        raise failure

    def _note_unreadable(self, session_id: str, failure: TimelineUnavailable) -> None:
        now = time.monotonic()
        if not self._unreadable:
            self._row_began_at = now
        if len(self._unreadable) < MOST_UNREADABLE:
            self._unreadable.add(session_id)
        if (
            self.may_change
            and len(self._unreadable) == MOST_UNREADABLE
            and now < self._row_began_at + LONGEST_ROW_S
        ):
            self._open(
                f"it answers, and {MOST_UNREADABLE} sessions in a row could not be read; the last: {failure}"
            )

    async def watch(self) -> None:
        """
        Loop for ever: while the source is away, check it after each cool-down.

        Raises:
            StartRefused: See `check`.
        """
        while True:
            await self._is_away.wait()
            while self.away is not None:
                await asyncio.sleep(self._cool_down_s * _spread())
                self._cool_down_s = min(2 * self._cool_down_s, MOST_COOL_DOWN_S)
                await self.check()

    async def check(self) -> None:
        """
        Ask the source for an answer, and open or close the circuit.

        Raises:
            StartRefused: The source lacks what this service needs, and has not been fit since the start. A
                source that becomes unfit later is waited for.
        """
        async with self._checking:
            unfit = await self._ask()
        if unfit is not None and self._answered_at == -math.inf:
            raise unfit

    async def _check_after(self, failed_at: float) -> None:
        """Check the source; when many reads fail at once, one does it for all."""
        async with self._checking:
            if self.away is None and self._answered_at < failed_at:
                await self._ask()

    async def _ask(self) -> StartRefused | None:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                await self._source.check()
        except TimeoutError:
            self._open("the timeline source gave no answer in time; is it busy, or the network closed?")
        except (TimelineUnavailable, StartRefused) as error:
            self._open(str(error))
            return error if isinstance(error, StartRefused) else None
        else:
            self._close()
        return None

    def _open(self, reason: str) -> None:
        if self.away is None:
            self._away_since = time.monotonic()
            log.warning("source.away", reason=reason, effect="no score is claimed until the source answers")
        self.away = reason
        self._is_away.set()
        self._metrics.source_away.set(1)

    def _close(self) -> None:
        self._answered_at = time.monotonic()
        if self.away is not None:
            log.info("source.answers", away_s=round(self._answered_at - self._away_since, 1))
        self.away = None
        self._is_away.clear()
        self._metrics.source_away.set(0)


def _spread() -> float:
    return random.uniform(1, 1 + SPREAD)  # noqa: S311 - jitter

"""
The loop of deliveries: one process at a time sends each destination what follows its bookmark.

Laws. A process delivers to a destination while it holds its bookmark, under a lease, which takes no
connection. The
bookmark moves after each message that was taken, so a crash in between repeats one message. A destination
that is
away holds only itself up: each has its own task, bookmark and backoff. A message that is refused for good is
logged,
counted and passed over. Scoring never waits for a delivery.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

import structlog

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.deliveries import tables
from tarsy_scoring.deliveries.destinations import Destination
from tarsy_scoring.deliveries.notices import Notice
from tarsy_scoring.deliveries.sender import LONGEST_WAIT_S, DestinationAway, MessageRefused
from tarsy_scoring.deliveries.tables import HOLD_S, STREAMS, Stream
from tarsy_scoring.limits.fleet import Limits
from tarsy_scoring.postgres.database import Database, DatabaseAway
from tarsy_scoring.postgres.outage import Outage
from tarsy_scoring.studies.findings import events_since
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.telemetry.stopping import unless_stopped

log = structlog.get_logger()

Result = Literal["delivered", "refused", "outdated"]

POLL_S = 1.0
NOTE_EVERY_S = 10.0
TAKE_OVER_S = 5.0  # between two tries to take a bookmark that another process holds
RETRY_MIN_S, RETRY_MAX_S = 1.0, LONGEST_WAIT_S
# Older notices are passed over: people can do nothing with them, and a destination that was away for months,
# or was configured before, would get thousands.
NEWEST = timedelta(days=7)


class Deliveries:
    """The deliveries of this process: it sends, or stands by while another process does."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        limits: Limits,
        destinations: Sequence[Destination],
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._database = database
        self._limits = limits
        self._destinations = destinations
        self._names = [d.name for d in destinations]
        self._metrics = metrics
        self.holder = uuid.uuid4()
        self._held_until: dict[str, float] = {}  # by the monotonic clock, half of the lease before its end
        for name in self._names:
            metrics.destination_away.labels(name).set(0)
            for result in get_args(Result):  # a series that begins with its first count has no increase
                metrics.deliveries.labels(name, result)

    async def run(self, stopping: asyncio.Event) -> None:
        """Deliver until `stopping`; what remains is delivered later or by another process."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_noting(stopping))
                for destination in self._destinations:
                    group.create_task(self._keep_delivering(destination, stopping))
            with contextlib.suppress(DatabaseAway):
                await tables.release(self._database, self.holder)
        finally:
            for destination in self._destinations:
                await destination.sender.close()

    async def note_once(self, now: datetime) -> None:
        """
        Add what was found since to the notices, then the bookmarks of new destinations, behind older notices.

        Raises:
            DatabaseAway: Call again; nothing is noticed twice.
        """
        found = await events_since(self._database, now - NEWEST)
        await tables.note(self._database, found, await self._limits.spent_budgets())
        for name in await tables.begin(self._database, self._names):
            log.warning("delivery.first_start", destination=name, effect="it gets nothing of what was before")
        events = await tables.backlog(self._database, self._names, self.holder)
        for name in self._names:
            self._metrics.delivery_backlog.labels(name).set(events.get(name, 0))

    async def run_once(
        self, destination: Destination, now: datetime, stopping: asyncio.Event | None = None
    ) -> bool | None:
        """
        Send a destination what follows its bookmark; returns whether the bookmark moved.

        Args:
            stopping: Ends the pass before the next message.

        Returns:
            None: another process holds the bookmark.

        Raises:
            DestinationAway, DatabaseAway: The bookmark stands behind the last message that was taken.
        """
        if not await self._hold(destination):
            return None
        has_moved = False
        for stream in STREAMS:
            rows = await tables.next_notices(self._database, destination.name, stream)
            wanted = [
                (place, notice) for place, notice in rows if notice is not None and destination.wants(notice)
            ]
            for first in range(0, len(wanted), destination.batch):
                batch = wanted[first : first + destination.batch]
                is_stopping = stopping is not None and stopping.is_set()
                if is_stopping or not self._is_held(
                    destination
                ):  # what was read may have been sent by another process
                    return has_moved
                await self._deliver(destination, [notice for _, notice in batch], now)
                await self._move(destination, stream, batch[-1][0])
                has_moved = True
            if rows:
                await self._move(destination, stream, rows[-1][0])
                has_moved = True
        return has_moved

    async def _hold(self, destination: Destination) -> bool:
        """Take the bookmark if it is free, or hold it longer; returns whether this process has it."""
        if self._is_held(destination):
            return True
        now = time.monotonic()
        is_held = await tables.hold(self._database, destination.name, self.holder)
        self._held_until[destination.name] = now + HOLD_S / 2 if is_held else 0.0
        return is_held

    def _is_held(self, destination: Destination) -> bool:
        """Whether this process holds the bookmark for at least half of `HOLD_S`, by its own clock."""
        return time.monotonic() < self._held_until.get(destination.name, 0.0)

    async def _move(self, destination: Destination, stream: Stream, to: int) -> None:
        """Move the bookmark, unless another process has taken it from this one, which was frozen."""
        if not await tables.move(self._database, destination.name, self.holder, stream, to):
            self._held_until[destination.name] = 0.0

    async def _keep_noting(self, stopping: asyncio.Event) -> None:
        patience = self._database.patience()
        while not stopping.is_set():
            with patience:
                await self.note_once(datetime.now(UTC))
            await unless_stopped(asyncio.sleep(NOTE_EVERY_S), stopping)

    async def _keep_delivering(self, destination: Destination, stopping: asyncio.Event) -> None:
        """Run passes while this process holds the bookmark; else try to take it from time to time."""
        state, patience = _Standing(destination.name, self._metrics), self._database.patience()
        while not stopping.is_set():
            pause_s = TAKE_OVER_S
            try:
                with patience:
                    has_moved = await self.run_once(destination, datetime.now(UTC), stopping)
                    if has_moved is None:
                        state.note_standby()
                    else:
                        state.note_present()
                        pause_s = 0 if has_moved else POLL_S
            except DestinationAway as error:
                pause_s = state.note_away(error)
            except Exception as error:  # outermost loop: a failure here must not cost the other destinations
                log.error(
                    "delivery.failed", destination=destination.name, error=type(error).__name__, exc_info=True
                )
                pause_s = RETRY_MAX_S
            await unless_stopped(asyncio.sleep(pause_s), stopping)

    async def _deliver(self, destination: Destination, notices: Sequence[Notice], now: datetime) -> None:
        """
        Send one batch, unless it is too old or refused for good.

        Raises:
            DestinationAway: Send it again.
        """
        new = [n for n in notices if destination.is_record or n.at >= now - NEWEST]
        self._count(destination, "outdated", len(notices) - len(new))
        if not new:
            return
        ids = [n.event_id for n in new]
        try:
            for message in destination.messages(new):
                await destination.sender.send(message)
        except MessageRefused as error:
            log.error("delivery.refused", destination=destination.name, event_ids=ids, reason=str(error))
            self._count(destination, "refused", len(new))
            return
        log.debug("delivery.delivered", destination=destination.name, event_ids=ids)
        self._count(destination, "delivered", len(new))

    def _count(self, destination: Destination, result: Result, number: int) -> None:
        self._metrics.deliveries.labels(destination.name, result).inc(number)


class _Standing:
    """Whether a destination takes messages, as it is logged, measured and waited for."""

    def __init__(self, name: str, metrics: Metrics) -> None:
        self._name = name
        self._away = metrics.destination_away.labels(name)
        self._outage = Outage(0)
        self._retry_s = RETRY_MIN_S

    def note_present(self) -> None:
        """It took every message there was."""
        self._away.set(0)
        self._retry_s = RETRY_MIN_S
        if (waited_s := self._outage.ends()) is not None:
            log.info("delivery.resumed", destination=self._name, waited_s=round(waited_s, 1))

    def note_standby(self) -> None:
        """Another process delivers to it."""
        self._away.set(0)

    def note_away(self, error: DestinationAway) -> float:
        """It took no message; returns the seconds to wait."""
        self._away.set(1)
        if self._outage.begins():
            log.warning("delivery.waiting", destination=self._name, reason=str(error))
        wait_s = max(self._retry_s, error.after_s or 0)
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
        return wait_s

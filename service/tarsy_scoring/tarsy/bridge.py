"""
Turns a TARSy database into `session-completed` events: every terminal session is announced, none is missed.

Laws. A *look* is quick and may miss sessions: it compares the sessions that were open at the last look
with those that are open now. A *sweep* misses none: it first remembers, by id, the sessions that are
still open; then it reads every terminal session that is not settled, by status and time of creation, and
announces each end that was not announced before. A sweep that one server answered *settles* the sessions
created before it began, except for the last `OVERLAP_S`: later sweeps do not read them. A process that dies
in a sweep leaves the announced ends behind; the next one sweeps from the settled time again.

The order of ends and commits, the clocks behind recorded ends and outages therefore do not matter. The
only assumption about TARSy is that a session's row is committed within the overlap after the creation
time. A session that was seen open is announced when it ends, whatever the times are.

The settled time moves at the end of a sweep, and only if no other process moved it meanwhile, so a crash
repeats events and loses none.
"""

import asyncio
import time
from datetime import datetime, timedelta

import structlog

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.kafka.connect import BrokerAway
from tarsy_scoring.kafka.publisher import Publisher
from tarsy_scoring.postgres.database import Database, DatabaseAway
from tarsy_scoring.postgres.leader import AdvisoryLock
from tarsy_scoring.tarsy.announcer import Announcer, Bookmark
from tarsy_scoring.tarsy.database import TarsyAway
from tarsy_scoring.tarsy.reviews import Reviews
from tarsy_scoring.tarsy.sessions import BEGINNING, PAGE, STATUSES, SweepStart, TarsySessions
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.telemetry.stopping import cancelling, unless_stopped

log = structlog.get_logger()

POLL_S = 2.0
SWEEP_EVERY_S = 300.0
OVERLAP_S = 86_400.0  # longest time between creation and commit of a TARSy session
# A session created and ended between two looks is this young, with skewed clocks.
FRESH = timedelta(minutes=5)
FORGET = 10_000  # rows per statement

BRIDGE_LOCK = AdvisoryLock("tarsy-scoring bridge")

WRITE_BOOKMARK = """
INSERT INTO {schema}.bridge_bookmark (since, settled_before) VALUES ($1, $2) ON CONFLICT DO NOTHING
"""

# Set another `since`, and begin again as before the first sweep.
ANEW = """
UPDATE {schema}.bridge_bookmark SET since = $1, settled_before = 'epoch' WHERE since <> $1
  RETURNING since, settled_before
"""

BOOKMARK = "SELECT since, settled_before FROM {schema}.bridge_bookmark"

# Only where the sweep began: another process may have moved the bookmark.
SETTLE = """
UPDATE {schema}.bridge_bookmark SET settled_before = $3 WHERE since = $1 AND settled_before = $2
  RETURNING since
"""

FORGET_SETTLED = """
DELETE FROM {schema}.bridge_announced WHERE event_id IS NOT NULL AND session_id IN (
  SELECT session_id FROM {schema}.bridge_announced WHERE created_at < $1 AND event_id IS NOT NULL
  ORDER BY created_at LIMIT $2)
RETURNING session_id
"""

REMEMBER_OPEN = """
INSERT INTO {schema}.bridge_announced (session_id, created_at)
SELECT * FROM unnest($1::text[], $2::timestamptz[])
ON CONFLICT (session_id) DO UPDATE SET event_id = NULL
"""

WERE_OPEN = """
SELECT session_id, created_at FROM {schema}.bridge_announced
WHERE event_id IS NULL AND session_id > $1 ORDER BY session_id LIMIT $2
"""

FORGET_OPEN = "DELETE FROM {schema}.bridge_announced WHERE session_id = ANY($1::text[]) AND event_id IS NULL"


class Bridge:
    """
    The bridge of this process: it works, or it stands by while another process works.

    Args:
        since: Sessions that ended earlier are not announced, except those that were seen open. None: the time
            in the bookmark, or five minutes ago where there is no bookmark. A time that differs from the
            bookmark's starts anew.
        publisher: Owned, and closed at the end of `run`; None: a new one.
        reviews: Read while this process works; None: none are.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        sessions: TarsySessions,
        metrics: Metrics,
        since: datetime | None = None,
        publisher: Publisher | None = None,
        reviews: Reviews | None = None,
    ) -> None:
        self._overlap = timedelta(seconds=OVERLAP_S)
        self._database = database
        self._sessions = sessions
        self._announcer = Announcer(settings, database, metrics, publisher)
        self._reviews = reviews
        self._metrics = metrics
        self._since = since  # None once the bookmark has it
        self._open: list[str] = []  # ids of the sessions that were open at the last look
        self._looked_at: float | None = None
        self._swept_at: float | None = None  # None: a sweep is due
        self._stopping = asyncio.Event()
        self._is_waiting = False  # a failure was logged, and no pass has succeeded since
        self.lacking: str | None = "it has not read TARSy's database yet"
        """Why it cannot work; None while it works, or another process does."""

    def request_sweep(self) -> None:
        """Make the next pass sweep, however recent the last sweep is."""
        self._swept_at = None

    async def run(self, stopping: asyncio.Event) -> None:
        """
        Work, or stand by, until `stopping`; a page in progress is finished.

        Raises:
            TarsyUnfit: TARSy's database lacks a table, a column or a privilege.
        """
        self._stopping = stopping
        try:
            while not stopping.is_set():
                try:
                    if self._reviews is not None:  # also while it stands by
                        await self._reviews.move_back()
                    is_ours = await BRIDGE_LOCK.lead(self._database, self._lead)
                    self._metrics.database_up.set(1)
                    if not is_ours:
                        self._note_success()
                except DatabaseAway as error:
                    self._metrics.database_up.set(0)
                    self._note_failure(error)
                await unless_stopped(asyncio.sleep(POLL_S), stopping)
        finally:
            await self._announcer.stop()

    async def _lead(self) -> None:
        """
        Work while this process holds the lock.

        A process that loses the lock may announce one page that the next holder announces, too.
        """
        self._metrics.database_up.set(1)
        self._metrics.bridge_leading.set(1)
        self.request_sweep()
        work = [self._announce(), *([self._reviews.run()] if self._reviews is not None else [])]
        tasks = [asyncio.ensure_future(one) for one in work]
        try:
            async with cancelling(*tasks):
                for ended in (await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))[0]:
                    await ended
        finally:
            self._metrics.bridge_leading.set(0)

    async def _announce(self) -> None:
        while not self._stopping.is_set():
            try:
                await self.run_once()
                self._note_success()
            except (TarsyAway, BrokerAway) as error:
                self._note_failure(error)
            await unless_stopped(asyncio.sleep(POLL_S), self._stopping)

    def _note_failure(self, error: Exception) -> None:
        """Report why the bridge waits, and request a sweep for the next pass."""
        self.lacking = str(error)
        self.request_sweep()  # looks may miss sessions that end while the bridge waits
        if isinstance(error, DatabaseAway):
            self._database.note_away(error)
        elif not self._is_waiting:
            self._is_waiting = True
            log.warning("bridge.waiting", reason=str(error), retry_in_s=POLL_S)

    def _note_success(self) -> None:
        self.lacking, self._is_waiting = None, False

    async def run_once(self) -> None:
        """
        Look if it is time to, and sweep if a sweep is due.

        Raises:
            TarsyAway, BrokerAway, DatabaseAway: The bookmark has not moved; calling again later repeats the
                sweep.
        """
        bookmark = await self._bookmark()
        await self._look_if_due(bookmark)
        if self._swept_at is None or time.monotonic() - self._swept_at >= SWEEP_EVERY_S:
            await self._sweep(bookmark)

    async def _look_if_due(self, bookmark: Bookmark) -> None:
        now = time.monotonic()
        if self._looked_at is None or now - self._looked_at >= POLL_S:
            await self._look(bookmark, now)

    async def _look(self, bookmark: Bookmark, now: float) -> None:
        """Announce sessions that were open at the last look and have ended, or that began and ended since."""
        newest = FRESH + timedelta(seconds=now - (now if self._looked_at is None else self._looked_at))
        is_open, ended = await self._sessions.look(self._open, newest)
        await self._announcer.announce(bookmark, ended, frozenset(self._open))
        self._open, self._looked_at = is_open, now

    async def _sweep(self, bookmark: Bookmark) -> None:
        """Announce every end that is not settled, page by page with looks in between, and settle them."""
        self._sessions.tarsy.look_again()
        start = await self._sessions.sweep_start(self._overlap)
        # Before the first page: a session that is open now may end while the sweep is past its place.
        await self._database.fetch(REMEMBER_OPEN, list(start.still_open), list(start.still_open.values()))
        await self._announce_remembered(bookmark, start)
        settles_before = max(bookmark.settled_before, start.settles_before)
        for status in STATUSES:
            created_at, session_id, is_full = bookmark.settled_before, "", True
            while is_full:
                if self._stopping.is_set():
                    return
                server, page = await self._sessions.ended_page(status, created_at, session_id)
                if server != start.server and settles_before > bookmark.settled_before:
                    log.warning(
                        "bridge.another_server",
                        effect="two servers may hold different rows, so this sweep settles none",
                    )
                    settles_before = bookmark.settled_before
                await self._announcer.announce(bookmark, page)
                self._note_success()
                await self._look_if_due(bookmark)
                is_full = len(page) == PAGE
                if is_full:
                    created_at, session_id = page[-1].created_at, page[-1].session_id
        await self._settle(bookmark, settles_before)

    async def _announce_remembered(self, bookmark: Bookmark, start: SweepStart) -> None:
        """Announce remembered sessions that have ended; forget them and those that no longer exist."""
        last = ""
        while rows := await self._database.fetch(WERE_OPEN, last, PAGE):
            remembered = {r["session_id"]: r["created_at"] for r in rows}
            server, ended, still_open = await self._sessions.of_these(list(remembered))
            await self._announcer.announce(bookmark, ended, remembered)
            done = {s.session_id for s in ended}
            # An absent session is forgotten only if it cannot appear later: on another server it may not be
            # replicated yet, and a young one may not be committed yet.
            if server == start.server:
                done |= {
                    s for s, at in remembered.items() if s not in still_open and at < start.settles_before
                }
            await self._database.fetch(FORGET_OPEN, list(done))
            last = rows[-1]["session_id"]

    # --- the bookmark --------------------------------------------------------------------------------------

    async def _bookmark(self) -> Bookmark:
        """
        Read the bookmark; writes it at the first start, and starts anew from another `since`.

        Raises:
            TarsyAway, DatabaseAway: The bookmark may have been written; calling again is harmless.
        """
        while not (rows := await self._database.fetch(BOOKMARK)):
            # TARSy's clock, less a margin for the clocks of TARSy's processes. Sessions that are open now are
            # announced when they end, whatever their times are.
            since = self._since or (await self._sessions.sweep_start(FRESH)).settles_before
            await self._database.fetch(WRITE_BOOKMARK, since, BEGINNING)
            log.warning(
                "bridge.first_start",
                since=since.isoformat(),
                effect="sessions that ended earlier are not announced; --since TIME or --since beginning does that",
            )
        if self._since is not None and (anew := await self._database.fetch(ANEW, self._since)):
            log.warning("bridge.starts_anew", since=self._since.isoformat())
            rows = anew
        self._since = None
        return Bookmark(**dict(rows[0]))

    async def _settle(self, began: Bookmark, before: datetime) -> None:
        """End a sweep and forget settled ends, unless another process has moved the bookmark meanwhile."""
        if not await self._database.fetch(SETTLE, began.since, began.settled_before, before):
            return
        while len(await self._database.fetch(FORGET_SETTLED, before, FORGET)) == FORGET:
            pass
        self._swept_at = time.monotonic()
        self._metrics.bridge_swept.set_to_current_time()

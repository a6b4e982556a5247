"""
Keeps the rollups: folds deltas, fills the days before the deltas began, and counts all days again on demand.

Laws. One process at a time writes rollups. Each day is one short transaction on one snapshot: it folds the
deltas
that it sees, and replaces the rollups of the day by a count of the scores that it sees. Scores that end
meanwhile
append deltas that are folded later, so workers need not stop.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

import structlog

from tarsy_scoring.analytics.rollups import (
    FIRST_DAY,
    FOLDED_AT_ONCE,
    NO_DAY,
    RECOUNT_DAY,
    REMOVE_UNUSED,
    ROLLUPS,
    fold,
)
from tarsy_scoring.postgres.database import Connection, Database, DatabaseAway
from tarsy_scoring.postgres.leader import AdvisoryLock
from tarsy_scoring.postgres.transactions import LONG_TRANSACTION
from tarsy_scoring.telemetry.stopping import unless_stopped

log = structlog.get_logger()

FOLD_EVERY_S = 5.0
DAY_S = 600.0  # limit of one day; a million scores take a minute
WAIT_S = 0.5  # between tries of a command to get the lock, which the loop holds for one pass

KEEPER_LOCK = AdvisoryLock("tarsy-scoring rollups")

# The first statement of each transaction that writes rollups. It takes no snapshot, so the snapshot is as new
# as the lock. A process that lost the advisory lock unnoticed waits here.
_LOCK = "LOCK TABLE {schema}.rollups_filled IN SHARE ROW EXCLUSIVE MODE"
_ONE_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"

# The last day before $1 on which a score was completed or a session ended; null: there is none.
DAY_BEFORE = """
SELECT greatest(
  (SELECT max(s.completed_at) FROM {schema}.session_scores s
   WHERE s.status = 'completed' AND s.purpose = 'production'
     AND s.completed_at < $1::date::timestamp AT TIME ZONE 'UTC'),
  (SELECT least(m.completed_at, m.first_seen_at) FROM {schema}.sessions m
   WHERE least(m.completed_at, m.first_seen_at) < $1::date::timestamp AT TIME ZONE 'UTC'
   ORDER BY least(m.completed_at, m.first_seen_at) DESC, session_id DESC LIMIT 1)) AT TIME ZONE 'UTC'
"""

# The days before this one are to be counted.
FILLED = "SELECT greatest(since, figures_since) FROM {schema}.rollups_filled"

# How many days there are to count, from the last to the first; null: none.
DAYS = """
SELECT max(at)::date - min(at)::date + 1 FROM (
  SELECT max(completed_at) AS at FROM {schema}.session_scores WHERE status = 'completed' AND purpose = 'production'
  UNION ALL
  SELECT min(completed_at) FROM {schema}.session_scores WHERE status = 'completed' AND purpose = 'production'
  UNION ALL
  (SELECT least(completed_at, first_seen_at) FROM {schema}.sessions
   ORDER BY least(completed_at, first_seen_at) DESC, session_id DESC LIMIT 1)
  UNION ALL
  (SELECT least(completed_at, first_seen_at) FROM {schema}.sessions
   ORDER BY least(completed_at, first_seen_at), session_id LIMIT 1)) t
"""

SET_FILLED = (
    "UPDATE {schema}.rollups_filled SET since = least(since, $1), figures_since = least(figures_since, $1)"
)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild counted again."""

    days: int
    scores: int


class RollupKeeper:
    """Folds and fills the rollups in this process, while it holds the lock."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def run(self, stopping: asyncio.Event) -> None:
        """Run passes until `stopping` is set; the next process takes over an interrupted pass."""
        while not stopping.is_set():
            await unless_stopped(self._pass(), stopping)
            await unless_stopped(asyncio.sleep(FOLD_EVERY_S), stopping)

    async def _pass(self) -> None:
        try:
            await self.run_once()
        except DatabaseAway as error:
            self._database.note_away(error)
        except Exception as error:  # outermost loop: the numbers stay exact without it
            log.error("rollups.failed", error=type(error).__name__, exc_info=True)

    async def run_once(self) -> bool:
        """
        Fold all deltas, and fill days that are missing, the newest first.

        Returns:
            False without doing anything when another process holds the lock.

        Raises:
            DatabaseAway: Retry later; nothing is lost.
        """

        async def work() -> None:
            while await self.fold() == FOLDED_AT_ONCE:
                pass
            since = await self._filled_since()
            if since > FIRST_DAY:
                log.info("rollups.filling", since=str(since))
                found = await self._count_days(since)
                log.info("rollups.filled", days=found.days, scores=found.scores)

        return await KEEPER_LOCK.lead(self._database, work)

    async def rebuild(self, on_day: Callable[[int], None] = lambda _: None) -> Rebuilt:
        """
        Count all days again, beside running workers. Pages show exact numbers meanwhile.

        Args:
            on_day: Called with the number of calendar days behind, of `days` in all.

        Raises:
            DatabaseAway: The days counted so far stay; call again.
        """
        found = Rebuilt(0, 0)

        async def work() -> None:
            nonlocal found
            found = await self._count_days(NO_DAY, on_day)

        while not await KEEPER_LOCK.lead(self._database, work):  # noqa: ASYNC110 - another process holds it
            await asyncio.sleep(WAIT_S)
        return found

    async def days(self) -> int:
        """Number of calendar days from the first score to the last one. Raises: DatabaseAway."""
        return await self._database.once(lambda c: c.fetchval(self._database.sql(DAYS))) or 0

    async def fold(self) -> int:
        """Fold the oldest deltas in a transaction; returns their number. Raises: DatabaseAway."""

        async def work(connection: Connection) -> int:
            await connection.execute(self._database.sql(_LOCK))
            return await fold(self._database, connection)

        return await self._database.once(work)

    async def _filled_since(self) -> date:
        since: date = await self._database.once(lambda c: c.fetchval(self._database.sql(FILLED)))
        return since

    async def _count_days(self, end: date, on_day: Callable[[int], None] = lambda _: None) -> Rebuilt:
        """Count the days before `end` again, the newest first, each in a transaction of its own."""
        days = scores = 0
        newest: date | None = None
        while end > FIRST_DAY:
            day, counted = await self._count_day_before(end)
            if day is not None:
                newest = newest or day
                days, scores = days + 1, scores + counted
                on_day((newest - day).days + 1)
            end = day or FIRST_DAY
        return Rebuilt(days, scores)

    async def _count_day_before(self, end: date) -> tuple[date | None, int]:
        """
        Replace the rollups between the last day with scores before `end` and `end`.

        Returns:
            The day and the number of counted rows; None: there are no scores before `end`.
        """

        async def work(connection: Connection) -> tuple[date | None, int]:
            sql = self._database.sql
            await connection.execute(f"{_ONE_SNAPSHOT};SET LOCAL statement_timeout = 0")
            await connection.execute(sql(_LOCK))
            await connection.execute(LONG_TRANSACTION)
            while await fold(self._database, connection) == FOLDED_AT_ONCE:
                pass
            at = await connection.fetchval(sql(DAY_BEFORE), end)
            day = None if at is None else at.date()
            for table in ROLLUPS:
                remove = f"DELETE FROM {{schema}}.{table} WHERE day >= $1 AND day < $2"
                await connection.execute(sql(remove), day or FIRST_DAY, end, timeout=DAY_S)
            counted = 0
            if day is None:
                for remove in REMOVE_UNUSED:
                    await connection.execute(sql(remove), timeout=DAY_S)
            else:
                counted = await connection.fetchval(sql(RECOUNT_DAY), day, timeout=DAY_S)
            await connection.execute(sql(SET_FILLED), day or FIRST_DAY)
            return day, counted

        return await self._database.once(work)

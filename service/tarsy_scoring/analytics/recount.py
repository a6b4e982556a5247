"""
Counts dirty days again from the scores, one day in a transaction, and in one process at a time.

Today stays dirty, because each score would have it counted again. The marks of today are merged into one.
"""

import asyncio
from datetime import date, timedelta
from functools import partial

import structlog

from tarsy_scoring.analytics.daily import COUNT_NAMES, COUNT_SUMS, COUNT_TOTALS, NO_DAY, ROOM, midnight
from tarsy_scoring.postgres.database import Connection, Database, DatabaseAway
from tarsy_scoring.postgres.leader import AdvisoryLock
from tarsy_scoring.scores.session_list import CUSTOM_PLAN
from tarsy_scoring.telemetry.stopping import unless_stopped

log = structlog.get_logger()

RECOUNT_EVERY_S = 10.0
DAY_S = 600.0  # limit for one day; 100,000 scores take some seconds

RECOUNT_LOCK = AdvisoryLock("tarsy-scoring recount")

NEWEST_DIRTY = """
SELECT max(day) FROM {schema}.dirty_days WHERE day < least($1, (now() AT TIME ZONE 'UTC')::date)
"""

MERGE_MARKS_OF_TODAY = """
WITH gone AS (DELETE FROM {schema}.dirty_days WHERE day >= (now() AT TIME ZONE 'UTC')::date RETURNING day)
INSERT INTO {schema}.dirty_days (day) SELECT DISTINCT day FROM gone
"""

UNMARK = "DELETE FROM {schema}.dirty_days WHERE day = $1"

REMOVE = (
    "DELETE FROM {schema}.daily_counts WHERE is_all IN (true, false) AND day = $1",
    "DELETE FROM {schema}.daily_sums WHERE day = $1",
    "DELETE FROM {schema}.daily_names WHERE kind IN ('failure_tag', 'missing_tools') AND day = $1",
)

# Ordered so that readers of all chains, or of one, find their rows together.
COUNT = (
    f"INSERT INTO {{schema}}.daily_counts {COUNT_TOTALS} ORDER BY 2, 3",
    f"INSERT INTO {{schema}}.daily_sums {COUNT_SUMS} ORDER BY 1, 3",
    f"INSERT INTO {{schema}}.daily_names {COUNT_NAMES} ORDER BY 5, 2",
)

MARK_ALL = """
INSERT INTO {schema}.dirty_days (day)
SELECT (completed_at AT TIME ZONE 'UTC')::date FROM {schema}.session_scores
WHERE status = 'completed' AND purpose = 'production'
UNION SELECT (least(completed_at, first_seen_at) AT TIME ZONE 'UTC')::date FROM {schema}.sessions
UNION SELECT day FROM {schema}.daily_sums
"""


async def run_recounts(database: Database, stopping: asyncio.Event) -> None:
    """Count dirty days until `stopping` is set."""
    while not stopping.is_set():
        await unless_stopped(_pass(database), stopping)
        await unless_stopped(asyncio.sleep(RECOUNT_EVERY_S), stopping)


async def _pass(database: Database) -> None:
    try:
        await recount_all(database)
    except DatabaseAway as error:
        database.note_away(error)
    except Exception as error:  # outermost loop: pages count the newest dirty days themselves
        log.error("recount.failed", error=type(error).__name__, exc_info=True)


async def mark_all(database: Database) -> None:
    """Mark all days. Raises: DatabaseAway."""
    await database.once(lambda c: c.execute(database.sql(MARK_ALL), timeout=DAY_S))


async def recount_all(database: Database) -> int:
    """
    Count all dirty days before today, the newest first and each once; returns their number.

    Stops early while another process counts. Raises: DatabaseAway: the days counted so far stay.
    """
    days, last = 0, NO_DAY
    # Downwards: while scores arrive for a past day, that day is marked again before it is counted.
    while (day := await database.once(partial(_recount_newest, database, last))) is not None:
        days, last = days + 1, day
    return days


async def _recount_newest(database: Database, before: date, connection: Connection) -> date | None:
    """
    Count the newest dirty day before `before` and before today.

    Returns:
        The day; None: there is none, or another process counts.
    """
    sql = database.sql
    # Two counts of a day at once would both insert the rows.
    if not await RECOUNT_LOCK.try_acquire(connection, database.schema):
        return None
    day: date | None = await connection.fetchval(sql(NEWEST_DIRTY), before)
    if day is None:
        await connection.execute(sql(MERGE_MARKS_OF_TODAY))
        return None
    # Exact, because each statement in a READ COMMITTED transaction sees what was committed before it. Later
    # counts see a change whose mark this statement deletes; a change that commits after it leaves a mark,
    # and the day is counted again.
    await connection.execute(sql(UNMARK), day)
    for remove in REMOVE:
        await connection.execute(sql(remove), day)
    await connection.execute(f"SET LOCAL statement_timeout = 0;{ROOM};{CUSTOM_PLAN}")
    for count in COUNT:
        await connection.execute(
            sql(count), [midnight(day)], [midnight(day + timedelta(days=1))], timeout=DAY_S
        )
    return day

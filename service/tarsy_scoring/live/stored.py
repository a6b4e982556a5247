"""Reads scoring events from the database: the last position, events that Kafka did not bring, catch-ups."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from tarsy_scoring.live.events import OF_SESSION_PREFIX, PHASES_FOR_ALL, SESSIONS
from tarsy_scoring.postgres.database import Connection, Database, DatabaseAway

T = TypeVar("T")

CATCH_UP_LIMIT = 200  # events, as in TARSy: beyond it a client reloads
CATCH_UP_BYTES = 256 * 1024  # a quarter of a client's queue, so that a few catch-ups do not overflow it
READ_LIMIT = 1000
READ_TIMEOUT_S = 5.0

# The last position that was assigned.
END = "SELECT position FROM {schema}.relay_position"

# The last position up to which events may have been removed.
FORGOTTEN = "SELECT forgotten FROM {schema}.relay_position"

# All events after a position.
NEWER = """
SELECT position, payload || jsonb_build_object('position', position) AS payload FROM {schema}.scoring_events
WHERE position > $1 AND position <= $2 ORDER BY position LIMIT $3
"""

# Events on a session's channel after a position.
NEWER_OF_SESSION = """
SELECT (payload || jsonb_build_object('position', position))::text AS text FROM {schema}.scoring_events
WHERE position > $1 AND position <= $2 AND session_id = $4 ORDER BY position LIMIT $3
"""

# Events on the channel `sessions` after a position.
NEWER_OF_ALL = """
SELECT (payload || jsonb_build_object('position', position))::text AS text FROM {schema}.scoring_events
WHERE position > $1 AND position <= $2 AND payload->>'purpose' = 'production'
  AND (type <> 'scoring.progress' OR payload->>'phase' = ANY($4::text[]))
ORDER BY position LIMIT $3
"""


async def newer(database: Database, position: int | None) -> tuple[int, list[dict[str, Any]]]:
    """
    Read the last assigned position, and the payloads for up to `READ_LIMIT` events after `position`.

    Args:
        position: None: read no events.

    Raises:
        DatabaseAway: Raised after `READ_TIMEOUT_S` at the latest.
    """

    async def work(connection: Connection) -> tuple[int, list[Any]]:
        end = await connection.fetchval(database.sql(END))
        if position is None or position >= end:
            return end, []
        return end, await connection.fetch(database.sql(NEWER), position, end, READ_LIMIT)

    end, rows = await _read(database, work)
    return end, [row["payload"] for row in rows]


async def catch_up(database: Database, channel: str, since: int, until: int) -> tuple[list[bytes], bool]:
    """
    Read the events on a channel after `since`, up to `until`, as JSON; the oldest ones if there are too many.

    Returns:
        The texts, and whether the client misses events beyond them. It also misses events if `since` is
        ahead of the stream (another database assigned it), or in a range from which events were removed.

    Raises:
        DatabaseAway: Raised after `READ_TIMEOUT_S` at the latest.
    """
    is_of_all = channel == SESSIONS
    sql = database.sql(NEWER_OF_ALL if is_of_all else NEWER_OF_SESSION)
    selection = list(PHASES_FOR_ALL) if is_of_all else channel.removeprefix(OF_SESSION_PREFIX)

    async def work(connection: Connection) -> tuple[int, list[Any], int]:
        # The client may come from another process that was ahead of this one.
        end = until if since <= until else await connection.fetchval(database.sql(END))
        rows = await connection.fetch(sql, since, until, CATCH_UP_LIMIT + 1, selection)
        # Read last: `forgotten` is raised before events are removed.
        return end, rows, await connection.fetchval(database.sql(FORGOTTEN))

    end, rows, forgotten = await _read(database, work)
    texts, has_more = _fitting([r["text"].encode() for r in rows])
    # A session read from the beginning is sent as far as it is stored: a reload would bring no more.
    has_lost = since < forgotten and (is_of_all or since > 0)
    return texts, has_more or since > end or has_lost


async def _read(database: Database, work: Callable[[Connection], Awaitable[T]]) -> T:
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            return await database.once(work)
    except TimeoutError:
        raise DatabaseAway(f"the database at {database.place} gave no answer in time") from None


def _fitting(texts: Sequence[bytes]) -> tuple[list[bytes], bool]:
    """The first texts, as many as one catch-up may send but at least one, and whether there are more."""
    room = CATCH_UP_BYTES
    for number, text in enumerate(texts):
        room -= len(text)
        if number == CATCH_UP_LIMIT or (room < 0 and number > 0):
            return list(texts[:number]), True
    return list(texts), False

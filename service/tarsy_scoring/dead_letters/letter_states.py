"""
Which dead letters were replayed: one row for each original position.

The dead-letter topic has the messages; this table has none of their content. All times are those of the
database, so that they can be compared.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from tarsy_scoring.errors import InvalidMessage
from tarsy_scoring.events import Origin
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.timeline.text import storable

LetterState = Literal["open", "replayed"]
"""`replayed`: sent again since it failed last."""

LONGEST_MESSAGE = 1000

Position = tuple[str, int, int]
"""Topic, partition and offset of the original message."""

NOTE_FAILURE = """
INSERT INTO {schema}.dead_letters (original_topic, original_partition, original_offset, error, error_message)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (original_topic, original_partition, original_offset) DO UPDATE
SET error = excluded.error, error_message = excluded.error_message, failed_at = now(),
  times = dead_letters.times + 1
"""

# The row may be missing: the failure was pruned.
ALLOW_REPLAY = """
INSERT INTO {schema}.dead_letters (original_topic, original_partition, original_offset, error, error_message,
  replay_hash)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (original_topic, original_partition, original_offset) DO UPDATE
  SET replay_hash = excluded.replay_hash
RETURNING now()
"""

# $4: when the replay was allowed. Intake may have noted another failure since.
NOTE_REPLAY = """
UPDATE {schema}.dead_letters SET replayed_at = $4
WHERE original_topic = $1 AND original_partition = $2 AND original_offset = $3
"""

_SHOWN = """
SELECT original_topic, original_partition, original_offset, error, error_message, times, failed_at,
  replayed_at, state
FROM (SELECT *, CASE WHEN replayed_at >= failed_at THEN 'replayed' ELSE 'open' END AS state
  FROM {schema}.dead_letters) d
"""
_AT_POSITIONS = """
JOIN unnest($1::text[], $2::bigint[], $3::bigint[]) AS o(topic, partition, "offset")
  ON d.original_topic = o.topic AND d.original_partition = o.partition AND d.original_offset = o."offset"
"""
STATES = _SHOWN + _AT_POSITIONS

HASHES = "SELECT d.replay_hash FROM {schema}.dead_letters d" + _AT_POSITIONS

# Those of a state ($1), or all, that failed last; at most $2.
NEWEST = f"{_SHOWN} WHERE $1::text IS NULL OR state = $1 ORDER BY failed_at DESC, 1, 2, 3 LIMIT $2"

COUNTS = f"SELECT state, count(*) AS number FROM ({_SHOWN}) s GROUP BY 1"


@dataclass(frozen=True, slots=True)
class Letter:
    """A message that became a dead letter, by the original position."""

    original_topic: str
    original_partition: int
    original_offset: int
    error: Annotated[str, Field(description="Why it failed last.")]
    error_message: str
    times: Annotated[int, Field(description="How often it was written to the dead-letter topic.")]
    failed_at: Annotated[datetime, Field(description="When it was last written there.")]
    replayed_at: Annotated[datetime | None, Field(description="When it was last replayed.")]
    state: Annotated[
        LetterState, Field(description="`open`: not replayed since it failed last; else `replayed`.")
    ]


@dataclass(frozen=True, slots=True)
class Letters:
    """Dead letters, those that failed last first."""

    dead_letters: list[Letter]
    left_out: Annotated[int, Field(description="Those beyond `limit`.")]
    by_state: Annotated[
        dict[LetterState, int], Field(description="Number of all dead letters in each state.")
    ]


def position_in(origin: Origin) -> Position:
    """The position of a message, without the time."""
    return origin.topic, origin.partition, origin.offset


async def note_failure(database: Database, origin: Origin, error: InvalidMessage) -> None:
    """Record that a message became a dead letter. Waits for the database."""
    row = *position_in(origin), error.reason, storable(str(error))[:LONGEST_MESSAGE]
    await database.persist(lambda c: c.execute(database.sql(NOTE_FAILURE), *row))


async def allow_replay(
    database: Database, origin: Origin, error: str, error_message: str, replay_hash: bytes
) -> datetime:
    """
    Store the hash by which intake recognises a replay; returns the time for `note_replay`.

    Args:
        error, error_message: From the dead letter.

    Raises:
        DatabaseAway: It may have been stored.
    """
    said = (storable(text)[:LONGEST_MESSAGE] for text in (error, error_message))
    row = *position_in(origin), *said, replay_hash
    return await database.once(lambda c: c.fetchval(database.sql(ALLOW_REPLAY), *row))


async def note_replay(database: Database, origin: Origin, at: datetime) -> None:
    """Record that a message was sent again. Raises: DatabaseAway: It may have been recorded."""
    await database.once(lambda c: c.execute(database.sql(NOTE_REPLAY), *position_in(origin), at))


async def replay_hashes(database: Database, origins: Collection[Origin]) -> set[bytes]:
    """The hashes of the last replays from these positions. Waits for the database."""
    columns = _columns([position_in(origin) for origin in origins])
    rows = await database.persist(lambda c: c.fetch(database.sql(HASHES), *columns))
    return {row["replay_hash"] for row in rows}


async def states_of(database: Database, positions: Sequence[Position]) -> dict[Position, Letter]:
    """The dead letters with these original positions, as far as they are recorded. Raises: DatabaseAway."""
    rows = await database.once(lambda c: c.fetch(database.sql(STATES), *_columns(positions)))
    letters = [Letter(**dict(row)) for row in rows]
    return {(one.original_topic, one.original_partition, one.original_offset): one for one in letters}


async def newest_letters(database: Database, state: LetterState | None, limit: int) -> Letters:
    """The dead letters of a state, or all, that failed last. Raises: DatabaseAway."""

    async def work(connection: Connection) -> tuple[list[Any], list[Any]]:
        found = await connection.fetch(database.sql(NEWEST), state, limit)
        return found, await connection.fetch(database.sql(COUNTS))

    found, counted = await database.once(work)
    by_state: dict[LetterState, int] = {row["state"]: row["number"] for row in counted}
    total = sum(by_state.values()) if state is None else by_state.get(state, 0)
    return Letters([Letter(**dict(row)) for row in found], max(0, total - len(found)), by_state)


def _columns(positions: Sequence[Position]) -> tuple[list[Any], ...]:
    return tuple([position[field] for position in positions] for field in range(3))

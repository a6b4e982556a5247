"""
What became of dead letters: one row for each original position, with the last failure and the last replay.

The dead-letter topic has the messages; this table has none of their content. All times are those of the
database, so
that they can be compared.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from tarsy_scoring.errors import InvalidMessage
from tarsy_scoring.events import Origin
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.timeline.text import storable

LetterState = Literal["not_replayed", "sent", "understood", "still_fails"]
"""
`sent`: replayed, and not yet read by intake. `understood`: intake has stored the request of the replay. `still_fails`:
the replay became a dead letter again.
"""

LONGEST_MESSAGE = 1000

Position = tuple[str, int, int]
"""Topic, partition and offset of the original message."""

NOTE_FAILURE = """
INSERT INTO {schema}.dead_letters (original_topic, original_partition, original_offset, error, error_message)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (original_topic, original_partition, original_offset) DO UPDATE
SET error = excluded.error, error_message = excluded.error_message, failed_at = now(), times = dead_letters.times + 1
"""

# $6: when the replay was recorded, just before it was sent; intake may have read it meanwhile. A letter of an
# earlier version has no row yet.
NOTE_REPLAY = """
INSERT INTO {schema}.dead_letters
  (original_topic, original_partition, original_offset, error, error_message, failed_at, replayed_at)
VALUES ($1, $2, $3, $4, $5, $6, $6)
ON CONFLICT (original_topic, original_partition, original_offset) DO UPDATE SET replayed_at = excluded.replayed_at
"""

NOTE_UNDERSTOOD = """
UPDATE {schema}.dead_letters d SET understood_at = now()
FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS o(topic, partition, "offset")
WHERE d.original_topic = o.topic AND d.original_partition = o.partition AND d.original_offset = o."offset"
"""

_STATE = """CASE WHEN d.replayed_at IS NULL THEN 'not_replayed' WHEN d.understood_at >= d.replayed_at THEN 'understood'
       WHEN d.failed_at > d.replayed_at THEN 'still_fails' ELSE 'sent' END"""
_SHOWN = f"""
SELECT d.original_topic, d.original_partition, d.original_offset, d.error, d.error_message, d.times, d.failed_at,
       d.replayed_at, {_STATE} AS state
FROM {{schema}}.dead_letters d
"""

# Those at positions ($1 to $3).
STATES = f"""{_SHOWN}
JOIN unnest($1::text[], $2::bigint[], $3::bigint[]) AS o(topic, partition, "offset")
  ON d.original_topic = o.topic AND d.original_partition = o.partition AND d.original_offset = o."offset"
"""

# Those of a state ($1), or all, that failed last; at most $2.
NEWEST = f"{_SHOWN} WHERE $1::text IS NULL OR {_STATE} = $1 ORDER BY d.failed_at DESC, 1, 2, 3 LIMIT $2"

COUNTS = f"SELECT {_STATE} AS state, count(*) AS number FROM {{schema}}.dead_letters d GROUP BY 1"


@dataclass(frozen=True, slots=True)
class Letter:
    """A message that became a dead letter, by its original position."""

    original_topic: str
    original_partition: int
    original_offset: int
    error: Annotated[str, Field(description="Why it failed last.")]
    error_message: str
    times: Annotated[int, Field(description="How often it was written to the dead-letter topic.")]
    failed_at: Annotated[datetime, Field(description="When it was last written there.")]
    replayed_at: Annotated[datetime | None, Field(description="When it was last replayed.")]
    state: LetterState

    @property
    def position(self) -> Position:
        return self.original_topic, self.original_partition, self.original_offset

    @property
    def now(self) -> str:
        """What came of the last replay, in words; empty before the first."""
        if self.state == "still_fails":
            return f"still: {self.error}"
        return {"not_replayed": "", "sent": "sent, not read yet", "understood": "understood"}[self.state]


@dataclass(frozen=True, slots=True)
class Letters:
    """Dead letters, those that failed last first."""

    dead_letters: list[Letter]
    left_out: Annotated[int, Field(description="Those beyond `limit`.")]
    by_state: Annotated[
        dict[LetterState, int], Field(description="Number of all dead letters in each state.")
    ]


def position_in(origin: Origin) -> Position:
    """The position of a message, without its time."""
    return origin.topic, origin.partition, origin.offset


async def note_failure(database: Database, origin: Origin, error: InvalidMessage) -> None:
    """Record that a message became a dead letter. Waits for the database."""
    said = *position_in(origin), error.reason, storable(str(error))[:LONGEST_MESSAGE]
    await database.persist(lambda c: c.execute(database.sql(NOTE_FAILURE), *said))


async def note_replay(
    database: Database, origin: Origin, error: str, error_message: str, at: datetime
) -> None:
    """
    Record that a message was sent again.

    Args:
        error, error_message: Of its dead letter.
        at: Time of the database before it was sent.

    Raises:
        DatabaseAway: It may have been recorded.
    """
    shown = (storable(text)[:LONGEST_MESSAGE] for text in (error, error_message))
    said = *position_in(origin), *shown, at
    await database.once(lambda c: c.execute(database.sql(NOTE_REPLAY), *said))


async def note_understood(database: Database, origins: Collection[Origin]) -> None:
    """Record that requests of replayed messages are stored. Waits for the database."""
    if origins:
        columns = _columns(position_in(origin) for origin in origins)
        await database.persist(lambda c: c.execute(database.sql(NOTE_UNDERSTOOD), *columns))


async def states_of(database: Database, positions: Collection[Position]) -> dict[Position, Letter]:
    """The dead letters with these original positions, as far as they are recorded. Raises: DatabaseAway."""
    rows = await database.once(lambda c: c.fetch(database.sql(STATES), *_columns(positions)))
    return {letter.position: letter for letter in map(_letter, rows)}


async def newest_letters(database: Database, state: LetterState | None, limit: int) -> Letters:
    """The dead letters of a state, or all, that failed last. Raises: DatabaseAway."""

    async def work(connection: Connection) -> tuple[list[Any], list[Any]]:
        found = await connection.fetch(database.sql(NEWEST), state, limit)
        return found, await connection.fetch(database.sql(COUNTS))

    found, counted = await database.once(work)
    by_state: dict[LetterState, int] = {row["state"]: row["number"] for row in counted}
    total = sum(by_state.values()) if state is None else by_state.get(state, 0)
    return Letters([_letter(row) for row in found], max(0, total - len(found)), by_state)


def _columns(positions: Iterable[Position]) -> tuple[list[Any], ...]:
    topics, partitions, offsets = list(zip(*positions, strict=True)) or ((), (), ())
    return list(topics), list(partitions), list(offsets)


def _letter(row: Any) -> Letter:
    return Letter(**dict(row))

"""
The outbox: scoring events between the transaction that makes them true and the relay that publishes them.

Laws. An event is a row committed with the change it describes, so no event describes a write that was rolled
back. `sequence` grows by one within a score, because the emitting transaction holds the row of the score. The
relay reads rows without a position and keeps no cursor over ids: ids are assigned before commit, so a cursor
could skip a row that commits late.

`relay_floor` says up to which position and entry no event waits. Without it a pass reads the index entries of
all events that were published since the oldest open snapshot, because vacuum may not remove them. Positions
have no gaps and commit in order, so the lowest unpublished one bounds all others. An event is published if
its position is at most `relay_floor.published`. A mark in its own row would write the whole row again, so
only events above the floor have one: those that brokers acknowledged before an earlier event.

An entry needs a proof, since a smaller one may commit later:

- An event with entry e is placed by a transaction P. A transaction W writes an event with a smaller entry.
- Entries are assigned in order. W took its entry before e was taken, so before P's snapshot, which shows e.
- W holds the scores' rows, so it had an id before it took the entry. P gets an id with the first
  change, after that snapshot. So W's id is smaller than P's.
- A transaction after P remembers e under another id, larger still. Once no transaction with a smaller
  id runs, every such W has ended, and a new snapshot shows what it wrote. If it shows no event up to e
  without a position, there will never be one.

A transaction that has written and stays open, in any database of the server, delays the floor of entries. An
open snapshot alone does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tarsy_scoring.events import EventType
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.postgres.leader import AdvisoryLock

# The floor of entries rises by this many events at once.
FLOOR_STEP = 1000

# Condition that no broker has acknowledged the event `e`. The version before marks each event.
IS_UNPUBLISHED = """e.published_at IS NULL
  AND (e.position IS NULL OR e.position > (SELECT published FROM {schema}.relay_floor))"""

# Expression of a statement that appends the events in `new` (score_id, type, extra, traceparent, n): they get
# their sequence in the order of n.
NUMBERED = """
numbered AS (
  SELECT new.*, gen_random_uuid() AS event_id, clock_timestamp() AS at,
         row_number() OVER (PARTITION BY new.score_id ORDER BY new.n)
         + coalesce((SELECT max(e.sequence) FROM {schema}.scoring_events e
           WHERE e.score_id = new.score_id), 0)
           AS sequence
  FROM new
)
"""


def insert_numbered(scores: str) -> str:
    """
    SQL that inserts the events of `NUMBERED` for scores of this relation, whose rows the transaction has
    locked.
    """
    return f"""
INSERT INTO {{schema}}.scoring_events (event_id, score_id, session_id, sequence, type, payload, created_at,
  traceparent)
SELECT n.event_id, n.score_id, s.session_id, n.sequence, n.type,
       jsonb_build_object(
         'type', n.type, 'event_id', n.event_id, 'sequence', n.sequence, 'purpose', s.purpose,
         'score_id', s.score_id, 'session_id', s.session_id, 'request_id', s.request_id,
         'chain_id', s.chain_id, 'attempt', s.attempt,
         'timestamp_us', (extract(epoch FROM n.at) * 1000000)::bigint,
         'timestamp', to_char(n.at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
       ) || CASE WHEN n.type IN ('scoring.completed', 'scoring.failed') THEN jsonb_build_object(
         'completed_at', to_char(s.completed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
       ) ELSE jsonb_build_object() END || n.extra,
       n.at, n.traceparent
FROM numbered n JOIN {scores} s USING (score_id)
ORDER BY n.n
"""


# Append events to scores whose rows this transaction has locked, in the order given per score. The driver
# would have to learn `jsonb[]` on each new connection, which takes the server 2 ms.
EMIT = f"""
WITH new AS (
  SELECT * FROM ROWS FROM (jsonb_to_recordset($1::jsonb)
      AS (score_id uuid, type text, extra jsonb, traceparent text))
    WITH ORDINALITY AS n(score_id, type, extra, traceparent, n)
), {NUMBERED} {insert_numbered("{schema}.session_scores")}
"""

# Assign the next positions to committed events, in the order in which each score's events were written, if
# this process holds the lock of the relay ($2) or can take it until the statement ends. A snapshot may be
# older than the lock. The rows are locked, so a row that another relay has placed since the snapshot is left
# out: no position is assigned twice, and there is no gap.
ASSIGN_POSITIONS = f"""
WITH relay AS (
  SELECT CASE WHEN $2 THEN true ELSE pg_try_advisory_xact_lock(hashtext($3), hashtext($4)) END AS is_leading
), unplaced AS (
  SELECT event_id, entry, row_number() OVER (ORDER BY entry) AS n
  FROM (SELECT event_id, entry FROM {{schema}}.scoring_events
        WHERE (SELECT is_leading FROM relay) AND position IS NULL
          AND entry > (SELECT entry FROM {{schema}}.relay_floor)
        ORDER BY entry LIMIT $1 FOR UPDATE) u
), counter AS (
  UPDATE {{schema}}.relay_position SET position = position + (SELECT count(*) FROM unplaced)
  WHERE EXISTS (SELECT FROM unplaced)
  RETURNING position - (SELECT count(*) FROM unplaced) AS before
), placed AS (
  UPDATE {{schema}}.scoring_events e SET position = counter.before + unplaced.n
  FROM unplaced, counter WHERE e.event_id = unplaced.event_id
  RETURNING e.entry
)
SELECT (SELECT is_leading FROM relay) AS is_leading, count(*) AS placed, max(entry) AS last_entry,
  max(entry) >= (SELECT next_entry FROM {{schema}}.relay_floor) + {FLOOR_STEP} AS is_step,
  (SELECT position FROM {{schema}}.relay_position) AS before,
  (SELECT position FROM {{schema}}.scoring_events
   WHERE published_at IS NULL AND position > (SELECT published FROM {{schema}}.relay_floor)
   ORDER BY position LIMIT 1) IS NOT NULL AS had_unpublished
FROM placed
"""

# Raise the floor of entries by a step, and begin the next step at an entry ($1) that has a position.
# Ids from the future are those of another server, from which this database was restored. With NOT EXISTS
# PostgreSQL may join, and then reads the whole index of waiting events, whose dead entries a long snapshot
# keeps.
RAISE_ENTRY = f"""
UPDATE {{schema}}.relay_floor f SET
  entry = CASE WHEN next_xid <= pg_snapshot_xmin(pg_current_snapshot()) THEN next_entry ELSE entry END,
  next_entry = $1, next_xid = pg_current_xact_id()
WHERE next_entry + {FLOOR_STEP} <= $1
  AND (next_xid <= pg_snapshot_xmin(pg_current_snapshot()) OR next_xid > pg_current_xact_id())
  AND (SELECT e.entry FROM {{schema}}.scoring_events e
       WHERE e.position IS NULL AND e.entry > f.entry AND e.entry <= f.next_entry ORDER BY e.entry
         LIMIT 1) IS NULL
"""

# The oldest events with a position that no broker has acknowledged.
UNPUBLISHED = """
SELECT position, session_id, payload || jsonb_build_object('position', position) AS payload, traceparent
FROM {schema}.scoring_events
WHERE published_at IS NULL AND position > (SELECT published FROM {schema}.relay_floor)
ORDER BY position LIMIT $1
"""

# The last position that was assigned, and whether an event waits for a relay. With EXISTS for the second kind
# PostgreSQL may read the whole table, because nearly every row matches in part.
LOOK = """
SELECT p.position AS last_position, (
         EXISTS (SELECT FROM {schema}.scoring_events WHERE position IS NULL AND entry > f.entry)
         OR (SELECT position FROM {schema}.scoring_events WHERE published_at IS NULL
           AND position > f.published
             ORDER BY position LIMIT 1) IS NOT NULL
       ) AS is_waiting
FROM {schema}.relay_position p, {schema}.relay_floor f
"""

# Every event with a position up to $1 is published.
RAISE_PUBLISHED = "UPDATE {schema}.relay_floor SET published = $1 WHERE published < $1"

# Marks events above the floor.
MARK_PUBLISHED = """
UPDATE {schema}.scoring_events SET published_at = now() WHERE position = ANY($1::bigint[])
  AND published_at IS NULL
"""

RELAY_LOCK = AdvisoryLock("tarsy-scoring relay")
"""Held by the one process that assigns positions and publishes; its scope is the schema."""


@dataclass(frozen=True, slots=True)
class NewEvent:
    """
    An event to emit.

    Args:
        extra: The fields that the type adds to the common ones.
        traceparent: Trace context of the event.
    """

    score_id: UUID
    type: EventType
    extra: dict[str, Any]
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """An event with a position, ready to be published under the session's key."""

    position: int
    session_id: str
    payload: dict[str, Any]
    traceparent: str | None = None


async def emit(database: Database, connection: Connection, events: Sequence[NewEvent]) -> None:
    """Append `events` in the caller's transaction, which must hold the rows of their scores."""
    if events:
        names = ("score_id", "type", "extra", "traceparent")
        rows = [{name: getattr(e, name) for name in names} for e in events]
        await connection.execute(database.sql(EMIT), rows)


async def assign_positions(
    database: Database, limit: int, *, is_leading: bool = False
) -> tuple[int, int, bool] | None:
    """
    Assign positions to committed events, in one round trip.

    Args:
        is_leading: A transaction of this process holds `RELAY_LOCK`, so it is not taken.

    Returns:
        The last position assigned before, the number of positions assigned now, and whether an event with a
        position waits to be published. None: another process holds `RELAY_LOCK`.

    Raises:
        DatabaseAway: Positions may have been assigned.
    """
    [row] = await database.single(ASSIGN_POSITIONS, limit, is_leading, RELAY_LOCK.name, database.schema)
    if not row["is_leading"]:
        return None
    if row["is_step"]:
        await database.single(RAISE_ENTRY, row["last_entry"])
    return row["before"], row["placed"], row["placed"] > 0 or row["had_unpublished"]


async def look(database: Database) -> tuple[int, bool]:
    """The last position that was assigned, and whether an event waits for a relay. Raises: DatabaseAway."""
    [row] = await database.fetch(LOOK)
    return row["last_position"], row["is_waiting"]


async def unpublished(database: Database, connection: Connection, limit: int) -> list[OutboxEvent]:
    """The oldest unpublished events with a position, in the order of positions."""
    rows = await connection.fetch(database.sql(UNPUBLISHED), limit)
    return [OutboxEvent(r["position"], r["session_id"], r["payload"], r["traceparent"]) for r in rows]


async def mark_published(
    database: Database, connection: Connection, waiting: Sequence[OutboxEvent], done: Sequence[OutboxEvent]
) -> None:
    """
    Mark events that need not be published again.

    Args:
        waiting: The oldest unpublished events, as `unpublished` gave them in this transaction.
        done: Those of them to mark.
    """
    positions = {e.position for e in done}
    left = [e.position for e in waiting if e.position not in positions]
    up_to = left[0] - 1 if left else waiting[-1].position
    await connection.execute(database.sql(RAISE_PUBLISHED), up_to)
    if above := [position for position in positions if position > up_to]:
        await connection.execute(database.sql(MARK_PUBLISHED), above)

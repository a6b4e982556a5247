"""
Erases a session from every table, on request or because it was deleted upstream.

Laws. All rows are deleted in one transaction. A worker that judges the session loses the lease and writes
nothing afterwards, and the relay publishes nothing about the session afterwards: the transaction deletes
unpublished events, because an erasure is an order and does not wait for brokers. Requests leave only hashes
that identify them: without these an event that Kafka delivers again, or a repeated request, would score the
session again. Copies in Kafka, logs and backups are outside this service.
"""

import asyncio
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from tarsy_scoring.audit import audit
from tarsy_scoring.dead_letters.dead_letters import Body, body_of
from tarsy_scoring.events import SESSION_ID_PATTERN
from tarsy_scoring.outbox import outbox
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.queue.idempotency import KEEP_KEY_HASHES
from tarsy_scoring.queue.leases import Leases

Why = Literal["asked", "deleted_upstream"]

RELAY_WAIT_S = 5.0  # for the relay, which polls every second, to publish that open scores were cancelled
POLL_S = 0.1
# Each cancel may promote a deferred request, which is cancelled in the next round. Scores that are open after
# the last round are deleted without a cancel.
CANCEL_ROUNDS = 5

# Bodies are few and large, so they are searched in small pages, before anything is locked.
BODIES = "SELECT * FROM {schema}.dead_letter_bodies WHERE body_id > $1 ORDER BY body_id LIMIT 5"
BEFORE_ALL = UUID(int=0)


def _count(tables: str, where: str) -> str:
    """SQL columns that count the rows in each table."""
    return ", ".join(
        f"(SELECT count(*) FROM {{schema}}.{table} {where}) AS {table}" for table in tables.split()
    )


_OF_SESSION = "WHERE session_id = $1"
_OF_SCORES = "JOIN mine USING (score_id)"

# Rows of a session by table; $2: the bodies of the dead letters.
INVENTORY = f"""
WITH mine AS (SELECT score_id FROM {{schema}}.session_scores WHERE session_id = $1)
SELECT {_count("sessions session_references session_scores scoring_events scoring_requests changes", _OF_SESSION)},
  {_count("score_labels anchor_sessions bridge_announced", _OF_SESSION)},
  {_count("judge_turns score_missing_tools score_alternative_approaches", _OF_SCORES)},
  {_count("score_alternative_approach_steps kept_answers", _OF_SCORES)},
  {_count("dead_letter_bodies", "WHERE body_id = ANY($2::uuid[])")},
  (SELECT count(*) FROM {{schema}}.session_scores {_OF_SESSION} AND status IN ('pending', 'in_progress')) AS open
"""

OPEN_SCORES = """
SELECT score_id FROM {schema}.session_scores
WHERE session_id = $1 AND status IN ('pending', 'in_progress') ORDER BY created_at, score_id
"""

UNPUBLISHED = f"""
SELECT count(*) FROM {{schema}}.scoring_events e WHERE e.session_id = $1 AND {outbox.IS_UNPUBLISHED}
"""

LOCK_SESSION = "SELECT session_id FROM {schema}.sessions WHERE session_id = $1 FOR UPDATE"

LOCK_SCORES = """
SELECT score_id FROM {schema}.session_scores WHERE session_id = ANY($1::text[]) ORDER BY score_id FOR UPDATE
"""

# `request_id` is a hash of the identity; a repeat is recognised by it alone.
KEEP_HASHES_ALONE = """
UPDATE {schema}.scoring_requests SET
  event_id = NULL, session_id = NULL, score_id = NULL, chain_id = NULL, requested_by = 'erased', criteria = NULL,
  reason = NULL, traceparent = NULL,
  disposition = CASE disposition WHEN 'deferred' THEN 'superseded' ELSE disposition END
WHERE session_id = ANY($1::text[])
"""

# Charges stay without the score, because budgets count them. A call in progress is still settled, by the
# charge's id.
KEEP_CHARGES_ALONE = """
UPDATE {schema}.budget_charges SET score_id = '00000000-0000-0000-0000-000000000000' WHERE score_id = ANY($1::uuid[])
"""

# The days on which scores of these sessions count become dirty.
MARK_DAYS = """
INSERT INTO {schema}.dirty_days (day)
SELECT (s.completed_at AT TIME ZONE 'UTC')::date FROM {schema}.session_scores s
WHERE s.session_id = ANY($1::text[]) AND s.status = 'completed' AND s.purpose = 'production'
UNION SELECT (least(completed_at, first_seen_at) AT TIME ZONE 'UTC')::date FROM {schema}.sessions
WHERE session_id = ANY($1::text[])
"""

# Foreign keys cascade to everything that refers to the sessions and their scores.
REMOVE_SESSIONS = "DELETE FROM {schema}.sessions WHERE session_id = ANY($1::text[]) RETURNING session_id"

REMOVE_ANNOUNCED = "DELETE FROM {schema}.bridge_announced WHERE session_id = $1"

REMOVE_BODIES = "DELETE FROM {schema}.dead_letter_bodies WHERE body_id = ANY($1::uuid[])"

ERASED = "SELECT DISTINCT session_hash FROM {schema}.erasures"

NOTE_ERASURE = """
INSERT INTO {schema}.erasures (erased_by, why, session_hash, scores) VALUES ($1, $2, $3, $4)
"""


@dataclass(frozen=True, slots=True)
class Inventory:
    """Rows of a session by table, and the number of open scores."""

    rows: Mapping[str, int]
    open_scores: int

    @property
    def is_empty(self) -> bool:
        return not any(self.rows.values())


async def inventory(database: Database, session_id: str) -> Inventory:
    """Count the stored rows about a session. Raises: DatabaseAway."""
    bodies = await _bodies(database, session_id)
    return await database.once(lambda c: _inventory(database, c, session_id, bodies))


async def erase(
    database: Database,
    leases: Leases,
    session_id: str,
    *,
    by: str,
    why: Why = "asked",
    relay_wait_s: float = RELAY_WAIT_S,
) -> Inventory:
    """
    Delete a session from every table, after cancelling open scores.

    What stays: hashes that identify requests, charges and rows of `changes` without the score, and
    a row in `erasures` with the SHA-256 of the session id. A request with a new identity scores the session
    again, where the source still has it. An unknown session leaves no row in `erasures`.

    Args:
        relay_wait_s: How long the relay may take to publish that open scores were cancelled. Events that it
            has not published by then are deleted.

    Returns:
        What was deleted.

    Raises:
        DatabaseAway: The session may have been erased; call again.
    """
    if await _cancel_open(database, leases, session_id, by):
        await _give_relay_time(database, session_id, relay_wait_s)
    bodies = await _bodies(database, session_id)

    async def work(connection: Connection) -> Inventory:
        # The relay's lock comes before the session's, because a relay must never wait for a session.
        # With the lock held, the relay has published what it read, and reads nothing more before this
        # transaction commits.
        await outbox.RELAY_LOCK.acquire(connection, database.schema)
        await connection.execute(database.sql(LOCK_SESSION), session_id)
        found = await _inventory(database, connection, session_id, bodies)
        if found.is_empty:
            return found
        await forget_sessions(database, connection, [session_id])
        await connection.execute(database.sql(REMOVE_ANNOUNCED), session_id)
        await connection.execute(database.sql(REMOVE_BODIES), bodies)
        noted = (by, why, hash_of(session_id), found.rows["session_scores"])
        await connection.execute(database.sql(NOTE_ERASURE), *noted)
        await audit.record(database, connection, "erase", by=by, session_hash=noted[2], why=why)
        return found

    return await database.once(work)


async def forget_sessions(database: Database, connection: Connection, session_ids: Sequence[str]) -> int:
    """
    Delete sessions with all rows that refer to them, in the caller's transaction; returns their number.

    The caller has locked the sessions. Their scores are locked in id order.
    """
    scores: list[UUID] = [
        r["score_id"] for r in await connection.fetch(database.sql(LOCK_SCORES), session_ids)
    ]
    await connection.execute(database.sql(MARK_DAYS), session_ids)
    await connection.execute(database.sql(KEEP_KEY_HASHES), session_ids)
    await connection.execute(database.sql(KEEP_HASHES_ALONE), session_ids)
    await connection.execute(database.sql(KEEP_CHARGES_ALONE), scores)
    await audit.forget_sessions(database, connection, session_ids)
    return len(await connection.fetch(database.sql(REMOVE_SESSIONS), session_ids))


def hash_of(session_id: str) -> str:
    """The hash under which `erasures` lists a session."""
    return hashlib.sha256(session_id.encode()).hexdigest()


async def erased_hashes(database: Database) -> frozenset[str]:
    """The hashes of all erased sessions. Raises: DatabaseAway."""
    return frozenset(r["session_hash"] for r in await database.rows(ERASED))


def is_about(body: Body, hashes: Set[str]) -> bool:
    """Whether a message holds a session id with such a hash."""
    return any(hash_of(session_id) in hashes for session_id in _session_ids(body.parts)) if hashes else False


# --- ids in messages that may not be valid JSON ----------------------------------------------------------

_ID_OR_MORE = re.compile(r"[A-Za-z0-9_.:@-]+")
# A JSON escape, at any level of JSON text within JSON.
_ESCAPE = re.compile(r"\\+(?:u([0-9A-Fa-f]{4})|[bfnrt])")


def _texts(parts: Iterable[bytes]) -> Iterator[str]:
    """
    The texts of a message, with and without JSON escapes.

    Session ids are ASCII, so they read the same in UTF-16 and UTF-32 without NUL bytes.
    """
    for part in parts:
        for content in {part, part.replace(b"\0", b"")}:
            text = content.decode("utf-8", "replace")
            yield text
            yield _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else " ", text)


def _mentions(session_id: str, parts: Iterable[bytes]) -> bool:
    """Whether any part of a message holds the id, as a whole word."""
    word = re.compile(rf"(?<![A-Za-z0-9_-]){re.escape(session_id)}(?![A-Za-z0-9_-])")
    return any(word.search(text) for text in _texts(parts))


def _session_ids(parts: Iterable[bytes]) -> set[str]:
    """Every word in a message's parts that may be a session id."""
    words = {word for text in _texts(parts) for word in _ID_OR_MORE.findall(text)}
    words |= {word.strip("_.:@-") for word in words}
    return {word for word in words if SESSION_ID_PATTERN.fullmatch(word)}


async def _bodies(database: Database, session_id: str) -> list[UUID]:
    """
    The stored dead letters that hold the session's id anywhere, also where they are not valid JSON.
    """
    found: list[UUID] = []
    after = BEFORE_ALL

    # Without the short deadline of `Database.fetch`: a body may have many megabytes.
    while rows := await database.rows(BODIES, after):
        found += [r["body_id"] for r in rows if _mentions(session_id, body_of(dict(r)).parts)]
        after = rows[-1]["body_id"]
    return found


async def _inventory(
    database: Database, connection: Connection, session_id: str, bodies: Sequence[UUID]
) -> Inventory:
    [row] = await connection.fetch(database.sql(INVENTORY), session_id, bodies)
    counts = dict(row)
    return Inventory(open_scores=counts.pop("open"), rows=counts)


async def _cancel_open(database: Database, leases: Leases, session_id: str, by: str) -> bool:
    """Cancel open scores, so that event consumers see an end; returns whether any was open."""
    has_cancelled = False
    for _ in range(CANCEL_ROUNDS):
        rows = await database.rows(OPEN_SCORES, session_id)
        if not rows:
            break
        for row in rows:
            has_cancelled |= await leases.cancel(row["score_id"], by)
    return has_cancelled


async def _give_relay_time(database: Database, session_id: str, relay_wait_s: float) -> None:
    """Wait until the relay has published all events about the session, at most `relay_wait_s`."""
    for _ in range(round(relay_wait_s / POLL_S)):
        if not await database.once(lambda c: c.fetchval(database.sql(UNPUBLISHED), session_id)):
            return
        await asyncio.sleep(POLL_S)

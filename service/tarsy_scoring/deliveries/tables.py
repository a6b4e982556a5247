"""
The tables of deliveries: bookmarks of destinations, and notices beside the ends of scores.

Scoring events have positions without gaps, in the order of commits. Notices have ids in the order of commits,
because
a transaction that adds some holds `NOTE_LOCK`. So a bookmark over each skips nothing.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from tarsy_scoring.deliveries.notices import Notice, notice_of_score
from tarsy_scoring.limits.spent_budgets import SpentBudget
from tarsy_scoring.postgres.database import Connection, Database, insert_of
from tarsy_scoring.postgres.leader import AdvisoryLock
from tarsy_scoring.studies.findings import Finding

Stream = Literal["position", "notice_id"]  # the column of the bookmark
STREAMS: tuple[Stream, ...] = ("position", "notice_id")
WINDOW = 100  # events per pass
HOLD_S = 120  # half of it outlasts a message (10 s) and the longest wait (45 s): a living process keeps its bookmark
NOTE_LOCK = AdvisoryLock("tarsy-scoring notices")
_NAMESPACE = uuid.UUID("0d4f2f61-3c1a-5a53-9a5c-5b1d7c3a9e42")  # never change: it would repeat notices

# A new destination begins at the present: it gets no history.
BEGIN = """
INSERT INTO {schema}.delivery_bookmarks (destination, position, notice_id)
SELECT d, p.position, (SELECT coalesce(max(notice_id), 0) FROM {schema}.notices)
FROM unnest($1::text[]) d, {schema}.relay_position p
ON CONFLICT DO NOTHING RETURNING destination
"""

# The next events, those that end a production score with their payload.
SCORES = """
WITH next AS MATERIALIZED (
  SELECT position, type, payload FROM {schema}.scoring_events
  WHERE position > (SELECT position FROM {schema}.delivery_bookmarks WHERE destination = $1)
  ORDER BY position LIMIT $2
)
SELECT position AS cursor,
       CASE WHEN type = 'scoring.completed' AND payload ->> 'purpose' = 'production' THEN payload END AS payload
FROM next ORDER BY position
"""

NOTICES = """
SELECT notice_id AS cursor, event_id, type, chain_id, details, noticed_at FROM {schema}.notices
WHERE notice_id > (SELECT notice_id FROM {schema}.delivery_bookmarks WHERE destination = $1)
ORDER BY notice_id LIMIT $2
"""

# Take a bookmark that no other process ($2: this one) holds, or hold it longer.
HOLD = f"""
UPDATE {{schema}}.delivery_bookmarks SET lease_owner = $2, lease_expires_at = now() + interval '{HOLD_S} s'
WHERE destination = $1 AND (lease_owner = $2 OR lease_expires_at < now()) RETURNING destination
"""

RELEASE = "UPDATE {schema}.delivery_bookmarks SET lease_expires_at = '-infinity' WHERE lease_owner = $1"

MOVE: dict[Stream, str] = {
    stream: f"UPDATE {{schema}}.delivery_bookmarks SET {stream} = greatest({stream}, $3) "
    "WHERE destination = $1 AND lease_owner = $2 RETURNING destination"
    for stream in STREAMS
}

BACKLOG = """
SELECT b.destination,
       r.position - b.position + (SELECT count(*) FROM {schema}.notices n WHERE n.notice_id > b.notice_id) AS events
FROM {schema}.delivery_bookmarks b, {schema}.relay_position r
WHERE b.destination = ANY($1::text[]) AND b.lease_owner = $2 AND b.lease_expires_at > now()
"""

# Add those that are not among the notices yet.
NOTE = f"""
{insert_of("notices", ("event_id", "type", "chain_id", "details", "noticed_at"))} v
WHERE NOT EXISTS (SELECT FROM {{schema}}.notices n WHERE n.event_id = v.event_id) ORDER BY noticed_at
"""


async def begin(database: Database, destinations: Sequence[str]) -> list[str]:
    """
    Add the bookmarks that are missing, at the present; returns those destinations. Raises: DatabaseAway.
    """

    async def work(connection: Connection) -> list[str]:
        await NOTE_LOCK.acquire(connection, database.schema)  # before the snapshot that finds the last notice
        return [r["destination"] for r in await connection.fetch(database.sql(BEGIN), list(destinations))]

    return await database.once(work)


async def note(database: Database, found: Iterable[Finding], spent: Iterable[SpentBudget]) -> None:
    """Add findings of drift and spent budgets to the notices, each once. Raises: DatabaseAway."""
    rows = [_row_of_finding(f) for f in found] + [_row_of_budget(b) for b in spent]
    if not rows:
        return

    async def work(connection: Connection) -> None:
        await NOTE_LOCK.acquire(connection, database.schema)
        await connection.execute(database.sql(NOTE), rows)

    await database.once(work)


async def next_notices(
    database: Database, destination: str, stream: Stream
) -> list[tuple[int, Notice | None]]:
    """
    What follows the bookmark of a destination, in order, each with its place; None: nothing to notify of.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    if stream == "position":
        rows = await database.single(SCORES, destination, WINDOW)
        return [(r["cursor"], r["payload"] and notice_of_score(r["payload"])) for r in rows]
    rows = await database.single(NOTICES, destination, WINDOW)
    return [
        (r["cursor"], Notice(str(r["event_id"]), r["type"], r["noticed_at"], r["chain_id"], r["details"], {}))
        for r in rows
    ]


async def hold(database: Database, destination: str, holder: uuid.UUID) -> bool:
    """
    Take a bookmark for `HOLD_S`, or hold it longer; returns whether this process has it. Raises:
    DatabaseAway.
    """
    return bool(await database.single(HOLD, destination, holder))


async def release(database: Database, holder: uuid.UUID) -> None:
    """Leave all bookmarks of this process to others. Raises: DatabaseAway: They are free after `HOLD_S`."""
    await database.single(RELEASE, holder)


async def move(database: Database, destination: str, holder: uuid.UUID, stream: Stream, to: int) -> bool:
    """
    Move a bookmark forward; returns False where another process has it.

    Raises:
        DatabaseAway: It may stand where it was.
    """
    return bool(await database.single(MOVE[stream], destination, holder, to))


async def backlog(database: Database, destinations: Sequence[str], holder: uuid.UUID) -> dict[str, int]:
    """Events and notices behind each bookmark that this process holds. Raises: DatabaseAway."""
    return {r["destination"]: r["events"] for r in await database.single(BACKLOG, list(destinations), holder)}


def _row_of_finding(finding: Finding) -> dict[str, Any]:
    size = finding.size
    details = {
        "cause": finding.cause,
        "is_clear": finding.is_clear,
        "size_points": None if size is None else size.value,
        "criteria": finding.criteria,
        "criteria_hash": finding.criteria_hash,
        "began_at": finding.began_at,
    }
    return _row(finding.event_id, "drift", finding.chain_id, details, finding.found_at)


def _row_of_budget(budget: SpentBudget) -> dict[str, Any]:
    """The same id for the same budget and day, however often it is found."""
    key = f"budget\x1f{budget.day}\x1f{'all' if budget.chain_id is None else 'chain'}\x1f{budget.chain_id or ''}"
    details = {"day": budget.day, "limit_usd": float(budget.limit_usd)}
    return _row(uuid.uuid5(_NAMESPACE, key), "budget_spent", budget.chain_id, details, datetime.now(UTC))


def _row(
    event_id: uuid.UUID, kind: str, chain_id: str | None, details: Mapping[str, Any], at: datetime
) -> dict[str, Any]:
    return {"event_id": event_id, "type": kind, "chain_id": chain_id, "details": details, "noticed_at": at}

"""
The audit record: who changed, erased or exported what, through which door and from where.

Changes to scores are recorded in the transaction that makes them, other changes before they are made, so that
none is without a record. An erased session leaves no id in it. Reads are requests in the log.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from tarsy_scoring.postgres.database import Connection, Database

Change = Literal[
    "score",
    "rescore",
    "reference",
    "cancel",
    "label",
    "export",
    "erase",
    "erase_person",
    "prune",
    "pause",
    "resume",
    "tool_state",
    "tool_merge",
    "anchor_add",
    "anchor_remove",
    "order",
    "replay",
]

RECORD = """
INSERT INTO {schema}.changes (changed_by, change, session_id, score_id, request_id, through, address, details)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
"""

FORGET_SESSIONS = """
UPDATE {schema}.changes SET session_id = NULL, score_id = NULL, request_id = NULL
  WHERE session_id = ANY($1::text[])
"""


@dataclass(frozen=True, slots=True)
class ChangeOrigin:
    """
    Where a change comes from.

    Args:
        through: `proxy`, `token NAME`, `open` or `cli`; None: the service itself.
        address: The client's address as the service or the trusted proxy sees it; for `cli` the host name.
    """

    through: str | None = None
    address: str | None = None


_origin: ContextVar[ChangeOrigin] = ContextVar("origin", default=ChangeOrigin())  # noqa: B039 - frozen


@contextmanager
def coming_from(origin: ChangeOrigin) -> Iterator[None]:
    """Record the changes inside as coming from there."""
    before = _origin.set(origin)
    try:
        yield
    finally:
        _origin.reset(before)


async def record(
    database: Database,
    connection: Connection,
    change: Change,
    *,
    by: str,
    session_id: str | None = None,
    score_id: UUID | None = None,
    request_id: UUID | None = None,
    **details: Any,
) -> None:
    """
    Add a row to the audit record, in the caller's transaction.

    Args:
        details: What else describes the change, without session ids and personal names.
    """
    origin = _origin.get()
    row = (by, change, session_id, score_id, request_id, origin.through, origin.address, details or None)
    await connection.execute(database.sql(RECORD), *row)


async def note(database: Database, change: Change, *, by: str, **details: Any) -> None:
    """Add a row for a change that follows, in a separate transaction. Raises: DatabaseAway."""
    await database.once(lambda c: record(database, c, change, by=by, **details))


async def forget_sessions(database: Database, connection: Connection, session_ids: Sequence[str]) -> None:
    """Remove these session ids from the record, in the caller's transaction."""
    await connection.execute(database.sql(FORGET_SESSIONS), session_ids)

"""
The audit record: who changed, erased or exported what, through which door and from where.

Changes to scores are recorded in the transaction that makes them, other changes before they are made, so that
none is without a record. An erased session leaves no id in it. Reads of evidence are log lines with the same
names.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import structlog

from tarsy_scoring.postgres.database import Connection, Database

log = structlog.get_logger()

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
    ids = session_id, score_id, request_id
    await connection.execute(database.sql(RECORD), *arguments_of(change, by, *ids, details))


def arguments_of(
    change: Change,
    by: str,
    session_id: str | None,
    score_id: UUID | None,
    request_id: UUID | None,
    details: Mapping[str, Any] | None = None,
) -> tuple[Any, ...]:
    """Arguments of `RECORD`, see `record`."""
    origin = _origin.get()
    return by, change, session_id, score_id, request_id, origin.through, origin.address, details or None


async def note(database: Database, change: Change, *, by: str, **details: Any) -> None:
    """Add a row for a change that follows, in a separate transaction. Raises: DatabaseAway."""
    await database.once(lambda c: record(database, c, change, by=by, **details))


def log_read(what: str, *, by: str, session_id: str | None = None, score_id: UUID | None = None) -> None:
    """Log that a caller reads evidence: what a session or a judge said."""
    origin = _origin.get()
    log.info(
        "audit.read",
        what=what,
        by=by,
        through=origin.through,
        address=origin.address,
        session_id=session_id,
        score_id=score_id and str(score_id),
    )


async def forget_sessions(database: Database, connection: Connection, session_ids: Sequence[str]) -> None:
    """Remove these session ids from the record, in the caller's transaction."""
    await connection.execute(database.sql(FORGET_SESSIONS), session_ids)

"""
References in the database, where they live and end with their session.

A session keeps the newest `MAX_REFERENCES`, and those that a score was or will be judged against. One that is
sent again becomes the newest.
"""

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any
from uuid import UUID

from tarsy_scoring.audit import audit
from tarsy_scoring.events import MAX_REFERENCES
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.references.model import Reference

ADD_REFERENCE = """
INSERT INTO {schema}.session_references
  (reference_id, text, source_url, provided_by, provided_at, sent_by, session_id, request_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (reference_id) DO UPDATE SET given_at = clock_timestamp()
"""

REMOVE_OLD = f"""
DELETE FROM {{schema}}.session_references r WHERE session_id = $1 AND reference_id <> ALL (ARRAY(
    SELECT reference_id FROM {{schema}}.session_references WHERE session_id = $1
    ORDER BY given_at DESC, reference_id LIMIT {MAX_REFERENCES}))
  AND NOT EXISTS (SELECT FROM {{schema}}.session_scores s
    WHERE s.session_id = $1 AND s.reference_id = r.reference_id
      AND (s.reference IS NOT NULL OR s.status IN ('pending', 'in_progress')))
"""

OF_SCORE = """
SELECT text FROM {schema}.session_references r JOIN {schema}.session_scores s USING (reference_id)
WHERE s.score_id = $1 AND s.reference IS NOT NULL
"""

Given = tuple[str, UUID, str, Reference]
"""Session, request, who sent it, and the reference."""


async def add(database: Database, connection: Connection, given: Sequence[Given]) -> None:
    """
    Store references, each with a row in the audit record, in the caller's transaction, and remove old ones.
    Their sessions are locked, and scores to be judged against them are stored.
    """
    for session_id, request_id, by, reference in given:  # in order: the last one is the newest
        of = session_id, request_id
        await connection.execute(database.sql(ADD_REFERENCE), *astuple(reference), *of)
        ids: dict[str, Any] = {"session_id": session_id, "request_id": request_id}
        size = len(reference.text)
        await audit.record(database, connection, "reference", by=by, characters=size, **ids)
    for session_id in {session_id for session_id, *_ in given}:
        await connection.execute(database.sql(REMOVE_OLD), session_id)


async def text_of(database: Database, score_id: UUID) -> str | None:
    """
    The text that a score was judged against; None: it was judged without a reference. Raises: DatabaseAway.
    """
    rows = await database.fetch(OF_SCORE, score_id)
    return rows[0]["text"] if rows else None

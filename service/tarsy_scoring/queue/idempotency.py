"""Answers kept under idempotency keys, written in the transaction of the change that they are about."""

from dataclasses import dataclass
from uuid import UUID

from tarsy_scoring.errors import ScoringError
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.queue.admission import Answer

KEPT_H = 24  # how long the first answer under a key is repeated

# A second request under the same key waits here until the answer of the first is stored. A lock and not a
# row, so that a refused request leaves nothing behind.
LOCK_KEY = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"

# A conflicting row is older than `KEPT_H`; a newer one would have been found. `prune` deletes the others.
KEEP_ANSWER = """
INSERT INTO {schema}.kept_answers (caller, key, asked_hash, outcome, score_id, request_id)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (caller, key) DO UPDATE SET asked_hash = excluded.asked_hash, outcome = excluded.outcome,
  score_id = excluded.score_id, request_id = excluded.request_id, answer = NULL, answered_at = now()
"""

# The first text wins, whichever process stores it.
COMPLETE_ANSWER = """
UPDATE {schema}.kept_answers SET answer = coalesce(answer, $4)
WHERE caller = $1 AND key = $2 AND request_id = $3 RETURNING answer
"""

# After the session was erased, only this hash of the key identifies a request.
_HASH = "substr(encode(sha256(convert_to({caller} || E'\\x1f' || {key}, 'UTF8')), 'hex'), 1, 32)::uuid"

# One row: the answer kept under a key, or nulls.
ANSWER = f"""
SELECT a.*, EXISTS (SELECT FROM {{schema}}.scoring_requests
  WHERE request_id = {_HASH.format(caller="$1::text", key="$2::text")} AND session_id IS NULL) AS is_erased
FROM (SELECT 1) AS one LEFT JOIN (
  SELECT asked_hash, outcome, score_id, request_id, answer FROM {{schema}}.kept_answers
  WHERE caller = $1 AND key = $2 AND answered_at > now() - interval '{KEPT_H} hours') a ON true
"""

KEEP_KEY_HASHES = f"""
UPDATE {{schema}}.scoring_requests r SET request_id = {_HASH.format(caller="k.caller", key="k.key")}
FROM {{schema}}.kept_answers k
WHERE k.request_id = r.request_id AND k.score_id = r.score_id AND r.session_id = ANY($1::text[])
  AND k.answered_at > now() - interval '{KEPT_H} hours'
"""


@dataclass(frozen=True, slots=True)
class Key:
    """
    An `Idempotency-Key`; keys of different callers are independent.

    Args:
        caller: The caller's identity.
        asked_hash: Hash of the whole request.
    """

    caller: str
    key: str
    asked_hash: str


class KeyErased(ScoringError):
    """The session of the request under this key was erased."""


class KeyUsedOtherwise(ScoringError):
    """This key was used for a different request."""


async def find_answer(database: Database, connection: Connection, key: Key) -> Answer | None:
    """
    Lock a key until the transaction ends, and return the answer kept under it.

    Must come before the lock on a session: a transaction that holds a key may wait for a session, never the
    reverse.

    Raises:
        KeyErased: The session of the request under this key was erased. Nothing new is made under the key,
            because a repeat would restore the session.
        KeyUsedOtherwise: The answer under this key is one to a different request.
    """
    await connection.execute(LOCK_KEY, f"{database.schema}\x1f{key.caller}\x1f{key.key}")
    row = await connection.fetchrow(database.sql(ANSWER), key.caller, key.key)
    assert row is not None
    if row["asked_hash"] is None:
        if row["is_erased"]:
            raise KeyErased("the request under this key was erased")
        return None
    if row["asked_hash"] != key.asked_hash:
        raise KeyUsedOtherwise("this key was used for a different request")
    return Answer(row["outcome"], row["score_id"], row["request_id"], is_repeat=True, text=row["answer"])


async def keep_answer(database: Database, connection: Connection, key: Key, answer: Answer) -> None:
    """Keep an answer in the caller's transaction."""
    row = (answer.disposition, answer.score_id, answer.request_id)
    await connection.execute(database.sql(KEEP_ANSWER), key.caller, key.key, key.asked_hash, *row)


async def complete_answer(database: Database, key: Key, request_id: UUID, answer: str) -> str:
    """
    Store the text of a kept answer unless there is one; returns the stored text.

    Raises:
        DatabaseAway: The text may be missing; a repeated request under the key stores it.
    """
    rows = await database.single(COMPLETE_ANSWER, key.caller, key.key, request_id, answer)
    return str(rows[0]["answer"]) if rows else answer

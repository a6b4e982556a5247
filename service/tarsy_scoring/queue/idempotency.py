"""
What callers of the API did and were told: who changed what and when, and the answers kept under their keys.

Everything here is written in the transaction of the change that it tells of.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from tarsy_scoring.errors import ScoringError
from tarsy_scoring.postgres.database import Connection, Database

Change = Literal["score", "rescore", "cancel", "label"]
KEPT_H = 24  # an answer stands as long for the key under which it was asked for

# Whoever asks under the same key waits here until the other one's answer is stored. A lock and not a row, so that
# what is refused leaves nothing behind.
LOCK_KEY = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"

RECALL = f"""
SELECT asked_hash, outcome, score_id, request_id, answer FROM {{schema}}.kept_answers
WHERE caller = $1 AND key = $2 AND answered_at > now() - interval '{KEPT_H} hours'
"""

# What is there already is older than that, or it would have been recalled.
KEEP = """
INSERT INTO {schema}.kept_answers (caller, key, asked_hash, outcome, score_id, request_id)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (caller, key) DO UPDATE SET asked_hash = excluded.asked_hash, outcome = excluded.outcome,
  score_id = excluded.score_id, request_id = excluded.request_id, answer = NULL, answered_at = now()
"""

# Some of the old ones; those that another one is removing are left to it.
FORGET = f"""
DELETE FROM {{schema}}.kept_answers WHERE (caller, key) IN (
  SELECT caller, key FROM {{schema}}.kept_answers
  WHERE answered_at <= now() - interval '{KEPT_H} hours' ORDER BY answered_at LIMIT 20 FOR UPDATE SKIP LOCKED)
"""

# The first text counts, whoever comes with it.
COMPLETE = """
UPDATE {schema}.kept_answers SET answer = coalesce(answer, $4)
WHERE caller = $1 AND key = $2 AND request_id = $3 RETURNING answer
"""

# A request whose session was erased is known by its key alone, and by no more of it than this.
_HASH = "substr(encode(sha256(convert_to({caller} || E'\\x1f' || {key}, 'UTF8')), 'hex'), 1, 32)::uuid"

IS_ERASED = f"""
SELECT EXISTS (SELECT FROM {{schema}}.scoring_requests
               WHERE request_id = {_HASH.format(caller="$1::text", key="$2::text")} AND session_id IS NULL)
"""

KEEP_KEYS_ALONE = f"""
UPDATE {{schema}}.scoring_requests r SET request_id = {_HASH.format(caller="k.caller", key="k.key")}
FROM {{schema}}.kept_answers k
WHERE k.request_id = r.request_id AND k.score_id = r.score_id AND r.session_id = ANY($1::text[])
  AND k.answered_at > now() - interval '{KEPT_H} hours'
"""

NOTE_CHANGE = """
INSERT INTO {schema}.changes (changed_by, change, session_id, score_id, request_id) VALUES ($1, $2, $3, $4, $5)
"""


@dataclass(frozen=True, slots=True)
class Key:
    """
    An `Idempotency-Key` of a caller (its identity), with a hash of all that was asked under it.

    Keys of different callers have nothing to do with each other.
    """

    caller: str
    key: str
    asked_hash: str


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """
    The first answer under a key. `answer` is None where its text was not stored yet.

    `is_same_question` is False where something else was asked under the key.
    """

    is_same_question: bool
    outcome: str
    score_id: UUID
    request_id: UUID
    answer: str | None


class KeyErased(ScoringError):
    """What was asked under a key was about a session that has been erased since."""


async def recall(database: Database, connection: Connection, key: Key) -> KeptAnswer | None:
    """
    The answer kept under a key; until the transaction ends nobody else is answered under it.

    Comes before the lock on a session: who holds a key may wait for a session, and nobody the other way round.

    Raises:
        KeyErased: There was one. Nothing new is made under the key, or a repeat would bring the session back.
    """
    await connection.execute(LOCK_KEY, f"{database.schema}\x1f{key.caller}\x1f{key.key}")
    row = await connection.fetchrow(database.sql(RECALL), key.caller, key.key)
    if row is None:
        if await connection.fetchval(database.sql(IS_ERASED), key.caller, key.key):
            raise KeyErased("what was asked under this key was erased")
        return None
    return KeptAnswer(
        row["asked_hash"] == key.asked_hash, row["outcome"], row["score_id"], row["request_id"], row["answer"]
    )


async def keep(
    database: Database, connection: Connection, key: Key, outcome: str, score_id: UUID, request_id: UUID
) -> None:
    """
    Keep an answer, and let go of some that are older than a day.

    In this order: who keeps may wait for one who lets go of the same key, and who lets go waits for nobody.
    """
    await connection.execute(database.sql(KEEP), key.caller, key.key, key.asked_hash, outcome, score_id, request_id)
    await connection.execute(database.sql(FORGET))


async def forget_answers(database: Database, connection: Connection, session_ids: Sequence[str]) -> None:
    """
    Of the keys under which these sessions were asked about keep the hashes; their answers go with the scores.

    Comes before the requests are told from their sessions.
    """
    await connection.execute(database.sql(KEEP_KEYS_ALONE), session_ids)


async def complete(database: Database, key: Key, request_id: UUID, answer: str) -> str:
    """
    Store the text of a kept answer, unless there is one; gives the one that counts.

    Raises:
        DatabaseAway: Asked again under the key, it is completed then.
    """
    stored: str | None = await database.once(
        lambda c: c.fetchval(database.sql(COMPLETE), key.caller, key.key, request_id, answer)
    )
    return stored if stored is not None else answer


async def note_change(
    database: Database,
    connection: Connection,
    change: Change,
    *,
    by: str,
    session_id: str,
    score_id: UUID,
    request_id: UUID | None = None,
) -> None:
    """Keep who changed something, and when."""
    await connection.execute(database.sql(NOTE_CHANGE), by, change, session_id, score_id, request_id)

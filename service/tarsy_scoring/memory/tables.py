"""
TARSy's table of memories.

Each write may be repeated: the ids of new memories are made from the score, and a known one changes only
where it was last seen before the score ended, which the change records.
"""

import json
import uuid
from collections.abc import Mapping
from typing import Any

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ScoringError
from tarsy_scoring.judge.ask.client import JudgeClient
from tarsy_scoring.memory.lessons import Lessons
from tarsy_scoring.tarsy.database import TarsyAway, TarsyPool, TarsyUnfit
from tarsy_scoring.tarsy.schema import MEMORY_TABLES
from tarsy_scoring.tarsy.write_back import open_write_back_tarsy
from tarsy_scoring.timeline.clean.masking import mask_secrets, masking_of

Score = Mapping[str, Any]  # a row of `loop.NEXT`

LEAST_SIMILARITY = 0.95

# TARSy's own first, because ours would prove nothing about TARSy's model: ours have ids of version 5.
SAMPLES = """
SELECT memory_id, content FROM investigation_memories WHERE embedding IS NOT NULL
ORDER BY substr(memory_id, 15, 1) = '5', created_at DESC LIMIT 20
"""

# 0 for another number of dimensions, which pgvector refuses to compare.
SIMILARITY = """
SELECT CASE vector_dims(embedding) WHEN $3 THEN 1 - (embedding <=> $2::text::vector) ELSE 0 END
FROM investigation_memories WHERE memory_id = $1
"""

# What the judge sees as the id: it depends on the score's id, which no text shows, so a reply can name only
# memories that it was shown, also when the reply is read after a crash.
_MARK = "left(encode(sha256(convert_to({score_id} || memory_id, 'UTF8')), 'hex'), 12)"

# Sorted by an expression without an index: the approximate index would find too few of one chain.
NEAREST = f"""
SELECT {_MARK.format(score_id="$3::text")} AS memory_id, content FROM investigation_memories
WHERE project = 'default' AND chain_id = $1 AND NOT deprecated AND embedding IS NOT NULL
ORDER BY 1 - (embedding <=> $2::text::vector) DESC LIMIT 10
"""

# TARSy gives 0.7, too, to what no person has confirmed.
CREATE = """
INSERT INTO investigation_memories (memory_id, project, content, category, valence, confidence, seen_count,
  source_session_id, alert_type, chain_id, created_at, updated_at, last_seen_at, deprecated, embedding)
SELECT $1, 'default', $2, $3, $4, 0.7, 1, session_id, $6, $7, now(), now(), $8, false, $9::text::vector
FROM alert_sessions WHERE session_id = $5 AND deleted_at IS NULL ON CONFLICT DO NOTHING
"""

_CHANGE = f"""
UPDATE investigation_memories SET last_seen_at = $3, updated_at = now(), {{change}}
WHERE NOT deprecated AND last_seen_at < $3 AND {_MARK.format(score_id="$2::text")} = ANY($1)
"""
REINFORCE = _CHANGE.format(change="confidence = least(confidence * 1.1, 1), seen_count = seen_count + 1")
DEPRECATE = _CHANGE.format(change="deprecated = true")

FORGET = "DELETE FROM investigation_memories WHERE source_session_id = $1 AND substr(memory_id, 15, 1) = '5'"


class MemoryRefused(ScoringError):
    """The configured model is not the one that TARSy uses, so that its vectors would find nothing."""


def open_memories(settings: Settings) -> TarsyPool:
    """TARSy's database with the role of the write-back; connects to nothing yet."""
    return open_write_back_tarsy(settings, MEMORY_TABLES)


async def check_models(tarsy: TarsyPool, settings: Settings, clients: Mapping[str, JudgeClient]) -> str:
    """
    Compare the configured models with TARSy's, by a stored memory; gives the finding in words.

    Raises:
        MemoryRefused: They differ.
        TarsyAway, TarsyUnfit, EmbeddingsAway: They could not be compared.
    """
    masking = masking_of(settings.config.masking_patterns)
    async with tarsy.transaction() as (connection, _):
        rows = await connection.fetch(SAMPLES)
    # A text that masking changes is not the one that TARSy embedded.
    sample = next((r for r in rows if mask_secrets(r["content"], masking) == r["content"]), None)
    if sample is None:
        return "TARSy holds no memory to compare"
    for memory in settings.config.memories:
        [vector] = await clients[memory.embedding_provider].endpoint.embed([sample["content"]], memory)
        compared = sample["memory_id"], json.dumps(vector), memory.dimensions
        async with tarsy.transaction() as (connection, _):
            similarity = await connection.fetchval(SIMILARITY, *compared) or 0.0
        if similarity < LEAST_SIMILARITY:
            raise MemoryRefused(
                f"{memory.model!r} with {memory.dimensions} dimensions is not TARSy's model: a memory, "
                f"embedded again, has a similarity of {similarity:.2f}, below {LEAST_SIMILARITY}"
            )
    return "a stored memory, embedded again, is as good as equal"


async def nearest(tarsy: TarsyPool, score: Score, vector: list[float]) -> list[Any]:
    """
    The memories of the score's chain that are nearest to a vector: `content`, and in place of the id a mark
    that only this score's reply can name. Raises: TarsyAway, TarsyUnfit.
    """
    async with tarsy.transaction() as (connection, _):
        of = score["chain_id"], json.dumps(vector), str(score["score_id"])
        return list(await connection.fetch(NEAREST, *of))


async def write(tarsy: TarsyPool, score: Score, lessons: Lessons, vectors: list[Any]) -> None:
    """
    Write the lessons of a score in one transaction; idempotent. A session that TARSy deleted gets none.

    Args:
        score: `score_id`, `session_id`, `alert_type`, `chain_id` and `completed_at`.
        vectors: Of the new memories, in their order.

    Raises:
        TarsyAway, TarsyUnfit, asyncpg.PostgresError: Nothing is written.
    """
    score_id, ended_at = score["score_id"], score["completed_at"]
    of = score["session_id"], score["alert_type"], score["chain_id"], ended_at
    async with tarsy.transaction() as (connection, _):
        for number, (lesson, vector) in enumerate(zip(lessons.create, vectors, strict=True)):
            what = str(uuid.uuid5(score_id, str(number))), lesson.content, lesson.category, lesson.valence
            await connection.execute(CREATE, *what, *of, json.dumps(vector))
        for change, known in ((DEPRECATE, lessons.deprecate), (REINFORCE, lessons.reinforce)):
            await connection.execute(change, [one.memory_id for one in known], str(score_id), ended_at)


async def forget(settings: Settings, session_id: str) -> str | None:
    """Delete what this service wrote about a session; gives the result in words, None where it wrote none."""
    if settings.write_back_database_url is None:
        return None
    tarsy = open_memories(settings)
    try:
        async with tarsy.transaction() as (connection, _):
            return f"{(await connection.execute(FORGET, session_id)).split()[-1]} deleted"
    except TarsyUnfit:  # a role without these grants has written no memory
        return None
    except TarsyAway as error:
        return f"not deleted: {error}"
    finally:
        await tarsy.close()

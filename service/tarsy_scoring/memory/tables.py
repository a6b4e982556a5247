"""
TARSy's table of memories.

Each write may be repeated: the ids of new memories are made from the score, and a known one changes only
where it was last seen before the score ended, which the change records.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from tarsy_scoring.config.chains import MemorySettings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ScoringError
from tarsy_scoring.judge.ask.client import JudgeClient
from tarsy_scoring.memory.lessons import MOST_SHOWN, Lessons
from tarsy_scoring.tarsy.database import TarsyAway, TarsyUnfit
from tarsy_scoring.tarsy.schema import MEMORY_TABLES
from tarsy_scoring.tarsy.write_back import open_write_back_tarsy
from tarsy_scoring.timeline.clean.masking import mask_secrets, masking_of

LEAST_SIMILARITY = 0.95
_NAMESPACE = uuid.UUID("5f0c2f3e-8c55-5c0e-9d5b-0a4f6d1f7b21")  # never change: it would make old memories new

DIMENSIONS = """
SELECT atttypmod FROM pg_attribute
WHERE attrelid = to_regclass('investigation_memories') AND attname = 'embedding'
"""

# TARSy's own first, because ours would prove nothing about TARSy's model: ours have ids of version 5.
SAMPLES = """
SELECT memory_id, content FROM investigation_memories WHERE embedding IS NOT NULL
ORDER BY substr(memory_id, 15, 1) = '5', created_at DESC LIMIT 20
"""

SIMILARITY = "SELECT 1 - (embedding <=> $2::text::vector) FROM investigation_memories WHERE memory_id = $1"

# Sorted by an expression without an index: the approximate index would find too few of one chain.
NEAREST = f"""
SELECT memory_id, content FROM investigation_memories
WHERE project = 'default' AND chain_id = $1 AND NOT deprecated AND embedding IS NOT NULL
ORDER BY 1 - (embedding <=> $2::text::vector) DESC LIMIT {MOST_SHOWN}
"""

# TARSy gives 0.7, too, to what no person has confirmed.
CREATE = """
INSERT INTO investigation_memories (memory_id, project, content, category, valence, confidence, seen_count,
  source_session_id, alert_type, chain_id, created_at, updated_at, last_seen_at, deprecated, embedding)
SELECT $1, 'default', $2, $3, $4, 0.7, 1, session_id, $6, $7, now(), now(), $8, false, $9::text::vector
FROM alert_sessions WHERE session_id = $5 AND deleted_at IS NULL ON CONFLICT DO NOTHING
"""

_CHANGE = """
UPDATE investigation_memories SET last_seen_at = $3, updated_at = now(), {change}
WHERE memory_id = ANY($1) AND chain_id = $2 AND NOT deprecated AND last_seen_at < $3
"""
REINFORCE = _CHANGE.format(change="confidence = least(confidence * 1.1, 1), seen_count = seen_count + 1")
DEPRECATE = _CHANGE.format(change="deprecated = true")

FORGET = "DELETE FROM investigation_memories WHERE source_session_id = $1 AND substr(memory_id, 15, 1) = '5'"


class MemoryRefused(ScoringError):
    """The configured model is not the one that TARSy uses, so that its vectors would find nothing."""


class MemoryTables:
    """TARSy's memories, with the role of the write-back. Every method raises TarsyAway and TarsyUnfit."""

    def __init__(self, settings: Settings) -> None:
        self._tarsy = open_write_back_tarsy(settings, MEMORY_TABLES)
        self._masking = masking_of(settings.config.masking_patterns)
        self.close = self._tarsy.close

    async def check(self, memory: MemorySettings, clients: Mapping[str, JudgeClient]) -> str:
        """
        Compare the configured model with TARSy's, by a stored memory; gives the finding in words.

        Raises:
            MemoryRefused: They differ.
            EmbeddingsAway: They could not be compared.
        """
        async with self._tarsy.transaction() as (connection, _):
            width = await connection.fetchval(DIMENSIONS)
            rows = await connection.fetch(SAMPLES)
        if width not in (-1, memory.dimensions):
            raise MemoryRefused(f"TARSy stores {width} dimensions, and not {memory.dimensions}")
        # A text that masking changes is not the one that TARSy embedded.
        sample = next((r for r in rows if mask_secrets(r["content"], self._masking) == r["content"]), None)
        if sample is None:
            return f"{memory.dimensions} dimensions fit; TARSy holds no memory to compare"
        client = clients[memory.embedding_provider]
        [vector] = await client.embed([sample["content"]], memory.model, memory.dimensions)
        async with self._tarsy.transaction() as (connection, _):
            found = await connection.fetchval(SIMILARITY, sample["memory_id"], json.dumps(vector)) or 0.0
        words = f"a stored memory, embedded again, has a similarity of {found:.2f}"
        if found < LEAST_SIMILARITY:
            raise MemoryRefused(f"{memory.model!r} is not TARSy's model: {words}, below {LEAST_SIMILARITY}")
        return words

    async def nearest(self, chain_id: str | None, vector: list[float]) -> list[Any]:
        """Ids and contents of the chain's memories that are nearest to a vector."""
        async with self._tarsy.transaction() as (connection, _):
            return list(await connection.fetch(NEAREST, chain_id, json.dumps(vector)))

    async def write(self, score: Mapping[str, Any], lessons: Lessons, vectors: Sequence[list[float]]) -> None:
        """
        Write the lessons of a score in one transaction; idempotent. A session that TARSy deleted gets none.

        Args:
            score: `score_id`, `session_id`, `alert_type`, `chain_id` and `completed_at`.
            vectors: Of the new memories, in their order.
        """
        chain_id, ended_at = score["chain_id"], score["completed_at"]
        of = (score["session_id"], score["alert_type"], chain_id, ended_at)
        async with self._tarsy.transaction() as (connection, _):
            for (number, lesson), vector in zip(lessons.created.items(), vectors, strict=True):
                memory_id = str(uuid.uuid5(_NAMESPACE, f"{score['score_id']} {number}"))
                what = (lesson.content, lesson.category, lesson.valence)
                await connection.execute(CREATE, memory_id, *what, *of, json.dumps(vector))
            await connection.execute(REINFORCE, list(lessons.reinforced), chain_id, ended_at)
            await connection.execute(DEPRECATE, list(lessons.deprecated), chain_id, ended_at)


async def forget(settings: Settings, session_id: str) -> str | None:
    """Delete what this service wrote about a session; gives the result in words, None where it wrote none."""
    if settings.write_back_database_url is None:
        return None
    tarsy = open_write_back_tarsy(settings, MEMORY_TABLES)
    try:
        async with tarsy.transaction() as (connection, _):
            return f"{(await connection.execute(FORGET, session_id)).split()[-1]} deleted"
    except TarsyUnfit:  # a role without these grants has written no memory
        return None
    except TarsyAway as error:
        return f"not deleted: {error}"
    finally:
        await tarsy.close()

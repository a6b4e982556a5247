"""
The lessons of a session: the question to the judge, and what of a reply may enter TARSy's memory.

Laws. Agents read these texts later, so a reply is as hostile as the session behind it. A text that addresses
a model is refused. An id counts only if the question showed it: it carries a mark that depends on the nonce,
so the stored reply alone proves that, after a crash, too.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from tarsy_scoring.config.packaged import packaged_yaml
from tarsy_scoring.judge.read import json_reply
from tarsy_scoring.judge.read.reasoning import without_reasoning
from tarsy_scoring.judge.verdict import ReplyFormat
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.timeline.clean.masking import Masking
from tarsy_scoring.timeline.clean.sanitizer import Sanitizer
from tarsy_scoring.timeline.render.fence import fence, prefix_lines

MOST_LESSONS, MOST_SHOWN, MOST_CHARACTERS = 3, 10, 1_000
_ID = re.compile(r"[0-9A-Za-z-]{1,64}")

LAST_REPLY = """
SELECT reply, nonce FROM {schema}.judge_turns WHERE score_id = $1 AND kind = 'memory'
ORDER BY ordinal DESC LIMIT 1
"""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")  # as OpenAI's strict mode asks of a schema


class Lesson(_Part):
    """A new memory."""

    content: str
    category: Literal["semantic", "episodic", "procedural"]
    valence: Literal["positive", "negative", "neutral"]


class Known(_Part):
    """A memory that exists, by the id in the question."""

    memory_id: str


class Outdated(Known):
    """A memory that the session proves wrong."""

    reason: str


class Reply(_Part):
    """A reply of the judge."""

    create: list[Lesson]
    reinforce: list[Known]
    deprecate: list[Outdated]


REPLY_FORMAT = ReplyFormat("lessons", Reply.model_json_schema())


@dataclass(frozen=True, slots=True)
class Lessons:
    """
    The part of a reply that counts, safe to store and to show.

    `created` holds new memories by number in the reply, `deprecated` reasons by id. `refused` counts new
    memories that address a model.
    """

    created: Mapping[int, Lesson]
    reinforced: tuple[str, ...]
    deprecated: Mapping[str, str]
    refused: int


def question(memories: Iterable[Mapping[str, Any]], nonce: str, masking: Masking) -> str:
    """The question that follows the evaluation. A memory that addresses a model is left out."""
    shown = []
    for memory in memories:
        content = _safe(memory["content"], nonce, masking)
        if content and _ID.fullmatch(memory["memory_id"]):
            shown.append(f"memory_id: {marked(memory['memory_id'], nonce)}\n{prefix_lines(content)}")
    texts = packaged_yaml(__package__, "question.yaml")
    form = json_reply.output_schema(REPLY_FORMAT.schema)
    asked: str = texts["question"].replace("{{OUTPUT_SCHEMA}}", form)
    return asked.replace("{{MEMORIES}}", fence("\n\n".join(shown), nonce) if shown else texts["none"])


def marked(memory_id: str, nonce: str) -> str:
    """The id as the question with this nonce shows it."""
    return f"{memory_id}.{hashlib.sha256(f'{nonce} {memory_id}'.encode()).hexdigest()[:12]}"


def read_lessons(reply: str, nonce: str, masking: Masking) -> Lessons | None:
    """What of a stored reply counts; None where it does not fit the form."""
    parsed = json_reply.parse(without_reasoning(reply), Reply)
    if isinstance(parsed, str):
        return None
    known = [*parsed.reinforce[:MOST_SHOWN], *parsed.deprecate[:1]]
    ids = {one.memory_id: one.memory_id.partition(".")[0] for one in known}
    real = {shown: id_ for shown, id_ in ids.items() if shown == marked(id_, nonce)}
    deprecated = {
        real[one.memory_id]: _safe(one.reason, nonce, masking) or ""
        for one in parsed.deprecate[:1]
        if one.memory_id in real
    }
    safe = {n: _safe(one.content, nonce, masking) for n, one in enumerate(parsed.create[:MOST_LESSONS])}
    return Lessons(
        {n: parsed.create[n].model_copy(update={"content": text}) for n, text in safe.items() if text},
        tuple(id_ for id_ in real.values() if id_ not in deprecated),
        deprecated,
        sum(not text for text in safe.values()),
    )


def _safe(text: str, nonce: str, masking: Masking) -> str | None:
    """The text without secrets and invisible characters; None where it addresses a model."""
    sanitizer = Sanitizer(nonce, masking=masking)
    safe = sanitizer.text("", text[: 4 * MOST_CHARACTERS]).strip()
    return None if sanitizer.injections else safe[:MOST_CHARACTERS]


async def lessons_of(database: Database, score_id: UUID, masking: Masking) -> Lessons | None:
    """The lessons of a score; None where there are none, or the reply is gone. Raises: DatabaseAway."""
    rows = await database.fetch(LAST_REPLY, score_id)
    return read_lessons(rows[0]["reply"], rows[0]["nonce"], masking) if rows else None

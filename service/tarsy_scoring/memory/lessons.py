"""
The lessons of a session: the question to the judge, and what of a reply may enter TARSy's memory.

Laws. Agents read these texts later, so a reply is as hostile as the session behind it: where one text
addresses a model, the whole reply counts as nothing.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from tarsy_scoring.config.packaged import packaged_yaml
from tarsy_scoring.judge.read import json_reply
from tarsy_scoring.judge.read.reasoning import without_reasoning
from tarsy_scoring.judge.verdict import ReplyFormat
from tarsy_scoring.timeline.clean.masking import Masking
from tarsy_scoring.timeline.clean.sanitizer import Sanitizer
from tarsy_scoring.timeline.render.fence import fence, new_nonce, prefix_lines

MOST_LESSONS, MOST_CHARACTERS = 3, 1_000


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
    """A memory that the session proves wrong. To name the reason makes the judge look for one."""

    reason: str


class Lessons(_Part):
    """A reply of the judge."""

    create: list[Lesson]
    reinforce: list[Known]
    deprecate: list[Outdated]


REPLY_FORMAT = ReplyFormat("lessons", Lessons.model_json_schema())


def question(memories: Iterable[Mapping[str, Any]], nonce: str, masking: Masking) -> str:
    """
    The question that follows the evaluation. A memory that addresses a model is left out.

    Args:
        memories: `memory_id` and `content` of each.
        nonce: The fence's.
    """
    safe = [(memory["memory_id"], _safe(memory["content"], masking)) for memory in memories]
    shown = [f"memory_id: {memory_id}\n{prefix_lines(content)}" for memory_id, content in safe if content]
    texts = packaged_yaml(__package__, "question.yaml")
    form = json_reply.output_schema(REPLY_FORMAT.schema)
    asked: str = texts["question"].replace("{{OUTPUT_SCHEMA}}", form)
    return asked.replace("{{MEMORIES}}", fence("\n\n".join(shown) or texts["none"], nonce))


def read_lessons(reply: str, masking: Masking) -> Lessons | None:
    """
    The part of a stored reply that counts, without secrets; pure.

    None where it does not fit the form, or a new memory is empty or addresses a model.
    """
    lessons = json_reply.parse(without_reasoning(reply), Lessons)
    if isinstance(lessons, str):
        return None
    del lessons.create[MOST_LESSONS:], lessons.deprecate[1:]
    for lesson in lessons.create:
        lesson.content = _safe(lesson.content, masking)
    return lessons if all(lesson.content for lesson in lessons.create) else None


def _safe(text: str, masking: Masking) -> str:
    """The text without secrets and invisible characters; empty where it addresses a model."""
    sanitizer = Sanitizer(new_nonce(), masking=masking)
    safe = sanitizer.text("", text[: 4 * MOST_CHARACTERS]).strip()
    return "" if sanitizer.injections else safe[:MOST_CHARACTERS]

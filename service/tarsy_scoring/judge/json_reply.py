"""
Asks for JSON replies, and extracts the object from a reply that wraps it.

The object may be the whole reply, the content of a code fence, or surrounded by words. A reply with several
different objects among its words counts as a reply without one. Extraction is linear in the length of the
reply.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json, to_json

from tarsy_scoring.errors import InvalidStructuredAnswer
from tarsy_scoring.judge.conversation import Conversation
from tarsy_scoring.judge.verdict import ReplyFormat, Turn, TurnKind
from tarsy_scoring.timeline.text import encode, storable_json

Model = TypeVar("Model", bound=BaseModel)

_FENCE_LINE = re.compile(r"^[ \t]*(`{3,}|~{3,})([^`\n]*)$", re.MULTILINE)
_MOST_PROBLEMS = 5

REMINDER = """\
Your answer is not what was asked for: {faults}. Send it again as one JSON object that fits the schema, with nothing \
before it and nothing after it. Change nothing else in it."""


def object_schema(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an object for OpenAI's strict mode: every property is required, and no others allowed."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def output_schema(schema: Mapping[str, Any]) -> str:
    """The text for `{{OUTPUT_SCHEMA}}`, for endpoints that ignore `response_format`."""
    lines = to_json(schema, indent=2).decode()
    return (
        "Answer with one JSON object and nothing else: no text before it, none after it. "
        "It must fit this JSON Schema:\n\n"
        f"```json\n{lines}\n```"
    )


def added_prompts(reply_format: ReplyFormat) -> dict[str, str]:
    """The texts that a strategy with JSON replies adds to the prompts of the file."""
    return {"output_schema": output_schema(reply_format.schema), "reminder_prompt": REMINDER}


async def say_json(conversation: Conversation, kind: TurnKind, model: type[Model]) -> tuple[Model, Turn]:
    """
    Ask until the reply fits the model. Each reminder lists the problems of the reply.

    Raises:
        InvalidStructuredAnswer: No reply fitted the model.
        RetryLater, WaitFor, Unscorable: As `Conversation.say` raises them.
    """
    turn = await conversation.say(kind)
    for reminders_left in range(conversation.max_reminders, -1, -1):
        parsed = parse(turn.reply, model)
        if not isinstance(parsed, str):
            return parsed, turn
        if reminders_left:
            turn = await conversation.say("reminder", REMINDER.format(faults=parsed))
    raise InvalidStructuredAnswer(
        f"{turn.judge} sent no JSON that fits the schema, after "
        f"{conversation.max_reminders} reminders ({parsed}); raise max_reminders or use a model that can"
    )


def parse(reply: str, model: type[Model]) -> Model | str:
    """The reply as the model, or its problems as text: paths and reasons, never the content of the reply."""
    found = extract_object(reply)
    if found is None:
        return "it holds no single JSON object"
    try:
        return model.model_validate(storable_json(found))
    except ValidationError as error:
        problems = error.errors(include_input=False, include_url=False, include_context=False)
        return "; ".join(f"{'.'.join(map(str, p['loc'])) or 'it'}: {p['msg']}" for p in problems[:_MOST_PROBLEMS])


def extract_object(reply: str) -> dict[str, Any] | None:
    """
    The JSON object of a reply: the whole reply, the last fenced object, or the only object among words.

    None where there is no object, where it is cut, or where several objects among words differ.
    """
    whole = _object_of(reply)
    if whole is not None:
        return whole
    fenced = [found for block in _fenced(reply) if (found := _object_of(block)) is not None]
    if fenced:
        return fenced[-1]
    among_words = _objects_in(reply)
    return among_words[0] if among_words and all(o == among_words[0] for o in among_words) else None


def _object_of(text: str) -> dict[str, Any] | None:
    # The JSON of an endpoint may escape half of a surrogate pair. `encode` replaces it: one letter is not
    # worth a reminder.
    try:
        found = from_json(encode(text), allow_inf_nan=False)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _fenced(text: str) -> Iterator[str]:
    """The content of closed code fences; a fence that opens inside another one is part of its content."""
    opening: re.Match[str] | None = None
    for line in _FENCE_LINE.finditer(text):
        if opening is None:
            opening = line
        elif line[1].startswith(opening[1]) and not line[2].strip():
            yield text[opening.end() : line.start()]
            opening = None


def _objects_in(text: str) -> list[dict[str, Any]]:
    """The outermost objects among words; none where the last is cut. Braces inside strings do not count."""
    found = []
    depth, start, in_string, escaped = 0, 0, False, False
    for position, character in enumerate(text):
        if in_string:
            in_string = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            in_string = depth > 0  # quotation marks outside an object belong to the words
        elif character == "{":
            start = start if depth else position
            depth += 1
        elif character == "}" and depth:
            depth -= 1
            if not depth and (whole := _object_of(text[start : position + 1])) is not None:
                found.append(whole)
    return [] if depth else found

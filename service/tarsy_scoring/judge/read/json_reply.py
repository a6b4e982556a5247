"""
Asks for JSON replies, and extracts the answer from a reply that wraps it, in linear time.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json, to_json

from tarsy_scoring.errors import Unscorable
from tarsy_scoring.judge.conversation import Conversation
from tarsy_scoring.judge.read.quotation import unframed
from tarsy_scoring.judge.verdict import ReplyFormat, Turn, TurnKind
from tarsy_scoring.timeline.text import encode, storable_json

Model = TypeVar("Model", bound=BaseModel)

_MOST_PROBLEMS = 5

REMINDER = """\
Your answer is not what was asked for: {faults}. Send it again as one JSON object that fits the schema, with nothing \
before it and nothing after it. Change nothing else in it."""


def object_schema(properties: Mapping[str, Any]) -> dict[str, Any]:
    """An object schema for OpenAI's strict mode: every property is required, and no others allowed."""
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
    """Texts that a strategy with JSON replies adds to the file's prompts."""
    return {"output_schema": output_schema(reply_format.schema), "reminder_prompt": REMINDER}


def whole(answer: BaseModel) -> object:
    """The whole answer, for `decisive`."""
    return answer


async def say_json(
    conversation: Conversation,
    kind: TurnKind,
    model: type[Model],
    decisive: Callable[[Model], object] = whole,
) -> tuple[Model, Turn]:
    """
    Ask until the reply fits the model. Each reminder lists the problems found.

    Args:
        decisive: The part in which all answers in one reply must agree.

    Raises:
        Unscorable: No reply fitted the model.
        AttemptError: As `Conversation.say` raises them.
    """
    turn = await conversation.say(kind)
    for reminders_left in range(conversation.max_reminders, -1, -1):
        parsed = parse(turn.answer, model, decisive)
        if not isinstance(parsed, str):
            return parsed, turn
        if reminders_left:
            turn = await conversation.say("reminder", REMINDER.format(faults=parsed))
    raise Unscorable(
        f"{turn.judge} sent no JSON that fits the schema, after "
        f"{conversation.max_reminders} reminders ({parsed}); raise max_reminders or use a model that can",
        "invalid_structured_answer",
    )


def parse(reply: str, model: type[Model], decisive: Callable[[Model], object] = whole) -> Model | str:
    """
    The answer in a reply, or the problems found as text.

    The answer is the whole reply, in one code fence, block quote or inline code at most, or the one object
    among words. Words that quote anything or hold a number make it no answer: the number may be the judge's
    total, and the object one of the session. For the same reason each object must fit the model, and all must
    agree in their `decisive` part. The text holds paths and reasons, never reply content.
    """
    words, objects = _split(reply)
    if not objects:
        return "it holds no single JSON object"
    answers = []
    for text in objects:
        if (read := _object_of(text)) is None:
            return "it holds an object that is no valid JSON"
        try:
            answers.append(model.model_validate(storable_json(read)))
        except ValidationError as error:
            return _explain(error)
    if any(decisive(answer) != decisive(answers[-1]) for answer in answers):
        return "it holds several JSON objects that differ"
    return (
        "there are quotations or numbers beside its JSON object" if _SAYS_MORE.search(words) else answers[-1]
    )


def _explain(error: ValidationError) -> str:
    problems = error.errors(include_input=False, include_url=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, p['loc'])) or 'it'}: {p['msg']}" for p in problems[:_MOST_PROBLEMS])


def _object_of(text: str) -> dict[str, Any] | None:
    # An endpoint's JSON may escape half a surrogate pair. `encode` replaces it: one letter is not
    # worth a reminder.
    try:
        found = from_json(encode(text), allow_inf_nan=False)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


# Quotation marks, tags, list items, indentation and numbers beside an object. Behind a letter a number belongs
# to the id of an entry. A brace that opens nothing may be the rest of the judge's own object.
_SAYS_MORE = re.compile(
    r"""(?<!\w)\d|[`"“”„«»|}]|~~~|['‘]\{|\[\s*\{|<(?!/?\w*(?:answer|output|response))"""
    r"|^(?:\s*>|\t| {4}|\s*[-*+•]\s)",
    re.MULTILINE,
)


def _split(reply: str) -> tuple[str, list[str]]:
    """The words of a reply, with `{` in place of each object, and its outermost objects, valid or not."""
    inside = unframed(reply).strip("\ufeff `\t\r\n")
    if _object_of(inside) is not None:
        return "", [inside]
    words, objects, begin, end = list[str](), list[str](), 0, 0
    depth, in_string, escaped = 0, False, False
    for position, character in enumerate(reply):
        if in_string:
            in_string = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            in_string = depth > 0  # quotation marks outside an object belong to the words
        elif character == "{":
            if not depth:
                words.append(reply[end : position + 1])
                begin = position
            depth += 1
        elif character == "}" and depth:
            depth -= 1
            if not depth:
                end = position + 1
                objects.append(reply[begin:end])
    (objects if depth else words).append(reply[begin if depth else end :])
    return "".join(words), objects

"""
Asks for JSON replies, and extracts the answer from a reply that wraps it.

The answer may be the whole reply, stand in a code fence at the end, or between words. Extraction is linear
in the reply's length.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json, to_json

from tarsy_scoring.errors import InvalidStructuredAnswer
from tarsy_scoring.judge.conversation import Conversation
from tarsy_scoring.judge.verdict import ReplyFormat, Turn, TurnKind
from tarsy_scoring.timeline.text import encode, storable_json

Model = TypeVar("Model", bound=BaseModel)

_FENCE_LINE = re.compile(r"[ \t]*(`{3,}|~{3,})([^`\n]*)$")
_MOST_PROBLEMS = 5
_MOST_BRACES = 20  # that begin no object; each reads the rest once more

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
        InvalidStructuredAnswer: No reply fitted the model.
        RetryLater, WaitFor, Unscorable: As `Conversation.say` raises them.
    """
    turn = await conversation.say(kind)
    for reminders_left in range(conversation.max_reminders, -1, -1):
        parsed = parse(turn.answer, model, decisive)
        if not isinstance(parsed, str):
            return parsed, turn
        if reminders_left:
            turn = await conversation.say("reminder", REMINDER.format(faults=parsed))
    raise InvalidStructuredAnswer(
        f"{turn.judge} sent no JSON that fits the schema, after "
        f"{conversation.max_reminders} reminders ({parsed}); raise max_reminders or use a model that can"
    )


def parse(reply: str, model: type[Model], decisive: Callable[[Model], object] = whole) -> Model | str:
    """
    The last object in the reply that fits the model, or the problems found as text.

    An object that the reply quotes is no answer: one in a block quote, in inline code, or in a code fence
    with anything behind it. Two objects that fit and differ in their `decisive` part are no answer either,
    even if one is quoted. The text holds paths and reasons, never reply content.
    """
    found = find_objects(reply)
    fitting: list[tuple[Model, bool]] = []
    problems = "it holds no single JSON object"
    for read, is_quoted in found:
        try:
            fitting.append((model.model_validate(storable_json(read)), is_quoted))
        except ValidationError as error:
            problems = problems if is_quoted else _explain(error)
    answers = [answer for answer, is_quoted in fitting if not is_quoted]
    if any(decisive(answer) != decisive(fitting[0][0]) for answer, _ in fitting):
        return "it holds several JSON objects that differ"
    if not answers:
        return (
            "its JSON object is quoted, or followed by a cut one or by words behind a code fence"
            if fitting
            else problems
        )
    return answers[-1]


def _explain(error: ValidationError) -> str:
    problems = error.errors(include_input=False, include_url=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, p['loc'])) or 'it'}: {p['msg']}" for p in problems[:_MOST_PROBLEMS])


class Found(NamedTuple):
    """A JSON object in a reply, and whether the reply quotes it."""

    read: dict[str, Any]
    is_quoted: bool


def find_objects(reply: str) -> list[Found]:
    """Outermost JSON objects in a reply, in order; none that is cut."""
    reply = reply.strip("\ufeff \t\r\n")
    if (read := _object_of(reply.strip("`"))) is not None:
        return [Found(read, is_quoted=False)]
    found: list[Found] = []
    passages = [passage for passage in _passages(reply) if passage.text.strip()]
    for passage in passages:
        if not passage.mark:
            found += _objects_among(passage.text)
        elif (
            passage is passages[-1] and passage.mark != ">" and (read := _object_of(passage.text)) is not None
        ):
            found.append(Found(read, is_quoted=False))
        else:
            found += (Found(read, is_quoted=True) for read, _ in _objects_among(passage.text))
    return found


def _object_of(text: str, **how: Any) -> dict[str, Any] | None:
    # An endpoint's JSON may escape half a surrogate pair. `encode` replaces it: one letter is not
    # worth a reminder.
    try:
        found = from_json(encode(text), allow_inf_nan=False, **how)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


class _Passage(NamedTuple):
    """What a code fence or block quote holds, or the words between them; `mark` opened it."""

    text: str
    mark: str


def _passages(text: str) -> Iterator[_Passage]:
    """Cut a text at code fences and block quotes. A fence inside a fence counts as content."""
    lines: list[str] = []
    mark = ""  # opened the current fence or block quote
    for line in text.split("\n"):
        fence = _FENCE_LINE.match(line)
        is_quote = line.lstrip().startswith(">")
        if mark in ("", ">") and (fence or is_quote != (mark == ">")):
            yield _Passage("\n".join(lines), mark)
            lines, mark = [], fence[1] if fence else ">" * is_quote
            if fence:
                continue
        elif mark not in ("", ">") and fence and fence[1].startswith(mark) and not fence[2].strip():
            yield _Passage("\n".join(lines), mark)
            lines, mark = [], ""
            continue
        lines.append(line.lstrip(" \t>") if mark == ">" else line)
    yield _Passage("\n".join(lines), mark)


def _objects_among(text: str) -> list[Found]:
    """The outermost objects among words. All count as quoted where the text ends within an object."""
    found, unclosed = _scan(text, 0)
    for _ in range(_MOST_BRACES):
        # An object that only lacks its end is cut. Any other brace belongs to the words.
        if unclosed is None or _object_of(text[unclosed:], allow_partial="trailing-strings") is not None:
            break
        more, unclosed = _scan(text, unclosed + 1)
        found += more
    return found if unclosed is None else [Found(read, is_quoted=True) for read, _ in found]


def _scan(text: str, begin: int) -> tuple[list[Found], int | None]:
    """The outermost objects from an index on, and where an object begins that does not end."""
    found = []
    depth, start, in_string, escaped = 0, 0, False, False
    for position in range(begin, len(text)):
        character = text[position]
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
            if not depth and (read := _object_of(text[start : position + 1])) is not None:
                found.append(Found(read, is_quoted=text[start - 1 : start] in ("`", '"', "“", "'")))
    return found, start if depth else None

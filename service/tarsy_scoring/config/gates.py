"""
Gates as the operator declares them: one record per type, validated at the start.

Patterns, JSONPaths and assertions are defined here, for loading and for deciding.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, NoReturn, get_args

from jsonpath_rfc9535 import JSONPathEnvironment, JSONPathError, JSONPathQuery
from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, WithJsonSchema

from tarsy_scoring.config.values import Frozen, compile_pattern, not_blank

TITLE_CHARACTERS = 80


def shown(text: str, limit: int = TITLE_CHARACTERS) -> str:
    """
    One line for people: white space squeezed, unprintable characters dropped, at most `limit` characters.
    """
    line = "".join(c for c in " ".join(text.split()) if c.isprintable())
    return line if len(line) <= limit else line[: limit - 1] + "…"


# --- patterns and assertions ------------------------------------------------------------------


class _Paths(JSONPathEnvironment):
    """JSONPath without `match` and `search`: a backtracking search over an agent's data could block the process."""

    def setup_function_extensions(self) -> None:
        super().setup_function_extensions()
        del self.function_extensions["match"], self.function_extensions["search"]


def compile_path(path: str) -> JSONPathQuery:
    """
    Compile a JSONPath of RFC 9535; `match` and `search` do not exist.

    Raises:
        ValueError: Not a JSONPath; with the reason and the position.
    """
    try:
        return _Paths().compile(path)
    except (JSONPathError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"not a JSONPath of RFC 9535: {reason}") from None


class NestedTooDeeply(ValueError):
    """JSON that may be well-formed, but exceeds the parser's depth."""


def read_json(text: str | bytes) -> Any:
    """
    Parse JSON by RFC 8259: UTF-8 with or without a byte order mark, no `NaN`, no `Infinity`.

    Raises:
        NestedTooDeeply: Too deep for the parser.
        ValueError: Not JSON.
    """
    try:
        return json.loads(
            text.decode("utf-8-sig") if isinstance(text, bytes) else text, parse_constant=_refuse
        )
    except RecursionError:
        raise NestedTooDeeply("nested too deeply") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


@dataclass(frozen=True, slots=True)
class Assertion:
    """
    A condition on the values that a JSONPath found.

    Args:
        value: JSON for `equals`, a text for `contains`, a number for a length, None for `exists`.
    """

    kind: str  # exists, equals, contains, len >=, len ==, len >
    value: Any = None


_LENGTH = re.compile(r"len\s*(>=|==|>)\s*([0-9]{1,9})")


def parse_assertion(text: str) -> Assertion:
    """
    Parse `exists`, `equals V`, `contains S`, `len >= N`, `len == N` or `len > N`.

    `V` is JSON if it parses as JSON, else plain text: `equals 3` is the number, `equals "3"` the text.

    Raises:
        ValueError: None of these forms.
    """
    word, *rest = text.split(maxsplit=1)
    value = rest[0].strip() if rest else ""
    if word == "exists" and not rest:
        return Assertion("exists")
    if word == "equals" and value:
        return Assertion("equals", json_or_text(value))
    if word == "contains" and value:
        return Assertion("contains", value)
    if match := _LENGTH.fullmatch(text.strip()):
        return Assertion(f"len {match[1]}", int(match[2]))
    raise ValueError("expected `exists`, `equals V`, `contains S`, `len >= N`, `len == N` or `len > N`")


def json_or_text(text: str) -> Any:
    """The text parsed as JSON, or the text itself."""
    try:
        return read_json(text)
    except ValueError:
        return text


# --- parameters ----------------------------------------------------------------------------------------


def _readable_by(parse: Callable[[str], object]) -> AfterValidator:
    """Refuses a text that `parse` refuses with a ValueError."""

    def check(text: str) -> str:
        parse(text)
        return text

    return AfterValidator(check)


def _stays_inside(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or parts[0] == "/" or ".." in parts:
        raise ValueError("must name something below the work directory, without `..`")
    return path


Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=TITLE_CHARACTERS)]
ToolPattern = Annotated[str, StringConstraints(strip_whitespace=True), AfterValidator(not_blank)]
Text = Annotated[str, Field(min_length=1)]
Pattern = Annotated[str, Field(min_length=1), _readable_by(compile_pattern)]
Command = Annotated[str, AfterValidator(not_blank)]
InsidePath = Annotated[str, AfterValidator(not_blank), AfterValidator(_stays_inside)]
JsonPath = Annotated[str, _readable_by(compile_path)]
AssertionText = Annotated[str, AfterValidator(not_blank), _readable_by(parse_assertion)]


# --- the types -----------------------------------------------------------------------------------------


# The first of these parameters that a gate has distinguishes it from gates with the same type.
_DISTINGUISHING = ("tool", "max", "path", "substring", "pattern", "description")


class AnyGate(Frozen):
    """Base class for gates."""

    model_config = ConfigDict(defer_build=True)  # built once, as a part of the settings of a chain

    type: str
    name: Name | None = None

    @property
    def title(self) -> str:
        """The name, or type and main parameter in one line of at most `TITLE_CHARACTERS`."""
        main = [getattr(self, name) for name in _DISTINGUISHING if name in type(self).model_fields]
        return shown(self.name or f"{self.type} {main[0] if main else ''}")


class CommandGate(AnyGate):
    """A gate that runs a command in the work directory."""

    command: Command


class FileGate(AnyGate):
    """A gate that checks a path in the work directory."""

    path: InsidePath


class NoTranscriptErrors(AnyGate):
    """The transcript shown to the judge holds no failed call."""

    type: Literal["no_transcript_errors"]


class ToolGate(AnyGate):
    """A gate that counts a tool's calls."""

    tool: ToolPattern
    min: Annotated[int, Field(ge=1)] = 1


class ToolCalled(ToolGate):
    """A tool was called at least `min` times."""

    type: Literal["tool_called"]


class ToolNotCalled(ToolGate):
    """A tool was called fewer than `min` times."""

    type: Literal["tool_not_called"]


class MaxToolCalls(AnyGate):
    """The session has at most `max` tool calls, over all tools."""

    type: Literal["max_tool_calls"]
    max: Annotated[int, Field(ge=0)]


class FinalAnalysisContains(AnyGate):
    """The final analysis contains a text, case-sensitively."""

    type: Literal["final_analysis_contains"]
    substring: Text


class FinalAnalysisMatches(AnyGate):
    """The final analysis matches an RE2 somewhere."""

    type: Literal["final_analysis_matches"]
    pattern: Pattern


class CommandSucceeds(CommandGate):
    """A command ends with exit status 0."""

    type: Literal["command_succeeds"]

    @property
    def title(self) -> str:
        """The name, or type and program. Arguments are left out: they may hold a secret."""
        words = (word for word in self.command.split() if "=" not in word)
        return shown(self.name or f"{self.type} {PurePosixPath(next(words, '')).name}")


class CommandOutputContains(CommandGate):
    """A command's output contains a text."""

    type: Literal["command_output_contains"]
    substring: Text


class CommandOutputMatches(CommandGate):
    """A command's output matches an RE2 somewhere."""

    type: Literal["command_output_matches"]
    pattern: Pattern


class CommandJsonPath(CommandGate):
    """The JSON that a command prints fulfils an assertion."""

    type: Literal["command_json_path"]
    path: JsonPath
    assertion: AssertionText


class FileExists(FileGate):
    """A file or a directory exists."""

    type: Literal["file_exists"]


class FileContains(FileGate):
    """A file contains a text."""

    type: Literal["file_contains"]
    substring: Text


class FileMatches(FileGate):
    """A file matches an RE2 somewhere."""

    type: Literal["file_matches"]
    pattern: Pattern


class Script(CommandGate):
    """The operator's script reports whether the gate passed, and why."""

    type: Literal["script"]
    description: Annotated[str, AfterValidator(not_blank)]


AnyOfThem = (
    NoTranscriptErrors
    | ToolCalled
    | ToolNotCalled
    | MaxToolCalls
    | FinalAnalysisContains
    | FinalAnalysisMatches
    | CommandSucceeds
    | CommandOutputContains
    | CommandOutputMatches
    | CommandJsonPath
    | FileExists
    | FileContains
    | FileMatches
    | Script
)
# Shown as a map on the generated page of settings; docs/gates.md describes the types.
Gate = Annotated[AnyOfThem, Field(discriminator="type"), WithJsonSchema({"type": "object"})]

GATE_TYPES: dict[str, type[AnyGate]] = {
    get_args(m.model_fields["type"].annotation)[0]: m for m in get_args(AnyOfThem)
}

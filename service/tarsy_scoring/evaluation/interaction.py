"""
Counts interaction metrics from the timeline: failures, repetition, help and time of the tool calls.

Linear in the size of the session. Each execution is counted separately and every map is sorted by name, so
the order of stages and executions does not change the result. `docs/interaction.md` defines each number.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import re2
from pydantic_core import from_json, to_json, to_jsonable_python

from tarsy_scoring.events import Counts, InteractionTotals
from tarsy_scoring.timeline.clean.masking import SHIPPED, Masking, mask_secrets
from tarsy_scoring.timeline.model import LONGEST_SESSION, Event, Execution, Timeline, ToolCall, sum_if_known


@dataclass(frozen=True, slots=True)
class CommandRules:
    """
    The definition of a command, validated by the settings.

    Args:
        pattern: RE2 that finds commands in the arguments of shell tools; group 1 names the subcommand. None:
            every tool call is one command.
        shell_tools: Tools whose argument is a command line: `server.tool` or the bare tool name, `*` allowed.
        masking: Masks the names of tools and subcommands.
    """

    pattern: str | None = None
    shell_tools: tuple[str, ...] = ()
    masking: Masking = SHIPPED


EVERY_CALL = CommandRules()
LONGEST_NAME = 200  # characters of a tool or subcommand in the document; models invent long names
_LONGEST_READ = 10 * LONGEST_NAME


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens that the models of the agents read and wrote."""

    input: int
    output: int


@dataclass(frozen=True, slots=True)
class Interaction(InteractionTotals):
    """
    The interaction metrics of one session.

    `error_basis` counts commands by the field that reported their end: `exit_code`, `is_error` or `status`.
    Values that the timeline does not contain completely are None.
    """

    error_basis: Mapping[str, int]
    duration_s: float | None
    agent_tokens: Tokens | None
    by_tool: Mapping[str, Counts]
    by_subcommand: Mapping[str, Counts]

    def document(self) -> dict[str, Any]:
        """The JSON in the score document; keys are in field order."""
        document: dict[str, Any] = to_jsonable_python(self)
        return document


def measure_interaction(timeline: Timeline, rules: CommandRules = EVERY_CALL) -> Interaction:
    """
    Count the commands that agents and sub-agents ran in shown stages.

    A command repeats an earlier one if execution, server, tool and canonical arguments are equal; replicas
    that do the same work do not repeat each other. Commands that `rules.pattern` finds in one call share the
    result of the call.
    """
    reader = _Reader(rules)
    executions = timeline.shown_executions
    kinds = Counter(kind for execution in executions for kind in reader.read(execution))
    return Interaction(
        **_counts(kinds),
        completed=timeline.status == "completed",
        error_basis=_error_basis(kinds),
        duration_s=_duration_s(timeline),
        agent_tokens=_agent_tokens(executions),
        by_tool=_counted(kinds, lambda kind: kind.tool),
        by_subcommand=_counted(kinds, lambda kind: kind.subcommand),
    )


# --- counting ------------------------------------------------------------------------------------------


class _Kind(NamedTuple):
    """The countable properties of a command. A session has few kinds, so most work is done once per kind."""

    tool: str
    subcommand: str | None
    is_first: bool
    repeats_failure: bool
    has_failed: bool
    basis: str
    asks_help: bool


def _error_basis(kinds: Mapping[_Kind, int]) -> dict[str, int]:
    bases = sorted({kind.basis for kind in kinds})
    return {basis: sum(n for kind, n in kinds.items() if kind.basis == basis) for basis in bases}


def _agent_tokens(executions: Sequence[Execution]) -> Tokens | None:
    read = sum_if_known(execution.input_tokens for execution in executions)
    written = sum_if_known(execution.output_tokens for execution in executions)
    return None if read is None or written is None else Tokens(read, written)


def _counted(kinds: Mapping[_Kind, int], name_of: Callable[[_Kind], str | None]) -> dict[str, Counts]:
    """Counts by name, sorted by name."""
    found: defaultdict[str, dict[_Kind, int]] = defaultdict(dict)
    for kind, number in kinds.items():
        if (name := name_of(kind)) is not None:
            found[name][kind] = number
    return {name: Counts(**_counts(found[name])) for name in sorted(found)}


def _counts(kinds: Mapping[_Kind, int]) -> dict[str, Any]:
    """The fields of `Counts`."""
    total = unique = errors = succeeded_at_once = helped = repeated = 0
    for kind, number in kinds.items():
        total += number
        unique += number * kind.is_first
        errors += number * kind.has_failed
        succeeded_at_once += number * (kind.is_first and not kind.has_failed)
        helped += number * kind.asks_help
        repeated += number * kind.repeats_failure
    return {
        "total_commands": total,
        "unique_commands": unique,
        "error_count": errors,
        "retry_count": total - unique,
        "help_invocations": helped,
        "repeated_after_failure": repeated,
        "error_rate": errors / total if total else None,
        "retry_rate": (total - unique) / total if total else None,
        "first_try_success_rate": succeeded_at_once / total if total else None,
        "iteration_ratio": unique / total if total else None,
    }


def _outcome(event: Event, call: ToolCall) -> tuple[bool, str]:
    """Whether a call failed, and the field that reports it."""
    if call.exit_code:
        return True, "exit_code"
    if call.is_error:
        return True, "is_error"
    if event.status != "completed":
        return True, "status"
    if call.exit_code is not None:
        return False, "exit_code"
    return False, "status" if call.is_error is None else "is_error"


# --- commands --------------------------------------------------------------------------


class _Tool(NamedTuple):
    name: str
    is_shell: bool
    is_help: bool


class _Reader:
    """Finds the commands in tool calls."""

    def __init__(self, rules: CommandRules) -> None:
        self._pattern = re2.compile(rules.pattern) if rules.pattern else None
        globs = [".*".join(map(re2.escape, tool.split("*"))) for tool in rules.shell_tools]
        self._shell_tools = re2.compile(f"(?s)(?:{'|'.join(globs)})") if globs else None
        self._masking = rules.masking
        self._tools: dict[tuple[str, str], _Tool] = {}
        self._kinds: dict[
            _Kind, _Kind
        ] = {}  # interned: many small objects would slow down the garbage collector

    def read(self, execution: Execution) -> Iterator[_Kind]:
        """The commands of one execution, in order."""
        has_failed_last: dict[tuple[str, str, str], bool] = {}
        for event in execution.events:
            if (call := event.tool) is None:
                continue
            tool = self._tool(call)
            has_failed, basis = _outcome(event, call)
            for text, subcommand, asks_help in self._commands(call, tool):
                identity = (call.server_name, call.tool_name, text)
                before = has_failed_last.get(identity)
                has_failed_last[identity] = has_failed
                name = subcommand and _shown_name(subcommand[:_LONGEST_READ], self._masking)
                kind = _Kind(tool.name, name, before is None, before is True, has_failed, basis, asks_help)
                yield self._kinds.setdefault(kind, kind)

    def _commands(self, call: ToolCall, tool: _Tool) -> Iterator[tuple[str, str | None, bool]]:
        """Text and subcommand of each command, and whether it asks for help."""
        if self._pattern is None:
            # A cheap test first: few arguments contain `help` or `-h`, and an escape might spell them.
            text = call.arguments
            asks_help = tool.is_help or (
                ("help" in text or "-h" in text or "\\u" in text)
                and any(_asks_help(s, is_command_line=tool.is_shell) for s in _strings(text))
            )
            yield _canonical(text), None, asks_help
        elif tool.is_shell or self._shell_tools is None:
            for argument in _strings(call.arguments):
                for text, subcommand in _find_commands(self._pattern, argument):
                    yield text, subcommand, tool.is_help or _asks_help(text, is_command_line=True)

    def _tool(self, call: ToolCall) -> _Tool:
        key = (call.server_name, call.tool_name)
        if (tool := self._tools.get(key)) is None:
            names = (call.name.encode("utf-8", "replace"), call.tool_name.encode("utf-8", "replace"))
            is_shell = self._shell_tools is not None and any(self._shell_tools.fullmatch(n) for n in names)
            is_help = call.tool_name == "help" or call.tool_name.endswith("_help")
            shown = _shown_name(call.name[:_LONGEST_READ], self._masking)
            tool = self._tools[key] = _Tool(shown, is_shell, is_help)
        return tool


def _parsed(arguments: str) -> object:
    """The JSON value. The nesting limit of this parser does not depend on the stack."""
    return from_json(arguments.encode())  # half of a surrogate pair is a ValueError as well


def _canonical(arguments: str) -> str:
    try:
        return to_json(_in_order(_parsed(arguments))).decode()
    except ValueError:
        return arguments.strip()


def _in_order(value: object) -> object:
    """The JSON value with keys sorted on every level."""
    if isinstance(value, dict):
        return {key: _in_order(value[key]) for key in sorted(value)}
    return [_in_order(item) for item in value] if isinstance(value, list) else value


def _strings(arguments: str) -> Iterator[str]:
    """
    All strings in the arguments, in the order of keys; the arguments themselves where they are not JSON.
    """
    try:
        ahead = [_parsed(arguments)]
    except ValueError:
        ahead = [arguments]
    while ahead:
        item = ahead.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            ahead += [item[key] for key in sorted(item, reverse=True)]
        elif isinstance(item, list):
            ahead += reversed(item)


# --- command lines -------------------------------------------------------------------------------------

# A command up to the next separator outside of quotes. A quote that nothing closes ends it as well.
_COMMAND = re.compile(rb"""(?:[^;&|\n"'\\]|\\.|"(?:[^"\\]|\\.)*+"|'[^']*+')*+""", re.DOTALL)
_EDGE = " \t\r\n\"'`;&|"

_WORD = r"""(?<![^\s"'`;&|])(?:%s)(?![^\s"'`;&|])"""
_LONG_HELP, _ANY_HELP = re.compile(_WORD % "--help"), re.compile(_WORD % "--help|-h|help")


def _asks_help(text: str, *, is_command_line: bool) -> bool:
    return (_ANY_HELP if is_command_line else _LONG_HELP).search(text) is not None


def _find_commands(pattern: "re2._Regexp", text: str) -> Iterator[tuple[str, str | None]]:
    """
    Text and subcommand of each command: from the pattern's match to the next match, or to the command's end.

    The slices do not overlap, so the time is linear.
    """
    data = text.encode("utf-8", "replace")  # RE2 works on bytes; with text it would convert every position
    groups = range(1, pattern.groups + 1)  # asks RE2
    found = [match for match in pattern.finditer(data) if match.end() > match.start()]
    stops = [*(match.start() for match in found[1:]), len(data)]
    for match, stop in zip(found, stops, strict=False):
        named = next(filter(lambda span: span[0] >= 0, map(match.span, groups)), None)
        # What the pattern matches before the name may hold separators.
        rest = _COMMAND.match(data, named[0] if named else match.end(), stop)
        end = rest.end() if rest else stop
        name = _decoded(data[named[0] : min(named[1], end)]).strip(_EDGE) if named else ""
        command = " ".join(_decoded(data[match.start() : end]).split())
        yield command, name or None


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")


@lru_cache(maxsize=1_000)  # sessions share their tools
def _shown_name(name: str, masking: Masking) -> str:
    """The name of a tool or subcommand as it is stored."""
    return printable(mask_secrets(name, masking), LONGEST_NAME)


def printable(name: str, longest: int) -> str:
    """
    A name for people and JSON columns: shortened, with U+FFFD for control characters and lone surrogates.
    """
    kept = name if len(name) <= longest else f"{name[: longest - 1]}…"
    return kept if kept.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in kept)


def _duration_s(timeline: Timeline) -> float | None:
    start, end = timeline.started_at, timeline.completed_at
    if not timeline.has_real_times or start is None or end is None:
        return None
    return (end - start).total_seconds() if start <= end <= start + LONGEST_SESSION else None

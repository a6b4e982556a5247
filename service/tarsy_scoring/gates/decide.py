"""
Decides gates: pass or fail with a message, from the timeline and from observations of the work directory.

A message contains the operator's own configuration, numbers, and names of stages, agents and tools, but never
content of a session, a file or an output. Two exceptions are meant to be shown: the message of a `script`, and
the masked end of a failed command's standard error.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from operator import eq, ge, gt
from typing import Any, assert_never

import re2
from jsonpath_rfc9535 import JSONPathError

from tarsy_scoring.config import gates as config
from tarsy_scoring.config.gates import shown
from tarsy_scoring.config.values import compile_pattern
from tarsy_scoring.evaluation.outcome import GateResult
from tarsy_scoring.timeline.model import Event, Timeline, ToolCall

MESSAGE_CHARACTERS = 300
SCRIPT_MESSAGE_CHARACTERS = 500
# A path such as `$..*..*` matches very many nodes; above this number the message says "more than".
MAX_NODES = 100_000

_MORE = " (gates.max_output_bytes)"

Decision = tuple[bool, str]
ContainsGate = config.FinalAnalysisContains | config.FileContains | config.CommandOutputContains
MatchesGate = config.FinalAnalysisMatches | config.FileMatches | config.CommandOutputMatches


@dataclass(frozen=True, slots=True)
class Observed:
    """
    An observation of the work directory for one gate.

    Args:
        problem: The reason why there is no observation, as the message of the gate. The other fields are then
            ignored.
        data: File content or command output; only the beginning where `is_cut`.
        exit_status: The command's exit status; minus the signal's number if a signal ended its sandbox.
        errors: The end of the command's standard error in one line, masked.
    """

    problem: str | None = None
    data: bytes = b""
    is_cut: bool = False
    exit_status: int = 0
    errors: str = ""


NOT_LOOKED_AT = Observed("the work directory was not looked at")


def evaluate_gate(gate: config.Gate, timeline: Timeline, observed: Observed = NOT_LOOKED_AT) -> GateResult:
    """
    Decide one gate. Never raises, whatever the session, the file or the output contain.

    Args:
        observed: The observation for a gate on files or commands; other gates need none.
    """
    if isinstance(gate, config.CommandGate | config.FileGate) and observed.problem is not None:
        passed, message = False, observed.problem
    else:
        passed, message = _decide(gate, timeline, observed)
    is_of_script = isinstance(gate, config.Script) and observed.problem is None
    message = shown(message, SCRIPT_MESSAGE_CHARACTERS if is_of_script else MESSAGE_CHARACTERS)
    if observed.errors and not passed:
        message += f"; standard error: {observed.errors}"
    return GateResult(gate.title, gate.type, passed, message)


def _decide(gate: config.Gate, timeline: Timeline, observed: Observed) -> Decision:
    match gate:
        case config.NoTranscriptErrors():
            return _transcript_errors(timeline)
        case config.ToolCalled() | config.ToolNotCalled():
            count, is_wanted = _count_calls(timeline, gate.tool), isinstance(gate, config.ToolCalled)
            wanted = f"{'at least' if is_wanted else 'fewer than'} {gate.min}"
            return (count >= gate.min) is is_wanted, f"calls of {shown(gate.tool)}: {count}, wanted {wanted}"
        case config.MaxToolCalls():
            count = sum(event.tool is not None for event in timeline.shown_events)
            return count <= gate.max, f"tool calls: {count}, wanted at most {gate.max}"
        case config.FinalAnalysisContains() | config.FinalAnalysisMatches():
            analysis = timeline.final_analysis or ""
            if not analysis.strip():
                return False, "the session has no final analysis"
            return _search(gate, "the final analysis", Observed(data=analysis.encode("utf-8", "replace")))
        case config.FileExists():
            return True, f"{_quoted(gate.path)} is there"
        case config.FileContains() | config.FileMatches():
            return _search(gate, _quoted(gate.path), observed)
        case config.Script():
            return _of_script(observed)
        case config.CommandSucceeds():
            return observed.exit_status == 0, f"the command ended with exit status {observed.exit_status}"
        case config.CommandOutputContains() | config.CommandOutputMatches():
            passed, message = _search(gate, "the output", observed)
        case config.CommandJsonPath():
            passed, message = _of_json(gate, observed)
        case _:
            assert_never(gate)
    return passed, f"{message}; the command ended with exit status {observed.exit_status}"


# --- the transcript ------------------------------------------------------------------------------------


def _count_calls(timeline: Timeline, tool: str) -> int:
    """Count calls to `server.tool` or to the bare tool name; `*` matches any characters."""
    # RE2 instead of `fnmatch`: models write arbitrary names, and `?` and `[` must match themselves.
    wanted = compile_pattern("(?s)" + ".*".join(re2.escape(part) for part in tool.split("*")))

    def is_wanted(call: ToolCall) -> bool:
        names = (call.name, call.tool_name)
        return any(wanted.fullmatch(name.encode("utf-8", "replace")) is not None for name in names)

    return sum(event.tool is not None and is_wanted(event.tool) for event in timeline.shown_events)


def _transcript_errors(timeline: Timeline) -> Decision:
    """Count failures by kind, and name the place of the first one."""
    counts: Counter[str] = Counter()
    first = ""
    for stage in timeline.shown_stages:
        for execution in stage.executions:
            where = f"stage {stage.stage_index} ({shown(stage.stage_name, 60)}), agent {shown(execution.agent_name, 60)}"
            for event in execution.events:
                if (kind := _failure_of(event)) is not None:
                    counts[kind] += 1
                    first = first or where + (f", tool {shown(event.tool.name, 60)}" if event.tool else "")
            # An execution that was cancelled or never began is no failure.
            if execution.status in ("failed", "timed_out"):
                counts["failed agents"] += 1
                first = first or where
    if not counts:
        return True, f"no errors in {len(timeline.shown_events)} entries"
    return False, ", ".join(f"{kind}: {count}" for kind, count in counts.items()) + f"; the first: {first}"


def _failure_of(event: Event) -> str | None:
    if event.tool is not None:
        failed = (
            event.tool.is_error is True
            or event.tool.exit_code not in (None, 0)
            or event.status != "completed"
        )
        return "failed tool calls" if failed else None
    if event.event_type == "error":
        return "errors"
    return "broken steps" if event.status != "completed" else None


# --- files and commands --------------------------------------------------------------------------------


def _search(gate: ContainsGate | MatchesGate, what: str, observed: Observed) -> Decision:
    # The last line of a text may be ended or not, and so may the one in the configuration.
    texts = (observed.data, observed.data.removesuffix(b"\n").removesuffix(b"\r"), observed.data + b"\n")
    if isinstance(gate, ContainsGate):
        found, thing = any(gate.substring.encode() in text for text in texts), _quoted(gate.substring)
    else:
        pattern = compile_pattern(gate.pattern)
        found = any(pattern.search(text) is not None for text in texts)
        thing = f"a match of {_quoted(gate.pattern)}"
    if observed.is_cut and not found:
        first = f"the first {len(observed.data)} bytes of {what} do not hold {thing}"
        return False, f"{first}; the rest was not read{_MORE}"
    return found, f"{what} {'holds' if found else 'does not hold'} {thing}"


def _quoted(text: str) -> str:
    return f"'{shown(text)}'"


def _of_json(gate: config.CommandJsonPath, observed: Observed) -> Decision:
    length = len(observed.data)
    if observed.is_cut:
        return False, f"the output is longer than {length} bytes, so its JSON cannot be read{_MORE}"
    try:
        nodes = config.compile_path(gate.path).finditer(config.read_json(observed.data))
        values = [node.value for node in islice(nodes, MAX_NODES + 1)]
        passed, more = _holds(config.parse_assertion(gate.assertion), values)
    except ValueError:
        return False, f"the output cannot be read as JSON: {length} bytes"
    except (JSONPathError, RecursionError):
        return False, f"the output is nested too deeply for {_quoted(gate.path)}"
    found = f"more than {MAX_NODES}" if len(values) > MAX_NODES else len(values)
    return passed, f"{_quoted(gate.path)} {_quoted(gate.assertion)}: nodes found: {found}{more}"


def _holds(assertion: config.Assertion, values: Sequence[Any]) -> Decision:
    if assertion.kind == "exists":
        return any(value is not None for value in values), ""
    if len(values) != 1:
        return False, ", exactly one is wanted"
    value, wanted = values[0], assertion.value
    if assertion.kind == "equals":
        return _is_same(value, wanted), ""
    if assertion.kind == "contains":
        return _contains(value, wanted), ""
    compare = {"len >=": ge, "len ==": eq, "len >": gt}[assertion.kind]
    return isinstance(value, str | list | dict) and compare(len(value), wanted), ""


def _contains(value: Any, wanted: str) -> bool:
    """Part of a text, key of an object, or element of a list (as text or as JSON)."""
    if isinstance(value, list):
        as_json = config.json_or_text(wanted)
        return any(_is_same(item, wanted) or _is_same(item, as_json) for item in value)
    return isinstance(value, str | dict) and wanted in value


def _is_same(one: Any, other: Any) -> bool:
    """Equality of JSON values: 1 equals 1.0 but not true, which Python's `==` would accept."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _of_script(observed: Observed) -> Decision:
    """
    Decide by the JSON answer of the script, or else by the exit status.

    An answer never overrules a failing exit status. An answer that cannot be read completely does not pass,
    because it may end with `"passed": false`.
    """
    ended_well = observed.exit_status == 0
    end = f"the script ended with exit status {observed.exit_status}"
    answer, is_unreadable = None, observed.is_cut
    try:
        answer = None if observed.is_cut else config.read_json(observed.data)
    except ValueError as error:
        is_unreadable = isinstance(error, config.NestedTooDeeply)
    if is_unreadable and observed.data.lstrip().startswith(b"{"):
        return False, f"the answer of the script is too long or nested too deeply to be read{_MORE}; {end}"
    if not isinstance(answer, dict) or not isinstance(answer.get("passed"), bool):
        return ended_well, end
    said = answer.get("message")
    message = shown(said, SCRIPT_MESSAGE_CHARACTERS) if isinstance(said, str) else ""
    if answer["passed"] and not ended_well:
        return False, f"{end}, although it says that it passed: {message}"
    return answer["passed"], message or f"the script says {'passed' if answer['passed'] else 'not passed'}"

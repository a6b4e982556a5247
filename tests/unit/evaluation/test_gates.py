"""Decisions of gates: each type when it passes, when it fails and on unreadable input."""

import json
from typing import Any

import pytest
from pydantic import TypeAdapter

from tables import table
from tarsy_scoring.config.gates import GATE_TYPES, Gate
from tarsy_scoring.evaluation.outcome import GateResult
from tarsy_scoring.gates.decide import MAX_NODES, NOT_LOOKED_AT, Observed, evaluate_gate
from tarsy_scoring.timeline.model import Timeline, ToolCall
from unit.timeline.sessions import call, event, execution, of_events, stage, timeline

GATES: TypeAdapter[Any] = TypeAdapter(Gate)
SECRET = "hunter2-of-the-session"


def decide(type_: str, session: Timeline, observed: Observed = NOT_LOOKED_AT, **parameters: Any) -> GateResult:
    return evaluate_gate(GATES.validate_python({"type": type_, **parameters}), session, observed)


def on_output(type_: str, data: str | bytes, *, is_cut: bool = False, exit_status: int = 0, **parameters: Any) -> Any:
    """The decision of a gate on a command that printed this."""
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    observed = Observed(data=raw, is_cut=is_cut, exit_status=exit_status)
    return decide(type_, of_events(), observed, command="cmd", **parameters)


def on_json(document: Any, path: str, assertion: str) -> GateResult:
    data = document if isinstance(document, str) else json.dumps(document)
    result: GateResult = on_output("command_json_path", data, path=path, assertion=assertion)
    return result


# --- the transcript ------------------------------------------------------------------------------------

HIDDEN = stage(execution(call("x", is_error=True), event("error"), status="failed"), stage_type="chat")

FAULTS = {
    "tool-error": (stage(execution(call("x", is_error=True))), "failed tool calls: 1", ", tool kubectl.get_pods"),
    "exit-code": (stage(execution(call("x", exit_code=2))), "failed tool calls: 1", ", tool kubectl.get_pods"),
    "signal": (stage(execution(call("x", exit_code=-9))), "failed tool calls: 1", ", tool kubectl.get_pods"),
    "call-not-finished": (stage(execution(call("x", status="streaming"))), "failed tool calls: 1", ", tool kubectl"),
    "error-event": (stage(execution(event("error", SECRET))), "errors: 1", "agent investigator"),
    "broken-step": (stage(execution(event("llm_response", SECRET, status="timed_out"))), "broken steps: 1", "agent"),
    "failed-agent": (stage(execution(event("llm_response"), status="failed")), "failed agents: 1", "agent inv"),
    "late-agent": (stage(execution(status="timed_out")), "failed agents: 1", "stage 1 (diagnosis)"),
}


def test_each_fault_of_a_transcript_is_counted() -> None:
    for name, (faulty, counts, first) in FAULTS.items():
        result = decide("no_transcript_errors", timeline(HIDDEN, faulty))

        assert (result.passed, counts in result.message, first in result.message) == (False, True, True), name
        assert SECRET not in result.message


def test_faults_are_added_up_and_the_first_is_named() -> None:
    session = timeline(
        stage(execution(call("x"), name="good")),
        stage(
            execution(call("x", exit_code=0, is_error=False), call("x", name="delete_pod", is_error=True), name="bad"),
            execution(event("error"), call("x", exit_code=1), name="worse", status="failed"),
            stage_index=2,
            name="mitigation",
        ),
    )

    result = decide("no_transcript_errors", session)

    assert result.message == (
        "failed tool calls: 2, errors: 1, failed agents: 1; "
        "the first: stage 2 (mitigation), agent bad, tool kubectl.delete_pod"
    )


def test_session_without_faults_passes() -> None:
    good = execution(call("error: none", is_error=False, exit_code=0), event("llm_thinking", "failed?"))
    session = timeline(stage(good, execution(status="cancelled"), execution(status="unknown")), HIDDEN)

    assert decide("no_transcript_errors", session) == GateResult(
        "no_transcript_errors", "no_transcript_errors", True, "no errors in 2 entries"
    )


CALLS = timeline(
    stage(execution(call("x"), call("x", name="get_nodes"), call("x", is_error=True))),
    stage(execution(call("x", name="delete_pod")), stage_type="scoring"),
)


@table
def test_tool_matches_by_server_and_name_or_by_name(tool: str, count: int) -> None:
    """`*` matches anything, case counts, and calls in stages that are not shown do not count."""
    assert decide("max_tool_calls", CALLS, max=3).passed
    for least in (1, 2, 3, 4):
        called = decide("tool_called", CALLS, tool=tool, min=least)
        not_called = decide("tool_not_called", CALLS, tool=tool, min=least)

        assert (called.passed, not_called.passed) == (count >= least, count < least)
        assert called.message == f"calls of {tool}: {count}, wanted at least {least}"
        assert not_called.message == f"calls of {tool}: {count}, wanted fewer than {least}"


def test_tool_without_a_server_and_one_with_odd_characters_are_found() -> None:
    odd = [ToolCall("", "run", "{}"), ToolCall("a", "b\n\ud800c", "{}")]
    session = of_events(*(event("llm_tool_call", tool=tool) for tool in odd))

    assert decide("tool_called", session, tool="run").passed
    assert decide("tool_called", session, tool="a.b*c").passed


@table
def test_max_tool_calls_limits_the_sum_of_all_calls(most: int, passed: bool) -> None:
    result = decide("max_tool_calls", CALLS, max=most)

    assert (result.passed, result.message) == (passed, f"tool calls: 3, wanted at most {most}")


@table
def test_final_analysis_is_searched(how: str, parameters: dict[str, str], passed: bool) -> None:
    """By exact text or by RE2; the message quotes what was searched for, never the analysis."""
    session = of_events(final_analysis=f"Cause: OOMKilled {SECRET} \ud800\nweb-1 war ä")

    result = decide(f"final_analysis_{how}", session, **parameters)

    assert result.passed is passed
    assert next(iter(parameters.values())) in result.message
    assert SECRET not in result.message


@table
def test_missing_final_analysis_does_not_pass(analysis: str | None) -> None:
    session = of_events(final_analysis=analysis)

    for gate, parameters in {"contains": {"substring": " "}, "matches": {"pattern": ".*"}}.items():
        result = decide(f"final_analysis_{gate}", session, **parameters)
        assert (result.passed, result.message) == (False, "the session has no final analysis")


# --- files ---------------------------------------------------------------------------------------------


@table
def test_file_is_searched(type_: str, parameters: dict[str, str], passed: bool) -> None:
    observed = Observed(data=b"\xff\x00 \xc3\xa4 ok " + SECRET.encode())

    result = decide(type_, of_events(), observed, path="r.md", **parameters)

    assert result.passed is passed
    assert "'r.md'" in result.message
    assert SECRET not in result.message


def test_message_names_the_unread_rest_only_if_nothing_was_found() -> None:
    cut = Observed(data=b"abc", is_cut=True)

    missed = decide("file_contains", of_events(), cut, path="r", substring="x")
    assert missed.message == (
        "the first 3 bytes of 'r' do not hold 'x'; the rest was not read (gates.max_output_bytes)"
    )
    assert decide("file_contains", of_events(), cut, path="r", substring="b").message == "'r' holds 'b'"


@pytest.mark.parametrize("text", ["12\nok", "12\nok\n", "12\nok\r\n"], ids=["open", "ended", "ended-as-on-windows"])
def test_a_final_newline_makes_no_difference(text: str) -> None:
    """A block of YAML ends with one, most commands print one, and `$` is the end of the text."""
    for how in ({"substring": "ok"}, {"substring": "2\nok"}, {"pattern": "^12\\nok$"}, {"pattern": r"ok\s*$"}):
        type_ = "matches" if "pattern" in how else "contains"
        assert on_output(f"command_output_{type_}", text, **how).passed, how
        assert decide(f"file_{type_}", of_events(), Observed(data=text.encode()), path="r", **how).passed, how
    assert on_output("command_output_contains", text.replace("\r", ""), substring="12\nok\n").passed


# --- commands ------------------------------------------------------------------------------------------


@table
def test_command_succeeds_with_status_zero(status: int, passed: bool, says: str) -> None:
    result = on_output("command_succeeds", SECRET, exit_status=status)

    assert (result.passed, result.message) == (passed, f"the command ended with {says}")


@pytest.mark.parametrize("status", [0, 1])
def test_output_is_searched_whatever_the_status(status: int) -> None:
    for type_, given in {"contains": {"substring": "3 ok"}, "matches": {"pattern": r"\d ok"}}.items():
        found = on_output(f"command_output_{type_}", f"{SECRET} 3 ok", exit_status=status, **given)
        missed = on_output(f"command_output_{type_}", f"{SECRET} OK", exit_status=status, **given)

        assert (found.passed, missed.passed) == (True, False)
        for result in (found, missed):
            assert f"exit status {status}" in result.message
            assert SECRET not in result.message


REPORT = {
    "n": 3,
    "f": 3.0,
    "t": "three pods",
    "yes": True,
    "nothing": None,
    "l": [1, "two", None],
    "o": {"k": []},
    "s": ["1"],
}


@table
def test_assertion_decides_on_the_nodes_of_the_path(path: str, assertion: str, passed: bool) -> None:
    assert on_json(REPORT, path, assertion).passed is passed


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


UNREADABLE = {
    "empty": ("", "cannot be read as JSON: 0 bytes"),
    "text": ("ok", "cannot be read as JSON: 2 bytes"),
    "two-documents": ("{}\n{}", "cannot be read as JSON"),
    "not-a-number": ("[NaN]", "cannot be read as JSON"),
    "not-utf-8": (b'"\xff"', "cannot be read as JSON"),
    "number-without-end": ("9" * 10_000, "cannot be read as JSON"),
    "absurdly-deep": (deep(200_000), "cannot be read as JSON"),
    "too-deep-for-the-path": (deep(500), "nested too deeply for '$..*'"),
    "more-nodes-than-are-counted": (json.dumps([0] * (MAX_NODES + 5)), f"nodes found: more than {MAX_NODES},"),
}


def test_unreadable_json_does_not_pass() -> None:
    for name, (data, says) in UNREADABLE.items():
        result = on_output("command_json_path", data, path="$..*", assertion="equals 1")

        assert (result.passed, says in result.message) == (False, True), name


def test_search_of_a_path_with_very_many_nodes_ends() -> None:
    result = on_json(deep(12).replace("[]", "[1]"), "$" + "[0,0,0,0,0,0,0,0,0,0]" * 12, "exists")

    assert result.passed
    assert f"more than {MAX_NODES}" in result.message


def test_truncated_json_is_not_read() -> None:
    result = on_output("command_json_path", "12", is_cut=True, path="$", assertion="equals 12")

    assert not result.passed
    assert "longer than 2 bytes" in result.message


@table
def test_script_decides_by_its_json_and_status(data: str, status: int, passed: bool, says: str) -> None:
    """A failing status never passes, whatever the JSON; the message is one printable line."""
    result = on_output("script", data, exit_status=status, description="adds up")

    assert result.passed is passed
    assert says in result.message
    assert result.message.isprintable()
    assert SECRET not in result.message


def test_script_whose_answer_cannot_be_read_does_not_pass() -> None:
    assert not on_output("script", ' {"passed"', is_cut=True, description="d").passed
    assert on_output("script", "log\n", is_cut=True, description="d").passed
    too_deep = on_output("script", '{"passed": false, "x": ' + deep(100_000) + "}", description="d")
    assert (too_deep.passed, "too long or nested too deeply" in too_deep.message) == (False, True)


# --- all of them ---------------------------------------------------------------------------------------

LONG: dict[str, Any] = {
    "tool": "t" * 5_000,
    "max": 10**9,
    "substring": "s" * 5_000,
    "pattern": "p" * 5_000,
    "command": "c" * 5_000,
    "path": "x" * 5_000,
    "assertion": "equals " + "v" * 5_000,
    "description": "d" * 5_000,
}


def test_messages_and_titles_are_short() -> None:
    for type_, model in GATE_TYPES.items():
        parameters = {k: v for k, v in LONG.items() if k in model.model_fields}
        if type_ == "command_json_path":
            parameters["path"] = "$." + parameters["path"]
        for observed in (Observed(data=b"{}"), Observed(data=b"{}", is_cut=True), Observed("p" * 5_000)):
            result = decide(type_, of_events(final_analysis="x"), observed, **parameters)

            assert 0 < len(result.message) <= 300, type_
            assert len(result.name) <= 80, type_


def test_gate_without_an_observation_does_not_pass() -> None:
    for type_ in (t for t in GATE_TYPES if t.startswith(("command", "file", "script"))):
        parameters = {k: v for k, v in LONG.items() if k in GATE_TYPES[type_].model_fields} | {"name": "mine"}
        if type_ == "command_json_path":
            parameters["path"] = "$"

        unseen = decide(type_, of_events(), Observed("no such place"), **parameters)

        assert unseen == GateResult("mine", type_, False, "no such place")
        assert not decide(type_, of_events(), **parameters).passed

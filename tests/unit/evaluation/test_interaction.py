"""Interaction metrics: each definition as a table, and laws that hold for every timeline."""

import json
import random
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tables import table
from tarsy_scoring.evaluation.interaction import (
    EVERY_CALL,
    LONGEST_NAME,
    CommandRules,
    Interaction,
    Tokens,
    measure_interaction,
)
from tarsy_scoring.timeline.clean.masking import Masking
from tarsy_scoring.timeline.model import LONGEST_SESSION, Event, Timeline, ToolCall
from unit.timeline.sessions import event, execution, of_events, stage, timeline

MY_TOOL = CommandRules(r"my-tool\s+(\S+)", ("shell.run",))
SHELL = CommandRules(shell_tools=("shell.run",))
START = datetime(2026, 1, 2, tzinfo=UTC)
TOKEN = "ghp_" + "a1B2c3D4e5" * 3 + "f6G7h8"


def call(
    arguments: Any = "{}", *, server: str = "shell", tool: str = "run", status: str = "completed", **said: Any
) -> Event:
    """A tool call; arguments other than a string are written as JSON."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return event("llm_tool_call", "result", status=status, tool=ToolCall(server, tool, text, **said))


def line(command_line: str, **said: Any) -> Event:
    return call({"command": command_line}, **said)


def measured(*events: Event, rules: CommandRules = EVERY_CALL, **fields: Any) -> Interaction:
    return measure_interaction(of_events(*events, **fields), rules)


def sequence(names: str, *, failed: str = "") -> list[Event]:
    """One call per letter, of the tool of that name; the n-th fails where `failed` holds an `x` there."""
    marks = failed.ljust(len(names))
    return [call(tool=name, is_error=mark == "x") for name, mark in zip(names, marks, strict=True)]


# --- what a command is ---------------------------------------------------------------------------------


def test_session_without_a_command_has_counts_of_zero_and_no_rates() -> None:
    document = measured(event("llm_thinking", "hm")).document()

    numbers = dict.fromkeys(list(document)[:6], 0)  # counts
    empty = {"completed": True, "error_basis": {}, "by_tool": {}, "by_subcommand": {}}
    assert document == dict.fromkeys(document) | numbers | empty


def test_session_counted_by_hand() -> None:
    """a fails, a fails again, a works, b works, b works again: five commands, two of them unique."""
    document = measured(*sequence("aaabb", failed="xx")).document()

    counted = {
        "total_commands": 5,
        "unique_commands": 2,
        "error_count": 2,
        "retry_count": 3,
        "help_invocations": 0,
        "repeated_after_failure": 2,
        "error_rate": 2 / 5,
        "retry_rate": 3 / 5,
        "first_try_success_rate": 1 / 5,
        "iteration_ratio": 2 / 5,
    }
    assert {key: document[key] for key in counted} == counted
    assert document["error_basis"] == {"is_error": 5}
    assert list(document["by_tool"]) == ["shell.a", "shell.b"]
    assert document["by_tool"]["shell.b"] == {
        "total_commands": 2,
        "unique_commands": 1,
        "error_count": 0,
        "retry_count": 1,
        "help_invocations": 0,
        "repeated_after_failure": 0,
        "error_rate": 0.0,
        "retry_rate": 0.5,
        "first_try_success_rate": 0.5,
        "iteration_ratio": 0.5,
    }


@table
def test_only_shown_stages_count(stage_type: str, commands: int) -> None:
    shown = timeline(stage(execution(call()), stage_type=stage_type))

    assert measure_interaction(shown).total_commands == commands


def test_sub_agents_count() -> None:
    lead, sub = execution(call(), name="lead"), execution(call(), name="sub", parent_execution_id="execution-lead")

    assert measure_interaction(timeline(stage(lead, sub))).total_commands == 2


def test_equal_calls_of_different_agents_are_no_retries() -> None:
    replicas = [execution(call(is_error=True), name="a"), execution(call(), name="b"), execution(call(), name="b")]

    found = measure_interaction(timeline(stage(*replicas)))

    assert (found.unique_commands, found.retry_count, found.repeated_after_failure) == (3, 0, 0)
    assert found.first_try_success_rate == 2 / 3


@table
def test_commands_are_equal_if_their_canonical_arguments_are(one: str, other: str, are_same: bool) -> None:
    assert measured(call(one), call(other)).unique_commands == (1 if are_same else 2)


def test_commands_differ_by_server_and_tool() -> None:
    assert measured(call(), call(server="other"), call(tool="other")).unique_commands == 3


@table
def test_failure_and_the_basis_it_is_known_by(said: dict[str, Any], has_failed: bool, basis: str) -> None:
    found = measured(call(**said))

    assert (found.error_count, found.error_basis) == (has_failed, {basis: 1})


@table
def test_repeated_after_failure_looks_at_the_latest_equal_call(failed: str, repeated: int, at_first: int) -> None:
    found = measured(*sequence("aaa", failed=failed))

    assert found.repeated_after_failure == repeated
    assert found.first_try_success_rate == at_first / 3


def test_repeated_after_failure_spans_other_calls() -> None:
    assert measured(*sequence("aba", failed="x")).repeated_after_failure == 1


# --- help ----------------------------------------------------------------------------------------------


@table
def test_help_request_is_recognised(arguments: Any, where: dict[str, str], asks: bool) -> None:
    assert measured(call(arguments, **where), rules=SHELL).help_invocations == asks


@table
def test_help_request_counts_for_its_own_command(command_line: str, asked: int) -> None:
    assert measured(line(command_line), rules=MY_TOOL).help_invocations == asked


def test_command_of_a_help_tool_asks_for_help() -> None:
    rules = CommandRules(r"my-tool (\S+)")

    assert measured(call({"a": "my-tool get"}, tool="cli_help"), rules=rules).help_invocations == 1


@table
def test_shell_tools_by_name(named: str, is_shell: bool) -> None:
    assert measured(line("x help"), rules=CommandRules(None, (named,))).help_invocations == is_shell
    assert measured(line("my-tool x"), rules=CommandRules("my-tool", (named,))).total_commands == is_shell


# --- commands of a command line ------------------------------------------------------------------------


@table
def test_commands_of_a_command_line_are_split(command_line: str, subcommands: list[str]) -> None:
    found = measured(line(command_line), rules=MY_TOOL)

    assert found.total_commands == len(subcommands)
    assert sorted(found.by_subcommand) == sorted(subcommands)


@table
def test_command_ends_at_a_separator_or_the_next_command(one: str, other: str, are_same: bool) -> None:
    """Separators in quotes do not count; the text up to there is the identity of the command."""
    assert measured(line(one), line(other), rules=MY_TOOL).unique_commands == (1 if are_same else 2)


@table
def test_separator_that_the_pattern_matches_ends_no_command(pattern: str, one: str, other: str) -> None:
    rules = CommandRules(pattern)

    assert measured(line(one), line(other), rules=rules).unique_commands == 2
    assert measured(line(one), line(one.replace("ls", "ps")), rules=rules).unique_commands == 1


def test_names_of_tools_and_subcommands_are_masked() -> None:
    rules = CommandRules(r"my-tool (\S+)", masking=Masking({"ticket": "INC-[0-9]+"}))
    found = measured(call({"a": f"my-tool {TOKEN}"}, tool="open_INC-4711"), call({"a": "my-tool get"}), rules=rules)

    assert not re.search(f"INC-4711|{TOKEN}", json.dumps(found.document()))
    assert [name for name in found.by_tool if "[REDACTED:ticket" in name] != []
    assert found.by_subcommand.keys() == {"get", "[REDACTED:token#1]"}


def test_commands_of_one_call_share_its_result() -> None:
    found = measured(
        line("my-tool get x; my-tool list", exit_code=2, is_error=False),
        line("my-tool get x"),
        line("ls"),
        rules=MY_TOOL,
    )

    assert (found.total_commands, found.error_count, found.repeated_after_failure) == (3, 2, 1)
    assert found.error_basis == {"exit_code": 2, "status": 1}
    assert found.by_subcommand["get"].total_commands == 2
    assert found.by_subcommand["list"].error_rate == 1.0


@table
def test_pattern_is_searched_in_strings(arguments: Any, commands: int) -> None:
    assert measured(call(arguments), rules=MY_TOOL).total_commands == commands


def test_pattern_and_shell_tools_select_the_calls() -> None:
    events = [line("my-tool x"), line("my-tool x", tool="other"), line("ls")]
    shell = ("shell.run",)
    all_rules = (CommandRules("my-tool"), CommandRules("my-tool", shell), CommandRules(None, shell))

    assert [measured(*events, rules=rules).total_commands for rules in all_rules] == [2, 1, 3]


@table
def test_group_names_the_subcommand(pattern: str, text: str, subcommands: list[str]) -> None:
    found = measured(line(text), rules=CommandRules(pattern))

    assert list(found.by_subcommand) == subcommands
    assert found.total_commands == max(1, len(subcommands))


@pytest.mark.parametrize("pattern", ["x*", "x*|my-tool"], ids=["nothing", "nothing before the tool"])
def test_empty_match_is_no_command(pattern: str) -> None:
    assert measured(line("abc xx"), rules=CommandRules(pattern)).total_commands == 1


# --- loops ---------------------------------------------------------------------------------------------


# --- time and tokens -----------------------------------------------------------------------------------

WHILE = {"started_at": START, "completed_at": START + timedelta(seconds=90, milliseconds=500)}


def test_duration_runs_from_start_to_end_with_real_times() -> None:
    for fields, duration_s in (
        ({}, 90.5),
        ({"created_at": START - timedelta(hours=1)}, 90.5),
        ({"completed_at": START}, 0.0),
        ({"has_real_times": False}, None),
        ({"started_at": None, "created_at": START}, None),
        ({"completed_at": None}, None),
        ({"completed_at": START - timedelta(seconds=1)}, None),
        ({"completed_at": START + LONGEST_SESSION}, LONGEST_SESSION.total_seconds()),
        ({"completed_at": START + LONGEST_SESSION + timedelta(seconds=1)}, None),
    ):
        assert measured(**WHILE | fields).duration_s == duration_s, fields


@table
def test_agent_tokens_leave_out_scoring(tokens: list[list[int | None]], expected: list[int] | None) -> None:
    agents = [execution(name=str(n), input_tokens=i, output_tokens=o) for n, (i, o) in enumerate(tokens)]
    judge = stage(execution(name="judge", input_tokens=1000, output_tokens=1000), stage_type="scoring")

    assert measure_interaction(timeline(stage(*agents), judge)).agent_tokens == (expected and Tokens(*expected))


# --- names ---------------------------------------------------------------------------------------------


def test_tool_names_can_be_stored_as_json() -> None:
    odd = ["a\0b", "a\x1bb", "a\ud800b", "n" * 1000]

    found = measured(*(call(tool=name) for name in odd))

    assert list(found.by_tool) == ["shell.a\ufffdb", "shell." + "n" * (LONGEST_NAME - 7) + "…"]
    assert found.by_tool["shell.a\ufffdb"].unique_commands == 3
    json.dumps(found.document(), ensure_ascii=False).encode()


# --- laws ----------------------------------------------------------------------------------------------

COMMAND_LINES = ["my-tool get x", "my-tool get y; my-tool list", "my-tool help", "ls", "it's", 'my-tool "a; b']
EVENTS = st.builds(
    call,
    st.sampled_from([*({"command": c} for c in COMMAND_LINES), "no JSON", "", "[]"]) | st.text(max_size=20),
    server=st.sampled_from(["shell", ""]),
    tool=st.sampled_from(["run", "get_help", "z"]),
    status=st.sampled_from(["completed", "completed", "failed"]),
    is_error=st.sampled_from([None, False, True]),
    exit_code=st.sampled_from([None, 0, 1]),
)
EXECUTIONS = st.builds(
    lambda events, name, tokens: execution(*events, name=name, input_tokens=tokens, output_tokens=tokens),
    st.lists(EVENTS, max_size=12),
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from([None, 3]),
)
STAGES = st.builds(
    lambda executions, kind: stage(*executions, stage_type=kind),
    st.lists(EXECUTIONS, max_size=4),
    st.sampled_from(["investigation", "action", "chat"]),
)
TIMELINES = st.lists(STAGES, max_size=4).map(lambda stages: timeline(*stages))
RULES = st.sampled_from([CommandRules(), SHELL, MY_TOOL, CommandRules("my-tool|l"), CommandRules("s*")])


@given(TIMELINES, RULES)
@settings(max_examples=60)
def test_counts_agree_with_each_other(session: Timeline, rules: CommandRules) -> None:
    found = measure_interaction(session, rules)

    for counts in [found, *found.by_tool.values(), *found.by_subcommand.values()]:
        assert counts.retry_count == counts.total_commands - counts.unique_commands
        assert 0 <= counts.unique_commands <= counts.total_commands
        assert counts.repeated_after_failure <= min(counts.retry_count, counts.error_count)
        for rate in (counts.error_rate, counts.retry_rate, counts.first_try_success_rate, counts.iteration_ratio):
            assert rate is None if counts.total_commands == 0 else rate is not None and 0 <= rate <= 1
        if counts.total_commands:
            assert counts.first_try_success_rate <= counts.iteration_ratio
    for key in ("total_commands", "unique_commands", "error_count", "help_invocations", "repeated_after_failure"):
        assert sum(getattr(c, key) for c in found.by_tool.values()) == getattr(found, key)
        assert sum(getattr(c, key) for c in found.by_subcommand.values()) <= getattr(found, key)
    assert sum(found.error_basis.values()) == found.total_commands
    assert 0 not in found.error_basis.values()
    document = found.document()
    assert json.loads(json.dumps(document)) == document


@given(TIMELINES, RULES, st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_order_of_stages_and_executions_changes_nothing(
    session: Timeline, rules: CommandRules, chance: random.Random
) -> None:
    stages = [replace(s, executions=tuple(chance.sample(s.executions, len(s.executions)))) for s in session.stages]
    chance.shuffle(stages)

    shuffled = measure_interaction(replace(session, stages=tuple(stages)), rules).document()

    assert json.dumps(shuffled) == json.dumps(measure_interaction(session, rules).document())

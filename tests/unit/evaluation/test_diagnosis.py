"""Diagnosis: each rule at its thresholds, and sentences that stay readable for any tool name."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tables import table
from tarsy_scoring.evaluation import diagnosis
from tarsy_scoring.evaluation.diagnosis import CAUSES, LONGEST_SHOWN_NAME, DiagnosedPattern, diagnose
from tarsy_scoring.evaluation.interaction import EVERY_CALL, CommandRules, Interaction, measure_interaction
from tarsy_scoring.timeline.model import Event, ToolCall
from unit.timeline.sessions import event, of_events

PAGE = (Path(__file__).parents[3] / "docs" / "interaction.md").read_text(encoding="utf-8")

NO_HELP, DESPITE_HELP, GOOD_HELP, RETRIES, LONG_WAY, REPEATING = CAUSES


def calls(count: int, tool: str = "get", *, distinct: bool = True, failed: int = 0, asking: int = 0) -> list[Event]:
    """Calls of one tool, of which the first `failed` fail and the last `asking` ask for help."""
    return [
        event(
            "llm_tool_call",
            tool=ToolCall(
                "shell", tool, f"{n if distinct else 0}{' --help' if n >= count - asking else ''}", is_error=n < failed
            ),
        )
        for n in range(count)
    ]


def measured(*events: Event, status: str = "failed", rules: CommandRules = EVERY_CALL) -> Interaction:
    return measure_interaction(of_events(*events, status=status), rules)


def found(*events: Event, **fields: Any) -> list[str]:
    return [finding.pattern for finding in diagnose(measured(*events, **fields))]


SESSIONS: Mapping[str, tuple[list[Event], list[str]]] = {
    "no command": ([], []),
    "all is well": (calls(20), []),
    "too few commands": (calls(4, failed=4), []),
    "enough commands": (calls(5, failed=3), [NO_HELP]),
    "errors": (calls(20, failed=6), [NO_HELP]),
    "some errors": (calls(20, failed=5), []),
    "high share of few errors": (calls(5, failed=2), []),
    "errors and help": (calls(20, failed=6, asking=3), [DESPITE_HELP]),
    "errors and some help": (calls(20, failed=6, asking=2), [NO_HELP]),
    "errors and a small share of help": (calls(21, failed=7, asking=3), [NO_HELP]),
    "help": (calls(20, asking=3), [GOOD_HELP]),
    "help and few errors": (calls(20, asking=3, failed=2), [GOOD_HELP]),
    "help and some errors": (calls(20, asking=3, failed=3), []),
    "some help": (calls(10, asking=2), []),
    "a small share of help": (calls(21, asking=3), []),
    "retries": (calls(3) * 2, [RETRIES]),
    "some retries": (calls(4) + calls(3), []),
    "high share of few retries": (calls(2) * 2 + calls(10, "list"), []),
    "retries among others": ((calls(3) * 2) + calls(14, "list"), [RETRIES]),
    "run": (calls(5, distinct=False) + calls(9, "list"), [RETRIES]),
    "run of one tool among others": (calls(5, distinct=False) + calls(9)[1:], []),
    "short run": (calls(4, distinct=False) + calls(9, "list"), []),
    "repeated after failure": (calls(1, "a", failed=1) * 2 + calls(26, "b") + calls(1, "a", failed=1) * 2, [REPEATING]),
    "repeated after failure in a long session": (
        calls(1, "a", failed=1) * 2 + calls(27, "b") + calls(1, "a", failed=1) * 2,
        [],
    ),
    "twice repeated after failure": (calls(1, "a", failed=1) * 3 + calls(10, "b"), []),
}


@pytest.mark.parametrize(("events", "patterns"), SESSIONS.values(), ids=SESSIONS.keys())
def test_session_has_exactly_these_findings(events: list[Event], patterns: list[str]) -> None:
    assert found(*events) == patterns


@table
def test_many_commands_are_a_finding_only_in_some_statuses(count: int, status: str, patterns: list[str]) -> None:
    assert found(*calls(count), status=status) == patterns


def test_finding_names_the_worst_tool_and_its_numbers() -> None:
    [finding] = diagnose(measured(*calls(6, "get", failed=1), *calls(6, "list", failed=4)))

    assert finding == DiagnosedPattern(
        "many errors, little help-seeking",
        "The agents think that they know the syntax of `shell.list`: examples of it in the prompt or the tool's "
        "description may be wrong or missing.",
        "error_rate 0.42 (error_count 5 of 12 commands), help_invocations 0",
    )
    assert list(asdict(finding)) == ["pattern", "likely_cause", "evidence"]


def test_retries_are_listed_per_tool_worst_first() -> None:
    tools = {"d": 3, "b": 4, "c": 4, "a": 3, "fine": 1}

    findings = diagnose(measured(*(e for tool, times in tools.items() for e in calls(2, tool) * times)))

    assert [f.evidence for f in findings if f.pattern == RETRIES] == [
        "`shell.b`: retry_count 6, retry_rate 0.75 (of its 8 commands 2 were unique_commands)",
        "`shell.c`: retry_count 6, retry_rate 0.75 (of its 8 commands 2 were unique_commands)",
        "`shell.a`: retry_count 4, retry_rate 0.67 (of its 6 commands 2 were unique_commands)",
    ]


def test_subcommands_are_named_in_place_of_tools() -> None:
    events = [
        event("llm_tool_call", tool=ToolCall("shell", "run", f"my-tool {what}", is_error=what == "get"))
        for what in ["get"] * 5 + ["list"] * 3
    ]

    findings = diagnose(measured(*events, rules=CommandRules(r"my-tool (\S+)")))

    causes = {f.pattern: f.likely_cause for f in findings}
    assert [p for p, cause in causes.items() if "`get`" in cause] == [NO_HELP, RETRIES, REPEATING]


@given(st.text(min_size=1, max_size=300))
def test_sentences_stay_readable_for_any_tool_name(name: str) -> None:
    findings = diagnose(measured(*calls(6, name, distinct=False, failed=6)))

    assert [f.pattern for f in findings] == [NO_HELP, RETRIES, REPEATING]
    shortest = min(len(f.likely_cause) for f in diagnose(measured(*calls(6, "", distinct=False, failed=6))))
    for finding in findings:
        assert finding.likely_cause.isprintable()
        assert finding.evidence.isprintable()
        assert len(finding.likely_cause) <= shortest + 100 + LONGEST_SHOWN_NAME
    assert LONGEST_SHOWN_NAME == 80


def test_long_name_is_cut_in_sentences() -> None:
    [cause, *_] = (f.likely_cause for f in diagnose(measured(*calls(6, "n" * 300, failed=6))))

    assert [len(name) for name in re.findall(r"`([^`]*)`", cause)] == [80]


def test_braces_in_a_name_are_text() -> None:
    [finding] = diagnose(measured(*calls(6, "{name} {0.x}", failed=6)))

    assert "`shell.{name} {0.x}`" in finding.likely_cause


def test_page_lists_the_causes_of_all_rules() -> None:
    table = PAGE.split("## Diagnosis")[1]
    rows = re.findall(r"^\| (.+?) \| .+? \| (.+?) \|$", table, re.MULTILINE)

    assert rows == [("pattern", "likely cause"), *CAUSES.items()]
    assert f"fewer than {diagnosis.MIN_COMMANDS} commands" in table


def test_page_lists_every_metric() -> None:
    keys = re.findall(r"^\| `(\w+)` \|", PAGE.split("## The numbers")[1], re.MULTILINE)

    assert keys == list(measured().document())

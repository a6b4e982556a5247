"""Rows of TARSy become a timeline; an unreadable value is left out or missing, and reading goes on."""

import json
from typing import Any

from tarsy_scoring.tarsy.rows import assemble
from tarsy_scoring.tarsy.timeline_api import Row
from tarsy_scoring.timeline.model import Timeline, ToolCall

SESSION = Row(session_id="one", status="completed", alert_data="alert", chain_id="k")
STAGE = Row(stage_id="s", stage_name="look", stage_index=1, stage_type="investigation", status="completed")
AGENT = Row(execution_id="x", stage_id="s", agent_name="lead", agent_index=1, status="completed")


def call_row(number: int = 1, tool: str = "get", **changes: object) -> Row:
    metadata = {"server_name": "k", "tool_name": tool}
    row = Row(event_id=f"e{number}", sequence_number=number, execution_id="x", stage_id="s", metadata=metadata)
    return Row(row | {"event_type": "llm_tool_call", "status": "completed", "content": "ok"} | changes)


RECORD = Row(execution_id="x", interaction_type="tool_call", server_name="k", tool_name="get")


def timeline(labels: object, metadata: object, tools: object) -> Timeline:
    """A timeline with one call of one agent."""
    listed = Row(execution_id="x", interaction_type="tool_list", server_name="k", available_tools=tools)
    return assemble(
        Row(SESSION | {"labels": labels}), [STAGE], [AGENT], [call_row(event_id="e", metadata=metadata)], [listed], []
    )


def test_tokens_are_the_sums_over_all_calls() -> None:
    """A sum is unknown where one call lacks its number, or no call is recorded."""
    other = Row(AGENT | {"execution_id": "y"})
    calls = [Row(execution_id="x", input_tokens=1000, output_tokens=80), Row(execution_id="x", input_tokens=7)]

    lead, silent = assemble(SESSION, [STAGE], [AGENT, other], [], [], calls).stages[0].executions

    assert (lead.input_tokens, lead.output_tokens) == (1007, None)
    assert (silent.input_tokens, silent.output_tokens) == (None, None)


def test_tools_have_the_parameters_that_are_recorded() -> None:
    """As JSON where they are no text; what is no text, object or list is left out."""
    given = ({"pod": "string"}, ["pod"], "pod, a name", 7, None, {})
    tools = [{"name": "get", "description": f"reads {n}", "parameters": p} for n, p in enumerate(given)]

    listed = timeline(None, {}, json.dumps(tools)).available_tools

    assert [t.parameters for t in listed] == ['{"pod": "string"}', '["pod"]', "pod, a name", "", "", ""]


def test_an_unreadable_call_is_missing_in_shown_stages_alone() -> None:
    call = call_row(metadata="[" * 3000)
    hidden = Row(STAGE | {"stage_type": "chat"})

    shown = assemble(SESSION, [STAGE], [AGENT], [call], [RECORD], [])

    assert shown.evidence.missing == ("stage 1 (look), lead: call e1 could not be read",)
    [event] = shown.stages[0].executions[0].events
    assert (event.tool, event.content) == (ToolCall("", "(unnamed tool)", ""), "ok")
    assert assemble(SESSION, [hidden], [AGENT], [call], [], []).evidence.missing == ()


def test_declared_agents_events_and_calls_that_are_absent_are_missing() -> None:
    stage = Row(STAGE | {"expected_agent_count": 3})
    cut = call_row(event_type="thinking", status="streaming")

    evidence = assemble(SESSION, [stage], [AGENT], [cut], [RECORD], []).evidence

    assert evidence.missing == (
        "stage 1 (look): declares 3 agents, 1 could be read",
        "stage 1 (look), lead: thinking e1 was not written to its end",
        "stage 1 (look), lead: 1 recorded tool calls have no event",
    )


def test_an_event_without_an_execution_is_kept_and_counts_as_no_agent() -> None:
    loose = call_row(2, event_type="user_question", execution_id=None)
    stage = Row(STAGE | {"expected_agent_count": 1})

    read = assemble(SESSION, [stage], [AGENT], [call_row(), loose], [], [])

    assert [e.event_id for x in read.stages[0].executions for e in x.events] == ["e1", "e2"]
    assert read.stages[0].executions[-1].input_tokens == 0
    assert read.evidence.missing == ()


def test_values_from_the_api_may_be_too_deep_to_serialise() -> None:
    """They are left out or missing, as the same values in rows are."""
    deep: list[Any] = []
    for _ in range(3000):
        deep = [deep]

    read = timeline(labels={"a": deep}, metadata={"tool_name": "get", "arguments": deep}, tools=[{"name": "t"}, deep])

    assert read.labels == {}
    assert read.evidence.missing == ("stage 1 (look), lead: call e could not be read",)
    assert [tool.tool_name for tool in read.available_tools] == ["t"]

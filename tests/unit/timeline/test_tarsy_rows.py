"""Rows of TARSy with something in them that nobody can read: it is left out, or missing, and never ends the reading."""

from typing import Any

import pytest

from tarsy_scoring.tarsy.rows import UnreadableJson, assemble, read_json
from tarsy_scoring.tarsy.timeline_api import Row
from tarsy_scoring.timeline.model import Timeline


def timeline(labels: object, metadata: object, tools: object) -> Timeline:
    """One call of one agent."""
    session = Row(session_id="one", status="completed", alert_data="alert", chain_id="k", labels=labels)
    stage = Row(stage_id="s", stage_name="look", stage_index=1, stage_type="investigation", status="completed")
    agent = Row(execution_id="x", stage_id="s", agent_name="lead", agent_index=1, status="completed")
    said = {"event_type": "llm_tool_call", "status": "completed", "content": "ok", "metadata": metadata}
    call = Row(execution_id="x", event_id="e", sequence_number=1, **said)
    listed = Row(execution_id="x", interaction_type="tool_list", server_name="k", available_tools=tools)
    return assemble(session, [stage], [agent], [call], [listed], [])


def test_no_depth_ends_the_reading() -> None:
    """How much Python reads depends on who asks, and ends somewhere near a thousand: no depth is special."""
    endings = set()
    for depth in range(800, 1050):
        deep = "[" * depth + "]" * depth
        call = f'{{"tool_name": "get", "arguments": {deep}}}'
        read = timeline(labels=f'{{"a": {deep}}}', metadata=call, tools=f'[{{"name": "t"}}, {deep}]')
        [event] = read.stages[0].executions[0].events
        assert event.tool is not None
        is_read = event.tool.arguments == deep
        assert (event.tool.tool_name == "get", read.evidence.missing == ()) == (is_read, is_read), depth
        assert read.labels in ({"a": deep}, {}), depth
        endings.add((is_read, bool(read.labels), bool(read.available_tools)))
    assert {(True, True, True), (False, False, False)} <= endings, "both sides of every limit were seen"


def test_what_the_api_gave_may_be_too_deep_to_be_written() -> None:
    """It is no text any more; the same is left out, and the same is missing."""
    deep: list[Any] = []
    for _ in range(3000):
        deep = [deep]

    read = timeline(labels={"a": deep}, metadata={"tool_name": "get", "arguments": deep}, tools=[{"name": "t"}, deep])

    assert read.labels == {}
    assert read.evidence.missing == ("stage 1 (look), lead: call e could not be read",)
    assert [tool.tool_name for tool in read.available_tools] == ["t"]


@pytest.mark.parametrize(
    "text", ["watch", "{watch}", "9" * 5000, "[" * 5000 + "]" * 5000], ids=["bare", "array", "digits", "deep"]
)
def test_what_is_no_json_says_so(text: str) -> None:
    """Without quoting it."""
    with pytest.raises(UnreadableJson) as told:
        read_json(text)

    assert text not in str(told.value)
    assert told.value.__cause__ is None


def test_json_that_was_read_before_stays_as_it_is() -> None:
    """The API gives objects, and a database text."""
    assert read_json({"a": 1}) == read_json('{"a": 1}') == {"a": 1}
    assert read_json(None) is None

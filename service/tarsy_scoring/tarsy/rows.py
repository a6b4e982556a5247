"""
Assembles a timeline from rows of TARSy, for the sources `tarsy-db` and `tarsy-api`.

A row is any mapping from TARSy's column names to values; a column that a deployment lacks is null.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Container, Iterable
from dataclasses import replace
from typing import Any

import structlog

from tarsy_scoring.timeline.evidence import Loss, take_stock
from tarsy_scoring.timeline.model import SHOWN_STAGE_TYPES, AvailableTool, Event, Execution, Stage, Timeline
from tarsy_scoring.timeline.parsing import label_map, model_names, name_or_none, text_or_none, tool_call

log = structlog.get_logger()


class UnreadableJson(ValueError):
    """The value is not JSON, or Python cannot read it: nested too deeply, or a number with thousands of
    digits.
    """


def read_json(value: object) -> Any:
    """
    The value of a JSON column; `jsonb` arrives as text, the API gives values.

    Raises:
        UnreadableJson: The text cannot be read. The error does not quote it.
    """
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise UnreadableJson(type(error).__name__) from None


def read_labels(value: object) -> dict[str, str]:
    """
    The labels in a JSON column.

    Raises:
        UnreadableJson: The labels cannot be read.
    """
    try:
        return label_map(read_json(value))
    except RecursionError:  # values from the API may be nested too deeply to be serialised
        raise UnreadableJson("RecursionError") from None


def assemble(
    session: Any,
    stages: Iterable[Any],
    agent_executions: Iterable[Any],
    timeline_events: Iterable[Any],
    mcp_interactions: Iterable[Any],
    llm_interactions: Iterable[Any],
) -> Timeline:
    """
    One session from its rows.

    Unreadable labels and tool lists are left out with a warning. A tool call whose metadata cannot be read is
    missing evidence.

    Args:
        session: The row of `alert_sessions`.
        stages: Ordered by index.
        agent_executions: Ordered by index.
        timeline_events: Ordered by sequence within their execution.
        mcp_interactions: Tool calls and tool lists; calls in the order in which they were recorded.
        llm_interactions: Tokens per call of a model.
    """
    interactions = list(mcp_interactions)
    durations_ms = _durations_ms(interactions)
    events_of: dict[str, list[Event]] = defaultdict(list)
    loose_of: dict[str, list[Event]] = defaultdict(list)
    unread_calls: set[str] = set()
    for row in timeline_events:
        if row["execution_id"] is not None:
            events_of[row["execution_id"]].append(_event(row, unread_calls))
        elif row["stage_id"] is not None:
            loose_of[row["stage_id"]].append(_event(row, unread_calls))
    tokens = _tokens(llm_interactions)
    executions_of: dict[str, list[Execution]] = defaultdict(list)
    for row in agent_executions:
        events = _timed(events_of[row["execution_id"]], durations_ms[row["execution_id"]])
        executions_of[row["stage_id"]].append(_execution(row, events, tokens[row["execution_id"]]))
    found = tuple(_stage(row, executions_of[row["stage_id"]], loose_of[row["stage_id"]]) for row in stages)
    calls: dict[str, int] = defaultdict(int)
    for row in interactions:
        calls[row["execution_id"]] += row["interaction_type"] == "tool_call"
    final_analysis = text_or_none(session["final_analysis"])
    return Timeline(
        session_id=session["session_id"],
        status=session["status"],
        chain_id=name_or_none(session["chain_id"]),
        alert_type=name_or_none(session["alert_type"]),
        alert_data=session["alert_data"],
        final_analysis=final_analysis,
        executive_summary=text_or_none(session["executive_summary"]),
        stages=found,
        available_tools=_available_tools(interactions, found),
        runbook=text_or_none(session["runbook_url"]),  # TARSy stores the address only; it is never fetched
        labels=_labels(session),
        created_at=session["created_at"],
        completed_at=session["completed_at"],
        error_message=text_or_none(session["error_message"]),
        evidence=take_stock(
            found, final_analysis, losses=_losses(found, unread_calls) if unread_calls else (), declared_calls=calls
        ),
        started_at=session["started_at"],
    )


def _stage(row: Any, executions: list[Execution], loose: list[Event]) -> Stage:
    if loose:  # events without an execution, such as a user's question, get an execution without a name and tokens
        own = Execution(f"{row['stage_id']}/stage", "", 0, row["status"], tuple(loose), input_tokens=0, output_tokens=0)
        executions = [*executions, own]
    return Stage(
        stage_id=row["stage_id"],
        stage_name=row["stage_name"],
        stage_index=row["stage_index"],
        stage_type=row["stage_type"],
        status=row["status"],
        executions=tuple(executions),
        expected_agent_count=row["expected_agent_count"],
        referenced_stage_id=row["referenced_stage_id"],
        error_message=text_or_none(row["error_message"]),
    )


def _execution(row: Any, events: tuple[Event, ...], tokens: tuple[int | None, int | None]) -> Execution:
    return Execution(
        execution_id=row["execution_id"],
        agent_name=row["agent_name"],
        agent_index=row["agent_index"],
        status=row["status"],
        events=events,
        parent_execution_id=row["parent_execution_id"],
        task=text_or_none(row["task"]),
        error_message=text_or_none(row["error_message"]),
        model_names=model_names(row),
        input_tokens=tokens[0],
        output_tokens=tokens[1],
    )


def _labels(session: Any) -> dict[str, str]:
    try:
        return read_labels(session["labels"])
    except UnreadableJson:
        log.warning("timeline.labels_left_out", session_id=session["session_id"], reason="unreadable JSON")
        return {}


def _losses(stages: Iterable[Stage], unread_calls: Container[str]) -> list[Loss]:
    """The tool calls in shown stages whose metadata could not be read."""
    return [
        Loss("events", f"stage {s.stage_index} ({s.stage_name}), {x.agent_name}: call {e.event_id} could not be read")
        for s in stages
        if s.stage_type in SHOWN_STAGE_TYPES
        for x in s.executions
        for e in x.events
        if e.event_id in unread_calls
    ]


def _event(row: Any, unread_calls: set[str]) -> Event:
    """An event; the id of a tool call whose metadata cannot be read is added to `unread_calls`."""
    is_call = row["event_type"] == "llm_tool_call"
    try:
        metadata = read_json(row["metadata"])
        metadata = metadata if isinstance(metadata, dict) else {}
        tool = tool_call(metadata) if is_call else None
    except (UnreadableJson, RecursionError):  # arguments from the API may be nested too deeply to be serialised
        metadata, tool = {}, tool_call({}) if is_call else None
        if is_call:
            unread_calls.add(row["event_id"])
    return Event(
        event_id=row["event_id"],
        sequence_number=row["sequence_number"],
        event_type=row["event_type"],
        status=row["status"],
        content=row["content"],
        tool=tool,
        created_at=row["created_at"],
        skill_name=text_or_none(metadata.get("skill_name")),
    )


_Durations = dict[tuple[str, str], list[int | None]]  # durations of one execution's calls, by server and tool


def _durations_ms(interactions: Iterable[Any]) -> defaultdict[str, _Durations]:
    """By execution: the durations of its calls, in the order in which they were recorded."""
    found: defaultdict[str, _Durations] = defaultdict(dict)
    for row in interactions:
        if row["interaction_type"] == "tool_call":
            tool = tool_call(row)
            of_tool = found[row["execution_id"]].setdefault((tool.server_name, tool.tool_name), [])
            of_tool.append(row["duration_ms"])
    return found


def _timed(events: list[Event], durations_ms: _Durations) -> tuple[Event, ...]:
    """
    The events, with the duration of each tool call.

    TARSy stores no key that joins an event with the record of its call, so the n-th call of a tool takes the
    duration of the n-th record of that tool. Concurrent calls may be swapped; their sum stays right. Where
    the numbers of calls and records differ, the durations stay unknown.
    """
    counts = Counter((e.tool.server_name, e.tool.tool_name) for e in events if e.tool)
    ahead = {tool: iter(found) for tool, found in durations_ms.items() if len(found) == counts[tool]}
    return tuple(
        replace(e, tool=replace(e.tool, duration_ms=next(ahead[tool])))
        if e.tool and (tool := (e.tool.server_name, e.tool.tool_name)) in ahead
        else e
        for e in events
    )


def _tokens(llm_interactions: Iterable[Any]) -> defaultdict[str, tuple[int | None, int | None]]:
    """Input and output tokens by execution; None where no call is recorded, or a call lacks its number."""
    found: defaultdict[str, tuple[int | None, int | None]] = defaultdict(lambda: (None, None))
    for row in llm_interactions:
        read, written = found.get(row["execution_id"], (0, 0))
        found[row["execution_id"]] = _plus(read, row["input_tokens"]), _plus(written, row["output_tokens"])
    return found


def _plus(total: int | None, count: int | None) -> int | None:
    return None if total is None or count is None else total + count


def _available_tools(interactions: Iterable[Any], stages: tuple[Stage, ...]) -> tuple[AvailableTool, ...]:
    """The tools of the agents in shown stages, each once: replicas of an agent list the same tools again."""
    agents = {e.execution_id: e.agent_name for s in stages if s.stage_type in SHOWN_STAGE_TYPES for e in s.executions}
    tools = []
    for row in interactions:
        if row["interaction_type"] != "tool_list" or row["execution_id"] not in agents:
            continue
        try:
            listed = read_json(row["available_tools"])
        except UnreadableJson:
            log.warning("timeline.tools_left_out", execution_id=row["execution_id"], reason="unreadable JSON")
            continue
        for tool in listed if isinstance(listed, list) else ():
            if isinstance(tool, dict) and (name := text_or_none(tool.get("name"))):
                description = text_or_none(tool.get("description")) or ""
                tools.append(AvailableTool(row["server_name"], name, description, agents[row["execution_id"]]))
    return tuple(dict.fromkeys(tools))

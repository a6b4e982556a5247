"""
Assembles a timeline from rows of TARSy, for the sources `tarsy-db` and `tarsy-api`.

A row is any mapping from TARSy's column names to values; a column that a deployment lacks is null.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import structlog

from tarsy_scoring.timeline.evidence import take_stock
from tarsy_scoring.timeline.model import SHOWN_STAGE_TYPES, AvailableTool, Event, Execution, Stage, Timeline
from tarsy_scoring.timeline.parsing import (
    event_of,
    execution_of,
    label_map,
    stage_of,
    text_or_none,
    timeline_of,
    tool_call,
)

log = structlog.get_logger()


# What `read_json` and `label_map` raise: not JSON, a number with thousands of digits, or a value nested too
# deeply to be read or, from the API, to be serialised.
UNREADABLE = (ValueError, RecursionError)


def read_json(value: object) -> Any:
    """Decode a JSON column: `jsonb` arrives as text, the API gives values. Raises one of `UNREADABLE`."""
    return json.loads(value) if isinstance(value, str) else value


def assemble(
    session: Any,
    stages: Iterable[Any],
    agent_executions: Iterable[Any],
    timeline_events: Iterable[Any],
    mcp_interactions: Iterable[Any],
    llm_interactions: Iterable[Any],
) -> Timeline:
    """
    Assemble the timeline of one session from its rows.

    Unreadable labels and tool lists are left out with a warning. A tool call whose metadata cannot be read is
    missing evidence.

    Args:
        session: The row of `alert_sessions`.
        stages: Ordered by index.
        agent_executions: Ordered by index.
        timeline_events: Ordered by sequence within their execution.
        mcp_interactions: Tool calls and tool lists; calls in the order in which they were recorded.
        llm_interactions: Calls of models, with their tokens.
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
    models_calls: dict[str, list[Any]] = defaultdict(list)
    for row in llm_interactions:
        models_calls[row["execution_id"]].append(row)
    executions_of: dict[str, list[Execution]] = defaultdict(list)
    for row in agent_executions:
        events = _timed(events_of[row["execution_id"]], durations_ms[row["execution_id"]])
        made = models_calls[row["execution_id"]]
        tokens = _total([c["input_tokens"] for c in made]), _total([c["output_tokens"] for c in made])
        executions_of[row["stage_id"]].append(execution_of(row, events, tokens))
    found = tuple(_stage(row, executions_of[row["stage_id"]], loose_of[row["stage_id"]]) for row in stages)
    calls = Counter(row["execution_id"] for row in interactions if row["interaction_type"] == "tool_call")
    evidence = take_stock(
        found,
        text_or_none(session["final_analysis"]),
        unread_calls=unread_calls,
        declared_calls=calls,
    )
    return timeline_of(session, found, _available_tools(interactions, found), _labels(session), evidence)


def _stage(row: Any, executions: list[Execution], loose: list[Event]) -> Stage:
    stage = stage_of(row, executions)
    if not loose:
        return stage
    # Events without an execution, such as a user's question, get an execution without a name and tokens.
    own = Execution(f"{stage.stage_id}/stage", "", 0, stage.status, tuple(loose), input_tokens=0, output_tokens=0)
    return replace(stage, executions=(*executions, own))


def _labels(session: Any) -> dict[str, str]:
    try:
        return label_map(read_json(session["labels"]))
    except UNREADABLE:
        log.warning("timeline.labels_left_out", session_id=session["session_id"], reason="unreadable JSON")
        return {}


def _event(row: Any, unread_calls: set[str]) -> Event:
    """An event; the id of a tool call whose metadata cannot be read is added to `unread_calls`."""
    is_call = row["event_type"] == "llm_tool_call"
    try:
        metadata = read_json(row["metadata"])
        metadata = metadata if isinstance(metadata, dict) else {}
        tool = tool_call(metadata) if is_call else None
    except UNREADABLE:
        metadata, tool = {}, tool_call({}) if is_call else None
        if is_call:
            unread_calls.add(row["event_id"])
    return event_of(row, tool, metadata.get("skill_name"))


_Durations = dict[tuple[str, str], list[int | None]]  # durations of one execution's calls, by server and tool


def _durations_ms(interactions: Iterable[Any]) -> defaultdict[str, _Durations]:
    """The durations of each execution's calls, in the order in which they were recorded."""
    found: defaultdict[str, _Durations] = defaultdict(dict)
    for row in interactions:
        if row["interaction_type"] == "tool_call":
            tool = tool_call(row)
            of_tool = found[row["execution_id"]].setdefault((tool.server_name, tool.tool_name), [])
            of_tool.append(tool.duration_ms)
    return found


def _timed(events: list[Event], durations_ms: _Durations) -> tuple[Event, ...]:
    """
    Add to the events the duration of each tool call.

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


def _total(counts: list[int | None]) -> int | None:
    """The sum; None without counts, or where one is unknown."""
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _available_tools(interactions: Iterable[Any], stages: tuple[Stage, ...]) -> tuple[AvailableTool, ...]:
    """The tools of the agents in shown stages, each once: replicas of an agent list the same tools again."""
    agents = {e.execution_id: e.agent_name for s in stages if s.stage_type in SHOWN_STAGE_TYPES for e in s.executions}
    tools = []
    for row in interactions:
        if row["interaction_type"] != "tool_list" or row["execution_id"] not in agents:
            continue
        try:
            listed = read_json(row["available_tools"])
        except UNREADABLE:
            log.warning("timeline.tools_left_out", execution_id=row["execution_id"], reason="unreadable JSON")
            continue
        for tool in listed if isinstance(listed, list) else ():
            if isinstance(tool, dict) and (name := text_or_none(tool.get("name"))):
                description = text_or_none(tool.get("description")) or ""
                tools.append(AvailableTool(row["server_name"], name, description, agents[row["execution_id"]]))
    return tuple(dict.fromkeys(tools))

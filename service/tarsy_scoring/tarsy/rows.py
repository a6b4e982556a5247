"""
Assembles a timeline from TARSy's rows, for the sources `tarsy-db` and `tarsy-api`.

A row is any mapping from TARSy's column names to values; a column that a deployment lacks is null.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import structlog

from tarsy_scoring.timeline import model, parsing
from tarsy_scoring.timeline.evidence import take_stock

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
) -> model.Timeline:
    """
    Assemble one session's timeline from rows.

    Unreadable labels and tool lists are left out with a warning. A tool call whose metadata cannot be read is
    missing evidence.

    Args:
        session: The row from `alert_sessions`.
        stages: Ordered by index.
        agent_executions: Ordered by index.
        timeline_events: Ordered by sequence within their execution.
        mcp_interactions: Tool calls and tool lists; calls as they were recorded.
        llm_interactions: Model calls with their tokens.
    """
    interactions = list(mcp_interactions)
    events_of: dict[str, list[model.Event]] = defaultdict(list)
    loose_of: dict[str, list[model.Event]] = defaultdict(list)
    unread_calls: set[str] = set()
    for row in timeline_events:
        event = _event(row, unread_calls)
        if row["execution_id"] is not None:
            events_of[row["execution_id"]].append(event)
        elif row["stage_id"] is not None:
            loose_of[row["stage_id"]].append(event)
    executions_of = _executions_by_stage(agent_executions, llm_interactions, events_of)
    found = tuple(_stage(row, executions_of[row["stage_id"]], loose_of[row["stage_id"]]) for row in stages)
    calls = Counter(row["execution_id"] for row in interactions if row["interaction_type"] == "tool_call")
    evidence = take_stock(
        found,
        parsing.text_or_none(session["final_analysis"]),
        unread_calls=unread_calls,
        declared_calls=calls,
    )
    return parsing.timeline_of(
        session, found, _available_tools(interactions, found), _labels(session), evidence
    )


def _stage(row: Any, executions: list[model.Execution], loose: list[model.Event]) -> model.Stage:
    stage = parsing.stage_of(row, executions)
    if not loose:
        return stage
    # Events without an execution, such as a user's question, get an execution without a name and tokens.
    own = model.Execution(
        f"{stage.stage_id}/stage", "", 0, stage.status, tuple(loose), input_tokens=0, output_tokens=0
    )
    return replace(stage, executions=(*executions, own))


def _labels(session: Any) -> dict[str, str]:
    try:
        return parsing.label_map(read_json(session["labels"]), session["session_id"])
    except UNREADABLE:
        log.warning("timeline.labels_left_out", session_id=session["session_id"], reason="unreadable JSON")
        return {}


def _event(row: Any, unread_calls: set[str]) -> model.Event:
    """Build an event. If a tool call has unreadable metadata, the id is added to `unread_calls`."""
    is_call = row["event_type"] == "llm_tool_call"
    try:
        read = read_json(row["metadata"])
        metadata = read if isinstance(read, dict) else {}
        return parsing.event_of(
            row, parsing.tool_call(metadata) if is_call else None, metadata.get("skill_name")
        )
    except UNREADABLE:
        if is_call:
            unread_calls.add(row["event_id"])
        return parsing.event_of(row, parsing.tool_call({}) if is_call else None, None)


def _executions_by_stage(
    rows: Iterable[Any], model_calls: Iterable[Any], events_of: Mapping[str, list[model.Event]]
) -> dict[str, list[model.Execution]]:
    calls_of: dict[str, list[Any]] = defaultdict(list)
    for row in model_calls:
        calls_of[row["execution_id"]].append(row)
    executions_of: dict[str, list[model.Execution]] = defaultdict(list)
    for row in rows:
        made = calls_of[row["execution_id"]]
        tokens = (
            model.sum_if_known(c["input_tokens"] for c in made),
            model.sum_if_known(c["output_tokens"] for c in made),
        )
        executions_of[row["stage_id"]].append(
            parsing.execution_of(row, events_of[row["execution_id"]], tokens)
        )
    return executions_of


def _available_tools(
    interactions: Iterable[Any], stages: tuple[model.Stage, ...]
) -> tuple[model.AvailableTool, ...]:
    """The tools that agents in shown stages had, each once: replicas list the same tools again."""
    shown = (s for s in stages if s.stage_type in model.SHOWN_STAGE_TYPES)
    agents = {e.execution_id: e.agent_name for s in shown for e in s.executions}
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
            if isinstance(tool, dict) and (name := parsing.text_or_none(tool.get("name"))):
                tools.append(
                    parsing.available_tool(tool, name, row["server_name"], agents[row["execution_id"]])
                )
    return tuple(dict.fromkeys(tools))

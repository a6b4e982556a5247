"""
Converts a session's loosely typed JSON or rows into `model` records; shared by the sources.

All names and texts come out storable, because they end up in columns, keys and messages. A stage, execution
or event without an id or an index gets the place in the session: `where` or `position`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tarsy_scoring.events import bounded_labels
from tarsy_scoring.postgres.moments import moment
from tarsy_scoring.timeline import model
from tarsy_scoring.timeline.text import storable

LONGEST_NAME = 255


def text_or_none(value: object) -> str | None:
    """The string made storable; None for an empty string or another type."""
    if not isinstance(value, str):
        return None
    # This is called some 500 times for a session, and calling `storable` takes as long as the rest.
    return (value if value.isascii() and "\0" not in value else storable(value)) or None


def name_or_none(value: object) -> str | None:
    """A storable name, cut to 255 characters so that an index can hold it; None for an empty one or another
    type.
    """
    name = text_or_none(value)
    return name[:LONGEST_NAME] if name else None


def found_session(row: Any, session_id: str) -> model.FoundSession:
    """A terminal session of TARSy's, from its row in the database or the API."""
    ended_at = moment(row["completed_at"])
    return model.FoundSession(session_id, name_or_none(row["chain_id"]), row["status"], ended_at)


def whole_number(value: object) -> int | None:
    """The integer; None for another type, booleans included."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def measured(value: object) -> int | None:
    """A number of tokens; None for a negative number or another type."""
    number = whole_number(value)
    return number if number is not None and number >= 0 else None


def _index(value: object, position: int) -> int:
    number = whole_number(value)
    return position if number is None else number


def label_map(value: object, session_id: str | None = None) -> dict[str, str]:
    """Labels as a map from string to string, see `bounded_labels`; each label in a list maps to `true`."""
    texts: dict[str, str] = {}
    if isinstance(value, Mapping):
        texts = {str(k): v if isinstance(v, str) else json.dumps(v) for k, v in value.items()}
    if isinstance(value, list):
        texts = {label: "true" for label in value if isinstance(label, str)}
    return {storable(k): storable(v) for k, v in bounded_labels(texts, session_id).items()}


_MODEL_KEYS = ("model_name", "llm_provider", "original_model_name", "original_llm_provider")


def model_names(execution: Mapping[str, Any]) -> tuple[str, ...]:
    """Every model and provider name recorded for an execution, each once."""
    return tuple(dict.fromkeys(name for key in _MODEL_KEYS if (name := text_or_none(execution.get(key)))))


def available_tool(
    raw: Mapping[str, Any], name: str, server_name: str, agent_name: str
) -> model.AvailableTool:
    """Build a tool from an entry in a list; parameters that are not text become JSON."""
    parameters = raw.get("parameters")
    if isinstance(parameters, Mapping | list):
        parameters = json.dumps(parameters, ensure_ascii=False) if parameters else None
    return model.AvailableTool(
        server_name=server_name,
        tool_name=name,
        description=text_or_none(raw.get("description")) or "",
        agent_name=agent_name,
        parameters=text_or_none(parameters) or "",
    )


def tool_call(metadata: Mapping[str, Any]) -> model.ToolCall:
    """Build the call that a tool event's metadata describes; a recorded argument string stays unchanged."""
    arguments = metadata.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    is_error = metadata.get("is_error")
    return model.ToolCall(
        server_name=text_or_none(metadata.get("server_name")) or "",
        tool_name=text_or_none(metadata.get("tool_name")) or "(unnamed tool)",
        arguments=arguments or "",
        is_error=is_error if isinstance(is_error, bool) else None,
        exit_code=whole_number(metadata.get("exit_code")),
    )


def event_of(
    raw: Mapping[str, Any],
    tool: model.ToolCall | None,
    skill_name: object,
    where: str = "",
    position: int = 0,
) -> model.Event:
    """Build an event from a mapping whose `event_type` is text."""
    return model.Event(
        event_id=text_or_none(raw.get("event_id")) or where,
        sequence_number=_index(raw.get("sequence_number"), position),
        event_type=storable(raw["event_type"]),
        status=text_or_none(raw.get("status")) or "completed",
        content=text_or_none(raw.get("content")) or "",
        tool=tool,
        created_at=moment(raw.get("created_at")),
        skill_name=text_or_none(skill_name),
    )


def execution_of(
    raw: Mapping[str, Any],
    events: Sequence[model.Event],
    tokens: tuple[object, object],
    where: str = "",
    position: int = 0,
) -> model.Execution:
    """Build an execution; `tokens` are the recorded sums for input and output."""
    return model.Execution(
        execution_id=text_or_none(raw.get("execution_id")) or where,
        agent_name=text_or_none(raw.get("agent_name")) or "(unnamed)",
        agent_index=_index(raw.get("agent_index"), position),
        status=text_or_none(raw.get("status")) or "unknown",
        events=tuple(events),
        parent_execution_id=text_or_none(raw.get("parent_execution_id")),
        task=text_or_none(raw.get("task")),
        error_message=text_or_none(raw.get("error_message")),
        model_names=model_names(raw),
        input_tokens=measured(tokens[0]),
        output_tokens=measured(tokens[1]),
    )


def stage_of(
    raw: Mapping[str, Any], executions: Sequence[model.Execution], where: str = "", position: int = 0
) -> model.Stage:
    """
    Build a stage from a mapping whose `stage_type` is text.

    A stage without a declared number of agents declares the agents that could be read.
    """
    stage_type = storable(raw["stage_type"])
    declared = whole_number(raw.get("expected_agent_count"))
    if declared is None:
        declared = sum(e.parent_execution_id is None and e.agent_name != "" for e in executions)
    return model.Stage(
        stage_id=text_or_none(raw.get("stage_id")) or where,
        stage_name=text_or_none(raw.get("stage_name")) or stage_type,
        stage_index=_index(raw.get("stage_index"), position),
        stage_type=stage_type,
        status=text_or_none(raw.get("status")) or "unknown",
        executions=tuple(executions),
        expected_agent_count=declared,
        error_message=text_or_none(raw.get("error_message")),
    )


def timeline_of(
    session: Mapping[str, Any],
    stages: tuple[model.Stage, ...],
    tools: tuple[model.AvailableTool, ...],
    labels: dict[str, str],
    evidence: model.Evidence,
) -> model.Timeline:
    """Build the timeline of a session whose `session_id`, `status` and `alert_data` are text."""
    return model.Timeline(
        session_id=session["session_id"],
        status=session["status"],
        chain_id=name_or_none(session.get("chain_id")),
        alert_type=name_or_none(session.get("alert_type")),
        alert_data=storable(session["alert_data"]),
        final_analysis=text_or_none(session.get("final_analysis")),
        executive_summary=text_or_none(session.get("executive_summary")),
        stages=stages,
        available_tools=tools,
        # TARSy stores the address only; it is never fetched.
        runbook=text_or_none(session.get("runbook")) or text_or_none(session.get("runbook_url")),
        labels=labels,
        created_at=moment(session.get("created_at"), "created_at of a session"),
        completed_at=moment(session.get("completed_at"), "completed_at of a session"),
        error_message=text_or_none(session.get("error_message")),
        evidence=evidence,
        started_at=moment(session.get("started_at"), "started_at of a session"),
        has_real_times=session.get("timestamps_synthetic") is not True,
    )

"""Timelines for these tests: short ones made by hand, and the recorded sessions where they are there."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tarsy_scoring.timeline.model import Event, Execution, Stage, Timeline, ToolCall
from tarsy_scoring.timeline.render.context import FittedContext

NONCE = "0123456789abcdef"
PLENTY = 10_000_000

RECORDED_DIR = Path(__file__).resolve().parents[3] / ".." / "shared" / "sessions"
RECORDED = sorted(RECORDED_DIR.glob("*.json"))


def event(kind: str, content: str = "", *, number: int = 1, **fields: Any) -> Event:
    fields = {"event_id": f"event-{kind}-{number}", "status": "completed"} | fields
    return Event(sequence_number=number, event_type=kind, content=content, **fields)


def call(result: str, *, number: int = 1, name: str = "get_pods", arguments: str = "{}", **fields: Any) -> Event:
    tool_fields = {k: fields.pop(k) for k in ("is_error", "exit_code") if k in fields}
    tool = ToolCall("kubectl", name, arguments, **tool_fields)
    return event("llm_tool_call", result, number=number, tool=tool, **fields)


def execution(*events: Event, name: str = "investigator", **fields: Any) -> Execution:
    fields = {"execution_id": f"execution-{name}", "agent_index": 1, "status": "completed"} | fields
    return Execution(agent_name=name, events=events, **fields)


def stage(*executions: Execution, name: str = "diagnosis", **fields: Any) -> Stage:
    fields = {
        "stage_id": f"stage-{name}",
        "stage_index": 1,
        "stage_type": "investigation",
        "status": "completed",
    } | fields
    return Stage(stage_name=name, executions=executions, **fields)


def timeline(*stages: Stage, **fields: Any) -> Timeline:
    base = Timeline(
        session_id="session-1",
        status="completed",
        chain_id="kubernetes",
        alert_type="pod-crash",
        alert_data="pod web-1 restarts",
        final_analysis=None,
        executive_summary=None,
        stages=stages,
    )
    return replace(base, **fields)


def of_events(*events: Event, **fields: Any) -> Timeline:
    return timeline(stage(execution(*events)), **fields)


def entry_text(context: FittedContext, entry: str) -> str | None:
    """An entry's text as the judge sees it, without the heading; None for an unknown id."""
    shown = context.entry(entry)
    return None if shown is None else shown.partition("\n")[2]

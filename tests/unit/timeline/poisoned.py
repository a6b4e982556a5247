"""A session that holds what PostgreSQL refuses, wherever a text may stand."""

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

POISON = "\0\ud800"
SURVIVES = "\ufffd"  # what is left of it


def poisoned(**changes: Any) -> dict[str, Any]:
    """A session that holds NUL and half a character wherever a text may stand."""
    p = POISON
    call = {
        "event_id": f"e1{p}",
        "sequence_number": 1,
        "event_type": "llm_tool_call",
        "status": f"streaming{p}",
        "content": f"result{p}",
        "metadata": {
            "server_name": f"server{p}",
            "tool_name": f"bash{p}",
            "arguments": json.dumps({"command": f"kubectl get{p}pods"}),
            "skill_name": f"skill{p}",
        },
    }
    unread = call | {"event_id": f"e2{p}", "content": None, "status": "completed"}
    raw_arguments = call["metadata"] | {"arguments": f"kubectl del{p}ete pod"}
    nul_alone = call["metadata"] | {"arguments": json.dumps({"command": "kubectl logs\0--all"})}
    spelled = call | {"event_id": f"e5{p}", "metadata": nul_alone}
    other = call | {"event_id": f"e3{p}", "event_type": "llm_tool_call", "metadata": raw_arguments}
    thought = {"event_id": f"e4{p}", "event_type": f"thought{p}", "status": "streaming", "content": f"hm{p}"}
    execution = {
        "execution_id": f"x1{p}",
        "parent_execution_id": f"nobody{p}",
        "agent_name": f"agent{p}",
        "status": f"failed{p}",
        "task": f"task{p}",
        "error_message": f"error{p}",
        "model_name": f"model{p}",
        "events": [call, unread, spelled, other, thought, *[call] * 6],
    }
    stage = {
        "stage_id": f"s1{p}",
        "stage_name": f"stage{p}",
        "stage_type": "investigation",
        "status": f"failed{p}",
        "error_message": f"error{p}",
        "referenced_stage_id": f"s0{p}",
        "expected_agent_count": 7,
        "executions": [execution],
    }
    hidden = {"stage_type": f"new{p}", "executions": []}
    return {
        "session_id": "one",
        "status": "completed",
        "alert_data": f"alert{p}",
        "alert_type": f"kind{p}",
        "chain_id": f"chain{p}",
        "final_analysis": f"analysis{p}",
        "executive_summary": f"summary{p}",
        "runbook": f"runbook{p}",
        "error_message": f"error{p}",
        "labels": {f"key{p}": f"value{p}"},
        "available_tools": [
            {"tool_name": f"t{p}", "server_name": f"s{p}", "description": f"d{p}", "agent_name": f"a{p}"},
        ],
        "stages": [stage, hidden],
    } | changes


def texts_of(value: object) -> Iterator[str]:
    """Every text in a record or JSON value, keys included, but for the arguments of tools."""
    if isinstance(value, str):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            if field.name != "arguments":
                yield from texts_of(getattr(value, field.name))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from texts_of(key)
            yield from texts_of(item)
    elif isinstance(value, list | tuple | frozenset):
        for item in value:
            yield from texts_of(item)

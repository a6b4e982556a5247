"""A session in the neutral JSON shape that uses all that TARSy can store: sub-agents, calls, tokens, tools."""

from typing import Any


def session(session_id: str = "one", **changes: Any) -> dict[str, Any]:
    def call(name: str, number: int, **metadata: Any) -> dict[str, Any]:
        return {
            "event_id": f"{session_id}-{name}-{number}",
            "sequence_number": number,
            "event_type": "llm_tool_call",
            "status": "completed",
            "content": f"result {number} of {name}",
            "created_at": f"2026-03-04T11:5{number}:00.123456Z",
            "metadata": {"server_name": "kubectl", "tool_name": "get", "arguments": "not json", "is_error": False}
            | metadata,
        }

    thinking = call("sub", 2) | {"event_type": "a_new_type", "content": "look", "metadata": None}
    lead = {
        "execution_id": f"{session_id}-lead",
        "agent_name": "lead",
        "agent_index": 1,
        "status": "completed",
        "llm_provider": "fast",
        "model_name": "Model-1",
        "input_tokens": 1200,
        "output_tokens": 80,
        "events": [call("lead", 1, duration_ms=40), call("lead", 2, duration_ms=50)],
    }
    sub = lead | {
        "execution_id": f"{session_id}-sub",
        "agent_name": "sub",
        "parent_execution_id": f"{session_id}-lead",
        "task": "look at logs",
        "input_tokens": None,
        "output_tokens": None,
        "events": [call("sub", 1), thinking],
    }
    stage = {
        "stage_id": f"{session_id}-stage",
        "stage_name": "diagnosis",
        "stage_index": 1,
        "stage_type": "investigation",
        "status": "completed",
        "executions": [lead, sub],
    }
    return {
        "session_id": session_id,
        "status": "completed",
        "alert_data": "alert",
        "alert_type": "pod-crash",
        "chain_id": "kubernetes",
        "created_at": "2026-03-04T11:50:00Z",
        "started_at": "2026-03-04T11:50:01Z",
        "completed_at": "2026-03-04T12:00:00Z",
        "final_analysis": "because",
        "executive_summary": "it is so",
        "labels": ["watch"],
        "runbook_url": "https://runbooks/web",
        "available_tools": [
            {"server_name": "kubectl", "tool_name": "get", "description": "reads"},
            {"server_name": "logs", "tool_name": "search", "description": ""},
        ],
        "stages": [stage],
    } | changes

"""
The documents of the API as models, for JSON Schema and OpenAPI. The service builds its answers from rows.

The fields of a score are declared in `queue/score_fields`, the shapes of its parts in `queue/score_parts`.
"""

from typing import Any

from pydantic import BaseModel, Field, create_model

from tarsy_scoring.queue.score_fields import SCORE_FIELDS
from tarsy_scoring.queue.score_parts import Part


class Fault(BaseModel):
    """One fault of a request and its place, without the value."""

    loc: list[str | int]
    msg: str


class ProblemDocument(BaseModel):
    """A refusal or failure in the shape of RFC 9457. Some kinds have more members."""

    type: str = Field(description="The kind of problem. Programs may branch on it.")
    title: str = Field(description="The kind in words.")
    status: int = Field(ge=400, le=599)
    detail: str = Field(description="What happened, why, and what would help.")
    instance: str = Field(description="This occurrence; ends in the request id, which the log has as well.")
    errors: list[Fault] | None = Field(None, description="Only with 422: the faults of the request.")


def _score_fields() -> dict[str, Any]:
    return {f.name: (f.type, ... if f.is_always_there else None) for f in SCORE_FIELDS if f.is_shown}


# The fields are known only when this module is loaded, so mypy cannot see them; nothing here reads one.
class ScoreDocument(create_model("_ScoreFields", __base__=Part, **_score_fields())):  # type: ignore[misc]
    """One scoring of one session, the same shape everywhere. A failure is never a number."""


EXAMPLE_PROBLEM = {
    "type": "urn:tarsy-scoring:problem:not-authenticated",
    "title": "Not authenticated",
    "status": 401,
    "detail": "this API needs a bearer token: send Authorization: Bearer TOKEN",
    "instance": "urn:tarsy-scoring:request:5f0c1f6fd6b84c0ca0b8b3c3e9d5a7c1",
}

_AGREES = "The final analysis follows from the evidence (E17), but the node's pressure was not ruled out."
EXAMPLE_SCORE: dict[str, Any] = {
    "score_id": "0d9f7b1c-3a52-4f5e-9c1a-6f2d6d1f8e10",
    "session_id": "7d1c6c9e",
    "request_id": "6a1d7a52-8a3c-4c55-8f0b-0f5f2f0f7b11",
    "chain_id": "kubernetes",
    "purpose": "production",
    "status": "completed",
    "attempt": 1,
    "score_triggered_by": "alice",
    "created_at": "2026-01-05T10:05:01Z",
    "started_at": "2026-01-05T10:05:02Z",
    "completed_at": "2026-01-05T10:05:20Z",
    "scored_at": "2026-01-05T10:05:20Z",
    "total_score": 67,
    "score_analysis": _AGREES,
    "score_breakdown": {"logical_flow": 18.0, "consistency": 17.0, "tool_relevance": 16.0, "synthesis_quality": 16.0},
    "missing_tools_analysis": "1. **node_pressure**: shows whether the node itself ran out of memory.",
    "missing_tools": [{"tool_name": "node_pressure", "rationale": "shows whether the node ran out of memory."}],
    "alternative_approaches": [],
    "rubric": None,
    "criteria": "investigation-methodology",
    "criteria_hash": "2f1f0a6f5e0c4d3b9a8877665544332211ffeeddccbbaa998877665544332211",
    "is_current_criteria": True,
    "judge_fingerprint": "b1946ac92492d2347c6235b4d2611184",
    "samples": [{"total_score": 67}],
    "spread": 0,
    "outcome": "pass",
    "outcome_reason": "67 of 100 points, 60 are needed",
    "judge_outcome": None,
    "composite_score": None,
    "failure_tags": ["incomplete_evidence"],
    "flags": [],
    "grounding": {"checked": 4, "held": 4, "share": 1.0},
    "interaction": None,
    "diagnosis": [],
    "gates": [],
    "gates_passed": 0,
    "gates_total": 0,
    "coverage": {"shown_share": 1.0, "cut_entries": []},
    "evidence": {"expected": {"stages": 2}, "read": {"stages": 2}, "missing": []},
    "turns": [],
    "usage": {"input_tokens": 14_200, "cached_input_tokens": 6_100, "output_tokens": 1_450, "cost_usd": 0.031},
    "error_kind": None,
    "error_message": None,
}

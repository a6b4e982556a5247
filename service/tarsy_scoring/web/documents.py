"""
The shapes of what the API answers, for JSON Schema and OpenAPI alone: the service builds documents from rows.

Lists of words that may grow within version 1 (`error_kind`, `flags`, ...) are given as examples, not as
enumerations. An object whose layer did not run is null.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

ERROR_KINDS = [
    *("session_not_found", "session_not_terminal", "evidence_incomplete", "context_too_long", "no_score_in_answer"),
    *("refused", "content_filtered", "answer_cut", "empty_answer", "invalid_structured_answer", "judge_unavailable"),
    *("judge_rejected_request", "judge_auth", "attempt_timed_out", "deadline_passed", "worker_lost"),
    *("timeline_unavailable", "unknown_criteria", "cancelled", "internal"),
]
FLAGS = [
    *("injection_suspected", "tampering_suspected", "breakdown_mismatch", "outcome_score_mismatch", "ungrounded"),
    *("self_judged", "missing_tools_unavailable", "context_shortened", "input_truncated_by_provider", "model_changed"),
]
WAITING_FOR = ["pause", "circuit", "key", "quota", "budget", "rate_limit", "session", "retry"]
TURN_KINDS = ["analysis", "reminder", "repair", "sample", "masked", "missing_tools"]

Status = Literal["pending", "in_progress", "completed", "failed", "timed_out", "cancelled"]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(protected_namespaces=())


class Fault(_Part):
    """One thing that is wrong with a request, and where; never the value."""

    loc: list[str | int]
    msg: str


class ProblemDocument(_Part):
    """A refusal or a failure, as RFC 9457 has it. Some kinds have more members."""

    type: str = Field(description="The kind of problem; stays the same for the same kind.")
    title: str = Field(description="The kind in words.")
    status: int = Field(ge=400, le=599)
    detail: str = Field(description="What happened, why, and what would help.")
    instance: str = Field(description="This one occurrence; ends in the request id that the log has too.")
    errors: list[Fault] | None = Field(None, description="Only with 422: what is wrong with the request.")


class LatestAttempt(_Part):
    """The newest score of the session, where it is not this one."""

    score_id: str
    status: Status


class MissingTool(_Part):
    """A tool that would have closed a gap in the evidence."""

    tool_name: str
    rationale: str


class AlternativeApproach(_Part):
    """Another way to investigate, in ordered steps."""

    name: str
    description: str
    steps: list[Any]


class Rubric(_Part):
    """The judge's values 0-1 per criterion, and their weighted mean as computed here."""

    scores: dict[str, Share]
    weighted_score: Share
    confidence: Share | None
    issues: list[str]
    highlights: list[str]


class Sample(_Part):
    """One of several answers to the same question."""

    total_score: int = Field(ge=0, le=100)


class Grounding(_Part):
    """Citations in the analysis that the evidence holds up."""

    checked: Count
    held: Count
    share: Share | None


class IdenticalRun(_Part):
    """The same call over and over, nothing else in between."""

    tool: str
    length: Count


class Cycle(_Part):
    """The same few calls over and over, in the same order."""

    tools: list[str]
    repetitions: Count


class AgentTokens(_Part):
    """What the judged agents used, not the judge."""

    input: Count
    output: Count


class Interaction(_Part):
    """Measured facts about tool calls; a rate is null where there was no command."""

    total_commands: Count
    unique_commands: Count
    error_count: Count
    retry_count: Count
    help_invocations: Count
    repeated_after_failure: Count
    error_rate: Share | None
    retry_rate: Share | None
    first_try_success_rate: Share | None
    iteration_ratio: Share | None
    completed: bool
    error_basis: dict[str, Count] = Field({}, description="How many commands were judged by what.")
    longest_identical_run: IdenticalRun | None = None
    cycles: list[Cycle] = []
    duration_s: Annotated[float, Field(ge=0)] | None = Field(None, description="Null where the times are not real.")
    tool_duration_ms: Count | None = None
    agent_tokens: AgentTokens | None = None
    by_tool: dict[str, Any]
    by_subcommand: dict[str, Any]


class Diagnosis(_Part):
    """What the interaction suggests, with the numbers behind it."""

    pattern: str
    likely_cause: str
    evidence: Any


class Gate(_Part):
    """One pass/fail check."""

    name: str
    gate_type: str
    passed: bool
    message: str


class Coverage(_Part):
    """How much of the session the judge was shown, and the ids of what was cut."""

    shown_share: Share
    cut_entries: list[str]


class Evidence(_Part):
    """What the source declared, what could be read, what is missing."""

    expected: dict[str, Any]
    read: dict[str, Any]
    missing: list[str]


class Turn(_Part):
    """One answered call of the judge, without its text. Unknown counts and costs are null, never 0."""

    kind: str = Field(examples=TURN_KINDS)
    provider: str
    model_requested: str
    model_served: str | None
    input_tokens: Count | None
    cached_input_tokens: Count | None
    output_tokens: Count | None
    cost_usd: Annotated[float, Field(ge=0)] | None
    latency_ms: Count
    finish_reason: str | None


class Usage(_Part):
    """Sums over the turns; null where a turn did not report it."""

    input_tokens: Count | None
    cached_input_tokens: Count | None
    output_tokens: Count | None
    cost_usd: Annotated[float, Field(ge=0)] | None


class ScoreDocument(_Part):
    """One scoring of one session, the same shape everywhere. A failure is never a number."""

    score_id: str
    session_id: str
    request_id: str | None = Field(description="Null for a score that nothing was stored about.")
    chain_id: str | None
    purpose: Literal["production", "consistency", "anchor", "shadow"]
    status: Status
    attempt: Count
    waiting_for: str | None = Field(
        None, examples=WAITING_FOR, description="Only while pending: why it is not running."
    )
    latest_attempt: LatestAttempt | None = Field(None, description="Only where something newer runs or failed.")
    score_triggered_by: str
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    scored_at: datetime | None = Field(description="The same as `completed_at`.")
    current_stage: str | None = Field(None, description="Only while `in_progress`: the last phase.")
    total_score: Annotated[int, Field(ge=0, le=100)] | None
    score_analysis: str | None
    score_breakdown: dict[str, float] | None = Field(description="Points by category.")
    missing_tools_analysis: str | None
    missing_tools: list[MissingTool]
    alternative_approaches: list[AlternativeApproach]
    rubric: Rubric | None
    criteria: str | None
    criteria_hash: str | None
    is_current_criteria: bool = Field(description="Whether the criteria of that name still have this hash.")
    judge_fingerprint: str | None = Field(description="Scores under different ones are not comparable.")
    samples: list[Sample]
    spread: Count | None
    outcome: Literal["pass", "fail"] | None
    outcome_reason: str | None
    judge_outcome: str | None = Field(description="Id of the band that the judge stated.")
    composite_score: Annotated[float, Field(ge=0, le=100)] | None
    failure_tags: list[str]
    flags: list[Annotated[str, Field(examples=FLAGS)]]
    grounding: Grounding | None
    interaction: Interaction | None
    diagnosis: list[Diagnosis]
    gates: list[Gate]
    gates_passed: Count | None
    gates_total: Count | None
    coverage: Coverage | None
    evidence: Evidence | None
    turns: list[Turn]
    usage: Usage
    error_kind: str | None = Field(examples=ERROR_KINDS)
    error_message: str | None


EXAMPLE_PROBLEM = {
    "type": "urn:tarsy-scoring:problem:not-authenticated",
    "title": "Not authenticated",
    "status": 401,
    "detail": "this API asks for a bearer token: send Authorization: Bearer TOKEN",
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

"""
What the API answers, as objects.

Statuses and names are plain text, and unknown fields are kept as attributes, so that a client reads the
answers of a
newer service. `docs/routes.md` describes all fields.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

OPEN = ("pending", "in_progress")


class _Answer(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=())


class MissingTool(_Answer):
    """A tool that would have closed a gap in the evidence."""

    tool_name: str
    rationale: str


class AlternativeApproach(_Answer):
    """Another way to investigate, in ordered steps."""

    name: str
    description: str
    steps: list[str]


class Gate(_Answer):
    """A deterministic check of the session."""

    name: str
    gate_type: str
    passed: bool
    message: str


class Usage(_Answer):
    """Tokens and cost in USD of all turns; None where they are unknown."""

    input_tokens: int | None
    cached_input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None


class LatestAttempt(_Answer):
    """A score that is newer than the one shown, and not completed."""

    score_id: UUID
    status: str


class Score(_Answer):
    """
    A score of a session. Only a completed one can have a total; `error_kind` says why another has none.

    `total_score` is from 0 to 100. Totals of different `judge_fingerprint`s are not comparable.
    """

    score_id: UUID
    session_id: str
    chain_id: str | None
    purpose: str
    status: str
    attempt: int
    waiting_for: str | None = None
    waiting_for_text: str | None = None
    latest_attempt: LatestAttempt | None = None
    current_stage: str | None = None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    total_score: int | None
    score_analysis: str | None
    score_breakdown: dict[str, float] | None
    missing_tools_analysis: str | None
    missing_tools: list[MissingTool]
    alternative_approaches: list[AlternativeApproach]
    criteria: str | None
    criteria_hash: str | None
    is_current_criteria: bool
    judge_fingerprint: str | None
    outcome: str | None
    outcome_reason: str | None
    judge_outcome: str | None
    pass_threshold: float | None
    judge_passed: bool | None
    composite_score: float | None
    failure_tags: list[str]
    flags: list[str]
    gates: list[Gate]
    usage: Usage
    error_kind: str | None
    error_message: str | None

    @property
    def is_open(self) -> bool:
        """Whether it is pending or in progress."""
        return self.status in OPEN


class ListedScore(_Answer):
    """The latest completed score of a session, in a list."""

    score_id: UUID
    total_score: int | None
    outcome: str | None
    judge_outcome: str | None
    criteria: str | None
    judge_fingerprint: str | None
    flags: list[str]
    failure_tags: list[str]
    scored_at: datetime | None


class ListedSession(_Answer):
    """A session in a list. `status` is that of its newest score, or `not_scored`."""

    session_id: str
    chain_id: str | None
    alert_type: str | None
    labels: dict[str, str]
    session_status: str | None
    ended_at: datetime
    status: str
    score: ListedScore | None


class ExportedScore(_Answer):
    """A score with the alert type, the labels and the references of its session."""

    alert_type: str | None
    labels: dict[str, str]
    references: list[dict[str, Any]] = Field(default_factory=list)
    score: Score


class SessionPage(_Answer):
    """A page of a list of sessions."""

    sessions: list[ListedSession]
    next_cursor: str | None


class HistoryPage(_Answer):
    """A page of the scores of a session."""

    scores: list[Score]
    next_cursor: str | None

"""
Shapes of the parts of a score document: the score's `jsonb` columns, and the lists that belong to it.

They are for JSON Schema and OpenAPI. The service builds documents from rows and never validates what it
stored itself. Lists of words that may grow within version 1 (`error_kind`, `flags`, ...) are examples and not
enumerations.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

ERROR_KINDS = [
    "session_not_found",
    "session_not_terminal",
    "session_too_large",
    "nothing_to_judge",
    "evidence_incomplete",
    "context_too_long",
    "no_score_in_answer",
    "refused",
    "content_filtered",
    "answer_cut",
    "empty_answer",
    "invalid_structured_answer",
    "judge_unavailable",
    "judge_rejected_request",
    "judge_auth",
    "attempt_timed_out",
    "deadline_passed",
    "worker_lost",
    "timeline_unavailable",
    "unknown_criteria",
    "unknown_chain",
    "cancelled",
    "internal",
]
FLAGS = [
    "injection_suspected",
    "tampering_suspected",
    "breakdown_mismatch",
    "outcome_score_mismatch",
    "ungrounded",
    "self_judged",
    "missing_tools_unavailable",
    "context_shortened",
    "input_truncated_by_provider",
    "model_changed",
    "chain_mismatch",
    "second_opinion_disagrees",
]
WAITING_FOR = [
    "pause",
    "circuit",
    "key",
    "quota",
    "budget",
    "rate_limit",
    "source",
    "worker",
    "session",
    "retry",
]
FAILURE_REASONS = ["no_such_entry", "other_entry", "paraphrase", "not_there"]
TURN_KINDS = ["analysis", "reminder", "repair", "sample", "masked", "missing_tools", "second_opinion"]

Status = Literal["pending", "in_progress", "completed", "failed", "timed_out", "cancelled"]
"""
The state of a score, by its exits.

`pending`: inserted with its request, or returned from an attempt. Leaves to `in_progress` when a worker claims it at or
after `next_attempt_at`, and to `cancelled`.

`in_progress`: held under a lease. Its holder ends it as `completed`, `failed` or `timed_out`, or puts it back as
`pending`. After the lease has expired, any worker takes it back: to `pending`, to `failed` after too many attempts, or
to `timed_out` after the deadline. Leaves to `cancelled` at any time; the holder notices at its next heartbeat.

The others are final. Each of them emits one last event and promotes the deferred request of the session.
"""
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class Part(BaseModel):
    """Base of all parts; `model_requested` and `model_served` are ordinary fields here."""

    # Built at first use: a command of the command line imports these models and uses few.
    model_config = ConfigDict(protected_namespaces=(), defer_build=True)


class LatestAttempt(Part):
    """The newest score of the session, where it is not this one."""

    score_id: str
    status: Status


class MissingTool(Part):
    """A tool that would have closed a gap in the evidence."""

    tool_name: str
    rationale: str


class AlternativeApproach(Part):
    """Another way to investigate, in ordered steps."""

    name: str
    description: str
    steps: list[Any]


class Rubric(Part):
    """The judge's values 0-1 per criterion, and their weighted mean as computed here."""

    scores: dict[str, Share]
    weighted_score: Share
    confidence: Share | None
    issues: list[str]
    highlights: list[str]


class Sample(Part):
    """One of several answers to the same question."""

    total_score: int = Field(ge=0, le=100)


class SecondOpinion(Part):
    """
    The judgement of another provider, asked for near the edge of a band. The first total counts.

    Without a total it was not had, and `reason` says why: as `waiting_for`, or as `error_kind`.
    """

    provider: str
    total_score: Annotated[int, Field(ge=0, le=100)] | None
    outcome: str | None = Field(description="Id of the band that it stated.")
    agrees: bool | None = Field(
        description="Whether it is in the same band, at most 8 points away, and states no other outcome."
    )
    reason: str | None = Field(examples=["budget", "circuit", "judge_unavailable", "refused"])


class FailedCitation(Part):
    """
    A citation of the analysis that does not hold.

    `no_such_entry`: no entry has the id. `other_entry`: the quotation stands in another entry than the ones
    cited. `paraphrase`: most of its words stand in a cited entry, or in any entry where none is cited, but
    not in this form. `not_there`: neither.
    """

    entry: str | None = Field(
        description="The cited id, or ids with commas; null for a quotation without an id."
    )
    quotation: str | None = Field(
        description="At most 300 characters; null where an id alone is the citation."
    )
    reason: str = Field(examples=FAILURE_REASONS)
    found_in: str | None = Field(
        description="Id of the entry with the quotation or the words; null where none has."
    )


class Grounding(Part):
    """Number of citations in the analysis that were checked, and of those that hold."""

    checked: Count
    held: Count
    share: Share | None
    failed: list[FailedCitation] = Field(
        [], description="The first 20 that do not hold, each once; absent in scores of earlier versions."
    )


class AgentTokens(Part):
    """Tokens that the judged agents used; those of the judge are in `usage`."""

    input: Count
    output: Count


class Interaction(Part):
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
    error_basis: dict[str, Count] = Field(
        {}, description="Number of commands by the field that reported their end."
    )
    duration_s: Annotated[float, Field(ge=0)] | None = Field(
        None, description="Null where the times are not real."
    )
    tool_duration_ms: Count | None = None
    agent_tokens: AgentTokens | None = None
    agent_cost_usd: Annotated[float, Field(ge=0)] | None = Field(
        None, description="Cost of these tokens at published prices; null where one is missing."
    )
    by_tool: dict[str, Any]
    by_subcommand: dict[str, Any]


class Diagnosis(Part):
    """What the interaction suggests, with the numbers behind it."""

    pattern: str
    likely_cause: str
    evidence: Any


class Gate(Part):
    """One pass/fail check."""

    name: str
    gate_type: str
    passed: bool
    message: str


LayerResult = Literal["pass", "fail"] | None


class LayerResults(Part):
    """What each layer decided; null: the layer decides nothing, or did not get that far."""

    interaction: LayerResult = Field(description="Null: metrics inform and decide nothing.")
    gates: LayerResult
    judge: LayerResult


class Reference(Part):
    """What the answer was judged against, without its text: people found it out after the session."""

    source_url: str | None
    provided_by: str
    provided_at: datetime


class Coverage(Part):
    """Share of the session that the judge was shown, and the ids of shortened entries."""

    shown_share: Share
    cut_entries: list[str]


class Evidence(Part):
    """Evidence that the source declared, that could be read, and that is missing."""

    expected: dict[str, Any]
    read: dict[str, Any]
    missing: list[str]
    cut_by_source: Count | None = Field(None, description="Tool results whose end the record lacks.")
    calls_recorded: bool | None = Field(None, description="False where the record holds final texts alone.")


class Turn(Part):
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


class Usage(Part):
    """Sums over the turns; null where a turn did not report it."""

    input_tokens: Count | None
    cached_input_tokens: Count | None
    output_tokens: Count | None
    cost_usd: Annotated[float, Field(ge=0)] | None

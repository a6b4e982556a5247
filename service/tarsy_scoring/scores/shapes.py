"""
The score document and its parts: every field of a score is declared here, and nowhere else.

The statement that ends a score (`queue/store`) sets the fields of `ScoreResults`, `document` shows the fields
of `ScoreDocument`, and JSON Schema and OpenAPI are made from it. A new field needs an entry here and, where
it is stored, a column in the migration. The service builds documents from rows and never validates what it
stored itself. Lists of words that may grow within version 1 (`error_kind`, `flags`, ...) are examples and not
enumerations.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field

from tarsy_scoring import errors
from tarsy_scoring.errors import WaitingFor
from tarsy_scoring.evaluation.diagnosis import DiagnosedPattern
from tarsy_scoring.evaluation.interaction import Interaction
from tarsy_scoring.evaluation.outcome import GateResult
from tarsy_scoring.events import Count, Purpose, Share, Usage

# What the classes of errors carry with which an attempt may end, what single errors carry, and ends that no
# error causes.
ERROR_KINDS = sorted(
    {kind for one in vars(errors).values() if (kind := getattr(one, "error_kind", None))}
    | {"answer_cut", "empty_answer", "invalid_structured_answer", "judge_auth", "no_score_in_answer"}
    | {"cancelled", "deadline_passed", "unknown_chain", "worker_lost"}
)
FLAGS = [
    "injection_suspected",
    "tampering_suspected",
    "breakdown_mismatch",
    "outcome_missing",
    "outcome_score_mismatch",
    "ungrounded",
    "self_judged",
    "missing_tools_unavailable",
    "context_shortened",
    "mostly_unseen",
    "input_truncated_by_provider",
    "model_changed",
    "chain_mismatch",
    "reference_refused",
    "second_opinion_disagrees",
]
WAITING_FOR = [*get_args(WaitingFor), "worker"]
FAILURE_REASONS = ["no_such_entry", "other_entry", "paraphrase", "not_there"]
TURN_KINDS = ["analysis", "reminder", "repair", "sample", "masked", "missing_tools", "second_opinion"]

Status = Literal["pending", "in_progress", "completed", "failed", "timed_out", "cancelled"]
"""
The state of a score, by its exits.

`pending`: inserted with its request, or returned from an attempt. Leaves to `in_progress` when a worker
claims it at or after `next_attempt_at`, and to `cancelled`.

`in_progress`: held under a lease. Its holder ends it as `completed`, `failed` or `timed_out`, or puts it back
as `pending`. After the lease has expired, any worker takes it back: to `pending`, to `failed` after too many
attempts, or to `timed_out` after the deadline. Leaves to `cancelled` at any time; the holder notices at its
next heartbeat.

The others are final. Each of them emits one last event and promotes the deferred request of the session.
"""
Total = Annotated[int, Field(ge=0, le=100)]


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

    total_score: Total


class SecondOpinion(Part):
    """
    The judgement of another provider, asked for near the edge of a band. The first total counts.

    Without a total it was not had, and `reason` says why: as `waiting_for`, or as `error_kind`.
    """

    provider: str
    total_score: Total | None
    outcome: str | None = Field(description="Id of the band that it stated.")
    agrees: bool | None = Field(description="Same band, at most 8 points away, no other outcome stated.")
    reason: str | None = Field(examples=["budget", "circuit", "judge_unavailable", "refused"])


class FailedCitation(Part):
    """
    A citation of the analysis that does not hold.

    `no_such_entry`: no entry has the id. `other_entry`: the quotation stands in another entry than the ones
    cited. `paraphrase`: most of its words stand in a cited entry, or in any entry where none is cited, but
    not in this form. `not_there`: neither.
    """

    entry: str | None = Field(description="The cited id, or ids with commas; null: a quotation alone.")
    quotation: str | None = Field(description="At most 300 characters; null: an id alone.")
    reason: str = Field(examples=FAILURE_REASONS)
    found_in: str | None = Field(description="Id of the entry with the quotation or its words.")


class Grounding(Part):
    """Number of citations in the analysis that were checked, and of those that hold."""

    checked: Count
    held: Count
    share: Share | None
    failed: list[FailedCitation] = Field(
        [], description="The first 20 that do not hold, each once; absent in scores of earlier versions."
    )


@dataclass(frozen=True, slots=True)
class PricedInteraction(Interaction):
    """
    The interaction metrics of one session.

    `agent_cost_usd` is the cost of `agent_tokens` at published prices; null where one is missing.
    """

    agent_cost_usd: float | None = None


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
    sent_by: str | None = Field(None, description="The sender: a person, `event: NAME` or `token NAME`.")


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


class PromptHashes(Part):
    """SHA-256 of the prompts for the total and for missing tools; null: the criteria have no such prompt."""

    prompt: str | None
    follow_up_prompt: str | None


class ScoreIdentity(Part):
    """What a score is about and how it stands: columns of `session_scores`."""

    score_id: str
    session_id: str
    request_id: str | None = Field(description="Null for a score made offline, which is not stored.")
    chain_id: str | None
    purpose: Purpose
    status: Status
    attempt: Count
    score_triggered_by: str
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    criteria: str | None
    criteria_hash: str | None


class ScoreResults(Part):
    """What an attempt found: columns of `session_scores` that the end of the score sets."""

    total_score: Total | None
    score_analysis: str | None
    score_breakdown: dict[str, float] | None = Field(description="Points by category.")
    missing_tools_analysis: str | None
    rubric: Rubric | None
    judge_fingerprint: str | None = Field(description="Scores under different ones are not comparable.")
    samples: list[Sample]
    second_opinion: SecondOpinion | None
    outcome: Literal["pass", "fail"] | None
    outcome_reason: str | None
    judge_outcome: str | None = Field(description="Id of the band that the judge stated.")
    pass_threshold: Annotated[float, Field(ge=0, le=100)] | None = Field(
        description="Least total that passed."
    )
    judge_passed: bool | None = Field(
        description="Whether the total reaches it and the judge does not say wrong; null: nothing decides."
    )
    composite_score: Annotated[float, Field(ge=0, le=100)] | None
    failure_tags: list[str]
    flags: list[Annotated[str, Field(examples=FLAGS)]]
    grounding: Grounding | None
    reference: Reference | None = Field(description="Null: judged without one. The two kinds do not compare.")
    interaction: PricedInteraction | None
    diagnosis: list[DiagnosedPattern]
    gates: list[GateResult]
    coverage: Coverage | None
    evidence: Evidence | None
    usage: Usage
    error_kind: str | None = Field(examples=ERROR_KINDS)
    error_message: str | None


class ScoreDocument(ScoreResults, ScoreIdentity):
    """One scoring for one session, the same shape everywhere. A failure is never a number."""

    waiting_for: str | None = Field(
        None, description="Only while pending: why it is not running.", examples=WAITING_FOR
    )
    waiting_for_text: str | None = Field(
        None, description="Only with `waiting_for`: the same in words, with numbers where there are some."
    )
    latest_attempt: LatestAttempt | None = Field(None, description="Only if a newer one runs or failed.")
    current_stage: str | None = Field(None, description="Only while `in_progress`: the last phase.")
    summary: str | None = Field(description="First sentence of the section about the outcome, or of all.")
    scored_at: datetime | None = Field(description="The same as `completed_at`.")
    is_current_criteria: bool = Field(description="Whether the criteria of that name still have this hash.")
    prompt_hashes: PromptHashes | None = Field(description="Null: no score was judged under these criteria.")
    missing_tools: list[MissingTool]
    alternative_approaches: list[AlternativeApproach]
    spread: Count | None
    layers: LayerResults
    gates_passed: Count | None
    gates_total: Count | None
    turns: list[Turn]


SHOWN_COLUMNS = (*ScoreIdentity.model_fields, *ScoreResults.model_fields)
_LISTS = {n for n, field in ScoreResults.model_fields.items() if get_origin(field.annotation) is list}


def no_results() -> dict[str, Any]:
    """The fields of `ScoreResults` without results: null, or `[]` for lists."""
    return {name: [] if name in _LISTS else None for name in ScoreResults.model_fields}

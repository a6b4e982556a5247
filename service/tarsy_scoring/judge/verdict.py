"""
Records about a judgement: turns (judge calls) and the verdict that results.

Plain records without I/O, shared by the judge, the store and the score document.
"""

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from tarsy_scoring.judge.read.reasoning import without_reasoning
from tarsy_scoring.timeline.render.context import estimate_tokens

TurnKind = Literal[
    "analysis", "reminder", "repair", "sample", "masked", "missing_tools", "second_opinion", "memory"
]
FailureReason = Literal["no_such_entry", "other_entry", "paraphrase", "not_there"]
Role = Literal["system", "user", "assistant"]
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
"""Text that is not blank. Pydantic checks this where JSON is read; a dataclass checks nothing by itself."""


@dataclass(frozen=True)
class Message:
    """One message in the conversation with the judge."""

    role: Role
    content: str

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of role and content."""
        return hashlib.sha256(f"{self.role}\0{self.content}".encode("utf-8", "surrogatepass")).digest()

    @cached_property
    def tokens(self) -> int:
        """See `estimate_tokens`."""
        return estimate_tokens(self.content)


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """A JSON Schema for replies. An endpoint that cannot enforce it is asked in words only."""

    name: str
    schema: Mapping[str, Any]


@dataclass(frozen=True)
class Turn:
    """
    One answered judge call, as it is stored.

    Unknown token counts and costs are None, never 0. `reply` is the whole text that arrived, even from a cut
    answer (`finish_reason` = `length`). Only people read it: code reads `answer`.
    """

    kind: TurnKind
    reply: str
    provider: str
    model_requested: str
    model_served: str | None
    input_tokens: int | None
    cached_input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None
    latency_ms: int
    finish_reason: str | None
    refusal: str | None = None
    has_tool_calls: bool = False

    @cached_property
    def answer(self) -> str:
        """The reply without the model's reasoning."""
        return without_reasoning(self.reply)

    @property
    def judge(self) -> str:
        """Model and provider that were asked, as words for a message."""
        return f"the judge {self.model_requested!r} at {self.provider!r}"


@dataclass(frozen=True, slots=True)
class MissingTool:
    """A tool that the judge calls missing, and the gap that it would have closed."""

    tool_name: Text
    rationale: Text


@dataclass(frozen=True, slots=True)
class FailedCitation:
    """
    A citation that does not hold.

    Args:
        entry: The id, or the ids that the quotation's sentence names; None where it names none.
        quotation: None where the citation is an id.
        reason: `no_such_entry`: no entry has this id. `other_entry`: the quotation stands in another entry.
            `paraphrase`: most words stand in an entry where it may stand, but not in this form.
            `not_there`: neither.
        found_in: The other entry, or the entry with the paraphrased words.
    """

    entry: str | None
    quotation: str | None
    reason: FailureReason
    found_in: str | None = None


@dataclass(frozen=True, slots=True)
class Grounding:
    """
    Citations that were checked against the evidence, and how many hold.

    `failed` holds the first ones that do not, each once.
    """

    checked: int
    held: int
    failed: tuple[FailedCitation, ...] = ()

    @property
    def share(self) -> float | None:
        """Share that holds, 0-1; None where nothing was cited."""
        return self.held / self.checked if self.checked else None


@dataclass(frozen=True, slots=True)
class AlternativeApproach:
    """A way to investigate that the judge calls better. Each ordered step begins with the tool it
    uses.
    """

    name: Text
    description: Text
    steps: Annotated[tuple[Text, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class RubricReading:
    """Values 0-1 per criterion, and the weighted score that code computes from them."""

    scores: Mapping[str, float]
    weighted_score: float
    confidence: float | str | None
    issues: tuple[str, ...]
    highlights: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SecondOpinion:
    """
    Another provider's judgement, or why there is none.

    Args:
        provider: The provider that was asked.
        total_score: None where there is no second judgement.
        outcome: The band that the second judge stated; None where it stated none.
        agrees: Whether it confirms the first judgement; None where there is no second one.
        reason: Why there is none: a `waiting_for` or an `error_kind`; None where there is one.
    """

    provider: str
    total_score: int | None = None
    outcome: str | None = None
    agrees: bool | None = None
    reason: str | None = None


@dataclass(slots=True)
class Verdict:
    """
    What a judgement found. `total_score` is 0-100 and always stated by the judge.

    A strategy fills it from one sample. `assess` adds all samples' totals (`samples`, in the order in
    which they were asked for), the failure tags and the grounding. A second opinion is added last.
    """

    total_score: int
    score_analysis: str
    total_turn: Turn
    score_breakdown: dict[str, float] | None = None
    judge_outcome: str | None = None
    missing_tools_analysis: str | None = None
    missing_tools: list[MissingTool] = field(default_factory=list)
    alternative_approaches: list[AlternativeApproach] = field(default_factory=list)
    rubric: RubricReading | None = None
    samples: list[int] = field(default_factory=list)
    failure_tags: list[str] = field(default_factory=list)
    grounding: Grounding | None = None
    second_opinion: SecondOpinion | None = None
    flags: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Question:
    """
    One question to the judge.

    Args:
        messages: The whole conversation. All questions for a score share a byte-identical prefix.
        reply_format: The JSON to ask for; None for text.
        reply_limit_factor: Factor for the configured `max_reply_tokens`. With a factor above 1 (after a cut
            answer) the limit must exceed the configured one.
    """

    kind: TurnKind
    messages: Sequence[Message]
    reply_format: ReplyFormat | None = None
    reply_limit_factor: int = 1


Ask = Callable[[Question], Awaitable[Turn]]
"""
Asks the judge once, durably.

It replays the stored turn if an earlier attempt paid for it. Otherwise it calls the model, stores the whole
reply before it returns, and announces the phase.

Raises: RetryLater, WaitFor, Unscorable: see `errors`. LeaseLost: The score belongs to another worker now.
"""

IsFinal = Callable[[Exception], bool]
"""
Whether an error in an optional turn is final for this score: permanent, or no attempt is left.

True for every `Unscorable` error.
"""

"""
What a judgement is made of: turns (calls of the judge) and the verdict they add up to.

Plain records without I/O, shared by the judge, the store and the score document.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

TurnKind = Literal["analysis", "reminder", "repair", "sample", "masked", "missing_tools"]
Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the conversation with the judge."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Turn:
    """
    One answered call of the judge, as it is stored.

    Unknown token counts and costs are None, never 0. `reply` is the text in full, also where it was
    cut (`finish_reason` = `length`).
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


@dataclass(frozen=True, slots=True)
class MissingTool:
    """A tool that the judge says was missing, and the gap it would have closed."""

    tool_name: str
    rationale: str


@dataclass(slots=True)
class Verdict:
    """What the judge said, extracted. `total_score` is 0-100 and always the judge's own."""

    total_score: int
    score_analysis: str
    score_breakdown: dict[str, float] | None = None
    missing_tools_analysis: str | None = None
    missing_tools: list[MissingTool] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)
    total_turn: Turn | None = None


class Ask(Protocol):
    """
    Ask the judge once, durably.

    The implementation replays a stored turn where an earlier attempt already paid for it, otherwise
    calls the model, stores the reply in full before it returns, and announces the phase.
    """

    async def __call__(self, kind: TurnKind, messages: list[Message], *, reply_limit_factor: int = 1) -> Turn:
        """
        Args:
            messages: The whole conversation; the shared prefix is byte-identical over all calls of a score.
            reply_limit_factor: The configured `max_reply_tokens` times this.

        Raises:
            RetryLater, WaitFor, Unscorable: See `errors`.
            LeaseLost: The score belongs to another worker now.
        """
        ...


IsFinal = Callable[[Exception], bool]
"""Whether an error of an optional turn is the last word for this score (permanent, or no attempt left)."""

Announce = Callable[[str], Awaitable[None]]

"""
Reads a completion: its text, how it ended, and the tokens it took.

Endpoints send anything, so each value is checked here. `Conversation` decides whether the answer is usable.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tarsy_scoring.judge.ask.errors import as_count, as_mapping
from tarsy_scoring.judge.verdict import Turn, TurnKind
from tarsy_scoring.timeline.text import storable

# Ends of an answer that the endpoint broke off; DeepSeek sends the second one when it lacks resources.
_BROKEN_OFF = ("error", "insufficient_system_resource")
MOST_TOKENS = 2**31 - 1  # the columns of a turn hold no more, and no window is nearly as large


class ReplyUsage(NamedTuple):
    """Reported tokens of a call, each at most `MOST_TOKENS`; None where unknown, never 0."""

    read: int | None = None
    cached: int | None = None
    written: int | None = None

    @property
    def total(self) -> int | None:
        """Read plus written tokens; None where either is unknown."""
        return None if self.read is None or self.written is None else self.read + self.written


def usage_of(reported: object) -> ReplyUsage:
    """
    Read the usage that any response reports.

    A count that cannot be true is unknown: the nearest possible number would be made up.
    """
    usage = as_mapping(reported)
    cached = as_mapping(usage.get("prompt_tokens_details")).get("cached_tokens")
    counts = map(as_count, (usage.get("prompt_tokens"), cached, usage.get("completion_tokens")))
    return ReplyUsage(*(None if count is None or count > MOST_TOKENS else count for count in counts))


def read_turn(
    answer: Mapping[str, Any],
    kind: TurnKind,
    provider: str,
    model: str,
    usage: ReplyUsage,
    cost_usd: float | None,
    latency_ms: int,
) -> Turn | None:
    """
    The answer in the first choice; None where there is no answer.

    Args:
        model: The requested model.
    """
    choices = answer.get("choices")
    choice = as_mapping(choices[0]) if isinstance(choices, list) and choices else {}
    message, finish_reason = choice.get("message"), choice.get("finish_reason")
    if not isinstance(message, dict) or finish_reason in _BROKEN_OFF:
        return None
    return Turn(
        kind=kind,
        reply=_text_of(message.get("content")) or "",
        provider=provider,
        model_requested=model,
        model_served=_text_of(answer.get("model")),
        input_tokens=usage.read,
        cached_input_tokens=usage.cached,
        output_tokens=usage.written,
        cost_usd=cost_usd,
        latency_ms=latency_ms,
        finish_reason=_text_of(finish_reason),
        refusal=_text_of(message.get("refusal")),
        has_tool_calls=bool(message.get("tool_calls") or message.get("function_call")),
    )


def _text_of(content: Any) -> str | None:
    """A text as it can be stored; some servers send it in parts. None for anything else."""
    if isinstance(content, list):
        texts = [as_mapping(part).get("text") for part in content]
        content = "".join(text for text in texts if isinstance(text, str))
    return storable(content) if isinstance(content, str) else None

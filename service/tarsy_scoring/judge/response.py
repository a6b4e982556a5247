"""
The content of an endpoint's answer: its text, how it ended, and the tokens it took.

`Conversation` decides whether the answer is usable.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tarsy_scoring.judge.provider_errors import as_count, as_mapping
from tarsy_scoring.judge.verdict import Turn, TurnKind
from tarsy_scoring.timeline.text import storable


class Usage(NamedTuple):
    """Reported tokens of a call; None where unknown, never 0."""

    read: int | None
    cached: int | None
    written: int | None

    @classmethod
    def of(cls, payload: object) -> "Usage":
        """Read the usage of any response; some error responses report it too."""
        usage = as_mapping(as_mapping(payload).get("usage"))
        cached = as_count(as_mapping(usage.get("prompt_tokens_details")).get("cached_tokens"))
        return cls(as_count(usage.get("prompt_tokens")), cached, as_count(usage.get("completion_tokens")))

    @property
    def total(self) -> int | None:
        """Read plus written tokens; None where either is unknown."""
        return None if self.read is None or self.written is None else self.read + self.written


def read_turn(
    payload: Mapping[str, Any], provider: str, model: str, kind: TurnKind, latency_ms: int, cost_usd: float | None
) -> Turn | None:
    """
    The answer in the first choice; None where there is no answer.

    Args:
        model: The requested model.
    """
    choices = payload.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict) or choice.get("finish_reason") == "error":
        return None
    usage = Usage.of(payload)
    return Turn(
        kind=kind,
        reply=_text_of(message.get("content")),
        provider=provider,
        model_requested=model,
        model_served=_text_or_none(payload.get("model")),
        input_tokens=usage.read,
        cached_input_tokens=usage.cached,
        output_tokens=usage.written,
        cost_usd=cost_usd,
        latency_ms=latency_ms,
        finish_reason=_text_or_none(choice.get("finish_reason")),
        refusal=_text_or_none(message.get("refusal")),
        has_tool_calls=bool(message.get("tool_calls") or message.get("function_call")),
    )


def _text_of(content: object) -> str:
    """The text of a message; some servers send it in parts."""
    if isinstance(content, list):
        content = "".join(part["text"] for part in map(as_mapping, content) if isinstance(part.get("text"), str))
    return _text_or_none(content) or ""


def _text_or_none(value: object) -> str | None:
    return storable(value) if isinstance(value, str) else None

"""
What an endpoint's answer holds: its text, how it ended, and the tokens it took.

Pure. Nothing is judged: what an answer is worth is for the strategy to say.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tarsy_scoring.judge.provider_errors import as_count, as_mapping
from tarsy_scoring.judge.verdict import Turn, TurnKind


class Usage(NamedTuple):
    """Tokens of a call as reported; None where unknown, never 0."""

    read: int | None
    cached: int | None
    written: int | None

    @classmethod
    def of(cls, payload: object) -> "Usage":
        """From the body of any response; some errors tell it too."""
        usage = as_mapping(as_mapping(payload).get("usage"))
        cached = as_count(as_mapping(usage.get("prompt_tokens_details")).get("cached_tokens"))
        return cls(as_count(usage.get("prompt_tokens")), cached, as_count(usage.get("completion_tokens")))

    @property
    def total(self) -> int | None:
        """Read and written; None where either is unknown."""
        return None if self.read is None or self.written is None else self.read + self.written


def read_turn(
    payload: Mapping[str, Any], provider: str, model: str, kind: TurnKind, latency_ms: int, cost_usd: float | None
) -> Turn | None:
    """
    The answer in the first choice; None where there is none.

    Args:
        model: The requested one.
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
        model_served=_storable(payload.get("model")),
        input_tokens=usage.read,
        cached_input_tokens=usage.cached,
        output_tokens=usage.written,
        cost_usd=cost_usd,
        latency_ms=latency_ms,
        finish_reason=_storable(choice.get("finish_reason")),
        refusal=_storable(message.get("refusal")),
        has_tool_calls=bool(message.get("tool_calls") or message.get("function_call")),
    )


def _text_of(content: object) -> str:
    """The text; some servers answer in parts."""
    if isinstance(content, list):
        content = "".join(part["text"] for part in map(as_mapping, content) if isinstance(part.get("text"), str))
    return _storable(content) or ""


def _storable(value: object) -> str | None:
    """Text without what PostgreSQL refuses: NUL and halves of surrogate pairs."""
    if not isinstance(value, str):
        return None
    return value.replace("\0", "").encode("utf-8", "replace").decode("utf-8")

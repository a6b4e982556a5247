"""
The content of an endpoint's answer: its text, how it ended, and the tokens it took.

`Conversation` decides whether the answer is usable.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tarsy_scoring.judge.ask.errors import as_count, as_mapping
from tarsy_scoring.judge.verdict import Turn, TurnKind
from tarsy_scoring.timeline.text import storable

# Ends of an answer that the endpoint broke off; DeepSeek sends the second one when it lacks resources.
_BROKEN_OFF = ("error", "insufficient_system_resource")
MOST_TOKENS = 2**31 - 1  # the columns of a turn hold no more, and no window is nearly as large


class Usage(NamedTuple):
    """Reported tokens of a call, each at most `MOST_TOKENS`; None where unknown, never 0."""

    read: int | None
    cached: int | None
    written: int | None

    @classmethod
    def of(cls, payload: object) -> "Usage":
        """Read the usage of any response; some error responses report it too."""
        # A report that cannot be true makes the count unknown: the nearest possible number would be made up.
        return cls(*(_tokens(count) for count in _reported_counts(payload).values()))

    @property
    def total(self) -> int | None:
        """Read plus written tokens; None where either is unknown."""
        return None if self.read is None or self.written is None else self.read + self.written


def unusable_counts(payload: object) -> list[str]:
    """Names of token counts that the endpoint reports and that `Usage` takes as unknown."""
    return [
        name
        for name, count in _reported_counts(payload).items()
        if count is not None and _tokens(count) is None
    ]


def read_turn(
    payload: Mapping[str, Any],
    provider: str,
    model: str,
    kind: TurnKind,
    latency_ms: int,
    cost_usd: float | None,
) -> Turn | None:
    """
    The answer in the first choice; None where there is no answer.

    Args:
        model: The requested model.
    """
    choices = payload.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if (
        not isinstance(choice, dict)
        or not isinstance(message, dict)
        or choice.get("finish_reason") in _BROKEN_OFF
    ):
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


def join_chunks(chunks: Iterable[object]) -> Mapping[str, Any]:
    """
    The completion that was sent in these chunks; an error among them instead, where there is one.

    Without the end of the answer there is no choice in it.
    """
    texts: dict[str, list[str]] = {"content": [], "refusal": []}
    joined: dict[str, Any] = {}
    has_tool_calls, finish_reason = False, None
    for chunk in map(as_mapping, chunks):
        if chunk.get("error"):
            return chunk
        joined |= {name: chunk[name] for name in ("model", "usage") if chunk.get(name)}
        choices = chunk.get("choices")
        choice = as_mapping(choices[0]) if isinstance(choices, list) and choices else {}
        delta = as_mapping(choice.get("delta"))
        for name, parts in texts.items():
            parts.append(_text_of(delta.get(name)))
        has_tool_calls |= bool(delta.get("tool_calls"))
        finish_reason = choice.get("finish_reason") or finish_reason
    message = {name: "".join(parts) or None for name, parts in texts.items()} | {"tool_calls": has_tool_calls}
    return joined | {
        "choices": [{"message": message, "finish_reason": finish_reason}] if finish_reason else []
    }


def _reported_counts(payload: object) -> dict[str, object]:
    """The reported counts in the order of the fields of `Usage`."""
    usage = as_mapping(as_mapping(payload).get("usage"))
    return {
        "prompt_tokens": usage.get("prompt_tokens"),
        "cached_tokens": as_mapping(usage.get("prompt_tokens_details")).get("cached_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
    }


def _tokens(value: object) -> int | None:
    count = as_count(value)
    return count if count is not None and count <= MOST_TOKENS else None


def _text_of(content: object) -> str:
    """The text of a message; some servers send it in parts."""
    if isinstance(content, list):
        content = "".join(
            part["text"] for part in map(as_mapping, content) if isinstance(part.get("text"), str)
        )
    return _text_or_none(content) or ""


def _text_or_none(value: object) -> str | None:
    return storable(value) if isinstance(value, str) else None

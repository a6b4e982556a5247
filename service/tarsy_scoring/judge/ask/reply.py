"""
Reads a completion: its text, how it ended, and the tokens it took.

Endpoints send anything, so each value is checked here. `Conversation` decides whether the answer is usable.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic_core import to_json

from tarsy_scoring.judge.ask.errors import as_count, as_mapping
from tarsy_scoring.judge.verdict import Turn, TurnKind
from tarsy_scoring.timeline.text import storable

# Why an answer ended, in our words, by parts of the endpoints' words; the first row that fits counts.
_BROKEN_OFF = "error"
ENDS = {
    "content_filter": "filter|safety|prohibit|block|recitation|spii|sensitive|guardrail|moderat|toxic|armor",
    "refusal": "refus",
    "length": r"length|max.?tokens|max\w*_tokens|(?<!rate)[ _-]limit|token.?limit|window|truncat|incomplete",
    _BROKEN_OFF: "error|insufficient|abort|cancel|time.?out|network|overload|rate.?limit",
}
_IS_REASONING = re.compile("think|thought|reason", re.IGNORECASE)
MOST_TOKENS = 2**31 - 1  # the columns of a turn hold no more, and no window is nearly as large


class ReplyUsage(NamedTuple):
    """Reported tokens of a call, each at most `MOST_TOKENS`; None where unknown. Reasoning is written."""

    read: int | None = None
    cached: int | None = None
    written: int | None = None
    reasoning: int | None = None

    @property
    def total(self) -> int | None:
        """Read plus written tokens; None where either is unknown."""
        return None if self.read is None or self.written is None else self.read + self.written

    def has_reached(self, limit: int) -> bool:
        """Whether so many tokens were written; for some endpoints reasoning does not count."""
        written = self.written or 0
        return written == limit or written - (self.reasoning or 0) >= limit


def usage_of(reported: object) -> ReplyUsage:
    """
    Read the usage that any response reports, with reasoning that an endpoint counts beside the completion.

    A count that cannot be true is unknown: the nearest possible number would be made up.
    """
    usage = dict(as_mapping(reported))
    for name in ("prompt", "input", "completion", "output"):
        usage |= as_mapping(usage.get(f"{name}_tokens_details"))
    read = _count(usage, "prompt_tokens", "input_tokens")
    cached = _count(usage, "cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens")
    if read is not None and "prompt_tokens" not in usage:  # Anthropic: the input without what the cache holds
        read += sum(_count(usage, f"cache_{kind}_input_tokens") or 0 for kind in ("read", "creation"))
    written = _count(usage, "completion_tokens", "output_tokens")
    reasoning = _count(usage, "reasoning_tokens")
    if read is not None and written is not None:
        written = max(written, (_count(usage, "total_tokens") or 0) - read)
    return ReplyUsage(read, cached, written, reasoning)


def _count(usage: Mapping[str, Any], *names: str) -> int | None:
    counts = map(as_count, map(usage.get, names))
    return next((count for count in counts if count is not None and count <= MOST_TOKENS), None)


def read_turn(
    answer: Mapping[str, Any],
    kind: TurnKind,
    provider: str,
    model: str,
    usage: ReplyUsage,
    cost_usd: float | None,
    latency_ms: int,
    reply_limit: int,
) -> Turn | None:
    """
    The answer in the first choice; None where there is no answer.

    Args:
        model: The requested model.
        reply_limit: An answer that reached it was cut, whatever reason the endpoint gives.
    """
    choices = answer.get("choices")
    choice = as_mapping(choices[0]) if isinstance(choices, list) and choices else {}
    message, reason = choice.get("message"), _end_of(choice.get("finish_reason"))
    if not isinstance(message, dict) or reason == _BROKEN_OFF:
        return None
    if reason not in ENDS and usage.has_reached(reply_limit):
        reason = "length"
    return Turn(
        kind=kind,
        reply=_text_of(message.get("content")) or "",
        provider=provider,
        model_requested=model,
        model_served=_string(answer.get("model")),
        input_tokens=usage.read,
        cached_input_tokens=usage.cached,
        output_tokens=usage.written,
        cost_usd=cost_usd,
        latency_ms=latency_ms,
        finish_reason=reason,
        refusal=_string(message.get("refusal")),
        has_tool_calls=bool(message.get("tool_calls") or message.get("function_call")),
    )


def _end_of(reason: object) -> str | None:
    """Why an answer ended, in the words of `ENDS` where one of them fits."""
    said = _string(as_mapping(reason).get("type", reason))
    found = (end for end, words in ENDS.items() if said and re.search(words, said, re.IGNORECASE))
    return next(found, said)


def _text_of(content: Any) -> str | None:
    """A text as it can be stored; some servers send it in parts or as JSON. None for anything else."""
    if isinstance(content, dict) and not content.keys() & {"text", "type"}:
        try:
            content = to_json(content).decode()
        except ValueError:  # nested too deeply
            return None
    if isinstance(content, list | dict):
        content = "".join(map(_text_of_part, content if isinstance(content, list) else [content]))
    return _string(content)


def _text_of_part(part: object) -> str:
    if isinstance(part, dict):
        part = None if _IS_REASONING.search(str(part.get("type"))) else part.get("text")
    part = as_mapping(part).get("value", part)
    return part if isinstance(part, str) else ""


def _string(value: object) -> str | None:
    return storable(value) if isinstance(value, str) else None

"""
Converts loosely typed JSON of a session into values for the records of `model`; shared by the sources.

All names and texts come out storable, because they end up in columns, keys and messages.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tarsy_scoring.timeline.model import ToolCall
from tarsy_scoring.timeline.text import storable

LONGEST_NAME = 255


def text_or_none(value: object) -> str | None:
    """The string made storable; None for an empty string or another type."""
    return storable(value) or None if isinstance(value, str) else None


def name_or_none(value: object) -> str | None:
    """A storable name, cut to 255 characters so that an index can hold it; None for an empty one or another
    type.
    """
    name = text_or_none(value)
    return name[:LONGEST_NAME] if name else None


def whole_number(value: object) -> int | None:
    """The integer; None for another type, booleans included."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def moment(value: object) -> datetime | None:
    """The time in an RFC 3339 string, in UTC where it has no offset; None for another string or type."""
    if not isinstance(value, str):
        return None
    try:
        parsed = datetime.fromisoformat(value)
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def tool_call(metadata: Mapping[str, Any]) -> ToolCall:
    """The call that a tool event's metadata describes; recorded argument strings stay unchanged."""
    arguments = metadata.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    is_error = metadata.get("is_error")
    return ToolCall(
        server_name=text_or_none(metadata.get("server_name")) or "",
        tool_name=text_or_none(metadata.get("tool_name")) or "(unnamed tool)",
        arguments=arguments or "",
        is_error=is_error if isinstance(is_error, bool) else None,
        exit_code=whole_number(metadata.get("exit_code")),
    )


def label_map(value: object) -> dict[str, str]:
    """Labels as a map of strings; each label of a list maps to `true`."""
    if isinstance(value, Mapping):
        texts = {str(k): v if isinstance(v, str) else json.dumps(v) for k, v in value.items()}
        return {storable(k): storable(v) for k, v in texts.items()}
    if isinstance(value, list):
        return {storable(label): "true" for label in value if isinstance(label, str)}
    return {}


_MODEL_KEYS = ("model_name", "llm_provider", "original_model_name", "original_llm_provider")


def model_names(execution: Mapping[str, Any]) -> tuple[str, ...]:
    """Every model and provider name recorded for an execution, each once."""
    return tuple(dict.fromkeys(name for key in _MODEL_KEYS if (name := text_or_none(execution.get(key)))))

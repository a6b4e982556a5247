"""Puts validation errors of settings into words: the place, the reason and the nearest name that exists."""

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tarsy_scoring.config.chains import Config
from tarsy_scoring.config.gates import GATE_TYPES
from tarsy_scoring.config.notifications import TARGET_TYPES


def explain(error: ValidationError, spell: Callable[[str], str] | None = None, where: str = "") -> str:
    """
    Describe each fault in one line. Never quotes a value, which may be a secret.

    Args:
        spell: Turns the name of a top-level field into the name that the operator uses.
        where: What each line begins with, such as the name of the file.
    """
    lines = [_describe(fault, spell) for fault in error.errors(include_url=False)]
    return "\n".join(f"{where}: {line}" if where else line for line in lines)


def _describe(fault: ErrorDetails, spell: Callable[[str], str] | None) -> str:
    parts = _path_of(fault, spell)
    tag, types = _union_at(parts)
    key = ".".join(part for index, part in enumerate(parts) if index != tag)
    if fault["type"] == "extra_forbidden":
        return f"{key}: no such key{suggest(parts[-1], _keys_beside(parts))}"
    if fault["type"] == "union_tag_invalid":
        return f"{key}.type: no such type{suggest(fault['ctx']['tag'], types)}"
    if fault["type"] == "union_tag_not_found":
        return f"{key}.type: Field required{suggest('', types)}"
    return f"{key}: {reason_of(fault)}" if key else reason_of(fault)


def _path_of(fault: ErrorDetails, spell: Callable[[str], str] | None) -> list[str]:
    parts = [str(p) for p in fault["loc"] if p != "[key]"]
    if spell and parts:
        parts[0] = spell(parts[0])
    return parts


def reason_of(fault: ErrorDetails) -> str:
    """The reason of a fault, without the value."""
    # YAML reads `off` as false and `1.20` as a number.
    return fault["msg"].removeprefix("Value error, ") + (
        "; put it in quotes" if fault["type"] == "string_type" else ""
    )


def suggest(name: str, known: Iterable[str]) -> str:
    """The nearest known name, or all of them if none is near."""
    names = list(known)
    close = get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f" (known: {', '.join(sorted(names))})"


def _union_at(parts: list[str]) -> tuple[int | None, Mapping[str, type[BaseModel]]]:
    """
    Position of the type of a gate or a target in the path of a fault (None: the path has none), and all types.
    """
    # pydantic inserts the type behind the index of the gate or the name of the target, where the YAML has no key.
    if parts[:1] == ["notifications"]:
        return (2 if len(parts) > 2 else None), TARGET_TYPES
    chain = {"defaults": 1, "chains": 2}.get(parts[0] if parts else "")
    is_gate = chain and len(parts) > chain + 2 and parts[chain] == "gates"
    return (chain + 2 if chain and is_gate else None), GATE_TYPES


def _keys_beside(parts: list[str]) -> Iterable[str]:
    """The keys that the YAML allows where an unknown one stands."""
    tag, types = _union_at(parts)
    if tag is not None:
        return types[parts[tag]].model_fields
    model: type[BaseModel] = Config
    for part in parts[:-1]:
        # A part that is no field is a name in a mapping, such as that of a chain.
        if part in model.model_fields:
            model = _model_in(model.model_fields[part].annotation) or model
    return model.model_fields


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model inside of an annotation such as `dict[str, Model]` or `Model | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_in(arg))), None)

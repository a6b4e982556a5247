"""Puts validation errors of settings into words: the place, the reason and the nearest name that exists."""

from collections.abc import Callable, Collection, Iterable, Iterator
from difflib import get_close_matches

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tarsy_scoring.config.gates import GATE_TYPES
from tarsy_scoring.config.notifications import TARGET_TYPES
from tarsy_scoring.config.values import Frozen

_TYPES = {*GATE_TYPES, *TARGET_TYPES}


def explain(error: ValidationError, spell: Callable[[str], str] = str, where: str = "") -> str:
    """
    Describe each fault in one line. Never quotes a value, which may be a secret.

    Args:
        spell: Turns the name of a top-level field into the name that the operator uses.
        where: What each line begins with, such as the name of the file.
    """
    lines = [_describe(fault, spell) for fault in error.errors(include_url=False)]
    return "\n".join(f"{where}: {line}" if where else line for line in lines)


def _describe(fault: ErrorDetails, spell: Callable[[str], str]) -> str:
    place = fault["loc"]
    parts = [str(part) for n, part in enumerate(place) if part != "[key]" and not _is_type(place, n)]
    if parts:
        parts[0] = spell(parts[0])
    key = ".".join(parts)
    if fault["type"] == "extra_forbidden":
        return f"{key}: no such key{nearest(parts[-1], set(_keys_of(Frozen)))}"
    if fault["type"] == "union_tag_invalid":
        return f"{key}.type: no such type{suggest(fault['ctx']['tag'], _TYPES)}"
    if fault["type"] == "union_tag_not_found":
        return f"{key}.type: Field required"
    return f"{key}: {reason_of(fault)}" if key else reason_of(fault)


def _is_type(place: tuple[int | str, ...], n: int) -> bool:
    """Whether pydantic inserted this part: the type of a gate or target, where the YAML has no key."""
    return n > 1 and place[n] in _TYPES and (isinstance(place[n - 1], int) or place[n - 2] == "notifications")


def _keys_of(model: type[BaseModel]) -> Iterator[str]:
    yield from model.model_fields
    for inner in model.__subclasses__():
        yield from _keys_of(inner)


def reason_of(fault: ErrorDetails) -> str:
    """The reason of a fault, without the value."""
    # YAML reads `off` as false and `1.20` as a number.
    return fault["msg"].removeprefix("Value error, ") + (
        "; put it in quotes" if fault["type"] == "string_type" else ""
    )


def suggest(name: str, known: Iterable[str]) -> str:
    """The nearest known name, or all of them if none is near."""
    names = sorted(known)
    return nearest(name, names) or f" (known: {', '.join(names)})"


def nearest(name: str, known: Collection[str]) -> str:
    """The nearest known name as a question to append; empty where none is near."""
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""

"""
What columns of `jsonb` hold, in the shapes that pages rely on. Pure.

Older versions wrote other shapes, judges invent some, and nobody checks either when a page is read. What does not fit
is left out, piece by piece, and never a reason to show no page.
"""

import math
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

MOST = 200  # pieces of one list that a page shows
MAX_CHARACTERS = 20_000  # of one text in a list
LARGEST = 1e15  # beyond it a number is none that anybody counted

Number = int | float


class Stored:
    """Reads the values of one document; `is_cut` once a list was too long to be shown whole."""

    def __init__(self) -> None:
        self.is_cut = False

    def pieces(self, value: Any) -> list[Any]:
        """The first `MOST` of a list; of anything else none."""
        found = list(value) if isinstance(value, list | tuple) else []
        self.is_cut |= len(found) > MOST
        return found[:MOST]

    def named(self, value: Any) -> dict[str, Any]:
        """The first `MOST` values of an object by name; of anything else none."""
        found = value if isinstance(value, Mapping) else {}
        self.is_cut |= len(found) > MOST
        return {text(name): found[name] for name in list(found)[:MOST]}

    def objects(self, value: Any) -> list[dict[str, Any]]:
        """The objects of a list."""
        return [self.named(piece) for piece in self.pieces(value) if isinstance(piece, Mapping)]

    def texts(self, value: Any) -> list[str]:
        """What is not empty in a list, as texts."""
        return [found for piece in self.pieces(value) if (found := text(piece))]

    def labels(self, value: Any) -> dict[str, str]:
        """An object's values as texts."""
        return {name: text(found) for name, found in self.named(value).items()}

    def numbers(self, value: Any) -> dict[str, Number]:
        """An object's values that are numbers."""
        found = {name: number(one) for name, one in self.named(value).items()}
        return {name: one for name, one in found.items() if one is not None}


def number(value: Any) -> Number | None:
    """A number that can be counted with; anything else is None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        return None
    return value if math.isfinite(value) else None


def text(value: Any) -> str:
    """A text as it is, nothing as an empty one, anything else as JSON; its end is left out where it is long."""
    found = value if isinstance(value, str) else "" if value is None else to_json(value).decode()
    return found if len(found) <= MAX_CHARACTERS else found[:MAX_CHARACTERS] + "…"

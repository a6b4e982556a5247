"""A session with characters that PostgreSQL refuses in every place that holds text."""

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

POISON = "\0\ud800"
SURVIVES = "\ufffd"  # the part that is stored


# A session whose texts hold the poison in the place of each skull.
_SESSION = (Path(__file__).parent / "poisoned.json").read_text("utf-8").replace("☠", json.dumps(POISON)[1:-1])


def poisoned(**changes: Any) -> dict[str, Any]:
    """A session with NUL and a lone surrogate in every place that holds text."""
    session = json.loads(_SESSION) | changes
    events = session["stages"][0]["executions"][0]["events"]
    events += [events[0]] * 6
    return session


def texts_of(value: object) -> Iterator[str]:
    """Every text in a record or JSON value, keys included, but for the arguments of tools."""
    if isinstance(value, str):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            if field.name != "arguments":
                yield from texts_of(getattr(value, field.name))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from texts_of(key)
            yield from texts_of(item)
    elif isinstance(value, list | tuple | frozenset):
        for item in value:
            yield from texts_of(item)

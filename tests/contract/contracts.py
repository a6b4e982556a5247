"""The schemas as their readers load them, and the models of incoming messages."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker, ValidationError
from jsonschema.validators import extend
from pydantic import BaseModel

from tarsy_scoring import events

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = ROOT / "schemas"

INCOMING: Mapping[str, type[BaseModel]] = {
    "session-completed": events.SessionCompleted,
    "rescore-requested": events.RescoreRequested,
}
OUTGOING = ["scoring-started", "scoring-progress", "scoring-completed", "scoring-failed", "scoring-request-superseded"]
INSIGHTS = ["scoring-windows", "scoring-drift-detected"]
MESSAGES = [*INCOMING, *OUTGOING, *INSIGHTS]
ALL = [*MESSAGES, "score-document"]
EXAMPLES: dict[str, Any] = {
    p.stem: json.loads(p.read_text("utf-8")) for p in sorted((SCHEMAS / "examples").glob("*.json"))
}


def load_schema(name: str) -> dict[str, Any]:
    """A schema of version 1."""
    schema: dict[str, Any] = json.loads((SCHEMAS / f"{name}.v1.json").read_text("utf-8"))
    return schema


def schema_of_example(example: str) -> str:
    """The schema of an example, whose name begins with that of its schema."""
    (name,) = (n for n in ALL if example.startswith(n))
    return name


def _pattern(_validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    # JSON Schema uses ECMA-262, where `$` is the very end; Python's `$` lets a newline follow.
    if isinstance(instance, str) and not re.search(re.sub(r"\$$", r"\\Z", pattern), instance):
        yield ValidationError(f"the text does not match {pattern!r}")


_Validator: Any = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator, {"pattern": _pattern}
)


def validator(name: str) -> Any:
    """A validator of documents against a schema."""
    return _Validator(load_schema(name), format_checker=FormatChecker())

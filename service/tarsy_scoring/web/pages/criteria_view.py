"""
Criteria as people read them: key by key, and what changed from one content to another. Pure.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

MAX_LINES = 2_000  # of one key; comparing takes the square of it at the worst

Line = tuple[str, str, str]
_LOOKS = {"+": "added", "-": "gone", "@": "place", " ": ""}


@dataclass(frozen=True, slots=True)
class Change:
    """A key with its lines: CSS class, mark, text."""

    key: str
    lines: list[Line]


def in_sections(content: Any) -> list[tuple[str, str]]:
    """What is stored under a hash as keys with their text; hashes of prompts follow from it and stay out."""
    if not isinstance(content, Mapping):
        return [("content", _as_text(content))]
    sections = {key: value for key, value in content.items() if key not in ("prompt_hashes", "added_by_code", "name")}
    added = content.get("added_by_code")
    if isinstance(added, Mapping):
        sections |= {f"added by code: {key}": text for key, text in added.items()}
    return [(key, _as_text(value)) for key, value in sections.items()]


def changes(before: Any, after: Any) -> list[Change]:
    """What the second asks that the first does not, and the other way round."""
    old, new = dict(in_sections(before)), dict(in_sections(after))
    return [
        Change(key, list(_compare(old.get(key, ""), new.get(key, ""))))
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    ]


def _compare(before: str, after: str) -> Iterator[Line]:
    old, new = before.splitlines()[:MAX_LINES], after.splitlines()[:MAX_LINES]
    for line in list(difflib.unified_diff(old, new, lineterm="", n=2))[2:]:
        yield _LOOKS.get(line[:1], ""), line[:1], line[1:]


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)).removesuffix("...\n").strip()

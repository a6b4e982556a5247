"""Values of the page of criteria: their content key by key, and its changes since earlier criteria."""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

MAX_LINES = 2_000  # per key; comparing takes quadratic time in the worst case

Line = tuple[str, str, str]
_CSS_CLASSES = {"+": "added", "-": "gone", "@": "place", " ": ""}


@dataclass(frozen=True, slots=True)
class Change:
    """A key and its changed lines: CSS class, mark, text."""

    key: str
    lines: list[Line]


def in_sections(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The keys of stored criteria with their texts, without the name and the hashes of prompts."""
    sections = {
        key: value for key, value in content.items() if key not in ("prompt_hashes", "added_by_code", "name")
    }
    sections |= {f"added by code: {key}": text for key, text in content.get("added_by_code", {}).items()}
    return [(key, _as_text(value)) for key, value in sections.items()]


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Keys whose text differs, including keys that only one content has."""
    old, new = dict(in_sections(before)), dict(in_sections(after))
    return [
        Change(key, list(_compare(old.get(key, ""), new.get(key, ""))))
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    ]


def _compare(before: str, after: str) -> Iterator[Line]:
    old, new = before.splitlines()[:MAX_LINES], after.splitlines()[:MAX_LINES]
    for line in list(difflib.unified_diff(old, new, lineterm="", n=2))[2:]:
        yield _CSS_CLASSES.get(line[:1], ""), line[:1], line[1:]


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return (
        str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100))
        .removesuffix("...\n")
        .strip()
    )

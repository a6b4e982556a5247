"""Decides whether a schema may replace an older one of its version for programs that know the old one."""

from dataclasses import dataclass, field
from typing import Any, Literal

Direction = Literal["in", "out"]
LOWER_BOUNDS = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
UPPER_BOUNDS = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
ANY_TYPE = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})


@dataclass
class Facts:
    """Constraints of one level of a schema, alternatives merged; covers the shapes of our models."""

    types: frozenset[str] = frozenset()
    words: frozenset[Any] | None = None
    bounds: dict[str, Any] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    parts: dict[str, Any] = field(default_factory=dict)


def facts_of(schema: dict[str, Any], root: dict[str, Any]) -> Facts:
    """Read one level of a schema."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    if "anyOf" in schema:
        return _merge([facts_of(s, root) for s in schema["anyOf"]])
    facts = Facts(types=frozenset({schema["type"]}) if "type" in schema else ANY_TYPE)
    if "integer" in facts.types:
        facts.bounds["whole"] = True
    if "number" in facts.types:
        facts.types |= {"integer"}
    if "enum" in schema or "const" in schema:
        facts.words = frozenset(schema.get("enum", [schema.get("const")]))
    facts.bounds |= {k: schema[k] for k in (*LOWER_BOUNDS, *UPPER_BOUNDS, "pattern", "format") if k in schema}
    facts.required = frozenset(schema.get("required", ()))
    facts.parts = dict(schema.get("properties", {}))
    if "items" in schema:
        facts.parts["[]"] = schema["items"]
    rest = schema.get("additionalProperties")
    if isinstance(rest, dict):
        facts.parts["{}"] = rest
    elif rest is False:
        facts.bounds["closed"] = True
    return facts


def breaches(old: dict[str, Any], new: dict[str, Any], direction: Direction) -> list[str]:
    """
    Changes that break a program that knows `old`, one line each; empty if there are none.

    `in`: accepted messages must stay accepted, so an optional field may be added, and nothing may become
    narrower. `out`: sent messages must stay readable, so nothing may be removed, become optional or become
    wider; a closed list of words stays as it is.
    """
    return _compare(facts_of(old, old), facts_of(new, new), (old, new), direction, "message")


def _compare(old: Facts, new: Facts, roots: tuple[Any, Any], direction: Direction, path: str) -> list[str]:
    found = []
    accepts, given = (new, old) if direction == "in" else (old, new)  # whatever is given must be accepted
    if not given.types <= accepts.types:
        found.append(f"{path}: the types went from {sorted(old.types)} to {sorted(new.types)}")
    if direction == "in" and new.words is not None and (old.words is None or not old.words <= new.words):
        found.append(f"{path}: fewer words are accepted")
    if direction == "out" and old.words is not None and new.words != old.words:
        found.append(f"{path}: the words that may come have changed")
    found += [f"{path}: {b} is another" for b in _stricter(loose=given.bounds, strict=accepts.bounds)]
    if direction == "in" and new.required - old.required:
        found.append(f"{path}: new required fields {sorted(new.required - old.required)}")
    if direction == "out" and old.required - new.required:
        found.append(f"{path}: fields may be missing now {sorted(old.required - new.required)}")
    for name, part in old.parts.items():
        where = f"{path}.{name}"
        if name not in new.parts:
            found.append(f"{where}: is gone")
        else:
            sides = facts_of(part, roots[0]), facts_of(new.parts[name], roots[1])
            found += _compare(*sides, roots, direction, where)
    return found


def _stricter(loose: dict[str, Any], strict: dict[str, Any]) -> list[str]:
    """Bounds of `strict` that refuse something which `loose` lets pass."""
    found = []
    for name, bound in strict.items():
        other = loose.get(name)
        if name in LOWER_BOUNDS:
            is_stricter = other is None or bound > other
        elif name in UPPER_BOUNDS:
            is_stricter = other is None or bound < other
        else:
            is_stricter = other != bound
        if is_stricter:
            found.append(name)
    return found


def _merge(alternatives: list[Facts]) -> Facts:
    """One `Facts` for all alternatives; ours differ by type (mostly: or null), so nothing is lost."""
    merged = Facts(types=frozenset().union(*(a.types for a in alternatives)))
    for a in alternatives:
        merged.bounds |= a.bounds
        merged.parts |= a.parts
        merged.required |= a.required
        if a.words is not None:
            merged.words = (merged.words or frozenset()) | a.words
    return merged

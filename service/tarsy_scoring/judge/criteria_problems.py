"""Problems in a criteria file, each with key and line."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from tarsy_scoring.config.explain import reason_of, suggest
from tarsy_scoring.judge.definition import Category, Definition, RubricItem


@dataclass(frozen=True, slots=True)
class CriteriaProblem:
    """
    One reason why a criteria file is not valid.

    Args:
        key: Key path, such as `rubric.0.weight`; empty where the whole file has the problem.
        line: From 1: the key's line, or where the mapping that lacks it begins. None where no line is known.
    """

    reason: str
    key: str = ""
    line: int | None = None

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        return where + (f"{self.key}: {self.reason}" if self.key else self.reason)


def syntax_problem(error: yaml.YAMLError, text: str) -> CriteriaProblem:
    """Turn a YAML parser error into a problem with a line."""
    if isinstance(error, yaml.reader.ReaderError):
        reason = f"not YAML: the character {error.character:#x} is not allowed"
        return CriteriaProblem(reason, line=text.count("\n", 0, error.position) + 1)
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    return CriteriaProblem(f"not YAML: {problem}", line=mark.line + 1 if mark else None)


def locate_keys(root: yaml.Node | None) -> tuple[dict[tuple[str, ...], int], list[CriteriaProblem]]:
    """
    Find the line for each key and list item by path, and each key that appears twice in one mapping.

    The YAML loader would silently use the last such key.
    """
    lines: dict[tuple[str, ...], int] = {(): root.start_mark.line + 1} if root else {}
    repeated = []
    waiting: list[tuple[tuple[str, ...], yaml.Node | None]] = [((), root)]
    seen = set[int]()
    while waiting:
        path, node = waiting.pop()
        if id(node) in seen:  # an alias may refer to a node that contains it
            continue
        seen.add(id(node))
        children: list[tuple[str, yaml.Node, yaml.Node]] = []
        if isinstance(node, yaml.SequenceNode):
            children = [(str(place), item, item) for place, item in enumerate(node.value)]
        elif isinstance(node, yaml.MappingNode):
            children = [(str(key.value), key, value) for key, value in node.value]
        here: dict[str, int] = {}
        for name, key, value in children:
            inner, line = (*path, name), key.start_mark.line + 1
            if name in here:
                reason = f"is given twice, first in line {here[name]}"
                repeated.append(CriteriaProblem(reason, ".".join(inner), line))
            here.setdefault(name, line)
            lines.setdefault(inner, line)
            waiting.append((inner, value))
    return lines, repeated


_PARTS: dict[str, type[BaseModel]] = {"categories": Category, "rubric": RubricItem}


def explain(
    error: ValidationError, loaded: Mapping[str, Any], lines: Mapping[tuple[str, ...], int]
) -> Iterator[CriteriaProblem]:
    """
    Turn each validation error into a problem with key and line.

    Args:
        loaded: The file as Python values.
        lines: By key path, see `locate_keys`.
    """
    for details in error.errors(include_url=False):
        path = tuple(str(part) for part in details["loc"] if part != "[key]")
        reason = reason_of(details)
        if details["type"] == "extra_forbidden":
            model = _PARTS.get(path[0], Definition) if len(path) > 1 else Definition
            reason = f"no such key{suggest(path[-1], model.model_fields)}"
        # A problem between keys has no path, but the reason names the keys.
        place = path or tuple(word for word in re.findall(r"\w+", reason) if word in loaded)[:1]
        while place not in lines:  # a key that is missing is looked for in the mapping that lacks it
            place = place[:-1]
        yield CriteriaProblem(reason, ".".join(path), lines[place])

"""Problems of a criteria file, each with the key and the line that it is about."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from tarsy_scoring.judge.definition import Category, Definition, RubricItem, did_you_mean


@dataclass(frozen=True, slots=True)
class CriteriaProblem:
    """
    One reason why a criteria file is not valid.

    Args:
        key: Path of the key, such as `rubric.0.weight`; empty for a problem of the whole file.
        line: From 1: the line of the key, or of the mapping that lacks it. None where no line is known.
    """

    reason: str
    key: str = ""
    line: int | None = None

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        return where + (f"{self.key}: {self.reason}" if self.key else self.reason)


def syntax_problem(error: yaml.YAMLError, text: str) -> CriteriaProblem:
    """The problem of a text that is not YAML."""
    if isinstance(error, yaml.reader.ReaderError):
        reason = f"not YAML: the character {error.character:#x} is not allowed"
        return CriteriaProblem(reason, line=text.count("\n", 0, error.position) + 1)
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    return CriteriaProblem(f"not YAML: {problem}", line=mark.line + 1 if mark else None)


def repeated_keys(root: yaml.Node | None) -> Iterator[CriteriaProblem]:
    """Keys that appear twice in one mapping: the YAML loader would silently use the last one."""
    waiting, seen = [("", root)], set[int]()
    while waiting:
        path, node = waiting.pop()
        if node is None or id(node) in seen:  # an alias may refer to a node that contains it
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += [(f"{path}{place}.", item) for place, item in enumerate(node.value)]
        elif isinstance(node, yaml.MappingNode):
            lines: dict[str, int] = {}
            for key, value in node.value:
                name, line = str(key.value), key.start_mark.line + 1
                if name in lines:
                    yield CriteriaProblem(f"is given twice, first in line {lines[name]}", path + name, line)
                lines.setdefault(name, line)
                waiting.append((f"{path}{name}.", value))


_PARTS: dict[str, type[BaseModel]] = {"categories": Category, "rubric": RubricItem}


def explain(error: ValidationError, loaded: Mapping[str, Any], root: yaml.Node | None) -> Iterator[CriteriaProblem]:
    """
    The problems that validation found.

    Args:
        loaded: The file as Python values.
        root: The same file as YAML nodes, which know their lines.
    """
    for details in error.errors(include_input=False, include_url=False):
        path = [part for part in details["loc"] if part != "[key]"]
        reason = details["msg"].removeprefix("Value error, ")
        if details["type"] == "extra_forbidden":
            model = _PARTS.get(str(path[0]), Definition) if len(path) > 1 else Definition
            reason = f"no such key{did_you_mean(str(path[-1]), model.model_fields)}"
        # A problem between keys has no path, but its reason names the keys.
        named = [word for word in re.findall(r"\w+", reason) if word in loaded]
        yield CriteriaProblem(reason, ".".join(map(str, path)), _line_of(path or named[:1], root))


def _line_of(path: Sequence[int | str], root: yaml.Node | None) -> int | None:
    """The line of the deepest part of the path that the file contains."""
    node, line = root, root.start_mark.line + 1 if root else None
    for part in path:
        if isinstance(node, yaml.MappingNode):
            found = {key.value: (key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)}
            key, node = found.get(str(part), (None, None))
            line = key.start_mark.line + 1 if key else line
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            break
    return line

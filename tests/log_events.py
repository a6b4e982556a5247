"""The log events in the source of the service."""

import ast
import re
from collections import defaultdict
from pathlib import Path

LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
NAME = re.compile(r"[a-z_]+(\.[a-z_0-9]+)+")


def log_events(package: Path) -> dict[str, set[str]]:
    """Every dotted event name in the logging calls of a package, with its levels."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS:
                said = (n.value for first in node.args[:1] for n in ast.walk(first) if isinstance(n, ast.Constant))
                for name in filter(NAME.fullmatch, map(str, said)):
                    found[name].add(node.func.attr)
    return dict(found)

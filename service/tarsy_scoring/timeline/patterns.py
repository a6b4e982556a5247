"""Compiles RE2 patterns over UTF-8 bytes, and reads the rules that are kept as YAML beside this module."""

import re
from typing import Any

import re2

from tarsy_scoring.config.packaged import packaged_yaml

_FRAGMENT = re.compile(r"\{([A-Z_]+)\}")


def compile_bytes(pattern: str, *, capture: bool = True) -> "re2._Regexp":
    """Compile an RE2 pattern over UTF-8 bytes; without captures it always runs in the DFA."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # bytes in, bytes out: no offsets to convert
    options.max_mem = 32 << 20  # room for the DFA; when it runs out RE2 gets slower, not wrong
    options.log_errors = False
    options.never_capture = not capture
    return re2.compile(pattern.encode(), options)


def compile_set(patterns: list[str], *, whole: bool = True, anywhere: bool = False) -> "re2.Set":
    """Compile patterns over bytes so that one search says which match a whole text, its beginning, or any part."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.max_mem = 32 << 20
    options.log_errors = False
    made = re2.Set.SearchSet if anywhere else re2.Set.FullMatchSet if whole else re2.Set.MatchSet
    compiled = made(options)
    for pattern in patterns:
        compiled.Add(pattern.encode())
    compiled.Compile()
    return compiled


def read_rules(file: str, key: str) -> Any:
    """The value under `key` of a rule file, with line breaks removed and fragments filled in."""
    loaded = packaged_yaml(__package__, file)
    fragments: dict[str, str] = {}
    for name, pattern in loaded.get("fragments", {}).items():
        filled = _fill(pattern, fragments)
        fragments[name] = "|".join(filled) if isinstance(filled, list) else filled
    return _fill(loaded[key], fragments)


def _fill(value: Any, fragments: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _fill(part, fragments) for key, part in value.items()}
    if isinstance(value, list):
        return [_fill(part, fragments) for part in value]
    if not isinstance(value, str):
        return value
    return _FRAGMENT.sub(lambda match: fragments[match[1]], value.replace("\n", ""))

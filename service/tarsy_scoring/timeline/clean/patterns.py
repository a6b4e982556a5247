"""Compiles RE2 patterns over UTF-8 bytes, and reads the rules that are kept as YAML beside this module."""

import re
from functools import cached_property
from typing import Any

import re2

from tarsy_scoring.config.packaged import packaged_yaml

_FRAGMENT = re.compile(r"\{([A-Z_]+)\}")


class BytesPattern:
    """
    An RE2 pattern over UTF-8 bytes with the methods of a compiled one; without captures it always runs in the DFA.

    It compiles at the first use: most rules are searched in few sessions or none, and RE2 takes half a
    millisecond and 30 KB for each.
    """

    def __init__(self, pattern: str, *, capture: bool) -> None:
        self.pattern = pattern
        self._capture = capture

    @cached_property
    def compiled(self) -> "re2._Regexp":
        """The compiled pattern. Raises: re2.error: It is not a regular expression of RE2."""
        options = _options()
        options.never_capture = not self._capture
        return re2.compile(self.pattern.encode(), options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = self.__dict__[name] = getattr(self.compiled, name)  # later calls go there directly
        return found


def _options() -> "re2.Options":
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # bytes in, bytes out: no offsets to convert
    options.max_mem = 32 << 20  # room for the DFA; when it runs out RE2 gets slower, not wrong
    options.log_errors = False
    return options


def compile_bytes(pattern: str, *, capture: bool = True) -> BytesPattern:
    """An RE2 pattern over UTF-8 bytes, compiled at the first use."""
    return BytesPattern(pattern, capture=capture)


def read_rules(file: str, key: str) -> Any:
    """The value under `key` of a rule file, with line breaks removed and fragments filled in."""
    loaded = packaged_yaml(__package__, file)
    fragments: dict[str, str] = {}
    for name, pattern in loaded.get("fragments", {}).items():
        filled = _fill(pattern, fragments)
        fragments[name] = f"(?:{'|'.join(filled)})" if isinstance(filled, list) else filled
    return _fill(loaded[key], fragments)


def _fill(value: Any, fragments: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _fill(part, fragments) for key, part in value.items()}
    if isinstance(value, list):
        return [_fill(part, fragments) for part in value]
    if not isinstance(value, str):
        return value
    return _FRAGMENT.sub(lambda match: fragments[match[1]], value.replace("\n", ""))

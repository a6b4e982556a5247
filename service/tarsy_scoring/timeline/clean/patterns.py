"""Compiles RE2 patterns over UTF-8 bytes, and reads the rules that are kept as YAML beside this module."""

import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import re2

from tarsy_scoring.config.packaged import packaged_yaml

_FRAGMENT = re.compile(r"\{([A-Z_]+)\}")


class BytesPattern:
    """
    An RE2 pattern over UTF-8 bytes, compiled at its first use; without captures it always runs in the DFA.

    Most rules of secrets and injections are searched in few sessions or none. RE2 takes half a millisecond
    and 30 KB for each.
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

    # From the first use on, a call of one of these goes to the compiled pattern directly.

    @cached_property
    def search(self) -> "Callable[..., re2._Match | None]":
        return self.compiled.search  # type: ignore[no-any-return]

    @cached_property
    def match(self) -> "Callable[..., re2._Match | None]":
        return self.compiled.match  # type: ignore[no-any-return]

    @cached_property
    def fullmatch(self) -> "Callable[..., re2._Match | None]":
        return self.compiled.fullmatch  # type: ignore[no-any-return]

    @cached_property
    def finditer(self) -> "Callable[..., Iterator[re2._Match]]":
        return self.compiled.finditer  # type: ignore[no-any-return]

    @cached_property
    def sub(self) -> Callable[..., bytes]:
        return self.compiled.sub  # type: ignore[no-any-return]


class BytesSet:
    """Patterns over bytes, compiled together at their first use."""

    def __init__(self, patterns: list[str], make: "Callable[[re2.Options], re2.Set]") -> None:
        self.patterns = patterns
        self._make = make

    @cached_property
    def compiled(self) -> "re2.Set":
        """The compiled set."""
        compiled = self._make(_options())
        for pattern in self.patterns:
            compiled.Add(pattern.encode())
        compiled.Compile()
        return compiled

    @cached_property
    def Match(self) -> Callable[[bytes], list[int]]:  # noqa: N802  # the name in RE2
        return self.compiled.Match  # type: ignore[no-any-return]


def compile_bytes(pattern: str, *, capture: bool = True) -> BytesPattern:
    """An RE2 pattern over UTF-8 bytes; without captures it always runs in the DFA."""
    return BytesPattern(pattern, capture=capture)


def compile_set(patterns: list[str], *, whole: bool = True, anywhere: bool = False) -> BytesSet:
    """Patterns of which one search says which match a whole text, its beginning, or any part."""
    return BytesSet(
        patterns, re2.Set.SearchSet if anywhere else re2.Set.FullMatchSet if whole else re2.Set.MatchSet
    )


def _options() -> "re2.Options":
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # bytes in, bytes out: no offsets to convert
    options.max_mem = 32 << 20  # room for the DFA; when it runs out RE2 gets slower, not wrong
    options.log_errors = False
    return options


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

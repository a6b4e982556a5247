"""
Finds secrets that their own shape or place identifies, by the rules of `secrets.yaml` and `gitleaks.yaml`.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import re2

from tarsy_scoring.timeline.clean.masking.harmless import Candidate, is_harmless
from tarsy_scoring.timeline.clean.masking.values import READERS, STRETCH_BYTES, Checks, Secret, Value
from tarsy_scoring.timeline.clean.patterns import BytesSet, compile_bytes, read_rules

# The escape that may stand before a token: `EDGE` of `secrets.yaml`.
_EDGE = re.compile(rb"\\+[nrt]|%[0-9A-Fa-f]{2}|\\+u00[0-9a-f]{2}")

_LARGE_COUNT = re.compile(r"\{(?:\d\d+(?:,\d*)?|[1-9],\d\d+)\}")


class Rule(NamedTuple):
    """A rule as `secrets.yaml` explains it."""

    kind: str
    pattern: str
    value: str = ""
    unless: tuple[str, ...] = ()
    loose: bool = False

    @property
    def searched(self) -> str:
        """
        The pattern; without large counts if it is loose, for RE2 has too many states for hundreds of them.
        """
        return _LARGE_COUNT.sub("+", self.pattern) if self.loose else self.pattern


class Rules:
    """
    Rules that are searched together; a secret of one of them may not begin within a match of another.

    Args:
        window: Bytes in which a match must begin and end; None: any number. A pattern that may go on to the
            end of a line is searched there before another that matches at once, so that many matches in a
            long line would each read the rest of it.
    """

    def __init__(self, rules: Sequence[Rule], window: int | None = None) -> None:
        self._window = window
        self.pattern = "|".join(f"(?:{rule.searched})" for rule in rules)
        self._rules = rules
        self.any = compile_bytes(self.pattern, capture=False)
        self._which = BytesSet([rule.searched for rule in rules])
        self._each = [compile_bytes(rule.pattern) for rule in rules]

    def _which_rules(self, data: bytes, start: int, end: int) -> list[int]:
        """The rules in the order in which they may match there: first those within the match of them all."""
        # A search with captures would say it, too; over this many rules it takes 50 microseconds.
        within = sorted(self._which.compiled.Match(data[start:end]) or ())
        return [*within, *(index for index in range(len(self._rules)) if index not in within)]

    def _value(self, index: int, data: bytes, start: int) -> Value | None:
        parts = self._each[index].match(data, start, start + (self._window or len(data)))
        if parts is None:
            return None
        if reader := self._rules[index].value:
            return READERS[reader](data, parts.end())
        if parts.lastindex is not None:
            return parts.start(parts.lastindex), parts.end(parts.lastindex)
        edge = _EDGE.match(data, start)
        return edge.end() if edge else start, parts.end()

    def _next(self, data: bytes, position: int) -> "re2._Match | None":
        size = self._window or len(data)
        while position < len(data):
            end = position + size
            match = self.any.search(data, position, end)
            if end >= len(data) or (match is not None and match.start() == position):
                return match
            if match is not None and match.end() < end - size // 2:
                return match
            # What begins near the end of a window is searched again in a window of its own.
            position = match.start() if match is not None else end - size // 4
        return None

    def find(self, data: bytes, checks: Checks) -> Iterator[Secret]:
        """The secrets in a text, in order."""
        position = 0
        while (match := self._next(data, position)) is not None:
            start, position = match.span()
            if checks.are_used_up():
                position = min(len(data), position + STRETCH_BYTES)
                yield Secret(start, position, "stretch")
                continue
            for index in self._which_rules(data, start, position):
                rule = self._rules[index]
                value = self._value(index, data, start)
                if value and value[0] < value[1] and not is_harmless(Candidate(data, value), rule.unless):
                    yield Secret(*value, rule.kind)
                    position = max(position, value[1])
                    break


def _read(group: str, window: int | None = None) -> Rules:
    return Rules([Rule(**rule) for rule in read_rules("masking/secrets.yaml", group)], window)


def _tokens() -> Rules:
    shapes = [
        *read_rules("masking/secrets.yaml", "tokens"),
        *read_rules("masking/gitleaks.yaml", "tokens").values(),
    ]
    edge = read_rules("masking/secrets.yaml", "edge")
    apart = "|".join(f"(?:{shape})" for shape in shapes)  # or `(?i)` of one would hold for those behind it
    return Rules([Rule("token", f"{edge}(?:{apart})[\\w-]*=?=?", unless=("unfinished",), loose=True)])


TOKENS = _tokens()
SHAPES, PLACES, SENTENCES, OUTPUTS, LINES = map(_read, ("shapes", "places", "sentences", "outputs", "lines"))
COMMANDS = _read("commands", window=4_000)

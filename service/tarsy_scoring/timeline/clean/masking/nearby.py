"""
Finds values that look like secrets behind words that announce one, where no structure joins the two.

It stands behind the precise rules, for texts of tools that these do not know: `AUTH default x1Y`. The kinds
of its
characters make a value suspicious, and `harmless.yaml` spares ids, digests, paths, and values of other names.
"""

import re
from collections.abc import Iterator

from tarsy_scoring.timeline.clean.masking.harmless import Candidate, is_harmless
from tarsy_scoring.timeline.clean.masking.names import level_at
from tarsy_scoring.timeline.clean.masking.values import Checks, Secret, Value
from tarsy_scoring.timeline.clean.patterns import compile_bytes, read_rules

NEARBY_PATTERN = f"(?i:{'|'.join(read_rules('masking/names.yaml', 'announcing'))})"
_ANY = compile_bytes(NEARBY_PATTERN, capture=False)
_REASONS = ("placeholder", "weak", "stated", "nearby")
_REACH = 140  # bytes behind a word, on its line and the next one
_MAX_BYTES = 200  # of a value
_IN_VALUE = rb"[^\s\"'`<>\[\]{},;|\\()\x80-\xff]"
_VALUE = re.compile(_IN_VALUE + rb"{6,%d}" % _MAX_BYTES)
_IDENTIFIER = re.compile(rb"[\w-]{0,60}")
# The rest of a name whose word was found: up to its value, or the end of the word.
_REST = re.compile(rb"[\w.$-]{0,60}(?:=>?|:=?)(?=[^/=:\s])|" + _IN_VALUE + rb"{0,%d}" % _MAX_BYTES)
_NAME = re.compile(rb"[\w.$-]{1,60}(?:=>?|:=?|::)(?=[^/=:\s])")
# A letter beside a digit or a sign, or a capital behind a hyphen.
_ODD = re.compile(rb"[A-Za-z][0-9!@#$%^&*~+]|[0-9!@#$%^&*~+][A-Za-z]|[A-Za-z0-9][-_.][A-Z]")
_BREAK = re.compile(rb"\n|\\n")


def find_nearby(data: bytes, checks: Checks) -> Iterator[Secret]:
    """
    The values behind announcing words, in order; none behind the last check, where the names are masked.
    """
    position = seen = 0
    while (match := _ANY.search(data, position)) is not None and not checks.are_words_used_up():
        first, position = match.span()
        end = _end(data, position)
        if _ODD.search(data, position, end) is None or _names_another_thing(data, first, position):
            continue
        rest = _REST.match(data, position)
        for value in _values(data, max(seen, rest.end() if rest else position), end):
            seen = value[1]
            if checks.are_used_up():
                return
            if not is_harmless(Candidate(data, value), _REASONS):
                yield Secret(*value, "secret")


def _names_another_thing(data: bytes, start: int, end: int) -> bool:
    """Whether a word belongs to a name such as `csrf_token` or `password_policy`."""
    name = _IDENTIFIER.match(data, end)
    level = level_at(data, start, name.end() if name else end)
    return bool(level.names) and not level.kind


def _end(data: bytes, position: int) -> int:
    """Where the reach of a word ends: with the next line at the latest."""
    limit = min(len(data), position + _REACH)
    breaks = [found.start() for found in _BREAK.finditer(data, position, limit)]
    return breaks[1] if len(breaks) > 1 else limit


def _values(data: bytes, start: int, end: int) -> Iterator[Value]:
    """The words that begin in a stretch and look odd; a name before a value is left out."""
    for word in _VALUE.finditer(data, start, end + _MAX_BYTES):
        first, last = word.span()
        if first >= end:
            return
        while name := _NAME.match(data, first, last):
            first = name.end()
        if not word[0].endswith(b"=="):
            last = first + len(data[first:last].rstrip(b".,:!?/"))
        if last - first >= 6 and _ODD.search(data, first, last):
            yield first, last

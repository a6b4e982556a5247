"""
Finds where the value behind a name begins and ends.

A text may hold JSON in JSON in JSON, so that each quotation mark may stand behind backslashes, and a line end
may be a written `\\n`. Each reader is linear in the value.
"""

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

Value = tuple[int, int]
"""Start and end offset."""


class Span(NamedTuple):
    """A stretch of a text, and what was found there; offsets count UTF-8 bytes."""

    start: int
    end: int
    kind: str


def join(spans: Iterable[Span]) -> list[Span]:
    """Join overlapping spans; the first one names the kind. An empty span joins others and is none itself."""
    joined: list[Span] = []
    for span in sorted(spans, key=lambda span: span.start):  # stable
        if joined and span.start < joined[-1].end:
            joined[-1] = joined[-1]._replace(end=max(joined[-1].end, span.end))
        elif span.end > span.start:
            joined.append(span)
    return joined


class ChecksUsedUp(Exception):
    """No check is left for the text from `start` on."""

    def __init__(self, start: int) -> None:
        self.start = start


class Checks:
    """
    Counts how many names may still be checked in a session.

    A check takes about 50 microseconds, and a hostile text can hold a million names. Behind the last check the
    rest of each text that holds one is masked. Words that announce a secret without a name's structure are
    ordinary words, too: they have a number of their own, and nothing is masked behind the last one.
    """

    def __init__(self, left: int = 20_000, words: int = 20_000) -> None:
        self.left = left
        self.words = words

    def spend(self, start: int) -> None:
        """Count the check of a name at `start`. Raises: ChecksUsedUp: None was left."""
        self.left -= 1
        if self.left < 0:
            raise ChecksUsedUp(start)


_OPENING = re.compile(rb"""(?:[bBrRuUfF@$]?(\\*(?:\"\"\"|'''|["'`])|&quot;|&#3[49];|%2[27]|\\+u002[27]))""")
# What refers to a value or stands for it, to the end: `${{ secrets.KEY }}`, `!Ref Key`, `(known after
# apply)`, and a variable and a type of GraphQL.
_REFERENCE = re.compile(
    rb"""\$?\{\{[^\n]{0,400}?\}\}|\$\{[^}\n]{0,400}\}|\$\([^)\n]{0,400}\)|<[a-z][^<>\n]{0,80}>|\([a-z][a-z ,-]*\)
    |\[?\{(?!\s*(?:value|plaintext|secureString)\b)[a-z]\w*:[ ]
    |\$\w{1,80}[,)][\s{}$]|\[?(?:String|ID|Int|Boolean|[A-Z]\w{1,80}Input)!?\]?!?[,)][\s{}$]
    |!(?:Ref|Sub|GetAtt|ImportValue|vault|secret|env|ENV|reference)\b""",
    re.VERBOSE,
)
_BLOCK = re.compile(rb"[|>][-+0-9]{0,2}[ \t]*(?=\r?\n|\\+r?\\*n)")
_LINE_END = re.compile(rb"[ \t]*(?:\r?\n|\\+r?\\*n)")
# A value without quotation marks ends at a blank. Punctuation belongs to it unless another name follows.
_BARE = re.compile(
    rb"""(?:[^\s"'`\\,;&|<>(){}\[\]]
    |\\+(?![nrtu"'`\\/])
    |[;&](?!\s|[A-Za-z_][\w.-]*=|(?:amp|quot|lt|gt|\#\d+);)(?!$)
    |,(?![\s"'\\,]|[\w.-]+[=:])
    |[|<>(){}\[\]]+(?=[A-Za-z0-9!@\#$%^*_+~?-])(?!quot|/)
    |["'](?=[A-Za-z0-9!@\#$%^*_+~?.-]{2}[^\s:=,]*[\s\"'])
    )+""",
    re.VERBOSE,
)
_ARGUMENT = re.compile(rb"""(?:[^\s"'`\\;|&<>]|[;|&<>](?=[A-Za-z0-9!@#$%^*_+~?]))+""")
_TRAILING = b").]}>,;:|"
_LONGEST_BLOCK = 8_000  # of a value of several lines, or many names could each read the rest of a text


@cache
def _closing(mark: bytes) -> "re.Pattern[bytes]":
    return re.compile(rb"(\\*)" + re.escape(mark.lstrip(b"\\")) + rb"|(\n)")


def quoted(data: bytes, position: int, mark: bytes) -> int:
    """
    Index of the closing quote, or of the line end where none closes the value.

    JSON in JSON doubles the backslashes: a mark closes the value when it stands behind as many as the opening
    mark, and belongs to it when it stands behind more.
    """
    depth = len(mark) - len(mark.lstrip(b"\\"))
    for found in _closing(mark).finditer(data, position):
        if found[2] is not None:
            return found.start()
        behind = len(found[1])
        if behind < depth or behind % (2 * depth + 2) != 2 * depth + 1:
            return found.start() if behind <= depth else found.end(1) - depth
    return len(data)


def read_assigned(data: bytes, position: int) -> Value | None:
    """Read an assigned value: quoted, bare, or a YAML block."""
    if _REFERENCE.match(data, position):
        return None
    if opening := _OPENING.match(data, position):
        return opening.end(), quoted(data, opening.end(), opening[1])
    if block := _BLOCK.match(data, position):
        return _indented(data, position, block.end())
    return _bare(_BARE, data, position)


def read_argument(data: bytes, position: int) -> Value | None:
    """Read a command-line argument."""
    if opening := _OPENING.match(data, position):
        return opening.end(), quoted(data, opening.end(), opening[1])
    return None if data[position : position + 1] == b"-" else _bare(_ARGUMENT, data, position)


def _bare(pattern: "re.Pattern[bytes]", data: bytes, position: int) -> Value | None:
    match = pattern.match(data, position)
    return match and (position, position + len(match[0].rstrip(_TRAILING)))


def _indented(data: bytes, position: int, line_end: int) -> Value | None:
    """The lines below that are indented deeper than this line."""
    floor = max(0, position - 400)
    line_start = (
        max(data.rfind(b"\n", floor, position), data.rfind(b"\\n", floor, position) + 1, floor - 1) + 1
    )
    line = data[line_start:position]
    depth = min(len(line) - len(line.lstrip(b" \t-")), 60)
    lines = re.compile(
        rb"(?:[ \t]*(?:\r?\n|\\+r?\\*n)[ \t]{%d,}(?:[^\n\\\"]|\\+(?![nr\\\"]))+)+" % (depth + 1)
    )
    match = lines.match(data, line_end, line_end + _LONGEST_BLOCK)
    if match is None:
        return None
    first = _LINE_END.sub(b"", match[0], count=1).lstrip()
    return match.end() - len(first), match.end()


READERS: dict[str, Callable[[bytes, int], Value | None]] = {
    "argument": read_argument,
    "assigned": read_assigned,
}

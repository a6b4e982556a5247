"""Finds values in columns that a heading names: tables of terminals, CSV, and the rows of an SQL INSERT."""

import re
from collections.abc import Iterator

from tarsy_scoring.timeline.masking.harmless import Candidate, is_harmless
from tarsy_scoring.timeline.masking.names import level_of
from tarsy_scoring.timeline.masking.values import Checks, Secret, Value
from tarsy_scoring.timeline.patterns import compile_bytes

_WORD = r"(?i:pass(?:word|wd|phrase|code)?|pwd|secret|token|key|credential)s?"
_INSERT = r"(?i:insert)\s+(?i:into)\s+[^\s()]+\s*\([^()]*\)\s*(?i:values)\s*\("
TABLE_PATTERN = rf"""{_WORD}["'`]?[ \t]*(?:[|,;\t]|[ ]{{2}}|\r?\n|\\+r?\\*n)|{_INSERT}"""
_HEADING = compile_bytes(TABLE_PATTERN, capture=False)
_WORD_AT_END = re.compile(_WORD.encode() + rb"\Z")
_BREAK = re.compile(rb"\r?\n|(?<!\\)\\+r?\\*n")
# By what separates the columns of the line in which the heading stands.
_CELLS = {
    mark: re.compile(rb'"(?:[^"]|"")*"|[^%b]+' % re.escape(mark)) for mark in (b"|", b"\t", b";", b",")
} | {b"  ": re.compile(rb"\S+(?: \S+)*")}
_LISTED = re.compile(rb"'(?:[^'\\]|''|\\.)*'|\"[^\"\n]*\"|[^\s,()'\"]+")
_ROW = re.compile(rb"\(((?:'(?:[^'\\]|''|\\.)*'|[^()'])*)\)\s*,?\s*")
_RULE = re.compile(rb"[-+=|:\s]*")
_MAX_ROWS = 1_000


def find_columns(data: bytes, checks: Checks) -> Iterator[Secret]:
    """The values below headings that name secrets."""
    position = 0
    while (match := _HEADING.search(data, position)) is not None and not checks.are_used_up():
        start, end = match.span()
        if data[end - 1 : end] == b"(":
            columns = _LISTED.findall(data, data.index(b"(", start), data.rindex(b")", start, end))
            rows: Iterator[list[Value]] = _inserted(data, end - 1)
        else:
            start = max(data.rfind(b"\n", max(0, start - 400), start), data.rfind(b"\\n", max(0, start - 400), start) + 1) + 1
            broken = _BREAK.search(data, max(start, end - 3), start + 1_000)
            end = broken.start() if broken else min(len(data), start + 1_000)
            line = data[start:end]
            cells = next((cells for mark, cells in _CELLS.items() if mark in line.strip()), None)
            columns = cells.findall(line) if cells else []
            rows = _lines(data, end, cells, len(columns)) if cells else iter(())
        position = max(end, match.end())
        levels = [level_of(column.strip(b" \t\"'`")) for column in columns]
        if not any(level.kind and _WORD_AT_END.search(column.strip(b" \t\"'`")) for level, column in zip(levels, columns, strict=True)):
            continue
        for row in rows:
            for level, value in zip(levels, row, strict=False):
                if level.kind and not is_harmless(Candidate(data, value), (*level.unless, "cell")):
                    yield Secret(*value, level.kind)


def _lines(data: bytes, position: int, cells: "re.Pattern[bytes]", count: int) -> Iterator[list[Value]]:
    """The cells of the lines below, as long as they are as many as the headings."""
    for _ in range(_MAX_ROWS):
        broken = _BREAK.match(data, position)
        if broken is None:
            return
        following = _BREAK.search(data, broken.end(), broken.end() + 4_000)
        position = following.start() if following else min(len(data), broken.end() + 4_000)
        if _RULE.fullmatch(data, broken.end(), position):
            continue
        row = [found.span() for found in cells.finditer(data, broken.end(), position)]
        if len(row) != count or count < 2:
            return
        yield [_stripped(data, value) for value in row]


def _inserted(data: bytes, position: int) -> Iterator[list[Value]]:
    for _ in range(_MAX_ROWS):
        row = _ROW.match(data, position)
        if row is None:
            return
        yield [_stripped(data, found.span()) for found in _LISTED.finditer(data, *row.span(1))]
        position = row.end()


def _stripped(data: bytes, value: Value) -> Value:
    start, end = value
    text = data[start:end]
    bare = text.strip(b" \t\"'`\r")
    return (start + text.index(bare), start + text.index(bare) + len(bare)) if bare else (start, start)

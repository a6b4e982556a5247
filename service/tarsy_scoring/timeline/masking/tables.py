"""Finds values in columns that a heading names: tables of terminals, CSV, and the rows of an SQL INSERT."""

import re
from collections.abc import Iterator

from tarsy_scoring.timeline.masking.harmless import Candidate, is_harmless
from tarsy_scoring.timeline.masking.names import Level, level_of
from tarsy_scoring.timeline.masking.values import STRETCH_BYTES, Checks, Secret, Value
from tarsy_scoring.timeline.patterns import compile_bytes

_OWNED = r"(?i:(?:api|access|secret|private) )?"
_WORD = r"(?i:pass(?:word|wd|phrase|code)?|pwd|secret|token|key|credential)s?"
_INSERT = r"(?i:insert)\s+(?i:into)\s+[^\s()]+\s*\([^()]*\)\s*(?i:values)\s*\("
TABLE_PATTERN = (
    rf"""(?:\A|\n|\\n|[|,;\t]|[ ]{{2}})[ \t]*["'`]?(?:[A-Za-z0-9]+[_-])*{_OWNED}{_WORD}["'`]?[ \t]*"""
    rf"""(?:[|,;\t]|[ ]{{2}}|\r?\n|\\+r?\\*n)|{_INSERT}"""
)
_HEADING = compile_bytes(TABLE_PATTERN, capture=False)
_WORD_WITHIN = re.compile(_WORD.encode())
_WORD_AT_END = re.compile(_WORD.encode() + rb"\Z")
_BREAK = re.compile(rb"\r?\n|(?<!\\)\\+r?\\*n")
# By what separates the columns of the line in which the heading stands.
_CELLS = {mark: re.compile(rb'"(?:[^"]|"")*"|[^%b]+' % re.escape(mark)) for mark in (b"|", b"\t", b";", b",")} | {
    b"  ": re.compile(rb"\S+(?: \S+)*")
}
_LISTED = re.compile(rb"'(?:[^'\\]|''|\\.)*'|\"[^\"\n]*\"|[^\s,()'\"]+")
_ROW = re.compile(rb"\(((?:'(?:[^'\\]|''|\\.)*'|[^()'])*)\)\s*,?\s*")
_RULE = re.compile(rb"[-+=|:\s]*")
_MAX_ROWS = 1_000
_MAX_HEADING_BYTES = 60
_MAX_COLUMNS = 40
_TITLE = re.compile(rb"(?:[A-Za-z#_][^,;|]*)?")


def find_columns(data: bytes, checks: Checks) -> Iterator[Secret]:
    """The values below headings that name secrets."""
    position = 0
    while (match := _HEADING.search(data, position)) is not None:
        if checks.are_used_up():
            position = min(len(data), match.end() + STRETCH_BYTES)
            yield Secret(match.start(), position, "stretch")
            continue
        columns, rows, end = _table(data, *match.span())
        position = max(end, match.end())
        headings = [column.strip(b" \t\"'`") for column in columns[:_MAX_COLUMNS]]
        levels = [_level(heading) for heading in headings]
        if not any(levels) or not all(map(_TITLE.fullmatch, headings)):
            continue
        for row in rows:
            for level, value in zip(levels, row, strict=False):
                reasons = (*level.unless, "cell") if level else ()
                if level and (checks.are_used_up() or not is_harmless(Candidate(data, value), reasons)):
                    yield Secret(*value, level.kind)
                position = max(position, value[1])


def _level(heading: bytes) -> Level | None:
    if len(heading) > _MAX_HEADING_BYTES or _WORD_AT_END.search(heading) is None:
        return None
    level = level_of(heading)
    return level if level.kind else None


def _table(data: bytes, start: int, end: int) -> tuple[list[bytes], Iterator[list[Value]], int]:
    """The headings in the line or list of a heading, the rows below, and where the rows begin."""
    if data[end - 1 : end] == b"(":
        columns = _LISTED.findall(data, data.index(b"(", start), data.rindex(b")", start, end))
        return columns, _inserted(data, end - 1), end
    start = _WORD_WITHIN.search(data, start).start()  # type: ignore[union-attr]  # the match holds it
    floor = max(0, start - 400)
    start = max(floor, data.rfind(b"\n", floor, start) + 1, data.rfind(b"\\n", floor, start) + 2)
    broken = _BREAK.search(data, max(start, end - 3), start + 1_000)
    end = broken.start() if broken else min(len(data), start + 1_000)
    line = data[start:end].strip()
    cells = next((cells for mark, cells in _CELLS.items() if mark in line), _CELLS[b"  "])
    columns = cells.findall(line)
    return columns, _lines(data, end, cells, len(columns)), end


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

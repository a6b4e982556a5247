"""Finds values in columns that a heading names: tables of terminals, CSV, and the rows of an SQL INSERT."""

import re
from collections.abc import Iterator

from tarsy_scoring.timeline.clean.masking.harmless import Candidate, is_harmless
from tarsy_scoring.timeline.clean.masking.names import HEADING, Level, level_of
from tarsy_scoring.timeline.clean.masking.values import STRETCH_BYTES, Checks, Secret, Value
from tarsy_scoring.timeline.clean.patterns import compile_bytes

_OWNED = r"(?:(?:[A-Za-z]+ ){1,2}|@@)?"
_WORD = f"(?:{HEADING})"
_BAR = "\u2502|\u2503"  # of a table that is drawn with lines
_INSERT = r"(?i:insert)\s+(?i:into)\s+[^\s()]+\s*\([^()]*\)\s*(?i:values)\s*\("
TABLE_PATTERN = (
    rf"""(?:\A|\n|\\n|[|,;\t]|{_BAR}|[ ]{{2}})[ \t]*["'`*]*{_OWNED}(?:[A-Za-z0-9.]+[_-])*"""
    rf"""(?:(?:[A-Za-z0-9]*[a-z0-9])?{_WORD}|(?i:key[ _]?name))["'`*]*[ \t]*"""
    rf"""(?:[|,;\t]|{_BAR}|[ ]{{2}}|\r?\n|\\+r?\\*n)|{_INSERT}"""
)
_HEADING = compile_bytes(TABLE_PATTERN, capture=False)
_WORD_WITHIN = re.compile(_WORD.encode() + b"|(?i:key)")
_WORD_AT_END = re.compile(_WORD.encode() + rb"\Z")
_BAR_BYTES = re.compile(_BAR.encode())
_BREAK = re.compile(rb"\r?\n|(?<!\\)\\+r?\\*n")
# By what separates the columns of the line in which the heading stands.
_CELLS = {
    mark: re.compile(rb'"(?:[^"]|"")*"|[^%b]+' % re.escape(mark)) for mark in (b"|", b"\t", b";", b",")
} | {b"  ": re.compile(rb"\S+(?: \S+)*")}
_DRAWN = re.compile(rb"(?<!\xe2)(?<!\xe2\x94)(?:(?!\xe2\x94[\x82\x83])[^\n])+")
_WORDS = re.compile(rb"\S+")
_LISTED = re.compile(rb"'(?:[^'\\]|''|\\.)*'|\"[^\"\n]*\"|[^\s,()'\"]+")
_ROW = re.compile(rb"\(((?:'(?:[^'\\]|''|\\.)*'|[^()'])*)\)\s*,?\s*")
_RULE = re.compile(rb"(?:[-+=|:\s]|\xe2[\x94-\x96][\x80-\xbf])*")
_KEY_NAMES = (b"keyname", b"key name", b"key_name")
_KEY = Level([], "token", ("placeholder", "strong", "weak", "vague"))
_MAX_ROWS = 1_000
_MAX_HEADING_BYTES = 60
_MAX_COLUMNS = 40
_TITLE = re.compile(
    rb"(?!(?:u?int[0-9]*|str|string|bool|boolean|text|float|bytes)\Z)(?:[A-Za-z#_@\x80-\xff][^,;|]*)?"
)
# The keys of Azure, where a primary key is not one of a database.
_ACCOUNT_KEY = re.compile(rb"(?:Primary|Secondary)(?:Master|ReadonlyMaster)?(?:Key|ConnectionString)")


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
        headings = [column.strip(b" \t\"'`*") for column in columns[:_MAX_COLUMNS]]
        levels = [_level(heading) for heading in headings]
        if any(heading.lower() in _KEY_NAMES for heading in headings):
            levels = [
                _KEY if heading.lower() == b"value" else level
                for heading, level in zip(headings, levels, strict=True)
            ]
        if not any(levels) or not all(map(_TITLE.fullmatch, headings)):
            continue
        cells = list(rows)
        yield from _in_rows(data, levels, cells, checks)
        position = max((end for row in cells for _, end in row), default=position)  # rows are read once


def _in_rows(
    data: bytes, levels: list[Level | None], rows: list[list[Value]], checks: Checks
) -> Iterator[Secret]:
    """The cells that hold secrets."""
    for row in rows:
        for level, value in zip(levels, row, strict=False):
            if level:
                reasons = ("said", "amount") if level.kind == "password" else ("cell",)
                if checks.are_used_up() or not is_harmless(Candidate(data, value), (*level.unless, *reasons)):
                    yield Secret(*value, level.kind)


def _level(heading: bytes) -> Level | None:
    if len(heading) > _MAX_HEADING_BYTES or _WORD_AT_END.search(heading) is None:
        return None
    level = level_of(_ACCOUNT_KEY.sub(b"account_key", heading).replace(b" ", b"_"))
    return level if level.kind else None


def _table(data: bytes, start: int, end: int) -> tuple[list[bytes], Iterator[list[Value]], int]:
    """The headings in the line or list of a heading, the rows below, and where the rows begin."""
    if data[end - 1 : end] == b"(":
        columns = _LISTED.findall(data, data.index(b"(", start), data.rindex(b")", start, end))
        return columns, _inserted(data, end - 1), end
    start = _WORD_WITHIN.search(data, start).start()  # type: ignore[union-attr]  # the match holds it
    floor = max(0, start - 400)
    written = data.rfind(b"\\n", floor, start)
    start = max(floor, data.rfind(b"\n", floor, start) + 1, written + 2 if written >= 0 else 0)
    broken = _BREAK.search(data, max(start, end - 3), start + 1_000)
    end = broken.start() if broken else min(len(data), start + 1_000)
    line = data[start:end].strip()
    cells = (
        _DRAWN
        if _BAR_BYTES.search(line)
        else next((it for mark, it in _CELLS.items() if mark in line), _CELLS[b"  "])
    )
    above = data[max(0, start - 400) : max(0, start - 1)].rpartition(b"\n")[2]
    if cells is _CELLS[b"|"] and above.count(b"|") == line.count(b"|") and not _RULE.fullmatch(above):
        return [], iter(()), end  # a row within a table
    columns = [
        (found.start() + start, found[0]) for found in cells.finditer(data, start, end) if found[0].strip()
    ]
    offsets = [found - start for found, _ in columns]
    return [name for _, name in columns], _lines(data, end, cells, offsets), end


def _lines(
    data: bytes, position: int, cells: "re.Pattern[bytes]", offsets: list[int]
) -> Iterator[list[Value]]:
    """The cells of the lines below, as long as they are as many as the headings or stand where these do."""
    count = len(offsets)
    rules = 0
    for _ in range(_MAX_ROWS):
        broken = _BREAK.match(data, position)
        if broken is None:
            return
        following = _BREAK.search(data, broken.end(), broken.end() + 4_000)
        position = following.start() if following else min(len(data), broken.end() + 4_000)
        if _RULE.fullmatch(data, broken.end(), position):
            rules += position > broken.end()
            continue
        row = _row(data, broken.end(), position, cells)
        if len(row) != count and cells is _CELLS[b"  "]:
            row = _aligned(data, broken.end(), position, offsets)
        if len(row) != count or (count < 2 and (rules != 1 or b" " in data[slice(*row[0])].strip())):
            return
        yield row


def _row(data: bytes, start: int, end: int, cells: "re.Pattern[bytes]") -> list[Value]:
    text = data[start:end]
    last = start + len(text.rstrip())
    found = [cell.span() for cell in cells.finditer(data, last - len(text.strip()), last)]
    return [_stripped(data, value) for value in found]


def _aligned(data: bytes, start: int, end: int, offsets: list[int]) -> list[Value]:
    """The cells of a line that single blanks separate, or that stand below the beginnings of the headings."""
    words = [found.span() for found in _WORDS.finditer(data, start, end)]
    if len(words) == len(offsets):
        return words
    starts = [start + offset for offset in offsets]
    if any(at > start and not data[at - 1 : at].isspace() for at in starts if at < end):
        return []
    return [
        _stripped(data, (at, min(to, end)))
        for at, to in zip(starts, [*starts[1:], end], strict=True)
        if at < end
    ]


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

"""Finds secrets by the structure around them: Kubernetes Secrets, and columns below a telling heading."""

import re
from bisect import bisect_left
from collections.abc import Iterator

from tarsy_scoring.timeline.clean.harmless import Candidate, is_harmless
from tarsy_scoring.timeline.clean.named import HEADING, Level, level_of
from tarsy_scoring.timeline.clean.patterns import compile_bytes
from tarsy_scoring.timeline.clean.values import STRETCH_BYTES, Checks, Secret, Value, quoted

_BREAK = re.compile(rb"\r?\n|(?<!\\)\\+r?\\*n")

# --- Kubernetes Secrets: their values have no shape ----------------------------------------------------

MANIFEST_PATTERN = (
    r"""(?:\b|\\[nt])kind\\*["']?[ \t]*:[ \t]*\\*["']?Secret(?:List)?\\*["']?\s*(?:[,}\n]|\\+n|\\+r|\z)"""
)
_MANIFEST = compile_bytes(MANIFEST_PATTERN, capture=False)
_KIND = re.compile(rb"""\bkind\\*["']?[ \t]*:\s*\\*["']?(\w+)""")
_DATA = re.compile(rb"""(?<!\w)(?:data|stringData)(\\*"?)[ \t]*:[ \t]*(?:(\{)|(?=\r?\n|\\+n))|\Z""")
_OPENS = re.compile(rb"""(\\*")|[{}]""")
_VALUE = re.compile(rb"""[ \t]*\\*["']?[\w./-]+\\*["']?:[ \t]*(?:[|>][-+0-9]*[ \t]*\Z)?(.*)""", re.DOTALL)


def find_manifests(data: bytes, checks: Checks) -> Iterator[Secret]:
    """Yields the values under `data` and `stringData` in Secrets: JSON or YAML, however often it is escaped."""
    if _MANIFEST.search(data) is None:
        return
    kinds = [(found.start(), found[1]) for found in _KIND.finditer(data)]
    end = 0
    for field in _DATA.finditer(data):
        if field.start() < end or field.start() == field.end():
            continue
        if checks.are_used_up():
            end = min(len(data), field.end() + STRETCH_BYTES)
            yield Secret(field.end(), end, "stretch")
            continue
        members = _members(data, field.end()) if field[2] else _lines(data, field.start(), field.end())
        end = members[-1][1] if members else field.end()
        if _kind_around(data, kinds, field.start(), end) == b"ConfigMap":  # it has the same fields
            continue
        for value in members:
            if not is_harmless(Candidate(data, value), ("hidden",)):
                yield Secret(*value, "secret")


def _members(data: bytes, position: int) -> list[Value]:
    """The values in a JSON object."""
    values = []
    depth, is_value = 1, False
    while depth and (token := _OPENS.search(data, position)):
        position = token.end()
        if token[1] is None:
            depth += 1 if token[0] == b"{" else -1
            continue
        end = quoted(data, position, token[1])
        if is_value and end > position:
            values.append((position, end))
        position = min(len(data), end + len(token[1]))
        is_value = data[position : position + 8].lstrip(b" \t\n").startswith(b":")
    return values


def _lines(data: bytes, start: int, position: int) -> list[Value]:
    """The values in a YAML mapping: lines below that are indented deeper than the field."""
    floor = max(0, start - 200)
    indent = len(re.split(rb"\n|\\n", data[floor:start])[-1])
    values = []
    while broken := _BREAK.match(data, position):
        following = _BREAK.search(data, broken.end())
        position = following.start() if following else len(data)
        line = data[broken.end() : position]
        text = line.lstrip(b" \t")
        if text and len(line) - len(text) <= indent:
            break
        found = _VALUE.fullmatch(line)
        bare = (found[1] if found else text).strip(b" \t\r\\\"'")
        if bare:
            begin = broken.end() + line.index(bare, found.start(1) if found else 0)
            values.append((begin, begin + len(bare)))
    return values


def _kind_around(data: bytes, kinds: list[tuple[int, bytes]], start: int, end: int) -> bytes:
    """The kind that belongs to a field: the nearest one behind, or else the nearest before."""
    after = bisect_left(kinds, (end,))
    if after < len(kinds) and kinds[after][0] < end + 200:
        between = data[end : kinds[after][0]]
        if b"apiVersion" not in between and b"---" not in between:
            return kinds[after][1]
    before = bisect_left(kinds, (start,)) - 1
    return kinds[before][1] if before >= 0 else b""


# --- tables in terminals, CSV and SQL ------------------------------------------------------------------

_WORD = f"(?:{HEADING})"
_INSERT = r"(?i:insert)\s+(?i:into)\s+[^\s()]+\s*\([^()]*\)\s*(?i:values)\s*\("
TABLE_PATTERN = (
    rf"""(?:\A|\n|\\n|[|,;\t│]|[ ]{{2}})[ \t]*["'`*]*(?:[A-Za-z]+ ){{0,2}}(?:[A-Za-z0-9.]+[_-])*"""
    rf"""(?:[A-Za-z0-9]*[a-z0-9])?{_WORD}["'`*]*[ \t]*(?:[|,;\t│]|[ ]{{2}}|\r?\n|\\+r?\\*n)|{_INSERT}"""
).replace("[|,;\\t│]", "(?:[|,;\\t]|│)")
_HEADING = compile_bytes(TABLE_PATTERN, capture=False)
_WORD_AT_END = re.compile(_WORD.encode() + rb"\Z")
# By the separator that the heading's line uses.
_CELLS = {
    mark: re.compile(rb'"(?:[^"]|"")*"|[^%b]+' % re.escape(mark)) for mark in (b"|", b"\t", b";", b",")
} | {b"  ": re.compile(rb"\S+(?: \S+)*")}
_LISTED = re.compile(rb"'(?:[^'\\]|''|\\.)*'|\"[^\"\n]*\"|[^\s,()'\"]+")
_ROW = re.compile(rb"\(((?:'(?:[^'\\]|''|\\.)*'|[^()'])*)\)\s*,?\s*")
_RULE = re.compile(rb"(?:[-+=|:\s]|\xe2[\x94-\x96][\x80-\xbf])*")
_TITLE = re.compile(
    rb"(?!(?:u?int[0-9]*|str|string|bool|boolean|text|float|bytes)\Z)(?:[A-Za-z#_@\x80-\xff][^,;|]*)?"
)
_MAX_ROWS, _MAX_LINE, _MAX_HEADING = 1_000, 4_000, 60


def find_columns(data: bytes, checks: Checks) -> Iterator[Secret]:
    """The values below headings that name secrets."""
    data = data.replace("│".encode(), b"|  ")  # as many bytes
    position = 0
    while (match := _HEADING.search(data, position)) is not None:
        start, position = match.span()
        if checks.are_used_up():
            position = min(len(data), position + STRETCH_BYTES)
            yield Secret(start, position, "stretch")
            continue
        if data[position - 1 : position] == b"(":
            titles = [found.span() for found in _LISTED.finditer(data, data.index(b"(", start), position)]
            rows = _inserted(data, position - 1)
        else:
            titles, rows, position = _table(data, start, position)
        headings = [data[slice(*title)].strip(b" \t\"'`*") for title in titles]
        levels = [_level(heading) for heading in headings]
        if not any(levels) or not all(map(_TITLE.fullmatch, headings)):
            continue
        for row in rows:
            position = row[-1][1]  # rows are read once
            for level, value in zip(levels, row, strict=False):
                if level and not is_harmless(Candidate(data, value), _reasons(level)):
                    yield Secret(*value, level.kind)


def _reasons(level: Level) -> tuple[str, ...]:
    return (*level.unless, *(("said",) if level.kind == "password" else ("cell",)))


def _level(heading: bytes) -> Level | None:
    if len(heading) > _MAX_HEADING or _WORD_AT_END.search(heading) is None:
        return None
    level = level_of(heading.replace(b" ", b"_"))
    return level if level.kind else None


def _table(data: bytes, start: int, end: int) -> tuple[list[Value], Iterator[list[Value]], int]:
    """The headings on a line, the rows below, and the index of the line end."""
    floor = max(0, start - 400)
    above = [found.end() for found in _BREAK.finditer(data, floor, min(start + 3, end))]
    start = above[-1] if above else floor
    broken = _BREAK.search(data, max(start, end - 3), start + _MAX_LINE)
    end = broken.start() if broken else min(len(data), start + _MAX_LINE)
    line = data[start:end].strip()
    cells = next((cells for mark, cells in _CELLS.items() if mark in line), _CELLS[b"  "])
    titles = _row(data, start, end, cells)
    return titles, _rows(data, end, cells, len(titles)), end


def _rows(data: bytes, position: int, cells: "re.Pattern[bytes]", count: int) -> Iterator[list[Value]]:
    """Yields the rows below, while a row has as many cells as there are headings."""
    rules = 0
    for _ in range(_MAX_ROWS):
        if (broken := _BREAK.match(data, position)) is None:
            return
        following = _BREAK.search(data, broken.end(), broken.end() + _MAX_LINE)
        position = following.start() if following else min(len(data), broken.end() + _MAX_LINE)
        if _RULE.fullmatch(data, broken.end(), position):
            rules += position > broken.end()
            continue
        row = _row(data, broken.end(), position, cells)
        if len(row) != count and cells is _CELLS[b"  "]:
            row = [found.span() for found in re.compile(rb"\S+").finditer(data, broken.end(), position)]
        if len(row) != count or (count < 2 and (rules != 1 or b" " in data[slice(*row[0])].strip())):
            return
        yield row


def _row(data: bytes, start: int, end: int, cells: "re.Pattern[bytes]") -> list[Value]:
    text = data[start:end]
    last = start + len(text.rstrip())
    return [_stripped(data, cell.span()) for cell in cells.finditer(data, last - len(text.strip()), last)]


def _inserted(data: bytes, position: int) -> Iterator[list[Value]]:
    for _ in range(_MAX_ROWS):
        if (row := _ROW.match(data, position)) is None:
            return
        yield [_stripped(data, found.span()) for found in _LISTED.finditer(data, *row.span(1))]
        position = row.end()


def _stripped(data: bytes, value: Value) -> Value:
    start, end = value
    bare = data[start:end].strip(b" \t\"'`\r")
    begin = start + data[start:end].index(bare)
    return begin, begin + len(bare)

"""
Tells the lines that a judge quotes from its own.

A line is quoted in a code fence, in a block quote up to the next empty line, behind four blanks or a tab,
and in quotation marks or inline code. Only a line feed ends a line: a quotation may hold other separators.
"""

import re
from typing import NamedTuple

from tarsy_scoring.timeline.text import without_invisible

_FENCE = re.compile(r"(`{3,}|~{3,})[^`]*")
_INDENTED = re.compile(r" {4}|[ ]{0,3}\t")
_BLOCK_QUOTE = re.compile(r"[ ]{0,3}>(?:[ \t]|$)")
# An item of a list, a line below it that continues it, or a row of a table.
_ITEM = re.compile(r"\s{2}|\s*(?:[-*+•]|[0-9]{1,3}[.)])\s|.*\|")
# A heading, a block quote or a list item; the space distinguishes `- 3` from `-3`.
_BLOCK_MARKS = re.compile(r"(?:(?:#{1,6}|[>*+•-])\s+)*")
_QUOTATION_MARKS = ('"', "“", "”", "„", "«", "»")
_OPENS_QUOTATION = (*_QUOTATION_MARKS, "'", "`", "<code", "<pre", "<q")
_ENDS_WITH_PARAGRAPH = ("", ">", '"')
_OTHER_DIGIT = re.compile(r"(?![0-9])\d")


class Line(NamedTuple):
    """
    A line of a reply.

    Args:
        text: Without invisible characters and blanks at its ends, and with ASCII digits.
        is_item: It belongs to a list or a table, where a judge quotes as well as states.
    """

    text: str
    is_quoted: bool
    is_item: bool


EMPTY = Line("", is_quoted=False, is_item=False)


def plain(text: str) -> str:
    """The text without invisible characters, and with ASCII digits."""
    text = without_invisible(text)
    return text if text.isascii() else _OTHER_DIGIT.sub(lambda digit: str(int(digit[0])), text)


def without_block_marks(line: str) -> str:
    """The line without the marks of headings, block quotes and list items before it."""
    marks = _BLOCK_MARKS.match(line)
    return line[marks.end() :] if marks else line


def unframed(reply: str) -> str:
    """The reply without the code fence or block quote around all of it; nothing else is a judge's frame."""
    lines = reply.strip("\ufeff \t\r\n").split("\n")
    if fence := _FENCE.fullmatch(lines[0].strip()):
        ends = (number for number, line in enumerate(lines) if number and _closes(line.strip(), fence[1]))
        if (end := next(ends, len(lines))) >= len(lines) - 1:
            return "\n".join(lines[1:end])
    if all(_BLOCK_QUOTE.match(line) for line in lines):
        return "\n".join(line.partition(">")[2] for line in lines)
    return reply


def read_lines(text: str) -> list[Line]:
    """The lines of an unframed reply, up to the last one with more than a code fence; linear."""
    lines: list[Line] = []
    length = 0
    mark = ""  # opened the current fence, block quote or quotation of several lines
    for raw in text.split("\n"):
        if not (line := plain(raw).strip()):
            mark = "" if mark in _ENDS_WITH_PARAGRAPH else mark
            lines.append(EMPTY)
            continue
        before, fence = mark, _FENCE.fullmatch(line)
        if before not in _ENDS_WITH_PARAGRAPH:
            mark = "" if _closes(line, before) else before
        elif fence or line.startswith(">"):
            mark = fence[1] if fence else ">"
        elif _is_uneven(line):
            mark = "" if before == '"' else '"'
        is_own = mark == "" and before in ("", ">") and not _is_marked(raw, line)
        lines.append(Line(line, not is_own, _ITEM.match(raw) is not None))
        if not fence:
            length = len(lines)
    return lines[:length]


def _closes(line: str, mark: str) -> bool:
    return line.startswith(mark) and not line.strip(mark[0])


def _is_uneven(line: str) -> bool:
    """Whether a quotation of several lines begins or ends in the line."""
    return sum(map(line.count, _QUOTATION_MARKS)) % 2 == 1 or line.count("`") % 2 == 1


def _is_marked(raw: str, line: str) -> bool:
    """Whether the line is indented as code, begins with a quotation, or holds another separator of lines."""
    begins = without_block_marks(line).lstrip("*_# |").startswith(_OPENS_QUOTATION)
    return begins or _INDENTED.match(raw) is not None or len(raw.splitlines()) > 1

"""Finds the values in Kubernetes Secrets: their names and shapes say nothing about them."""

import re
from collections.abc import Iterator

from tarsy_scoring.timeline.clean.harmless import Candidate, is_harmless
from tarsy_scoring.timeline.clean.patterns import compile_bytes
from tarsy_scoring.timeline.clean.values import Checks, Span, Value, quoted

MANIFEST_PATTERN = (
    r"""(?:\b|\\[nt])kind\\*["']?[ \t]*:[ \t]*\\*["']?Secret(?:List)?\\*["']?\s*(?:[,}\n]|\\+n|\\+r|\z)"""
)
_MANIFEST = compile_bytes(MANIFEST_PATTERN, capture=False)
_BREAK = re.compile(rb"\r?\n|(?<!\\)\\+r?\\*n")
_DATA = re.compile(rb"""(?<!\w)(?:data|stringData)\\*"?[ \t]*:[ \t]*(?:(\{)|(?=\r?\n|\\+n))""")
_MEMBER = re.compile(rb"""\s*,?\s*\\*"[\w./-]+\\*"\s*:\s*(\\*")""")
_LINE = re.compile(rb"""[ \t]*\\*["']?[\w./-]+\\*["']?:[ \t]*(?:[|>][-+0-9]*[ \t]*\Z)?(.*)""", re.DOTALL)


def find_manifests(data: bytes, checks: Checks) -> Iterator[Span]:
    """Yields the values under `data` and `stringData` beside a Secret: JSON or YAML, however often it is escaped."""
    if _MANIFEST.search(data) is None:
        return
    end = 0
    for field in _DATA.finditer(data):
        if field.start() < end:
            continue
        checks.spend(field.end())
        for value in _members(data, field.end()) if field[1] else _lines(data, field.start(), field.end()):
            end = value[1]
            if not is_harmless(Candidate(data, value), ("hidden",)):
                yield Span(*value, "secret")


def _members(data: bytes, position: int) -> Iterator[Value]:
    """The values in a JSON object."""
    while member := _MEMBER.match(data, position):
        end = quoted(data, member.end(), member[1])
        yield member.end(), end
        position = end + len(member[1])


def _lines(data: bytes, start: int, position: int) -> Iterator[Value]:
    """The values in a YAML mapping: lines below that are indented deeper than the field."""
    indent = len(re.split(rb"\n|\\n", data[max(0, start - 200) : start])[-1])
    while broken := _BREAK.match(data, position):
        following = _BREAK.search(data, broken.end())
        position = following.start() if following else len(data)
        line = data[broken.end() : position]
        text = line.lstrip(b" \t")
        if text and len(line) - len(text) <= indent:
            return
        found = _LINE.fullmatch(line)
        if bare := (found[1] if found else text).strip(b" \t\r\\\"'"):
            begin = broken.end() + line.index(bare, found.start(1) if found else 0)
            yield begin, begin + len(bare)

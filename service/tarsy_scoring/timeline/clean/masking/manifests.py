"""Finds the values of Kubernetes Secrets: they have no shape, so the kind of the object identifies them."""

import re
from bisect import bisect_left
from collections.abc import Iterator

from tarsy_scoring.timeline.clean.masking.harmless import Candidate, is_harmless
from tarsy_scoring.timeline.clean.masking.values import STRETCH_BYTES, Checks, Secret, Value, quoted
from tarsy_scoring.timeline.clean.patterns import compile_bytes

MANIFEST_PATTERN = (
    r"""(?:\b|\\[nt])kind\\*["']?[ \t]*:[ \t]*\\*["']?Secret(?:List)?\\*["']?\s*(?:[,}\n]|\\+n|\\+r|\z)"""
)
_MANIFEST = compile_bytes(MANIFEST_PATTERN, capture=False)

_VALUE = re.compile(
    rb"[ \t]*(?:- )?\\*[\"']?[\w./-]+\\*[\"']?:[ \t]*(?:[|>][-+0-9]*[ \t]*(?=\Z|\n|\\+n))?(.*)", re.DOTALL
)
_BREAK = re.compile(rb"\n|(?<!\\)\\+n")
_JSON_DATA = compile_bytes(r"""\b(?:data|stringData)\\*"[ \t]*:\s*(?:\\+n|\s)*\{""", capture=False)
_JSON_TOKEN = re.compile(rb"(\\*\")|[{}]")


def find_manifests(data: bytes, checks: Checks) -> Iterator[Secret]:
    """The values under `data` and `stringData` of Secrets, in JSON and in YAML, in any depth of encoding."""
    if _MANIFEST.search(data) is not None:
        for value in (*_in_json(data, checks), *_in_yaml(data)):
            if not is_harmless(Candidate(data, value), ("hidden",)):
                yield Secret(*value, "secret")


def _in_json(data: bytes, checks: Checks) -> Iterator[Value]:
    kinds = [(found.start(), found[1]) for found in _KIND.finditer(data)]
    position = 0
    while position <= len(data) and (opened := _JSON_DATA.search(data, position)) is not None:
        position = opened.end()
        if checks.are_used_up():
            yield position, min(len(data), position + STRETCH_BYTES)
            position += STRETCH_BYTES
            continue
        values = []
        depth = 1
        is_value = False
        while depth and (token := _JSON_TOKEN.search(data, position)):
            position = token.end()
            if token[1] is None:
                depth += 1 if token[0] == b"{" else -1
                continue
            end = quoted(data, position, token[1])
            if is_value and end > position:
                values.append((position, end))
            position = min(len(data), end + len(token[1]))
            is_value = data[position : position + 8].lstrip(b" \t\n").startswith(b":")
        # A ConfigMap has the same fields: the kind stands in the same object, before or behind.
        if _kind_around(data, kinds, opened.start(), position) != b"ConfigMap":
            yield from values


_KIND = re.compile(rb"""\bkind\\*["']\s*:\s*\\*["'](\w+)""")


def _kind_around(data: bytes, kinds: list[tuple[int, bytes]], start: int, end: int) -> bytes:
    """The kind of the object in which a field stands: the nearest one behind, or else the nearest before."""
    after = bisect_left(kinds, (end,))
    if (
        after < len(kinds)
        and kinds[after][0] < end + 200
        and b"apiVersion" not in data[end : kinds[after][0]]
    ):
        return kinds[after][1]
    before = bisect_left(kinds, (start,)) - 1
    return kinds[before][1] if before >= 0 else b""


def _in_yaml(data: bytes) -> Iterator[Value]:
    """Indentation separates the objects: a line that stands further left, `---` or `- ` ends them."""
    objects: dict[int, tuple[list[bytes], list[Value]]] = {}

    def close(column: int) -> Iterator[Value]:
        for at in [at for at in objects if at >= column]:
            kinds, values = objects.pop(at)
            if b"Secret" in kinds:
                yield from values

    starts = [0, *(found.end() for found in _BREAK.finditer(data))]
    block = -1
    for start, following in zip(starts, [*starts[1:], len(data) + 1], strict=True):
        line = _BREAK.sub(b"", data[start:following])
        text = line.lstrip(b" \t")
        if not text.strip():
            continue
        column = len(line) - len(text)
        if text.startswith(b"---"):
            yield from close(0)
            block = -1
            continue
        dashed = column
        while text.startswith(b"- "):
            text = text[2:].lstrip()
        is_item = len(line) - len(text) > dashed
        column = len(line) - len(text)
        if block >= 0 and dashed > block:
            value = found.span(1) if (found := _VALUE.fullmatch(line)) else (column, len(line))
            bare = line[value[0] : value[1]].strip(b" \t\r\\\"'")
            if bare:
                begin = start + line.index(bare, value[0])
                objects[block][1].append((begin, begin + len(bare)))
            continue
        block = -1
        yield from close(column if is_item else column + 1)
        name, colon, rest = text.partition(b":")
        name = name.strip(b"\\\"' ")
        if colon and name in (b"kind", b"data", b"stringData"):
            kinds, _ = objects.setdefault(column, ([], []))
            if name == b"kind":
                kinds.append(rest.strip(b"\\\"' \t\r"))
            elif not rest.strip():
                block = column
    yield from close(0)

"""
Finds statements that address the judge by the kinds of words they combine, whatever their wording.

`injection_words.yaml` groups words of several languages: assessors, the work they judge, orders, results,
leniency.
Each group in a statement adds its weight once. No weight is negative, so a word cannot make the others look
harmless.
"""

import re
from collections.abc import Iterator
from typing import Any

from tarsy_scoring.timeline.clean.folding import fold_text
from tarsy_scoring.timeline.clean.patterns import compile_bytes, compile_set, read_rules

_GROUPS: dict[str, dict[str, Any]] = read_rules("injection_words.yaml", "groups")
_WEIGHTS = [group["weight"] for group in _GROUPS.values()]
_THRESHOLD: int = read_rules("injection_words.yaml", "threshold")
_STATEMENT = 240  # bytes
_STEP = 80
NEAR_PATTERN = "(?i)" + fold_text(read_rules("injection_near.yaml", "near"))
NEAR = compile_bytes(NEAR_PATTERN, capture=False)
"""Words of judging, without which no statement addresses the judge."""


def _pattern(words: list[str]) -> str:
    joined = fold_text("|".join(words)).lower().replace("*", "[^ ]*").replace("~", "(?:[^ ]+ ){0,3}")
    return f" (?:{joined}) "


_WORDS = compile_set([_pattern(group["words"]) for group in _GROUPS.values()], anywhere=True)
_NEUTRAL = compile_bytes(_pattern(read_rules("injection_words.yaml", "neutral")), capture=False)
# Letters and digits in lower case; everything else is a blank.
_AS_WORDS = bytes(c if c > 127 else ord(chr(c).lower()) if chr(c).isalnum() else 32 for c in range(256))
_NO_WORDS = re.compile(rb"\\{1,8}[nrt]|[0-9]+(?:[.,][0-9]+)?[ ]?%")
_HUMP = re.compile(rb"([a-z])([A-Z])")  # of two words written as one
_BETWEEN_WORDS = re.compile(rb"[^0-9A-Za-z\x80-\xff]+")
_PIECE = re.compile(rb"[^.!?;\n]*[.!?;\n]*")


def statements_to_judge(folded: bytes) -> Iterator[tuple[int, int]]:
    """
    The stretches of a folded line whose words together address the judge, in order and without overlap.

    Every stretch of up to `_STATEMENT` bytes counts, wherever the line begins: the rest of a masked line
    holds no further statement.
    """
    start = 0
    while start < len(folded):
        if not _is_statement(folded[start : start + 2 * _STATEMENT]):
            start = _next_word(folded, start + _STATEMENT)
            continue
        end = _end_of_word(folded, start)
        if _is_statement(folded[start:end]):
            found = list(_narrowed(folded, start, end))
            yield from found
            start = found[-1][1]
        else:
            start = _next_word(folded, start + 1)


def _next_word(folded: bytes, start: int) -> int:
    found = _BETWEEN_WORDS.search(folded, start, start + _STEP)
    return found.end() if found else start + _STEP


def _end_of_word(folded: bytes, start: int) -> int:
    end = start + _STATEMENT
    if end >= len(folded):
        return len(folded)
    while end > start + _STEP and folded[end : end + 1].isalnum():
        end -= 1
    return end


def _is_statement(text: bytes) -> bool:
    return NEAR.search(text) is not None and _weight(text) >= _THRESHOLD


def _weight(text: bytes) -> int:
    words = _words(text)
    weight = _sum(words)
    return weight if weight < _THRESHOLD else _sum(_NEUTRAL.sub(b" ", words))


def _words(text: bytes) -> bytes:
    apart = _HUMP.sub(rb"\1 \2", _NO_WORDS.sub(b" ", text))
    return b" %s " % b" ".join(apart.translate(_AS_WORDS).split())


def _sum(words: bytes) -> int:
    return sum(_WEIGHTS[number] for number in _WORDS.Match(words) or ())


def _narrowed(folded: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """
    A stretch without the sentences at its edges that it does not need, and what these hold by themselves.
    """
    ends = [found.end() for found in _PIECE.finditer(folded, start, end) if found.end() > found.start()]
    begin = start
    while len(ends) > 1 and _is_statement(folded[ends[0] : end]):
        begin = ends.pop(0)
    if begin > start and _is_statement(folded[start:begin]):
        yield from _narrowed(folded, start, begin)
    stop = end
    while len(ends) > 1 and _is_statement(folded[begin : ends[-2]]):
        ends.pop()
        stop = ends[-1]
    text = folded[begin:stop]
    yield stop - len(text.lstrip()), begin + len(text.rstrip(b" .!?;"))

"""
Finds text in a session that addresses the judge instead of reporting the incident.

A match proves nothing and stops nothing. It raises a flag, and gives the spans to mask when the session is
judged a second time.
"""

import re
from dataclasses import dataclass

import re2

from tarsy_scoring.timeline.patterns import compile_bytes, read_rules

FENCE_REMOVED = "[fence removed]"
"""Replaces an imitated delimiter; see `fence`."""

INSTRUCTION_REMOVED = "[instruction removed]"

_PATTERNS: dict[str, list[str]] = read_rules("injections.yaml", "patterns")
_NAMES = tuple(_PATTERNS)
_INJECTION = compile_bytes("(?i)" + "|".join(f"({'|'.join(p)})" for p in _PATTERNS.values()))
INJECTION_PATTERN = "(?i)" + "|".join("|".join(p) for p in _PATTERNS.values())
"""Matches wherever `find_injections` finds something."""

_ANY_INJECTION = compile_bytes(INJECTION_PATTERN, capture=False)


@dataclass(frozen=True, slots=True)
class Span:
    """A suspicious stretch of a text, in bytes of its UTF-8."""

    start: int
    end: int
    pattern: str


def find_injections(data: bytes) -> list[Span]:
    """
    Find the spans of a UTF-8 text that try to steer the judge, in order and without overlap; linear.

    Args:
        data: Text that `fence.clean` returned; in other text a zero-width space could hide a word.
    """
    if _ANY_INJECTION.search(data) is None:
        return []
    spans: list[Span] = []
    position = 0
    while (match := _INJECTION.search(data, position)) is not None:
        spans.append(_span(data, match))
        # Not from the end of the match: the line end that it includes may begin the next match.
        position = spans[-1].end
    return spans


def _span(data: bytes, match: "re2._Match") -> Span:
    """The span of a match without the line ends that the pattern includes."""
    start, end = match.span()
    if before := _LINE_END_BEFORE.match(data, start):
        start = before.end()
    if after := _LINE_END_AFTER.search(data, start, end):
        end = after.start()
    return Span(start, end, _NAMES[match.lastindex - 1])


_LINE_END_BEFORE, _LINE_END_AFTER = re.compile(rb"\n|\\{1,8}n"), re.compile(rb"(?:\n|\\{1,8}n)\Z")


def mask_injections(data: bytes, spans: list[Span]) -> bytes:
    """
    Replace each span by `[instruction removed]`, together with the rest of its sentence.

    The sentence is likely to be part of the instruction. After a span that only introduces an instruction (a
    role, an end of the evidence, "new instructions:") the rest of the line is replaced. Where neither ends
    within `_NEAR_BYTES`, only the span is replaced.
    """
    pieces: list[bytes] = []
    position = 0
    for span in spans:
        if span.end <= position:
            continue  # removed with the sentence of the previous span
        start, end = _around(data, position, span)
        pieces += (data[position:start], INSTRUCTION_REMOVED.encode())
        position = end
    return b"".join((*pieces, data[position:]))


def _around(data: bytes, floor: int, span: Span) -> tuple[int, int]:
    """
    The range that masking a span replaces: its sentence, or its sentence and the rest of the line.

    An end that is farther than `_NEAR_BYTES` from the span does not count. No range begins before `floor`.
    """
    earliest = max(floor, span.start - _NEAR_BYTES)
    ends = [m.end() for m in _SENTENCE_END.finditer(data, earliest, span.start)]
    start = ends[-1] if ends else (earliest if earliest == floor else span.start)
    latest = min(len(data), span.end + _NEAR_BYTES)
    for following in (_END_OF_LINE, _SENTENCE_END) if span.pattern in _INTRODUCING else (_SENTENCE_END,):
        if end := following.search(data, span.end, latest):
            return start, end.start()
        if latest == len(data):
            return start, latest
    return start, span.end


_INTRODUCING = frozenset({"imitated_delimiter", "chat_role_token", "role_line", "new_instructions", "addressed_judge"})
_SENTENCE_END, _END_OF_LINE = re.compile(rb"[.!?\n]"), re.compile(rb"\n")
_NEAR_BYTES = 200

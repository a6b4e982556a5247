"""
Finds text in a session that addresses the judge instead of reporting the incident.

A match proves nothing and stops nothing. It raises a flag, and gives the spans to mask when the session is
judged a second time. Patterns are searched in a folded copy of the text (`folding`).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import re2

from tarsy_scoring.timeline.clean.folding import fold, fold_text
from tarsy_scoring.timeline.clean.patterns import compile_bytes, read_rules

FENCE_REMOVED = "[fence removed]"
"""Replaces an imitated delimiter; see `sanitizer`."""

INSTRUCTION_REMOVED = "[instruction removed]"

INJECTION_PATTERN = f"(?i:{'|'.join(map(fold_text, read_rules('injections.yaml', 'near')))})"
"""Matches every folded text in which `find_injections` finds a span, and many others."""

_NEAR = compile_bytes(INJECTION_PATTERN, capture=False)
_NEAR_BYTES = 250
_OTHERS = compile_bytes(f"(?i){read_rules('injections.yaml', 'others')}")
_ABOUT = {
    name: compile_bytes(f"(?i){'|'.join(map(fold_text, patterns))}", capture=False)
    for name, patterns in read_rules("injections.yaml", "about").items()
}
_ABOUT_BYTES = 120
_RULES = {None: read_rules("injections.yaml", "patterns"), **read_rules("injections.yaml", "statements")}
_PATTERNS = [
    (name, about, compile_bytes(f"(?i){fold_text(pattern)}", capture=False))
    for about, rules in _RULES.items()
    for name, patterns in rules.items()
    for pattern in patterns
]
# Three searches tell that a stretch has none of them, as nearly all have: one search for all has more states than
# RE2 may store, and takes ten times longer.
_CHUNKS = [_PATTERNS[first : first + 16] for first in range(0, len(_PATTERNS), 16)]
_ANY_IN_CHUNK = [
    compile_bytes("|".join(f"(?:{pattern.pattern})" for *_, pattern in chunk), capture=False)
    for chunk in _CHUNKS
]
_MOST_SPANS = 10_000  # a text with more of them counts as one from the first span on
_LINE_END_BEFORE, _LINE_END_AFTER = re.compile(rb"\n|\\{1,8}n"), re.compile(rb"(?:\n|\\{1,8}n)\Z")
_MARKER = INSTRUCTION_REMOVED.encode()


@dataclass(frozen=True, slots=True)
class Span:
    """A suspicious stretch of text; offsets count UTF-8 bytes."""

    start: int
    end: int
    pattern: str


def may_steer(data: bytes) -> bool:
    """Whether a folded text has words with which a text could address the judge."""
    return _NEAR.search(fold(data).text) is not None


def find_injections(data: bytes) -> list[Span]:
    """
    Find the spans in a UTF-8 text that try to steer the judge: ordered, without overlap, in linear time.

    Args:
        data: Text that `sanitizer.clean` returned; in other text a zero-width space could hide a word.
    """
    folded = fold(data)
    # A pattern must not match across a marker.
    text = _OTHERS.sub(_blank, folded.text.replace(_MARKER, b"\1" * len(_MARKER)))
    spans: list[Span] = []
    for start, end in _near(text):
        for anything, chunk in zip(_ANY_IN_CHUNK, _CHUNKS, strict=True):
            for name, about, pattern in chunk if anything.search(text, start, end) else ():
                position = start
                while (found := pattern.search(text, position, end)) is not None:
                    begin, stop = _without_line_ends(text, *found.span())
                    position = stop  # not the end of the match: the line end may begin the next one
                    if about and not _is_about(about, text, begin, stop):
                        continue
                    spans.append(Span(*folded.source(begin, stop), name))
                    if len(spans) > _MOST_SPANS:
                        return [Span(min(span.start for span in spans), len(data), name)]
    return _joined(spans)


def _near(text: bytes) -> Iterator[tuple[int, int]]:
    """Yields the stretches around words that a judge would use."""
    start = end = -1
    position = 0
    while (word := _NEAR.search(text, position)) is not None:
        if word.start() - _NEAR_BYTES > end:
            if end >= 0:
                yield start, end
            start = max(0, word.start() - _NEAR_BYTES)
        end = word.end() + _NEAR_BYTES
        position = word.end() + _NEAR_BYTES // 2  # a word until there is near enough
    if end >= 0:
        yield start, min(end, len(text))


def _is_about(about: str, text: bytes, start: int, end: int) -> bool:
    """Whether a statement, or the text around it, names the judge or this judgement, as `injections.yaml` asks."""
    around = text[max(0, start - _ABOUT_BYTES) : end + _ABOUT_BYTES]
    return _ABOUT[about].search(around) is not None


def _blank(found: "re2._Match") -> bytes:
    return b"\2" * len(found[0])


def _without_line_ends(text: bytes, start: int, end: int) -> tuple[int, int]:
    if before := _LINE_END_BEFORE.match(text, start, end):
        start = before.end()
    after = _LINE_END_AFTER.search(text, start, end)
    return start, after.start() if after else end


def _joined(spans: list[Span]) -> list[Span]:
    """Join overlapping spans; the first one names the result."""
    joined: list[Span] = []
    for span in sorted(spans, key=lambda span: span.start):  # stable
        if joined and span.start < joined[-1].end:
            joined[-1] = replace(joined[-1], end=max(joined[-1].end, span.end))
        elif span.end > span.start:
            joined.append(span)
    return joined


def mask_injections(data: bytes, spans: list[Span]) -> bytes:
    """
    Replace each span by `[instruction removed]`, together with the sentence around it.

    The sentence probably belongs to the instruction. After a span that only introduces an instruction (a
    role, a false end, "new instructions:") the rest of the line is replaced. Where neither ends
    within `_SENTENCE_BYTES`, only the span is replaced.
    """
    pieces: list[bytes] = []
    position = 0
    for span in spans:
        if span.end <= position:
            continue  # removed with the sentence of the previous span
        start, end = _sentence(data, position, span)
        pieces += (data[position:start], _MARKER)
        position = end
    return b"".join((*pieces, data[position:]))


def _sentence(data: bytes, floor: int, span: Span) -> tuple[int, int]:
    """The range that masking a span replaces; it never begins before `floor`."""
    earliest = max(floor, span.start - _SENTENCE_BYTES)
    ends = [m.end() for m in _SENTENCE_END.finditer(data, earliest, span.start)]
    start = ends[-1] if ends else (earliest if earliest == floor else span.start)
    latest = min(len(data), span.end + _SENTENCE_BYTES)
    for following in (_LINE_END, _SENTENCE_END) if span.pattern in _INTRODUCING else (_SENTENCE_END,):
        if end := following.search(data, span.end, latest):
            return start, end.start()
        if latest == len(data):
            return start, latest
    return start, span.end


_INTRODUCING = frozenset(
    {"imitated_delimiter", "chat_role_token", "role_line", "new_instructions", "addressed_judge"}
)
_SENTENCE_END, _LINE_END = re.compile(rb"[.!?\n]|\xe3\x80\x82|\xef\xbc[\x81\x9f]"), re.compile(rb"\n")
_SENTENCE_BYTES = 200

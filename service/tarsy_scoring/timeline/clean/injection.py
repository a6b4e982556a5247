"""
Finds text in a session that addresses the judge instead of reporting the incident.

A match proves nothing and stops nothing. It raises a flag, and gives the spans to mask when the session is
judged a second time. Patterns are searched in a folded copy of the text (`folding`).
"""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from itertools import accumulate

from tarsy_scoring.timeline.clean.folding import fold, fold_text
from tarsy_scoring.timeline.clean.patterns import compile_bytes, read_rules
from tarsy_scoring.timeline.clean.values import Span, join

FENCE_REMOVED = "[fence removed]"
"""Replaces an imitated delimiter; see `sanitizer`."""

INSTRUCTION_REMOVED = "[instruction removed]"

NEAR_PATTERN = f"(?i:{'|'.join(map(fold_text, read_rules('injections.yaml', 'near')))})"
"""Matches wherever a folded text has words that a judge would use; statements are searched nowhere else."""

_NEAR, _NEAR_BYTES = compile_bytes(NEAR_PATTERN, capture=False), 250
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
_MOST_SPANS = 5_000  # behind them, all text around words that a judge would use counts as one span
_LINE_END_BEFORE, _LINE_END_AFTER = re.compile(rb"\n|\\{1,8}n"), re.compile(rb"(?:\n|\\{1,8}n)\Z")
_MARKER = INSTRUCTION_REMOVED.encode()


def find_injections(data: bytes) -> list[Span]:
    """The spans that `find_in_texts` finds in one text, which may have any form."""
    return find_in_texts([data], {0}, {0}).get(0, [])


def find_in_texts(texts: Sequence[bytes], disguised: Set[int], suspicious: Set[int]) -> dict[int, list[Span]]:
    """
    Find the spans in UTF-8 texts that try to steer the judge: by text, ordered, without overlap.

    A statement may begin in one text and end in the next one.

    Args:
        texts: What `sanitizer.clean` returned, in the order in which the judge reads it; in other text a
            zero-width space could hide a word.
        disguised: The numbers of the texts that folding may change.
        suspicious: The numbers of the texts which `NEAR_PATTERN` may match, at least in part.
    """
    folded = {number: fold(texts[number]) for number in disguised}
    plain = [folded[n].text if n in folded else text for n, text in enumerate(texts)]
    starts = [0, *accumulate(len(text) + 1 for text in plain)]
    found: dict[int, list[Span]] = defaultdict(list)
    for begin, stop, name in _statements(b"\n".join(plain), starts, suspicious):
        for number in range(bisect_right(starts, begin) - 1, bisect_right(starts, stop - 1)):
            start, end = max(0, begin - starts[number]), min(len(plain[number]), stop - starts[number])
            if start < end:
                source = folded[number].source(start, end) if number in folded else (start, end)
                found[number].append(Span(*source, name))
    return {number: join(spans) for number, spans in found.items()}


def _statements(text: bytes, starts: Sequence[int], suspicious: Set[int]) -> list[tuple[int, int, str]]:
    """Start, end and name of each statement in folded texts, which start there; they may overlap."""
    found: list[tuple[int, int, str]] = []
    around = join(Span(starts[n] - _NEAR_BYTES, starts[n + 1] + _NEAR_BYTES, "") for n in suspicious)
    stretches = [stretch for span in around for stretch in _near(text, span)]
    if stretches:  # a pattern must not match across a marker
        text = _OTHERS.sub(lambda found: b"\2" * len(found[0]), text.replace(_MARKER, b"\1" * len(_MARKER)))
    for start, end in stretches:
        if len(found) > _MOST_SPANS:
            found.append((start, end, found[-1][2]))
            continue
        for anything, chunk in zip(_ANY_IN_CHUNK, _CHUNKS, strict=True):
            for name, about, pattern in chunk if anything.search(text, start, end) else ():
                position = start
                while (match := pattern.search(text, position, end)) is not None:
                    begin, stop = _without_line_ends(text, *match.span())
                    position = stop  # not the end of the match: the line end may begin the next one
                    if about and not _is_about(about, text, begin, stop, starts):
                        continue
                    found.append((begin, stop, name))
    return found


def _near(text: bytes, searched: Span) -> Iterator[tuple[int, int]]:
    """Yields the stretches around words that a judge would use; they overlap where there are many."""
    position = searched.start
    while (word := _NEAR.search(text, position, searched.end)) is not None:
        yield max(0, word.start() - _NEAR_BYTES), min(len(text), word.end() + _NEAR_BYTES)
        position = word.end() + _NEAR_BYTES // 2  # a word until there is near enough


def _is_about(about: str, text: bytes, start: int, end: int, starts: Sequence[int]) -> bool:
    """Whether a statement, or what stands beside it in its texts, has what `injections.yaml` asks for."""
    first, behind = starts[bisect_right(starts, start) - 1], starts[bisect_left(starts, end)] - 1
    around = text[max(first, start - _ABOUT_BYTES) : min(behind, end + _ABOUT_BYTES)]
    return _ABOUT[about].search(around) is not None


def _without_line_ends(text: bytes, start: int, end: int) -> tuple[int, int]:
    if before := _LINE_END_BEFORE.match(text, start, end):
        start = before.end()
    after = _LINE_END_AFTER.search(text, start, end)
    return start, after.start() if after else end


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
    for following in (_LINE_END, _SENTENCE_END) if span.kind in _INTRODUCING else (_SENTENCE_END,):
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

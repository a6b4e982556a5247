"""
Finds text in a session that addresses the judge instead of reporting the incident.

A match proves nothing and stops nothing. It raises a flag, and gives the spans to mask when the session is
judged a second time. Text is searched as it is, folded (`folding`), as its letters alone, and decoded where
it is
base64, hexadecimal, ROT13 or reversed, or written with letters that stand apart.
"""

import base64
import binascii
import codecs
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate

import re2

from tarsy_scoring.timeline.clean.folding import (
    ESCAPED_PATTERN,
    fold,
    fold_text,
    letters_of,
    unfold,
    with_gaps,
)
from tarsy_scoring.timeline.clean.patterns import BytesPattern, compile_bytes, compile_set, read_rules
from tarsy_scoring.timeline.clean.statements import NEAR, NEAR_PATTERN, statements_to_judge

FENCE_REMOVED = "[fence removed]"
"""Replaces an imitated delimiter; see `sanitizer`."""

INSTRUCTION_REMOVED = "[instruction removed]"

_PATTERNS: dict[str, list[str]] = read_rules("injections.yaml", "patterns")
_NAMES = tuple(_PATTERNS)
_INJECTION = compile_bytes("(?i)" + "|".join(f"({'|'.join(p)})" for p in _PATTERNS.values()))
_PLAIN_PATTERN = "(?i)" + "|".join("|".join(p) for p in _PATTERNS.values())
_ANY_PLAIN = compile_bytes(_PLAIN_PATTERN, capture=False)


@dataclass(frozen=True, slots=True)
class Span:
    """A suspicious stretch of a text, in bytes of its UTF-8."""

    start: int
    end: int
    pattern: str


@dataclass(slots=True)
class Effort:
    """The effort left for the texts of one session. Without a limit a hostile session could cost minutes."""

    near_bytes: int = 1_000_000
    words: int = 100_000
    runs: int = 1_000

    @property
    def is_used_up(self) -> bool:
        return min(self.near_bytes, self.words, self.runs) <= 0


def find_injections(data: bytes, effort: Effort | None = None) -> list[Span]:
    """
    Find the spans of a UTF-8 text that try to steer the judge, in order and without overlap; linear.

    A text that uses up the effort is suspicious by itself. From then on only `injections.yaml` is searched
    for.

    Args:
        data: Text that `sanitizer.clean` returned; in other text a zero-width space could hide a word.
    """
    effort = effort or Effort()
    if effort.is_used_up:
        return _anywhere(data)
    folded = fold(data)
    spans = [*_plain(data, effort), *_unfolded(data, folded, _lettered(folded, effort))]
    if folded is not data:
        spans += _unfolded(data, folded, _plain(folded, effort))
    if _ANY_ENCODED.search(data) is not None:
        spans += _encoded(data, effort)
        for view, back in _VIEWS:
            spans += _unfolded(
                data, folded, [back(span, len(folded)) for span in _decoded(view(folded), effort)]
            )
    if effort.is_used_up:
        spans.append(Span(0, min(len(data), 1), "addressed_judge"))
    return _merged(spans)


def find_across(texts: Sequence[bytes], effort: Effort) -> Iterator[tuple[int, Span]]:
    """
    Find injections that are split over neighbouring texts: yields the number of a text, and the piece in it.

    Of a long text only head and tail are read.
    """
    edges: list[tuple[int, int]] = []  # the text, and where in it a stretch of the joined text begins
    joined: list[bytes] = []
    for number, text in enumerate(texts):
        pieces = [(0, text, b"\n")]
        if len(text) > 2 * _EDGE_BYTES:
            behind = len(text) - _EDGE_BYTES
            pieces = [(0, text[:_EDGE_BYTES], b"\1"), (behind, text[behind:], b"\n")]
        edges += [(number, offset) for offset, _, _ in pieces]
        joined += [piece + edge for _, piece, edge in pieces]
    starts = [0, *accumulate(map(len, joined))]
    whole = b"".join(joined)
    folded = fold(whole)
    for span in _unfolded(whole, folded, _lettered(folded, effort)):
        first, last = (bisect_right(starts, place) - 1 for place in (span.start, span.end - 1))
        if edges[first][0] == edges[last][0]:
            continue
        for stretch in range(first, last + 1):
            number, offset = edges[stretch]
            begin, end = (max(place, starts[stretch]) - starts[stretch] for place in (span.start, span.end))
            size = len(joined[stretch]) - 1
            if begin < min(end, size):
                yield number, Span(offset + begin, offset + min(end, size), span.pattern)


_EDGE_BYTES = 400


def steering(texts: Sequence[bytes]) -> set[int]:
    """
    The numbers of the texts that try to steer the judge, or may, when they are folded or by their letters
    alone.

    Args:
        texts: Without a match of `INJECTION_PATTERN`, and so without an escape.
    """
    folded = [text if text.isascii() else fold(text) for text in texts]
    found = {
        n for n, text in enumerate(texts) if folded[n] is not text and NEAR.search(folded[n]) is not None
    }
    if _steers(b"\1".join(folded)):
        found.update(number for number, text in enumerate(folded) if _steers(text))
    return found


def _steers(folded: bytes) -> bool:
    """Whether the letters of a folded text try to steer the judge, or are too many to be searched."""
    effort = Effort()
    spans = _in_letters(letters_of(_with_barriers(folded)), effort)
    return next(spans, None) is not None or effort.is_used_up


def _unfolded(data: bytes, folded: bytes, spans: list[Span]) -> list[Span]:
    if folded is data or not spans:
        return spans
    places = unfold(data, [(span.start, span.end) for span in spans])
    return [Span(start, end, span.pattern) for (start, end), span in zip(places, spans, strict=True)]


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Join what overlaps, under the name of what begins first."""
    merged: list[Span] = []
    for span in sorted(spans, key=lambda span: span.start):  # stable
        if merged and span.start < merged[-1].end:
            merged[-1] = replace(merged[-1], end=max(merged[-1].end, span.end))
        elif span.end > span.start:
            merged.append(span)
    return merged


# --- words ---------------------------------------------------------------------------------------------


_NEAR_EACH = [
    (name, compile_bytes(f"(?i){fold_text(pattern)}", capture=False))
    for name, patterns in read_rules("injection_near.yaml", "patterns").items()
    for pattern in patterns
]
_NEAR_BYTES_OF_A_WORD = 200
_NEAR_BYTES_OF_A_STATEMENT = 1_000  # to find its edges takes as long as to search so many bytes
# What stands on both sides of a marker is no text together.
_MARKER = re.escape(INSTRUCTION_REMOVED.encode())
_LINE = re.compile(rb"%b|((?:(?!%b)[^\n])+)" % (_MARKER, _MARKER))


def _plain(data: bytes, effort: Effort) -> list[Span]:
    """The spans of a text whose words, as they are, try to steer the judge."""
    return [*_anywhere(data), *_near_words(data, effort)]


def _near_words(data: bytes, effort: Effort) -> Iterator[Span]:
    start = end = 0
    position = 0
    while effort.near_bytes > 0 and (match := NEAR.search(data, position)) is not None:
        effort.near_bytes -= min(match.end() - position, 2 * _NEAR_BYTES_OF_A_WORD)
        position = match.end()
        if match.start() - _NEAR_BYTES_OF_A_WORD > end:
            if end:
                yield from _near_one(data, start, end, effort)
            start = match.start() - _NEAR_BYTES_OF_A_WORD
        end = position + _NEAR_BYTES_OF_A_WORD
    if end:
        yield from _near_one(data, start, end, effort)


def _near_one(data: bytes, start: int, end: int, effort: Effort) -> Iterator[Span]:
    place = data[start:end]
    for name, pattern in _NEAR_EACH:
        position = 0
        while (match := pattern.search(place, position)) is not None:
            yield Span(start + match.start(), start + match.end(), name)
            position = match.end()
    for part in _LINE.finditer(place):
        for begin, stop in statements_to_judge(part[1] or b""):
            effort.near_bytes -= _NEAR_BYTES_OF_A_STATEMENT
            if effort.near_bytes <= 0:
                return
            yield Span(start + part.start() + begin, start + part.start() + stop, "score_demand")


def _anywhere(data: bytes) -> list[Span]:
    if _ANY_PLAIN.search(data) is None:
        return []
    spans: list[Span] = []
    position = 0
    while (match := _INJECTION.search(data, position)) is not None:
        if len(spans) >= _MOST_SPANS:
            return [*spans, Span(position, len(data), spans[-1].pattern)]
        spans.append(_span(data, match))
        # Not from the end of the match: the line end that it includes may begin the next match.
        position = spans[-1].end
    return spans


_MOST_SPANS = 10_000  # of one text: behind them the rest counts as one span


def _span(data: bytes, match: "re2._Match") -> Span:
    """The span of a match without the line ends that the pattern includes."""
    start, end = match.span()
    if before := _LINE_END_BEFORE.match(data, start):
        start = before.end()
    if after := _LINE_END_AFTER.search(data, start, end):
        end = after.start()
    return Span(start, end, _NAMES[match.lastindex - 1])


_LINE_END_BEFORE, _LINE_END_AFTER = re.compile(rb"\n|\\{1,8}n"), re.compile(rb"(?:\n|\\{1,8}n)\Z")


# --- letters alone -------------------------------------------------------------------------------------

# Digits that are written in place of a letter, or letters that look like it.
_WRITTEN_AS = {
    "a": "a4",
    "b": "b8",
    "e": "e3",
    "g": "g9",
    "i": "i1l",
    "l": "li1",
    "o": "o0",
    "s": "s5",
    "t": "t7",
}
# By each of these letters and digits: one letter for all that may be written for each other.
_PLAIN = {written: letter for letter, alike in _WRITTEN_AS.items() for written in alike}
_AS_PLAIN = bytes.maketrans("".join(_PLAIN).encode(), "".join(_PLAIN.values()).encode())
_SPELT, _PLAINLY = str.maketrans({x: f"[{alike}]" for x, alike in _WRITTEN_AS.items()}), str.maketrans(_PLAIN)
_SYNTAX = re.compile(r"\{[0-9,]+\}|\(\?:|(\[[^]]*\])|([a-z0-9]+)")
_FILLER = re.compile(r"\{F([0-9]+)\}")
_BRANCHING = re.compile(r"([(|)])")
_ANYTHING = r"[a-z0-9\x80-\xff]"


def _spelt(pattern: str) -> str:
    """A pattern over letters in which each letter may be written in another way."""
    return _SYNTAX.sub(lambda found: found[2].translate(_SPELT) if found[2] else found[0], pattern)


def _plainly_spelt(pattern: str) -> str:
    """A pattern over plain letters that matches wherever `_spelt` does, and in some other places."""
    return _SYNTAX.sub(
        lambda found: found[2].translate(_PLAINLY) if found[2] else _ANYTHING if found[1] else found[0],
        pattern,
    )


def _alternatives(pattern: str) -> list[str]:
    """The alternatives of a pattern that stand in no group."""
    found, depth = [""], 0
    for part in _BRANCHING.split(pattern):
        depth += (part == "(") - (part == ")")
        if part == "|" and not depth:
            found.append("")
        else:
            found[-1] += part
    return found


def _shortest(pattern: str) -> int:
    """The bytes of the shortest text that a pattern without fillers matches."""
    flat, before = pattern, ""
    while flat != before:  # innermost groups first
        before = flat
        flat = _INNERMOST.sub(lambda g: "x" * (0 if g[2] else min(map(_plain_length, g[1].split("|")))), flat)
    return _plain_length(flat)


_INNERMOST, _CLASS, _OPTIONAL = (
    re.compile(r"\(\?:([^()]*)\)(\??)"),
    re.compile(r"\[[^]]*\]"),
    re.compile(r".\?"),
)


def _plain_length(literal: str) -> int:
    return len(_OPTIONAL.sub("", _CLASS.sub("x", literal)).encode())


_BY_NAME: dict[str, list[str]] = {
    name: [one for pattern in patterns for one in _alternatives(fold_text(pattern.replace(" ", "")))]
    for name, patterns in read_rules("injection_letters.yaml", "letters").items()
}
LETTER_PATTERNS = [(name, one) for name, patterns in _BY_NAME.items() for one in patterns]
# Together the patterns need more states than RE2 may store, because they count what stands between words. So
# one search finds their longest words, and each is searched where its word stands. That search reads plain
# letters, for which RE2 needs half as many states.
_WORDS = [max(reversed(_FILLER.split(one)[::2]), key=_shortest) for _, one in LETTER_PATTERNS]
_ANY_WORD = compile_bytes("|".join(map(_plainly_spelt, _WORDS)), capture=False)
_WHICH = compile_set(list(map(_spelt, _WORDS)), whole=False)
_AROUND = 200  # letters before and behind a word that a pattern may match
_STRETCH = 4_000
_LONGEST_WORD = 120
_BARRIER = b"\1".ljust(len(INSTRUCTION_REMOVED))


def _with_barriers(folded: bytes) -> bytes:
    # What stands on both sides of a marker is no text together.
    return folded.replace(INSTRUCTION_REMOVED.encode(), _BARRIER)


def _lettered(folded: bytes, effort: Effort) -> list[Span]:
    folded = _with_barriers(folded)
    spans = _merged(_in_letters(letters_of(folded), effort))
    places = with_gaps(folded, [(span.start, span.end) for span in spans]) if spans else []
    return [Span(*place, span.pattern) for place, span in zip(places, spans, strict=True)]


def _in_letters(letters: bytes, effort: Effort) -> Iterator[Span]:
    position = 0
    plain = letters.translate(_AS_PLAIN)
    searched: dict[int, int] = {}  # by pattern: up to where its words need no further search
    while effort.words > 0 and (match := _ANY_WORD.search(plain, position)) is not None:
        effort.words -= 1
        start = match.start()
        position = start + 1  # words may overlap
        for number in _WHICH.Match(letters[start : start + _LONGEST_WORD]) or ():
            if start < searched.get(number, 0):
                continue
            # Further than this word needs, so that many words do not cost many searches.
            begin, end = max(0, start - _AROUND), start + _STRETCH
            searched[number] = end - _AROUND
            pattern = whole_pattern(number)
            while (found := pattern.search(letters[begin:end])) is not None:
                yield Span(begin + found.start(), begin + found.end(), LETTER_PATTERNS[number][0])
                begin += found.end()


@cache
def whole_pattern(number: int) -> BytesPattern:
    """A pattern of `LETTER_PATTERNS` with what may stand between its words."""
    _, one = LETTER_PATTERNS[number]
    return compile_bytes(_FILLER.sub(lambda n: f"{_ANYTHING}{{0,{n[1]}}}", _spelt(one)), capture=False)


# --- encoded text --------------------------------------------------------------------------------------

_SIGNAL_WORDS = (
    *(
        "ignore",
        "instruct",
        "disregard",
        "previous",
        "score",
        "evaluat",
        "maximum",
        "points",
        "judge",
        "grade",
    ),
    *("full marks", "rating", "verdict", "reviewer", "perfect"),
)


def _encodings_of(word: str) -> Iterator[str]:
    """The characters that base64 and hexadecimal digits have for a word in any text."""
    for spelt in (word, word.title(), word.upper()):
        yield "(?i:" + spelt.encode().hex(" ").replace(" ", "[ ]?") + ")"
        for offset in range(3):
            encoded = base64.b64encode(bytes(offset) + spelt.encode() + bytes(3)).decode()
            yield re.escape(encoded[-(-8 * offset // 6) : 8 * (offset + len(word)) // 6])


_ENCODED_PATTERN = "|".join(
    [
        *(part for word in _SIGNAL_WORDS for part in _encodings_of(word)),
        "(?i:vtaber|cerivbhf|vafgehpgvba|qvfertneq|fpber|rinyhng|whqtr|tenqr|nffrffbe|shyy znexf|erongi|snoitcurtsni"
        "|dragersid|erocs|rotaulave|egduj|edarg|redarg|rosessa|skram|stniop)",
        r"\b[A-Za-z](?:[ ]{1,3}|[._*-])(?:[A-Za-z](?:[ ]{1,3}|[._*-])){6}",  # letters that stand apart
    ]
)
_ANY_ENCODED = compile_bytes(_ENCODED_PATTERN, capture=False)
_RUN = re.compile(
    rb"(?<![A-Za-z0-9])(?:[A-Za-z0-9/][ ._*:,-]{1,4}){10,}[A-Za-z0-9/](?![A-Za-z0-9])"
    rb"|(?:[0-9a-fA-F]{2}[ ]){11,}[0-9a-fA-F]{2}|(?:0x)?[0-9a-fA-F]{24,}|[A-Za-z0-9+/_-]{12,}={0,2}"
)
INJECTION_PATTERN = f"(?:{_PLAIN_PATTERN})|(?:{NEAR_PATTERN})|{_ENCODED_PATTERN}|{ESCAPED_PATTERN}"
"""Matches every ASCII text in which `find_injections` finds something, unless `steering` does."""


def _encoded(data: bytes, effort: Effort) -> Iterator[Span]:
    """
    The runs of base64 or hexadecimal digits, or of letters that stand apart, whose text tries to steer the
    judge.
    """
    for run in _RUN.finditer(data):
        if _ANY_ENCODED.search(run[0]) is None:
            continue
        effort.runs -= 1
        if effort.is_used_up:
            break
        for decode in (_from_base64, _from_hexadecimal, _from_letters_apart):
            if found := _decoded(decode(run[0]), effort):
                yield Span(*run.span(), found[0].pattern)
                break


def _decoded(text: bytes, effort: Effort) -> list[Span]:
    return _merged([*_plain(text, effort), *_lettered(text, effort)])


def _from_base64(run: bytes) -> bytes:
    digits = run.rstrip(b"=").translate(bytes.maketrans(b"-_", b"+/"))
    try:
        return base64.b64decode(digits[: len(digits) - (len(digits) % 4 == 1)] + b"=" * (-len(digits) % 4))
    except (binascii.Error, ValueError):
        return b""


def _from_hexadecimal(run: bytes) -> bytes:
    run = run.replace(b" ", b"").removeprefix(b"0x")
    try:
        return bytes.fromhex(run[: len(run) // 2 * 2].decode())
    except ValueError:
        return b""


def _from_letters_apart(run: bytes) -> bytes:
    between = run[1:2]
    return _BETWEEN_LETTERS.sub(b"", run) if between == b" " else run.replace(between, b"")


_BETWEEN_LETTERS = re.compile(rb"(?<! ) (?! )")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ROT13 = bytes.maketrans(_LETTERS.encode(), codecs.encode(_LETTERS, "rot13").encode())
_VIEWS: tuple[tuple[Callable[[bytes], bytes], Callable[[Span, int], Span]], ...] = (
    (lambda data: data.translate(_ROT13), lambda span, _: span),
    (lambda data: data[::-1], lambda span, size: Span(size - span.end, size - span.start, span.pattern)),
)


# --- masking -------------------------------------------------------------------------------------------


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


_INTRODUCING = frozenset(
    {"imitated_delimiter", "chat_role_token", "role_line", "new_instructions", "addressed_judge"}
)
_SENTENCE_END, _END_OF_LINE = re.compile(rb"[.!?\n]|\xe3\x80\x82|\xef\xbc[\x81\x9f]"), re.compile(rb"\n")
_NEAR_BYTES = 200

"""
Untrusted text made safe to quote: nothing invisible, no secret, and no way to close the quote.

A fence is a pair of lines that carry a nonce. Who writes into a session cannot know the nonce, and what
looks like a fence, with whatever nonce, is taken out.
"""

import re
import secrets
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import re2

from tarsy_scoring.timeline.injection import (
    FENCE_REMOVED,
    INJECTION_PATTERN,
    INSTRUCTION_REMOVED,
    find_injections,
    mask_injections,
)
from tarsy_scoring.timeline.masking import SECRET_PATTERN, compile_bytes, mask_bytes
from tarsy_scoring.timeline.text import INVISIBLE, encode, utf8_pattern

FENCE_WORD = "SESSION-DATA"
MODEL_REMOVED = "[model]"


def new_nonce() -> str:
    """16 hexadecimal digits: made once per score, stored with it, the same for all its calls of the judge."""
    return secrets.token_hex(8)


def fence_lines(nonce: str) -> tuple[str, str]:
    """The lines that open and close fenced text; the prompt tells the judge about them."""
    return f"<<<{FENCE_WORD} {nonce} BEGIN>>>", f"<<<{FENCE_WORD} {nonce} END>>>"


def fence(text: str, nonce: str) -> str:
    """Quote text that `Sanitizer` has seen; any other may hold the delimiter."""
    begin, end = fence_lines(nonce)
    return f"{begin}\n{text}\n{end}"


@dataclass(frozen=True, slots=True)
class Injection:
    """Something in an entry that talks to the judge: the entry's id, the pattern's name, what it says."""

    entry: str
    pattern: str
    excerpt: str


_EXCERPT_CHARACTERS = 120

# Terminal escape sequences whole, so that no tail of one stays behind. This and the next two are for Python's
# engine: it replaces many small matches faster than RE2, and is linear here, as nothing that a match runs over
# can begin another.
_ESCAPE = re.compile(rb"\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)|(?:\x1b\[|\xc2\x9b)[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-Z\\^-~]?")
# All of C0 and DEL but newline and tab.
_CONTROLS = bytes(c for c in range(32) if c not in b"\n\t") + b"\x7f"
# C1, line separators, and what is invisible or reorders text.
_INVISIBLE_PATTERN = r"\xc2[\x80-\x9f]|\xe2\x80[\xa8\xa9]|" + utf8_pattern(INVISIBLE)
# What a reader takes for ASCII: blanks of other widths, fullwidth digits, letters and `< > [ ] |`, letters of
# mathematics and in circles. Fullwidth punctuation stays: it is how Chinese and Japanese are written.
_COMPATIBLE_PATTERN = (
    r"\xc2\xa0|\xe2\x80[\x80-\x8a\xaf]|\xe2\x81\x9f|\xe3\x80\x80"
    r"|\xef\xbc[\x90-\x99\x9c\x9e\xa1-\xbb\xbd]|\xef\xbd[\x81-\x9a\x9c]"
    r"|\xf0\x9d[\x90-\x9f][\x80-\xbf]|\xe2\x92[\xb6-\xbf]|\xe2\x93[\x80-\xa9]"
)
_DIRT_PATTERN = rf"[\x00-\x08\x0b-\x1f\x7f]|{_INVISIBLE_PATTERN}|{_COMPATIBLE_PATTERN}"


def _spelled(word: str) -> str:
    """A word in any case, also spaced out or with letters that only look right."""
    # Digits of the same shape, then Cyrillic, Greek and phonetic letters, of which no byte must be taken for another.
    alike = {
        "a": ("4", "аАΑ"),
        "b": ("8", "ВΒ"),
        "d": ("", "ԁ"),
        "e": ("3", "еЕΕ"),
        "g": ("", "ɡ"),
        "i": ("1l", "іІΙı"),
        "o": ("0", "оОΟο"),
        "s": ("5", "ѕЅ"),
        "t": ("7", "тТΤ"),
    }
    letters = []
    for letter in word:
        ascii_alike, others = alike.get(letter, ("", ""))
        one = f"[{letter}{ascii_alike}]"
        letters.append(f"(?:{one}|(?-i:{'|'.join(others)}))" if others else one)
    return "[ ._*~-]?".join(letters)


# `<`, as HTML, JSON and URLs write it too, its small form, angle quotation marks and brackets.
_OPENER = (
    r"(?:<|&(?:lt|#0*60|#x0*3c);|\\+u003c|%3c|\xef\xb9\xa4|\xe2\x80\xb9|\xc2\xab|\xe2\x89\xaa"
    r"|\xe2\x9f[\xa8\xaa]|\xe3\x80[\x88\x8a])"
)
_DECORATION = r"[^0-9a-z\n<]"
_CODE = r"[^g-z\n<>\[\]]{0,40}"  # hexadecimal, and what may stand around it
_SESSION_DATA = rf"{_spelled('session')}{_DECORATION}{{0,6}}{_spelled('data')}"
_EDGE = rf"(?:{_spelled('begin')}|{_spelled('end')})"
_IMITATION_PATTERN = (
    # Two openers before the words; one, or another frame, where the words begin or end something; or only closers.
    rf"(?i){_OPENER}{{2,}}{_DECORATION}{{0,6}}(?:{_EDGE}{_DECORATION}{{0,4}})?{_SESSION_DATA}(?:[^\n<>]{{0,60}}>{{1,3}})?"
    rf"|(?:{_OPENER}|\[\[|\{{\{{|[=#*~_-]{{3}}){_DECORATION}{{0,6}}"
    rf"(?:{_EDGE}{_DECORATION}{{0,4}}{_SESSION_DATA}|{_SESSION_DATA}{_CODE}\b{_EDGE}\b)(?:[^\n<>]{{0,20}}>{{1,3}})?"
    rf"|{_SESSION_DATA}{_CODE}\b{_EDGE}[^0-9a-z\n]{{0,3}}>{{2,3}}"
)
_ENTRY_ID_PATTERN = (
    r"(?:\[|\xe3\x80[\x90\x94\x96]|\xe2\x9f\xa6)[ \t]?([Ee][ \t]?[1-9][0-9]*)[ \t]?"
    r"(?:\]|\xe3\x80[\x91\x95\x97]|\xe2\x9f\xa7)"
)

_DIRT = compile_bytes(_DIRT_PATTERN, capture=False)
_INVISIBLE = re.compile(_INVISIBLE_PATTERN.encode())
_COMPATIBLE = re.compile(_COMPATIBLE_PATTERN.encode())
_IMITATION = compile_bytes(_IMITATION_PATTERN)
_ANY_IMITATION = compile_bytes(_IMITATION_PATTERN, capture=False)
_ENTRY_ID = compile_bytes(_ENTRY_ID_PATTERN)
# One pass answers for most texts of a session that there is nothing to do.
_REASONS = (_DIRT_PATTERN, SECRET_PATTERN, _IMITATION_PATTERN, _ENTRY_ID_PATTERN, INJECTION_PATTERN)
_ANYTHING = compile_bytes("|".join(f"(?:{p})" for p in _REASONS), capture=False)
_SEPARATOR = b"\n"
"""Between texts that are searched as one. Every pattern takes it for what it is at the edge of a text: an edge."""


def clean(data: bytes) -> bytes:
    """
    UTF-8 without control characters, escape sequences or invisible characters; line ends are `\\n`.

    Letters, digits and blanks that a reader takes for ASCII become it, so that each rule is written once.
    """
    if _DIRT.search(data) is None:
        return data
    data = data.replace(b"\r\n", b"\n")
    for line_end in (b"\r", b"\xc2\x85", b"\xe2\x80\xa8", b"\xe2\x80\xa9"):
        data = data.replace(line_end, b"\n")
    data = _ESCAPE.sub(b"", data).translate(None, _CONTROLS)
    return _COMPATIBLE.sub(_as_ascii, _INVISIBLE.sub(b"", data))


def _as_ascii(match: re.Match[bytes]) -> bytes:
    return unicodedata.normalize("NFKC", match[0].decode()).encode()


def imitates_fence(data: bytes) -> bool:
    """Whether UTF-8 text holds what may be taken for a fence line, whatever its nonce."""
    return _ANY_IMITATION.search(data) is not None


class Sanitizer:
    """
    Turns untrusted text into text that may stand inside a fence.

    In this order, because each step would hide something from the next: control and invisible
    characters out, secrets masked, imitated entry ids and fences defused, the nonce and the judged
    agents' model names replaced, injections found.

    Args:
        nonce: Of the fence.
        model_names: Names that the judge must not see. Only those that cannot be an ordinary word are
            replaced inside text: with a digit and 4 characters, or with a separator and 8.
        mask: Replace injections too; what they said is then gone.
    """

    def __init__(self, nonce: str, model_names: Iterable[str] = (), *, mask: bool = False) -> None:
        self._found: dict[Injection, None] = {}
        self._mask = mask
        self._nonce = nonce.lower().encode()
        names = sorted({n for n in _spellings(model_names) if _is_specific(n)}, key=lambda n: (-len(n), n))
        self._spelt_names, self._names = names, [n.encode() for n in names]
        self._short: dict[str, str] = {}

    @cached_property
    def _nonce_pattern(self) -> "re2._Regexp":
        return compile_bytes(f"(?i){self._nonce.decode()}")  # hexadecimal: nothing to escape

    @cached_property
    def _name_pattern(self) -> "re2._Regexp":
        # A name that ends in a bracket has no word to end.
        alternatives = "|".join(re2.escape(n) + (r"\b" if n[-1:].isalnum() else "") for n in self._spelt_names)
        return compile_bytes(rf"(?i)(\A|[^A-Za-z0-9])(?:{alternatives})")

    @property
    def injections(self) -> list[Injection]:
        """What was found so far; what one entry says twice is listed once."""
        return list(self._found)

    def texts(self, texts: Sequence[tuple[str, str]]) -> list[str]:
        """
        `text` for many pairs of entry and text at once.

        One search over all of them tells which need a closer look, some 2 in 100 (of 8,140 texts of 91
        recorded sessions, 154); the others are what they were.
        """
        try:
            encoded = [text.encode() for _, text in texts]
        except UnicodeEncodeError:  # a lone surrogate
            return [self.text(entry, text) for entry, text in texts]
        safe = [text for _, text in texts]
        for index in self._suspicious(encoded):
            safe[index] = self.text(*texts[index])
        return safe

    def _suspicious(self, texts: Sequence[bytes]) -> list[int]:
        """The indices, in order, of all texts that `text` would change or find something in, and a few more."""
        joined = _SEPARATOR.join(texts)
        ends = [end - 1 for end in accumulate(len(text) + 1 for text in texts)]  # where separators stand, or would
        found: set[int] = set()

        def add(start: int, end: int) -> int:
            # A separator belongs to the texts on both of its sides.
            last = min(bisect_right(ends, end - 1), len(texts) - 1)
            found.update(range(bisect_left(ends, start), last + 1))
            return ends[last]

        position = 0
        while position < len(joined) and (match := _ANYTHING.search(joined, position)) is not None:
            position = add(*match.span())  # nothing more is to be learnt about the texts up to there
        lower = joined.lower()  # plain searches: faster than a pattern where there is nothing to find
        for literal in (self._nonce, *self._names):
            position = lower.find(literal)
            while position >= 0:
                position = lower.find(literal, add(position, position + len(literal)))
        return sorted(found)

    def text(self, entry: str, text: str) -> str:
        """Text of an entry, made safe; injections found in it are recorded under the entry's id."""
        data = encode(text)
        is_ascii = len(data) == len(text)
        touched = _ANYTHING.search(data) is not None
        if touched:
            data = mask_bytes(clean(data))
            data = _IMITATION.sub(FENCE_REMOVED.encode(), _ENTRY_ID.sub(rb"(\1)", data))
        lower = data.lower()
        if self._nonce in lower:
            data, touched = self._nonce_pattern.sub(b"[nonce]", data), True
        if any(name in lower for name in self._names):
            # Twice: of two names with one character between them, a first pass sees only one.
            for _ in range(2):
                data = self._name_pattern.sub(rb"\1" + MODEL_REMOVED.encode(), data)
            touched = True
        if not touched:
            return text if is_ascii else data.decode()  # a lone surrogate is replaced by the encoding
        return self._without_injections(entry, data).decode()

    def _without_injections(self, entry: str, data: bytes) -> bytes:
        """Record them; and take them out where that was asked for."""
        spans = find_injections(data)
        for span in spans:
            excerpt = data[span.start : span.end].decode("utf-8", "ignore").strip()[:_EXCERPT_CHARACTERS]
            self._found[Injection(entry, span.pattern, excerpt)] = None
        return mask_injections(data, spans) if self._mask and spans else data

    def line(self, entry: str, text: str) -> str:
        """The same on one line, for names."""
        known = self._short.get(text)
        if known is None:
            safe = self.text(entry, text)
            known = " ".join(safe.split())
            if known != safe:  # what was harmless on two lines may not be on one
                known = " ".join(self.text(entry, known).split())
            self._short[text] = known
        return known

    def composed(self, entry: str, line: str) -> str:
        """A line put together from safe names: none of them is a fence, but two of them might be."""
        data = line.encode()
        if not imitates_fence(data):
            return line
        self._found[Injection(entry, "imitated_delimiter", FENCE_REMOVED)] = None
        marker = INSTRUCTION_REMOVED if self._mask else FENCE_REMOVED
        return bytes(_IMITATION.sub(marker.encode(), data)).decode()


def _spellings(names: Iterable[str]) -> Iterable[str]:
    """`openai/gpt-4o` is also met as `gpt-4o`."""
    for name in names:
        yield name.lower()
        yield name.lower().rpartition("/")[2]


def _is_specific(name: str) -> bool:
    has_digit = any(c.isdigit() for c in name)
    return (has_digit and len(name) >= 4) or (len(name) >= 8 and any(c in "-_/.:@" for c in name))

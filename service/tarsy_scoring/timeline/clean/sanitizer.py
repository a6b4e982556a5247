"""
Makes untrusted text safe to quote: without invisible characters, secrets or a way to close the quote.

Text that looks like a fence line (`fence_lines`), with any nonce, is removed.
"""

import re
import unicodedata
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

import re2

from tarsy_scoring.timeline.clean.folding import ESCAPED_PATTERN
from tarsy_scoring.timeline.clean.injection import FENCE_REMOVED, NEAR_PATTERN, find_in_texts, mask_injections
from tarsy_scoring.timeline.clean.masking import (
    ANY_SECRET,
    MARKER_PATTERN,
    SECRET_PATTERNS,
    SHIPPED,
    Masker,
    Masking,
    defuse_markers,
)
from tarsy_scoring.timeline.clean.patterns import compile_bytes
from tarsy_scoring.timeline.clean.pictures import replace_in_texts
from tarsy_scoring.timeline.text import INVISIBLE, encode, utf8_pattern

MODEL_REMOVED = "[model]"


@dataclass(frozen=True, slots=True)
class Injection:
    """Text in an entry that addresses the judge: the entry's id and the pattern's name."""

    entry: str
    pattern: str


# Whole terminal escape sequences, so that no tail of one stays behind. `_ESCAPE`, `_INVISIBLE` and
# `_COMPATIBLE` use Python's engine: it replaces many small matches faster than RE2. It is linear here,
# because no character inside a match can begin another match.
_ESCAPE = re.compile(
    rb"\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)|(?:\x1b\[|\xc2\x9b)[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-Z\\^-~]?"
)
# C0 and DEL, without newline and tab.
_CONTROLS = bytes(c for c in range(32) if c not in b"\n\t") + b"\x7f"
# C1, line separators, and characters that are invisible or reorder text.
_INVISIBLE_PATTERN = r"\xc2[\x80-\x9f]|\xe2\x80[\xa8\xa9]|" + utf8_pattern(INVISIBLE)
# Characters that look like ASCII: blanks of other widths, fullwidth digits, letters and `< > [ ] |`,
# mathematical and circled letters. Fullwidth punctuation stays, because it is regular in Chinese and
# Japanese.
_COMPATIBLE_PATTERN = (
    r"\xc2\xa0|\xe2\x80[\x80-\x8a\xaf]|\xe2\x81\x9f|\xe3\x80\x80"
    r"|\xef\xbc[\x90-\x99\x9c\x9e\xa1-\xbb\xbd]|\xef\xbd[\x81-\x9a\x9c]"
    r"|\xf0\x9d[\x90-\x9f][\x80-\xbf]|\xe2\x92[\xb6-\xbf]|\xe2\x93[\x80-\xa9]"
)
_DIRT_PATTERN = rf"[\x00-\x08\x0b-\x1f\x7f]|{_INVISIBLE_PATTERN}|{_COMPATIBLE_PATTERN}"


# A fence line in plain letters, with the escapes that `<` has in HTML, JSON and URLs. Spellings with other letters are
# injections: they close no fence, because their authors do not know the nonce.
_IMITATION_PATTERN = (
    r"(?i)(?:<|&(?:lt|#0*60|#x0*3c);|\\+u003c|%3c){2,}[^0-9a-z\n<]{0,6}(?:(?:begin|end)[^0-9a-z\n<]{0,4})?"
    r"session[^0-9a-z\n<]{0,6}data(?:[^\n<>]{0,60}>{1,3})?"
)
_ENTRY_ID_PATTERN = (
    r"(?:\[|\xe3\x80[\x90\x94\x96]|\xe2\x9f\xa6)[ \t]?([Ee][ \t]?[1-9][0-9]*)[ \t]?"
    r"(?:\]|\xe3\x80[\x91\x95\x97]|\xe2\x9f\xa7)"
)

_DIRT = compile_bytes(_DIRT_PATTERN, capture=False)
_INVISIBLE = re.compile(_INVISIBLE_PATTERN.encode())
_COMPATIBLE = re.compile(_COMPATIBLE_PATTERN.encode())
_IMITATION = compile_bytes(_IMITATION_PATTERN)
_ENTRY_ID = compile_bytes(_ENTRY_ID_PATTERN)
_FORMS = (_DIRT_PATTERN, MARKER_PATTERN, _IMITATION_PATTERN, _ENTRY_ID_PATTERN, ESCAPED_PATTERN)
# Why a text is looked at again in every session, as in `SECRET_PATTERNS`. 0 is also a form that is changed.
# 2 is also a word that a judge would use: a search of its own takes nearly as long as one for both.
_REASONS = [
    compile_bytes("|".join(f"(?:{pattern})" for pattern in (SECRET_PATTERNS[0], *_FORMS)), capture=False),
    ANY_SECRET[1],
    compile_bytes(f"{SECRET_PATTERNS[2]}|{NEAR_PATTERN}", capture=False),
]
_FORM = 0
_SEPARATOR = b"\n"
"""Joins texts that are searched together: each pattern treats it like the edge of a text, and none matches it alone."""


def clean(data: bytes) -> bytes:
    """
    Remove control characters, escape sequences and invisible characters from UTF-8; line ends become `\\n`.

    Letters, digits and blanks that look like ASCII become ASCII, so that each later rule is written once.
    """
    if _DIRT.search(data) is None:
        return data
    # NUL goes first: sources drop it before, and it must hide no line end and no escape sequence.
    data = data.replace(b"\0", b"").replace(b"\r\n", b"\n")
    for line_end in (b"\r", b"\xc2\x85", b"\xe2\x80\xa8", b"\xe2\x80\xa9"):
        data = data.replace(line_end, b"\n")
    data = _ESCAPE.sub(b"", data).translate(None, _CONTROLS)
    return _COMPATIBLE.sub(_as_ascii, _INVISIBLE.sub(b"", data))


def _as_ascii(match: re.Match[bytes]) -> bytes:
    return unicodedata.normalize("NFKC", match[0].decode()).encode()


def _suspicious(texts: Sequence[bytes]) -> dict[int, set[int]]:
    """The numbers of the texts that may need a change in every session, each with the `_REASONS` that may match."""
    found: dict[int, set[int]] = defaultdict(set)
    joined = _SEPARATOR.join(texts)
    starts = [0, *accumulate(len(text) + 1 for text in texts)]
    for reason, pattern in enumerate(_REASONS):
        position = 0
        while position < len(joined) and (match := pattern.search(joined, position)) is not None:
            # A match that touches a separator counts for the texts on both sides.
            first, last = (bisect_right(starts, at) - 1 for at in (match.start(), match.end() - 1))
            for number in range(first, last + 1):
                found[number].add(reason)
            position = starts[last + 1] - 1
    return found


def _one_line(text: str) -> str:
    return " ".join(clean(encode(text)).decode().split())


@lru_cache(maxsize=4_096)  # names and descriptions of tools return in each session
def _known(text: str) -> str | None:
    """A name on one line, if it stays so in every session."""
    # On one line before it is checked: text that is harmless on two lines may not be on one.
    name = _one_line(text)
    alone = Sanitizer("\0")  # no clean text holds such a nonce
    return name if alone.text("", name) == name and not alone.injections else None


_NAME_CHARACTERS = 1_000


class Sanitizer:
    """
    Turns untrusted text into text that may stand inside a fence.

    Steps, in an order in which none hides anything from a later one: replace pictures, remove control and invisible
    characters, defuse imitated markers, mask secrets, defuse imitated entry ids and fences, replace the nonce and the
    judged agents' model names, find injections.

    Args:
        nonce: The fence's nonce.
        model_names: Names to hide from the judge. Only names that cannot be an ordinary word are replaced:
            those with a digit and at least 4 characters, or with a separator and at least 8.
        mask: Replace injections, too.
        masking: The rules of secrets.
    """

    def __init__(
        self, nonce: str, model_names: Iterable[str] = (), *, mask: bool = False, masking: Masking = SHIPPED
    ) -> None:
        self._found: dict[Injection, None] = {}
        self._masker = Masker(masking)
        self._own = masking.own.any if masking.own else None
        self._mask = mask
        self._nonce = nonce.lower().encode()
        names = sorted({n for n in _spellings(model_names) if _is_specific(n)}, key=lambda n: (-len(n), n))
        self._spelt_names, self._names = names, [n.encode() for n in names]
        self._short: dict[str, str] = {}

    @cached_property
    def _nonce_pattern(self) -> "re2._Regexp":
        return compile_bytes(f"(?i){self._nonce.decode()}")  # hexadecimal, so there is nothing to escape

    @cached_property
    def _name_pattern(self) -> "re2._Regexp":
        # There is no word boundary after a name that ends in a bracket.
        alternatives = "|".join(
            re2.escape(n) + (r"\b" if n[-1:].isalnum() else "") for n in self._spelt_names
        )
        return compile_bytes(rf"(?i)(\A|[^A-Za-z0-9])(?:{alternatives})")

    @property
    def injections(self) -> list[Injection]:
        """The injections found so far; a repetition within an entry is listed once."""
        return list(self._found)

    def texts(self, texts: Sequence[tuple[str, str]]) -> list[str]:
        """
        The safe texts of pairs of an entry and a text; injections found in them are recorded under the entry.

        Source: 1,510 of the 8,639 texts of 91 recorded sessions may need a change, so all texts are searched at
        once: for a typical session that takes 0.6 ms instead of 1.5 ms.
        """
        safe = replace_in_texts([encode(text) for _, text in texts])
        found = self._suspects(safe)
        for number in sorted(found):
            safe[number] = self._changed(safe[number], found[number])
        disguised = {n for n, text in enumerate(safe) if not text.isascii() or _FORM in found.get(n, ())}
        for number, spans in find_in_texts(safe, disguised, disguised | found.keys()).items():
            for span in spans:
                self._found[Injection(texts[number][0], span.kind)] = None
            if self._mask:
                safe[number] = mask_injections(safe[number], spans)
        return [text.decode() for text in safe]

    def text(self, entry: str, text: str) -> str:
        """The safe text of an entry; injections found in it are recorded under the entry's id."""
        return self.texts([(entry, text)])[0]

    def _suspects(self, texts: Sequence[bytes]) -> dict[int, set[int]]:
        """The numbers of the texts that may need a change, with the `_REASONS` that hold in every session."""
        found = _suspicious(texts)
        # An operator's shape may ask for the start of a text.
        if self._own is not None or self._has_own(_SEPARATOR.join(texts)):
            found |= {n: found.get(n, set()) for n, text in enumerate(texts) if self._has_own(text)}
        return found

    def _has_own(self, data: bytes) -> bool:
        """Whether a text may hold the nonce, a name to hide or a shape of the operator's own."""
        lower = data.lower()  # plain searches are faster than a pattern when there is no match
        is_named = any(name in lower for name in (self._nonce, *self._names))
        return is_named or bool(self._own and self._own.search(data))

    def _changed(self, raw: bytes, reasons: Set[int]) -> bytes:
        """A text that may need a change, safe but for injections."""
        data = defuse_markers(clean(raw)) if _FORM in reasons else raw
        data = self._masker.mask_bytes(data, reasons if data is raw else None)
        if _FORM in reasons or data is not raw:
            data = _IMITATION.sub(FENCE_REMOVED.encode(), _ENTRY_ID.sub(rb"(\1)", data))
        lower = data.lower()
        if self._nonce in lower:
            data = self._nonce_pattern.sub(b"[nonce]", data)
        if any(name in lower for name in self._names):
            # Twice: a match consumes the character before the name, so adjacent names need a second pass.
            for _ in range(2):
                data = self._name_pattern.sub(rb"\1" + MODEL_REMOVED.encode(), data)
        return data

    def line(self, entry: str, text: str) -> str:
        """Sanitize a name and put it on one line."""
        line = self._short.get(text)
        if line is None:
            line = _known(text) if len(text) <= _NAME_CHARACTERS else None
            if line is None or self._has_own(encode(line)):
                line = self.text(entry, _one_line(text))
            self._short[text] = line
        return line


def _spellings(names: Iterable[str]) -> Iterable[str]:
    """Each name in lower case, with and without the provider: `openai/gpt-4o` is also written `gpt-4o`."""
    for name in names:
        yield name.lower()
        yield name.lower().rpartition("/")[2]


def _is_specific(name: str) -> bool:
    has_digit = any(c.isdigit() for c in name)
    return (has_digit and len(name) >= 4) or (len(name) >= 8 and any(c in "-_/.:@" for c in name))

"""
Folds disguised text: letters that look like ASCII, accents, escapes and what stands between letters.

A search over folded text finds words however they are written. Offsets lead back to the text itself. All
functions
are linear.
"""

import functools
import html
import re
import unicodedata
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import compress

from tarsy_scoring.config.packaged import packaged_yaml
from tarsy_scoring.timeline.clean.patterns import compile_bytes

_ENTITY = rb"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]{2,8});?"
_ESCAPES = rb"(?:\\{1,4}u\{?[0-9a-fA-F]{4,6}\}?|\\{1,4}x[0-9a-fA-F]{2}|\\{1,4}U[0-9a-fA-F]{8})+"
_PERCENT = rb"(?:%[0-9a-fA-F]{2})+"
_QUOTED_PRINTABLE = rb"(?:=[0-9A-F]{2}){2,}"
_TAGS = rb"</?(?:b|i|s|u|em|wbr|span|strong|mark|sub|sup|font)>|<!--[^>\n]{0,40}-->"
_OTHER_LETTERS = rb"[\x80-\xff]+"
_UNIT = re.compile(rb"|".join((_ENTITY, _ESCAPES, _PERCENT, _QUOTED_PRINTABLE, _TAGS, _OTHER_LETTERS)))
_OTHER = re.compile(_OTHER_LETTERS)
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_ONE_ESCAPE = re.compile(rb"\\{1,4}[uUx]\{?([0-9a-fA-F]+)\}?")

ESCAPED_PATTERN = (
    r"&#0{0,5}(?:6[5-9]|[789][0-9]|1[012][0-9]|[0-9]{3,7})\b|&#[xX]0{0,4}(?:[4-7][0-9a-fA-F]|[0-9a-fA-F]{3,6})\b"
    r"|\\u\{?0{0,4}[4-7][0-9a-fA-F]|\\u(?:0[1-9a-fA-F]|[1-9a-fA-F])[0-9a-fA-F]{2}|\\x[4-7][0-9a-fA-F]|\\U000"
    r"|(?:%[4-7][0-9a-fA-F]){2}|%20[A-Za-z]{1,20}%20|(?:=[4-7][0-9A-F]){2}"
    r"|[A-Za-z](?:</?(?:b|i|s|u|em|wbr|span|strong|mark|sub|sup|font)>|<!--[^>\n]{0,40}-->)[A-Za-z]"
)
"""Matches wherever ASCII text holds an escaped letter."""

_ANY_ESCAPE = compile_bytes(ESCAPED_PATTERN, capture=False)


class _Folded(dict[int, str]):
    """
    By code point: the ASCII letters that a character looks like, or its base letter; made when it is needed.
    """

    def __missing__(self, point: int) -> str:
        character = _ALIKE.get(
            chr(point), chr(point)
        )  # capitals first: some look like another letter than in lower case
        # Syllables of Hangul stay whole, because their parts are no letters of their own.
        is_syllable = "\uac00" <= character <= "\ud7a3"
        decomposed = character if is_syllable else unicodedata.normalize("NFKD", character.casefold())
        folded = "".join(map(_fold_character, decomposed))
        self[point] = folded
        return folded


def _fold_character(character: str) -> str:
    if character.isascii():
        return character
    if alike := _ALIKE.get(character):
        return alike
    category = unicodedata.category(character)
    if category in ("Mn", "Me", "Cf"):
        return ""
    if category == "Nd":
        return str(unicodedata.digit(character))
    return " " if category[0] in "PSZ" else character


_ALIKE: dict[str, str] = {
    character: letter
    for letter, alike in packaged_yaml(__package__, "lookalikes.yaml").items()
    for character in alike
}
_FOLDED = _Folded()
# Letters in circles, in squares and of flags that Unicode does not decompose.
for _first in (0x1F150, 0x1F170, 0x1F1E6):
    _FOLDED |= {_first + number: letter for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz")}
_FOLDED |= {0xE0000 + point: chr(point).lower() for point in range(0x20, 0x7F)}  # tags, as escapes


def fold(data: bytes) -> bytes:
    """
    UTF-8 with escapes decoded, letters without accents, and lookalikes of ASCII letters as these.

    Returns the same object where there is nothing to fold.
    """
    if data.isascii() and _ANY_ESCAPE.search(data) is None:
        return data
    return _units(data).sub(lambda unit: _fold_unit(unit[0]), data)


def _units(data: bytes) -> re.Pattern[bytes]:
    """What folding may change in a text; a search for letters alone is faster."""
    return _UNIT if _ANY_ESCAPE.search(data) is not None else _OTHER


def fold_text(text: str) -> str:
    """As `fold`, for the words of a rule."""
    return _NOT_ASCII.sub(lambda found: found[0].translate(_FOLDED), text)


@functools.lru_cache(maxsize=4096)
def _fold_unit(unit: bytes) -> bytes:
    if unit[0] >= 0x80:
        return unit.decode("utf-8", "replace").translate(_FOLDED).encode()
    if unit.startswith(b"<"):
        return b""
    if unit[:1] in b"%=":
        return _decoded(bytes.fromhex(unit.translate(None, b"%=").decode()).decode("utf-8", "replace"))
    if unit.startswith(b"&"):
        return _decoded(html.unescape(unit.decode()))
    points = [int(found[1], 16) for found in _ONE_ESCAPE.finditer(unit)]
    text = "".join(chr(point) for point in points if point <= 0x10FFFF)
    return _decoded(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))


def _decoded(text: str) -> bytes:
    return fold_text(text).encode("utf-8", "replace")


def _pieces(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Start, end and folded length of each part of a text that folding may change."""
    for unit in _units(data).finditer(data):
        start, end = unit.span()
        if unit[0][0] < 0x80:
            yield start, end, len(_fold_unit(unit[0]))
            continue
        for character in unit[0].decode("utf-8", "replace"):
            size = min(len(character.encode()), end - start)
            yield start, start + size, len(_FOLDED[ord(character)].encode())
            start += size


def unfold(data: bytes, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans of a text whose folded form has these spans."""
    folded, original = array("Q", [0]), array("Q", [0])  # where each changed part ends, in both
    starts = array("Q", [0])  # where it starts in the folded text
    for start, end, size in _pieces(data):
        at = folded[-1] + start - original[-1]
        starts.append(at)
        folded.append(at + size)
        original.append(end)

    def origin(offset: int, *, is_end: bool) -> int:
        part = bisect_right(folded, offset) - 1
        following = part + 1
        if following < len(starts) and starts[following] < offset:  # within a changed part
            return original[following] if is_end else _start_of(following)
        return min(len(data), original[part] + offset - folded[part])

    def _start_of(part: int) -> int:
        return original[part - 1] + starts[part] - folded[part - 1]

    return [(origin(start, is_end=False), origin(end, is_end=True)) for start, end in spans]


# --- letters alone -------------------------------------------------------------------------------------

BARRIER = 1
"""A byte of the letters of a text over which no word continues."""

_LETTERS = b"abcdefghijklmnopqrstuvwxyz0123456789\x01" + bytes(range(0x80, 0x100))
_SMALL = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ@$", b"abcdefghijklmnopqrstuvwxyzas")
_KEPT = _LETTERS + b"ABCDEFGHIJKLMNOPQRSTUVWXYZ@$"
_DROPPED = bytes(c for c in range(256) if c not in _KEPT)
_IS_KEPT = bytes(c in _KEPT for c in range(256))


def letters_of(folded: bytes) -> bytes:
    """The letters and digits of a folded text in lower case, without anything between them."""
    return folded.translate(_SMALL, _DROPPED)


def with_gaps(folded: bytes, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans of a folded text whose letters have these spans."""
    places = array("Q", compress(range(len(folded)), folded.translate(_IS_KEPT)))
    return [(places[start], places[end - 1] + 1) for start, end in spans]

"""
Folds disguised text: lookalikes of ASCII letters, accents, escapes, and letters that stand apart.

One search over a folded text finds words however they are written. Offsets lead back to the text itself.
"""

import functools
import html
import re
import unicodedata
from bisect import bisect_right
from typing import NamedTuple

from tarsy_scoring.config.packaged import packaged_yaml
from tarsy_scoring.timeline.clean.patterns import compile_bytes

_ESCAPE = rb"(?:\\{1,4}u\{?[0-9a-fA-F]{4,6}\}?|\\{1,4}x[0-9a-fA-F]{2})+|(?:%[0-9a-fA-F]{2})+"
_ENTITY = rb"&(?:#[0-9]{2,7}|#[xX][0-9a-fA-F]{2,6}|nbsp);?"
# Inside a word only: a comment by itself may be an attack.
_TAG = (
    rb"(?<=[A-Za-z])(?:</?(?:b|i|s|u|em|wbr|span|strong|mark|sub|sup|font)>|<!--[^>\n]{0,40}-->)(?=[A-Za-z])"
)
_APART = rb"(?<![A-Za-z0-9])[A-Za-z](?P<mark>[ ._*-])[A-Za-z](?:(?P=mark)[A-Za-z](?![A-Za-z0-9])){2,}"
_UNIT = re.compile(rb"[\x80-\xff]+|" + rb"|".join((_ESCAPE, _ENTITY, _TAG, _APART)))
ESCAPED_PATTERN = (
    r"&#(?:[xX]0{0,4}[4-7][0-9a-fA-F]|0{0,4}(?:6[5-9]|[789][0-9]|1[012][0-9]))\b|\\u\{?0{0,4}[4-7][0-9a-fA-F]"
    r"|\\u0[1-9a-fA-F][0-9a-fA-F]{2}|\\x[4-7][0-9a-fA-F]|(?:%[4-7][0-9a-fA-F]){2}|%20[A-Za-z]{1,20}%20"
    r"|[A-Za-z](?:</?(?:b|i|s|u|em|wbr|span|strong|mark|sub|sup|font)>|<!--[^>\n]{0,40}-->)[A-Za-z]"
    r"|\b[A-Za-z](?:[ ._*-][A-Za-z]\b){3}"
)
"""Matches wherever ASCII text holds an escaped letter, or letters that stand apart."""

_ANY_ESCAPE = compile_bytes(ESCAPED_PATTERN, capture=False)
_ONE_ESCAPE = re.compile(r"\\{1,4}[ux]\{?([0-9a-fA-F]+)\}?")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


class _Piece(NamedTuple):
    """A stretch that folding changed, such as a word: offsets in the text and in the folded text."""

    start: int
    end: int
    folded_start: int
    folded_end: int


class Folded(NamedTuple):
    """A folded text, the text itself, and what folding changed, in order."""

    text: bytes
    data: bytes
    pieces: list[_Piece]

    def source(self, start: int, end: int) -> tuple[int, int]:
        """Offsets in the text for a stretch in the folded text."""
        return self._origin(start, is_end=False), self._origin(end - 1, is_end=True)

    def _origin(self, place: int, *, is_end: bool) -> int:
        following = bisect_right(self.pieces, place, key=lambda piece: piece.folded_end)
        if following < len(self.pieces) and self.pieces[following].folded_start <= place:
            return self._place(self.pieces[following], place, is_end=is_end)
        moved = self.pieces[following - 1].end - self.pieces[following - 1].folded_end if following else 0
        return place + moved + is_end

    def _place(self, piece: _Piece, place: int, *, is_end: bool) -> int:
        # Characters are placed only here: a text has millions, and few are in a match.
        unit, start = self.data[piece.start : piece.end], piece.start
        for character in [unit] if unit[0] < 0x80 else map(str.encode, unit.decode("utf-8", "replace")):
            end = min(piece.end, start + len(character))
            place -= len(_fold_unit(character))
            if place < piece.folded_start:
                break
            start = end
        return end if is_end else start


def fold(data: bytes) -> Folded:
    """Decode escapes, drop accents and write lookalikes as ASCII letters, in linear time."""
    if data.isascii() and _ANY_ESCAPE.search(data) is None:
        return Folded(data, data, [])
    parts: list[bytes] = []
    pieces: list[_Piece] = []
    position = size = 0
    for unit in _UNIT.finditer(data):
        start, end = unit.span()
        folded = _fold_unit(unit[0])
        parts += (data[position:start], folded)
        size += start - position + len(folded)
        pieces.append(_Piece(start, end, size - len(folded), size))
        position = end
    return Folded(b"".join((*parts, data[position:])), data, pieces)


def fold_text(text: str) -> str:
    """Fold the words in a rule, as `fold` does."""
    return _NOT_ASCII.sub(lambda found: found[0].translate(_FOLDED), text)


def _fold_unit(unit: bytes) -> bytes:
    if unit[0] < 0x80:
        return _fold_escape(unit)
    return unit.decode("utf-8", "replace").translate(_FOLDED).encode()


@functools.lru_cache(maxsize=256)  # escapes may be as long as their text
def _fold_escape(unit: bytes) -> bytes:
    text = unit.decode()
    if text[0] == "<":
        return b""
    if text[0] == "%":
        text = bytes.fromhex(text.replace("%", "")).decode("utf-8", "replace")
    elif text[0] == "&":
        text = html.unescape(text)
    elif text[0] == "\\":
        points = [int(found[1], 16) for found in _ONE_ESCAPE.finditer(text)]
        text = "".join(chr(point) for point in points if point <= 0x10FFFF)
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    else:
        return unit[::2]
    return fold_text(text).encode("utf-8", "replace")


class _FoldedCharacters(dict[int, str]):
    """By code point: the ASCII letters that a character looks like, or the base letter; made when needed."""

    def __missing__(self, point: int) -> str:
        # Capitals first: some look like another letter than in lower case.
        character = _ALIKE.get(chr(point), chr(point))
        # Hangul syllables stay whole: their parts are no letters.
        is_syllable = "\uac00" <= character <= "\ud7a3"
        decomposed = character if is_syllable else unicodedata.normalize("NFKD", character.casefold())
        folded = self[point] = "".join(map(_fold_character, decomposed))
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
_FOLDED = _FoldedCharacters()

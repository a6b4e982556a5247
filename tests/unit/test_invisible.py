"""Which characters count as invisible, in text and in its UTF-8."""

import re
import unicodedata

from tarsy_scoring.timeline.text import INVISIBLE, utf8_pattern, without_invisible

EVERY_CHARACTER = "".join(chr(point) for point in range(0x110000) if not 0xD800 <= point <= 0xDFFF)
# Format characters with a shape: signs drawn over or under the numbers and signs that follow them.
SEEN = re.compile("ARABIC (?!LETTER MARK)|SYRIAC|KAITHI|EGYPTIAN")


def test_format_characters_are_invisible() -> None:
    """These are Unicode's format characters, except the few that have a shape."""
    formats = [c for c in EVERY_CHARACTER if unicodedata.category(c) == "Cf"]

    assert [c for c in formats if c not in INVISIBLE] == [c for c in formats if SEEN.match(unicodedata.name(c, ""))]


def test_visible_characters_and_line_ends_stay() -> None:
    """Letters, blanks, emoji, controls and line separators are not invisible."""
    text = "Total:\t67\r\n\x85\u2028\u2029 \u00a0é漢\U0001f3af\x00"

    assert without_invisible(text) == text
    assert without_invisible("".join(INVISIBLE)) == ""
    assert without_invisible("6\u200b\U000e00207\ufe0f") == "67"


def test_in_utf_8_the_same_characters_are_found() -> None:
    """There is one definition for engines that read text and engines that read bytes."""
    in_bytes = re.sub(utf8_pattern(INVISIBLE).encode(), b"", EVERY_CHARACTER.encode())

    assert in_bytes.decode() == without_invisible(EVERY_CHARACTER)

"""What counts as invisible, in text and in its UTF-8."""

import re
import unicodedata

from tarsy_scoring.timeline.text import INVISIBLE, utf8_pattern, without_invisible

EVERY_CHARACTER = "".join(chr(point) for point in range(0x110000) if not 0xD800 <= point <= 0xDFFF)
# Format characters that are seen: signs that stand over or under the numbers and signs behind them.
SEEN = re.compile("ARABIC (?!LETTER MARK)|SYRIAC|KAITHI|EGYPTIAN")


def test_format_characters_are_invisible() -> None:
    """What Unicode calls format characters, but for the few that have a shape."""
    formats = [c for c in EVERY_CHARACTER if unicodedata.category(c) == "Cf"]

    assert [c for c in formats if c not in INVISIBLE] == [c for c in formats if SEEN.match(unicodedata.name(c, ""))]


def test_what_ends_a_line_or_is_seen_stays() -> None:
    """Letters, blanks, emoji, controls and line separators are none of them."""
    text = "Total:\t67\r\n\x85\u2028\u2029 \u00a0é漢\U0001f3af\x00"

    assert without_invisible(text) == text
    assert without_invisible("".join(INVISIBLE)) == ""
    assert without_invisible("6\u200b\U000e00207\ufe0f") == "67"


def test_in_utf_8_the_same_characters_are_found() -> None:
    """One definition for engines that read text and engines that read bytes."""
    in_bytes = re.sub(utf8_pattern(INVISIBLE).encode(), b"", EVERY_CHARACTER.encode())

    assert in_bytes.decode() == without_invisible(EVERY_CHARACTER)

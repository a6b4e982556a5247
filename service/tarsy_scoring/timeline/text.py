"""
Makes text storable in UTF-8 and PostgreSQL, removes characters that a reader does not see, and shortens text.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from tarsy_scoring.config.packaged import packaged_yaml

_RANGES: list[tuple[int, int]] = packaged_yaml(__package__, "invisible.yaml")

INVISIBLE = tuple(chr(point) for first, last in _RANGES for point in range(first, last + 1))
_INVISIBLE_TO_NONE: Mapping[int, None] = dict.fromkeys(map(ord, INVISIBLE))


def encode(text: str) -> bytes:
    """Encode as UTF-8: two halves of a surrogate pair are joined, a single half becomes U+FFFD."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def storable(text: str) -> str:
    """Make text storable in PostgreSQL and UTF-8: without NUL, with U+FFFD for half of a surrogate pair."""
    # Most texts are long and ASCII, which `isascii` knows without a look at the characters.
    kept = text if text.isascii() else encode(text).decode()
    return kept.replace("\0", "")


def storable_json(value: Any) -> Any:
    """Make every key and text of a JSON value storable."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, list):
        return [storable_json(item) for item in value]
    if isinstance(value, dict):
        return {storable(key): storable_json(item) for key, item in value.items()}
    return value


def without_invisible(text: str) -> str:
    """The text without invisible characters."""
    return text if text.isascii() else text.translate(_INVISIBLE_TO_NONE)


def one_line(text: str) -> str:
    """Put untrusted text on one line, without control, colour or direction characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in without_invisible(text)).split())


def cut(text: str, longest: int) -> str:
    """Cut a text to at most `longest` characters, marked with an ellipsis."""
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"


def utf8_pattern(characters: Iterable[str]) -> str:
    """A regular expression over bytes that matches any one of these characters in UTF-8."""
    return "|".join("".join(f"\\x{byte:02x}" for byte in character.encode()) for character in characters)

"""Finds base64 that holds secrets, by the words that it holds."""

import base64
import binascii
import re
from collections.abc import Callable, Iterator

from tarsy_scoring.timeline.clean.masking.values import STRETCH_BYTES, Checks, Secret
from tarsy_scoring.timeline.clean.patterns import compile_bytes, read_rules


def _aligned(word: str) -> Iterator[str]:
    """
    The characters that base64 has for a word in any text, for each of its three places in a group of bytes.
    """
    for offset in range(3):
        bits_before, bits_end = 8 * offset, 8 * (offset + len(word))
        encoded = base64.b64encode(b"\0" * offset + word.encode() + b"\0" * 3).decode()
        yield encoded[-(-bits_before // 6) : bits_end // 6]


_WORDS: list[str] = read_rules("masking/secrets.yaml", "base64_words")
_WHOLE_TEXT = r"\A\s*[A-Za-z0-9+/]{12,400}={0,2}\s*\z"
_STARTS: str = read_rules("masking/secrets.yaml", "base64_starts")
ENCODED_PATTERN = "|".join(
    [*(re.escape(part) for word in _WORDS for part in _aligned(word)), _STARTS, _WHOLE_TEXT]
)
_ENCODED = compile_bytes(ENCODED_PATTERN, capture=False)
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/_-"
_RUN = re.compile(
    rb"[A-Za-z0-9+/_-]*(?:(?:\r?\n|\\+n)[A-Za-z0-9+/_-]{60,}|(?<=[A-Za-z0-9+/_-]{60})(?:\r?\n|\\+n)[A-Za-z0-9+/_-]+)*={0,2}"
)
_MIN_BYTES = 16


def find_encoded(data: bytes, checks: Checks, is_secret: Callable[[bytes], bool]) -> Iterator[Secret]:
    """The runs of base64 whose text holds a secret; a text that is nothing but base64 of a text is one."""
    position = 0
    while position <= len(data) and (hit := _ENCODED.search(data, position)) is not None:
        if checks.are_used_up():
            position = hit.end() + STRETCH_BYTES
            yield Secret(hit.start(), min(len(data), position), "stretch")
            continue
        start = _start_of_run(data, position, hit.start())
        end = _RUN.match(data, hit.start()).end()  # type: ignore[union-attr]  # it matches nothing, too
        position = max(end, hit.end())
        if end - start < _MIN_BYTES and (start, end) != (0, len(data)):
            continue
        if (decoded := _decoded(data[start:end])) is None:
            continue
        if is_secret(decoded) or (not data[:start].strip() and not data[end:].strip() and _is_text(decoded)):
            yield Secret(start, end, "encoded")


def _start_of_run(data: bytes, floor: int, position: int) -> int:
    """Where the base64 around a place begins, on this line."""
    size = 256
    while True:  # doubled, so that the search is linear in the run
        first = max(floor, position - size)
        before = len(data[first:position].rstrip(_ALPHABET))
        if before or first == floor:
            return first + before
        size *= 2


def _decoded(run: bytes) -> bytes | None:
    compact = re.sub(rb"\s|\\+n", b"", run).rstrip(b"=").translate(bytes.maketrans(b"-_", b"+/"))
    try:
        return base64.b64decode(compact[: len(compact) // 4 * 4] + _tail(compact))
    except (binascii.Error, ValueError):
        return None


def _tail(compact: bytes) -> bytes:
    rest = compact[len(compact) // 4 * 4 :]
    return rest + b"=" * (4 - len(rest)) if len(rest) > 1 else b""


def _is_text(decoded: bytes) -> bool:
    return decoded.isascii() and decoded.decode().strip().isprintable()

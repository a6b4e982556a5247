"""
Finds private keys: in their armour, whole or cut at either end, on one line or many, in any depth of
encoding.
"""

import re
from collections.abc import Iterator

from tarsy_scoring.timeline.clean.masking.values import Secret
from tarsy_scoring.timeline.clean.patterns import compile_bytes

_KIND = "private_key"
_NAME = (
    r"(?:[A-Za-z0-9-]+ ){0,4}(?i:(?:PRIVATE|SECRET|STATIC|SYMMETRIC|SHARED|SESSION|MASTER|SIGNING|ENCRYPTION|ENCRYPTED"
    r"|CLIENT|SERVER|AES|HMAC) KEY)(?: BLOCK)?(?: [Vv][0-9]+)?"
)
_BEGIN = rf"-{{4,5}} ?BEGIN {_NAME} ?-{{4,5}}|PuTTY-User-Key-File-[0-9]:"
_END = rf"-{{4,5}} ?END {_NAME} ?-{{4,5}}|Private-MAC: ?[0-9a-f]+"
KEY_PATTERN = f"{_BEGIN}|{_END}"
_EDGES = compile_bytes(f"({_BEGIN})|({_END})")

_MAX_KEY_BYTES = 20_000
# What may stand between two lines of a key: line ends, also written ones, and marks of quotation, joining and
# citation.
_GAP = rb"(?:\\+[nrt]|[\s\\\"'+,>|]|\.{3,}|\xe2\x80\xa6)*"
_CHUNK = re.compile(
    _GAP
    + rb"((?:Proc-Type|DEK-Info|Version|Comment|Hash|Charset|Encryption)[: ][^\n\\]{0,120}"
    + rb"|[A-Za-z0-9+/=]+(?:\\+/[A-Za-z0-9+/=]+)*)"
)
_LONG_LINE = re.compile(rb"[A-Za-z0-9+/=]{16,}")
_BODY = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/= \t\r\n\\\"',>|"
_WORD = re.compile(rb"[A-Z]?[a-z]*|[0-9]+")


def find_keys(data: bytes) -> Iterator[Secret]:
    """The spans of private keys, with their armour."""
    begun: int | None = None
    body = 0  # where the text behind the last BEGIN or END starts
    for edge in _EDGES.finditer(data):
        start, end = edge.span()
        if edge.lastindex == 2 and begun is not None and end - begun <= _MAX_KEY_BYTES:
            yield Secret(begun, end, _KIND)
            begun = None
        elif edge.lastindex == 2:  # the head of the key is cut
            yield Secret(_body_start(data, max(body, start - 4_000), start), end, _KIND)
        else:
            if begun is not None:
                yield Secret(begun, _body_end(data, body, start), _KIND)
            begun = start
        body = end
    if begun is not None:
        yield Secret(begun, _body_end(data, body, len(data)), _KIND)


def _body_start(data: bytes, floor: int, end: int) -> int:
    """The start of the lines of base64 before an END whose BEGIN is cut off."""
    first = floor + len(data[floor:end].rstrip(_BODY))
    line = _LONG_LINE.search(data, first, end)
    return line.start() if line else end


def _body_end(data: bytes, position: int, limit: int) -> int:
    """The end of a key that nothing closes: behind the last line that looks like base64."""
    is_long = True  # a short line belongs to the key only behind a long one
    while (chunk := _CHUNK.match(data, position, limit)) is not None:
        text = chunk[1]
        if b":" not in text and (_WORD.fullmatch(text) or (len(text) < 16 and not is_long)):
            break
        is_long = b":" in text or len(text) >= 16
        position = chunk.end()
    return position

"""
Cursors: the place in a list where the next page begins, as an opaque word for URLs.

A cursor belongs to one list. It carries a digest of what the list was asked for, because a place means
nothing in a list with other filters or another order. What a cursor holds may change from version to version.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID


class InvalidCursor(ValueError):
    """A cursor that was not given out for this list."""


def encode_cursor(place: Sequence[str | int | datetime | UUID], asked: Any) -> str:
    """
    Encode the place of the last row of a page.

    Args:
        asked: What the list was asked for, as JSON-able values and times.
    """
    parts = [_digest(asked), *(p.isoformat() if isinstance(p, datetime) else p for p in place)]
    return (
        base64.urlsafe_b64encode(json.dumps(parts, separators=(",", ":"), default=str).encode()).rstrip(b"=").decode()
    )


def decode_cursor(cursor: str, asked: Any, readers: Sequence[Callable[[Any], Any]]) -> list[Any]:
    """
    Decode a place.

    Args:
        readers: For each part of the place, what checks and converts it; it raises ValueError.

    Raises:
        InvalidCursor: The cursor is forged, damaged, or belongs to another list.
    """
    try:
        parts = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        parts = None
    if not isinstance(parts, list) or len(parts) != 1 + len(readers):
        raise InvalidCursor("it is not one that a page gave")
    if parts[0] != _digest(asked):
        raise InvalidCursor("it belongs to another list (other filters or another sort); begin again without a cursor")
    try:
        return [read(part) for read, part in zip(readers, parts[1:], strict=True)]
    except (ValueError, OverflowError):
        raise InvalidCursor("it is not one that a page gave") from None


def read_time(value: Any) -> datetime:
    """Reader of a time. Raises: ValueError, OverflowError."""
    if not isinstance(value, str) or (time := datetime.fromisoformat(value)).tzinfo is None:
        raise ValueError("no time with an offset")
    return time.astimezone(UTC)


def read_text(value: Any) -> str:
    """Reader of a text that PostgreSQL can compare. Raises: ValueError."""
    if not isinstance(value, str) or not 0 < len(value) <= 255 or not value.isprintable():
        raise ValueError("no printable text")
    return value


def read_id(value: Any) -> UUID:
    """Reader of an id. Raises: ValueError."""
    return UUID(read_text(value))


def _digest(asked: Any) -> str:
    content = json.dumps(asked, sort_keys=True, default=lambda time: time.astimezone(UTC).isoformat())
    return hashlib.sha256(content.encode()).hexdigest()[:16]

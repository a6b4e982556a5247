"""
Cursors: the place in a list where the next page begins, as opaque text for URLs.

A cursor belongs to one list. It carries a digest of that list's filters and order, because the place
means nothing in another list. The content of a cursor may change from version to version.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar
from uuid import UUID

from pydantic import AfterValidator, AwareDatetime, TypeAdapter
from pydantic_core import to_json

T = TypeVar("T")
Time = Annotated[AwareDatetime, AfterValidator(lambda time: time.astimezone(UTC))]


class InvalidCursor(ValueError):
    """The cursor was not issued for this list; the text says why."""


def encode_cursor(place: Sequence[str | int | datetime | UUID], asked: Any) -> str:
    """
    Encode the place of a page's last row.

    Args:
        asked: Filters and order of the list, as times and values that JSON can hold.
    """
    return base64.urlsafe_b64encode(to_json([_digest(asked), *place])).rstrip(b"=").decode()


def decode_cursor(cursor: str, asked: Any, place: TypeAdapter[T]) -> T:
    """
    Decode the place in a cursor.

    Args:
        asked: Filters and order of the list, as given to `encode_cursor`.
        place: Type of the place, a tuple.

    Raises:
        InvalidCursor: The cursor is forged, damaged, or belongs to another list.
    """
    try:
        content = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        digest, *parts = json.loads(content)
        is_of_list = digest == _digest(asked)
        # Validated as JSON: there strict types still accept times and ids written as text.
        found = place.validate_json(json.dumps(parts), strict=True) if is_of_list else None
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise InvalidCursor("it is not one that a page gave") from None
    if found is None:
        raise InvalidCursor("it belongs to a list with other filters or another sort: begin without it")
    return found


def _digest(asked: Any) -> str:
    content = json.dumps(asked, sort_keys=True, default=lambda time: time.astimezone(UTC).isoformat())
    return hashlib.sha256(content.encode()).hexdigest()[:16]

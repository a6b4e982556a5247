"""
Times from outside, read by one rule at every door.

Zero times (`0001-01-01`), record timestamps in the wrong unit and years that neither Python nor PostgreSQL
can convert are no times: a session that ends in year 1 has no known end.
"""

from datetime import UTC, datetime

import structlog

FIRST, LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
"""Times from FIRST, included, to LAST, excluded. The columns that hold times from outside have the same bounds."""

_log = structlog.get_logger()


def moment(value: object, of: str | None = None) -> datetime | None:
    """
    The time in UTC; None for anything else, and outside `FIRST` to `LAST`.

    Args:
        value: A datetime, an RFC 3339 text or seconds since 1970, above 0; UTC without an offset.
        of: What the time belongs to. With it, a value that is no such time is logged.
    """
    try:
        found = _read(value)
        if isinstance(found, datetime):
            found = found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
            if FIRST <= found < LAST:
                return found
    except (ValueError, OverflowError, OSError):  # no such day, or a year that cannot be converted
        pass
    if of is not None and value is not None:
        _log.warning("time.ignored", of=of)
    return None


def _read(value: object) -> object:
    if isinstance(value, str):
        return datetime.fromisoformat(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
        return datetime.fromtimestamp(value, UTC)
    return value

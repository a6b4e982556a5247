"""
Days as people write them into forms. Pure.
"""

from datetime import date

_FIELDS = {"since": "from", "until": "to"}


def read_day(text: str, name: str, faults: list[str]) -> date | None:
    """
    The day that a field of a form holds; None: it is empty, or means none, which is then among the faults.

    Args:
        name: `since` or `until`.
        faults: What cannot be meant is added to them.
    """
    if not text:
        return None
    try:
        day = date.fromisoformat(text)
    except ValueError:
        day = date.max
    if not date(1970, 1, 1) <= day < date(9999, 1, 1):
        faults.append(f"{_FIELDS[name]}: a day such as 2026-01-31")
        return None
    return day

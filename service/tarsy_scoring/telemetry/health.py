"""Process readiness."""

from collections.abc import Awaitable, Callable
from inspect import isawaitable

# Returns the missing part, or None.
Check = Callable[[], Awaitable[str | None] | str | None]


class Health:
    """
    Process readiness: checks that return the missing part, or None.

    Args:
        starting: The reason given until the first check is added.
    """

    def __init__(self, starting: str) -> None:
        self._starting = starting
        self._checks: list[Check] = []
        self._notes: list[Callable[[], str | None]] = []

    def add(self, check: Check) -> None:
        """Add a check. Checks run in this order, at each request."""
        self._checks.append(check)

    def note(self, note: Callable[[], str | None]) -> None:
        """Add a remark that `/readyz` shows and that does not end readiness; None: nothing to remark."""
        self._notes.append(note)

    def notes(self) -> list[str]:
        """The remarks that apply now."""
        return [words for note in self._notes if (words := note()) is not None]

    async def missing(self) -> str | None:
        """Run the checks; returns the first missing part, or None when the process is ready."""
        if not self._checks:
            return self._starting
        for check in self._checks:
            reason = check()
            if isawaitable(reason):
                reason = await reason
            if reason is not None:
                return reason
        return None

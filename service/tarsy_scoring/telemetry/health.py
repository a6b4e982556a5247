"""Process readiness."""

from collections.abc import Awaitable, Callable, Mapping
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
        self.details: dict[str, Callable[[], Mapping[str, str | None]]] = {}
        """By name in the answer: reads parts that do not work and do not end readiness, with the reason; None: works."""

    def add(self, check: Check) -> None:
        """Add a check. Checks run in this order, at each request."""
        self._checks.append(check)

    def read_details(self) -> dict[str, dict[str, str]]:
        """The parts that do not work now, by name of their details, with the reason."""
        found = {
            name: {part: reason for part, reason in read().items() if reason is not None}
            for name, read in self.details.items()
        }
        return {name: parts for name, parts in found.items() if parts}

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

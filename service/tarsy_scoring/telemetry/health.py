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
        self.read_circuits: Callable[[], Mapping[str, str | None]] = dict

    def add(self, check: Check) -> None:
        """Add a check. Checks run in this order, at each request."""
        self._checks.append(check)

    def not_called(self) -> dict[str, str]:
        """Providers that are not called, with the kind of their circuits; they do not end readiness."""
        return {provider: kind for provider, kind in self.read_circuits().items() if kind is not None}

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

"""Counts the cases of an attack, and collects those in which a defence did not hold."""

from collections.abc import Callable
from contextlib import AbstractContextManager


class Cases:
    """The cases of one group of attacks; those that did not hold fail the test together, at its end."""

    def __init__(self) -> None:
        self.count = 0
        self.broken: list[str] = []

    def __call__(self, case: str, holds: object, seen: object = "") -> None:
        """Count a case. Args: seen: shown where it does not hold."""
        self.count += 1
        if not holds:
            self.broken.append(f"{case}: {str(seen)[:200]}")


Attack = Callable[[str], AbstractContextManager[Cases]]

"""Counts the cases of an attack, and collects those in which a defence did not hold."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from processes import Process

MOST_MEMORY_KIB = 512 * 1024


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


def peak_memory_kib(process: Process) -> int:
    """The most memory that the process has used so far."""
    return int(Path(f"/proc/{process.pid}/status").read_text().partition("VmHWM:")[2].split()[0])

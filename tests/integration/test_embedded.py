"""The embedded servers answer, restart with their data, and do not outlive the process that started them."""

import contextlib

import psutil

TOPIC = "round-trip"


def children_of(pid: int) -> list[psutil.Process]:
    """All descendants of a process, and the process itself."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []

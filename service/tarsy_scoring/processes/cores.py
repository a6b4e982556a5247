"""Counts the cores that this process may use."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def count_usable_cores() -> int:
    """
    The cores of this process's affinity, or its CPU limit, rounded up, if that is less.

    Source:
        `cpu.max` of cgroup v2, as container runtimes set it. Limits of cgroup v1 are not seen.
    """
    return math.ceil(min(len(os.sched_getaffinity(0)), *_limits()))


def _limits() -> Iterator[float]:
    """CPU limits in cores: of the own control group, and of those above it that can be seen."""
    yield math.inf
    try:
        own = next(line for line in OWN_CGROUP.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return
    group = CGROUPS / own.removeprefix("0::").lstrip("/")
    for folder in (group, *group.parents):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
            yield int(quota) / int(period)
        except (OSError, ValueError):  # the root has no such file; `max` is no number
            continue

"""CPU and memory of processes during a measurement, and the throughput of a series of completions."""

import asyncio
import contextlib
import os
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil

SAMPLE_EVERY_S = 0.1
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Meter:
    """
    CPU and memory of named processes, sampled with times of the wall clock. Needs Linux.

    Children count with their process, also those that have ended, as the connections of PostgreSQL have; this
    process counts without its children.

    Args:
        pids: Process ids by name. The peak of memory is recorded for `measured` alone, with its children.
    """

    pids: Mapping[str, int]
    times: list[float] = field(default_factory=list)
    cpu_s: dict[str, list[float]] = field(default_factory=dict)
    machine_s: list[float] = field(default_factory=list)
    peak_rss: int = 0

    async def run(self) -> None:
        """Sample every `SAMPLE_EVERY_S` until cancelled."""
        while True:
            self.sample()
            await asyncio.sleep(SAMPLE_EVERY_S)

    def sample(self) -> None:
        """Sample all processes now. A process that has ended counts with its last CPU time."""
        self.times.append(time.time())
        busy = psutil.cpu_times()
        self.machine_s.append(busy.user + busy.system + busy.nice + busy.softirq + busy.irq)
        processes = _read_processes()
        for name, pid in self.pids.items():
            samples = self.cpu_s.setdefault(name, [])
            # A child that ends between two reads of this sample is missing in it, and counts in the next one.
            samples.append(max(_used_s(processes, pid), samples[-1] if samples else 0.0))
        with contextlib.suppress(psutil.NoSuchProcess):
            self.peak_rss = max(self.peak_rss, peak_rss(psutil.Process(self.pids["measured"])))

    def used_s(self, name: str, since: float, until: float) -> float:
        """CPU seconds of a process between two times of the wall clock."""
        return self._between(self.cpu_s[name], since, until)

    def bystanders_share(self, since: float, until: float) -> float:
        """Share (0-1) of the machine that was used by processes which are no part of the measurement."""
        ours = sum(self.used_s(name, since, until) for name in self.pids)
        whole = (until - since) * (psutil.cpu_count() or 1)
        return max(0.0, self._between(self.machine_s, since, until) - ours) / whole if whole > 0 else 0.0

    def _between(self, values: Sequence[float], since: float, until: float) -> float:
        return self._at(values, until) - self._at(values, since)

    def _at(self, values: Sequence[float], when: float) -> float:
        """The value at a time, interpolated between samples."""
        i = bisect_left(self.times, when)
        if i == 0:
            return values[0]
        if i == len(self.times):
            return values[-1]
        share = (when - self.times[i - 1]) / (self.times[i] - self.times[i - 1])
        return values[i - 1] + share * (values[i] - values[i - 1])


class _Process(NamedTuple):
    parent: int
    own_s: float
    ended_children_s: float


def _read_processes() -> dict[int, _Process]:
    """All processes of the machine. One pass over `/proc` takes a fifth of psutil's time, which counts here."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                # The second field is a name that may hold spaces and parentheses.
                fields = Path(f"/proc/{entry}/stat").read_bytes().rpartition(b") ")[2].split()
                user, system, ended_user, ended_system = (int(ticks) / _TICKS_PER_S for ticks in fields[11:15])
                found[int(entry)] = _Process(int(fields[1]), user + system, ended_user + ended_system)
    return found


def _used_s(processes: Mapping[int, _Process], pid: int) -> float:
    """CPU seconds of a process and of all its descendants; 0 if it has ended."""
    if pid not in processes:
        return 0.0
    process = processes[pid]
    if pid == os.getpid():
        return process.own_s
    children = (child for child, its in processes.items() if its.parent == pid)
    return process.own_s + process.ended_children_s + sum(_used_s(processes, child) for child in children)


def peak_rss(process: psutil.Process) -> int:
    """Peak resident memory in bytes; without `/proc` the current size."""
    # The kernel records the peak, so that one between two samples is not missed.
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process.pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return int(process.memory_info().rss)


@contextlib.asynccontextmanager
async def metered(pids: Mapping[str, int]) -> AsyncIterator[Meter]:
    """Sample these processes while the block runs."""
    meter = Meter(pids)
    task = asyncio.create_task(meter.run())
    try:
        yield meter
    finally:
        task.cancel()
        await asyncio.wait([task])
        meter.sample()


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of the wall clock and the scores that were completed in it."""

    since: float
    until: float
    scores: int

    @property
    def rate(self) -> float:
        """Scores per second."""
        return self.scores / (self.until - self.since) if self.until > self.since else 0.0


def whole_window(first_claim: float, completions: Sequence[float]) -> Window:
    """The window from the first claim to the last completion, including ramp and tail."""
    return Window(first_claim, max(completions), len(completions))


def steady_window(completions: Sequence[float], slots: int) -> Window | None:
    """
    The window without ramp and tail; None if fewer than three rounds of all slots were measured.

    It reaches from the completion that ends the first round to the one that ends the last round but one.
    """
    # Whole rounds make the rate exact even if all slots complete at the same moments.
    ordered = sorted(completions)
    rounds = len(ordered) // slots
    if rounds < 3:
        return None
    first, last = slots - 1, (rounds - 1) * slots - 1
    return Window(ordered[first], ordered[last], last - first)

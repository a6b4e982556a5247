"""
Forks the processes of one command, restarts those that die, and stops all of them.

Laws. The supervisor runs no event loop and starts no thread, so that it may fork at any time; its processes
share
its pages until they write to them. Signals reach the processes through pipes, which the supervisor alone can
write to: a signal that a terminal or a service manager sends to all processes counts once, and processes
whose
supervisor was killed read the end of the pipe, and stop.
"""

import gc
import os
import secrets
import signal
import sys
import time
from dataclasses import dataclass
from typing import NoReturn

import structlog

from tarsy_scoring.errors import ScoringError

log = structlog.get_logger()

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# A process that ends by itself so early was refused its start, and would be refused again.
START_S = 30.0
# A process that lived for so long does not die "again". A session that kills its process does so at most once
# in a lease time and a pause of 10 s (docs/decisions/0019), so it ends no command.
CALM_S = 60.0
MOST_DEATHS = 5
PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0


class KeepsDying(ScoringError):
    """A process died too often in a row. Exit status 1."""


@dataclass(frozen=True, slots=True)
class Member:
    """
    One process of a command with several.

    Args:
        number: From 1.
        count: Number of processes of the command.
        secret: Known to the processes of this command alone.
        restarts: How often this number was restarted before.
        lifeline: Read end of a pipe with one byte for each signal to the command; its end is that of the
            supervisor.
    """

    number: int
    count: int
    secret: str
    restarts: int
    lifeline: int


@dataclass(slots=True)
class _Process:
    """A running process; `lifeline` is the write end of its pipe, `started` a monotonic time."""

    number: int
    lifeline: int
    started: float


def fork_processes(count: int) -> Member:
    """
    Fork `count` processes and return in each of them; the caller itself stays their supervisor and ends here.

    Everything that is imported and built before is shared. A process that dies is restarted after a pause,
    which doubles; one that is refused its start ends the command with its status.

    Raises:
        SystemExit: In the supervisor, when all processes have ended: 0 after a stop in which all ended well.
        KeepsDying: In the supervisor, when all have ended because one of them died too often.
    """
    gc.collect()
    gc.freeze()  # the collector writes to the objects that it walks, and so would copy their pages
    supervisor = _Supervisor(count)
    return supervisor.run() or supervisor.end()


class _Supervisor:
    def __init__(self, count: int) -> None:
        self._count = count
        self._secret = secrets.token_hex(16)
        self._running: dict[int, _Process] = {}  # by pid
        self._due = dict.fromkeys(range(1, count + 1), -1.0)  # monotonic time of the next start, by number
        self._deaths = dict.fromkeys(self._due, 0)  # in a row
        self._restarts = dict.fromkeys(self._due, -1)  # the first start is none
        self._is_stopping = False
        self._status = 0
        self._error: KeepsDying | None = None

    def run(self) -> Member | None:
        """
        Supervise until all processes have ended, which returns None; in a new process, return its place.
        """
        # Blocked signals wait until `sigtimedwait` takes them, so none is lost and none interrupts.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*SIGNALS, signal.SIGCHLD})
        while self._running or not self._is_stopping:
            for number in [n for n, due in self._due.items() if due <= time.monotonic()]:
                del self._due[number]
                if (member := self._start(number)) is not None:
                    for left_to_supervisor in SIGNALS:
                        signal.signal(left_to_supervisor, lambda *_: None)
                    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                    return member
            pause_s = min(self._due.values(), default=time.monotonic() + LONGEST_PAUSE_S) - time.monotonic()
            received = signal.sigtimedwait({*SIGNALS, signal.SIGCHLD}, max(0.0, pause_s))
            if received is not None and received.si_signo in SIGNALS:
                self._stop(signal.Signals(received.si_signo))
            self._reap()
        return None

    def end(self) -> NoReturn:
        raise self._error or SystemExit(self._status)

    def _start(self, number: int) -> Member | None:
        """Fork one process; returns its place in the new process, and None in the supervisor."""
        self._restarts[number] += 1
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            os.close(reading)
            self._running[pid] = _Process(number, writing, time.monotonic())
            log.info("process.started", process=number, pid=pid)
            return None
        for lifeline in (writing, *(other.lifeline for other in self._running.values())):
            os.close(lifeline)  # held here, it would hide the supervisor's end
        return Member(number, self._count, self._secret, self._restarts[number], reading)

    def _stop(self, number: signal.Signals) -> None:
        self._is_stopping = True
        self._due.clear()
        for process in self._running.values():
            try:
                os.write(process.lifeline, bytes([number]))
            except BrokenPipeError:
                continue  # it has just ended

    def _reap(self) -> None:
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            if (process := self._running.pop(pid, None)) is not None:  # else an orphan: we may be process 1
                os.close(process.lifeline)
                self._react(process, os.waitstatus_to_exitcode(status))

    def _react(self, process: _Process, status: int) -> None:
        """React to the end of a process. `status` is negative if a signal ended it."""
        number, lived_s = process.number, time.monotonic() - process.started
        if self._is_stopping:
            self._status = self._status or (status if status >= 0 else 1)
        elif status >= 0 and lived_s < START_S:
            self._status = status or 1
            self._stop(signal.SIGTERM)
        else:
            deaths = self._deaths[number] = 1 if lived_s >= CALM_S else self._deaths[number] + 1
            cause = signal.Signals(-status).name if status < 0 else f"status {status}"
            if deaths > MOST_DEATHS:
                self._error = KeepsDying(
                    f"process {number} of {self._count} died {deaths} times in a row, at last of {cause}; look at its "
                    "log lines before that, and at the limit of the container's memory"
                )
                self._stop(signal.SIGTERM)
                return
            pause_s = min(PAUSE_S * 2 ** (deaths - 1), LONGEST_PAUSE_S)
            self._due[number] = time.monotonic() + pause_s
            log.error(
                "process.died", process=number, cause=cause, lived_s=round(lived_s, 1), restarted_in_s=pause_s
            )

"""The supervisor of a command with several processes: restarts, stops, and what its own death leaves."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

ENOUGH_S = 60.0
PROGRAM = """
import os, signal, sys, time
import structlog
from tarsy_scoring.processes import supervisor
supervisor.PAUSE_S = supervisor.LONGEST_PAUSE_S = {pause_s}
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

try:
    member = supervisor.fork_processes(2)
except supervisor.KeepsDying as error:
    sys.exit(str(error))

def signals():
    while numbers := os.read(member.lifeline, 1):
        say("signal", member.number, numbers[0])
        yield numbers[0]
"""
WAITS = """
say("started", member.number, os.getpid(), len(os.listdir("/proc/self/task")))
for _ in signals(): pass
say("alone", member.number)
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start(body: str, pause_s: float = 0.01) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(pause_s=pause_s) + body],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def lines(process: "subprocess.Popen[str]", count: int) -> list[list[str]]:
    """The next lines that the processes print, in alphabetical order, because the processes run side by side."""
    assert process.stdout is not None
    return sorted(process.stdout.readline().split() for _ in range(count))


def test_a_signal_to_all_processes_counts_once_and_a_second_one_is_passed_on(start: Start) -> None:
    """Service managers signal the whole control group, and terminals the whole group of a job."""
    process = start(WAITS.replace("pass", "_ == signal.SIGINT and sys.exit()"))
    lines(process, 2)
    os.killpg(process.pid, signal.SIGTERM)
    assert lines(process, 2) == [["signal", "1", "15"], ["signal", "2", "15"]]
    os.killpg(process.pid, signal.SIGINT)
    assert lines(process, 2) == [["signal", "1", "2"], ["signal", "2", "2"]]
    out, _ = process.communicate(timeout=ENOUGH_S)
    assert (process.returncode, out) == (0, "")


def test_a_killed_process_is_restarted_and_its_neighbour_stays(start: Start) -> None:
    process = start(WAITS.replace('"started"', '"restarts", member.restarts'))
    first, second = lines(process, 2)
    os.kill(int(second[3]), signal.SIGKILL)
    [restarted] = lines(process, 1)
    assert [first[1:3], second[1:3], restarted[1:3]] == [["0", "1"], ["0", "2"], ["1", "2"]]
    process.terminate()
    assert lines(process, 2) == [["signal", "1", "15"], ["signal", "2", "15"]]


def test_a_process_that_keeps_dying_ends_the_command(start: Start) -> None:
    process = start('if member.number == 2: os.kill(os.getpid(), signal.SIGKILL)\nnext(signals()); say("stopped")')
    out, err = process.communicate(timeout=ENOUGH_S)
    assert process.returncode == 1
    assert out.splitlines() == ["signal 1 15", "stopped"]
    assert "process 2 of 2 died 6 times in a row, at last of SIGKILL" in err


def test_a_process_that_is_refused_its_start_ends_the_command_with_its_status(start: Start) -> None:
    process = start("if member.number == 2: sys.exit(2)\nnext(signals())")
    out, err = process.communicate(timeout=ENOUGH_S)
    assert (process.returncode, out) == (2, "signal 1 15\n")
    assert "process.died" not in err


def test_processes_notice_that_their_supervisor_was_killed(start: Start) -> None:
    process = start(WAITS)
    started = lines(process, 2)
    process.kill()
    assert lines(process, 2) == [["alone", "1"], ["alone", "2"]]
    deadline = time.monotonic() + ENOUGH_S
    for _, _, pid, _ in started:
        while os.path.exists(f"/proc/{pid}/exe") and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not os.path.exists(f"/proc/{pid}/exe")
    assert [threads for *_, threads in started] == ["1", "1"]


def test_a_failing_stop_shows_in_the_status(start: Start) -> None:
    process = start(WAITS.replace("pass", "sys.exit(member.number - 1)"))
    lines(process, 2)
    process.terminate()
    process.communicate(timeout=ENOUGH_S)
    assert process.returncode == 1


def test_a_stop_cancels_a_restart_that_is_due_later(start: Start) -> None:
    process = start(
        'if member.number == 2: os.kill(os.getpid(), signal.SIGKILL)\nsay("started"); next(signals())', pause_s=1e6
    )
    lines(process, 1)
    assert process.stderr is not None
    while "process.died" not in process.stderr.readline():
        pass
    process.terminate()
    out, err = process.communicate(timeout=ENOUGH_S)
    assert (process.returncode, out, err) == (0, "signal 1 15\n", "")

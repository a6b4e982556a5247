"""
Base class of the embedded servers, PostgreSQL and the brokers.

A server keeps port and data over restarts and crashes, and ends with this process.
"""

import asyncio
import contextlib
import pwd
import random
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Self

from tarsy_scoring.errors import StartRefused

HOST = "127.0.0.1"
START_TIMEOUT_S = 180  # Apache Kafka needs 2 s on an idle machine, and more than 60 s on a very busy one
STOP_TIMEOUT_S = 10

# Below the range from which Linux (from 32768) and macOS (from 49152) take the ports of outgoing
# connections. Inside it, a client that retries while a server is down may be given the server's own
# port, connect to itself and keep the server from coming back. In an order of this process's own.
_PORTS = iter(random.SystemRandom().sample(range(20_000, 32_000), 12_000))

# A shell script, one per server: $1 is the signal that ends the server, $2 the directory to remove, if any.
# It reads process ids, of which the last counts. When this process ends, however it does, the input of the
# script ends; then it ends the server and removes the directory.
_WATCHER = """
trap '' HUP INT TERM
while read -r line; do pid=$line; done
if [ -n "$pid" ] && kill -s "$1" "$pid"; then
    tries=0
    while kill -0 "$pid" && [ $tries -lt 40 ]; do tries=$((tries + 1)); sleep 0.05; done
    kill -s KILL "$pid"
fi
[ -z "$2" ] || rm -rf -- "$2"
"""


class EmbeddedServer(ABC):
    """
    One server program on a loopback port, with a separate directory.

    `start`, `stop` and `kill` may be called in any order; port and data stay. Leaving the context stops the
    server and removes a temporary directory. If this process dies, even by SIGKILL, a watcher process does
    the same. The server belongs to no event loop: each method may be called in another one.

    Args:
        directory: Directory of the data, created if missing. None: a temporary directory.
    """

    name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    kill_signal: ClassVar[signal.Signals] = signal.SIGKILL

    def __init__(self, directory: Path | None = None) -> None:
        self.port = free_port()
        self.keeps_data = directory is not None
        self._directory = directory.absolute() if directory else None
        self._account: pwd.struct_passwd | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether the process of the server exists; it may not answer yet."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None
        return self._process.pid

    @property
    def directory(self) -> Path:
        """Directory of data, configuration and log; it exists from the first start to the end of the context."""
        assert self._directory is not None
        return self._directory

    async def start(self) -> None:
        """
        Start on the same port and data as before, and wait until the server answers.

        Does nothing while the server runs. After a failure or a cancel no process and no temporary directory
        is left behind.

        Raises:
            StartRefused: The server cannot be prepared or run, the port is taken, or it does not answer; the
                message has the reason.
        """
        if self.running:
            return
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self.close)
            self._open_directory()
            await self._prepare()
            if not _is_free(self.port):  # another program would answer in our server's place
                raise StartRefused(f"{self.name}: port {self.port} on {HOST} is taken by another program")
            self._process = self._spawn(await self._command())
            self._watch(str(self._process.pid))
            await self._wait_for_answer()
            undo.pop_all()

    async def stop(self) -> None:
        """Stop the server in an orderly way and keep the data. Does nothing if it is not running."""
        await self._end(self.stop_signal)

    async def kill(self) -> None:
        """End the server as a crash would: it writes nothing more."""
        await self._end(self.kill_signal)

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def close(self) -> None:
        """Stop the server and remove a temporary directory. Safe to call twice."""
        await self.stop()
        if self._watcher is not None and self._watcher.stdin is not None:
            self._watcher.stdin.close()
            await _has_ended(self._watcher, STOP_TIMEOUT_S)
            self._watcher = None
        if not self.keeps_data:
            self._directory = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    @abstractmethod
    async def _prepare(self) -> None:
        """Create the files that a start needs; files of an earlier start are kept."""

    @abstractmethod
    async def _command(self) -> list[str]:
        """The command line that runs the server in the foreground."""

    @abstractmethod
    async def _answers(self) -> bool:
        """Whether the server serves clients. May raise OSError for a refused connection instead."""

    def _open_directory(self) -> None:
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix=f"tarsy-scoring-{self.name}-"))
        self._directory.mkdir(parents=True, exist_ok=True)
        if self._watcher is None:
            to_remove = "" if self.keeps_data else str(self._directory)
            self._watcher = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHER, "watcher", self.kill_signal.name.removeprefix("SIG"), to_remove],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )

    def _watch(self, pid: str) -> None:
        """Name to the watcher the process that it must end with this one; an empty text names none."""
        if self._watcher is not None and self._watcher.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # the watcher was killed; `close` still cleans up
                self._watcher.stdin.write(f"{pid}\n".encode())
                self._watcher.stdin.flush()

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        as_other: dict[str, Any] = {}
        if self._account is not None:
            as_other = {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}
        with self._log_file.open("ab") as log:
            try:
                # In a separate session, Ctrl-C does not reach the server, and `close` can stop it in order.
                return subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.directory,
                    start_new_session=True,
                    **as_other,
                )
            except OSError as error:
                raise StartRefused(f"{self.name}: cannot run {command[0]}: {error.strerror}") from error

    async def _run(self, command: list[str], what: str) -> None:
        """
        Run a program to the end; a cancel kills it.

        Args:
            what: Name of the step, for the message.

        Raises:
            StartRefused: The program cannot be run, failed, or did not end within `START_TIMEOUT_S`.
        """
        process = self._spawn(command)
        try:
            if not await _has_ended(process, START_TIMEOUT_S):
                raise StartRefused(f"{self.name}: {what} did not end within {START_TIMEOUT_S} s")
        finally:
            process.kill()
            process.wait()
        if process.returncode != 0:
            raise StartRefused(f"{self.name}: {what} failed: {self._log_tail()}")

    async def _wait_for_answer(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.running:
            with contextlib.suppress(OSError):
                if await self._answers():
                    return
            if time.monotonic() > deadline:
                raise StartRefused(
                    f"{self.name} does not answer on {HOST}:{self.port} after {START_TIMEOUT_S} s: {self._log_tail()}"
                )
            await asyncio.sleep(0.02)
        raise StartRefused(f"{self.name} ended while it started on {HOST}:{self.port}: {self._log_tail()}")

    async def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(how)
            if not await _has_ended(self._process, STOP_TIMEOUT_S):
                self._process.kill()
        self._process.wait()
        self._process = None
        self._watch("")

    @property
    def _log_file(self) -> Path:
        return self.directory / f"{self.name}.log"

    def _log_tail(self) -> str:
        """The last three lines of the log, without those of a stack in Java; at most 800 characters."""
        lines = self._log_file.read_text(errors="replace").strip().splitlines()
        lines = [line for line in lines if not line.startswith("\tat ")]
        return " | ".join(lines[-3:])[-800:] or "it printed nothing"


def free_port() -> int:
    """A TCP port on loopback on which no program listens now. Never gives one twice in a process."""
    return next(port for port in _PORTS if _is_free(port))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


async def _has_ended(process: subprocess.Popen[bytes], within_s: float) -> bool:
    """Wait for a process to end; False: it still runs after `within_s`."""
    deadline = time.monotonic() + within_s
    while process.poll() is None:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True

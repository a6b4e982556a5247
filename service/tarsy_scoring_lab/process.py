"""
A server program that keeps its port and data over crashes and ends with this process.

Shared by the embedded PostgreSQL and the embedded brokers; belongs to no event loop.
"""

import asyncio
import contextlib
import pwd
import secrets
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
# port, connect to itself and keep the server from coming back.
_PORTS = range(20_000, 32_000)

# One per server. It reads process ids, the last one counts; when its input ends, which happens in
# whatever way we die, it ends that process and removes the directory, if there are such.
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
    One server program on a loopback port, with a directory of its own.

    `start`, `stop` and `kill` may follow each other at will; port and data stay. Leaving the context
    stops the server and removes a temporary directory. If this process dies, even by SIGKILL, a watcher
    does the same. Belongs to no event loop: every method may be called in another one.

    Args:
        directory: Where data is kept; made if missing. None: a temporary one.
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
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        if self._process is None or not self.running:
            raise RuntimeError(f"{self.name} is not running")
        return self._process.pid

    @property
    def directory(self) -> Path:
        """Data, configuration and the log; exists from the first start to the end of the context."""
        if self._directory is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._directory

    async def start(self) -> None:
        """
        Start on the port and data of before; returns when it answers. Does nothing while it runs.

        If it fails or is cancelled, nothing of the server is left behind.

        Raises:
            StartRefused: What was attempted, why it failed and what would help.
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
        """Orderly; data is kept. Does nothing while it is down."""
        await self._end(self.stop_signal)

    async def kill(self) -> None:
        """A crash: the server writes nothing more. Data is as after a crash."""
        await self._end(self.kill_signal)

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def close(self) -> None:
        """Stop, and remove what was temporary. Safe to call twice."""
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
        """Make what must be in the directory before a start; finds it there at the second one."""

    @abstractmethod
    async def _command(self) -> list[str]: ...

    @abstractmethod
    async def _answers(self) -> bool:
        """Whether a client is served; a refused connection may also surface as OSError."""

    def _open_directory(self) -> None:
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix=f"tarsy-scoring-{self.name}-"))
        self._directory.mkdir(parents=True, exist_ok=True)
        if self._watcher is None:
            doomed = "" if self.keeps_data else str(self._directory)
            self._watcher = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHER, "watcher", self.kill_signal.name.removeprefix("SIG"), doomed],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )

    def _watch(self, pid: str) -> None:
        """Tell the watcher which process to end with us; empty for none."""
        if self._watcher is not None and self._watcher.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it was killed; we still clean up in order
                self._watcher.stdin.write(f"{pid}\n".encode())
                self._watcher.stdin.flush()

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        as_other: dict[str, Any] = {}
        if self._account is not None:
            as_other = {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}
        with self._log_file.open("ab") as log:
            try:
                # A session of its own: Ctrl-C is for us, and we stop it in order.
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
        Run a program to its end; a cancel ends it.

        Raises:
            StartRefused: It failed.
        """
        process = self._spawn(command)
        try:
            if not await _has_ended(process, START_TIMEOUT_S):
                raise StartRefused(f"{self.name}: {what} did not end within {START_TIMEOUT_S} s")
        finally:
            process.kill()
            process.wait()
        if process.returncode != 0:
            raise StartRefused(f"{self.name}: {what} failed: {self._last_words()}")

    async def _wait_for_answer(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.running:
            with contextlib.suppress(OSError):
                if await self._answers():
                    return
            if time.monotonic() > deadline:
                raise StartRefused(
                    f"{self.name} does not answer on {HOST}:{self.port} after {START_TIMEOUT_S} s: {self._last_words()}"
                )
            await asyncio.sleep(0.02)
        raise StartRefused(f"{self.name} ended while it started on {HOST}:{self.port}: {self._last_words()}")

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

    def _last_words(self) -> str:
        lines = self._log_file.read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-3:])[-800:] or "it printed nothing"


def free_port() -> int:
    """A TCP port on loopback on which no program listens now."""
    while not _is_free(port := secrets.choice(_PORTS)):
        pass
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


async def _has_ended(process: subprocess.Popen[bytes], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while process.poll() is None:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True

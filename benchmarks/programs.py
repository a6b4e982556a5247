"""The measured processes, and the scripted judge in a process of its own; each ends with its context."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

STOP_S = 20.0
START_S = 30.0
CALLS_TIMEOUT_S = 60.0  # a judge that has hundreds of calls to answer on a busy machine comes to this one late


class ProgramFailed(Exception):
    """A program ended early or did not answer; the message has the last lines of its log if it ended."""


@asynccontextmanager
async def program(
    *arguments: str, env: Mapping[str, str], log_file: Path, executable: str = sys.executable
) -> AsyncIterator[asyncio.subprocess.Process]:
    """
    Run a program, `python` by default, with these arguments.

    Standard input and output are pipes; standard error goes to `log_file`.

    At the end the program gets SIGTERM, and SIGKILL after `STOP_S`.

    Args:
        env: All `SCORING_*` and `OPENAI_*` variables; those of this process are not inherited.
    """
    base_env = {k: v for k, v in os.environ.items() if not k.startswith(("SCORING_", "OPENAI_"))}
    with log_file.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(executable, *arguments),
            env=base_env | dict(env),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            limit=2**24,
            # Linux may share the cores among sessions first (`sched_autogroup_enabled`). In one session with a busy
            # worker and the load an API would get a part of one share, while each connection of PostgreSQL has its own.
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), STOP_S)
            except TimeoutError:
                process.kill()
                await process.wait()


def require_running(process: asyncio.subprocess.Process, log_file: Path) -> None:
    """
    Check that a program has not ended.

    Raises:
        ProgramFailed: It has ended; with its status and the last five lines of its log.
    """
    if process.returncode is not None:
        last = log_file.read_text(errors="replace").strip().splitlines()[-5:]
        raise ProgramFailed(f"ended early with status {process.returncode}: " + " | ".join(last)[-1500:])


async def first_line(process: asyncio.subprocess.Process, log_file: Path) -> str:
    """The first line that a program prints when it has started. Raises: ProgramFailed, TimeoutError: it prints none."""
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), START_S)
    if not line:
        await process.wait()
        require_running(process, log_file)
    return line.decode().strip()


@dataclass(frozen=True, slots=True)
class Judge:
    """A judge that answers after `latency_s`."""

    base_url: str
    pid: int

    async def calls(self) -> int:
        """Number of calls that it has received so far."""
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=CALLS_TIMEOUT_S)) as session,
            session.get(self.base_url.removesuffix("/v1") + "/calls") as response,
        ):
            return int(await response.text())


@asynccontextmanager
async def judge(latency_s: float, folder: Path, of_peer: Path | None = None) -> AsyncIterator[Judge]:
    """Run the scripted judge, or the peer's, in a process of its own. Raises: as `first_line`."""
    log_file = folder / "judge.log"
    options = ("-m", "tarsy_scoring_lab.scripted_judge", "--latency", str(latency_s))
    if of_peer:
        options = ("-chat", f"-latency={latency_s}s")
    executable = str(of_peer or sys.executable)
    async with program(*options, env={}, log_file=log_file, executable=executable) as process:
        yield Judge(await first_line(process, log_file), process.pid)

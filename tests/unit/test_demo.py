"""The demo ends the processes that it started."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest

from infrastructure import wait_until
from tarsy_scoring_lab import demo

# Records that it was asked to end, and goes on.
STUBBORN = """#!/bin/sh
trap 'touch "$FOLDER/asked"' TERM
touch "$FOLDER/ready"
while :; do sleep 0.05; done
"""


async def test_an_interrupted_end_leaves_no_program_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second signal ends the wait for the program, which is then killed: its database is about to go."""
    program = tmp_path / "program"
    program.write_text(STUBBORN)
    program.chmod(0o700)
    monkeypatch.setattr(demo.sys, "executable", str(program))
    started: asyncio.Future[asyncio.subprocess.Process] = asyncio.get_running_loop().create_future()

    async def use() -> None:
        async with demo.program("worker", {"FOLDER": str(tmp_path)}, tmp_path) as process:
            started.set_result(process)
            await wait_until((tmp_path / "ready").exists, 30, "it runs")

    using = asyncio.create_task(use())
    process = await started
    try:
        await wait_until((tmp_path / "asked").exists, 30, "it was asked to end")
        using.cancel()
        await asyncio.gather(using, return_exceptions=True)

        assert process.returncode == -signal.SIGKILL
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        await process.wait()

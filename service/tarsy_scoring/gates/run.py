"""
Runs gates on a session: observes the work directory, with a deadline for every step and without leaving the
directory.

Commands come only from the operator's configuration. They receive the session id in an environment variable
and nothing else of the session.
"""

import asyncio
import contextlib
import errno
import json
import math
import os
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from tarsy_scoring.config.chains import GateSettings
from tarsy_scoring.config.gates import CommandGate, FileExists, FileGate, Gate, shown
from tarsy_scoring.evaluation.outcome import GateResult
from tarsy_scoring.events import SESSION_ID_PATTERN
from tarsy_scoring.gates import sandbox
from tarsy_scoring.gates.decide import NOT_LOOKED_AT, Observed, evaluate_gate
from tarsy_scoring.timeline.clean.masking import SHIPPED, Masking, mask_secrets
from tarsy_scoring.timeline.model import Timeline

T = TypeVar("T")

SHELL = "/bin/sh"
THREAD_NAME = "gate"
# Threads per process, and the time between looks for a free one. A thread that waits for a dead network share
# stays until the share is back.
MOST_THREADS, THREAD_POLL_S = 32, 0.05
_CHUNK_BYTES = 65_536
# The end of standard error that is shown, in lines and characters, and the bytes that are masked for it: a key
# of several lines is recognised by the first.
_ERROR_LINES, _ERROR_CHARACTERS, _ERROR_BYTES = 3, 200, 16_384
MAX_MEMORY_BYTES = 2_000_000_000  # address space of each process in a command
MAX_PROCESSES = 4096  # of the worker's user on the node, above which a command starts no further one
_MAX_FILE_BYTES = 1_000_000_000  # of a file that a command writes
_KILL_AFTER_S = 2.0  # a sandbox ends the command within milliseconds of SIGTERM, unless the kernel holds it
_PLACEHOLDER = "{session_id}"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A FIFO or device that replaced a file must not block `open` or become our controlling terminal.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


async def run_gates(
    gates: Sequence[Gate],
    timeline: Timeline,
    settings: GateSettings,
    *,
    deadline_s: float = math.inf,
    masking: Masking = SHIPPED,
) -> list[GateResult]:
    """
    Decide all gates in the given order; a failed gate does not stop the others.

    A missing directory, a hanging command and an unreadable file are results that did not pass, with a
    message, and never exceptions. The same command in several gates runs once. A cancellation kills the
    running command with all processes; a thread that reads a file or decides a gate finishes alone.

    Args:
        settings: `timeout_s` limits each command and each file read.
        deadline_s: Time for all gates together; later commands do not run and did not pass.
    """
    ends_at = asyncio.get_running_loop().time() + deadline_s
    outputs: dict[str, Observed] = {}
    results = []
    for gate in gates:
        if isinstance(gate, CommandGate):
            if gate.command not in outputs:
                outputs[gate.command] = await _observe(gate, timeline.session_id, settings, ends_at, masking)
            observed = outputs[gate.command]
        elif isinstance(gate, FileGate):
            observed = await _observe(gate, timeline.session_id, settings, ends_at, masking)
        else:
            observed = NOT_LOOKED_AT
        results.append(await _decide(gate, timeline, observed, settings.timeout_s))
    return results


async def _decide(gate: Gate, timeline: Timeline, observed: Observed, timeout_s: float) -> GateResult:
    """
    Decide in a thread: 100,000 entries or a megabyte of output would block the event loop.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await _in_thread(evaluate_gate, gate, timeline, observed)
    except TimeoutError:
        words = f"not decided within {timeout_s:g} s (gates.timeout_s); use a cheaper path or pattern"
        return GateResult(gate.title, gate.type, False, words)


async def _observe(
    gate: CommandGate | FileGate, session_id: str, settings: GateSettings, ends_at: float, masking: Masking
) -> Observed:
    """
    Read the file or run the command; a failure and the end of the time are observations with a problem.
    """
    if isinstance(gate, CommandGate) and not settings.allow_commands:
        return Observed("commands are not allowed here: set gates.allow_commands: true")
    if settings.work_dir is None:
        return Observed("no work directory is configured: set gates.work_dir")
    left_s = min(settings.timeout_s, ends_at - asyncio.get_running_loop().time())
    limit = "gates.timeout_s" if left_s == settings.timeout_s else "the time for all gates is used up"
    if left_s <= 0:
        return Observed(f"not looked at: {limit}")
    late, failed = "the file could not be read", "the path cannot be used"
    if isinstance(gate, CommandGate):
        late, failed = "the command was stopped", "the command could not be started"
    try:
        async with asyncio.timeout(left_s):
            root = await _in_thread(find_work_dir, settings.work_dir, session_id)
            if isinstance(gate, CommandGate):
                return await run_command(gate.command, root, session_id, settings, masking)
            keep = None if isinstance(gate, FileExists) else settings.max_output_bytes
            return await _in_thread(look_at, root, gate.path, keep)
    except TimeoutError:
        return Observed(f"{late} after {left_s:.3g} s ({limit})")
    except _NotUsable as error:
        return Observed(str(error))
    except OSError as error:
        return Observed(f"{failed}: {error.strerror or type(error).__name__}")


async def _in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """
    Run `work` in a new daemon thread; waits while `MOST_THREADS` are running.

    A cancellation returns at once and leaves the thread to finish alone. asyncio's own thread pool is no
    option: work that hangs on a dead share would block the pool for everything else, including host lookups,
    and the process would wait for it at exit.
    """
    while sum(t.name == THREAD_NAME for t in threading.enumerate()) >= MOST_THREADS:  # noqa: ASYNC110 - threads signal no event
        await asyncio.sleep(THREAD_POLL_S)
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(work(*arguments))
        except BaseException as error:  # noqa: BLE001 - the awaiting caller handles it
            done.set_exception(error)

    threading.Thread(target=run, name=THREAD_NAME, daemon=True).start()
    return await asyncio.wrap_future(done)


class _NotUsable(Exception):
    """A path in the work directory cannot be used. Stays in this module; the text is the gate's message."""


# --- files ---------------------------------------------------------------------------------------------


def find_work_dir(template: str, session_id: str) -> Path:
    """
    Find the real path of a session's work directory.

    The part before `{session_id}` belongs to the operator. Agents may have created the rest, so no link in
    the rest may lead out of this session's folder, for example to another session's files.

    Raises:
        _NotUsable: The directory does not exist, or leads out of the session's folder.
    """
    if SESSION_ID_PATTERN.fullmatch(session_id) is None:
        raise _NotUsable("the session id cannot be part of a path")
    path = template.replace(_PLACEHOLDER, session_id)
    try:
        real = Path(os.path.realpath(path, strict=True))
        if not real.is_dir():
            raise _NotUsable(f"the work directory {shown(path, 150)} is not a directory")
        if _PLACEHOLDER in template:
            before, _, rest = template.partition(_PLACEHOLDER)
            above, begin = os.path.split(before)
            name = (begin + _PLACEHOLDER + rest.partition("/")[0]).replace(_PLACEHOLDER, session_id)
            own = Path(os.path.realpath(above or ".", strict=True), name)
            if not real.is_relative_to(own):
                raise _NotUsable(f"the work directory {shown(path, 150)} leads out of {shown(str(own), 100)}")
    except FileNotFoundError:
        raise _NotUsable(f"there is no work directory {shown(path, 200)}") from None
    except OSError as error:
        raise _NotUsable(f"the work directory {shown(path, 150)}: {error.strerror}") from None
    return real


def look_at(root: Path, path: str, max_bytes: int | None) -> Observed:
    """
    Check that a path below `root` exists, or read the first `max_bytes`.

    Links are followed while they stay below `root`. Their target is then opened part by part without
    following links, so that a link swapped in meanwhile cannot lead out. Only regular files are read; devices
    and FIFOs stay closed.

    Args:
        root: A real path.
        max_bytes: None checks existence only, also of a directory.

    Raises:
        OSError, _NotUsable: The path cannot be read, with the reason.
    """
    name = f"'{shown(path)}'"
    try:
        real = Path(os.path.realpath(root / path, strict=True))
        if not real.is_relative_to(root):
            raise _NotUsable(f"{name} leads out of the work directory")
        with _open_parent(root, real) as (directory, last):
            found = os.stat(last, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISDIR(found.st_mode) and max_bytes is None:
                return Observed()
            _require_file(found, name)
            if path.endswith("/"):
                raise _NotUsable(f"{name} is not a directory")
            return Observed() if max_bytes is None else _read(directory, last, name, max_bytes)
    except (FileNotFoundError, NotADirectoryError):
        raise _NotUsable(f"there is no {name} in the work directory") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _NotUsable(
                f"{name} is a link that leads nowhere, or changed while it was looked at"
            ) from None
        raise


@contextlib.contextmanager
def _open_parent(root: Path, real: Path) -> Iterator[tuple[int, str]]:
    """Open the parent of `real` without following links; yields the descriptor and the name in it."""
    *parents, last = real.relative_to(root).parts or (".",)
    directory = os.open(root, _DIRECTORY)
    try:
        for part in parents:
            inner = os.open(part, _DIRECTORY, dir_fd=directory)
            os.close(directory)
            directory = inner
        yield directory, last
    finally:
        os.close(directory)


def _require_file(found: os.stat_result, name: str) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise _NotUsable(f"{name} is a directory")
    if not stat.S_ISREG(found.st_mode):
        raise _NotUsable(f"{name} is not a file: a link that was just made, a device, a pipe or a socket")


def _read(directory: int, last: str, name: str, max_bytes: int) -> Observed:
    with open(os.open(last, _FILE, dir_fd=directory), "rb", closefd=True) as file:
        _require_file(os.fstat(file.fileno()), name)
        data = file.read(max_bytes + 1)
    return Observed(data=data[:max_bytes], is_cut=len(data) > max_bytes)


# --- commands ------------------------------------------------------------------------------------------


async def run_command(
    command: str, root: Path, session_id: str, settings: GateSettings, masking: Masking = SHIPPED
) -> Observed:
    """
    Run a command in a shell in `root` until the shell ends; returns exit status and output until
    then.

    The command runs in a sandbox (`sandbox.py`), with an empty input, a temporary folder of its own, and
    `PATH` as the only variable of our environment. The sandbox kills every process of the command when the
    shell ends, on a cancellation and on a timeout, which arrives as a cancellation.

    Args:
        root: A real path. A link that was swapped in meanwhile is not followed.
        settings: `max_output_bytes` to keep. The rest is read and dropped, so that the command does not
            block; of standard error the end is kept.

    Raises:
        OSError, _NotUsable: It could not be started.
    """
    with _open_parent(Path("/"), root) as (above, name):
        directory = os.open(name, _DIRECTORY, dir_fd=above)
    try:
        process = await _start(command, root, session_id, settings, directory)
    finally:
        os.close(directory)
    try:
        assert process.stdout
        assert process.stderr
        output = _read_output(process.stdout, settings.max_output_bytes)
        (kept, is_cut), errors = await asyncio.gather(output, _read_end(process.stderr))
        exit_status = await process.wait()
    finally:
        await _stop(process)
    if exit_status == sandbox.NOT_BEGUN:
        raise _NotUsable("the command could not be started")
    return Observed(None, kept, is_cut, exit_status, await _in_thread(_last_lines, errors, masking))


async def _start(
    command: str, root: Path, session_id: str, settings: GateSettings, directory: int
) -> asyncio.subprocess.Process:
    policy = {
        "landlock": settings.sandbox == "landlock",
        "readable": sandbox.SYSTEM,
        "limits": [
            ("RLIMIT_AS", MAX_MEMORY_BYTES),
            ("RLIMIT_NPROC", MAX_PROCESSES),
            ("RLIMIT_FSIZE", _MAX_FILE_BYTES),
            # A command with a thread on each core ends by the timeout and not by this limit.
            ("RLIMIT_CPU", math.ceil(settings.timeout_s * (os.cpu_count() or 1)) + 1),
            ("RLIMIT_CORE", 0),
        ],
    }
    arguments = ("-I", "-S", sandbox.__file__, json.dumps(policy), SHELL, "-c", command)
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=f"/proc/self/fd/{directory}",
        env={
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(root),
            "LANG": "C.UTF-8",
            "SCORING_SESSION_ID": session_id,
            "TMPDIR": tempfile.gettempdir(),
        },
        start_new_session=True,
    )


async def _read_output(pipe: asyncio.StreamReader, max_bytes: int) -> tuple[bytes, bool]:
    """The first bytes of the output, and whether there were more; reads to the end."""
    kept, is_cut = bytearray(), False
    while chunk := await pipe.read(_CHUNK_BYTES):
        room = max_bytes - len(kept)
        kept += chunk[:room]
        is_cut = is_cut or len(chunk) > room
    return bytes(kept), is_cut


async def _read_end(pipe: asyncio.StreamReader) -> bytes:
    kept = b""
    while chunk := await pipe.read(_CHUNK_BYTES):
        kept = (kept + chunk)[-_ERROR_BYTES:]
    return kept


def _last_lines(errors: bytes, masking: Masking) -> str:
    lines = mask_secrets(errors.decode("utf-8", "replace"), masking).strip().splitlines()
    # Markers are longer than what they hide.
    line = shown(" | ".join(lines[-_ERROR_LINES:]), 4 * _ERROR_BYTES)
    return line if len(line) <= _ERROR_CHARACTERS else f"…{line[1 - _ERROR_CHARACTERS :]}"


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Have the sandbox end the command; a sandbox that hangs in the kernel, on a dead share, is killed."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(_KILL_AFTER_S):
            await process.wait()
    except TimeoutError:
        process.kill()

"""Gates on real files and processes: no path leaves the work directory, and no process survives its gate."""

import asyncio
import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop
from pydantic import TypeAdapter

from infrastructure import wait_until
from tarsy_scoring.config.chains import GateSettings
from tarsy_scoring.config.gates import GATE_TYPES, Gate
from tarsy_scoring.evaluation.outcome import GateResult
from tarsy_scoring.gates import sandbox
from tarsy_scoring.gates.run import THREAD_NAME, run_gates
from tarsy_scoring.gates.sandbox import landlock_version
from unit.timeline.sessions import call, of_events

GATES: TypeAdapter[Any] = TypeAdapter(tuple[Gate, ...])
SESSION = of_events(call("x"), session_id="session-1", final_analysis="OOMKilled")
SECRET = "hunter2"
# Far longer than any wait here takes; a test that reaches it has failed.
PATIENCE_S = 60.0
SANDBOX = "landlock" if landlock_version() else "container"
PYTHON = (sys.prefix, sys.base_prefix)


@pytest.fixture
def work_dir(tmp_path: Path) -> Path:
    """The work directory of `session-1`, beside files that no gate may reach."""
    directory = tmp_path / "sessions" / "session-1"
    directory.mkdir(parents=True)
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "sessions" / "session-2").mkdir()
    (tmp_path / "sessions" / "session-2" / "secret").write_text(SECRET)
    (directory / "report.md").write_text("all ok\n")
    (directory / "out").mkdir()
    (directory / "out" / "rows.json").write_text('{"rows": [1, 2]}')
    return directory


@pytest.fixture(autouse=True)
def _python_is_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "SYSTEM", sandbox.SYSTEM + PYTHON)


def allowed(work_dir: Path, /, **changes: Any) -> GateSettings:
    template = str(work_dir.parent / "{session_id}")
    given = {"allow_commands": True, "work_dir": template, "timeout_s": PATIENCE_S, "sandbox": SANDBOX}
    return GateSettings(**given | changes)


async def results(settings: GateSettings, *gates: dict[str, Any], **how: Any) -> list[GateResult]:
    return await run_gates(GATES.validate_python(gates), SESSION, settings, **how)


async def result(settings: GateSettings, type_: str, **parameters: Any) -> GateResult:
    [only] = await results(settings, {"type": type_, **parameters})
    return only


async def run(settings: GateSettings, command: str) -> GateResult:
    return await result(settings, "command_succeeds", command=command)


# --- the list ------------------------------------------------------------------------------------------


async def test_all_gates_are_decided_in_order(work_dir: Path) -> None:
    command = {"command": "cat out/rows.json; exit 1"}
    gates: dict[str, tuple[dict[str, Any], bool]] = {
        "command_succeeds": (command, False),
        "no_transcript_errors": ({}, True),
        "tool_called": ({"tool": "kubectl.get_pods"}, True),
        "tool_not_called": ({"tool": "get_pods"}, False),
        "max_tool_calls": ({"max": 0}, False),
        "final_analysis_contains": ({"substring": "OOM"}, True),
        "final_analysis_matches": ({"pattern": "^Kill"}, False),
        "file_exists": ({"path": "out/"}, True),
        "file_contains": ({"path": "report.md", "substring": "ok"}, True),
        "file_matches": ({"path": "out/rows.json", "pattern": "ok"}, False),
        "command_output_contains": (command | {"substring": "rows"}, True),
        "command_output_matches": (command | {"pattern": r"\d"}, True),
        "command_json_path": (command | {"path": "$.rows", "assertion": "len >= 2"}, True),
        "script": (command | {"description": "adds up"}, False),
    }
    assert gates.keys() == GATE_TYPES.keys()

    decided = await results(allowed(work_dir), *({"type": t, **parameters} for t, (parameters, _) in gates.items()))

    assert [(r.gate_type, r.passed) for r in decided] == [(t, passed) for t, (_, passed) in gates.items()]


async def test_same_command_runs_once_for_all_gates(work_dir: Path) -> None:
    """Four gates on one report cost one run; the next list runs it again, as does another command."""
    command = "echo run >> runs; echo ok"
    gates = [{"type": "command_output_contains", "command": command, "substring": s} for s in ("ok", "o", "k", "x")]

    decided = await results(allowed(work_dir), *gates)

    assert [r.passed for r in decided] == [True, True, True, False]
    assert (work_dir / "runs").read_text() == "run\n"
    await results(allowed(work_dir), gates[0], {"type": "command_succeeds", "command": command + " "})
    assert (work_dir / "runs").read_text() == "run\nrun\nrun\n"


async def test_command_that_is_not_allowed_does_not_run(work_dir: Path) -> None:
    nowhere = "no work directory is configured: set gates.work_dir"
    not_allowed = "commands are not allowed here: set gates.allow_commands: true"
    for changes, says in ({"allow_commands": False}, not_allowed), ({"work_dir": None}, nowhere):
        decided = await run(allowed(work_dir, **changes), f"touch {work_dir}/ran")

        assert (decided.passed, decided.message) == (False, says)
        assert not (work_dir / "ran").exists()
    assert (await result(allowed(work_dir, allow_commands=False), "file_exists", path="report.md")).passed
    assert (await result(allowed(work_dir, work_dir=None), "file_exists", path="report.md")).message == nowhere


async def test_missing_work_directory_is_named(work_dir: Path) -> None:
    for changes, says in [
        ({"work_dir": str(work_dir / "no-{session_id}")}, f"there is no work directory {work_dir}/no-session-1"),
        ({"work_dir": str(work_dir / "report.md")}, f"the work directory {work_dir}/report.md is not a directory"),
        ({"work_dir": str(work_dir / "report.md/{session_id}")}, "Not a directory"),
    ]:
        for gate in ({"type": "file_exists", "path": "x"}, {"type": "command_succeeds", "command": "true"}):
            [decided] = await results(allowed(work_dir, **changes), gate)

            assert not decided.passed
            assert says in decided.message


async def test_work_directory_may_not_be_a_link_that_leads_out(work_dir: Path) -> None:
    """A link of an agent leads neither out of the folder of all sessions nor into the folder of another session."""
    (work_dir / "tree").symlink_to("/")
    (work_dir / "other").symlink_to("../session-2")
    (work_dir.parent / "session-2" / "report.md").write_text(SECRET)
    (work_dir / "mine").symlink_to("out")
    template = str(work_dir.parent / "{session_id}")

    inside = await run(allowed(work_dir, work_dir=f"{template}/mine"), "test -f rows.json")
    out = await run(allowed(work_dir, work_dir=f"{template}/tree"), "true")
    other = await result(allowed(work_dir, work_dir=f"{template}/other"), "file_exists", path="report.md")
    os.rename(work_dir, work_dir.parent / "moved")
    os.symlink("session-2", work_dir)
    whole = await result(allowed(work_dir), "file_exists", path="report.md")

    assert inside.passed
    for refused in (out, other, whole):
        assert not refused.passed
        assert "leads out of" in refused.message


async def test_invalid_session_id_reaches_no_path(work_dir: Path) -> None:
    session = of_events(session_id="../session-1")
    gates = GATES.validate_python([{"type": "file_exists", "path": "report.md"}])

    [decided] = await run_gates(gates, session, allowed(work_dir))

    assert (decided.passed, decided.message) == (False, "the session id cannot be part of a path")


# --- files ---------------------------------------------------------------------------------------------


def make_ways_out(work_dir: Path) -> tuple[str, ...]:
    """Paths that lead out of the work directory."""
    secret = work_dir.parents[1] / "secret"
    (work_dir / "to-file").symlink_to(secret)
    (work_dir / "relative").symlink_to("../../secret")
    (work_dir / "to-link").symlink_to("to-file")
    (work_dir / "to-neighbour").symlink_to("../session-2/secret")
    (work_dir / "to-dir").symlink_to("../..")
    (work_dir / "to-root").symlink_to("/")
    (work_dir / "out" / "deep").symlink_to("../to-dir")
    (work_dir / "to-zero").symlink_to("/dev/zero")
    (work_dir / "to-self").symlink_to(f"/proc/{os.getpid()}/environ")
    (work_dir / "to-prefix").symlink_to("../session-10")
    (work_dir.parent / "session-10").write_text(SECRET)
    links = ("to-file", "relative", "to-link", "to-neighbour", "to-zero", "to-self", "to-prefix", "to-dir/")
    return (*links, "to-dir/secret", "to-dir//.", f"to-root{secret}", "out/deep/secret")


async def test_no_path_leads_out(work_dir: Path) -> None:
    for path in make_ways_out(work_dir):
        for gate in (
            {"type": "file_contains", "path": path, "substring": SECRET},
            {"type": "file_matches", "path": path, "pattern": "(?s).*"},
            {"type": "file_exists", "path": path},
        ):
            if path.endswith(("/", ".")) and gate["type"] != "file_exists":
                continue  # refused by the configuration
            [decided] = await results(allowed(work_dir), gate)

            assert not decided.passed, path
            assert "leads out of the work directory" in decided.message, path


SWAPS = {
    "file": ("report.md", "report.md", "../../secret"),
    "file-for-a-neighbour": ("report.md", "report.md", "out/rows.json"),
    "directory": ("out/rows.json", "out", "../session-2"),
    "root": ("report.md", ".", "session-2"),
}


@pytest.mark.parametrize(
    "gate", [{"type": "file_exists"}, {"type": "file_matches", "pattern": "(?s).*"}], ids=["to-be-there", "to-be-read"]
)
@pytest.mark.parametrize(("path", "swapped", "target"), SWAPS.values(), ids=SWAPS)
async def test_link_swapped_in_after_the_check_is_not_followed(
    work_dir: Path, path: str, swapped: str, target: str, gate: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file, a directory or the work directory itself becomes a link between check and opening."""
    (work_dir.parent / "session-2" / "rows.json").write_text(SECRET)
    (work_dir.parent / "session-2" / "report.md").write_text(SECRET)
    real_path = os.path.realpath

    def realpath_then_swap(asked: Any, *, strict: bool = False) -> Any:
        checked = real_path(asked, strict=strict)
        if str(asked).endswith(path):
            place = work_dir / swapped
            place.rename(work_dir.parent / "moved")
            place.symlink_to(target)
        return checked

    monkeypatch.setattr(os.path, "realpath", realpath_then_swap)
    [decided] = await results(allowed(work_dir), gate | {"path": path})

    assert (work_dir / swapped).is_symlink()
    assert not decided.passed


@pytest.fixture
def odd_files(work_dir: Path) -> Iterator[None]:
    os.mkfifo(work_dir / "fifo")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listening:
        here = Path.cwd()
        os.chdir(work_dir)  # a socket's path may have 108 characters
        listening.bind("socket")
        os.chdir(here)
        yield


ODD = {
    "fifo": "is not a file",
    "socket": "is not a file",
    "out": "is a directory",
    "absent": "there is no 'absent' in the work directory",
    "report.md/inside": "there is no 'report.md/inside' in the work directory",
    "loop": "a link that leads nowhere",
    "dangling": "there is no 'dangling' in the work directory",
    "x" * 300: "File name too long",
}


@pytest.mark.usefixtures("odd_files")
async def test_only_regular_files_are_read(work_dir: Path) -> None:
    (work_dir / "loop").symlink_to("loop")
    (work_dir / "dangling").symlink_to("nowhere")

    for path, says in ODD.items():
        read = await result(allowed(work_dir), "file_contains", path=path, substring="x")
        there = await result(allowed(work_dir), "file_exists", path=path)

        assert not read.passed
        assert says in read.message
        assert there.passed is (path == "out")


@pytest.mark.parametrize("swap", [os.mkfifo, lambda path: os.symlink("../../secret", path)], ids=["fifo", "link"])
async def test_file_replaced_at_the_last_moment_is_not_read(
    work_dir: Path, swap: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at, real_stat = work_dir / "report.md", os.stat

    def stat_then_swap(path: Any, **how: Any) -> os.stat_result:
        found = real_stat(path, **how)
        if path == "report.md" and how.get("dir_fd") is not None:
            looked_at.unlink()
            swap(looked_at)
        return found

    monkeypatch.setattr(os, "stat", stat_then_swap)
    decided = await result(allowed(work_dir), "file_matches", path="report.md", pattern="(?s).*")

    assert not decided.passed
    assert ("changed while it was looked at" if looked_at.is_symlink() else "is not a file") in decided.message


async def test_large_file_is_searched_in_its_first_part(work_dir: Path) -> None:
    (work_dir / "large").write_text("abcdef")
    gate = {"path": "large", "substring": "f"}

    whole = await result(allowed(work_dir, max_output_bytes=6), "file_contains", **gate)
    cut = await result(allowed(work_dir, max_output_bytes=5), "file_contains", **gate)

    assert (whole.passed, cut.passed) == (True, False)
    assert "the first 5 bytes" in cut.message
    assert (await result(allowed(work_dir, max_output_bytes=5), "file_contains", path="large", substring="e")).passed


async def test_gates_leave_no_descriptor_open(work_dir: Path) -> None:
    make_ways_out(work_dir)
    gates = [
        {"type": "file_contains", "path": "out/rows.json", "substring": "x"},
        {"type": "file_contains", "path": "out/deep/secret", "substring": "x"},
        {"type": "file_exists", "path": "out/absent"},
        {"type": "file_contains", "path": "out", "substring": "x"},
        {"type": "command_succeeds", "command": "true"},
    ]
    await results(allowed(work_dir), *gates)
    before = psutil.Process().num_fds()

    for _ in range(5):
        await results(allowed(work_dir), *gates)

    assert psutil.Process().num_fds() == before


# --- commands ------------------------------------------------------------------------------------------


def is_running(pid: int) -> bool:
    """Whether the process has not ended; a zombie has, whichever process reaps it."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pids_in(file: Path) -> list[int]:
    return [int(pid) for pid in file.read_text().split()]


async def all_end(file: Path) -> None:
    """Wait for the end of the processes whose ids are in the file; the kernel ends them a little later."""
    pids = pids_in(file)
    assert pids
    await wait_until(lambda: not any(map(is_running, pids)), PATIENCE_S, f"the end of {pids}")


async def has_begun(file: Path) -> None:
    """Wait until the command has written a line to the file."""
    await wait_until(lambda: file.exists() and file.read_text().endswith("\n"), PATIENCE_S, f"a line in {file}")


GROUPS = {
    "shell": "echo $$ > pids; sleep 600",
    "child": "sleep 600 & echo $$ $! > pids; wait",
    "pipeline": "sleep 600 | (sleep 601 & echo $$ $! > pids; wait)",
    "grandchild-that-holds-the-output": "sh -c 'sh -c \"echo $$ \\$\\$ > pids; sleep 600\"; true'; true",
    "deaf-to-signals": "trap '' TERM INT HUP; sleep 600 & echo $$ $! > pids; while :; do wait; done",
    "output-closed": "exec >&-; echo $$ > pids; sleep 600",
    "session-of-its-own": "setsid sh -c 'echo $$ > pids; sleep 600' & wait",
}


@pytest.mark.parametrize("command", GROUPS.values(), ids=GROUPS)
async def test_timeout_ends_the_whole_group(work_dir: Path, let_pass: Callable[[float], None], command: str) -> None:
    running = asyncio.create_task(run(allowed(work_dir, timeout_s=600), command))
    await has_begun(work_dir / "pids")

    let_pass(600)
    decided = await running

    assert (decided.passed, decided.message) == (False, "the command was stopped after 600 s (gates.timeout_s)")
    await all_end(work_dir / "pids")


@pytest.mark.parametrize("command", [GROUPS["child"], GROUPS["deaf-to-signals"]], ids=["child", "deaf-to-signals"])
async def test_cancel_ends_the_whole_group(work_dir: Path, command: str) -> None:
    running = asyncio.create_task(run(allowed(work_dir), command))
    await has_begun(work_dir / "pids")

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    await all_end(work_dir / "pids")


async def test_process_that_leaves_the_group_ends_with_its_shell(work_dir: Path) -> None:
    """Such a process may keep the output open or fill it, and start others; the gate is decided all the same."""
    flood = "trap '' PIPE TERM; setsid sleep 600 & echo $$ $! > pids; while true; do echo flood; done 2>/dev/null"
    command = f'setsid sh -c "{flood.replace("$", chr(92) + "$")}" & until [ -s pids ]; do sleep 0.01; done; echo ok'

    decided = await run(allowed(work_dir), command)

    assert decided.passed
    await all_end(work_dir / "pids")


async def test_output_beyond_the_limit_is_read_and_dropped(work_dir: Path) -> None:
    command = "yes | head -c 20000000; echo done > finished"

    decided = await result(
        allowed(work_dir, max_output_bytes=1000), "command_output_contains", command=command, substring="n"
    )

    assert "the first 1000 bytes of the output" in decided.message
    assert (work_dir / "finished").exists()


async def test_command_sees_nothing_of_our_environment(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("SCORING_DATABASE_URL", SECRET)
    monkeypatch.setenv("BASH_ENV", "/dev/null")

    await run(allowed(work_dir), "env > seen")

    seen = dict(line.split("=", 1) for line in (work_dir / "seen").read_text().splitlines())
    assert {k: v for k, v in seen.items() if k not in ("PWD", "OLDPWD", "SHLVL", "_")} == {
        "PATH": os.environ["PATH"],
        "HOME": str(work_dir),
        "LANG": "C.UTF-8",
        "SCORING_SESSION_ID": "session-1",
        "TMPDIR": seen["TMPDIR"],
    }
    assert seen.get("PWD", str(work_dir)) == str(work_dir)


async def test_command_has_no_input_and_no_descriptor_of_ours(work_dir: Path) -> None:
    held, ours = os.open(work_dir, os.O_RDONLY), os.dup(0)
    reading, writing = os.pipe()
    os.write(writing, b"not for commands")
    os.close(writing)
    try:
        os.dup2(reading, 0)
        os.set_inheritable(held, True)
        decided = await run(allowed(work_dir), f'test -z "$(cat)" && test ! -e /proc/self/fd/{held}')
    finally:
        os.dup2(ours, 0)
        for descriptor in (held, ours, reading):
            os.close(descriptor)

    assert decided.passed


async def test_message_says_how_a_command_ended(work_dir: Path) -> None:
    for command, says in {"exit 3": "exit status 3", "kill -9 $$": "exit status 137", "cd /": "exit status 0"}.items():
        decided = await run(allowed(work_dir), command)

        assert (decided.message, decided.passed) == (f"the command ended with {says}", says.endswith("status 0"))


async def test_message_ends_with_the_last_lines_of_standard_error(work_dir: Path) -> None:
    """Masked, in one short line, where a command failed; standard error is no output, and blocks nothing."""
    lines = ("-----BEGIN RSA PRIVATE KEY-----", "MIIEowIBAAKCAQEA7bq0", "-----END RSA PRIVATE KEY-----")
    key = "".join(f"echo '{line}' >&2; " for line in lines)
    for command, says in {
        "no-such-program": "no-such-program: not found",
        "yes noise | head -c 3000000 >&2; echo 'a\tb\033[1m' >&2; exit 1": "standard error: noise | noise | a b[1m",
        f"{key}echo password=Tr0ub4dor+3x >&2; exit 1": "password=[REDACTED:password#2]",
        f"echo {'x' * 500} >&2; exit 1": f"standard error: …{'x' * 199}",
    }.items():
        search = {"type": "command_output_contains", "command": command, "substring": "noise"}
        for decided in await results(allowed(work_dir), {"type": "command_succeeds", "command": command}, search):
            assert (decided.passed, says in decided.message) == (False, True), decided.message
            assert "MIIEow" not in decided.message
    assert "error" not in (await run(allowed(work_dir), "echo warning >&2")).message


async def test_all_gates_together_have_a_deadline(work_dir: Path, let_pass: Callable[[float], None]) -> None:
    deciding = asyncio.create_task(
        results(
            allowed(work_dir, timeout_s=600),
            {"type": "command_succeeds", "command": "true"},
            {"type": "command_succeeds", "command": "echo $$ > pids; sleep 600"},
            {"type": "command_succeeds", "command": "touch ran"},
            {"type": "file_exists", "path": "report.md"},
            {"type": "tool_called", "tool": "get_pods"},
            deadline_s=500,
        )
    )
    await has_begun(work_dir / "pids")
    let_pass(500)
    decided = await deciding

    assert [r.passed for r in decided] == [True, False, False, False, True]
    assert "the time for all gates is used up" in decided[1].message
    assert decided[2].message == decided[3].message == "not looked at: the time for all gates is used up"
    assert not (work_dir / "ran").exists()


async def test_a_gate_that_hangs_blocks_no_other_work(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead network share or an expensive path takes no thread of others and does not delay the end."""
    may_end = threading.Event()
    before = set(threading.enumerate())

    def hang(*_: Any) -> Any:
        may_end.wait(PATIENCE_S)

    monkeypatch.setattr("tarsy_scoring.gates.run.evaluate_gate", hang)
    monkeypatch.setattr("tarsy_scoring.gates.run.find_work_dir", hang)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    try:
        decided = await results(
            allowed(work_dir, timeout_s=0.1),
            {"type": "file_exists", "path": "report.md"},
            {"type": "max_tool_calls", "max": 9},
        )
        assert [r.passed for r in decided] == [False, False]
        assert "not decided within 0.1 s" in decided[1].message
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "others go on"), PATIENCE_S / 2) == "others go on"
        mine = [t for t in set(threading.enumerate()) - before if t.name == THREAD_NAME]
        assert len(mine) == 3
        assert all(t.daemon for t in mine)
    finally:
        may_end.set()


def test_commands_run_under_uvloop(work_dir: Path) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        ended = runner.run(
            result(allowed(work_dir), "command_output_contains", command="cat report.md; exit 2", substring="ok")
        )

        async def begun_and_cancelled() -> None:
            running = asyncio.create_task(run(allowed(work_dir), GROUPS["child"]))
            await has_begun(work_dir / "pids")
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await all_end(work_dir / "pids")

        runner.run(begun_and_cancelled())

    assert (ended.passed, "exit status 2" in ended.message) == (True, True)


async def test_links_that_stay_inside_are_followed(work_dir: Path) -> None:
    (work_dir / "link").symlink_to("out/rows.json")
    (work_dir / "absolute").symlink_to(work_dir / "report.md")
    (work_dir / "to-dir").symlink_to("out")
    (work_dir / "out" / "back").symlink_to("../link")

    for path, text in [("link", "rows"), ("absolute", "ok"), ("to-dir/rows.json", "rows"), ("to-dir/back", "rows")]:
        assert (await result(allowed(work_dir), "file_contains", path=path, substring=text)).passed, path

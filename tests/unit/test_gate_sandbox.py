"""The sandbox of gate commands: no secret can be read, nothing else changed, and resources are bounded."""

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infrastructure import wait_until
from tarsy_scoring.commands.worker import worker
from tarsy_scoring.config.chains import GateSettings
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.secret_files import FIELDS, secret_files
from tarsy_scoring.config.settings import SECRETS, variable_of
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.gates import sandbox
from tarsy_scoring.gates.containment import contain_commands
from tarsy_scoring.gates.run import run_command
from unit.test_gating import PATIENCE_S, SECRET, _python_is_readable, allowed, results, run, work_dir

__all__ = ["_python_is_readable", "work_dir"]  # fixtures

NEEDS_LANDLOCK = pytest.mark.skipif(sandbox.landlock_version() < 1, reason="this kernel has no Landlock")
NEEDS_SCOPES = pytest.mark.skipif(sandbox.landlock_version() < 6, reason="Landlock of this kernel has no scopes")
SESSION = (Path(__file__).parents[1] / "small_session.json").read_text("utf-8").replace("{id}", "session-1")


async def output_of(command: str, work_dir: Path, settings: GateSettings) -> str:
    return (await run_command(command, work_dir, "session-1", settings)).data.decode("utf-8", "replace")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment in which every secret that a file can hold is in a file."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "sslkey").write_text(SECRET)
    variables = {variable_of(field) + "_FILE" for field in SECRETS} | {"OPENAI_API_KEY_FILE"}
    variables |= {variable_of(field) for field in (*FIELDS, "kafka_cert_file")}
    for variable in variables:
        url = f"postgresql://u:{SECRET}@db/x?sslkey={secrets}/sslkey"
        (secrets / variable).write_text(url if variable.endswith("_URL_FILE") else SECRET)
    login = {"SCORING_KAFKA_SECURITY_PROTOCOL": "SASL_SSL", "SCORING_KAFKA_SASL_MECHANISM": "OAUTHBEARER"}
    return {v: str(secrets / v) for v in variables} | login


def configure(tmp_path: Path, environ: dict[str, str], commands: Sequence[str] = (), **gates: Any) -> None:
    """Write a configuration with a gate for each command, which passes if the command prints the secret."""
    wanted = [{"type": "command_output_contains", "command": c, "substring": SECRET, "name": c[-80:]} for c in commands]
    key = tmp_path / "secrets" / "of-provider"
    key.write_text(SECRET)
    written = {
        "providers": {"default": {"model": "m"}, "other": {"model": "m", "api_key_file": str(key)}},
        "defaults": {"gates": [{"type": "command_succeeds", "command": "test -f report.md"}, *wanted]},
        "gates": {"allow_commands": True, "work_dir": str(tmp_path / "sessions" / "{session_id}")} | gates,
    }
    (tmp_path / "scoring.yaml").write_text(json.dumps(written))
    environ["SCORING_CONFIG"] = str(tmp_path / "scoring.yaml")


def score(tmp_path: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    (tmp_path / "session.json").write_text(SESSION)
    return subprocess.run(
        [sys.executable, "-m", "tarsy_scoring", "score", str(tmp_path / "session.json"), "--no-judge", "--json"],
        env={**os.environ, **environ, "OTHER_API_KEY": SECRET},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


WAYS_TO_PROCESSES = (
    "cat /proc/$PPID/environ /proc/1/environ",
    "for process in /proc/[0-9]*; do cat $process/environ; done",
    "for process in /proc/[0-9]*; do cat $process/fd/*; done",
    "for process in /proc/[0-9]*; do grep -a -o -m 1 OTHER_API_KEY=.* $process/mem; done",
    "for n in 3 4 5 6 7 8 9; do eval cat '<&'$n; done",
)


@NEEDS_LANDLOCK
def test_command_reads_no_secret(tmp_path: Path, work_dir: Path, environ: dict[str, str]) -> None:
    """Of every configured file, and of environment, memory and descriptors of the processes above it."""
    configure(tmp_path, environ)
    paths = [str(path) for _, path in secret_files(load_settings(environ), environ)]
    assert {Path(p).name for p in paths} >= {v + "_FILE" for v in map(variable_of, SECRETS)} | {
        "sslkey",
        "of-provider",
        "OPENAI_API_KEY_FILE",
        "SCORING_API_TOKENS_FILE",
        "SCORING_KAFKA_KEY_FILE",
        "SCORING_KAFKA_OAUTH_TOKEN_FILE",
    }
    ways = [
        way for path in paths for way in (f"cat {path}", f"ln -s {path} link; cat link", f"ln {path} mine; cat mine")
    ]
    configure(tmp_path, environ, [*ways, *WAYS_TO_PROCESSES, "cat ../session-2/secret"])

    ended = score(tmp_path, environ)

    decided = json.loads(ended.stdout)["gates"]
    assert len(decided) == len(ways) + 7
    assert [gate["name"] for gate in decided if gate["passed"]] == ["command_succeeds test"]
    assert not any("started" in gate["message"] for gate in decided)


def test_kernel_without_landlock_refuses_commands(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the operator does not state that their container holds no secret in a file."""
    monkeypatch.setattr(sandbox, "landlock_version", lambda: 0)
    monkeypatch.setattr(sandbox, "hide_process", lambda: None)
    configure(tmp_path, environ)
    with pytest.raises(ConfigurationError, match="no Landlock"):
        contain_commands(load_settings(environ), environ)
    configure(tmp_path, environ, allow_commands=False)
    contain_commands(load_settings(environ), environ)
    configure(tmp_path, environ, sandbox="container")
    with pytest.raises(ConfigurationError, match=r"gates\.sandbox is `container`"):
        contain_commands(load_settings(environ), environ)

    config = json.loads((tmp_path / "scoring.yaml").read_text())
    del config["providers"]["other"]
    (tmp_path / "scoring.yaml").write_text(json.dumps(config))
    plain = {"SCORING_CONFIG": environ["SCORING_CONFIG"], "SCORING_DATABASE_URL": f"postgresql://u:{SECRET}@db/x"}
    contain_commands(load_settings(plain), plain)
    monkeypatch.setattr(sandbox, "CALLS", {"aarch64": ()})
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="riscv64"))
    with pytest.raises(ConfigurationError, match="commands run on aarch64 only"):
        contain_commands(load_settings(plain), plain)


def test_worker_without_landlock_does_not_start(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With commands allowed. A worker that does not judge runs none, and goes on to its work."""
    configure(tmp_path, environ)
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(sandbox, "landlock_version", lambda: 0)
    monkeypatch.setattr("tarsy_scoring.commands.worker.check_settings", lambda *_: None)
    monkeypatch.setattr("tarsy_scoring.commands.worker.run_until_signalled", lambda *_: None)
    monkeypatch.setattr("tarsy_scoring.commands.worker.run", lambda _: None)
    with pytest.raises(ConfigurationError, match="no Landlock"):
        worker.main([], standalone_mode=False)
    worker.main(["--only", "intake,relay"], standalone_mode=False)


@pytest.mark.parametrize("where", ["link", "work-dir", "above-work-dirs"])
def test_secret_among_readable_files_refuses_the_start(tmp_path: Path, environ: dict[str, str], where: str) -> None:
    (tmp_path / "link").symlink_to("secrets")
    changes = {
        "link": {"work_dir": str(tmp_path / "link")},
        "work-dir": {"work_dir": str(tmp_path / "secrets")},
        "above-work-dirs": {"work_dir": str(tmp_path / "{session_id}")},
    }[where]
    configure(tmp_path, environ, **changes)

    with pytest.raises(ConfigurationError, match="commands of gates may read"):
        contain_commands(load_settings(environ), environ)


AS_OTHER_USER = """
import os, subprocess, sys
sys.path[:0] = sys.argv[1:]
from tarsy_scoring.gates.sandbox import hide_process
read = ["/bin/cat", f"/proc/{os.getpid()}/environ", f"/proc/{os.getpid()}/maps"]
before = subprocess.run(read, capture_output=True).stdout
hide_process()
after = subprocess.run(read, capture_output=True).stdout
print(len(before) > 0, len(after))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_hidden_process_shows_its_user_nothing(tmp_path: Path) -> None:
    """Also where commands run without Landlock."""
    service = str(Path(sandbox.__file__).parents[2])
    ended = subprocess.run(
        ["/usr/bin/env", "python3", "-c", AS_OTHER_USER, service, *sys.path],
        user=65534,
        group=65534,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.stdout.split() == ["True", "0"], ended.stderr


@NEEDS_LANDLOCK
async def test_command_reaches_only_its_folders(work_dir: Path, tmp_path: Path) -> None:
    """Other sessions' files are neither read nor changed; the temporary folder is its own, and is removed."""
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra" / "list").write_text("extra")
    own = await output_of('echo mine > $TMPDIR/x && mkdir $TMPDIR/y && echo -n "$TMPDIR"', work_dir, allowed(work_dir))

    for command in (
        "echo x > ../session-2/new",
        "echo x > ../session-2/secret",
        "rm ../session-2/secret",
        "mv ../session-2/secret .",
        f"touch {tmp_path}/new",
        f"cat {tmp_path}/extra/list",
        "ls /",
        "echo x > /dev/shm/x",
        "mknod null c 1 3",
    ):
        assert not (await run(allowed(work_dir), command)).passed, command
    assert (await run(allowed(work_dir), "mkdir new && mv report.md new/ && ls /usr/bin > list 2> /dev/null")).passed
    await wait_until(lambda: not os.path.exists(own), PATIENCE_S, "the end of the temporary folder")
    assert (work_dir.parent / "session-2" / "secret").read_text() == SECRET


@NEEDS_SCOPES
async def test_command_signals_no_other_process(work_dir: Path) -> None:
    assert not (await run(allowed(work_dir), f"kill -0 $PPID || kill -0 {os.getpid()}")).passed
    assert (await run(allowed(work_dir), "sleep 60 & kill -9 $!")).passed


async def test_command_gains_no_privileges(work_dir: Path) -> None:
    asks = "import ctypes; c = ctypes.CDLL(None); print(c.prctl(39, 0, 0, 0, 0), [c.prctl(23, n) for n in range(38)])"
    assert await output_of(f'{sys.executable} -c "{asks}"', work_dir, allowed(work_dir)) == f"1 {[0] * 38}\n"


async def test_command_is_bounded(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.setattr("tarsy_scoring.gates.run.MAX_MEMORY_BYTES", 400_000_000)
    monkeypatch.setattr("tarsy_scoring.gates.run.MAX_PROCESSES", 500)
    settings = allowed(work_dir, timeout_s=60)
    python = f"{sys.executable} -c"
    limits = "import resource as r; print([r.getrlimit(n)[0] for n in (r.RLIMIT_NPROC, r.RLIMIT_CPU, r.RLIMIT_CORE)])"

    assert await output_of(f'{python} "{limits}"', work_dir, settings) == "[500, 181, 0]\n"
    assert (await run(settings, f'{python} "bytearray(1000)"')).passed
    assert not (await run(settings, f'{python} "bytearray(10**9)"')).passed
    monkeypatch.setattr("tarsy_scoring.gates.run._MAX_FILE_BYTES", 1000)
    assert "exit status 153" in (await run(settings, "exec head -c 5000 /dev/zero > file")).message
    assert (await run(settings, "test $(wc -c < file) = 1000")).passed


async def test_work_directory_swapped_for_a_link_is_not_entered(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_path = os.path.realpath

    def realpath_then_swap(asked: Any, *, strict: bool = False) -> Any:
        checked = real_path(asked, strict=strict)
        if str(asked) == str(work_dir):
            work_dir.rename(work_dir.parent / "moved")
            work_dir.symlink_to("session-2")
        return checked

    monkeypatch.setattr(os.path, "realpath", realpath_then_swap)
    [decided] = await results(allowed(work_dir), {"type": "command_succeeds", "command": "cat secret"})

    assert "could not be started" in decided.message
    assert not decided.passed


# Each is Python code with `libc` and the path of a bound UNIX socket, and raises `OSError` where it is refused.
WAYS_OUT = {
    "unix-socket": "socket.socket(socket.AF_UNIX).connect(path + '/stream')",
    "unix-datagrams": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', path + '/datagram')",
    "vm-socket": "socket.socket(socket.AF_VSOCK)",
    "shared-memory": "call(libc.shmget, 0, 4096, 0o600)",
    "semaphores": "call(libc.semget, 0, 1, 0o600)",
    "messages": "call(libc.msgget, 0, 0o600)",
    "message-queue": "call(libc.mq_open, b'/gate', os.O_CREAT | os.O_RDWR, 0o600, None)",
    "io-uring": "call(libc.syscall, 425, 1, ctypes.create_string_buffer(200))",
    "trace": "call(libc.ptrace, 0, 0, 0, 0)",
}
WAY_OUT = """
import ctypes, os, socket, sys
path = sys.argv[1]
libc = ctypes.CDLL("librt.so.1", use_errno=True)
def call(function, *arguments):
    if function(*arguments) == -1:
        raise OSError(ctypes.get_errno(), "refused")
"""


@pytest.mark.parametrize("mode", [pytest.param("landlock", marks=NEEDS_LANDLOCK), "container"])
async def test_command_neither_leaves_the_sandbox_nor_anything_in_the_kernel(
    work_dir: Path, tmp_path: Path, mode: str
) -> None:
    """
    Other programs listen on UNIX sockets, and the kernel keeps IPC objects when the processes are gone.
    """
    stream, datagrams = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with stream, datagrams:
        stream.bind(f"{tmp_path}/stream")
        stream.listen()
        datagrams.bind(f"{tmp_path}/datagram")
        for name, way in WAYS_OUT.items():
            (work_dir / name).write_text(f"{WAY_OUT}\ntry: {way}\nexcept PermissionError: print('refused')")
            said = await output_of(f"{sys.executable} {name} {tmp_path}", work_dir, allowed(work_dir, sandbox=mode))
            assert said == "refused\n", name


ORDINARY = {
    "sort": "printf 'b\\na\\n' | sort | head -n 1 | grep -qx a",
    "git": "export GIT_CONFIG_NOSYSTEM=1; git init -q . && git -c user.name=n -c user.email=e commit -q --allow-empty -m m",
    "getent": "id && ls -l report.md && getent hosts localhost",
    "curl": "curl -s --noproxy localhost http://localhost:$PORT | grep -q ok",
    "kubectl": "kubectl version --client",
    "asyncio": "python -c 'import asyncio; asyncio.run(asyncio.create_subprocess_exec(\"true\"))'",
    "threads": "python -c 'from concurrent.futures import *; ThreadPoolExecutor(2).submit(print).result()'",
    "tcp": "python -c 'import socket; socket.create_connection((\"localhost\", $PORT))'",
}


@pytest.mark.parametrize("program", ORDINARY)
async def test_ordinary_programs_work(work_dir: Path, program: str) -> None:
    """Pipes, names of users and hosts, threads, children beside pairs of sockets, TCP."""
    if program in ("git", "curl", "kubectl") and shutil.which(program) is None:
        pytest.skip(f"needs {program}")

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nok")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1")
    async with server:
        port = server.sockets[0].getsockname()[1]
        command = ORDINARY[program].replace("python", sys.executable).replace("$PORT", str(port))
        decided = await run(allowed(work_dir), command)
    assert decided.passed, decided.message


HEADERS = {"x86_64": "x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "asm-generic/unistd.h"}


@pytest.mark.parametrize("machine", HEADERS)
def test_numbers_of_calls_are_those_of_the_kernel(machine: str) -> None:
    header = Path("/usr/include", HEADERS[machine])
    if not header.exists():
        pytest.skip("needs the headers of the kernel")
    numbers = dict(re.findall(r"#define __NR_(\w+)\s+(\d+)", header.read_text()))
    _, family, pair, refused = sandbox.CALLS[machine]
    names = "shmget semget msgget mq_open ptrace add_key request_key keyctl perf_event_open bpf"
    assert (family, pair, *refused) == tuple(int(numbers[n]) for n in f"socket socketpair {names}".split())

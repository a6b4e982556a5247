"""
Runs one command where it can read no secret: a program, `python -I -S sandbox.py POLICY ARGUMENT...`.

`gates/run.py` starts it for each command, in the work directory. It stays the command's parent, ends every
process that the command leaves behind, and then ends as the command did, or with `NOT_BEGUN`. Landlock restricts
files. A filter of seccomp refuses the calls by which a command would reach other programs, or leave something in
the kernel. The program needs only the standard library. A `preexec_fn` was considered and rejected: in a process
with threads it may deadlock, and a worker cannot tell whose the orphaned processes are.

The policy is one JSON object:

    landlock    whether Landlock must restrict files
    readable    paths to read and execute, beside the work directory
    limits      [name of a resource, number] for `setrlimit`
"""

import contextlib
import ctypes
import errno
import json
import os
import resource
import signal
import struct
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, NoReturn

NOT_BEGUN = 125  # exit status, as of `docker run`

# What programs need of a system, without folders that are known to hold keys: no /root, /home, /run, /var and
# /proc, and of /etc only these.
SYSTEM = tuple(
    """
    /usr /bin /sbin /lib /lib32 /lib64 /opt /sys/devices/system /sys/fs/cgroup /proc/cpuinfo /proc/meminfo
    /proc/sys/kernel /dev/random /dev/urandom /etc/alternatives /etc/ca-certificates /etc/ld.so.cache
    /etc/ssl/certs /etc/ssl/openssl.cnf /etc/pki/ca-trust /etc/pki/tls/certs /etc/pki/tls/openssl.cnf
    /etc/hosts /etc/host.conf /etc/resolv.conf /etc/nsswitch.conf /etc/gai.conf /etc/services /etc/protocols
    /etc/passwd /etc/group /etc/localtime /etc/timezone /etc/os-release
    """.split()  # noqa: SIM905
)
DEVICES = ("/dev/null", "/dev/zero", "/dev/full")

_LIBC = ctypes.CDLL(None, use_errno=True)
# Numbers from <linux/prctl.h> and <linux/landlock.h>; those for calls are the same on every architecture.
_PDEATHSIG, _DUMPABLE, _SECCOMP, _CAPBSET_DROP, _SUBREAPER, _NO_NEW_PRIVS = 1, 4, 22, 24, 36, 38
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ = 1 << 0 | 1 << 2 | 1 << 3  # execute files, read files, read directories
_OF_A_FILE = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14  # execute, write, read, truncate
_ALL_BUT_DEVICES = 0x7FFF & ~(1 << 6 | 1 << 11)
# For each architecture: the number in <linux/audit.h>, and from <asm/unistd.h> `socket`, `socketpair` and the
# refused calls `shmget`, `semget`, `msgget`, `mq_open`, `ptrace`, `add_key`, `request_key`, `keyctl`,
# `perf_event_open`, `bpf`.
CALLS = {
    "x86_64": (0xC000003E, 41, 53, (29, 64, 68, 240, 101, 248, 249, 250, 298, 321)),
    "aarch64": (0xC00000B7, 198, 199, (194, 190, 186, 180, 117, 217, 218, 219, 241, 280)),
}
# Instructions of <linux/bpf_common.h>: code, how many to skip if true and if false, and a value.
_LOAD, _EQUAL, _AT_LEAST, _HAS_BIT = 0x20, 0x15, 0x35, 0x45
_ALLOW, _REFUSE = (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x50000 | errno.EPERM)


def landlock_version() -> int:
    """The version of Landlock that the kernel offers to this process; 0: none."""
    if sys.platform != "linux":
        return 0
    return max(0, int(_LIBC.syscall(ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), 1)))


def hide_process() -> None:
    """
    Hide environment and memory from other processes by the same user; also turns core dumps off.

    Raises:
        OSError: The kernel refuses it.
    """
    _prctl(_DUMPABLE, 0)


def main() -> None:
    """Run the command, end every process that it left, and end as it did."""
    hide_process()
    _prctl(_SUBREAPER, 1)
    # SIGTERM asks for the end of the command, SIGCHLD tells of one. They stay blocked and are waited for.
    awaited = {signal.SIGTERM, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    with tempfile.TemporaryDirectory(prefix="gate-", ignore_cleanup_errors=True) as own:
        os.environ["TMPDIR"] = own
        child = os.fork()
        if child == 0:
            _begin(json.loads(sys.argv[1]), sys.argv[2:])
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the output ends with the processes of the command
        ended = None
        while ended is None and signal.sigwait(awaited) == signal.SIGCHLD:
            ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        _end_all(child)
    # As a shell tells of a signal.
    sys.exit(ended.si_status + (0 if ended.si_code == os.CLD_EXITED else 128) if ended else NOT_BEGUN)


def _end_all(child: int) -> None:
    """
    Kill the child's group, and then every process that left the group, as the orphans become our children.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                # Some kernels lack `/proc/PID/task/TID/children`.
                for name in filter(str.isdecimal, os.listdir("/proc")):
                    with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                        # The name of the program, in parentheses, may hold anything.
                        if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                            os.kill(int(name), signal.SIGKILL)
                os.waitpid(-1, 0)


def _begin(policy: dict[str, Any], command: list[str]) -> NoReturn:
    """Become the command, or end with `NOT_BEGUN` if a restriction cannot be had."""
    with contextlib.suppress(BaseException):  # nothing of this copy of the parent may go on
        os.setsid()
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by Python, and inherited by the command
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _prctl(_PDEATHSIG, signal.SIGKILL)
        for name, limit in policy["limits"]:
            which = getattr(resource, name)
            most = min(limit, resource.getrlimit(which)[1] % 2**64)  # without a limit: -1
            resource.setrlimit(which, (most, most))
        for capability in range(64):
            with contextlib.suppress(OSError):  # most processes have none to drop
                _prctl(_CAPBSET_DROP, capability)
        _prctl(_NO_NEW_PRIVS, 1)
        _refuse_calls()
        if policy["landlock"]:
            _restrict_files(policy["readable"], (*DEVICES, os.environ["TMPDIR"], "."))
        os.execv(command[0], command)  # noqa: S606 - the operator's command
    os._exit(NOT_BEGUN)


def _restrict_files(readable: Sequence[str], writable: Sequence[str]) -> None:
    """
    Deny all files but these to this process and all descendants, for good; and signals to other processes.
    """
    version = landlock_version()
    # Version 1 knows 13 rights, 2 knows 14, 3 knows 15. The 16th concerns devices, of which a command has none.
    known = (1 << min(12 + version, 15)) - 1
    # Handled rights of files and of the network, and scopes: since version 6, 2 for signals. Older versions
    # take zeros for what they do not know.
    attributes = struct.pack("=QQQ", known, 0, 2 if version >= 6 else 0)
    rules = _call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    for path in (*readable, *writable):
        with contextlib.suppress(FileNotFoundError):  # then there is nothing to allow
            rights = known & (_READ if path in readable else _ALL_BUT_DEVICES)
            usable = rights if os.path.isdir(path) else rights & _OF_A_FILE
            # 1: a rule for files beneath a path. `execv` closes the path, and the rules.
            _call(_ADD_RULE, rules, 1, struct.pack("=Qi", usable, os.open(path, os.O_PATH)), 0)
    _call(_RESTRICT_SELF, rules, 0)


def _refuse_calls() -> None:
    """
    Refuse what `CALLS` names, `io_uring`, and sockets of other families than IP and netlink.

    The kernel would make the calls that `io_uring` asks for without this filter. Pairs of sockets stay, except
    those of datagrams, which can send to every other socket.
    """
    architecture, socket, pair, refused = CALLS[os.uname().machine]
    program = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), _REFUSE, (_LOAD, 0, 0, 0)]
    program += [(_AT_LEAST, 0, 1, 1 << 30), _REFUSE]  # the same calls by other numbers: x32, on x86_64
    for call in (*refused, *range(425, 428)):
        program += [(_EQUAL, 0, 1, call), _REFUSE]
    program += [(_EQUAL, 0, 4, pair), (_LOAD, 0, 0, 24), (_HAS_BIT, 0, 1, 2), _REFUSE, _ALLOW]
    program += [(_EQUAL, 0, 5, socket), (_LOAD, 0, 0, 16)]
    program += [(_EQUAL, 3, 0, 2), (_EQUAL, 2, 0, 10), (_EQUAL, 1, 0, 16), _REFUSE, _ALLOW]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
    _prctl(_SECCOMP, 2, struct.pack("HP", len(program), ctypes.addressof(code)))


def _prctl(option: int, value: int, filter_: bytes | None = None) -> None:
    if _LIBC.prctl(option, ctypes.c_ulong(value), filter_, None, None) != 0:  # `None` is a zero of 64 bits
        raise OSError(ctypes.get_errno(), "prctl")


def _call(number: int, *arguments: Any) -> int:
    result: int = _LIBC.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "Landlock")
    return result


if __name__ == "__main__":
    main()

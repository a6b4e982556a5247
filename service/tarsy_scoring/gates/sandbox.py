"""
Runs one command where it can read no secret: a program, `python -I -S sandbox.py POLICY ARGUMENT...`.

`gates/run.py` starts it for each command. It stays the command's parent, ends every process that the command
leaves behind, and then ends as the command did, or with `NOT_BEGUN`. It needs only the standard library. A
`preexec_fn` was considered and rejected: in a process with threads it may deadlock, and a worker cannot tell
whose the orphaned processes are.

The policy is one JSON object:

    directory   descriptor of the work directory
    landlock    whether Landlock must restrict files
    readable    paths to read and execute, beside the work directory
    limits      [name of a resource, number] for `setrlimit`
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import struct
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, NoReturn

NOT_BEGUN = 125  # exit status, as of `docker run`

# What programs need of a system, without folders that are known to hold keys: no /root, /home, /run, /var and
# /proc, and of /etc only these.
SYSTEM = tuple(
    """
    /usr /bin /sbin /lib /lib32 /lib64 /opt /sys/devices/system /sys/fs/cgroup
    /proc/cpuinfo /proc/meminfo /proc/sys/kernel /dev/random /dev/urandom
    /etc/alternatives /etc/ca-certificates /etc/ld.so.cache /etc/ld.so.conf /etc/ld.so.conf.d
    /etc/ssl/certs /etc/ssl/openssl.cnf /etc/pki/ca-trust /etc/pki/tls/certs /etc/pki/tls/openssl.cnf
    /etc/hosts /etc/host.conf /etc/resolv.conf /etc/nsswitch.conf /etc/gai.conf /etc/services
    /etc/protocols /etc/passwd /etc/group /etc/localtime /etc/timezone /etc/os-release
    """.split()  # noqa: SIM905
)
DEVICES = ("/dev/null", "/dev/zero", "/dev/full")

_LIBC = ctypes.CDLL(None, use_errno=True)
# Numbers from <linux/prctl.h> and <linux/landlock.h>; those for calls are the same on every architecture.
_PDEATHSIG, _DUMPABLE, _CAPBSET_DROP, _SUBREAPER, _NO_NEW_PRIVS = 1, 4, 24, 36, 38
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _MAKE_CHAR, _MAKE_BLOCK, _TRUNCATE, _IOCTL_DEV = (
    1 << n for n in (0, 1, 2, 3, 6, 11, 14, 15)
)
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_USE_A_DEVICE = _READ_FILE | _WRITE_FILE | _TRUNCATE
_OF_A_FILE = _EXECUTE | _USE_A_DEVICE | _IOCTL_DEV
_ALL_BUT_DEVICES = 0xFFFF & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV)
# How many access rights each Landlock version knows; versions from the fifth on know 16.
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
# Since version 6: no signals to other processes, and no abstract sockets.
_SCOPES, _SCOPES_SINCE = 3, 6
_LAST_CAPABILITY = 63


def landlock_version() -> int:
    """The version of Landlock that the kernel offers to this process; 0: none."""
    if sys.platform != "linux":
        return 0
    version: int = _LIBC.syscall(ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), _VERSION)
    return max(0, version)


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
    # SIGTERM asks for the end of the command. Blocked until there is a handler, which must know the child.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    with tempfile.TemporaryDirectory(prefix="gate-", ignore_cleanup_errors=True) as own:
        os.environ["TMPDIR"] = own
        child = os.fork()
        if child == 0:
            _begin(json.loads(sys.argv[1]), sys.argv[2:])
        signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the output ends with the processes of the command
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        # Below, the number of the child may come to name another process.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end_all(child)
    assert ended is not None
    if ended.si_code == os.CLD_EXITED:
        sys.exit(ended.si_status)
    if ended.si_status != signal.SIGKILL:
        signal.signal(ended.si_status, signal.SIG_DFL)
    os.kill(os.getpid(), ended.si_status)


def _end_all(child: int) -> None:
    """
    Kill the child's group, and then every process that left the group, as the orphans become our children.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                for pid in _children():
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(-1, 0)


def _children() -> Iterator[int]:
    """Ids of our children, from /proc; `/proc/PID/task/TID/children` is missing from some kernels."""
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            # The name of the program, in parentheses, may hold anything.
            if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                yield int(name)


def _begin(policy: dict[str, Any], command: list[str]) -> NoReturn:
    """Become the command, or end with `NOT_BEGUN` if a restriction cannot be had."""
    with contextlib.suppress(BaseException):  # nothing of this copy of the parent may go on
        os.setsid()
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by Python, and inherited by the command
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _prctl(_PDEATHSIG, signal.SIGKILL)
        os.fchdir(policy["directory"])
        for name, limit in policy["limits"]:
            which = getattr(resource, name)
            hard = resource.getrlimit(which)[1]
            most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(which, (most, most))
        for capability in range(_LAST_CAPABILITY + 1):
            with contextlib.suppress(OSError):  # most processes have none to drop
                _prctl(_CAPBSET_DROP, capability)
        _prctl(_NO_NEW_PRIVS, 1)
        if policy["landlock"]:
            _restrict_files(policy["directory"], policy["readable"], os.environ["TMPDIR"])
        os.close(policy["directory"])
        os.execv(command[0], command)  # noqa: S606 - the operator's command
    os._exit(NOT_BEGUN)


def _restrict_files(directory: int, readable: list[str], own: str) -> None:
    """
    Deny all files but these to this process and all descendants, for good; and signals to other processes.
    """
    version = landlock_version()
    known = (1 << _RIGHTS.get(version, 16)) - 1
    # Handled rights of files and of the network, and scopes. Older versions take zeros for what they do not
    # know.
    attributes = struct.pack("=QQQ", known, 0, _SCOPES if version >= _SCOPES_SINCE else 0)
    rules = _call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    allowed = [*((path, _READ) for path in readable), *((path, _USE_A_DEVICE) for path in DEVICES)]
    for path, rights in [*allowed, (own, _ALL_BUT_DEVICES), (f"/proc/self/fd/{directory}", _ALL_BUT_DEVICES)]:
        with contextlib.suppress(FileNotFoundError):  # then there is nothing to allow
            opened = os.open(path, os.O_PATH)
            usable = rights & known if os.path.isdir(path) else rights & known & _OF_A_FILE
            _call(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", usable, opened), 0)
            os.close(opened)
    _call(_RESTRICT_SELF, rules, 0)
    os.close(rules)


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    if _LIBC.prctl(option, ctypes.c_ulong(value), zero, zero, zero) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _call(number: int, *arguments: Any) -> int:
    result: int = _LIBC.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "Landlock")
    return result


if __name__ == "__main__":
    main()

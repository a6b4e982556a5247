"""
Runs one command where it can read no secret: a separate program, `python -I -S sandbox.py POLICY
ARGUMENT...`.

`gates/run.py` starts it for each command. It stays the command's parent and ends every process that the
command leaves
behind. It needs only the standard library. A `preexec_fn` was considered and rejected: in a process with
threads it may
deadlock, and a worker cannot tell whose the orphaned processes are.

The policy is one JSON object:

    status      descriptor that gets the exit status as a number, or a line `! reason` if the command did not
    begin directory   real path of the work directory
    landlock    whether Landlock must restrict files
    readable    paths to read and execute, beside the work directory
    writable    paths to read and write, beside the work directory
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
from collections.abc import Iterator
from typing import Any, NoReturn

# What programs need of a system, without folders that are known to hold keys: no /root, /home, /run, /var and
# /proc, and of /etc only these.
SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/sys/devices/system", "/sys/fs/cgroup"),
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/sys/kernel", "/dev/random", "/dev/urandom"),
    *(
        "/etc/alternatives",
        "/etc/ca-certificates",
        "/etc/ld.so.cache",
        "/etc/ld.so.conf",
        "/etc/ld.so.conf.d",
    ),
    *(
        "/etc/ssl/certs",
        "/etc/ssl/openssl.cnf",
        "/etc/pki/ca-trust",
        "/etc/pki/tls/certs",
        "/etc/pki/tls/openssl.cnf",
    ),
    *(
        "/etc/hosts",
        "/etc/host.conf",
        "/etc/resolv.conf",
        "/etc/nsswitch.conf",
        "/etc/gai.conf",
        "/etc/services",
    ),
    *("/etc/protocols", "/etc/passwd", "/etc/group", "/etc/localtime", "/etc/timezone", "/etc/os-release"),
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
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_OF_DEVICES = _MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV
_NO_SIGNALS, _NO_ABSTRACT_SOCKETS = 2, 1
# How many access rights each Landlock version knows; versions from the fifth on know 16.
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
_SCOPES_SINCE = 6
_LAST_CAPABILITY = 63


def landlock_version() -> int:
    """The version of Landlock that the kernel offers to this process; 0: none."""
    if sys.platform != "linux":
        return 0
    version: int = _LIBC.syscall(
        ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint(_VERSION)
    )
    return max(0, version)


def hide_process() -> None:
    """
    Hide environment and memory from other processes by the same user; also turns core dumps off.

    Raises:
        OSError: The kernel refuses it.
    """
    _prctl(_DUMPABLE, 0)


def main() -> NoReturn:
    """Run the command, report how it ended, and end every process that it left."""
    policy, command = json.loads(sys.argv[1]), sys.argv[2:]
    status: int = policy["status"]
    os.set_inheritable(status, False)
    # Where memory is short the kernel ends the command and not the worker. The command inherits this.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    hide_process()  # the descriptors lead to `status`
    _prctl(_SUBREAPER, 1)
    # SIGTERM asks for the end of the command. Blocked until there is a handler, which must know the child.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    parent, child = os.getpid(), os.fork()
    if child == 0:
        _begin(policy, command, parent)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the output ends when the processes of the command end
    ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    exit_status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # below, the number of the child may come to name another process
    _end_all(child)
    os.write(status, f"{exit_status}\n".encode())
    os._exit(0)


def _end_all(child: int) -> None:
    """
    Kill the child's group, and then every process that left the group, as the orphans become our children.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                for pid in _children():
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> Iterator[int]:
    """Ids of our children, from /proc; `/proc/PID/task/TID/children` is missing from some kernels."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file,
            ):
                # The name of the program, in parentheses, may hold anything.
                if int(file.read().rpartition(")")[2].split()[1]) == os.getpid():
                    yield int(name)


def _begin(policy: dict[str, Any], command: list[str], parent: int) -> NoReturn:
    """Become the command. Reports the reason and ends if a restriction cannot be had."""
    try:
        os.setsid()
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by Python, and inherited by the command
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _prctl(_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        directory = _open_directory(policy["directory"])
        os.fchdir(directory)
        for name, limit in policy["limits"]:
            _limit(getattr(resource, name), limit)
        for capability in range(_LAST_CAPABILITY + 1):
            with contextlib.suppress(OSError):  # most processes have none to drop
                _prctl(_CAPBSET_DROP, capability)
        _prctl(_NO_NEW_PRIVS, 1)
        if policy["landlock"]:
            _restrict_files(directory, policy["readable"], policy["writable"])
        os.close(directory)
        os.execv(command[0], command)  # noqa: S606 - the operator's command
    except BaseException as error:  # noqa: BLE001 - nothing of this copy of the parent may go on
        reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
        os.write(policy["status"], f"! {reason}\n".encode())
    os._exit(127)


def _open_directory(path: str) -> int:
    """Open a real path part by part, without following a link that was swapped in meanwhile."""
    directory = os.open("/", os.O_PATH | os.O_DIRECTORY)
    for part in filter(None, path.split("/")):
        inner = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
        os.close(directory)
        directory = inner
    return directory


def _limit(which: int, limit: int) -> None:
    hard = resource.getrlimit(which)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(which, (limit, limit))


def _restrict_files(directory: int, readable: list[str], writable: list[str]) -> None:
    """
    Deny all files but these to this process and all descendants, for good; and signals to other processes.
    """
    version = landlock_version()
    if version < 1:
        raise OSError(0, "this kernel has no Landlock: see gates.sandbox")
    known = (1 << _RIGHTS.get(version, 16)) - 1
    scopes = _NO_SIGNALS | _NO_ABSTRACT_SOCKETS if version >= _SCOPES_SINCE else 0
    # Handled rights of files and of the network, and scopes. Older versions take zeros for what they do not
    # know.
    attributes = struct.pack("=QQQ", known, 0, scopes)
    rules = _call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0))

    def allow(target: int | str, rights: int) -> None:
        try:
            opened = target if isinstance(target, int) else os.open(target, os.O_PATH)
        except OSError:
            return  # it does not exist, so there is nothing to allow
        if not os.path.isdir(opened):
            rights &= _OF_A_FILE
        beneath = struct.pack("=Qi", rights & known, opened)
        _call(_ADD_RULE, ctypes.c_int(rules), ctypes.c_int(_PATH_BENEATH), beneath, ctypes.c_uint(0))
        if opened is not target:
            os.close(opened)

    for path in readable:
        allow(path, _READ)
    for path in DEVICES:
        allow(path, _READ_FILE | _WRITE_FILE | _TRUNCATE)
    allow(directory, known & ~_OF_DEVICES)
    for path in writable:
        allow(path, known & ~_OF_DEVICES)
    _call(_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint(0))
    os.close(rules)


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    if _LIBC.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _call(number: int, *arguments: Any) -> int:
    result: int = _LIBC.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"Landlock: {os.strerror(error)}")
    return result


if __name__ == "__main__":
    main()

"""The programs of the image start under any user id, as OpenShift assigns them: without a name, in group 0."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from processes import Process, Service, service

__all__ = ["service"]

UID = 1_000_710_000
DOCKERFILE = Path(__file__).parents[2] / "Dockerfile"
# The user may read all files, as those of the image can be read by all, and has no other right of root: the
# interpreter of the tests may be installed in a folder of root.
CAPABILITIES = "-all,+dac_read_search"
AS_ANY_USER = (
    *(shutil.which("setpriv") or "setpriv", f"--reuid={UID}", "--regid=0", "--clear-groups", "--no-new-privs"),
    *(f"--inh-caps={CAPABILITIES}", f"--ambient-caps={CAPABILITIES}", f"--bounding-set={CAPABILITIES}"),
)
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can take another user id, with setpriv"
)


def start(service: Service, *command: str, **env: str) -> Process:
    """Start a command under the user id, with the variables of the image and those of the installation alone."""
    variables = DOCKERFILE.read_text("utf-8").rpartition("\nENV ")[2].partition("\nUSER")[0]
    image = dict(re.findall(r"(\w+)=(\S+)", variables)) | {"PATH": os.defpath}
    here = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = Process(
        [*AS_ANY_USER, sys.executable, "-m", "tarsy_scoring", *command],
        image | here | service.env | env,
        service.folder,
        command[0],
    )
    service.processes.append(process)
    return process


async def test_the_user_has_no_name_and_cannot_write(service: Service) -> None:
    """The other tests of this file would prove nothing under a user who has a name or the rights of root."""
    program = "import os, pwd; open('/written', 'w')"
    process = Process([*AS_ANY_USER, sys.executable, "-c", program], {}, service.folder, "write")
    assert await process.ended() == 1
    assert "PermissionError" in process.log
    program = "import os, pwd; pwd.getpwuid(os.getuid())"
    process = Process([*AS_ANY_USER, sys.executable, "-c", program], {}, service.folder, "name")
    assert await process.ended() == 1
    assert f"uid not found: {UID}" in process.log


async def test_a_worker_scores_under_any_user(service: Service) -> None:
    await service.announce(*service.add_sessions(2))
    worker = start(service, "worker")
    await worker.ready()
    await service.all_end(2, without_backoff=True)
    assert await worker.stop() == 0

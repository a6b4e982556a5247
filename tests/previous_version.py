"""The previous version's code, out of the history of this checkout."""

import io
import json
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tarsy_scoring.config.changed_defaults import previous_version as previous_commit

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class PreviousVersion:
    """A folder with the code of a version."""

    folder: Path

    @property
    def package(self) -> str:
        """For `PYTHONPATH`."""
        return str(self.folder / "service")

    @property
    def revision(self) -> str:
        """Its newest migration."""
        return max(file.name[:4] for file in (self.folder / "migrations" / "versions").glob("*.py"))

    def printed(self, code: str) -> Any:
        """What a program prints as JSON when it runs with this code."""
        env = os.environ | {"PYTHONPATH": self.package}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=env, cwd=self.folder, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)


def unpack(folder: Path) -> PreviousVersion:
    """Unpack the previous version. Skips the test where git is not installed or the history is too short."""
    commit = previous_commit()
    command = ["git", "-C", str(ROOT), "archive", commit, "service", "migrations"]
    try:
        archive = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("git is not installed")
    if archive.returncode:
        pytest.skip(f"the previous version ({commit[:7]}) is not in the history of this checkout")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    version = PreviousVersion(folder)
    imported = version.printed("import json, tarsy_scoring; print(json.dumps(tarsy_scoring.__file__))")
    assert Path(imported).is_relative_to(folder), "programs import the previous version"
    return version


@pytest.fixture(scope="session")
def previous_version(tmp_path_factory: pytest.TempPathFactory) -> PreviousVersion:
    return unpack(tmp_path_factory.mktemp("previous"))

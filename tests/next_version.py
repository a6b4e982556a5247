"""A version after this one: this code with one more revision. From the first release on: this code after the release."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REVISION = Path(__file__).with_suffix(".txt").read_text("utf-8")


@dataclass(frozen=True)
class NextVersion:
    """`package` is for `PYTHONPATH`; `revision` is its newest, and `before` the newest of this version."""

    package: str
    revision: str
    before: str


@pytest.fixture(scope="session")
def next_version(tmp_path_factory: pytest.TempPathFactory) -> NextVersion:
    folder = tmp_path_factory.mktemp("next")
    for part in ("service", "migrations"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    versions = folder / "migrations" / "versions"
    before = max(file.name[:4] for file in versions.glob("*.py"))
    number = f"{int(before) + 1:04}"
    (versions / f"{number}_pre_more.py").write_text(REVISION.format(number=number, before=before))
    return NextVersion(str(folder / "service"), number, before)

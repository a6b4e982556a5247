"""The audit of dependencies: findings that stop a build, and index failures that do not pass for a result."""

import datetime
import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

AUDIT = Path(__file__).parents[2] / ".ci" / "audit.py"
TODAY = datetime.date(2026, 3, 10)
ACCEPTED = {"id": "GHSA-1", "package": "one", "reason": "never called", "until": TODAY}


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", AUDIT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def report(*packages: dict[str, Any]) -> dict[str, Any]:
    return {"dependencies": list(packages), "fixes": []}


def package(name: str, *vulnerabilities: str, aliases: tuple[str, ...] = ()) -> dict[str, Any]:
    found = [{"id": v, "aliases": list(aliases), "fix_versions": ["2.0"]} for v in vulnerabilities]
    return {"name": name, "version": "1.0", "vulns": found}


def test_vulnerabilities_stop_a_build_unless_accepted(audit: ModuleType) -> None:
    yesterday = ACCEPTED | {"until": TODAY - datetime.timedelta(days=1)}
    cases: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], int]] = {
        "clean": ([package("one"), package("two")], [], 0),
        "vulnerable": ([package("one", "GHSA-1")], [], 1),
        "accepted to this day": ([package("one", "GHSA-1")], [ACCEPTED], 0),
        "accepted by another name": ([package("one", "CVE-1", aliases=("GHSA-1",))], [ACCEPTED], 0),
        "accepted for another package": ([package("two", "GHSA-1")], [ACCEPTED], 1),
        "one accepted, one not": ([package("one", "GHSA-1", "GHSA-2")], [ACCEPTED], 1),
        "accepted until yesterday": ([package("one", "GHSA-1")], [yesterday], 1),
    }
    for name, (packages, accepted, status) in cases.items():
        assert audit.tell(audit.weigh(report(*packages), accepted, TODAY)) == status, name


def test_an_unknown_package_is_not_called_clean(audit: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    unknown = {"name": "own", "skip_reason": "Dependency not found on PyPI"}
    status = audit.tell(audit.weigh(report(package("one"), unknown), [], TODAY))
    printed = capsys.readouterr()

    assert status == 0
    assert "1 of 2 packages looked at" in printed.out
    assert "knows nothing of 1 packages: own" in printed.err


def test_an_index_that_does_not_answer_is_reported(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The build goes on, and the log says that nothing was audited."""
    for stderr, says in (("Traceback\nConnectionError: no route to the index", "no route"), ("", "ended with 1")):
        ended = subprocess.CompletedProcess([], 1, "", stderr)
        monkeypatch.setattr(subprocess, "run", lambda *_, ended=ended, **__: ended)
        assert audit.main() == 0
        printed = capsys.readouterr()
        assert "did not happen" in printed.err
        assert says in printed.err


def test_a_vulnerability_gives_exit_status_1(audit: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    found = '{"dependencies": [{"name": "one", "version": "1", "vulns": [{"id": "GHSA-9"}]}]}'
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1, found, ""))

    assert audit.main() == 1


def test_nothing_is_accepted_without_a_reason_and_a_date(audit: ModuleType) -> None:
    for text in (
        "a: b",
        "- {id: x, package: one, until: 2026-12-31}",
        "- {id: x, package: one, reason: '', until: 2026-12-31}",
        "- {id: x, package: one, reason: r}",
        "- {id: x, package: one, reason: r, until: soon}",
        "- {id: x, package: one, reason: r, until: 2026-12-31, note: y}",
    ):
        with pytest.raises(ValueError, match=r"list|each entry|until is a date"):
            audit.read_accepted(text)


def test_the_committed_list_is_valid(audit: ModuleType) -> None:
    audit.read_accepted(audit.ACCEPTED.read_text("utf-8"))

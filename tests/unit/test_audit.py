"""The audit of dependencies: what stops a build, what does not, and that silence is not taken for an answer."""

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


def test_what_stops_a_build(audit: ModuleType) -> None:
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


def test_a_package_nobody_knows_is_not_called_clean(audit: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    unknown = {"name": "own", "skip_reason": "Dependency not found on PyPI"}
    status = audit.tell(audit.weigh(report(package("one"), unknown), [], TODAY))
    told = capsys.readouterr()

    assert status == 0
    assert "1 of 2 packages looked at" in told.out
    assert "knows nothing of 1 packages: own" in told.err


def test_an_index_that_does_not_answer(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Work goes on, and the log says that nothing was audited."""
    for stderr, says in (("Traceback\nConnectionError: no route to the index", "no route"), ("", "ended with 1")):
        ended = subprocess.CompletedProcess([], 1, "", stderr)
        monkeypatch.setattr(subprocess, "run", lambda *_, ended=ended, **__: ended)
        assert audit.main() == 0
        told = capsys.readouterr()
        assert "did not happen" in told.err
        assert says in told.err


def test_a_vulnerability_ends_the_whole_with_1(audit: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_list_as_it_stands(audit: ModuleType) -> None:
    audit.read_accepted(audit.ACCEPTED.read_text("utf-8"))

"""The audit of dependencies: findings that stop a build, and index failures that do not pass for a result."""

import datetime
import importlib.util
import json
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


@pytest.fixture(params=[False, True], ids=["optional", "required"])
def is_required(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether an audit must happen, as in the scheduled workflow."""
    monkeypatch.setenv("AUDIT_REQUIRED", "1" if request.param else "")
    return bool(request.param)


@pytest.mark.parametrize(("known", "was_audited"), [(9, True), (8, False), (0, False)])
def test_an_index_that_knows_too_few_packages_is_no_audit(
    audit: ModuleType, capsys: pytest.CaptureFixture[str], is_required: bool, known: int, was_audited: bool
) -> None:
    """The build goes on, and the log says that nothing was audited; a required audit fails."""
    unknown = [{"name": f"own-{n}", "skip_reason": "Dependency not found on PyPI"} for n in range(10 - known)]
    status = audit.tell(audit.weigh(report(*(package(f"p{n}") for n in range(known)), *unknown), [], TODAY))
    printed = capsys.readouterr()

    assert status == (1 if is_required and not was_audited else 0)
    assert ("NOT AUDITED" in printed.err) is not was_audited
    assert f"{known} of 10 packages looked at" in printed.out
    assert f"knows nothing of {10 - known} packages: own-0" in printed.err


def test_a_vulnerability_counts_whatever_else_the_index_knows(audit: ModuleType) -> None:
    unknown = {"name": "own", "skip_reason": "Dependency not found on PyPI"}
    assert audit.tell(audit.weigh(report(package("one", "GHSA-1"), unknown), [], TODAY)) == 1


def test_an_index_that_does_not_answer_is_no_audit(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_required: bool
) -> None:
    for stderr, says in (("Traceback\nConnectionError: no route to the index", "no route"), ("", "ended with 1")):
        ended = subprocess.CompletedProcess([], 1, "", stderr)
        monkeypatch.setattr(subprocess, "run", lambda *_, ended=ended, **__: ended)
        assert audit.main() == (1 if is_required else 0)
        printed = capsys.readouterr()
        assert "NOT AUDITED" in printed.err
        assert says in printed.err


def test_all_requirements_are_audited_once(audit: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of several files counts once, in each of its versions."""
    asked: list[str] = []

    def answer(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.extend(Path(part).name for part in command if str(part).endswith(".txt"))
        return subprocess.CompletedProcess([], 0, json.dumps(report(package("one"), package("one"))), "")

    monkeypatch.setattr(subprocess, "run", answer)
    assert audit.main() == 0
    assert set(asked) == {path.name for path in (AUDIT.parents[1] / "requirements").glob("*.txt")}
    other = package("one") | {"version": "2.0"}
    assert audit.weigh(report(package("one"), package("one"), other), [], TODAY).audited == 2


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

"""Workflows, images and tools: valid, pinned, and with no more rights than a job needs."""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploying import REPOSITORY

from tarsy_scoring import __version__

WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
# YAML 1.1 reads the key `on` as true.
LOADED: dict[str, Any] = {path.stem: yaml.safe_load(path.read_text()) for path in WORKFLOWS}
PINNED_ACTION = re.compile(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_workflows_are_valid() -> None:
    installed = Path.home() / "go" / "bin" / "actionlint"
    program = shutil.which("actionlint") or (str(installed) if installed.is_file() else None)
    if program is None:
        pytest.skip("actionlint is not installed")
    ended = subprocess.run([program, *WORKFLOWS], capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stdout


def test_actions_are_pinned_by_commit() -> None:
    for path in WORKFLOWS:
        lines = [line for line in path.read_text().splitlines() if re.search(r"\buses:", line)]
        assert lines
        for line in lines:
            assert PINNED_ACTION.search(line), line


def test_jobs_have_only_the_rights_they_name() -> None:
    """And session-wide tokens are not left in the checkout for later steps."""
    for workflow in LOADED.values():
        assert workflow["permissions"] == {}
        assert all("permissions" in job for job in workflow["jobs"].values())
        for step in steps(workflow):
            assert not step.get("uses", "").startswith("actions/checkout@") or not step["with"]["persist-credentials"]
            assert "${{" not in step.get("run", "")  # text of an event would become part of a script
    written = {
        (workflow, name): {right for right, kind in job["permissions"].items() if kind == "write"}
        for workflow, loaded in LOADED.items()
        for name, job in loaded["jobs"].items()
    }
    assert {job: rights for job, rights in written.items() if rights} == {
        ("release", "image"): {"packages", "id-token", "attestations"},
        ("release", "packages"): {"id-token", "attestations"},
        ("release", "chart"): {"packages", "id-token"},
        ("release", "docs"): {"contents"},
        ("release", "announce"): {"contents"},
    }


def test_nothing_is_published_before_the_checks() -> None:
    """Every job waits for `check`, and the release is announced when all parts of it are published."""
    jobs = LOADED["release"]["jobs"]
    needs = {
        name: [job.get("needs", [])] if isinstance(job.get("needs"), str) else job.get("needs", [])
        for name, job in jobs.items()
    }
    assert needs.pop("check") == []
    assert set(needs.pop("announce")) == set(needs)
    assert {name: waits for name, waits in needs.items() if waits != ["check"]} == {"chart": ["image"]}


def test_packages_are_checked_and_published_without_a_stored_token() -> None:
    packages = LOADED["release"]["jobs"]["packages"]
    assert packages["environment"] == "pypi"
    assert "secrets." not in json.dumps(LOADED)
    runs = "\n".join(step.get("run", "") for step in packages["steps"])
    assert runs.index("make packages") < runs.index("pypi_attestations sign") < runs.index("twine upload")
    assert "--attestations build/dist/*" in runs
    [provenance] = [step for step in packages["steps"] if "attest-build-provenance" in step.get("uses", "")]
    assert provenance["with"]["subject-path"] == "build/dist/*"


def test_the_chart_is_published_with_the_version_of_the_tag_and_signed() -> None:
    [run] = [step["run"] for step in LOADED["release"]["jobs"]["chart"]["steps"] if "run" in step]
    assert '--version "$version" --app-version "$version"' in run
    assert run.index("helm package") < run.index("helm push") < run.index("cosign sign --yes")


def test_every_part_has_the_same_version() -> None:
    """Both packages, the chart, and the program; the release workflow compares the tag with one of them."""
    chart = yaml.safe_load((REPOSITORY / "helm" / "tarsy-scoring" / "Chart.yaml").read_text())
    projects = [REPOSITORY / "pyproject.toml", REPOSITORY / "service" / "tarsy_scoring_lab" / "pyproject.toml"]
    versions = [tomllib.loads(path.read_text())["project"]["version"] for path in projects]
    assert {*versions, chart["version"], chart["appVersion"]} == {__version__}


def test_release_is_audited_described_and_signed() -> None:
    release = LOADED["release"]
    runs = "\n".join(step.get("run", "") for step in steps(release))
    build = next(step["with"] for step in steps(release) if "build-push-action" in step.get("uses", ""))
    sbom = next(step["with"] for step in steps(release) if "sbom-action" in step.get("uses", ""))

    assert release["jobs"]["image"]["needs"] == "check"
    assert build["provenance"] == "mode=max"
    assert sbom["format"] == "cyclonedx-json"
    assert "cosign sign --yes" in runs
    assert "--type cyclonedx --predicate " + sbom["output-file"] in runs
    assert any("attest-build-provenance" in step.get("uses", "") for step in steps(release))


@pytest.mark.parametrize("name", ["release", "audit"])
def test_audit_must_happen(name: str) -> None:
    [audit] = [step for step in steps(LOADED[name]) if step.get("run") == "make audit"]
    assert audit["env"] == {"AUDIT_REQUIRED": "1"}


def test_images_have_a_patch_tag_that_is_kept_current() -> None:
    """Each within its line; a newer line is a decision."""
    renovate = json.loads((REPOSITORY / "renovate.json").read_text())
    lines = {
        name: rule["allowedVersions"].strip("/")
        for rule in renovate["packageRules"]
        for name in rule["matchPackageNames"]
    }
    compose = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())
    images = {service["image"] for service in compose["services"].values() if "build" not in service}
    images |= set(re.findall(r"^ARG PYTHON=(\S+)", (REPOSITORY / "Dockerfile").read_text(), flags=re.MULTILINE))

    assert {image.partition(":")[0] for image in images} == lines.keys()
    for image in images:
        name, _, tag = image.partition(":")
        assert re.match(r"v?\d+\.\d+(\.\d+)?(-|@|$)", tag), image
        assert re.match(lines[name], tag), image
    assert "docker:pinDigests" in renovate["extends"]
    assert {"dockerfile", "docker-compose", "github-actions"} <= set(renovate["enabledManagers"])


def test_tools_that_are_installed_by_name_are_pinned() -> None:
    for path in ("Makefile", ".ci/run"):
        for line in (REPOSITORY / path).read_text().splitlines():
            if "pip install" in line and "--editable" not in line and "--require-hashes" not in line:
                assert re.search(r"pip install [^#]*\w==\d", line), line
            if "go install" in line:
                assert re.search(r"@v\d+\.\d+\.\d+", line), line


def test_policy_is_linked() -> None:
    assert "SECURITY.md" in (REPOSITORY / "docs" / "security.md").read_text()
    policy = (REPOSITORY / "SECURITY.md").read_text()
    assert all(word in policy for word in ("private advisory", "Supported versions", "90 days"))


FORMS = sorted((REPOSITORY / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_issue_forms_have_the_shape_that_github_shows(form: Path) -> None:
    """GitHub hides a form with an unknown key, a repeated id or a field without a label, and tests nothing before."""
    document = yaml.safe_load(form.read_text())
    assert set(document) == {"name", "description", "labels", "body"}
    fields = [field for field in document["body"] if field["type"] != "markdown"]
    assert (
        len({field["id"] for field in fields}) == len({field["attributes"]["label"] for field in fields}) == len(fields)
    )
    allowed = {
        "markdown": {"value"},
        "textarea": {"label", "description", "render"},
        "input": {"label", "description"},
        "dropdown": {"label", "description", "options"},
    }
    for field in document["body"]:
        assert set(field["attributes"]) <= allowed[field["type"]]
        assert set(field) <= {"type", "id", "attributes", "validations"}
        if options := field["attributes"].get("options"):
            assert all(isinstance(option, str) for option in options)
            assert len(set(options)) == len(options)
    assert any(field.get("validations") == {"required": True} for field in fields)

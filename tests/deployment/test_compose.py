"""docker-compose.yml: valid, contained, reachable from this machine alone, and with commands that run."""

import json
import os
import re
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from deploying import MARGIN_S, REPOSITORY, go_module, known_variables, parse

from tables import table
from tarsy_scoring.commands.worker import STOP_S
from tarsy_scoring.config.hosts import Hosts
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.web.edge.access import Access
from tarsy_scoring.web.server import LONGEST_STOP_S
from tarsy_scoring.wiring import check_settings

FOLDER = REPOSITORY / "compose"
COMPOSE = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"].startswith("tarsy-scoring:")}
ONCE = {"topics", "migrate", "migrate-after", "backfill"}
# The schema of the compose specification, as compose itself carries it.
SPECIFICATION, SPECIFICATION_SUM = (
    "github.com/compose-spec/compose-go/v2@v2.9.0",
    "h1:UHSv/QHlo6QJtrT4igF1rdORgIUhDo1gWuyJUoiNNIM=",
)
VARIABLE = re.compile(r"\$\{(?P<name>[A-Z_]+)(?::-(?P<default>[^}]*))?\}")
Environment = dict[str, str]


def filled(value: Any, environment: Environment) -> Any:
    """The value with its variables replaced, as compose does it."""
    if isinstance(value, dict):
        return {name: filled(inner, environment) for name, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, environment) for inner in value]
    if not isinstance(value, str):
        return value
    return VARIABLE.sub(lambda found: environment.get(found["name"]) or found["default"] or "", value)


def demo_environment() -> Environment:
    lines = (FOLDER / "demo.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def settings_of(service: str, environment: Environment) -> tuple[Settings, Environment]:
    """A service's settings and environment, with its folder of sessions mapped to this machine."""
    given = filled(SERVICES[service]["environment"], environment)
    mounts = [mount.rsplit(":", 2)[:2] for mount in filled(SERVICES[service]["volumes"], environment)]
    folders = {inside: str(REPOSITORY / outside) for outside, inside in mounts}
    given["SCORING_TIMELINE_DIR"] = folders[given["SCORING_TIMELINE_DIR"]]
    return load_settings(given), given


@pytest.fixture(scope="module")
def specification() -> dict[str, Any]:
    """The specification's JSON schema."""
    module = go_module(SPECIFICATION, SPECIFICATION_SUM)
    schema: dict[str, Any] = json.loads((module / "schema" / "compose-spec.json").read_text())
    return schema


# --- the services --------------------------------------------------------------------------------------


def test_the_file_is_valid(specification: dict[str, Any]) -> None:
    validator = jsonschema.Draft7Validator(specification)
    for document in (COMPOSE, filled(COMPOSE, {}), filled(COMPOSE, demo_environment())):
        validator.validate(document)


def test_services_are_contained() -> None:
    """Writing, memory and rights are limited; only Kafka's start script needs a writable root."""
    for name, service in SERVICES.items():
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["read_only"] is (name != "kafka")
        assert "/tmp" in service["tmpfs"]
        assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
        assert service["pids_limit"]


def test_images_are_pinned() -> None:
    for service in SERVICES.values():
        tag = service["image"].rpartition(":")[2]
        assert re.match(r"v?\d+\.\d+", tag) or service.get("build", {}).get("context") == "."


def test_nothing_listens_beyond_this_machine() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert len({port.split(":")[1] for port in ports}) == len(ports)
    assert all("ports" not in service for name, service in OURS.items() if name != "api")


def test_files_that_are_mounted_exist() -> None:
    """Every mounted path exists and is read-only; every file of the compose folder is used, or for a secured broker."""
    paths = [mount for service in filled(SERVICES, {}).values() for mount in service.get("volumes", [])]
    used = {path.split(":")[0] for path in paths if path.startswith("./")}
    for path in used:
        assert (REPOSITORY / path).exists(), path
    assert all(path.endswith(":ro") for path in paths if path.startswith("./"))
    assert {path.split(":")[0] for path in paths} - used == set(COMPOSE["volumes"])
    here = {f"./{path.relative_to(REPOSITORY)}" for path in FOLDER.rglob("*") if path.is_file()}
    assert here - used == {"./compose/demo.env", "./compose/kafka-acls.sh"}


def test_the_order_of_starts_is_possible() -> None:
    waits = {name: service.get("depends_on", {}) for name, service in SERVICES.items()}
    for name, others in waits.items():
        for other, how in others.items():
            assert (how["condition"] == "service_completed_successfully") == (other in ONCE)
            # A service outside a profile must not need one within it.
            assert how.get("required") is False or set(SERVICES[other].get("profiles", [])) <= set(
                SERVICES[name].get("profiles", [])
            )
    started: set[str] = set()
    while ready := {name for name in waits if name not in started and set(waits[name]) <= started}:
        started |= ready
    assert started == set(waits)


def test_migrations_run_before_and_after_the_services() -> None:
    assert SERVICES["migrate"]["command"] == ["migrate", "--phase", "pre"]
    assert SERVICES["migrate-after"]["command"] == ["migrate", "--phase", "post"]
    assert set(SERVICES["migrate-after"]["depends_on"]) == {"worker", "api"}
    assert all("migrate" in SERVICES[name]["depends_on"] for name in ("worker", "api"))


def test_grace_is_longer_than_a_stop() -> None:
    assert SERVICES["worker"]["stop_grace_period"] == "150s"
    assert int(SERVICES["worker"]["environment"]["SCORING_DRAIN_TIMEOUT_S"]) + STOP_S + MARGIN_S == 150
    assert int(SERVICES["api"]["stop_grace_period"].removesuffix("s")) > LONGEST_STOP_S


# --- commands and settings are real --------------------------------------------------------------------


def test_commands_and_variables_exist() -> None:
    for name, service in OURS.items():
        assert {v for v in service["environment"] if v.startswith("SCORING_")} <= known_variables(), name
        assert name == "judge" or parse(service["command"]) in (
            "worker",
            "api",
            "insights",
            "notify",
            "migrate",
            "backfill",
        )


@table
def test_settings_are_accepted(environment: Environment) -> None:
    settings, given = settings_of("worker", environment)
    check_settings(settings, ("intake", "judging", "relay"), given)
    assert settings.unknown_variables == ()
    api, _ = settings_of("api", environment)
    check_settings(api, (), {})
    Access(api)
    assert f"127.0.0.1:8080:{api.api_port}" in SERVICES["api"]["ports"]


def test_the_api_answers_to_no_name_of_another_site() -> None:
    """The published port is reachable from a browser, and a site can resolve its own name to this machine."""
    hosts = Hosts(settings_of("api", {})[0].api_hosts)
    assert [name for name in ("localhost:8080", "127.0.0.1:8080") if name not in hosts] == []
    assert "rebind.evil.example:8080" not in hosts


# --- topics, demo, monitoring --------------------------------------------------------------------------


@pytest.fixture
def kafka_tool(tmp_path: Path) -> Callable[[str], list[str]]:
    """Runs a script with a stand-in for Kafka's tools; returns their command lines."""

    def run(script: str) -> list[str]:
        calls = tmp_path / "calls"
        stand_in = tmp_path / "kafka-topics.sh"
        stand_in.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n')
        stand_in.chmod(stand_in.stat().st_mode | stat.S_IXUSR)
        script = script.replace("/opt/kafka/bin/", f"{tmp_path}/")
        environment = {"PATH": os.environ["PATH"]}
        subprocess.run(
            ["bash", "-c", script, "create-topics.sh", "kafka:9092"], check=True, env=environment, timeout=20
        )
        return calls.read_text().splitlines()

    return run


def test_all_topics_are_created(kafka_tool: Callable[[str], list[str]]) -> None:
    """The script creates the service's missing topics; only the topic of insights is compacted."""
    calls = kafka_tool((FOLDER / "create-topics.sh").read_text())
    compacted = {Settings().topic_scoring_insights}
    made = {re.search(r"--topic (\S+)", call)[1] for call in calls}  # type: ignore[index]
    assert (
        made
        == {
            Settings.model_fields[f"topic_{name}"].default
            for name in ("session_completed", "rescore_requested", "scoring_events", "dead_letters")
        }
        | compacted
    )
    for call in calls:
        assert call.startswith("--bootstrap-server kafka:9092 --create --if-not-exists --partitions 6 ")
        is_compacted = any(f"--topic {topic} --config cleanup.policy=compact " in call for topic in compacted)
        assert is_compacted != bool(re.search(r"--config retention.ms=\d+$", call)), call
    assert SERVICES["topics"]["command"] == ["bash", "/create-topics.sh", "kafka:9092"]


def test_prometheus_scrapes_what_is_served() -> None:
    """By addresses: `/metrics` does not answer to names of services."""
    scraping = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    found = [s for scraped in scraping["scrape_configs"] for s in scraped["dns_sd_configs"]]
    assert [(s["names"], str(s["port"])) for s in found] == [
        ([name], SERVICES[name]["environment"]["SCORING_METRICS_PORT"]) for name in ("worker", "insights", "api")
    ]
    mounted = [mount.split(":")[1] for mount in SERVICES["prometheus"]["volumes"]]
    assert set(scraping["rule_files"]) <= set(mounted)
    assert f"--config.file={mounted[0]}" in SERVICES["prometheus"]["command"]

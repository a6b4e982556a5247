"""Starts that are refused, with status and message, and starts that wait."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
import yaml

from infrastructure import Topics, wait_until
from processes import Finished, Service, assert_whole

FAILED, ASKED_WRONGLY = 1, 2


def one_sentence(ended: Finished) -> str:
    """The error on stderr: one line, and no traceback."""
    assert "Traceback" not in ended.stderr
    return ended.stderr.strip().splitlines()[-1]


def configured(service: Service, config: Mapping[str, Any]) -> dict[str, str]:
    path = service.folder / "config.yaml"
    path.write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
    return {"SCORING_CONFIG": str(path)}


@pytest.mark.parametrize(
    ("env", "words"),
    [
        pytest.param({"SCORING_DATABASE_URL": ""}, ["SCORING_DATABASE_URL", "postgresql://"], id="no-database"),
        pytest.param({"SCORING_DATABASE_URL": "mysql://u:planted@h/d"}, ["postgresql://"], id="another-database"),
        pytest.param({"SCORING_DATABASE_URL": "postgresql://u:planted@h:port/d"}, ["postgresql://"], id="no-port"),
        pytest.param({"SCORING_KAFKA_BOOTSTRAP_SERVERS": "broker:port"}, ["host:port"], id="broker-without-port"),
        pytest.param({"SCORING_KAFKA_BOOTSTRAP_SERVERS": ""}, ["SCORING_KAFKA_BOOTSTRAP_SERVERS"], id="no-brokers"),
        pytest.param({"SCORING_TIMELINE_SOURCE": ""}, ["SCORING_TIMELINE_SOURCE", "tarsy-db"], id="no-source"),
        pytest.param({"SCORING_TIMELINE_DIR": "nowhere"}, ["SCORING_TIMELINE_DIR", "nowhere"], id="no-folder"),
        pytest.param({"SCORING_SLOTS": "many"}, ["SCORING_SLOTS", "integer"], id="wrong-type"),
        pytest.param({"OPENAI_API_KEY": ""}, ["OPENAI_API_KEY", "not set", "api_key_env: null"], id="no-key"),
        pytest.param({"SCORING_CONFIG": "nowhere.yaml"}, ["nowhere.yaml"], id="no-such-file"),
    ],
)
async def test_a_wrong_environment_refuses_the_start(service: Service, env: dict[str, str], words: list[str]) -> None:
    """Status 2, and one sentence with the variable and what would help."""
    ended = await service.run("worker", **env)
    assert ended.status == ASKED_WRONGLY
    assert [w for w in [*words, *env] if w not in one_sentence(ended) and w != "SCORING_CONFIG"] == []
    assert "planted" not in ended.stderr


@pytest.mark.parametrize(
    ("config", "words"),
    [
        pytest.param({"defaults": {"sampel_rate": 1}}, ["defaults.sampel_rate", "'sample_rate'"], id="unknown-key"),
        pytest.param({"defaults": {"sample_rate": 2}}, ["defaults.sample_rate"], id="out-of-range"),
        pytest.param({"defaults": {"providers": ["spare"]}}, ["defaults.providers", "'spare'"], id="unknown-provider"),
        pytest.param({"defaults": {"criteria": "none"}}, ["defaults.criteria", "'none'"], id="unknown-criteria"),
    ],
)
async def test_a_wrong_config_file_refuses_the_start(
    service: Service, config: dict[str, Any], words: list[str]
) -> None:
    """Status 2, and one sentence with the path in the file and the nearest thing that exists."""
    ended = await service.run("worker", **configured(service, config))
    assert ended.status == ASKED_WRONGLY
    assert [w for w in words if w not in one_sentence(ended)] == []


async def test_a_database_without_tables_refuses_the_start_until_migrated(
    service: Service, empty_database_url: str
) -> None:
    """Status 1 and the command to run; after that command the worker starts."""
    env = {"SCORING_DATABASE_URL": empty_database_url}
    ended = await service.run("worker", **env)
    assert ended.status == FAILED
    assert "tarsy-scoring migrate" in one_sentence(ended)
    migrated = await service.run("migrate", **env)
    assert (migrated.status, migrated.stdout[:9]) == (0, "applied: ")
    assert (await service.run("migrate", **env)).stdout.startswith("nothing to do")
    await service.worker(**env).ready()


@pytest.mark.parametrize(
    ("command", "change", "words"),
    [
        pytest.param(["worker"], {"netloc": "postgres:planted@{place}"}, "wrong user or password", id="password"),
        pytest.param(["worker"], {"path": "/nowhere"}, "there is no such database", id="database"),
        pytest.param(["rescore", "session-1"], {"path": "/nowhere"}, "there is no such database", id="command"),
    ],
)
async def test_a_database_that_refuses_us_is_not_waited_for(
    service: Service, command: list[str], change: dict[str, str], words: str
) -> None:
    """Status 1 and why, in one sentence without user and password."""
    parts = urlsplit(service.database_url)
    place = parts.netloc.rpartition("@")[2]
    url = urlunsplit(parts._replace(**{k: v.format(place=place) for k, v in change.items()}))
    ended = await service.run(*command, SCORING_DATABASE_URL=url)
    assert ended.status == FAILED
    assert words in one_sentence(ended)
    assert "planted" not in ended.stderr


async def test_the_tables_may_live_in_a_schema_of_their_own(service: Service) -> None:
    """SCORING_DATABASE_SCHEMA: created by `migrate`, used by every statement; `public` stays untouched."""
    env = {"SCORING_DATABASE_SCHEMA": "own"}
    assert (await service.run("migrate", **env)).status == 0
    service.worker(**env)
    await service.announce(*service.add_sessions(2))

    async def both_are_published() -> bool:
        statement = (
            "SELECT count(*) FROM own.scoring_events WHERE type = 'scoring.completed' AND published_at IS NOT NULL"
        )
        return int(await service.value(statement)) == 2

    await wait_until(both_are_published, 60, "both are scored and published")
    assert await service.count("true") == 0


async def test_missing_topics_refuse_the_start_or_are_made(service: Service) -> None:
    """Status 1 and their names; with SCORING_CREATE_TOPICS they are made, and the worker works."""
    names = {kind: f"{kind.lower()}-{service.topics.group}" for kind in ("SESSION_COMPLETED", "SCORING_EVENTS")}
    env = {f"SCORING_TOPIC_{kind}": name for kind, name in names.items()}
    ended = await service.run("worker", **env)
    assert ended.status == FAILED
    assert [n for n in [*names.values(), "SCORING_CREATE_TOPICS"] if n not in one_sentence(ended)] == []
    worker = service.worker(SCORING_CREATE_TOPICS="true", **env)
    await worker.ready()
    service.topics = Topics(
        service.topics.bootstrap_servers,
        names["SESSION_COMPLETED"],
        service.topics.rescore_requested,
        names["SCORING_EVENTS"],
        service.topics.dead_letters,
        service.topics.group,
    )
    events = await service.announce(*service.add_sessions(1))
    await service.all_end(1)
    await assert_whole(service, events)


async def test_a_broker_that_is_away_is_waited_for_and_judging_begins_without_it(service: Service) -> None:
    """Not ready, but stored scores are judged and their events delivered live; SIGTERM ends the wait."""
    asked = await service.run("rescore", *service.add_sessions(2))
    assert asked.status == 0
    worker = service.worker(SCORING_KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:9")
    await worker.says("kafka.away")
    await service.all_end(2)
    assert (await worker.get("/readyz"))[0] == 503
    assert (await worker.get("/healthz"))[0] == 200
    assert 'tarsy_scoring_kafka_up{role="intake"} 0.0' in (await worker.get("/metrics"))[1]
    all_placed = "SELECT bool_and(position IS NOT NULL) FROM scoring_events"
    await wait_until(lambda: service.value(all_placed), 60, "live events have positions")
    assert await worker.stop() == 0
    service.worker("--only", "relay")
    await assert_whole(service, [])
    assert await service.count("status = 'completed'") == 2


async def test_a_worker_waiting_for_its_database_can_be_stopped(service: Service) -> None:
    """SIGTERM before the start is complete ends it with 0."""
    worker = service.worker(SCORING_DATABASE_URL="postgresql://nobody:planted-password@127.0.0.1:9/none")
    await worker.says("database.away")
    assert await worker.stop() == 0
    assert "planted-password" not in worker.log


async def test_secrets_come_from_files(service: Service, tmp_path: Path) -> None:
    """`*_FILE` variables name files that hold a secret, as orchestrators mount them."""
    url, key = tmp_path / "url", tmp_path / "key"
    url.write_text(service.database_url + "\n", encoding="utf-8")
    key.write_text("sk-from-a-file\n", encoding="utf-8")
    worker = service.worker(
        SCORING_DATABASE_URL="", SCORING_DATABASE_URL_FILE=str(url), OPENAI_API_KEY="", OPENAI_API_KEY_FILE=str(key)
    )
    events = await service.announce(*service.add_sessions(1))
    await service.all_end(1)
    await assert_whole(service, events)
    assert "sk-from-a-file" not in worker.log


async def test_a_port_that_is_taken_is_named(service: Service) -> None:
    """A configured metrics port that is taken refuses the start; the default one moves."""
    first = service.worker()
    port = (await first.says("service.starting"))["metrics_port"]
    ended = await service.run("worker", SCORING_METRICS_PORT=str(port))
    assert ended.status == FAILED
    assert str(port) in one_sentence(ended)


async def test_unknown_variables_are_told_and_harmless(service: Service) -> None:
    """With a warning."""
    worker = service.worker(SCORING_SLOTZ="3")
    line = await worker.says("settings.unknown_variable")
    assert line["variable"] == "SCORING_SLOTZ"
    await wait_until(worker.is_ready, 60, "it starts all the same")


async def test_check_config_shows_what_is_in_force_and_no_secret(service: Service) -> None:
    """As text and as JSON, without secrets; status 2 for invalid settings."""
    env = configured(service, {"chains": {"kubernetes": {"sample_rate": 0.5}}})
    shown = await service.run("check-config", "--json", **env)
    assert shown.status == 0
    assert shown.document["environment"]["SCORING_LEASE_S"] == 30
    assert shown.document["config"]["chains"]["kubernetes"]["sample_rate"] == 0.5
    assert set(shown.document["criteria"]) >= {"investigation-methodology"}
    for_people = await service.run("check-config", **env)
    assert for_people.status == 0
    assert "the configuration is fine" in for_people.stdout
    for text in (json.dumps(shown.document), for_people.stdout):
        assert "sk-planted-judge-key" not in text
        assert service.database_url not in text
    wrong = await service.run("check-config", **configured(service, {"chain": {}}))
    assert wrong.status == ASKED_WRONGLY
    assert "'chains'" in one_sentence(wrong)

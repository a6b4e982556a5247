"""Starts that are refused, with status and message, and starts that wait."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import yaml

from builders import connected, role_on
from infrastructure import Topics, wait_until
from processes import Finished, Service, assert_whole
from tables import table

FAILED, USAGE_ERROR = 1, 2


def one_sentence(ended: Finished) -> str:
    """The error on stderr: one line, and no traceback."""
    assert "Traceback" not in ended.stderr
    return ended.stderr.strip().splitlines()[-1]


def configured(service: Service, config: Mapping[str, Any]) -> dict[str, str]:
    path = service.folder / "config.yaml"
    path.write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
    return {"SCORING_CONFIG": str(path)}


async def test_a_database_without_tables_refuses_the_start_until_migrated(
    service: Service, empty_database_url: str
) -> None:
    env = {"SCORING_DATABASE_URL": empty_database_url}
    ended = await service.run("worker", **env)
    assert ended.status == FAILED
    assert "tarsy-scoring migrate" in one_sentence(ended)
    migrated = await service.run("migrate", **env)
    assert (migrated.status, migrated.stdout[:9]) == (0, "applied: ")
    assert (await service.run("migrate", **env)).stdout.startswith("nothing to do")
    await service.worker(**env).ready()


@table
async def test_a_database_that_refuses_the_connection_is_not_waited_for(
    command: list[str], change: dict[str, str], words: str, *, service: Service
) -> None:
    parts = urlsplit(service.database_url)
    place = parts.netloc.rpartition("@")[2]
    url = urlunsplit(parts._replace(**{k: v.format(place=place) for k, v in change.items()}))
    ended = await service.run(*command, SCORING_DATABASE_URL=url)
    assert ended.status == FAILED
    assert words in one_sentence(ended)
    assert "planted" not in ended.stderr


async def test_missing_grants_of_the_timeline_role_refuse_the_start(service: Service, tarsy_database_url: str) -> None:
    """The message names all of them at once."""
    required = {"stages", "agent_executions", "timeline_events", "mcp_interactions", "llm_interactions"}
    async with role_on(tarsy_database_url, "GRANT SELECT ON alert_sessions TO {role}") as (_, url):
        env = {"SCORING_TIMELINE_SOURCE": "tarsy-db", "SCORING_TIMELINE_DATABASE_URL": url}
        ended = await service.run("worker", **env)

    assert ended.status == FAILED
    assert {table for table in required if f"SELECT on {table}" in one_sentence(ended)} == required


async def test_a_source_that_refuses_the_role_keeps_the_worker_unready(
    service: Service, tarsy_database_url: str
) -> None:
    """The reason is that of the source; once the source answers no restart is needed."""
    grants = "ALTER ROLE {role} NOLOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}"
    async with connected(tarsy_database_url) as owner, role_on(tarsy_database_url, grants) as (role, url):
        worker = service.worker(SCORING_TIMELINE_SOURCE="tarsy-db", SCORING_TIMELINE_DATABASE_URL=url)
        await worker.says("source.away")
        await worker.says("intake.joined")
        status, body = await worker.get("/readyz")
        await owner.execute(f"ALTER ROLE {role} LOGIN")
        await worker.ready()
        await worker.stop()

    assert status == 503
    assert "it refuses the user or the password" in json.loads(body)["reason"]


async def test_missing_topics_refuse_the_start_or_are_created(service: Service) -> None:
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
    worker = service.worker(SCORING_DATABASE_URL="postgresql://nobody:planted-password@127.0.0.1:9/none")
    await worker.says("database.away")
    assert await worker.stop() == 0
    assert "planted-password" not in worker.log

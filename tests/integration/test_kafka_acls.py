"""The rules of `compose/kafka-acls.sh`: with them each program does its work, and no other login does it for them."""

import os
import re
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from infrastructure import Kafka as Broker
from infrastructure import fresh_topics, run_apart, wait_until
from processes import PATIENCE_S, Service, small_session
from secured_kafka import PASSWORD, Authority, SecuredKafka
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.kafka.topics import ensure_topics
from tarsy_scoring_lab.broker import kafka_lacks
from tarsy_scoring_lab.scripted_judge import ScriptedJudge
from tarsy_scoring_lab.tarsy import load_session

pytestmark = pytest.mark.skipif(kafka_lacks() is not None, reason=f"Apache Kafka cannot run here: {kafka_lacks()}")

SCRIPT = Path(__file__).parents[2] / "compose" / "kafka-acls.sh"
WORKER, API, BRIDGE, INSIGHTS, OPERATOR, OTHER = USERS = (
    *("scoring-worker", "scoring-api", "scoring-bridge", "scoring-insights", "scoring-operator"),
    "other",
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"), "ours")


@pytest.fixture(scope="module")
def broker(authority: Authority) -> Iterator[SecuredKafka]:
    """Closed to every login without a rule."""
    server = SecuredKafka(authority, USERS, is_open=False)
    run_apart(server.start())
    try:
        yield server
    finally:
        run_apart(server.close())


def rules(folder: Path, environ: dict[str, str]) -> Iterator[tuple[str, str, str, str]]:
    """User, operation, kind and name of each rule that the script adds, as a stand-in for Kafka's tool takes it."""
    calls, tool = folder / "calls", folder / "kafka-acls.sh"
    tool.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n')
    tool.chmod(0o755)
    script = SCRIPT.read_text("utf-8").replace("/opt/kafka/bin/", f"{folder}/")
    given = {
        name: value for name, value in environ.items() if name.startswith(("SCORING_TOPIC", "SCORING_KAFKA_GROUP"))
    }
    command = ["bash", "-c", script, SCRIPT.name, "kafka:9093", "--command-config", "admin.properties"]
    subprocess.run(command, check=True, env={"PATH": os.environ["PATH"]} | given, timeout=30)
    begins = re.compile(
        r"--bootstrap-server kafka:9093 --command-config admin\.properties --add "
        r"--allow-principal User:(\S+) --operation (\w+)((?: --(?:topic|group) \S+)+)(?: --resource-pattern-type prefixed)?"
    )
    for line in calls.read_text().splitlines():
        call = begins.fullmatch(line)
        assert call is not None, line
        for kind, name in re.findall(r"--(topic|group) (\S+)", call[3]):
            yield call[1], call[2].upper(), kind, name


@pytest.fixture
async def service(
    tmp_path: Path, database_url: str, tarsy_database_url: str, broker: SecuredKafka, judge: ScriptedJudge
) -> AsyncIterator[Service]:
    """An installation on topics with the script's rules; the test itself uses the open listener."""
    topics = fresh_topics(Broker(broker.bootstrap_servers, broker.name))
    installation = Service(tmp_path, database_url, topics, judge)
    insights = topics.scoring_events.replace("events", "insights")
    installation.env |= {
        "SCORING_TOPIC_SCORING_INSIGHTS": insights,
        "SCORING_TIMELINE_SOURCE": "tarsy-db",
        "SCORING_TIMELINE_DATABASE_URL": tarsy_database_url,
    }
    await ensure_topics(load_settings(installation.env | {"SCORING_CREATE_TOPICS": "true"}), (), [insights])
    added = set(rules(tmp_path, installation.env))
    for user, operation, kind, name in added:
        await broker.allow(user, operation, kind, name)
    try:
        yield installation
    finally:
        await installation.close()


@pytest.fixture
def login(broker: SecuredKafka, authority: Authority) -> Callable[[str], dict[str, str]]:
    def variables(user: str) -> dict[str, str]:
        return {
            "SCORING_KAFKA_BOOTSTRAP_SERVERS": broker.servers("SCRAM"),
            "SCORING_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
            "SCORING_KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
            "SCORING_KAFKA_SASL_USERNAME": user,
            "SCORING_KAFKA_SASL_PASSWORD": PASSWORD,
            "SCORING_KAFKA_CA_FILE": str(authority.file),
        }

    return variables


async def test_programs_work_with_their_rights(
    service: Service, tarsy_database_url: str, login: Callable[[str], dict[str, str]]
) -> None:
    """From TARSy's database over every topic to the rolling signals, and from a dead letter back to its topic."""
    await load_session(tarsy_database_url, small_session("session-1"))
    bridge = service.command("bridge", "--since", "2020-01-01", **login(BRIDGE))
    worker = service.worker(**login(WORKER))
    insights = service.command("insights", **login(INSIGHTS))
    api = service.command("api", SCORING_API_PORT="0", **login(API))
    await insights.ready()
    await service.score_becomes("session-1", "completed")
    settings = load_settings(service.env)

    async def published(topic: str) -> bool:
        return bool(await service.records(topic))

    for topic in (settings.topic_scoring_events, settings.topic_scoring_insights):
        await wait_until(lambda topic=topic: published(topic), PATIENCE_S, f"a message on {topic}")
    await api.says("api.listening")
    await service.send(settings.topic_session_completed, [(b"k", b"no event")])
    await wait_until(lambda: published(settings.topic_dead_letters), PATIENCE_S, "a dead letter")
    listed = await service.run("dead-letters", "list", **login(OPERATOR))
    replayed = await service.run("dead-letters", "replay", "--all", **login(OPERATOR))

    assert (listed.status, replayed.status) == (0, 0), listed.stderr + replayed.stderr
    assert "replayed: 1" in replayed.stdout
    for process in (bridge, worker, insights, api):
        assert "kafka.away" not in process.log
        assert "Authorization" not in process.log
        assert "not_flushed" not in process.log  # ends of TLS connections do not wait for the brokers
        assert await process.stop() == 0

"""
The servers that tests run against: addresses from the environment, else Docker, else embedded ones.

PostgreSQL and Kafka are chosen separately and cheaply when pytest starts, and started when a test asks.
"""

import asyncio
import contextlib
import inspect
import os
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from tarsy_scoring.config.load import load_settings
from tarsy_scoring.kafka.topics import ensure_topics
from tarsy_scoring_lab.broker import KAFKA_VERSION, EmbeddedBroker, choose_broker, kafka_lacks
from tarsy_scoring_lab.postgres import EmbeddedPostgres, create_database

DATABASE_VARIABLE = "SCORING_TEST_DATABASE_URL"
KAFKA_VARIABLE = "SCORING_TEST_KAFKA_BOOTSTRAP_SERVERS"
POLL_S = 0.02


@dataclass(frozen=True)
class Infrastructure:
    """Where PostgreSQL and Kafka come from in this run; an address, or None for `docker` or embedded."""

    database_url: str | None
    bootstrap_servers: str | None
    docker: bool

    def describe(self) -> list[str]:
        """Lines for the head of the report."""
        if self.docker:
            postgres, kafka = "Docker", "Docker"
        else:
            lacking = kafka_lacks()
            postgres = "embedded"
            kafka = f"embedded Tansu, since {lacking}" if lacking else f"embedded Apache Kafka {KAFKA_VERSION}"
        return [
            f"postgresql: {DATABASE_VARIABLE if self.database_url else postgres}",
            f"kafka: {KAFKA_VARIABLE if self.bootstrap_servers else kafka}",
        ]


@dataclass
class Postgres:
    """A server with the right to create databases. An embedded one can be killed and started again."""

    url: str
    embedded: EmbeddedPostgres | None = None

    async def kill(self) -> None:
        """Crash the server, as SIGQUIT to its process tree does."""
        assert self.embedded is not None, "use the fixture own_postgres"
        await self.embedded.kill()

    async def start(self) -> None:
        """Start the server again, on the same port with the same data; does nothing while it runs."""
        assert self.embedded is not None, "use the fixture own_postgres"
        await self.embedded.start()


@dataclass
class Kafka:
    """A broker. An embedded one can be stopped, killed and started again."""

    bootstrap_servers: str
    name: str
    embedded: EmbeddedBroker | None = None

    @property
    def survives_restart(self) -> bool:
        """Whether a restart keeps messages, topics and offsets."""
        return self.embedded is not None and self.embedded.survives_restart

    async def kill(self) -> None:
        assert self.embedded is not None, "use the fixture own_kafka"
        await self.embedded.kill()

    async def stop(self) -> None:
        assert self.embedded is not None, "use the fixture own_kafka"
        await self.embedded.stop()

    async def start(self) -> None:
        """Start the broker again on the same port; does nothing while it runs."""
        assert self.embedded is not None, "use the fixture own_kafka"
        await self.embedded.start()


@dataclass(frozen=True)
class Topics:
    """Four topics and a consumer group that no other test uses."""

    bootstrap_servers: str
    session_completed: str
    rescore_requested: str
    scoring_events: str
    dead_letters: str
    group: str

    @property
    def env(self) -> dict[str, str]:
        """Variables that point the service at these topics."""
        return {
            "SCORING_KAFKA_BOOTSTRAP_SERVERS": self.bootstrap_servers,
            "SCORING_KAFKA_GROUP": self.group,
            "SCORING_TOPIC_SESSION_COMPLETED": self.session_completed,
            "SCORING_TOPIC_RESCORE_REQUESTED": self.rescore_requested,
            "SCORING_TOPIC_SCORING_EVENTS": self.scoring_events,
            "SCORING_TOPIC_DEAD_LETTERS": self.dead_letters,
        }


EMBEDDED = Infrastructure(database_url=None, bootstrap_servers=None, docker=False)


def choose_infrastructure() -> Infrastructure:
    """Read the environment and look for Docker; starts nothing."""
    database_url, servers = os.environ.get(DATABASE_VARIABLE), os.environ.get(KAFKA_VARIABLE)
    return Infrastructure(database_url, servers, docker=not (database_url and servers) and _docker_answers())


def forget_own_settings() -> None:
    """Take the developer's own settings out of this process: no test may depend on them, or reach a real judge."""
    for name in list(os.environ):
        if name.startswith(("SCORING_", "OPENAI_", "OTEL_")):
            del os.environ[name]


@contextlib.contextmanager
def running_postgres(chosen: Infrastructure) -> Iterator[Postgres]:
    """A PostgreSQL for the session."""
    if chosen.database_url:
        yield Postgres(chosen.database_url)
    elif chosen.docker:
        from testcontainers.community.postgres import PostgresContainer

        with PostgresContainer("postgres:18-alpine", driver=None) as container:
            yield Postgres(container.get_connection_url())
    else:
        server = EmbeddedPostgres()
        run_apart(server.start())
        try:
            yield Postgres(server.url, server)
        finally:
            run_apart(server.close())


@contextlib.contextmanager
def running_kafka(chosen: Infrastructure) -> Iterator[Kafka]:
    """A broker for the session."""
    if chosen.bootstrap_servers:
        yield Kafka(chosen.bootstrap_servers, "external")
    elif chosen.docker:
        from testcontainers.community.kafka import KafkaContainer

        with KafkaContainer().with_kraft() as container:
            yield Kafka(container.get_bootstrap_server(), "docker")
    else:
        broker, _ = run_apart(choose_broker("auto"))
        run_apart(broker.start())
        try:
            yield Kafka(broker.bootstrap_servers, broker.name, broker)
        finally:
            run_apart(broker.kill())  # an orderly end takes up to 10 s, and the data is of no more use
            run_apart(broker.close())


@contextlib.contextmanager
def shared_servers(chosen: Infrastructure) -> Iterator[dict[str, str]]:
    """Both servers for all parallel test processes; gives the variables that hold their addresses."""
    with running_postgres(chosen) as postgres, running_kafka(chosen) as broker:
        yield {DATABASE_VARIABLE: postgres.url, KAFKA_VARIABLE: broker.bootstrap_servers}


@contextlib.contextmanager
def migrated_template(server: Postgres) -> Iterator[str]:
    """Name of a database with our tables, dropped afterwards."""
    from tarsy_scoring.postgres.migrate import migrate

    name = f"scoring_template_{uuid.uuid4().hex[:12]}"
    migrate(run_apart(create_database(server.url, name)))
    yield name
    run_apart(drop_database(server, name))


@contextlib.contextmanager
def fresh_database(server: Postgres, template: str | None = None) -> Iterator[str]:
    """The URL of a new database, dropped afterwards; a server that a test stopped is started for that."""
    name = f"scoring_test_{uuid.uuid4().hex[:12]}"
    yield run_apart(create_database(server.url, name, template=template))
    run_apart(drop_database(server, name))


def fresh_topics(kafka: Kafka) -> Topics:
    """Create four topics of six partitions; a broker that a test stopped is started again for that."""
    if kafka.embedded is not None:
        run_apart(kafka.start())
    suffix = uuid.uuid4().hex[:8]
    topics = Topics(
        kafka.bootstrap_servers,
        session_completed=f"session-completed-{suffix}",
        rescore_requested=f"rescore-requested-{suffix}",
        scoring_events=f"scoring-events-{suffix}",
        dead_letters=f"dead-letters-{suffix}",
        group=f"group-{suffix}",
    )
    names = [topics.session_completed, topics.rescore_requested, topics.scoring_events, topics.dead_letters]
    settings = load_settings(topics.env | {"SCORING_CREATE_TOPICS": "true"})
    run_apart(asyncio.wait_for(ensure_topics(settings, names), timeout=60))
    return topics


async def wait_until(condition: Callable[[], Any], timeout_s: float, what: str) -> Any:
    """
    Wait until `condition`, which may be async, gives a true value, and return that value.

    Raises:
        AssertionError: `condition` was false for `timeout_s`; the message holds `what`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        is_last = time.monotonic() >= deadline  # after a stall of the machine the condition is checked once more
        seen = condition()
        if inspect.isawaitable(seen):
            seen = await seen
        if seen:
            return seen
        assert not is_last, f"waited {timeout_s} s in vain: {what}"
        await asyncio.sleep(POLL_S)


def run_apart(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end in an event loop of its own, in another thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def drop_database(server: Postgres, name: str) -> None:
    if server.embedded is not None:
        await server.start()
    connection = await asyncpg.connect(server.url, timeout=10)
    try:
        await connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
    finally:
        await connection.close()


def _docker_answers() -> bool:
    """Whether a Docker engine answers; at most 3 s."""
    if not os.environ.get("DOCKER_HOST") and not Path("/var/run/docker.sock").exists():
        return False
    import docker  # type: ignore[import-untyped]
    from docker.errors import DockerException  # type: ignore[import-untyped]

    try:
        return bool(docker.from_env(timeout=3).ping())
    except DockerException:
        return False

"""The embedded servers answer, restart with their data, and do not outlive the process that started them."""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import asyncpg
import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from infrastructure import wait_until
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.errors import StartRefused
from tarsy_scoring.kafka.topics import ensure_topics
from tarsy_scoring_lab.broker import (
    EmbeddedBroker,
    EmbeddedKafka,
    EmbeddedTansu,
    choose_broker,
    fetch_artifacts,
    kafka_lacks,
)
from tarsy_scoring_lab.postgres import EmbeddedPostgres, create_database
from tarsy_scoring_lab.process import free_port
from tarsy_scoring_lab.stack import Stack

TOPIC = "round-trip"


@pytest.fixture(params=[EmbeddedKafka, EmbeddedTansu], ids=["apache-kafka", "tansu"])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[EmbeddedBroker]:
    """A broker of the test's own, which it may stop, with one topic."""
    kind: Callable[[], EmbeddedBroker] = request.param
    if kind is EmbeddedKafka and (lacking := kafka_lacks()):
        pytest.skip(f"Apache Kafka cannot run here: {lacking}")
    async with kind() as broker:
        servers = {"SCORING_KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap_servers, "SCORING_CREATE_TOPICS": "true"}
        await ensure_topics(load_settings(servers), [TOPIC])
        yield broker


async def produce(servers: str, topic: str, *values: bytes) -> None:
    async with AIOKafkaProducer(bootstrap_servers=servers, acks="all") as producer:
        for value in values:
            await producer.send_and_wait(topic, value, partition=0)


async def consume(servers: str, topic: str, count: int) -> list[bytes]:
    """The first `count` values of partition 0."""
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, 0)])
        return [(await asyncio.wait_for(consumer.getone(), 30)).value for _ in range(count)]
    finally:
        await consumer.stop()


async def test_postgres_restarts_with_its_rows() -> None:
    async with EmbeddedPostgres() as server:
        url = server.url
        connection = await asyncpg.connect(url)
        await connection.execute("CREATE TABLE kept (n int); INSERT INTO kept SELECT generate_series(1, 1000)")

        await server.kill()
        with pytest.raises(ConnectionRefusedError):
            await asyncpg.connect(url, timeout=5)
        await server.start()

        again = await asyncpg.connect(url)
        assert await again.fetchval("SELECT count(*) FROM kept") == 1000
        await again.close()
        connection.terminate()


async def test_postgres_ends_busy_sessions_when_stopped() -> None:
    async with EmbeddedPostgres() as server:
        connection = await asyncpg.connect(server.url)
        busy = asyncio.create_task(connection.execute("SELECT pg_sleep(600)"))
        watcher = await asyncpg.connect(server.url)
        await wait_until(
            lambda: watcher.fetchval("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'"),
            30,
            "the statement runs",
        )
        await asyncio.wait_for(server.stop(), 30)
        with pytest.raises((asyncpg.PostgresError, OSError, asyncpg.InterfaceError)):
            await busy
        connection.terminate()
        watcher.terminate()


async def test_given_directory_keeps_databases_between_servers() -> None:
    # Not `tmp_path`: its parents are private, and PostgreSQL started by root runs as another account.
    with tempfile.TemporaryDirectory() as room:
        os.chmod(room, 0o755)
        async with EmbeddedPostgres(Path(room) / "postgresql") as first:
            password = first.url.split("@")[0]
            await create_database(first.url, "kept")
        async with EmbeddedPostgres(Path(room) / "postgresql") as second:
            assert second.url.split("@")[0] == password
            connection = await asyncpg.connect(second.url, database="kept")
            await connection.close()


@pytest.mark.parametrize("kind", [EmbeddedPostgres, EmbeddedTansu], ids=["postgresql", "tansu"])
async def test_leaving_the_context_leaves_nothing(kind: type[EmbeddedPostgres] | type[EmbeddedTansu]) -> None:
    async with kind() as server:
        directory, tree = server.directory, children_of(server.pid)
    assert not directory.exists()
    assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in tree)


async def test_nothing_outlives_a_killed_parent() -> None:
    script = (
        "import asyncio, sys\n"
        "from tarsy_scoring_lab.postgres import EmbeddedPostgres\n"
        "async def main():\n"
        "    async with EmbeddedPostgres() as server:\n"
        "        print(server.pid, server.directory, flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    line = await asyncio.wait_for(parent.stdout.readline(), 30)
    pid, directory = line.decode().split()
    tree = children_of(int(pid))

    parent.send_signal(signal.SIGKILL)
    await parent.wait()

    await wait_until(lambda: not Path(directory).exists(), 30, "the directory is gone")
    assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in tree)


async def test_taken_port_is_refused_and_leaves_nothing() -> None:
    async with EmbeddedPostgres() as holder:
        late = EmbeddedPostgres()
        late.port = holder.port
        with pytest.raises(StartRefused, match=f"port {holder.port} on 127.0.0.1 is taken"):
            await late.start()
        assert not late.running
        with pytest.raises(RuntimeError, match="never started"):
            _ = late.directory


async def test_a_failed_start_shows_the_servers_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_: EmbeddedTansu) -> list[str]:
        return ["/bin/sh", "-c", "echo no such storage engine; exit 3"]

    monkeypatch.setattr(EmbeddedTansu, "_command", refuse)
    with pytest.raises(StartRefused, match=r"tansu ended while it started on .*: no such storage engine"):
        await asyncio.wait_for(EmbeddedTansu().start(), 30)


def test_free_port_is_below_outgoing_ports() -> None:
    assert all(20_000 <= free_port() < 32_000 for _ in range(50))


async def test_a_broker_restarts_on_its_address(broker: EmbeddedBroker) -> None:
    """A broker that survives restarts still has its messages."""
    servers = broker.bootstrap_servers
    await produce(servers, TOPIC, b"before")

    await broker.kill()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", broker.port)
    await broker.start()

    assert broker.bootstrap_servers == servers
    if not broker.survives_restart:
        settings = {"SCORING_KAFKA_BOOTSTRAP_SERVERS": servers, "SCORING_CREATE_TOPICS": "true"}
        await ensure_topics(load_settings(settings), [TOPIC])
    await produce(servers, TOPIC, b"after")
    expected = [b"before", b"after"] if broker.survives_restart else [b"after"]
    assert await consume(servers, TOPIC, len(expected)) == expected


async def test_auto_falls_back_to_tansu_and_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    broker, reason = await choose_broker("auto")
    assert (broker.name, broker.survives_restart) == ("tansu", False)
    assert "no `java`; install" in reason
    with pytest.raises(StartRefused, match="apache-kafka cannot run here: there is no `java`"):
        await choose_broker("apache-kafka")


def test_failing_maven_leaves_no_half_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\necho '[ERROR] no route to the repository'\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for _ in range(2):
        with pytest.raises(StartRefused, match="no route to the repository"):
            fetch_artifacts()
    left = [p.name for p in (tmp_path / "cache" / "tarsy-scoring").iterdir()]
    assert [name for name in left if not name.endswith(".lock")] == []


async def test_stack_gives_an_environment_that_works() -> None:
    async with Stack(broker="tansu") as stack:
        settings = load_settings(stack.env)
        assert settings.unknown_variables == ()
        for variable in ("SCORING_DATABASE_URL", "SCORING_TIMELINE_DATABASE_URL"):
            connection = await asyncpg.connect(stack.env[variable])
            await connection.close()
        await produce(stack.env["SCORING_KAFKA_BOOTSTRAP_SERVERS"], settings.topic_session_completed, b"event")
        assert stack.env["OPENAI_BASE_URL"] == stack.judge.base_url
        assert stack.broker == "tansu"


async def test_stack_names_the_part_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def missing(_: EmbeddedTansu) -> list[str]:
        return ["/no/such/program"]

    monkeypatch.setattr(EmbeddedTansu, "_command", missing)
    stack = Stack(broker="tansu")
    with pytest.raises(StartRefused, match="broker did not start: tansu: cannot run /no/such/program"):
        async with stack:
            pass
    assert not stack.postgres.running
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", stack.judge.port)


def children_of(pid: int) -> list[psutil.Process]:
    """All descendants of a process, and the process itself."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []

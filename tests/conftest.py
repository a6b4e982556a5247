"""Fixtures for every test: servers per session, and a database, topics and a judge per test."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog

from infrastructure import (
    EMBEDDED,
    Infrastructure,
    Kafka,
    Postgres,
    Topics,
    choose_infrastructure,
    forget_own_settings,
    fresh_database,
    fresh_topics,
    migrated_template,
    run_apart,
    running_kafka,
    running_postgres,
    shared_servers,
)
from next_version import next_version
from tarsy_scoring_lab.scripted_judge import ScriptedJudge

__all__ = ["next_version"]

CHOSEN = pytest.StashKey[Infrastructure]()
SHARED = pytest.StashKey[contextlib.ExitStack]()
ADDRESSES = pytest.StashKey[dict[str, str]]()
WITHOUT_SERVERS = [Path(__file__).parent / tier for tier in ("unit", "contract")]

# No deadline: by default an example may take 200 ms, and a busy machine takes longer.
hypothesis.settings.register_profile("steady", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("steady")


def pytest_configure(config: pytest.Config) -> None:
    if servers := getattr(config, "workerinput", {}).get("servers"):
        os.environ.update(servers)
    config.stash[CHOSEN] = choose_infrastructure()
    forget_own_settings()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # nohup ignores it, and child processes inherit that
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header(config: pytest.Config) -> list[str]:
    return config.stash[CHOSEN].describe()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Start the servers once for all parallel test processes, unless only tests without servers are asked for."""
    config: pytest.Config = node.config
    if SHARED not in config.stash:
        config.stash[SHARED] = stack = contextlib.ExitStack()
        asked_for = [Path(arg.partition("::")[0]).resolve() for arg in config.args]
        need_servers = not all(any(map(path.is_relative_to, WITHOUT_SERVERS)) for path in asked_for)
        addresses = stack.enter_context(shared_servers(config.stash[CHOSEN])) if need_servers else {}
        config.stash[ADDRESSES] = addresses
    node.workerinput["servers"] = config.stash[ADDRESSES]


def pytest_unconfigure(config: pytest.Config) -> None:
    if SHARED in config.stash:
        config.stash[SHARED].close()


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> Iterator[Postgres]:
    with running_postgres(pytestconfig.stash[CHOSEN]) as server:
        yield server


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config) -> Iterator[Kafka]:
    with running_kafka(pytestconfig.stash[CHOSEN]) as broker:
        yield broker


@pytest.fixture(scope="session")
def own_postgres() -> Iterator[Postgres]:
    """A PostgreSQL that no other test process uses, for tests that stop it."""
    with running_postgres(EMBEDDED) as server:
        yield server


@pytest.fixture(scope="session")
def own_kafka() -> Iterator[Kafka]:
    """A broker that no other test process uses, for tests that stop it."""
    with running_kafka(EMBEDDED) as broker:
        yield broker


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Restore the logging configuration: a command that a test runs in this process changes it."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture
async def let_pass(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Gives a function that advances the running loop's clock; deadlines in that time are due at once."""
    loop = asyncio.get_running_loop()
    real, ahead_s = loop.time, 0.0

    def move(seconds: float) -> None:
        nonlocal ahead_s
        ahead_s += seconds

    monkeypatch.setattr(loop, "time", lambda: real() + ahead_s)
    return move


@pytest.fixture(scope="session")
def _migrated_template(postgres: Postgres) -> Iterator[str]:
    """Name of a database with our tables: migrated once, copied for each test, dropped at the end."""
    with migrated_template(postgres) as name:
        yield name


@pytest.fixture(scope="session")
def _own_migrated_template(own_postgres: Postgres) -> Iterator[str]:
    with migrated_template(own_postgres) as name:
        yield name


@pytest.fixture
def database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A migrated database for this test; on `own_postgres` where the test uses that."""
    own = "own_" if "own_postgres" in request.fixturenames else ""
    template = request.getfixturevalue(f"_{own}migrated_template")
    with fresh_database(request.getfixturevalue(f"{own}postgres"), template) as url:
        yield url


@pytest.fixture
def empty_database_url(postgres: Postgres) -> Iterator[str]:
    """A database without any table for this test."""
    with fresh_database(postgres) as url:
        yield url


@pytest.fixture
def tarsy_database_url(postgres: Postgres) -> Iterator[str]:
    """A database with the tables of a TARSy deployment for this test."""
    from tarsy_scoring_lab.tarsy import create_tables

    with fresh_database(postgres) as url:
        run_apart(create_tables(url))
        yield url


@pytest.fixture
def topics(request: pytest.FixtureRequest) -> Topics:
    """Four topics for this test; on `own_kafka` where the test uses that."""
    own = "own_" if "own_kafka" in request.fixturenames else ""
    return fresh_topics(request.getfixturevalue(f"{own}kafka"))


@pytest.fixture
async def judge() -> AsyncIterator[ScriptedJudge]:
    """A scripted judge for this test."""
    async with ScriptedJudge() as judge:
        yield judge

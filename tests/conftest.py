"""Fixtures for every test: servers per session, and a database, topics and a judge per test."""

import asyncio
import signal
import uuid
from collections.abc import AsyncIterator, Callable, Iterator

import hypothesis
import pytest
import structlog

import trying_again
from infrastructure import (
    Infrastructure,
    Kafka,
    Postgres,
    Topics,
    choose_infrastructure,
    drop_database,
    forget_own_settings,
    fresh_database,
    fresh_topics,
    run_apart,
    running_kafka,
    running_postgres,
)
from tarsy_scoring_lab.postgres import create_database
from tarsy_scoring_lab.scripted_judge import ScriptedJudge

CHOSEN = pytest.StashKey[Infrastructure]()

# A busy machine is no bug: by default an example may take 200 ms.
hypothesis.settings.register_profile("steady", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("steady")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[CHOSEN] = choose_infrastructure()
    config.pluginmanager.register(trying_again)
    forget_own_settings()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # under nohup; what we start would ignore it as well
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header(config: pytest.Config) -> list[str]:
    return config.stash[CHOSEN].describe()


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> Iterator[Postgres]:
    with running_postgres(pytestconfig.stash[CHOSEN]) as server:
        yield server


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config) -> Iterator[Kafka]:
    with running_kafka(pytestconfig.stash[CHOSEN]) as broker:
        yield broker


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command that a test runs in this process configures logging, as every command does."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture
async def let_pass(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock of the running loop, by which deadlines are kept: what is due in so many seconds is due now."""
    loop = asyncio.get_running_loop()
    real, ahead_s = loop.time, 0.0

    def move(seconds: float) -> None:
        nonlocal ahead_s
        ahead_s += seconds

    monkeypatch.setattr(loop, "time", lambda: real() + ahead_s)
    return move


@pytest.fixture(scope="session")
def _migrated_template(postgres: Postgres) -> Iterator[str]:
    """Name of a database with our tables, migrated once, only ever copied, and dropped in the end."""
    from tarsy_scoring.postgres.migrate import migrate

    name = f"scoring_template_{uuid.uuid4().hex[:12]}"
    url = run_apart(create_database(postgres.url, name))

    migrate(url)
    yield name
    run_apart(drop_database(postgres, name))


@pytest.fixture
def database_url(postgres: Postgres, _migrated_template: str) -> Iterator[str]:
    """A migrated database of its own."""
    with fresh_database(postgres, _migrated_template) as url:
        yield url


@pytest.fixture
def empty_database_url(postgres: Postgres) -> Iterator[str]:
    """A database of its own without any table."""
    with fresh_database(postgres) as url:
        yield url


@pytest.fixture
def tarsy_database_url(postgres: Postgres) -> Iterator[str]:
    """A database of its own with the tables that a TARSy deployment has."""
    from tarsy_scoring_lab.tarsy import create_tables

    with fresh_database(postgres) as url:
        run_apart(create_tables(url))
        yield url


@pytest.fixture
def topics(kafka: Kafka) -> Topics:
    """Four topics of its own."""
    return fresh_topics(kafka)


@pytest.fixture
async def judge() -> AsyncIterator[ScriptedJudge]:
    """A scripted judge of its own."""
    async with ScriptedJudge() as judge:
        yield judge

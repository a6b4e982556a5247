"""A database that answers and refuses: work waits for what passes and ends loudly at what does not."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast
from urllib.parse import urlsplit

import asyncpg
import pytest
from structlog.testing import capture_logs

from attempting import Service, open_service, watched
from builders import UNPUBLISHED, Scoring, connected, session_completed
from fakes import FakeSessions
from infrastructure import Postgres, wait_until
from pooler import TransactionPooler
from tarsy_scoring.kafka.publisher import Publisher
from tarsy_scoring.limits.fleet import Limits
from tarsy_scoring.outbox.relay import Relay
from tarsy_scoring.postgres import database as database_module
from tarsy_scoring.postgres.database import TRIES, Connection, Database, DatabaseAway, DatabaseRefuses
from tarsy_scoring.queue.claims import ClaimedScore
from tarsy_scoring.scoring.attempt import Finished
from tarsy_scoring.scoring.worker import Worker
from tarsy_scoring.telemetry.metrics import Metrics

CONNECTIONS = 3
# A sequence, because its steps are not rolled back.
FAIL = """
CREATE SEQUENCE tried;
CREATE FUNCTION fail(state text, times int) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  IF nextval('tried') <= times THEN RAISE 'planted' USING ERRCODE = state; END IF;
  RETURN 'done';
END $$
"""
WRITE = "INSERT INTO dead_letter_bodies (body_id, headers) VALUES (gen_random_uuid(), '[]')"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "RETRY_MAX_S", 0.1)


@pytest.fixture
async def database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    """A pool of one caller, for which an outage is over with its first success."""
    monkeypatch.setattr(database_module, "SETTLED_S", 0.0)
    database = Database(database_url, "public", pool_size=CONNECTIONS)
    await database.open()
    yield database
    await database.close()


@asynccontextmanager
async def read_only(url: str) -> AsyncIterator[None]:
    """New connections are read-only meanwhile, as during maintenance or behind a demoted primary."""
    async with connected(url) as operator:
        name = urlsplit(url).path.lstrip("/")
        await operator.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        try:
            yield
        finally:
            await operator.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")


async def write(connection: Connection) -> str:
    return str(await connection.execute(WRITE))


async def open_all(database: Database) -> None:
    """Use every connection of the pool, so that all of them are open."""
    all_are_there = asyncio.Barrier(CONNECTIONS)

    async def meet(connection: Connection) -> None:
        await all_are_there.wait()
        await connection.fetchval("SELECT 1")

    await asyncio.gather(*(database.once(meet) for _ in range(CONNECTIONS)))


async def test_writers_continue_when_the_database_is_no_longer_read_only(database: Database, database_url: str) -> None:
    async with read_only(database_url):
        await open_all(database)
        waiting = asyncio.create_task(database.persist(write))
        for _ in range(CONNECTIONS):
            with pytest.raises(DatabaseAway, match="it is read-only") as away:
                await database.once(write)
            assert isinstance(away.value.__cause__, asyncpg.ReadOnlySQLTransactionError)

    assert await asyncio.wait_for(waiting, 30) == "INSERT 0 1"
    assert [await database.once(write) for _ in range(CONNECTIONS)] == ["INSERT 0 1"] * CONNECTIONS


# --- errors of the server ------------------------------------------------------------------------------


async def fail(database: Database, state: str, times: int) -> tuple[Any, int]:
    """Work that the server fails `times` times with this SQLSTATE; gives its end and how often it was tried."""
    await database.once(lambda c: c.execute(FAIL))
    [end] = await asyncio.gather(
        database.persist(lambda c: c.fetchval("SELECT fail($1, $2)", state, times)), return_exceptions=True
    )
    return end, await database.once(lambda c: c.fetchval("SELECT last_value FROM tried"))


@pytest.mark.parametrize("state", ["08006", "25006", "40001", "53200", "53400", "55P03", "57P01", "58030"])
async def test_a_server_error_that_passes_is_waited_for(database: Database, state: str) -> None:
    """One log line at the start of the wait, one at its end, however often the work is tried."""
    with capture_logs() as lines:
        end = await fail(database, state, TRIES + 2)

    assert end == ("done", TRIES + 3)
    assert [line["event"] for line in lines] == ["database.away", "database.back"]


@pytest.mark.parametrize("state", ["57014", "XX000"])
async def test_a_server_error_that_may_last_is_tried_a_few_times(database: Database, state: str) -> None:
    assert await fail(database, state, TRIES - 1) == ("done", TRIES)

    await database.once(lambda c: c.execute("DROP SEQUENCE tried; DROP FUNCTION fail"))
    end, tries = await fail(database, state, TRIES)
    assert isinstance(end, DatabaseRefuses)
    assert isinstance(end.__cause__, asyncpg.PostgresError)
    assert end.__cause__.sqlstate == state
    assert tries == TRIES


@pytest.mark.parametrize("how", ["pg_cancel_backend", "pg_terminate_backend"])
async def test_work_that_an_operator_interrupts_is_repeated(database: Database, database_url: str, how: str) -> None:
    begun: list[int] = []

    async def work(connection: Connection) -> str:
        begun.append(await connection.fetchval("SELECT pg_backend_pid()"))
        await connection.execute("SELECT pg_sleep($1)", 60.0 if len(begun) == 1 else 0.0)
        return "done"

    working = asyncio.create_task(database.persist(work))
    asleep = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
    async with connected(database_url) as operator:
        pid = await wait_until(lambda: operator.fetchval(asleep), 30, "the work sleeps")
        await operator.execute(f"SELECT {how}($1)", pid)

    assert await asyncio.wait_for(working, 30) == "done"
    assert len(begun) == 2


async def test_a_database_that_allows_no_connections_is_waited_for(
    database: Database, postgres: Postgres, database_url: str
) -> None:
    name = urlsplit(database_url).path.lstrip("/")
    async with connected(postgres.url) as operator:
        await operator.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        await operator.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)
        waiting = asyncio.create_task(database.persist(write))
        with pytest.raises(DatabaseAway, match="it accepts no connections; allow"):
            await database.once(write)
        assert not waiting.done()
        await operator.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")

    assert await asyncio.wait_for(waiting, 30) == "INSERT 0 1"


# --- limits of transactions ----------------------------------------------------------------------------

LIMITS = ("idle_in_transaction_session_timeout", "statement_timeout", "lock_timeout", "transaction_timeout")


async def limits(connection: Connection) -> dict[str, str]:
    rows = await connection.fetch("SELECT name, setting, unit FROM pg_settings WHERE name = ANY($1)", LIMITS)
    return {row["name"]: row["setting"] + row["unit"] for row in rows}


async def test_limits_do_not_stay_with_a_server_connection_of_a_pooler(database_url: str) -> None:
    """Other clients of the pooler get that connection, such as a migration that builds an index for an hour."""
    async with TransactionPooler(database_url, servers=1) as pooler:
        database = Database(pooler.url, "public", pool_size=2, statement_cache=0)
        await database.open()
        other = await asyncpg.connect(pooler.url, statement_cache_size=0)
        pid = "SELECT pg_backend_pid()"

        assert await database.once(lambda c: c.fetchval(pid)) == await other.fetchval(pid)
        ours, theirs = await database.once(limits), await limits(other)

        await other.close()
        await database.close()
    assert ours == {
        "idle_in_transaction_session_timeout": "15000ms",
        "statement_timeout": "30000ms",
        "lock_timeout": "10000ms",
    } | ({"transaction_timeout": "40000ms"} if "transaction_timeout" in theirs else {})
    assert theirs == dict.fromkeys(ours, "0ms")


class Acknowledging:
    """A stand-in for `Publisher` whose brokers acknowledge everything."""

    batch_bytes = 1_000_000

    async def start(self, timeout_s: float) -> None:
        pass

    async def publish(self, topic: str, messages: Sequence[Any], timeout_s: float) -> list[bool]:
        return [True] * len(messages)

    async def stop(self) -> None:
        pass


class Unending:
    """A stand-in for `Scorer`: records the sessions of its attempts, which end only with the test."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    async def attempt(self, claimed: ClaimedScore, **_: Any) -> Finished:
        self.begun.append(claimed.session_id)
        await asyncio.Event().wait()
        raise AssertionError("nothing ends this")


async def test_a_single_statement_that_fails_raises_its_error(scoring: Scoring) -> None:
    """Its connection serves the next statement."""
    backend = "SELECT pg_backend_pid() AS pid"
    [before] = await scoring.database.single(backend)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await scoring.database.single("SELECT 1 / 0")

    assert await scoring.database.single(backend) == [before]


@pytest.fixture
async def hurried(database_url: str) -> AsyncIterator[Service]:
    """A service in a database that lets nobody wait for a lock for long, which is a common rule."""
    async with connected(database_url) as operator:
        await operator.execute(f"ALTER DATABASE {urlsplit(database_url).path.lstrip('/')} SET lock_timeout = '100ms'")
    async with open_service(database_url) as service:
        yield service


async def test_worker_relay_and_inbox_wait_for_locks_of_others(
    hurried: Service, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: set[asyncio.Task[Any] | None] = set()
    note_away = hurried.database.note_away

    def note(error: DatabaseAway) -> None:
        failed.add(asyncio.current_task())
        note_away(error)

    monkeypatch.setattr(hurried.database, "note_away", note)
    await hurried.request("before")
    settings, scorer, stopping = hurried.settings.model_copy(update={"drain_timeout_s": 0}), Unending(), asyncio.Event()
    limits = Limits(hurried.database, settings)
    worker = Worker(
        settings=settings,
        leases=hurried.leases,
        scorer=cast(Any, scorer),
        source=watched(FakeSessions()),
        metrics=Metrics(),
        limits=limits,
    )
    relay = Relay(settings, hurried.database, Metrics(), cast(Publisher, Acknowledging()))
    with capture_logs() as lines:
        async with connected(database_url) as other, asyncio.TaskGroup() as group:
            async with other.transaction():
                await other.execute("LOCK TABLE sessions, session_scores, scoring_events IN EXCLUSIVE MODE")
                relaying = group.create_task(relay.run(stopping))
                accepting = group.create_task(hurried.inbox.accept([session_completed("meanwhile")]))
                group.create_task(worker.run(stopping))
                await wait_until(lambda: len(failed) >= 3, 30, "all three have failed")
                assert {relaying, accepting} <= failed

            await asyncio.wait_for(accepting, 30)
            await wait_until(lambda: len(scorer.begun) == 2, 30, "both scores are claimed")
            await wait_until(lambda: is_zero(other, UNPUBLISHED), 30, "the relay has published everything")
            stopping.set()

    assert [line["event"] for line in lines if line["event"].startswith("database.")] == ["database.away"]


async def is_zero(connection: asyncpg.Connection, count: str) -> bool:
    return await connection.fetchval(count) == 0

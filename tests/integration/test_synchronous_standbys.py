"""Commits that wait for a synchronous standby, on a server of the tests' own."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from builders import connected
from infrastructure import Postgres, wait_until
from tarsy_scoring.commands.doctor import examine_database
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.doctor.checks import Result

pytestmark = pytest.mark.usefixtures("own_postgres")

Wait = Callable[[str], Awaitable[None]]


@pytest.fixture
async def wait_for_standbys(own_postgres: Postgres, database_url: str) -> AsyncIterator[Wait]:
    """Gives a function that lets commits wait for these standbys, which are away."""

    async def configure(names: str) -> None:
        async with connected(own_postgres.url) as server:
            await server.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
            await server.execute("SELECT pg_reload_conf()")

        async def holds() -> bool:
            async with connected(own_postgres.url) as server:
                return bool(await server.fetchval("SHOW synchronous_standby_names") == names)

        await wait_until(holds, 30, "the server has read its new configuration")

    yield configure
    await configure("")


async def look(url: str) -> Result:
    results = await examine_database(load_settings({"SCORING_DATABASE_URL": url}))
    failed = [result.name for result in results if result.state == "failed"]
    assert failed in ([], ["database-standbys"]), results
    return next(result for result in results if result.name == "database-standbys")


async def test_standbys_as_doctor_sees_them(database_url: str, wait_for_standbys: Wait) -> None:
    none = await look(database_url)
    await wait_for_standbys("FIRST 1 (standby_1)")
    away = await look(database_url)

    assert (none.state, "wait for no standby" in none.found) == ("ok", True)
    assert "0 of 1 such standbys are in sync: each commit waits" in away.found
    assert "start them" in (away.advice or "")


async def test_commits_that_a_crash_may_lose(database_url: str) -> None:
    async with connected(database_url) as connection:
        await connection.execute(f"ALTER DATABASE {database_url.rpartition('/')[2]} SET synchronous_commit = off")

    found = await look(database_url)

    assert "synchronous_commit is off: a crash or a fail-over may lose requests" in found.found
    assert found.advice == "ALTER ROLE ... SET synchronous_commit = on"

"""Indexes are built while writers go on, and an interrupted build is repeated."""

import asyncio
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from builders import connected, open_scoring, rescore
from infrastructure import wait_until
from tarsy_scoring.postgres.migrate import migrate

BEFORE = "0004"
ADD_SESSION = "INSERT INTO sessions (session_id) VALUES ($1)"
DEFINITIONS = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1"
INVALID = "SELECT count(*) FROM pg_index WHERE NOT indisvalid"
BUILDING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'CREATE INDEX%'"


async def migrated(url: str, **how: Any) -> list[str]:
    return await asyncio.to_thread(migrate, url, **how)


@pytest.fixture
async def used_url(database_url: str) -> str:
    """A database with a score, at the revision before the indexes."""
    async with open_scoring(database_url) as scoring:
        await scoring.accept(rescore("session-1"))
    await migrated(database_url, down=BEFORE)
    return database_url


async def test_writers_go_on_while_indexes_are_built(used_url: str) -> None:
    """The build waits for open transactions; no transaction waits for the build."""
    async with connected(used_url) as slow, connected(used_url) as other:
        held = slow.transaction()
        await held.start()
        await slow.execute(ADD_SESSION, "slow")
        migrating = asyncio.create_task(migrated(used_url))
        await wait_until(lambda: other.fetchval(BUILDING), 30, "the first index is being built")

        await asyncio.wait_for(other.execute(ADD_SESSION, "meanwhile"), 30)

        assert not migrating.done()
        await held.commit()
        assert (await asyncio.wait_for(migrating, 30))[0] == "0005"


async def test_no_limit_of_role_or_database_interrupts_a_build(used_url: str) -> None:
    """Until the build succeeded, each run would begin anew."""
    async with connected(used_url) as slow, connected(used_url) as other:
        limits = ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"]
        if await other.fetchval("SELECT current_setting('transaction_timeout', true) IS NOT NULL"):
            limits.append("transaction_timeout")
        for limit in limits:
            await other.execute(f"ALTER DATABASE {urlsplit(used_url).path.lstrip('/')} SET {limit} = '200ms'")
        held = slow.transaction()
        await held.start()
        await slow.execute(ADD_SESSION, "slow")
        migrating = asyncio.create_task(migrated(used_url))

        async def has_been_building() -> bool:
            assert not migrating.done(), migrating
            return await other.fetchval(BUILDING + " AND clock_timestamp() - query_start > interval '1 s'") == 1

        await wait_until(has_been_building, 30, "the first index is being built for a second")
        await held.commit()
        assert (await asyncio.wait_for(migrating, 30))[0] == "0005"
        assert await other.fetchval(INVALID) == 0


async def test_an_interrupted_build_is_done_again(used_url: str, database_url: str) -> None:
    """An invalid index is replaced; a valid one is kept."""
    async with connected(used_url) as slow, connected(used_url) as other:
        async with slow.transaction():
            await slow.execute(ADD_SESSION, "slow")
            await other.execute("SET statement_timeout = '200ms'")
            with pytest.raises(asyncpg.QueryCanceledError):
                await other.execute("CREATE INDEX CONCURRENTLY sessions_recent ON sessions (session_id)")
            await other.execute("RESET statement_timeout")
        assert await other.fetchval(INVALID) == 1
        whole = "CREATE INDEX sessions_by_prefix ON sessions (lower(session_id) text_pattern_ops)"
        await other.execute(whole)
        oid = "SELECT 'sessions_by_prefix'::regclass::oid"
        kept = await other.fetchval(oid)

        assert (await migrated(used_url))[0] == "0005"

        assert await other.fetchval(INVALID) == 0
        assert await other.fetchval(oid) == kept
        built = await other.fetch(DEFINITIONS)
        await migrated(used_url, down="base")
        await migrated(used_url)
        assert await other.fetch(DEFINITIONS) == built


async def test_an_upgrade_counts_how_few_scores_have_a_reference(database_url: str) -> None:
    """PostgreSQL would else expect nearly all to have one, and read all scores for each trust card."""
    async with open_scoring(database_url) as scoring:
        await scoring.accept(rescore("session-1"))
    await migrated(database_url, down="0025")
    known = "SELECT null_frac FROM pg_stats WHERE tablename = 'session_scores' AND attname = 'reference'"
    async with connected(database_url) as connection:
        assert await connection.fetchval(known) is None

        await migrated(database_url)

        assert await connection.fetchval(known) == 1

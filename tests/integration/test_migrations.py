"""Migrations: up and down on empty and full databases, in two phases, and the check at each start."""

import asyncio
import json
import multiprocessing
import re
import shutil
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from alembic.script import ScriptDirectory

from builders import connected, open_scoring, rescore
from infrastructure import wait_until
from pooler import TransactionPooler
from tarsy_scoring.errors import ConfigurationError, StartRefused
from tarsy_scoring.postgres import migrate as schema
from tarsy_scoring.postgres.migrate import migrate
from tarsy_scoring.postgres.revisions import VERSION_TABLE, check_migrated
from tarsy_scoring.postgres.revisions import revisions as known_revisions

BASELINE = schema.migrations_dir() / "versions" / "0001_pre_baseline.py"
TABLES = set(re.findall(r"CREATE (?:UNLOGGED )?TABLE (\w+)", BASELINE.read_text()))
REVISIONS = [r.number for r in known_revisions()]
NEWEST = REVISIONS[-1]


async def migrated(url: str, of_schema: str = "public", **how: Any) -> list[str]:
    return await asyncio.to_thread(migrate, url, of_schema, **how)


async def rows(url: str, sql: str, *arguments: Any) -> list[Any]:
    async with connected(url) as connection:
        return await connection.fetch(sql, *arguments)


async def tables(url: str, of_schema: str = "public") -> set[str]:
    found = await rows(url, "SELECT tablename FROM pg_tables WHERE schemaname = $1", of_schema)
    return {r["tablename"] for r in found} - {VERSION_TABLE}


async def shape(url: str) -> list[Any]:
    """Columns, constraints and indexes, as PostgreSQL spells them."""
    return [
        await rows(url, sql)
        for sql in (
            "SELECT table_name, column_name, data_type, column_default, is_nullable FROM information_schema.columns "
            "WHERE table_schema = 'public' ORDER BY 1, ordinal_position",
            "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint "
            "WHERE connamespace = 'public'::regnamespace ORDER BY 1, 2",
            "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1",
        )
    ]


async def test_a_revision_is_undone_and_applied_again(database_url: str, revisions: Path) -> None:
    """Rows stay in both directions, and the tables have the shape of a database that was never migrated down."""
    async with open_scoring(database_url) as scoring:
        await scoring.accept(rescore())
    add_revision(revisions, later(1), "pre", "ALTER TABLE sessions ADD more int", "ALTER TABLE sessions DROP more")
    before = await shape(database_url)
    upgraded = await migrated(database_url)
    newest = await shape(database_url)

    undone = await migrated(database_url, down=NEWEST)
    undone_shape = await shape(database_url)
    again = await migrated(database_url)

    assert upgraded == undone == again == [later(1)]
    assert (undone_shape, await shape(database_url)) == (before, newest)
    assert await rows(database_url, "SELECT session_id FROM sessions") == [("session-1",)]


async def test_the_baseline_is_undone_whole(database_url: str) -> None:
    newest = await shape(database_url)

    assert await migrated(database_url, down="base") == REVISIONS
    assert await tables(database_url) == set()
    await migrated(database_url)
    assert await shape(database_url) == newest


async def test_writers_go_on_while_a_revision_builds_an_index(database_url: str, revisions: Path) -> None:
    """No transaction waits for the build, and no limit of the database interrupts it."""
    add_revision(
        revisions, later(1), "pre", "CREATE INDEX CONCURRENTLY more ON public.sessions (status)", concurrently=True
    )
    building = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'CREATE INDEX%'"
    long = f"{building} AND clock_timestamp() - query_start > interval '1 s'"
    async with connected(database_url) as slow, connected(database_url) as other:
        limits = ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"]
        if await other.fetchval("SELECT current_setting('transaction_timeout', true) IS NOT NULL"):
            limits.append("transaction_timeout")
        for limit in limits:
            await other.execute(f"ALTER DATABASE {urlsplit(database_url).path.lstrip('/')} SET {limit} = '200ms'")
        async with slow.transaction():
            await slow.execute("INSERT INTO sessions (session_id) VALUES ('slow')")
            migrating = asyncio.create_task(migrated(database_url))
            await wait_until(lambda: other.fetchval(long), 30, "the index is being built for a second")
            await asyncio.wait_for(other.execute("INSERT INTO sessions (session_id) VALUES ('meanwhile')"), 30)
            assert not migrating.done()
        assert await asyncio.wait_for(migrating, 30) == [later(1)]
        assert await other.fetchval("SELECT count(*) FROM pg_index WHERE NOT indisvalid") == 0


REFUSED = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))


async def test_the_database_refuses_an_inconsistent_score(database_url: str) -> None:
    async with open_scoring(database_url) as scoring:
        await scoring.accept(rescore())

        for change, constraint in REFUSED.items():
            with pytest.raises(asyncpg.CheckViolationError, match=constraint):
                await scoring.rows(f"UPDATE session_scores SET {change}")
        for total in (0, 100):
            await scoring.rows("UPDATE session_scores SET status = 'completed', total_score = $1", total)


async def test_one_open_production_score_per_session(database_url: str) -> None:
    add = (
        "INSERT INTO session_scores (session_id, request_id, priority, score_triggered_by, purpose, status) "
        "VALUES ('session-1', gen_random_uuid(), 0, 'alice', $1, $2)"
    )
    async with open_scoring(database_url) as scoring:
        await scoring.accept(rescore())

        with pytest.raises(asyncpg.UniqueViolationError, match="session_scores_one_open"):
            await scoring.rows(add, "production", "pending")
        await scoring.rows(add, "shadow", "pending")
        await scoring.rows(add, "production", "cancelled")


async def test_a_schema_of_its_own_is_migrated_alone(empty_database_url: str) -> None:
    assert await migrated(empty_database_url, "Team_Scoring") == REVISIONS

    assert await tables(empty_database_url, "Team_Scoring") == TABLES
    assert await tables(empty_database_url) == set()
    async with connected(empty_database_url) as connection:
        await check_migrated(connection, "Team_Scoring")
        with pytest.raises(StartRefused, match=f"schema 'public' lacks {', '.join(REVISIONS)}"):
            await check_migrated(connection, "public")


async def test_concurrent_migrations_both_succeed(empty_database_url: str) -> None:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as processes:
        runs = [processes.submit(migrate, empty_database_url) for _ in range(2)]
        assert [run.exception(timeout=60) for run in runs] == [None, None]

    assert await tables(empty_database_url) == TABLES
    assert await rows(empty_database_url, f"SELECT version_num FROM {VERSION_TABLE}") == [(NEWEST,)]


async def test_a_transaction_pooler_is_refused_while_a_revision_is_pending(empty_database_url: str) -> None:
    """The message says how to give another URL. Without a pending revision nothing depends on the session."""
    async with TransactionPooler(empty_database_url, servers=2) as pooler:
        with pytest.raises(StartRefused, match=f"127.0.0.1:{pooler.port}/.* a transaction pooler .*existingSecret"):
            await migrated(pooler.url)
        assert await tables(empty_database_url) == set()

        await migrated(empty_database_url)
        assert await migrated(pooler.url) == []


async def test_a_failed_revision_is_rolled_back(empty_database_url: str, revisions: Path) -> None:
    add_revision(revisions, later(1), "pre", "CREATE TABLE left_over ()")
    add_revision(revisions, later(2), "pre", "CREATE TABLE sessions (again int)")

    with pytest.raises(StartRefused, match="already exists"):
        await migrated(empty_database_url)

    assert await tables(empty_database_url) == TABLES | {"left_over"}
    assert await rows(empty_database_url, f"SELECT version_num FROM {VERSION_TABLE}") == [(later(1),)]


async def test_a_revision_waits_for_a_table_in_use_without_blocking_readers(
    empty_database_url: str, revisions: Path
) -> None:
    """A backup holds its lock for hours: readers continue, and the revision is applied after it."""
    await migrated(empty_database_url)
    add_revision(revisions, later(1), "pre", "ALTER TABLE scoring_events ADD COLUMN more text")
    backup, worker = [await asyncpg.connect(empty_database_url) for _ in range(2)]
    transaction = backup.transaction()
    await transaction.start()
    await backup.execute("LOCK TABLE scoring_events IN ACCESS SHARE MODE")

    migrating = asyncio.create_task(migrated(empty_database_url))
    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
    async with asyncio.timeout(30):
        await wait_until(lambda: backup.fetchval(waits), 30, "the revision waits")
        await worker.fetchval("SELECT count(*) FROM scoring_events")  # waits until the revision gives up its lock
        assert not migrating.done()
        await transaction.rollback()
        await migrating

    await worker.fetchval("SELECT count(more) FROM scoring_events")
    await backup.close()
    await worker.close()


@pytest.fixture
def revisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the migrations that a test may add to."""
    copy = shutil.copytree(schema.migrations_dir(), tmp_path / "migrations")
    for module in ("migrate", "revisions"):
        monkeypatch.setattr(f"tarsy_scoring.postgres.{module}.migrations_dir", lambda: copy)
    return copy / "versions"


async def test_file_names_match_the_revisions() -> None:
    """The check at start reads file names; Alembic reads the files."""
    read = [(s.revision, s.module.phase) for s in ScriptDirectory(str(schema.migrations_dir())).walk_revisions()]

    assert known_revisions() == read[::-1]


def later(steps: int) -> str:
    """The number of the revision this many steps after the newest."""
    return f"{int(NEWEST) + steps:04}"


def add_revision(
    versions: Path, revision: str, phase: str, up: str, down: str = "SELECT 1", *, concurrently: bool = False
) -> None:
    before = f"{int(revision) - 1:04}"
    around = "op.get_context().autocommit_block()" if concurrently else "nullcontext()"
    (versions / f"{revision}_{phase}_test.py").write_text(
        f'"""Test."""\nfrom contextlib import nullcontext\nfrom alembic import op\n'
        f"revision, down_revision, phase = {revision!r}, {before!r}, {phase!r}\n"
        f"def upgrade():\n    with {around}:\n        op.execute({up!r})\n"
        f"def downgrade():\n    op.execute({down!r})\n"
    )


async def test_each_phase_applies_its_own_revisions(empty_database_url: str, revisions: Path) -> None:
    add_revision(revisions, later(1), "pre", "ALTER TABLE sessions ADD added int")
    add_revision(revisions, later(2), "post", "ALTER TABLE sessions DROP added")
    add_revision(revisions, later(3), "pre", "ALTER TABLE sessions ADD later int")

    assert await migrated(empty_database_url, phase="pre") == [*REVISIONS, later(1)]
    assert await migrated(empty_database_url, phase="pre") == []
    assert await migrated(empty_database_url, phase="post") == [later(2), later(3)]
    assert await migrated(empty_database_url, down=later(1)) == [later(2), later(3)]


async def test_a_start_needs_only_pre_revisions(empty_database_url: str, revisions: Path) -> None:
    add_revision(revisions, later(1), "post", "ALTER TABLE sessions ADD added int")
    async with connected(empty_database_url) as connection:
        with pytest.raises(StartRefused, match=rf"lacks {', '.join(REVISIONS)}\); run: tarsy-scoring migrate"):
            await check_migrated(connection, "public")

        await migrated(empty_database_url, phase="pre")
        await check_migrated(connection, "public")

        add_revision(revisions, later(2), "pre", "ALTER TABLE sessions ADD more int")
        with pytest.raises(StartRefused, match=f"lacks {later(2)}"):
            await check_migrated(connection, "public")


async def test_an_older_version_starts_on_a_newer_database(database_url: str) -> None:
    """During a rollout or after a rollback it starts, and it migrates nothing."""
    await rows(database_url, f"UPDATE {VERSION_TABLE} SET version_num = '9999'")

    async with connected(database_url) as connection:
        await check_migrated(connection, "public")
    assert await migrated(database_url) == []
    with pytest.raises(StartRefused, match="9999"):
        await migrated(database_url, down="base")
    assert await tables(database_url) == TABLES


async def test_migrating_down_to_an_unknown_revision_is_refused(empty_database_url: str) -> None:
    with pytest.raises(ConfigurationError, match="--down 0815: there is no such revision"):
        await migrated(empty_database_url, down="0815")
    with pytest.raises(StartRefused, match="0001"):
        await migrated(empty_database_url, down="0001")

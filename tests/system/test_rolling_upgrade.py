"""A rolling upgrade: the previous version and this one work on one database and one broker."""

import asyncio
import io
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from builders import connected
from processes import Service, assert_whole
from tarsy_scoring.postgres.migrate import migrate

ROOT = Path(__file__).parents[2]
PREVIOUS_COMMIT = "bc8fa888e104f2c8658798b617ab275e09c699e9"
PREVIOUS_REVISION = "0005"
SESSIONS = 60

COLUMNS = """
SELECT table_name, column_name, data_type, is_nullable, column_default, is_identity FROM information_schema.columns
WHERE table_schema = 'public' AND table_name <> 'tarsy_scoring_version'
"""

# Without NOT NULL constraints, which only some servers list; COLUMNS has the same fact.
CONSTRAINTS = """
SELECT conrelid::regclass::text AS table_name, conname AS name, pg_get_constraintdef(oid) AS definition
FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND contype <> 'n'
"""

UNIQUE_INDEXES = """
SELECT indrelid::regclass::text AS table_name, indexrelid::regclass::text AS name,
       pg_get_indexdef(indexrelid) AS definition
FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
WHERE indisunique AND relnamespace = 'public'::regnamespace
"""

TRIGGERS = """
SELECT tgrelid::regclass::text AS table_name, tgname::text AS name, pg_get_triggerdef(oid) AS definition
FROM pg_trigger WHERE NOT tgisinternal
"""


async def read(url: str, statement: str) -> set[tuple[Any, ...]]:
    async with connected(url) as connection:
        return {tuple(r.values()) for r in await connection.fetch(statement)}


async def test_a_database_of_the_previous_version_is_refused(service: Service) -> None:
    await asyncio.to_thread(migrate, service.database_url, down=PREVIOUS_REVISION)
    worker = service.worker()

    assert await worker.ended() == 1
    assert re.search(r"lacks 0006, [0-9, ]+\); run: tarsy-scoring migrate$", worker.log, re.MULTILINE)


async def test_pre_migrations_only_add(empty_database_url: str) -> None:
    """The previous version still finds all that it reads, and all that it writes is still accepted."""
    kinds = {"columns": COLUMNS, "constraints": CONSTRAINTS, "unique indexes": UNIQUE_INDEXES, "triggers": TRIGGERS}
    await asyncio.to_thread(migrate, empty_database_url, phase="pre")
    after = [await read(empty_database_url, s) for s in kinds.values()]
    await asyncio.to_thread(migrate, empty_database_url, down=PREVIOUS_REVISION)
    before = [await read(empty_database_url, s) for s in kinds.values()]
    known = {row[0] for row in before[0]}

    assert before[0], "there are tables"
    for kind, was, is_now in zip(kinds, before, after, strict=True):
        assert was <= is_now, f"{kind} were changed or removed: {was - is_now}"
    new_columns, *new_rules = [
        {row for row in is_now - was if row[0] in known} for was, is_now in zip(before, after, strict=True)
    ]
    for table, column, _type, is_nullable, default, _identity in new_columns:
        assert is_nullable == "YES" or default is not None, f"{table}.{column} would refuse what says nothing of it"
    assert new_rules == [set(), set(), set()], "no rule that the version before does not know"


@pytest.fixture
def previous_version(tmp_path: Path) -> Path:
    """A folder with the package of the previous version, from the history of this checkout."""
    git = ["git", "-C", str(ROOT)]
    try:
        archive = subprocess.run(
            [*git, "archive", PREVIOUS_COMMIT, "service", "migrations"], capture_output=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("git is not installed")
    if archive.returncode:
        pytest.skip(f"the version before ({PREVIOUS_COMMIT[:7]}) is not in the history of this checkout")
    folder = tmp_path / "previous"
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    code = "import tarsy_scoring; print(tarsy_scoring.__file__)"
    env = {"PYTHONPATH": str(folder / "service")}
    told = subprocess.run([sys.executable, "-c", code], env=env, cwd=folder, capture_output=True, text=True, check=True)
    assert Path(told.stdout.strip()).is_relative_to(folder), "it is the version before that will be run"
    return folder / "service"


async def test_both_versions_work_side_by_side(service: Service, previous_version: Path) -> None:
    """Both take scores, the older one is stopped half way, and every session is scored once."""
    service.hold()
    older = service.worker(PYTHONPATH=str(previous_version), SCORING_SLOTS="3")
    newer = service.worker(SCORING_SLOTS="3")
    await older.ready()
    await newer.ready()
    events = await service.announce(*service.add_sessions(SESSIONS))
    await service.asked(6)  # all slots of both are taken
    service.judge.clear()
    for worker in (older, newer):
        await worker.says("attempt.finished", outcome="completed")
    assert await older.stop() == 0
    await service.all_end(SESSIONS)
    await assert_whole(service, events)
    assert await service.count("status = 'completed'") == SESSIONS
    assert await newer.stop() == 0

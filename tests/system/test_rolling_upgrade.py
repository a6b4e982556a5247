"""What the previous version and this one may expect of the tables while both run."""

import asyncio
from typing import Any

import pytest

from builders import connected
from previous_version import PreviousVersion
from processes import Service
from tarsy_scoring.postgres.migrate import migrate

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

# Triggers that count scores refuse and change no row of the service.
TRIGGERS = r"""
SELECT tgrelid::regclass::text AS table_name, tgname::text AS name, pg_get_triggerdef(oid) AS definition
FROM pg_trigger WHERE NOT tgisinternal AND tgname NOT LIKE 'count\_%' AND tgname <> 'describe_pick'
"""


async def read(url: str, statement: str) -> set[tuple[Any, ...]]:
    async with connected(url) as connection:
        return {tuple(r.values()) for r in await connection.fetch(statement)}


async def test_a_database_of_the_previous_version_is_refused(
    service: Service, previous_version: PreviousVersion
) -> None:
    lacking = await asyncio.to_thread(migrate, service.database_url, down=previous_version.revision)
    if not lacking:
        pytest.skip("the tables are those of the previous version")
    worker = service.worker()

    assert await worker.ended() == 1
    assert f"lacks {', '.join(sorted(lacking))}); run: tarsy-scoring migrate\n" in worker.log


def is_loosened(kind: str, row: tuple[Any, ...], rows: set[tuple[Any, ...]]) -> bool:
    """Whether a rule accepts more than before: a column that may be null, or a check that is gone."""
    if kind == "columns":
        return (*row[:3], "YES", *row[4:]) in rows
    return kind == "constraints" and str(row[-1]).startswith("CHECK")


async def test_pre_migrations_only_add(empty_database_url: str, previous_version: PreviousVersion) -> None:
    """The previous version still finds all that it reads, and all that it writes is still accepted."""
    kinds = {"columns": COLUMNS, "constraints": CONSTRAINTS, "unique indexes": UNIQUE_INDEXES, "triggers": TRIGGERS}
    await asyncio.to_thread(migrate, empty_database_url, phase="pre")
    after = [await read(empty_database_url, s) for s in kinds.values()]
    await asyncio.to_thread(migrate, empty_database_url, down=previous_version.revision)
    before = [await read(empty_database_url, s) for s in kinds.values()]
    known = {row[0] for row in before[0]}

    assert before[0], "there are tables"
    for kind, was, is_now in zip(kinds, before, after, strict=True):
        gone = {row for row in was - is_now if not is_loosened(kind, row, is_now)}
        assert not gone, f"{kind} were changed or removed: {gone}"
    new_columns, *new_rules = [
        {row for row in is_now - was if row[0] in known} for was, is_now in zip(before, after, strict=True)
    ]
    for table, column, _type, is_nullable, default, _identity in new_columns:
        assert is_nullable == "YES" or default is not None, f"{table}.{column} would refuse what says nothing of it"
    assert new_rules == [set(), set(), set()], "no rule that the version before does not know"
